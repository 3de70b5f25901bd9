"""What is asked of the accelerator: tasks, the most important first, each with its time.

A task is a group of contenders on one workload, measured in turns, a cell of the parity matrix, or
the ceilings of the device. It gives a row for each of its contenders.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from minibert.kernels.check.workload import ALL_KINDS, Workload

#: Kinds of the parity matrix. Whole cells come later; of these kinds every cell is asked first.
KINDS_ASKED: dict[str, Workload] = ALL_KINDS
FEW = ("causal lengths",)
D_HEADS = (64, 128, 32, 256, 16)
DTYPES = ("bfloat16", "float16", "float32")
D_HEAD, HEADS, TOKENS = 64, 32, 16_384
SIZES = (4096, 16_384, 1024, 512, 2048, 8192)
SHORT = (128, 256, 64)
MILLION = 2**20

#: Ours, by the statistics that are wanted: T1 in the pass itself, T2 with argmax, T3 with what sums
#: over queries. The first contender of a task is the one that the others are divided by.
OURS = ("plain", "T1", "T2", "T3", "all")
PEERS = ("plain", "cudnn", "flash")
#: What is told in place of a contender when all of a task are timed in turns.
CLOCK = "the clock"


@dataclass(frozen=True)
class Task:
    """One thing to do; `seconds` are what it needs at most, and past `limit` it is ended.

    Without a workload it is the ceilings, or with a cell, d_head and dtype, one of the parity
    matrix, whose contenders are kinds of `KINDS_ASKED`.
    """

    part: str
    contenders: tuple[str, ...]
    work: Workload | None = None
    seconds: float = 10.0
    limit: float = 60.0
    cell: tuple[int, str] | None = None

    @property
    def name(self) -> str:
        """What rows and the journal know it by."""
        if self.work:
            one, order = self.work, "causal" if self.work.causal else "full"
            size = f"B{one.batch} H{one.heads} N{one.tokens} D{one.d_head}"
            return f"{self.part} {size} {order} {one.dtype}"
        return f"{self.part} D{self.cell[0]} {self.cell[1]}" if self.cell else self.part

    def row_keys(self) -> list[str]:
        """Those of its rows."""
        return [f"{self.name} | {contender}" for contender in self.contenders]


def plan(*, quick: bool = False) -> list[Task]:
    """Every task, the most important first; `quick` asks the same of tiny inputs.

    First is what is right, then what is fast and holds for the first nine minutes, then the rest:
    FlexAttention compiles for each shape, so that it comes near the end.
    """
    sizes, short = ((32,), (16,)) if quick else (SIZES, SHORT)
    first, rest = sizes[:1], sizes[1:]
    tasks = [Task("ceilings", ("device",), seconds=15), *_matrix(quick, whole=False)]
    for size in first:
        tasks += _both("forward", PEERS, size, quick, seconds=15, limit=90)
        tasks += _both("statistics", OURS[:4], size, quick, seconds=25, limit=120)
        tasks += _both("backward", PEERS, size, quick, seconds=20, limit=90)
    for size in short:
        tasks += _both("short", ("plain", "all"), size, quick, seconds=10)[:1]
    tasks += _both("eager", ("T1", "eager"), sizes[0], quick, heads=32, seconds=8)
    for size in rest:
        tasks += _both("forward", PEERS, size, quick, seconds=5)
    for size in rest:
        tasks += _both("statistics", OURS[:4], size, quick, seconds=8, limit=90)
    million = Workload(1, 1, 64 if quick else MILLION, *(_QUICK if quick else _USUAL), False)
    tasks.append(Task("million", ("plain", "T1", "T3"), million, seconds=25, limit=90))
    if not quick:
        for size in (1024, 16_384):
            tasks += _both("backward", PEERS, size, quick, seconds=12)
        tasks += _matrix(quick, whole=True)
        for size, heads in ((8192, 16), (16_384, 4)):
            tasks += _both("eager", ("T1", "eager"), size, quick, heads=heads, seconds=8)
    for size in sizes:
        tasks += _both("flex", ("plain", "flex"), size, quick, seconds=25, limit=90)
    return tasks


_USUAL, _QUICK = (D_HEAD, "bfloat16"), (16, "float32")


def _matrix(quick: bool, *, whole: bool) -> list[Task]:
    """All kinds at the usual width and a few in every other cell; with `whole` what these leave."""
    if quick:
        # The interpreter's bfloat16 is wrong, so the dry run looks at float32.
        return [Task("matrix first", FEW, seconds=60, limit=150, cell=(16, "float32"))]
    first, *others = ((d_head, dtype) for d_head in D_HEADS for dtype in DTYPES)
    if whole:
        left = tuple(one for one in KINDS_ASKED if one not in FEW)
        return [Task("matrix", left, seconds=60, limit=240, cell=one) for one in others]
    usual = Task("matrix", tuple(KINDS_ASKED), seconds=60, limit=240, cell=first)
    return [usual, *(Task("matrix first", FEW, seconds=5, cell=one) for one in others)]


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
    """The task in full and in causal order; as many sentences as make 16,384 tokens."""
    d_head, dtype = _QUICK if quick else _USUAL
    batch = 1 if quick or heads else max(1, TOKENS // size)
    heads = 2 if quick else heads or HEADS
    back = part == "backward"
    works = (
        Workload(batch, heads, size, d_head, dtype, one, backward=back) for one in (False, True)
    )
    return [Task(part, contenders, one, seconds, limit) for one in works]


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
