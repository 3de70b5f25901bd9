"""The static gate reads machine code, and says no to what is slow. No GPU is asked for."""

import json
import os
import re
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


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What the gate says while it writes a budget for all the planted kernels, and the budget."""
    pytest.importorskip("triton")
    path = tmp_path_factory.mktemp("budget") / "budget.json"
    done = gate(PLANTED, "--budget", path, "--update")
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout, path.read_text()


@pytest.fixture(scope="module")
def refused(written: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the gate says of kernels that each have another fault."""
    folder = tmp_path_factory.mktemp("refused")
    budget = json.loads(written[1])
    budget["variants"]["good"]["registers"] *= 0.5
    budget["variants"]["float32"]["per_element"] *= 0.5
    (folder / "budget.json").write_text(json.dumps(budget))
    source = PLANTED.read_text().replace(
        "VARIANTS = [", 'VARIANTS = [\n    variant("odd", 3, 64, 4),'
    )
    (folder / "kernels.py").write_text(source)
    done = gate(folder / "kernels.py", "--budget", folder / "budget.json")
    assert done.returncode == 1
    return done.stdout


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
    written: tuple[str, str], tmp_path: Path
) -> None:
    budget = tmp_path / "budget.json"
    budget.write_text(written[1])
    done = gate(PLANTED, "--only", "good|float32", "--budget", budget)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 variants, all within budget" in done.stdout


def test_a_planted_fault_is_caught_even_while_the_budget_is_written(
    written: tuple[str, str],
) -> None:
    said, budget = written
    assert re.search("^spilling: spills ", said, re.MULTILINE)
    assert re.search("^without wgmma: no HGMMA", said, re.MULTILINE)
    assert set(json.loads(budget)["variants"]) == {"good", "float32"}


@pytest.mark.parametrize(
    "fault",
    [
        "spilling: spills ",
        "without wgmma: no HGMMA",
        "good: registers ",
        "float32: per_element ",
        "without wgmma: not in the budget",
        # The others are still seen.
        "odd: does not compile",
    ],
)
def test_each_fault_is_a_line_of_its_own(fault: str, refused: str) -> None:
    lines = refused.splitlines()
    assert any(line.startswith(fault) for line in lines), refused


def test_what_is_within_the_budget_is_no_fault(refused: str) -> None:
    faults = [line for line in refused.splitlines() if re.match(r"(good|float32): ", line)]
    assert len(faults) == 2


def test_nothing_compiled_is_no_success(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = gate(PLANTED, "--only", "no such kernel", "--budget", tmp_path / "budget.json")
    assert done.returncode == 1
    assert "no kernel variant was found" in done.stdout


def test_a_name_that_is_in_the_budget_alone_is_said() -> None:
    budget = {"variants": {"here": {}, "gone": {}}}
    (fault,) = static_gate.leftovers([{"name": "here"}], budget)
    assert fault.startswith("gone: ")


def test_our_kernels_and_the_committed_budget_name_the_same_variants() -> None:
    pytest.importorskip("triton")
    found = [variant["name"] for variant, _ in static_gate.variants(static_gate.MODULES)]
    assert len(set(found)) == len(found)
    assert set(found) == set(static_gate.read_budget(static_gate.BUDGET)["variants"])


# One variant of each kernel, of those that need the most registers. `make static` compiles all.
FEW = (
    "forward bf16 d64 causal T2 128x128 8 warps 3 stages tma",
    "columns bf16 d64 causal map 64x128 4 warps 3 stages",
    "one_tile bf16 d64 causal all mask bias 16x128 4 warps 1 stages",
    "backward_key_value bf16 d64 causal relevance",
    "backward_query bf16 d64 mask bias",
)


@pytest.mark.slow
def test_a_variant_of_each_kernel_is_within_the_committed_budget() -> None:
    triton = pytest.importorskip("triton")
    wanted = static_gate.read_budget(static_gate.BUDGET)["triton"]
    if triton.__version__ != wanted:
        pytest.skip(f"the budget is of triton {wanted}, this is {triton.__version__}: make static")
    done = gate("--only", f"^({'|'.join(FEW)})$")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(FEW)} variants, all within budget" in done.stdout
