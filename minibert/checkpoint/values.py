"""The values of a checkpoint as parameters: checked, converted and moved a piece at a time.

A weight that keeps its type stays a view of its file. Of one that is converted or moved to another
device only a piece is held in both forms, so that a model takes no more memory than its weights do.

Large weights lie in huge pages, which the processor looks up 512 times less often than usual ones:
a product of few rows reads each weight once and waits for those lookups (docs/speed.md).
https://docs.kernel.org/admin-guide/mm/transhuge.html
"""

import contextlib
import math
import mmap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minibert.checkpoint.files import Entry, MappedWeight
from minibert.checkpoint.weights import Source
from minibert.errors import CheckpointError

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MOST_IN_FLOAT32 = 10**9
"""As many weights are float32 unless something else is asked for; more keep their type."""
# Numbers in a piece: enough for all threads, and little beside any large model.
_PIECE = 2**23

Found = Mapping[str, tuple[Source, Entry]]


def default_dtype(found: Found) -> torch.dtype:
    """The type of a model for which none is asked.

    float64 where all weights have it; float32 for up to `MOST_IN_FLOAT32` weights; else the type
    that most weights of the file have. One for the whole model, because its tensors are multiplied
    with each other.
    """
    entries = {id(entry): entry for _, entry in found.values()}
    counts: Counter[torch.dtype] = Counter()
    for entry in entries.values():
        counts[entry.dtype] += math.prod(entry.shape)
    if set(counts) == {torch.float64}:
        return torch.float64
    kept = [dtype for dtype, _ in counts.most_common() if dtype in DTYPES]
    return kept[0] if kept and counts.total() > MOST_IN_FLOAT32 else torch.float32


def parameters(
    found: Found, dtype: torch.dtype, device: torch.device | None, where: str
) -> Iterator[tuple[str, nn.Parameter]]:
    """Our name and the parameter.

    Raises CheckpointError for values that are NaN, infinite, no floating-point numbers or too large
    for `dtype`, and where the device has no room.
    """
    uses = Counter(id(entry) for _, entry in found.values())
    left, looked_at = Counter(uses), set[int]()
    stored: dict[int, Tensor] = {}
    for ours, (source, entry) in found.items():
        one = id(entry)
        if one not in stored:
            stored[one] = entry.load()
        # Several parameters may be parts of it; it is read once.
        tensor = stored[one] if left[one] > 1 else stored.pop(one)
        left[one] -= 1
        given = _Given(tensor, entry, source.names[0], where, uses[one])
        given.check_type()
        view = source.view(tensor)
        if view.dtype == dtype and device in (None, view.device):
            if one not in looked_at:
                given.check_values()
                looked_at.add(one)
            yield ours, given.as_it_is(view)
        else:
            yield ours, nn.Parameter(given.converted(view, dtype, device), requires_grad=False)


@dataclass(frozen=True)
class _Given:
    """One tensor of a checkpoint, with what error messages say of it."""

    stored: Tensor
    entry: Entry
    name: str
    where: str
    uses: int
    """Parameters that are parts of it."""

    def check_type(self) -> None:
        """Raise CheckpointError for what holds no floating-point numbers."""
        if not self.stored.is_floating_point():
            raise CheckpointError(
                f"{self.where}: {self.name} holds {self.stored.dtype}; expected floating-point "
                "numbers. Quantised checkpoints are not read."
            )

    def as_it_is(self, view: Tensor) -> nn.Parameter:
        """The parameter that is a view of the stored tensor, which it shares memory with."""
        parameter = nn.Parameter(view, requires_grad=False)
        if self.entry.region is not None and _shares(view, self.stored):
            mapped = MappedWeight(self.entry, self.uses)
            parameter.mapped = mapped  # type: ignore[attr-defined]
        elif self.entry.region is not None:
            self.entry.region.release()
        return parameter

    def check_values(self) -> None:
        """Raise CheckpointError where a value is NaN or infinite."""
        for (piece,) in _pieces(self.stored):
            self._bound(piece)

    def converted(self, view: Tensor, dtype: torch.dtype, device: torch.device | None) -> Tensor:
        """The view in another type or on another device.

        The pages of the file that were read are given back piece by piece.
        """
        target = self._room(view, dtype, device)
        shared, bad = _shares(view, self.stored), 0
        for piece, place in _pieces(view, target):
            bound = self._bound(piece)
            place.copy_(piece)
            if bound > torch.finfo(dtype).max:
                bad += int((~place.isfinite()).sum())
            if shared and self.entry.region is not None:
                end = piece.data_ptr() + _extent(piece)
                self.entry.region.release(end - self.stored.data_ptr())
        if self.entry.region is not None:
            self.entry.region.release()
        if bad and not target.is_meta:
            wider = [str(d) for d in DTYPES if torch.finfo(d).max > torch.finfo(dtype).max]
            raise CheckpointError(
                f"{self.where}: {bad} values of {self.name} are too large for {dtype}, whose "
                f"largest is {torch.finfo(dtype).max:.4g}. Load it with a dtype of a wider range: "
                f"{', '.join(wider)}."
            )
        return target

    def _room(self, view: Tensor, dtype: torch.dtype, device: torch.device | None) -> Tensor:
        try:
            if (device or view.device).type == "cpu":
                return empty_like(view, dtype)
            return torch.empty_like(view, dtype=dtype, device=device)
        # Torch says so in its own words, and CUDA in a class of its own.
        except (RuntimeError, TypeError, OSError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise CheckpointError(
                f"{self.where}: no room on {device or view.device} for {self.name}, "
                f"{view.numel()} numbers of {dtype} ({said:.300}). Load it with a smaller dtype or "
                "on another device."
            ) from None

    def _bound(self, piece: Tensor) -> float:
        """The largest absolute value. Raises CheckpointError where one is not a number."""
        if piece.is_meta:
            return 0.0
        # One pass without a second tensor, through which NaN goes.
        low, high = (float(bound) for bound in torch.aminmax(piece))
        if math.isfinite(low) and math.isfinite(high):
            return max(-low, high)
        bad = sum(int((~piece.isfinite()).sum()) for (piece,) in _pieces(self.stored))
        raise CheckpointError(
            f"{self.where}: {self.name} holds {bad} values that are NaN or infinite. "
            "The checkpoint is damaged or its training diverged."
        )


def _pieces(*alike: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors in pieces, which follow each other in the memory of the first."""
    first = alike[0]
    if first.numel() == 0:
        return
    order = sorted(range(first.dim()), key=first.stride, reverse=True)
    alike = tuple(tensor.detach().permute(order) for tensor in alike)
    # A number alone, and what repeats itself in memory, is one piece.
    rows = len(alike[0]) if order else 1
    step = max(1, _PIECE * rows // first.numel())
    yield from zip(*(t.split(step) if order else (t,) for t in alike), strict=True)


def _extent(piece: Tensor) -> int:
    """Bytes from its first number to behind its last one."""
    steps = zip(piece.shape, piece.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * piece.itemsize


def _shares(view: Tensor, stored: Tensor) -> bool:
    return view.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()


_HUGE_PAGE = 2**21
# Of a smaller tensor too little lies in whole huge pages.
_SMALLEST = 2 * _HUGE_PAGE


def empty_like(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Uninitialised memory of the CPU in the layout of `like`; large ones in huge pages.

    Where the system has none, in usual ones. Raises RuntimeError or OSError without room.
    """
    layout = torch.empty_like(like, dtype=dtype, device="meta")
    if layout.nbytes < _SMALLEST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty_like(like, dtype=dtype, device="cpu")
    # With room to begin where a huge page does; what is not written to takes no memory.
    memory = mmap.mmap(-1, layout.nbytes + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _HUGE_PAGE
    # A kernel without huge pages refuses.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE, start, layout.nbytes // _HUGE_PAGE * _HUGE_PAGE)
    flat = torch.frombuffer(memory, dtype=dtype, count=layout.numel(), offset=start)
    return flat.as_strided(layout.shape, layout.stride())
