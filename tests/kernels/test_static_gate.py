"""The static gate reads machine code, and says no to what is slow. No GPU is asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import sass, static_gate

PLANTED = Path(__file__).with_name("planted_kernels.py")
ROOT = Path(__file__).resolve().parents[2]

CODE = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_9:
        /*0010*/                   SYNCS.PHASECHK.TRANS64 P0, [R2], R3 ;
        /*0020*/              @!P0 BRA `(.L_x_9) ;
.L_x_1:
        /*0030*/                   IADD3 R4, R4, 0x1, RZ ;
        /*0040*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT ;
.L_x_2:
        /*0050*/                   MUFU.EX2 R5, R6 ;
        /*0060*/              @!P2 BRA `(.L_x_2) ;
        /*0070*/               @P1 BRA `(.L_x_1) ;
.L_x_3:
        /*0080*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24, gsb0 ;
        /*0090*/               @P1 BRA `(.L_x_3) ;
        /*00a0*/                   EXIT ;
.L_x_4:
        /*00b0*/                   BRA `(.L_x_4);
        /*00c0*/                   NOP;
"""

REPORT = """
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to insufficient register resources for the wgmma pipeline in the function 'fwd'
ptxas info    : Function properties for fwd
    16 bytes stack frame, 48 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size
"""


def gate(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The gate in a process of its own: this one may have Triton's interpreter switched on."""
    command = [sys.executable, "-m", "benchmarks.static_gate", *map(str, arguments)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A budget for the kernels that are as they should be."""
    pytest.importorskip("triton")
    budget = tmp_path / "budget.json"
    done = gate(PLANTED, "--only", "good|float32", "--budget", budget, "--update")
    assert done.returncode == 0, done.stdout + done.stderr
    return budget


def test_the_report_of_ptxas_is_read() -> None:
    found = sass.parse_resources(REPORT)
    reason = "insufficient register resources for the wgmma pipeline"
    assert found == sass.Resources(255, spilled_bytes=80, stack_bytes=16, serialised=reason)
    quiet = REPORT.splitlines()[-1]
    assert sass.parse_resources(quiet) == sass.Resources(255, 0, 0, serialised="")


def test_hot_loops_are_those_around_matrix_instructions_the_shortest_first() -> None:
    code = sass.instructions(CODE)
    assert [one.name for one in code][-2:] == ["EXIT", "BRA"]
    assert [(loop.first, loop.last) for loop in sass.loops(code)] == [
        (1, 2),
        (5, 6),
        (3, 7),
        (8, 9),
    ]
    assert [loop.size for loop in sass.hot_loops(code)] == [2, 5]


def test_without_matrix_instructions_the_longest_innermost_loop_is_hot() -> None:
    turn = "\n".join(f"        /*{place:04x}*/   FFMA R1, R2, R3, R1 ;" for place in range(64))
    text = f".L_a:\n{turn}\n        /*1000*/   BRA `(.L_a) ;\n.L_b:\n/*1010*/ BRA `(.L_b) ;"
    (loop,) = sass.hot_loops(sass.instructions(text))
    assert loop.size == 65
    assert sass.hot_loops(sass.instructions("/*0000*/   FADD R1, R1, R2 ;\n")) == []


def test_a_kernel_within_its_budget_passes_and_float32_needs_no_matrix_instruction(
    planted: Path,
) -> None:
    done = gate(PLANTED, "--only", "good|float32", "--budget", planted)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 variants, all within budget" in done.stdout


@pytest.mark.parametrize(("name", "said"), [("spilling", "spills "), ("without wgmma", "no HGMMA")])
def test_a_planted_fault_is_caught_even_while_the_budget_is_written(
    name: str, said: str, planted: Path
) -> None:
    for options in ((), ("--update",)):
        done = gate(PLANTED, "--only", name, "--budget", planted, *options)
        assert done.returncode == 1
        assert f"{name}: " in done.stdout
        assert said in done.stdout
    assert name not in json.loads(planted.read_text())["variants"]


@pytest.mark.parametrize("field", ["registers", "per_element"])
def test_what_grows_beyond_its_budget_is_caught(field: str, planted: Path) -> None:
    budget = json.loads(planted.read_text())
    budget["variants"]["good"][field] *= 0.5
    planted.write_text(json.dumps(budget))
    done = gate(PLANTED, "--only", "good", "--budget", planted)
    assert done.returncode == 1
    assert f"good: {field} " in done.stdout


def test_a_kernel_without_a_budget_is_caught(planted: Path) -> None:
    planted.write_text('{"triton": "none", "variants": {}}')
    done = gate(PLANTED, "--only", "good", "--budget", planted)
    assert done.returncode == 1
    assert "not in the budget" in done.stdout


def test_a_kernel_that_does_not_compile_is_a_row_and_the_others_are_still_seen(
    planted: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken_kernels.py"
    source = PLANTED.read_text().replace(
        "VARIANTS = [", 'VARIANTS = [\n    variant("odd", 3, 64, 4),'
    )
    broken.write_text(source)
    done = gate(broken, "--only", "odd|good", "--budget", planted)
    assert done.returncode == 1
    assert "odd: does not compile" in done.stdout
    assert "good: " not in done.stdout


def test_nothing_compiled_is_no_success(planted: Path) -> None:
    done = gate(PLANTED, "--only", "no such kernel", "--budget", planted)
    assert done.returncode == 1
    assert "no kernel variant was found" in done.stdout


def test_a_name_that_is_in_the_budget_alone_is_said() -> None:
    budget = {"variants": {"here": {}, "gone": {}}}
    (fault,) = static_gate.leftovers([{"name": "here"}], budget)
    assert fault.startswith("gone: ")


@pytest.mark.slow
def test_every_kernel_of_ours_is_within_the_committed_budget() -> None:
    triton = pytest.importorskip("triton")
    if not static_gate.BUDGET.exists():
        pytest.skip("no budget yet")
    wanted = static_gate.read_budget(static_gate.BUDGET)["triton"]
    if triton.__version__ != wanted:
        pytest.skip(f"the budget is of triton {wanted}, this is {triton.__version__}: make static")
    done = gate()
    assert done.returncode == 0, done.stdout + done.stderr
