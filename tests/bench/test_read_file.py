"""A kernel file without a GPU: read, specialised and compiled, and never called right or wrong."""

import pytest
from command_line import run

CUDA_ONLY = """
import torch, triton
import triton.language as tl
IMPORT

@triton.jit
def kernel(q, o, n, BLOCK: tl.constexpr):
    x = tl.arange(0, BLOCK)
    tl.store(o + x, tl.load(q + x, mask=x < n), mask=x < n)

def attention(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1)):
    assert q.is_cuda
    o = torch.empty_like(q)
    kernel[(1,)](q, o, q.numel(), BLOCK=128)
    return o
"""


def read(tmp_path, **changed):
    pytest.importorskip("triton")
    text = CUDA_ONLY
    for old, new in {"IMPORT": "", **changed}.items():
        text = text.replace(old, new)
    (tmp_path / "kernel.py").write_text(text, encoding="utf-8")
    return run("check", f"{tmp_path / 'kernel.py'}:attention", "--compile", "--timeout", "250")


def test_a_kernel_that_asks_for_a_gpu_is_compiled_and_not_judged(tmp_path):
    result = read(tmp_path)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "kernel.py:attention  read and compiled, not judged"
    assert "  it can be told: causal, scale, window" in lines
    (row,) = (line.split() for line in lines if line.startswith("  kernel "))
    assert int(row[1]) > 0
    assert "Not known without a GPU: whether the numbers are right" in result.stdout
    assert "right  " not in result.stdout
    assert len(lines) <= 24


def test_vectors_are_copied_and_moved_without_a_gpu(tmp_path):
    """The fault: torch asks the driver before it copies, and files that begin so stopped."""
    moved = "q = q.transpose(1, 2).contiguous().cuda()\n    assert q.is_contiguous()"
    result = read(tmp_path, **{"assert q.is_cuda": moved})
    assert result.exit_code == 0, result.output
    assert "where it stopped" not in result.stdout


def test_what_stops_a_file_is_not_sent_where_it_already_is(tmp_path):
    stop = 'raise RuntimeError("CUDA is wanted")'
    result = read(tmp_path, **{"assert q.is_cuda": stop})
    (line,) = (one for one in result.stdout.splitlines() if "where it stopped" in one)
    assert line.endswith("CUDA is wanted (line 12 of kernel.py)")


def test_a_kernel_that_does_not_compile_says_why(tmp_path):
    result = read(tmp_path, **{"tl.arange(0, BLOCK)": "tl.arange(0, BLOCK - 1)"})
    assert result.exit_code == 1
    assert "does not compile: " in result.stdout


def test_what_is_missing_is_named_although_nothing_can_be_compiled(tmp_path):
    result = read(tmp_path, IMPORT="import a_module_of_cuda")
    assert result.exit_code == 1
    assert "not installed here: a_module_of_cuda" in result.stdout
    assert "where it stopped: kernel.py, line 4: ModuleNotFoundError" in result.stdout


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("kernel.py:none", "kernel.py has no function none in its text; it has attention"),
        ("torch:matmul", "There is no file torch; --compile reads FILE.py:FUNCTION"),
    ],
)
def test_what_cannot_be_read_is_bad_usage(tmp_path, monkeypatch, target, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text("def attention(q): pass\n", encoding="utf-8")
    result = run("check", target, "--compile")
    assert result.exit_code == 2
    assert message in result.stderr
