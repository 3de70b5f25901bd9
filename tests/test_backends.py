"""Which back end multiplies: forced, measured, remembered, and harmless when it cannot be."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import minibert
from minibert.layers import linear_backends as backends


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing forced, nothing measured, and an empty folder for what will be."""
    monkeypatch.delenv("MINIBERT_LINEAR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(backends, "_measured", {})
    yield
    backends.use(None)


def choose(rows: int = 5, width: int = 512, dtype: torch.dtype = torch.float32) -> str:
    return backends.choose(rows, width, width, dtype)


def measured(
    monkeypatch: pytest.MonkeyPatch, times: dict[str, float], *, steady: bool = True
) -> list[tuple[int, ...]]:
    """Puts these times in the place of a measurement; the list grows with each one asked for."""
    asked: list[tuple[int, ...]] = []

    def measure(
        rows: int, d_in: int, d_out: int, dtype: torch.dtype
    ) -> tuple[dict[str, float], bool]:
        asked.append((rows, d_in, d_out))
        return dict(times), steady

    monkeypatch.setattr(backends, "_measure", measure)
    return asked


@pytest.mark.parametrize("name", backends.NAMES)
def test_use_decides_and_none_takes_it_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, {"torch": 1.0, "onednn": 2.0})
    backends.use(name)
    assert choose() == name
    backends.use(None)
    assert choose() == "torch"


@pytest.mark.parametrize("name", backends.NAMES)
def test_the_environment_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBERT_LINEAR", name)
    assert choose() == name
    backends.use("torch")
    assert choose() == "torch"


def test_an_unknown_name_is_an_error_that_lists_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(minibert.MinibertError, match=r"'mkl'.*torch, onednn, onednn-packed"):
        backends.use("mkl")
    monkeypatch.setenv("MINIBERT_LINEAR", "mkl")
    with pytest.raises(minibert.MinibertError, match=r"MINIBERT_LINEAR='mkl'.*onednn-packed"):
        choose()


def test_a_type_onednn_does_not_multiply_goes_through_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = measured(monkeypatch, {"torch": 2.0, "onednn": 1.0})
    backends.use("onednn")
    assert choose(dtype=torch.float64) == "torch"
    backends.use(None)
    assert choose(dtype=torch.float64) == "torch"
    assert not asked


@pytest.mark.parametrize(
    ("times", "winner"),
    [
        ({"torch": 100.0, "onednn": 90.0, "onednn-packed": 80.0}, "onednn-packed"),
        ({"torch": 100.0, "onednn": 90.0}, "onednn"),
        # Less than 7 % is no reason.
        ({"torch": 100.0, "onednn": 97.0, "onednn-packed": 96.0}, "torch"),
        ({"torch": 100.0, "onednn": 130.0}, "torch"),
    ],
)
def test_the_fastest_wins_but_torch_needs_to_be_beaten_clearly(
    times: dict[str, float], winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, times)
    assert choose() == winner
    assert [(name, row) for name, row in backends.chosen().values()] == [(winner, times)]


def test_a_shape_is_measured_once_and_another_on_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = measured(monkeypatch, {"torch": 1.0})
    for rows, width in ((2, 512), (8, 512), (9, 512), (3, 128), (2, 512)):
        choose(rows, width)
    assert len(asked) == 3
    choose(dtype=torch.bfloat16)
    assert len(backends.chosen()) == 4 if backends.onednn_available(torch.bfloat16) else 3


def test_a_real_measurement_names_every_back_end_in_microseconds() -> None:
    times, _ = backends._measure(5, 512, 512, torch.float32)
    assert set(times) == set(backends.NAMES)
    assert all(0 < time < 1e6 for time in times.values())


def test_a_busy_machine_takes_torch_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = measured(monkeypatch, {"torch": 100.0, "onednn": 60.0}, steady=False)
    assert choose() == choose() == "torch"
    assert len(asked) == 1, "measured again in the same process"
    assert not (tmp_path / "cache").exists()


def test_a_busy_machine_still_sees_a_back_end_four_times_as_fast(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured(monkeypatch, {"torch": 100.0, "onednn": 25.0}, steady=False)
    assert choose() == "onednn"
    assert not (tmp_path / "cache").exists()


def test_times_that_do_not_repeat_themselves_are_not_steady(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "_PATIENCE", 0.02)
    clock = iter(x * x * 1e-4 for x in range(10_000))
    monkeypatch.setattr(backends.time, "perf_counter", lambda: next(clock))
    times, steady = backends._clock({"torch": lambda: torch.ones(1)})
    assert not steady
    assert times["torch"] > 0


def test_measurements_are_kept_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times = {"torch": 100.0, "onednn": 50.0}
    asked = measured(monkeypatch, times)
    choose()
    file = tmp_path / "cache" / "minibert" / "linear.json"
    assert backends.cache_file() == file
    assert list(json.loads(file.read_text())[backends.machine()].values()) == [times]
    assert [path.name for path in file.parent.iterdir()] == ["linear.json"]
    monkeypatch.setattr(backends, "_measured", {})
    assert choose() == "onednn"
    assert len(asked) == 1, "measured again although the file knows"


def test_another_machine_keeps_its_measurements(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured(monkeypatch, {"torch": 1.0})
    file = tmp_path / "cache" / "minibert" / "linear.json"
    file.parent.mkdir(parents=True)
    other = {"float32 8 x 512 -> 512": {"torch": 100.0, "onednn": 1.0}}
    file.write_text(json.dumps({"another processor": other}))
    assert choose() == "torch"
    stored = json.loads(file.read_text())
    assert stored["another processor"] == other
    assert len(stored) == 2


def test_the_number_of_threads_makes_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measured(monkeypatch, {"torch": 1.0})
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            choose()
    finally:
        torch.set_num_threads(threads)
    assert len(asked) == 2


def broken_files() -> list[str]:
    machine, key = json.dumps(backends.machine()), "float32 8 x 512 -> 512"
    rows = ["5", "[]", '"torch"', '{"torch": "fast"}', '{"torch": 1, "later": 0.1}', "{}", "null"]
    inner = ["5", "[]", *(f'{{"{key}": {row}}}' for row in rows)]
    return ["", "{", "\x00", "5", "null", "[[1, 2]]", *(f"{{{machine}: {row}}}" for row in inner)]


@pytest.mark.parametrize("content", broken_files())
def test_a_broken_file_of_measurements_is_as_good_as_none(
    content: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = measured(monkeypatch, {"torch": 100.0, "onednn": 50.0})
    file = tmp_path / "cache" / "minibert" / "linear.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert choose() == "onednn"
    assert len(asked) == 1
    assert json.loads(file.read_text())[backends.machine()]


@pytest.mark.parametrize("obstacle", ["file for a folder", "folder for the file"])
def test_a_place_that_cannot_be_written_is_harmless(
    obstacle: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured(monkeypatch, {"torch": 100.0, "onednn": 50.0})
    if obstacle == "file for a folder":
        (tmp_path / "cache").write_text("")
    else:
        (tmp_path / "cache" / "minibert" / "linear.json").mkdir(parents=True)
    assert choose() == "onednn"
    left = sorted(path.name for path in (tmp_path / "cache").rglob("*"))
    assert left in ([], ["linear.json", "minibert"]), "something was left behind"


def test_no_home_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has neither HOME nor an entry in the list of users."""
    measured(monkeypatch, {"torch": 100.0, "onednn": 50.0})
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(RuntimeError):
        backends.cache_file()
    assert choose() == "onednn"
