"""The instruments are measured only where they are right. No time is asserted."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.cases import Case, Implementation, Prepared, Shape
from benchmarks.instruments import __main__ as program
from benchmarks.instruments import by_minibert, entry, reference, tasks
from benchmarks.instruments.entries import ENTRIES
from benchmarks.instruments.entry import BY_HAND, MINIBERT, PEER, Entry
from benchmarks.instruments.measure import amount, compared, measure
from benchmarks.instruments.memory import held_bytes
from benchmarks.instruments.tasks import TASKS, Given, Task
from minibert.bench import clock
from minibert.bench.result_rows import version
from minibert.bench.timing import Timing

BY_NAME = {task.name: task for task in TASKS}
# Everyone on GPT-2, and on BERT minibert and what its speed is compared with.
WANTED = re.compile("gpt2|minibert|transformers")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(clock, "MOST_CALLS", 1)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a quick run with one round of everyone who is installed and WANTED."""
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(clock, "MOST_CALLS", 1)
        return [row for table in program.tables(True, WANTED, ENTRIES, 1) for row in table]


@pytest.mark.slow
def test_every_entry_that_is_asked_for_has_a_row(rows: list[dict[str, Any]]) -> None:
    expected = {
        (one.task, shape.model, one.contender.name)
        for one in ENTRIES
        for shape in BY_NAME[one.task].shapes(quick=True)
        if one in program.select(BY_NAME[one.task], shape, ENTRIES, WANTED)
    }
    assert {one.contender.name for one in ENTRIES} == {name for _, _, name in expected}
    assert {(row["task"], row["model"], row["implementation"]) for row in rows} == expected
    assert len(rows) == len(expected)
    for row in rows:
        assert version(row["package"]) is not None or row["reason"] == "not installed"


@pytest.mark.slow
def test_minibert_and_hooks_are_right_in_every_task(rows: list[dict[str, Any]]) -> None:
    wrong = [
        row for row in rows if row["package"] in ("minibert", "transformers") and not row["ok"]
    ]
    assert not wrong
    for task in TASKS:
        assert {row["kind"] for row in rows if row["task"] == task.name} >= {MINIBERT}


@pytest.mark.slow
def test_a_row_has_its_target_speed_and_opponent(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["kind"] == MINIBERT and "fastest_peer" in row:
            assert row["met"] == (row["ratio"] <= BY_NAME[row["task"]].target)
            assert row["median_ms"] > 0
        assert "met" not in row or row["kind"] == MINIBERT
    fastest = [row for row in rows if row.get("fastest_peer") == row["implementation"]]
    assert {row["ratio"] for row in fastest} == {1}


def changed(result: Any) -> Any:
    """The same result, a little wrong."""
    if isinstance(result, Tensor):
        return result + 0.02 * result.abs().max()
    if isinstance(result, tuple | list):
        return [changed(one) for one in result]
    return result


def unedited(model: Any, given: Given) -> Tensor:
    return model(given.ids)


def neighbour(model: Any, given: Given) -> Tensor:
    return model.trace(given.ids)[given.layer, given.head + 1].probs


def sweep_of_nothing(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    clean = tasks.metric(given)(model(given.ids))[0]
    columns = given.ids.shape[1]
    return clean.expand(model.config.n_layers, columns), clean


def half_gradient(model: Any, given: Given) -> list[Tensor]:
    return [changed(one) for one in by_minibert.gradient(model, given)]


WRONG = {
    tasks.ONE_HEAD: (neighbour, entry.head),
    tasks.ABLATION: (unedited, entry.ablated),
    tasks.PATCH_SWEEP: (sweep_of_nothing, entry.sweep),
    tasks.GRADIENT: (half_gradient, entry.numbered_gradients),
}


@pytest.mark.parametrize(
    ("name", "model"), [*zip(WRONG, ("bert-quick", "gpt2-quick") * 2, strict=True)]
)
def test_what_did_not_do_it_has_no_speed(name: str, model: str, tmp_path: Path) -> None:
    run, read = WRONG[name]

    def prepare(case: Case) -> Prepared:
        built = partial(run, case.minibert(torch.float32, None))
        return Prepared(built, read, torch.enable_grad)

    wrong = Entry(name, Implementation("wrong", "", prepare), PEER)
    with torch.no_grad():
        [row] = measure(Case(model, tmp_path), BY_NAME[name], Shape(model, 1, 13), [wrong], 1)
    assert not row["ok"]
    assert "differs by" in row["reason"]
    assert "median_ms" not in row


def never(case: Case) -> Prepared:
    raise AssertionError("what was measured is there")


def test_the_ratio_is_to_the_fastest_peer_and_says_who_that_is() -> None:
    kinds = {"ours": MINIBERT, "loop": PEER, "slow": PEER, "batch": BY_HAND}
    entries = [
        Entry("a task", Implementation(name, "", never), kind) for name, kind in kinds.items()
    ]
    times = {"ours": 2.0, "loop": 10.0, "slow": 40.0, "batch": 5.0}
    measured = {name: Timing([[time], [time]]) for name, time in times.items()}
    task = Task("a task", 0.25, (8,))
    row = compared(entries[0], task, entries, measured)
    assert (row["ratio"], row["fastest_peer"], row["met"]) == (0.4, "batch", False)
    assert (row["ratio_documented"], row["fastest_documented"]) == (0.2, "loop")
    assert row["met_documented"]
    assert compared(entries[2], task, entries, measured)["ratio"] == 8
    alone = compared(entries[0], task, entries, {"ours": measured["ours"]})
    assert "ratio" not in alone
    assert amount({"held_bytes": 7}) == 7


def test_held_bytes_are_those_of_each_storage_once_without_weights() -> None:
    model = nn.Linear(5, 7)
    values = torch.zeros(11, 13)
    result = {"views": [values[0], values[1:]], "model": model, "weight": model.weight}
    assert held_bytes(result) == 11 * 13 * 4


def test_no_sweep_is_right_by_doing_nothing(tmp_path: Path) -> None:
    with torch.no_grad():
        case = Case("gpt2-quick", tmp_path)
        given = tasks.given(case, BY_NAME[tasks.HEAD_SWEEP], Shape("gpt2-quick", 1, 13))
        answer = reference.answer(case, tasks.HEAD_SWEEP, given)
    assert answer.found["change"].shape == (3, 4)
    assert 0 < answer.limits["change"] < float(answer.found["change"].abs().max())


def test_rows_are_chosen_by_their_names() -> None:
    shape = Shape("bert-quick", 1, 32)
    chosen = program.select(
        BY_NAME[tasks.ABLATION], shape, ENTRIES, re.compile("^one ablation bert-quick B1 T32 mini")
    )
    assert [one.contender.name for one in chosen] == ["minibert"]
