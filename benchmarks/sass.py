"""What NVIDIA's own tools say of a compiled kernel, no GPU needed: registers, spills, loops.

ptxas, which ships with Triton, turns PTX into machine code and
reports registers and spills; nvdisasm prints that machine code (SASS). A loop is what lies between
a backward branch and its target; the hot loop is the one around the matrix instructions.
"""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

# By compute capability: what ptxas calls the GPU, and which ptxas of Triton's knows it.
ASSEMBLERS = {80: ("sm_80", "ptxas"), 90: ("sm_90a", "ptxas"), 100: ("sm_100a", "ptxas-blackwell")}
# The tensor-core instructions: HGMMA is wgmma, which a warpgroup issues without waiting; HMMA is
# the older one of a single warp, at about 60 % of its rate on Hopper; UTCHMMA is tcgen05.mma of
# Blackwell, whose sums lie in a memory of their own.
MATRIX = ("HGMMA", "HMMA", "UTCHMMA")

_LABEL = re.compile(r"^\s*(\.L\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*);")
_TARGET = re.compile(r"`\((\.L\w+)\)")


@dataclass(frozen=True)
class Resources:
    """What ptxas reports: registers of a thread, and bytes of a thread that did not fit in them."""

    registers: int
    spilled_bytes: int
    stack_bytes: int
    # Why each wgmma waits for the one before it, at half the speed; "" where they do not.
    serialised: str


@dataclass(frozen=True)
class Instruction:
    """One machine instruction; `target` is the number of the one it branches to."""

    name: str
    target: int | None = None


@dataclass(frozen=True)
class Loop:
    """The instructions from `first` to the branch `last` that leads back, both counted."""

    first: int
    last: int
    matrix: int

    @property
    def size(self) -> int:
        """Instructions of one turn."""
        return self.last - self.first + 1


def resources(ptx: str, arch: int = 90) -> Resources:
    """What ptxas says of `ptx` for that GPU. Raises RuntimeError when it cannot be assembled."""
    name, assembler = ASSEMBLERS[arch]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        options = ["-v", f"--gpu-name={name}", str(source), "-o", f"{source}.cubin"]
        report = _run(assembler, *options, read="stderr")
    return parse_resources(report)


def parse_resources(report: str) -> Resources:
    """The numbers in what `ptxas -v` prints."""

    def number(pattern: str) -> int:
        return max((int(found) for found in re.findall(pattern, report)), default=0)

    # Warnings C7510 to C7514, each with its own reason.
    waits = re.search(r"wgmma\S* instructions are serialized due to (.*?) in (?:the )?fun", report)
    return Resources(
        registers=number(r"Used (\d+) registers"),
        spilled_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        serialised=waits[1] if waits else "",
    )


def disassembly(cubin: bytes) -> str:
    """The machine code of `cubin` as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return _run("nvdisasm", "-c", str(path), read="stdout")


def instructions(text: str) -> list[Instruction]:
    """The instructions of a disassembly in order, padding behind the end left out."""
    labels: dict[str, int] = {}
    found: list[tuple[str, str | None]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif match := _INSTRUCTION.match(line):
            target = _TARGET.search(match[3]) if match[2].startswith("BRA") else None
            found.append((match[2], target[1] if target else None))
    while found and found[-1][0] == "NOP":
        found.pop()
    return [Instruction(name, labels.get(target or "")) for name, target in found]


def loops(code: list[Instruction]) -> list[Loop]:
    """Every loop, by its first instruction; the branch to itself behind the end is none."""
    return [
        Loop(one.target, last, sum(_is_matrix(each) for each in code[one.target : last + 1]))
        for last, one in enumerate(code)
        if one.target is not None and one.target < last
    ]


def hot_loops(code: list[Instruction]) -> list[Loop]:
    """The innermost loops that do the arithmetic, the shortest first; [] in straight-line code.

    With matrix instructions these are the loops around them. Without (float32) they are the loops
    of more than half the longest one's size. What only waits for a copy is never one of them.
    """
    found = loops(code)
    busy = [loop for loop in found if loop.matrix]
    if not busy:
        innermost = [loop for loop in found if not _holds_another(loop, found, at_least=32)]
        longest = max((loop.size for loop in innermost), default=0)
        busy = [loop for loop in innermost if loop.size > longest // 2]
    return sorted(
        (loop for loop in busy if not _holds_another(loop, busy)), key=lambda loop: loop.size
    )


def count(code: list[Instruction], name: str) -> int:
    """How many instructions of that name, of whatever shape and type."""
    return sum(one.name.split(".")[0] == name for one in code)


def _is_matrix(one: Instruction) -> bool:
    return one.name.split(".")[0] in MATRIX


def _holds_another(loop: Loop, others: list[Loop], *, at_least: int = 1) -> bool:
    return any(
        other != loop
        and other.size >= at_least
        and loop.first <= other.first
        and other.last <= loop.last
        for other in others
    )


def _run(tool: str, *arguments: str, read: str) -> str:
    done = subprocess.run([_path(tool), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{tool}: {(done.stderr or done.stdout).strip()[:500]}")
    return str(getattr(done, read))


def _path(tool: str) -> str:
    """Triton's own copy of an NVIDIA tool, or the one on PATH."""
    from triton.backends import nvidia

    for folder in nvidia.__path__:
        if (path := Path(folder) / "bin" / tool).is_file():
            return str(path)
    if path := shutil.which(tool):
        return path
    raise RuntimeError(f"{tool} is neither in Triton's own folder nor on PATH")
