"""What `minibert bench --list` prints: what implementations take, workloads and signatures."""

from minibert.bench.signatures import SIGNATURES
from minibert.kernels.call import OPTIONS, SHAPES
from minibert.kernels.check.workload import WORKLOADS, Workload
from minibert.kernels.registry import Implementation, foldable, implementations
from minibert.terminal import Terminal

#: The columns: an option, or options that go together.
COLUMNS = {
    "lengths": ("lengths",),
    "causal": ("causal",),
    "mask": ("mask",),
    "bias": ("bias",),
    "scale": ("scale",),
    "groups": ("groups",),
    "d_v": ("value_size",),
    "window": ("window",),
    "prefix": ("prefix",),
    "cap": ("soft_cap",),
    "alibi": ("alibi_slopes",),
    "sinks": ("sinks",),
    "packed": ("packed", "packed_keys"),
    "pages": ("pages", "lengths"),
    "gradient": (),
}


def implementation_rows() -> list[tuple[str, ...]]:
    """A row for each implementation: yes, folded, or - for each column, and why it cannot run.

    folded: it is handed on in a form that it takes, as a mask, a bias, repeated or gathered keys.
    """
    assert {name for names in COLUMNS.values() for name in names} == {*OPTIONS, *SHAPES} - {"want"}
    return [(name, *_taken(one), one.unavailable or _where(one)) for name, one in _all()]


def _all() -> list[tuple[str, Implementation]]:
    return list(implementations().items())


def _taken(one: Implementation) -> list[str]:
    folds = foldable(one.options, frozenset())
    cells = []
    for column, names in COLUMNS.items():
        if column == "gradient":
            cells.append("yes" if "z" in one.differentiable else "-")
        elif set(names) <= one.options:
            cells.append("yes")
        else:
            cells.append("folded" if set(names) <= one.options | folds else "-")
    return cells


def _where(one: Implementation) -> str:
    return " and ".join(one.devices) or "anywhere"


def workload_rows() -> list[tuple[str, ...]]:
    """A row for each named workload: its size, and what it asks beside."""
    return [(name, *_described(one)) for name, one in WORKLOADS.items()]


def _described(one: Workload) -> tuple[str, str, str]:
    order = ["causal"] if one.causal else []
    lengths = ["varied lengths"] if one.lengths == "varied" else []
    size = f"{one.batch} x {one.heads} heads x {one.tokens}, d_head {one.d_head}"
    rest = [*order, *lengths, *([one.about()] if one.about() else [])]
    return size, ", ".join(rest), f"{one.flop / 1e9:.4g} GFLOP, {one.bytes / 2**20:.4g} MiB"


def list_lines(terminal: Terminal) -> list[str]:
    """The three tables."""
    lines = ["Implementations, and what of a call they take"]
    header = ("", *COLUMNS, "runs on")
    lines += terminal.table(header, implementation_rows(), "<" * len(header))
    lines += ["", "Workloads (--workload)"]
    lines += terminal.table(("", "size", "asks", "forward"), workload_rows(), "<<<<")
    lines += ["", "Signatures (--signature)"]
    lines += [f"  {name:<18}  {one.says}" for name, one in SIGNATURES.items()]
    return lines
