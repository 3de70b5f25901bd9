"""Who reads each quantity of a layer, recorded while the table of layer.py is evaluated once.

From it follows which quantities an edit reaches, and whether an edit reaches any. A layer of the
same choices and next to no width is evaluated, once for each config and layer.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer import LayerPass, layer_quantities
from minibert.layers.parts import Layer
from minibert.quantities import QUANTITIES, AttentionMask, HeadVectors, KeyVectors, Quantity

Readers = Mapping[str, frozenset[str]]


class _Recording(LayerPass):
    """A layer of a pass that wants every quantity there is, and notes who reads which."""

    def __init__(self, config: Config, index: int) -> None:
        evaluation = Evaluation(AllowedKeys(1, 2, torch.device("cpu"), config.causal))
        narrow = replace(config, d_model=2, d_mlp=min(config.d_mlp, 2), d_embed=2)
        super().__init__(Layer(narrow, index), index, evaluation, lazy=lambda: None)
        self.absent = config.absent_in(index)
        self.made = {"resid_pre": torch.zeros(1, 2, 2)}
        self.readers: dict[str, set[str]] = {name: set() for name in layer_quantities(config)}
        self.reading: list[str] = []

    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """The value, which is not kept as an attribute: the next reader is noted, too."""
        name = quantity.name
        if self.reading:
            self.readers[name].add(self.reading[-1])
        if name not in self.made:
            assert quantity.compute is not None
            self.reading.append(name)
            self.made[name] = quantity.compute(self)
            self.reading.pop()
        return self.made[name]

    def wants(self, *names: str) -> bool:
        """True for what this model has, so that nothing is computed past it."""
        return not self.absent.issuperset(names)

    def given(self, *names: str) -> bool:
        """True for z, which then reads probs; what scores hold is not looked at."""
        return "probs" in names

    def turned_query(self) -> HeadVectors:
        """The queries: of what is turned, the shape is the same."""
        return self.query_unrotated

    def turned_key(self) -> KeyVectors:
        """The keys."""
        return self.key_unrotated

    def allowed_rows(self) -> AttentionMask | None:
        """Every key."""
        return None

    @property
    def all_keys(self) -> KeyVectors:
        """The keys alone, without the values that a pass computes with them."""
        return self.key

    @property
    def all_values(self) -> KeyVectors:
        """The values alone."""
        return self.value


def readers(config: Config, layer: int) -> Readers:
    """The quantities of a layer that are computed from each of them."""
    # Layers differ in this only in the norm that the first one may lack.
    return _recorded(config, min(layer, 1), frozenset(QUANTITIES))


@lru_cache(maxsize=256)
def _recorded(config: Config, layer: int, names: frozenset[str]) -> Readers:
    with torch.no_grad():
        at = _Recording(config, layer)
        for name in at.readers.keys() - at.absent:
            getattr(at, name)
    return {name: frozenset(found) for name, found in at.readers.items()}


def unread(config: Config, layer: int) -> frozenset[str]:
    """The quantities of a layer that nothing is computed from, in it or in the next."""
    found = readers(config, layer)
    return frozenset(name for name in found if not found[name]) - {"resid_post"}


def reached(config: Config, layer: int, edited: Collection[str]) -> frozenset[str]:
    """The quantities of a layer that are computed from these, near and far."""
    found, table = set[str](), readers(config, layer)
    left = list(edited)
    while left:
        new = table[left.pop()] - found
        found |= new
        left += new
    return frozenset(found)
