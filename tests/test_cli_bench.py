"""`minibert bench`: the gate before the clock, the rows, the table, the comparison."""

import json
import re
from pathlib import Path

import planted_kernels as planted
import pytest
import torch
from command_line import process, run
from planted_kernels import written

from minibert.bench import clock

NEWCOMER = Path(__file__).resolve().parents[1] / "docs" / "kernels" / "newcomer.py"
SMALL = ("--tokens", "32", "--heads", "2", "--rounds", "1", "--quick")


@pytest.fixture(scope="module", autouse=True)
def small_cache():
    """A cold cache is made by writing half a gigabyte; here no time is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "flush_bytes", lambda device: 2**20)
        yield


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    target, rows = written(folder, planted.RIGHT), folder / "rows.jsonl"
    options = ("--baseline", "flash", "--baseline", "eager", "--baseline", "cudnn")
    result = run("bench", target, *SMALL, *options, "--output", str(rows))
    assert result.exit_code == 0, result.output
    return result, rows


def test_nothing_is_timed_that_is_wrong(tmp_path):
    rows = tmp_path / "rows.jsonl"
    result = run("bench", written(tmp_path, planted.LAST_BLOCK), *SMALL, "--output", str(rows))
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    assert "median" not in result.stdout
    assert not rows.exists()


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


def test_a_file_compared_with_itself_is_the_same(timed):
    result = run("bench", "--compare", str(timed[1]), str(timed[1]))
    assert result.exit_code == 0
    assert result.stdout.count(" same") == 12
    assert " slower" not in result.stdout


def test_a_slower_kernel_is_slower_and_the_status_says_so(timed, tmp_path):
    rows = [json.loads(line) for line in timed[1].read_text(encoding="utf-8").splitlines()]

    def file(name, milliseconds):
        times = {"median_ms": milliseconds, "p20_ms": milliseconds, "p80_ms": milliseconds}
        changed = [row | times | {"noise": 0.01} for row in rows if row["role"] == "kernel"]
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")
        return str(path)

    before, same, slow = file("a.jsonl", 1.0), file("b.jsonl", 1.01), file("c.jsonl", 1.5)
    result = run("bench", "--compare", before, slow)
    assert result.exit_code == 1
    assert len(re.findall(r"yours .* 1\.500 .* slower", result.stdout)) == 4
    assert run("bench", "--compare", slow, before).exit_code == 0
    assert run("bench", "--compare", before, same).exit_code == 0


@pytest.mark.parametrize("median", ["1.0", None, 0, -1.0, float("nan")])
def test_a_row_without_a_time_is_named(timed, tmp_path, median):
    row = json.loads(timed[1].read_text(encoding="utf-8").splitlines()[0]) | {"median_ms": median}
    path = tmp_path / "damaged.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    result = run("bench", "--compare", str(timed[1]), str(path))
    assert result.exit_code == 2
    assert "damaged.jsonl, line 1: expected median_ms" in result.stderr


def test_files_that_share_no_shape_cannot_be_compared(timed, tmp_path):
    row = json.loads(timed[1].read_text(encoding="utf-8").splitlines()[0]) | {"tokens": 7}
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    result = run("bench", "--compare", str(timed[1]), str(path))
    assert result.exit_code == 2
    assert "no shape is the same" in result.stderr


def test_a_plot_is_drawn(timed, tmp_path):
    pytest.importorskip("matplotlib")
    from minibert.bench.result_rows import read_rows
    from minibert.viz.plots.bench import bench_times

    output = tmp_path / "times.svg"
    bench_times(read_rows(timed[1]), output)
    assert "float32, causal, warm cache" in output.read_text(encoding="utf-8")


def test_a_triton_kernel_on_a_cpu_is_checked_and_not_timed(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("minibert.bench.kernel_gate.QUICK_TOKENS", (17,))
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
