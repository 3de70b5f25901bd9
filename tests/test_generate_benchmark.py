"""The generation benchmark measures what is right and says what is not. No time is asserted."""

import json
from typing import Any

import pytest

from benchmarks import generation, session
from benchmarks.generation import QUICK, REFERENCE, Task
from minibert.bench import clock


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    arguments = ["--quick", "--rounds", "1", "--threads", "1", "--output", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        for name in (*session.QUIET, "XDG_CACHE_HOME", "MINIBERT_LINEAR"):
            patch.setenv(name, "")
        patch.setattr(clock, "MOST_CALLS", 1)
        assert generation.main(arguments) == 0
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_everyone_writes_what_transformers_writes_and_has_a_speed(
    rows: list[dict[str, Any]],
) -> None:
    measured = [row for row in rows if row["what"] == "generation"]
    assert len(measured) == 3 * len(QUICK)
    for row in measured:
        assert row["ok"], row
        tokens = row["batch"] * row["new"]
        assert row["tokens_per_second"] == pytest.approx(tokens / row["median_ms"] * 1e3, rel=1e-2)
        assert row["implementation"] != REFERENCE or row["tokens_per_second_to_reference"] == 1
    assert rows[-1]["what"] == "linear back ends"


def test_other_ids_are_a_row_with_the_reason_and_no_speed() -> None:
    task = Task("gpt2-quick", 2, 3, 2)
    built = {
        REFERENCE: lambda given, new: [[7, 11], [13, 17]],
        "wrong": lambda given, new: [[7, 11], [13, 5]],
        "short": lambda given, new: [[7, 11], [13]],
    }
    found = list(generation.measure(task, [[2, 3, 5]] * 2, built, rounds=1))
    assert [row["ok"] for row in found] == [True, False, False]
    for row in found[1:]:
        assert row["reason"] == "the ids of text 1 differ from token 1 of the new ones on"
        assert "median_ms" not in row


def test_a_padded_batch_has_prompts_of_different_lengths() -> None:
    lengths = Task("gpt2", 8, 32, 64, padded=True).lengths()
    assert (max(lengths), min(lengths), len(set(lengths))) == (32, 16, 8)
    assert Task("gpt2", 8, 32, 64).lengths() == [32] * 8
