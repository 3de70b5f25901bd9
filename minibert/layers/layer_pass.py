"""One layer of one pass: it evaluates the table of quantities in layer.py."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys, kept
from minibert.kernels.api import Attended, Statistics, compute
from minibert.kernels.call import Call
from minibert.layers.evaluation import EVERYTHING, Evaluation, Past, Rows, cut
from minibert.layers.layer import LayerQuantities
from minibert.layers.linear import dtype_of
from minibert.layers.norms import Divisors, divisor
from minibert.layers.rotary import Turns, rotate
from minibert.quantities import (
    QUANTITIES,
    AttentionMask,
    HeadVectors,
    Hidden,
    KeyVectors,
    NormScale,
    PerHeadHidden,
    Quantity,
)

if TYPE_CHECKING:
    from minibert.layers.parts import Layer
else:
    # A trace that is loaded without its model has something else in the place of a layer.
    Layer = Any


Change = Callable[[Tensor], Tensor]
_PROJECTED = ("query", "key", "value")
_MATRICES = frozenset({"scores", "probs"})


class LayerPass(LayerQuantities):
    """One layer of one pass: what is known of it, resid_pre at least, and the table for the rest.

    Values stand as attributes once they are read.

    known        values from before, whole: they are cut to the chosen heads and rows when read
    edits        what changes a quantity, by its name
    keep         quantities that have to be computed, although what follows can do without them
    past         keys and values of the positions before
    heads, rows  those that are computed; rows are counted from `evaluation.first`
    lazy         this is a read of one quantity, and not a pass
    """

    statistics: Statistics | None = None

    def __init__(
        self,
        layer: "Layer",
        index: int,
        evaluation: Evaluation,
        *,
        known: Mapping[str, Tensor] = MappingProxyType({}),
        edits: Mapping[str, Change] = MappingProxyType({}),
        keep: frozenset[str] = frozenset(),
        past: Past | None = None,
        heads: slice = EVERYTHING,
        rows: Rows = EVERYTHING,
        lazy: bool = False,
    ) -> None:
        self.layer = layer
        self.attention = layer.attention
        self.index = index
        self.evaluation = evaluation
        self.keep = keep
        self.known = known
        self.edits = edits
        self.past = past
        self.heads = heads
        self.rows = rows
        self.lazy = lazy

    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """The value here: known, or computed; then changed, where there is an edit of it."""
        name = quantity.name
        value = self.known.get(name)
        if value is None:
            assert quantity.compute is not None
            value = quantity.compute(self)
        elif self.heads != EVERYTHING or self.rows != EVERYTHING:
            value = cut(value, quantity, self.heads, self.rows, self.attention.group)
        if name in self.edits:
            value = self.edits[name](value)
        # An attribute of its own is found before the declaration in the class.
        self.__dict__[name] = value
        return value

    def wants(self, *names: str) -> bool:
        """True where one of these quantities has to be computed: edited, known before, or kept."""
        return not self.keep.isdisjoint(names) or self.given(*names)

    def given(self, *names: str) -> bool:
        """True where one of these quantities may differ from what those before it give."""
        # A loop, which torch.compile follows.
        for name in names:  # noqa: SIM110
            if name in self.edits or name in self.known:
                return True
        return False

    def project(self, name: str) -> HeadVectors:
        """query, key or value. All three read the same input, so a pass computes them together."""
        if self.lazy:
            at = self if name == "query" else self.of_all_rows()
            if not at.reads_apart(name):
                return self.attention.project(name, at.attention_input, self.heads)
            # A norm of queries and keys may be one of all heads together.
            at = at.of_all_heads()
            inputs = getattr(at, f"{name}_input")
            vectors = self.attention.of_inputs(name, at.attention_input, inputs)
            return cut(vectors, QUANTITIES[name], self.heads, EVERYTHING, self.attention.group)
        if self._projected is None:
            # Keys and values of some rows alone are those of before, which nobody projects again.
            names = _PROJECTED if self.rows == EVERYTHING else _PROJECTED[:1]
            own = {each: getattr(self, f"{each}_input") for each in names if self.reads_apart(each)}
            self._projected = self.attention.query_key_value(self.attention_input, own)
        return self._projected[name]

    def reads_apart(self, name: str) -> bool:
        """True where each head of query, key or value reads an input of its own."""
        return self.wants(f"{name}_input")

    def turned_query(self) -> HeadVectors:
        """The queries, turned by where they stand."""
        return rotate(self.query_unrotated, self._turns(self.rows))

    def turned_key(self) -> KeyVectors:
        """The keys, turned by where they stand."""
        return rotate(self.key_unrotated, self._turns(EVERYTHING))

    def _turns(self, rows: Rows) -> Turns:
        rotary, dtype = self.attention.rotary, dtype_of(self.attention.query)
        assert rotary is not None
        turns = self.evaluation.turns(rotary, dtype)
        if rows == EVERYTHING:
            return turns
        cosine, sine = turns
        return cosine[:, :, rows], sine[:, :, rows]

    _projected: dict[str, HeadVectors] | None = None

    @property
    def attention_input(self) -> Hidden:
        """What W_Q, W_K and W_V read."""
        divisors = None if self.layer.after else self.divisors("attention_norm")
        return self.layer.attention_input(self.resid_pre, divisors)

    @property
    def mlp_input(self) -> Hidden:
        """What W_in and W_gate read."""
        divisors = None if self.layer.after else self.divisors("mlp_norm")
        stream = self.resid_pre if self.layer.parallel else self.resid_mid
        return self.layer.mlp_input(stream, divisors)

    def for_each_head(self, axis: str) -> PerHeadHidden:
        """`attention_input` for each head, or of each key-value head those chosen: no copies."""
        attention = self.attention
        count = attention.n_kv_heads if axis == "kv_head" else attention.n_heads
        if self.heads != EVERYTHING:
            count = len(range(attention.n_heads)[self.heads])
        at = self.of_all_rows() if axis == "kv_head" else self
        return at.attention_input.unsqueeze(1).expand(-1, count, -1, -1)

    def divisor(self, norm: str, x: Hidden) -> NormScale:
        """What a norm of this layer divides x by."""
        return divisor(getattr(self.layer, norm), x)

    def divisors(self, norm: str) -> Divisors | None:
        """What a norm has to divide by, and what it would; None where nobody asks."""
        name = f"{norm}_scale"
        if not self.wants(name):
            return None
        # Computed twice: each of both has a gradient of its own.
        own = QUANTITIES[name].compute
        assert own is not None
        return getattr(self, name), own(self)

    @kept
    def _keys_and_values(self) -> tuple[KeyVectors, KeyVectors]:
        if self.past is None:
            return self.key, self.value
        return self.past.extend(self.key, self.value)

    @property
    def all_keys(self) -> KeyVectors:
        """The keys of the past and of this pass."""
        return self._keys_and_values[0]

    @property
    def all_values(self) -> KeyVectors:
        """The values of the past and of this pass."""
        return self._keys_and_values[1]

    @property
    def _allowed(self) -> AllowedKeys:
        past = None if self.past is None else self.past.allowed
        if past is not None:
            return past
        window, evaluation = self.attention.window, self.evaluation
        if window is not None:
            evaluation = evaluation.in_window(window)
        if self.rows == EVERYTHING:
            return evaluation.from_first
        return evaluation.at_rows(self.rows)

    def allowed_rows(self) -> AttentionMask | None:
        """True where the rows that are computed may look; None: everywhere."""
        return self._allowed.visible

    def attend(self) -> HeadVectors:
        """z by one call of `minibert.kernels`; what else it was asked for is held."""
        evaluation = self.evaluation
        want = {} if self.lazy else evaluation.want
        if evaluation.of_layer is not None and not self.lazy:
            want = want | evaluation.of_layer(self)
        if not _MATRICES.isdisjoint(self.keep):
            want = want | {"scores": (), "probs": ()}
        call = Call(
            self.query,
            self.all_keys,
            self.all_values,
            self.attention.scale,
            self._allowed,
            want=want,
            soft_cap=self.attention.soft_cap,
        )
        found = compute(call, evaluation.impl)
        if want:
            self._hold(found)
        # The reference computes in float64 whatever it is given.
        return found.z.to(self.query.dtype)

    def _hold(self, found: Attended) -> None:
        self.statistics = found.statistics
        for name, matrix in (("scores", found.scores), ("probs", found.probs)):
            if matrix is not None:
                self.__dict__[name] = matrix.to(self.query.dtype)

    def of_all_heads(self) -> "LayerPass":
        """The same place with all heads, for what sums over them."""
        return self if self.heads == EVERYTHING else self._again(EVERYTHING, self.rows)

    def of_all_rows(self) -> "LayerPass":
        """The same place with all rows, for keys and values."""
        return self if self.rows == EVERYTHING else self._again(self.heads, EVERYTHING)

    def of_rows(self, rows: Rows) -> "LayerPass":
        """The same place for some rows alone; what is computed already is cut to them."""
        return self._again(self.heads, rows, {**self.known, **self.computed()})

    def _again(
        self, heads: slice, rows: Rows, known: Mapping[str, Tensor] | None = None
    ) -> "LayerPass":
        return LayerPass(
            self.layer,
            self.index,
            self.evaluation,
            known=self.known if known is None else known,
            past=self.past,
            heads=heads,
            rows=rows,
            lazy=self.lazy,
        )

    def computed(self) -> dict[str, Tensor]:
        """The quantities that were read so far."""
        return {name: value for name, value in self.__dict__.items() if name in QUANTITIES}
