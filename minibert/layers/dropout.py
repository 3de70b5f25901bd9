"""Dropout while a model is trained: which numbers become 0, and how the rest is scaled.

Source: Srivastava et al. 2014; where it stands is each family's own (Vaswani et al. 2017, section
5.4; Devlin et al. 2019), as its checkpoints were trained. A trace never drops anything.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields

from torch import Tensor
from torch.nn import functional as F

from minibert.errors import CheckpointError

_IN_LAYERS = ("probs", "attn_out", "mlp_post", "mlp_out")
# A trace of a model in training computes quantities when they are read, and must not drop then.
_active = ContextVar("dropping", default=False)


@dataclass(frozen=True)
class Dropout:
    """The share of the numbers of each quantity that become 0 in training; the others grow.

    embed       what enters layer 0, before a projection
    probs       attention weights
    attn_out    before it is added to the stream; mlp_out likewise
    mlp_post    between the two matrices of the MLP
    head        what the classifier of a task head reads

    Raises CheckpointError for what is not a share from 0 to 1, 1 excluded.
    """

    embed: float = 0.0
    probs: float = 0.0
    attn_out: float = 0.0
    mlp_post: float = 0.0
    mlp_out: float = 0.0
    head: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            rate = getattr(self, field.name)
            number = isinstance(rate, int | float) and not isinstance(rate, bool)
            if not number or not 0 <= rate < 1:
                raise CheckpointError(
                    f"dropout: {field.name} is {rate!r:.80}; expected a share from 0 to below 1."
                )

    def of_layer(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """What is done to the quantities of a layer, by name; shares of 0 are left out."""
        rates = {name: getattr(self, name) for name in _IN_LAYERS}
        return {name: _dropping(rate) for name, rate in rates.items() if rate}


@contextmanager
def dropping() -> Iterator[None]:
    """Within it `dropped` drops."""
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)


def dropped(value: Tensor, rate: float) -> Tensor:
    """What dropout leaves of a value; all of it outside of `dropping`."""
    return F.dropout(value, rate, training=True) if rate and _active.get() else value


def _dropping(rate: float) -> Callable[[Tensor], Tensor]:
    return lambda value: F.dropout(value, rate, training=True)
