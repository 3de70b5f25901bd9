"""What `minibert models` finds on a machine."""

from pathlib import Path

import pytest
import torch
from command_line import process, run

import minibert
from minibert.layers.linear_backends import onednn_available
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
            (snapshot / "config.json").write_text('{"model_type": "llama"}')
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


def test_a_missing_cache_is_an_empty_one(tmp_path: Path) -> None:
    done = process("models", env={"HF_HUB_CACHE": str(tmp_path / "absent")})
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("in the Hugging Face cache\n  none\n")


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


def test_back_ends_are_measured_when_asked_and_remembered(tmp_path: Path) -> None:
    if not onednn_available(torch.float32):
        pytest.skip("this torch has one back end only, so there is nothing to measure")
    env = {"XDG_CACHE_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "absent")}
    env["MINIBERT_LINEAR"] = ""
    before = process("models", "--backends", env=env).stdout
    assert "nothing is measured yet" in before
    assert "override  none" in before
    measured = process("models", "--measure", env=env).stdout
    assert measured.count("float32 ") == 15
    # What a busy machine could not measure twice alike is not kept; the rest is, as it was.
    after = process("models", "--backends", env=env).stdout
    rows = [line.split() for line in measured.splitlines()]
    kept = [line.split() for line in after.splitlines() if "float32 " in line]
    assert [row for row in kept if row not in rows] == []


def test_nothing_is_measured_while_one_back_end_is_forced(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "absent")}
    forced = process("models", "--measure", env=env | {"MINIBERT_LINEAR": "torch"}).stdout
    assert "override  MINIBERT_LINEAR=torch" in forced
    assert "nothing is measured yet" in forced
    assert not list(tmp_path.iterdir())
