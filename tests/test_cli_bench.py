"""`minibert bench`: the gate before the clock, the rows, the table."""

import json
import re
from pathlib import Path

import planted_kernels as planted
import pytest
import torch
from command_line import fails, process, run
from planted_kernels import written

from minibert.bench import contest
from minibert.bench.workload_file import workloads_of
from minibert.kernels.check.workload import Workload

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
    assert "is not timed: a CPU only interprets this Triton kernel" in done.stdout
    assert "median" not in done.stdout


GROUPED = """
import torch

def attention(query, key, value, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, enable_gqa=True
    )

def fails(query, key, value, causal=False):
    raise NotImplementedError

def twice(query, key, value, causal=False):
    return attention(query * 2, key, value, causal)

def by_eager(query, key, value, causal=False):
    share = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(share, 1) for one in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if causal:
        n, keys = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(n, keys).tril(keys - n) == 0, float("-inf"))
    return scores.softmax(-1) @ value
"""
SHAPES = """
{"batch": 2, "heads": 4, "kv_heads": 2, "keys": 24, "d_head": 16, "causal": true}
{"B": 1, "H_q": 4, "H_kv": 2, "S": 31, "D": 16, "causal": true}
{"batch_size": 1, "num_heads": 2, "seq_len": 9, "head_dim": 16, "causal": false}
"""


def test_two_functions_and_a_file_of_shapes_give_a_table(tmp_path):
    kernel, shapes, rows = (tmp_path / name for name in ("k.py", "shapes.jsonl", "rows.jsonl"))
    kernel.write_text(GROUPED, encoding="utf-8")
    shapes.write_text(SHAPES, encoding="utf-8")
    targets = [f"{kernel}:{name}" for name in ("attention", "twice", "fails", "by_eager")]
    options = ("--quick", "--rounds", "1", "--baseline", "eager", "--output", str(rows))
    result = run("bench", *targets, "--workload", str(shapes), *options)
    # Two of them are wrong: they are not timed, and the command says so.
    assert result.exit_code == 1, result.output
    assert re.search(r"k\.py:fails raised NotImplementedError", result.stderr)
    assert re.search(r"^k\.py:twice  WRONG", result.stdout, re.M)
    told = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    assert len(told) == 3 * 2 * 3  # shapes, cold and warm, contenders
    assert {row["implementation"] for row in told} == {"k.py:attention", "k.py:by_eager", "eager"}
    sizes = {(row["batch"], row["heads"], row["key_heads"], row["tokens"]) for row in told}
    assert sizes == {(2, 4, 2, 24), (1, 4, 2, 31), (1, 2, None, 9)}
    for row in told:
        assert row["ok"], row
        assert (row["ratio"] == 1) == (row["implementation"] == "k.py:attention")
    place = r"^2 x 4 heads, 24 tokens, d_head 16, float32, causal, 2 key heads"
    assert re.search(place, result.stdout, re.M)


def test_files_of_other_tools_are_read(tmp_path):
    task, trace = tmp_path / "task.yml", tmp_path / "trace.jsonl"
    task.write_text(
        'files:\n  - {"name": "task.py", "source": "task.py"}\ntests:\n'
        '  - {"B": 2, "H_q": 8, "H_kv": 4, "S": 64, "D": 32, "seed": 5236}\n',
        encoding="utf-8",
    )
    assert workloads_of(task, causal=True, dtypes=["float16"]) == [
        Workload(2, 8, 64, 32, "float16", causal=True, key_heads=4, name="task.yml:4")
    ]
    assert [one.causal for one in workloads_of(task)] == [False, True]
    decode = {"axes": {"batch_size": 3, "num_kv_indices": 31, "num_pages": 99, "len_indptr": 4}}
    prefill = {"axes": {"len_indptr": 3, "total_q": 10, "num_kv_indices": 2, "num_pages": 7}}
    names = "gqa_paged_decode_h32_kv4_d128_ps1", "gqa_paged_prefill_causal_h8_kv8_d64_ps64"
    lines = [
        {"definition": name, "solution": None, "workload": one, "evaluation": None}
        for name, one in zip(names, (decode, prefill), strict=True)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert workloads_of(trace) == [
        Workload(3, 32, 11, 128, "bfloat16", False, queries=1, key_heads=4, name="trace.jsonl:1"),
        Workload(2, 8, 64, 64, "bfloat16", True, queries=5, key_heads=8, name="trace.jsonl:2"),
    ]


FULL = '"batch": 1, "heads": 4, "keys": 9, "d_head": 8'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no shapes; expected a JSON object on each line"),
        ("[1]", "is 1; expected a JSON object"),
        ('{"batch": 1', r"shapes.jsonl:1 is not JSON"),
        ('{"batch": 1, "heads": 2, "keys": 8}', "shapes.jsonl:1 does not say d_head"),
        (f'{{{FULL}, "haeds": 2}}', "'haeds' is not a field .did you mean 'heads'"),
        (f'{{{FULL}, "batch_size": 2}}', "says batch twice"),
        (f'{{{FULL}, "kv_heads": 3}}', "4 heads cannot share 3 key heads"),
        (f'{{{FULL}, "queries": 10, "causal": true}}', "10 queries and 9 keys in causal order"),
        (f'{{{FULL}, "queries": 0}}', "queries is 0; expected a whole number of at least 1"),
        (f'{{{FULL}, "causal": 1}}', "causal is 1; expected true or false"),
        (f'{{{FULL}, "dtype": "fp8"}}', "dtype is 'fp8'; expected float16 or bfloat16 or float32"),
        (f'{{{FULL}, "window": [1]}}', r"window is \[1\]; expected \[before, after\]"),
        (f'{{{FULL}, "scale": -1}}', "scale is -1; expected a number above 0"),
        (
            '{"definition": "rmsnorm_h4096", "workload": {"axes": {}}}',
            "'rmsnorm_h4096' is not read",
        ),
    ],
)
def test_a_line_that_says_no_call_is_refused_by_its_place(text, message, tmp_path):
    shapes = tmp_path / "shapes.jsonl"
    shapes.write_text(text, encoding="utf-8")
    fails(run("bench", "math:cos", "--workload", str(shapes)), message, status=2)


def test_sizes_beside_a_file_and_a_function_named_twice_are_refused(tmp_path):
    shapes = tmp_path / "shapes.jsonl"
    shapes.write_text(f"{{{FULL}}}", encoding="utf-8")
    asked = ("--workload", str(shapes))
    fails(run("bench", "math:cos", *asked, "--tokens", "8"), "leave them out", status=2)
    fails(run("bench", "math:cos", "math:cos"), "math:cos is named twice", status=2)
