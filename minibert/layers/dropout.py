"""Dropout while a model is trained: which numbers become 0, and how the rest is scaled.

Source: Srivastava et al. 2014; where it stands is each family's own (Vaswani et al. 2017, section
5.4; Devlin et al. 2019), as its checkpoints were trained. A trace never drops anything.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor
from torch.nn import functional as F

from minibert.layers.config import Dropout

_IN_LAYERS = ("probs", "attn_out", "mlp_post", "mlp_out")
# A trace of a model in training computes quantities when they are read, and must not drop then.
_active = ContextVar("dropping", default=False)


def of_layer(dropout: Dropout) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """What is done to the quantities of a layer, by name; shares of 0 are left out."""
    rates = {name: getattr(dropout, name) for name in _IN_LAYERS}
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
