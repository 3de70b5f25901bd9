"""The choice of tile sizes: bounded in time, kept for its sources, never trusted."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton

from minibert.kernels.fused import tuning
from minibert.kernels.fused.launch import Config

NAME, BEST = "forward, plain", Config(128, 64, 8, 3)
#: What is tried for the calls below, and the name of their class.
TRIED, CLASS = tuning.candidates("forward", "bf16", 64, "plain"), "forward, plain, bf16, 64, 4096"


def test_what_was_found_is_kept_in_a_file_that_is_always_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuning.json"
    assert tuning.remembered(path) == {}
    tuning._remember(path, NAME, BEST)
    tuning._known.clear()
    assert tuning.remembered(path) == {NAME: BEST}
    assert [one.name for one in path.parent.iterdir()] == ["tuning.json"]


@pytest.mark.parametrize(
    "text",
    ['{"forward, plain": [1', "[]", '{"forward, plain": 7}']
    + [f'{{"forward, plain": {one}}}' for one in ("[1, 6]", "[1, 6, 8, null]", "[1, 4, 8, 3, 1]")],
)  # fmt: skip
def test_a_damaged_file_is_ignored_with_a_warning(text: str, tmp_path: Path) -> None:
    """The fault: it was ignored without a word, or what it held was used."""
    path = tmp_path / "tuning.json"
    path.write_text(text, encoding="utf-8")
    with pytest.warns(UserWarning, match=r"tuning\.json is damaged"):
        assert tuning.remembered(path) == {}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The configs that are launched when a call is tuned where a launch takes so many ms."""

    def tuned(launch_ms: float, length: int = 4096) -> tuple[Config, list[Config]]:
        event = SimpleNamespace(
            record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: launch_ms
        )
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
        query = torch.empty(1, 1, length, 64, device="meta", dtype=torch.bfloat16)
        launched: list[Config] = []
        best = tuning.best_config("forward", "plain", query, query, launched.append)
        return best, launched

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Fast 1")
    monkeypatch.setenv("MINIBERT_CACHE", str(tmp_path))
    monkeypatch.delenv("MINIBERT_TUNING", raising=False)
    monkeypatch.setattr(tuning, "_known", {})
    tuning.cache_file.cache_clear()
    yield tuned
    tuning.cache_file.cache_clear()


def test_a_config_that_is_no_candidate_is_not_used(gpu: Any) -> None:
    """The fault: [512, 512, 8, 9] stood in the file and was launched."""
    path = tuning.cache_file(torch.device("meta"))
    path.write_text(json.dumps({CLASS: [512, 512, 8, 9, False]}), encoding="utf-8")
    with pytest.warns(UserWarning, match="none of its candidates"):
        best, launched = gpu(1.0)
    assert best in TRIED
    assert set(launched) == set(TRIED)
    assert json.loads(path.read_text()) == {CLASS: list(best)}
    assert gpu(1.0) == (best, [])


def test_tuning_is_bounded_by_time_and_not_by_launches(gpu: Any) -> None:
    """The fault: ten launches of each candidate, of a second each at a million keys."""
    assert len(gpu(1000.0, 2**20)[1]) == 2
    assert len(gpu(100.0, 2**16)[1]) <= 12
    assert len(gpu(0.1, 512)[1]) == 10 * len(TRIED)


def test_other_sources_versions_or_devices_have_a_file_of_their_own(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The fault: no source hash, so that a mended kernel was run as the old one was fastest."""
    places = (
        (tuning, "sources", lambda _: "others"),
        (torch.cuda, "get_device_name", lambda _: "Fast 2"),
        (triton, "__version__", "9.0"),
        (torch, "__version__", "9.0"),
    )
    names = [tuning.cache_file(torch.device("meta")).name]
    for place in places:
        with monkeypatch.context() as patch:
            patch.setattr(*place)
            tuning.cache_file.cache_clear()
            names.append(tuning.cache_file(torch.device("meta")).name)
    assert len(set(names)) == 1 + len(places)
    digests = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "one.py").write_text(text)
        digests.add(tuning.sources(tmp_path))
    assert len(digests) == 2


def test_nothing_is_timed_while_a_graph_is_recorded(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert gpu(1.0) == (TRIED[0], [])


def test_a_config_that_does_not_run_is_left_out_and_told_unless_it_is_the_first() -> None:
    tried = tuple(Config(128, 64, 8, stages) for stages in (1, 2, 3))

    def milliseconds(cut: Config, _: float) -> tuple[float, float]:
        if cut.num_stages == failing:
            raise RuntimeError("out of shared memory")
        return 4.0 - cut.num_stages, 1.0

    failing = 3
    with pytest.warns(UserWarning, match="num_stages=3.*out of shared memory"):
        assert tuning._fastest(NAME, tried, milliseconds) == tried[1]
    failing = 1
    with pytest.raises(RuntimeError):
        tuning._fastest(NAME, tried, milliseconds)


@pytest.mark.parametrize(
    ("capability", "word"),
    [((8, 0), "ampere"), ((8, 9), "ampere"), ((9, 0), ""), ((10, 0), "blackwell")],
)
def test_gpus_that_multiply_otherwise_than_hopper_choose_among_other_tiles(
    capability: tuple[int, int], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: Hopper's tiles spilled up to 776 bytes a thread on Ampere."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert tuning.generation(torch.device("cuda")) == word
    hopper, here = (
        tuning.candidates("backward keys", "bf16", 128, f"causal{told}")[0]
        for told in ("", f" {word}")
    )
    assert (here.block_n < hopper.block_n) == (word == "ampere")
