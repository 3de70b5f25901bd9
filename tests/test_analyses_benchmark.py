"""The benchmark of analyses finds them right and says what is not. No time is asserted."""

import json
from pathlib import Path

from benchmarks import analyses


def test_every_analysis_gives_what_its_formula_gives(tmp_path: Path, capsys) -> None:
    output = tmp_path / "rows.jsonl"
    assert analyses.main(["--quick", "--threads", "1", "--output", str(output)]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    names = {"summed_norms", "block_norms", "decompose", "logit_lens", "save", "patch_positions"}
    assert {row["analysis"] for row in rows} == names
    assert all(row["ok"] and row["max_error"] < 1e-6 for row in rows)
    assert {row["implementation"] for row in rows} == {"minibert", "written out", "forward pass"}


def test_growth_above_the_target_and_wrong_rows_are_said() -> None:
    def row(position: int, median: float) -> dict:
        head = {"analysis": "summed_norms", "implementation": "minibert", "ok": True}
        return {**head, "position": position, "median_ms": median}

    assert not list(analyses.broken_promises([row(128, 1.0), row(512, 5.9)]))
    (promise,) = analyses.broken_promises([row(128, 1.0), row(512, 6.6)])
    assert "6.6 times its time at 128, not 6" in promise
    wrong = {**row(128, 1.0), "ok": False, "reason": "off by 1"}
    assert list(analyses.broken_promises([wrong])) == ["summed_norms T128, minibert: off by 1"]
