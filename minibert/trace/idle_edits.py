"""Edits that write what stands there already: a sweep knows their result without a pass.

A prompt and its corrupted twin differ in some tokens. In a causal model everything before the first
of them is the same in both passes, bit for bit, so a patch from there changes nothing.
"""

from collections.abc import Sequence

from torch import Tensor

from minibert.quantities import Bool
from minibert.trace.changes import FromTrace
from minibert.trace.edit import Edit
from minibert.trace.pass_record import PassRecord
from minibert.trace.plan import Plan
from minibert.trace.point import Point
from minibert.trace.reach import Reach

__all__ = ["idle_plans"]

Same = Bool[Tensor, "batch position"]


def idle_plans(plans: Sequence[Plan], trace: PassRecord) -> list[int]:
    """The numbers of the plans of which every edit takes the values that the trace has."""
    known: dict[tuple[int, str, int], Same | None] = {}
    return [
        index
        for index, plan in enumerate(plans)
        if all(_is_idle(*entry, trace, known) for entry in plan.edits)
    ]


def _is_idle(
    point: Point,
    edit: Edit,
    reach: Reach,
    trace: PassRecord,
    known: dict[tuple[int, str, int], Same | None],
) -> bool:
    whole = point.layer is not None and point.heads is None and "position" in point.axes
    if not whole or not isinstance(edit.change, FromTrace) or reach.positions is None:
        return False
    key = (id(edit.change.trace), point.name, point.layer or 0)
    if key not in known:
        known[key] = _same(point, trace, edit.change(point, trace.kept["embed"]))
    same = known[key]
    return same is not None and all(
        bool(same[sentence, list(positions)].all())
        for sentence, positions in zip(reach.sentences, reach.positions, strict=True)
    )


def _same(point: Point, trace: PassRecord, theirs: Tensor) -> Same | None:
    """Where both have the same numbers; None where the shapes differ."""
    ours = trace.read(point.name, point.layer or 0)
    if ours.shape != theirs.shape:
        return None
    equal = (ours == theirs.to(ours.device)).movedim(point.axes.index("position"), 1)
    return equal.flatten(2).all(-1)
