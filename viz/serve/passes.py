"""The last passes, kept so that their numbers can be looked at, within a budget of memory."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from torch import Tensor

from minibert.trace.read import Trace

__all__ = ["Passes"]

# Before, after, the other text, and the one that is computed.
_FEWEST = 4
_MOST_BYTES = 2**28


class Passes:
    """Traces by the key of their request, the oldest looked at dropped first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._kept: OrderedDict[str, Trace] = OrderedDict()

    def get(self, key: str, make: Callable[[], Trace]) -> Trace:
        """The trace of that key, made where it is not kept any more."""
        trace = self._kept.pop(key, None)
        if trace is None:
            trace = make()
        self._kept[key] = trace
        while len(self._kept) > _FEWEST and self.n_bytes > self.most_bytes:
            self._kept.popitem(last=False)
        return trace

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def n_bytes(self) -> int:
        """Bytes of what is kept; traces that share a tensor count it once."""
        sizes = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for trace in self._kept.values()
            for tensor in _tensors(trace)
        }
        return sum(sizes.values())


def _tensors(trace: Trace) -> Iterator[Tensor]:
    yield from trace.kept.values()
    for record in trace.records:
        yield from record.values()
