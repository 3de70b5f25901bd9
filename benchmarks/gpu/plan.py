"""What is asked of the accelerator: tasks, the most important first, each with its time.

A task is what the worker does without looking up: a group of contenders on one shape, measured in
turns, or one of the other parts. It yields a row for each of its contenders.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.gpu.matrix import KINDS_ASKED

# Whole cells of the parity matrix come later; of these kinds every cell is asked about first.
FEW = ("causal lengths",)
D_HEAD, HEADS, TOKENS = 64, 32, 16_384
D_HEADS = (64, 128, 32, 256, 16)
DTYPES = ("bfloat16", "float16", "float32")
SIZES = (4096, 16_384, 1024, 512, 2048, 8192)
SHORT = (128, 256, 64)
MILLION = 2**20


@dataclass(frozen=True)
class Shape:
    """The inputs of one call: as many queries as keys."""

    batch: int
    heads: int
    positions: int
    d_head: int = D_HEAD
    causal: bool = False
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        kind = "causal" if self.causal else "full"
        return f"B{self.batch} H{self.heads} N{self.positions} D{self.d_head} {kind} {self.dtype}"

    @property
    def flop(self) -> float:
        """Of the two matrix products of a forward; half of them where attention is causal."""
        cells = self.batch * self.heads * self.positions**2 / (2 if self.causal else 1)
        return 4.0 * cells * self.d_head


@dataclass(frozen=True)
class Task:
    """One thing to do; `seconds` are what it needs at most, and past `limit` it is ended."""

    part: str
    contenders: tuple[str, ...]
    shape: Shape | None = None
    seconds: float = 10.0
    limit: float = 60.0
    # Left out this time, because they have a row of this run.
    skip: tuple[str, ...] = field(default=())
    # Of the parity matrix: d_head and dtype; the contenders are kinds of `KINDS_ASKED`.
    cell: tuple[int, str] | None = None

    @property
    def name(self) -> str:
        """What rows and the journal know it by."""
        if self.shape:
            return f"{self.part} {self.shape}"
        if self.cell:
            return f"{self.part} D{self.cell[0]} {self.cell[1]}"
        return self.part if len(self.contenders) > 1 else f"{self.part} {self.contenders[0]}"

    def row_keys(self) -> list[str]:
        """Those of its rows."""
        return [f"{self.name} | {contender}" for contender in self.contenders]


FORWARD = ("plain", "cudnn", "flash")
STATISTICS = ("plain", "T1", "T2", "T3")
BACKWARD = ("backward", "cudnn backward", "flash backward")
EAGER = ("T1", "eager")


def plan(*, quick: bool = False) -> list[Task]:
    """Every task, the most important first; `quick` asks the same of tiny inputs.

    First is what is right, then what is fast and holds for the first nine minutes, then the rest:
    FlexAttention compiles for each shape, so that it comes near the end.
    """
    sizes, short = ((32,), (16,)) if quick else (SIZES, SHORT)
    first, rest = sizes[:1], sizes[1:]
    tasks = [Task("ceilings", ("matrix product", "copy"), seconds=15), *_matrix_first(quick)]
    for size in first:
        tasks += _both("forward", FORWARD, size, quick, seconds=15, limit=90)
        tasks += _both("statistics", STATISTICS, size, quick, seconds=25, limit=120)
        tasks += _both("backward", BACKWARD, size, quick, seconds=20, limit=90)
    for size in short:
        tasks += _both("short", ("plain", "all"), size, quick, seconds=10)[:1]
    tasks += _both("eager", EAGER, sizes[0], quick, heads=32, seconds=8)
    for size in rest:
        tasks += _both("forward", FORWARD, size, quick, seconds=5, limit=60)
    for size in rest:
        tasks += _both("statistics", STATISTICS, size, quick, seconds=8, limit=90)
    tasks.append(_million(quick))
    for size in (1024, 16_384) if not quick else ():
        tasks += _both("backward", BACKWARD, size, quick, seconds=12)
    return [*tasks, *([] if quick else _matrix_rest()), *_later(sizes, quick)]


def _matrix_first(quick: bool) -> list[Task]:
    """All options at the usual width, and a few of them in every other cell."""
    if quick:
        # The interpreter's bfloat16 is wrong, so the dry run looks at float32.
        return [Task("matrix first", FEW, seconds=60, limit=150, cell=(16, "float32"))]
    cells = [(d_head, dtype) for d_head in D_HEADS for dtype in DTYPES]
    whole = Task("matrix", tuple(KINDS_ASKED), seconds=60, limit=240, cell=cells[0])
    return [whole, *(Task("matrix first", FEW, seconds=5, limit=60, cell=one) for one in cells[1:])]


def _matrix_rest() -> list[Task]:
    cells = [(d_head, dtype) for d_head in D_HEADS for dtype in DTYPES]
    left = tuple(one for one in KINDS_ASKED if one not in FEW)
    return [Task("matrix", left, seconds=60, limit=240, cell=one) for one in cells[1:]]


def _later(sizes: tuple[int, ...], quick: bool) -> list[Task]:
    """What is good to know when all that matters is known."""
    tasks: list[Task] = []
    for size, heads in ((8192, 16), (16_384, 4)) if not quick else ():
        tasks += _both("eager", EAGER, size, quick, heads=heads, seconds=8)
    for size in sizes:
        tasks += _both("flex", ("plain", "flex"), size, quick, seconds=25, limit=90)
    return tasks


def _shape(size: int, quick: bool, *, heads: int | None = None, causal: bool = False) -> Shape:
    if quick:
        return Shape(1, 2, size, 16, causal, "float32")
    batch = 1 if heads else max(1, TOKENS // size)
    return Shape(batch, heads or HEADS, size, causal=causal)


def _both(
    part: str,
    contenders: tuple[str, ...],
    size: int,
    quick: bool,
    *,
    seconds: float,
    limit: float = 60.0,
    heads: int | None = None,
) -> list[Task]:
    return [
        Task(part, contenders, _shape(size, quick, heads=heads, causal=causal), seconds, limit)
        for causal in (False, True)
    ]


def _million(quick: bool) -> Task:
    shape = Shape(1, 1, 64, 16, dtype="float32") if quick else Shape(1, 1, MILLION)
    return Task("million", ("plain", "T1", "T3"), shape, seconds=25, limit=90)


def order(tasks: Iterable[Task], tried: Iterable[str], done: Iterable[str]) -> list[Task]:
    """The tasks still to do: those never tried first, then those with a row that failed.

    `tried` and `done` are keys of rows: written at all, and written with a result.
    """
    tried, done = set(tried), set(done)
    left = [task for task in tasks if not set(task.row_keys()) <= done]
    return sorted(left, key=lambda task: set(task.row_keys()) <= tried)


def first_minutes(tasks: Iterable[Task], minutes: float) -> list[Task]:
    """Those that begin in so many minutes, when each takes its `seconds`."""
    chosen, seconds = [], 0.0
    for task in tasks:
        if seconds + task.seconds > minutes * 60:
            break
        seconds += task.seconds
        chosen.append(task)
    return chosen
