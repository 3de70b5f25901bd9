"""`minibert check`: planted kernels, each with the message it must give; bad usage: test_cli.py."""

import json
import re
import subprocess
import sys
from pathlib import Path

import planted_kernels as planted
import pytest
import torch
from command_line import fails, process, run
from planted_kernels import written

NEWCOMER = Path(__file__).resolve().parents[1] / "docs" / "kernels" / "newcomer.py"
FEW = ("--dtype", "float32", "--tokens", "17", "--quick")
# One key more than the blocks of the kernels that go wrong at the end of a block.
BLOCK = ("--dtype", "float32", "--tokens", "65", "--quick")


def test_a_program_from_standard_input_can_check(tmp_path):
    target = written(tmp_path, planted.RIGHT)
    program = f"""
import sys
from minibert.cli.main import main
sys.argv = {["minibert", "check", target, *FEW]!r}
main()
"""
    done = subprocess.run(
        [sys.executable, "-"], input=program, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("kernel.py:attention  right  "), done.stderr


def test_a_planted_kernel_is_wrong_and_the_message_names_the_cause_and_the_place(tmp_path):
    result = run("check", written(tmp_path, planted.LAST_BLOCK), *BLOCK)
    assert result.exit_code == 1
    assert re.match(r"kernel\.py:attention  WRONG  \d+ of \d+ checks failed", result.stdout)
    assert re.search(r"likely cause: the mask is missing on the last block of \d+", result.stdout)
    failed = r"z float32 +lengths, 65 x 65, inputs x 1, call 1 +\S+ +\S+"
    assert re.search(failed, result.stdout)
    assert re.search(r"  and \d+ more", result.stdout)


def test_what_the_function_does_not_take_is_said(tmp_path):
    source = "\ndef attention(query, key, value):\n"
    source += "    return {'z': right(query, key, value, None, False)}\n"
    result = run("check", written(tmp_path, source), *FEW)
    assert result.exit_code == 0
    assert "not covered, as the function takes no such argument: lengths, causal" in result.stdout


def test_fewer_queries_than_keys_are_checked_on_demand(tmp_path):
    result = run("check", written(tmp_path, planted.RIGHT), *FEW, "--cache")
    assert result.exit_code == 1
    assert "causal cache, 6 x 17" in result.stdout


def body(*lines: str) -> str:
    indented = "".join(f"    {line}\n" for line in lines)
    return f"\ndef attention(query, key, value, lengths, causal):\n{indented}"


NO_FUNCTIONS = [
    ("return None", "attention gave a NoneType; expected a plain dictionary with z, or z"),
    ("return {'out': query}", "gave out; expected at least z"),
    ("return {'z': query, 'speed': 3}", "gave speed; known are z, lse"),
    ("return {'z': query.tolist()}", "gave z as a list; expected a plain tensor"),
    ("return {'z': query[:, :1]}", r"gave z of shape \(3, 1, 64, 64\); expected"),
    ("return {'z': query.double().half()}", "gave z in torch.float16; expected"),
    (
        "class Lazy(torch.Tensor): pass\n    return {'z': query.as_subclass(Lazy)}",
        "gave z as a Lazy; expected a plain tensor",
    ),
    ("raise ValueError('no\\nway')", r"raised ValueError: no way \(line 19 of kernel\.py\)"),
    (
        "assert query.is_cuda, 'CUDA tensors only'",
        r"raised AssertionError: CUDA tensors only .*; it needs a GPU, and there is none here",
    ),
    ("raise SystemExit(0)", r"calls sys.exit\(\)"),
]


@pytest.mark.parametrize(("line", "message"), NO_FUNCTIONS)
def test_a_function_that_is_none_is_one_line(tmp_path, line, message):
    fails(run("check", written(tmp_path, body(line)), *FEW), message)


Z = "return {'z': right(query, key, value, lengths, causal)}"
RAISING = {
    r"raised AssertionError: tiles of 64 \(line 19 of kernel\.py\)": (
        "assert query.shape[2] == 64, 'tiles of 64'",
    ),
    r"raises GeneratorExit \(line 20 of kernel\.py\), which is not an Exception": (
        "if lengths is not None:", "    raise GeneratorExit",
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", RAISING)
def test_a_kernel_that_raises_in_some_calls_is_wrong_there(tmp_path, cause):
    result = run("check", written(tmp_path, body(*RAISING[cause], Z)), *FEW)
    assert result.exit_code == 1
    assert re.search(f"likely cause: {cause}\n", result.stdout), result.stdout


def test_what_a_kernel_prints_neither_mixes_with_the_result_nor_floods_it(tmp_path):
    source = body("for i in range(50): print('hello', i)", "return {'z': query}")
    result = run("check", written(tmp_path, "print('read')\n" + source), *FEW)
    assert "hello" not in result.stdout
    lines = result.stderr.splitlines()
    shown = ["read", "hello 0", "hello 1"]
    assert lines[:3] == [f"kernel.py prints: {line}" for line in shown]
    assert re.fullmatch(r"note: kernel\.py printed \d{3,} more lines\.", lines[3])
    assert len(lines) == 4


def test_a_kernel_that_hangs_is_ended_with_one_line(tmp_path):
    target = written(tmp_path, body("while True: pass"))
    result = run("check", target, *FEW, "--timeout", "0.5")
    fails(result, r"^error: kernel\.py:attention has not returned after 0\.5 seconds \(--timeout\)")


def interpreted(*arguments):
    """Status and output with Triton's interpreter, in this process where Triton is set to it."""
    pytest.importorskip("triton")
    arguments = ("check", *arguments, "--device", "cpu")
    if torch.cuda.is_available():
        done = process(*arguments)
        return done.returncode, done.stdout + done.stderr
    result = run(*arguments)
    return result.exit_code, result.output


def test_its_mask_left_out_is_caught_and_named(tmp_path):
    text = NEWCOMER.read_text(encoding="utf-8")
    wrong = text.replace("allowed = keys[None, :] < seen", "allowed = keys[None, :] >= 0")
    assert wrong != text
    (tmp_path / "kernel.py").write_text(wrong, encoding="utf-8")
    status, output = interpreted(f"{tmp_path / 'kernel.py'}:attention", *BLOCK)
    assert status == 1
    assert "through Triton's interpreter" in output
    assert "likely cause: the mask is missing on the last block: keys are filled" in output


def test_bfloat16_in_the_interpreter_is_refused():
    status, output = interpreted(f"{NEWCOMER}:attention", "--dtype", "bfloat16")
    assert status == 2
    assert "multiplies it wrongly without an error" in output


def test_a_slip_that_shows_with_the_heads_of_the_workload_alone_is_found(tmp_path):
    target = written(tmp_path, planted.LATE_HEADS)
    options = ("--quick", "--dtype", "float32", "--workload")
    result = run("check", target, *options, "gpt2-1024")
    assert result.exit_code == 1, result.output
    assert "only heads 4 to 11 of 12 are wrong: " in result.stdout
    assert "with all 12 heads in 2 sentences of 17 tokens" in " ".join(result.stdout.split())
    result = run("check", written(tmp_path, planted.RIGHT), *options, "vit")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("kernel.py:attention  right  ")


def test_the_functions_of_a_folder_that_look_like_attention_are_listed_and_not_run(tmp_path):
    code = tmp_path / "ops" / "attention.py"
    code.parent.mkdir()
    code.write_text(
        "raise SystemExit('run')\n"
        "def plain(q, k, v, causal=False, **rest): ...\n"
        "def packed(q, k, v, cu_seqlens): ...\n"
        "def either(q, k, v, softmax_scale, window_size, cu_seqlens): ...\n"
        "def gated(q, k, v, g): ...\n"
        "def backward(q, k, v, *, do): ...\n"
        "def _private(q, k, v): ...\n"
        "@triton.jit\ndef kernel(Q, K, V): ...\n"
        "class Attention(Function):\n    def forward(ctx, query, key, value, scale): ...\n"
        "class Layer(Module):\n    def forward(self, query, key, value): ...\n",
        encoding="utf-8",
    )
    (tmp_path / "broken.py").write_text("def (", encoding="utf-8")
    (tmp_path / "deep.py").write_text("x = " + "-" * 200_000 + "1", encoding="utf-8")
    (tmp_path / "endless.py").symlink_to("/dev/zero")
    told = json.loads(run("check", str(tmp_path), "--json").stdout)["functions"]
    assert {one["target"].rpartition(":")[2]: one["signature"] for one in told} == {
        "plain": "plain",
        "packed": "varlen",
        "either": "flash-attn or varlen",
        "Attention": "plain",
    }
    assert f"  minibert check {code}:plain\n" in run("check", str(tmp_path)).stdout
    code.unlink()
    fails(run("check", str(tmp_path)), "can be called with query, key and value", status=2)
