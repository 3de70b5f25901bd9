"""What `minibert models` finds on a machine."""

import re
from pathlib import Path

import pytest
from command_line import process, run

import minibert
from minibert.checkpoint.config import CONTRACT
from minibert.layers.linear_backends import processor
from minibert.loading import load


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A Hugging Face cache with two bert models, one of them broken, and a stranger."""
    for name, files in {
        "models--owner--whole": ("config.json", "model.safetensors"),
        "models--owner--broken": ("config.json",),
        "models--owner--stranger": (),
    }.items():
        commit = "0123456789abcdef0123456789abcdef01234567"
        snapshot = tmp_path / name / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (tmp_path / name / "refs").mkdir()
        (tmp_path / name / "refs" / "main").write_text(commit)
        (tmp_path / name / "blobs").mkdir()
        for file in files:
            source = Path(minibert.__file__).parent / "embedded" / "tiny-bert" / file
            blob = tmp_path / name / "blobs" / file
            blob.write_bytes(source.read_bytes())
            (snapshot / file).symlink_to(blob)
        if not files:
            (snapshot / "config.json").write_text('{"model_type": "t5"}')
    return tmp_path


def test_embedded_and_cached_models_are_listed(cache: Path) -> None:
    done = process("models", env={"HF_HUB_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr
    embedded, cached = done.stdout.split("\n\n")
    model = load()
    count = sum(parameter.numel() for parameter in model.parameters())
    row = next(line for line in embedded.splitlines() if "tiny-bert" in line)
    expected = [
        "tiny-bert",
        "bert",
        "pre-training",
        f"{model.config.n_layers} x",
        f"{count / 1e6:.1f} M",
    ]
    assert all(cell in row for cell in expected), row
    assert "owner/whole" in cached
    assert "owner/broken cannot be loaded: " in cached
    assert "stranger" not in cached


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All that is printed where there is no cache and no back end is named."""
    absent = tmp_path_factory.mktemp("hub") / "absent"
    env = {"HF_HUB_CACHE": str(absent), "MINIBERT_LINEAR": ""}
    done = process("models", "--backends", "--fields", env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_missing_cache_is_an_empty_one(everything: str) -> None:
    assert "in the Hugging Face cache\n  none\n\n" in everything


def test_a_cache_that_may_not_be_read_does_not_hide_the_embedded_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("huggingface_hub.scan_cache_dir", refused)
    result = run("models")
    assert result.exit_code == 0, result.output
    assert "tiny-bert" in result.stdout
    assert result.stdout.endswith(" cannot be loaded: Permission denied\n")


@pytest.mark.parametrize("name", ["", "torch"])
def test_the_back_end_of_each_type_and_shape_is_listed_with_its_rule(
    name: str, everything: str, tmp_path: Path
) -> None:
    said = everything
    if name:
        env = {"HF_HUB_CACHE": str(tmp_path / "absent"), "MINIBERT_LINEAR": name}
        done = process("models", "--backends", env=env)
        assert done.returncode == 0, done.stderr
        said = done.stdout
    table = said.split("linear back ends")[1]
    assert processor().name in table
    named = name or "none (MINIBERT_LINEAR is not set), so the rule decides"
    assert f"named      {named}\n" in table
    for kind in ("float32", "bfloat16", "float16"):
        assert len(re.findall(rf"^  {kind} ", table, re.M)) == 5
    if name and processor().onednn_dtypes:
        assert "named by MINIBERT_LINEAR or use()" in table
        assert " onednn " not in table


def test_every_family_and_every_refused_field_is_listed(everything: str) -> None:
    table = everything.split("fields of config.json")[1]
    for family, fields in CONTRACT.items():
        verdicts = [judged.verdict for judged in fields.values()]
        numbers = [verdicts.count(each) for each in ("read", "irrelevant", "refused")]
        row = rf"^  {family} +" + " +".join(map(str, [*numbers, len(fields)])) + "$"
        assert re.search(row, table, re.M), family
        for name, judged in fields.items():
            if judged.verdict != "read":
                assert re.search(rf"^  {name} .*{re.escape(judged.reason)}$", table, re.M), name


def test_an_unknown_back_end_is_an_error(tmp_path: Path) -> None:
    env = {"HF_HUB_CACHE": str(tmp_path / "absent"), "MINIBERT_LINEAR": "mkl"}
    done = process("models", "--backends", env=env)
    assert done.returncode != 0
    assert "MINIBERT_LINEAR='mkl' is no back end" in done.stderr
