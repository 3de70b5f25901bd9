"""`minibert bench`: the gate before the clock, the rows, the table."""

import json
import re
from pathlib import Path

import planted_kernels as planted
import pytest
import torch
from command_line import process, run
from planted_kernels import written

from minibert.bench import contest

NEWCOMER = Path(__file__).resolve().parents[1] / "docs" / "kernels" / "newcomer.py"
SMALL = ("--tokens", "32", "--heads", "2", "--rounds", "1", "--quick")


@pytest.fixture(scope="module", autouse=True)
def small_cache():
    """A cold cache is made by writing half a gigabyte; here no time is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contest, "flush_bytes", lambda device: 2**20)
        yield


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    target, rows = written(folder, planted.RIGHT), folder / "rows.jsonl"
    options = ("--baseline", "flash", "--baseline", "eager", "--baseline", "cudnn")
    result = run("bench", target, *SMALL, *options, "--output", str(rows))
    assert result.exit_code == 0, result.output
    return result, rows


def test_a_row_tells_all_it_takes_to_be_understood_later(timed):
    rows = [json.loads(line) for line in timed[1].read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 2 * 2 * 4  # full and causal, cold and warm, four implementations
    for row in rows:
        assert row["implementation"] in {"kernel.py:attention", "flash", "eager", "cudnn"}
        assert row["device"]
        assert row["versions"]["torch"]
        if row["implementation"] == "cudnn":
            assert row["reason"].startswith("it runs on cuda")
            continue
        assert row["p20_ms"] <= row["median_ms"] <= row["p80_ms"]
        assert row["peak_bytes"] > 0
        pairs = 2 * (32 * 33 // 2 if row["causal"] else 32 * 32)
        assert row["flop"] == 4 * 64 * pairs
        assert row["percent"] == pytest.approx(
            100 * max(row["least_ms"].values()) / row["median_ms"]
        )
    assert {row["cache"] for row in rows} == {"cold", "warm"}


def test_the_table_has_a_block_for_each_shape_and_says_the_noise(timed):
    text = timed[0].stdout
    assert len(re.findall(r"^1 x 2 heads, 32 tokens, d_head 64, float32", text, re.M)) == 4
    assert re.search(r"kernel\.py:attention \(yours\) .* ± [\d.]+ % noise", text)
    assert re.search(r"eager .* x (slower|faster)", text)
    assert "it runs on cuda" in text


def test_a_triton_kernel_on_a_cpu_is_checked_and_not_timed(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("minibert.bench.judge.QUICK_TOKENS", (17,))
    arguments = ("bench", f"{NEWCOMER}:attention", "--device", "cpu", "--dtype", "float16")
    # Triton's interpreter is switched on in this process where there is no GPU.
    if torch.cuda.is_available():
        done = process(*arguments, "--quick")
        status = done.returncode
    else:
        done = run(*arguments, "--quick")
        status = done.exit_code
    assert status == 0, done.stdout + done.stderr
    assert "right" in done.stdout
    assert "Not timed: a CPU only interprets this Triton kernel" in done.stdout
    assert "median" not in done.stdout
