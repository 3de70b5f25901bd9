"""Statistics of the rows of a live model's attention, by `minibert.attend`, without N x N."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from minibert.attached.call import Call
from minibert.attached.masks import Mask
from minibert.errors import TraceError
from minibert.kernels.api import Attended, Statistics, attend
from minibert.trace.layer_view import AbsentError

__all__ = ["LazyStatistics", "attended"]

NAMES = ("lse", *(each.name for each in fields(Statistics)))


class LazyStatistics:
    """The statistics of a layer or a head, each computed when it is read.

    `statistics.entropy` is one of them; `statistics(("entropy", ("key_mass", (0,))))` computes
    several in one pass and takes parameters, as `minibert.attend(want=...)` does. What each is
    says `minibert.kernels.api.Statistics`; of one head they have no head axis. `lse` is there too.

    Rows of padding, where the model was given an attention_mask, count as rows without a key.
    Raises TraceError where an edit changed scores or probs: read `probs` there.
    """

    def __init__(self, call: Call, head: int | None) -> None:
        self._call, self._head = call, head

    def __call__(self, want: Iterable[Any]) -> Statistics:
        """Those that `want` names."""
        found = attended(self._call, want).statistics or Statistics()
        numbers = {each.name: getattr(found, each.name) for each in fields(found)}
        return Statistics(**{name: self._of_head(one) for name, one in numbers.items()})

    def __getattr__(self, name: str) -> Tensor:
        if name == "lse":
            return self._of_head(attended(self._call, ()).lse)
        if name not in NAMES:
            raise AbsentError(f"{name!r} is no statistic; there are {', '.join(NAMES)}.")
        return self._of_head(getattr(attended(self._call, (name,)).statistics, name))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *NAMES]

    def _of_head(self, numbers: Any) -> Any:
        return numbers if numbers is None or self._head is None else numbers[:, self._head]


def attended(call: Call, want: Iterable[Any]) -> Attended:
    """What `minibert.attend` gives for a call of a live model."""
    if call.matrices:
        raise TraceError(
            f"{' and '.join(call.matrices)} were edited here, and statistics are those of query "
            "and key. Compute what you need from .probs."
        )
    query, key, value = (call.read(name).detach() for name in ("query", "key", "value"))
    call.read("probs", rows=slice(0, 0))
    # Causal order that is all of a mask is a word to a kernel, and no N x N tensor.
    causal = call.mask is None and call.softens and query.shape[-2] == key.shape[-2]
    scale, mask = call.scale, Mask() if causal else call.mask_rows()
    if isinstance(scale, Tensor):
        query, scale = query * scale, 1.0
    allowed, bias = mask.allowed, mask.bias
    if call.position_bias is not None:
        more = _four(call.position_bias)[..., : key.shape[-2]]
        bias = more if bias is None else bias + more
    if call.real_queries is not None:
        real = call.real_queries[:, None, :, None]
        allowed = real if allowed is None else allowed & real
    sinks = call.sinks
    options: dict[str, Any] = {
        "causal": causal,
        "scale": float(scale),
        "soft_cap": call.soft_cap,
        "mask": None if allowed is None else _four(allowed),
        "bias": None if bias is None else _four(bias).detach().to(query.dtype),
        "sinks": None if sinks is None else _by_head(sinks).detach().to(query.dtype),
    }
    batch = max(one.shape[0] for one in (query, key))
    query, key, value = (one.expand(batch, -1, -1, -1) for one in (query, key, value))
    with torch.no_grad():
        return attend(query, key, value, want=want, **options)


def _four(matrix: Tensor) -> Tensor:
    while matrix.dim() < 4:
        matrix = matrix.unsqueeze(0)
    return matrix


def _by_head(sinks: Tensor) -> Tensor:
    if sinks.dim() == 4:
        sinks = sinks[0, :, 0, 0]
    return sinks.reshape(-1)
