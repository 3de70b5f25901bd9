"""A layer is one table: every quantity in the order of the data, each declared once.

A declaration is a function of the quantities before it. `LayerPass` evaluates the table for one
layer of one pass: a plain forward asks for resid_post and keeps nothing; a trace keeps what was
computed; a lazy read asks for one quantity of some heads and rows later; an edit replaces a value
on the way; a rerun begins with what is known. Gradients that autograd would give through an N x N
tensor are declared in layer_gradients.py. Padding, packing and a past are properties of the
evaluation (`Evaluation`), not other code.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.allowed_keys import AllowedKeys, kept
from minibert.kernels.api import Attended, Statistics, compute
from minibert.kernels.call import Call
from minibert.kernels.eager import attention_probs, attention_scores, soft_capped, weighted_values
from minibert.layers.config import Config
from minibert.layers.evaluation import EVERYTHING, Evaluation, Past, Rows, cut
from minibert.layers.rotary import Turns, rotate
from minibert.quantities import (
    HEAD_AXES,
    KEY_AXES,
    MATRIX_AXES,
    MLP_AXES,
    QUANTITIES,
    STREAM_AXES,
    AttentionMask,
    HeadVectors,
    Hidden,
    KeyVectors,
    Matrix,
    Mlp,
    PerHeadHidden,
    Quantity,
    quantity,
)

if TYPE_CHECKING:
    from minibert.layers.parts import Layer
else:
    # A trace that is loaded without its model has something else in the place of a layer.
    Layer = Any

__all__ = [
    "Change",
    "LayerPass",
    "LayerQuantities",
    "absent_because",
    "layer_quantities",
]

Change = Callable[[Tensor], Tensor]
_MATRICES = frozenset({"scores", "probs"})


Quantity(STREAM_AXES, "what enters layer 0", name="embed", per_layer=False)


class LayerQuantities:
    """The table. `at` is one layer of one pass: a `LayerPass`."""

    @quantity(STREAM_AXES, "the stream before attention")
    def resid_pre(at: "LayerPass") -> Hidden:
        raise NotImplementedError("what enters a layer is known before the layer is")

    @quantity(HEAD_AXES, "x·W_Q + b_Q before its rotation (a query norm included)")
    def query_unrotated(at: "LayerPass") -> HeadVectors:
        return at.project("query")

    @quantity(KEY_AXES, "x·W_K + b_K before its rotation (a key norm included)", of_keys=True)
    def key_unrotated(at: "LayerPass") -> KeyVectors:
        return at.project("key")

    @quantity(
        HEAD_AXES,
        "x·W_Q + b_Q, x = resid_pre (pre-norm: its norm); rotary: query_unrotated turned",
        kept=True,
    )
    def query(at: "LayerPass") -> HeadVectors:
        return at.project("query") if at.attention.rotary is None else at.turned_query()

    @quantity(KEY_AXES, "x·W_K + b_K; rotary: key_unrotated turned", kept=True, of_keys=True)
    def key(at: "LayerPass") -> KeyVectors:
        return at.project("key") if at.attention.rotary is None else at.turned_key()

    @quantity(KEY_AXES, "x·W_V + b_V", kept=True, of_keys=True)
    def value(at: "LayerPass") -> KeyVectors:
        return at.project("value")

    @quantity(MATRIX_AXES, "query·key / sqrt(d_head), before soft cap and mask")
    def scores(at: "LayerPass") -> Matrix:
        return attention_scores(at.query, at.all_keys, scale=at.attention.scale)

    @quantity(MATRIX_AXES, "softmax of the masked scores over keys; 0 where masked")
    def probs(at: "LayerPass") -> Matrix:
        capped = soft_capped(at.scores, at.attention.soft_cap)
        probs = attention_probs(capped, at.allowed_rows())
        if at.given("scores") and bool(probs.isnan().any()):
            raise EditError(
                f"scores of layer {at.index}: an edit made NaN of them, or left a query without "
                "a key (all are −inf)."
            )
        return probs

    @quantity(HEAD_AXES, "probs·value", kept=True)
    def z(at: "LayerPass") -> HeadVectors:
        if at.given("scores", "probs"):
            return weighted_values(at.probs, at.all_values)
        return at.attend()

    @quantity(("batch", "head", "position", "d_model"), "z·W_O of that head")
    def head_out(at: "LayerPass") -> PerHeadHidden:
        return at.attention.head_out(at.z, at.heads)

    @quantity(STREAM_AXES, "sum of head_out over heads + b_O")
    def attn_out(at: "LayerPass") -> Hidden:
        if at.wants("head_out"):
            return at.attention.sum_of_heads(at.of_all_heads().head_out)
        return at.attention.attn_out(at.of_all_heads().z)

    @quantity(
        STREAM_AXES,
        "resid_pre + attn_out (post-norm: its norm; output norm: resid_pre + norm of attn_out)",
        kept=True,
    )
    def resid_mid(at: "LayerPass") -> Hidden:
        if at.wants("head_out", "attn_out") or at.layer.attention_output_norm is not None:
            return at.layer.after_attention(at.resid_pre, at.attn_out)
        # The same sum in one operation.
        return at.layer.of_sum(at.attention.attn_out(at.of_all_heads().z, at.resid_pre))

    @quantity(MLP_AXES, "x·W_gate + b_gate, x as in mlp_pre")
    def mlp_gate(at: "LayerPass") -> Mlp:
        return at.layer.mlp.gate_of(at.mlp_input)

    @quantity(
        MLP_AXES, "x·W_in + b_in, x = resid_mid (pre-norm: its norm; parallel: that of resid_pre)"
    )
    def mlp_pre(at: "LayerPass") -> Mlp:
        return at.layer.mlp.pre(at.mlp_input)

    @quantity(MLP_AXES, "activation(mlp_pre); gated: activation(mlp_gate) * mlp_pre")
    def mlp_post(at: "LayerPass") -> Mlp:
        mlp = at.layer.mlp
        return mlp.post(at.mlp_pre, None if mlp.gate is None else at.mlp_gate)

    @quantity(STREAM_AXES, "mlp_post·W_out + b_out")
    def mlp_out(at: "LayerPass") -> Hidden:
        return at.layer.mlp.down(at.mlp_post)

    @quantity(
        STREAM_AXES,
        "resid_mid + mlp_out (post-norm: its norm; output norm: resid_mid + norm of mlp_out)",
        kept=True,
    )
    def resid_post(at: "LayerPass") -> Hidden:
        if at.wants("mlp_gate", "mlp_pre", "mlp_post", "mlp_out"):
            return at.layer.after_mlp(at.resid_mid, at.mlp_out)
        return at.layer.mlp_added(at.resid_mid, at.mlp_input)


Quantity(
    ("batch", "position", "vocab"),
    "what the task head gives; without one, the last hidden state",
    name="logits",
    per_layer=False,
)
Quantity(
    ("batch", "1", "query", "key"), "True where attention is allowed", name="mask", per_layer=False
)


def layer_quantities(config: Config | None = None) -> dict[str, Quantity[Tensor]]:
    """The quantities of a layer by name, in the order of the data: of this model, or of any."""
    absent = () if config is None else config.absent_quantities
    return {
        name: each for name, each in QUANTITIES.items() if each.per_layer and name not in absent
    }


def absent_because(name: str, config: Config) -> str:
    """Why a model lacks one of its `absent_quantities`, and what to read in its place."""
    if name == "mlp_gate":
        return f"{name}: the MLP of {config.model_type} has no gate; mlp_pre enters the activation."
    plain = name.removesuffix("_unrotated")
    return f"{name}: {config.model_type} does not rotate queries and keys; {plain} is the same."


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
            return self.attention.project(name, at.attention_input, self.heads)
        if self._projected is None:
            self._projected = self.attention.query_key_value(self.attention_input)
        return self._projected[name]

    def turned_query(self) -> HeadVectors:
        """The queries, turned by where they stand."""
        return rotate(self.query_unrotated, self._turns(self.rows))

    def turned_key(self) -> KeyVectors:
        """The keys, turned by where they stand."""
        return rotate(self.key_unrotated, self._turns(EVERYTHING))

    def _turns(self, rows: Rows) -> Turns:
        rotary, dtype = self.attention.rotary, self.attention.query.weight.dtype
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
        return self.layer.attention_input(self.resid_pre)

    @property
    def mlp_input(self) -> Hidden:
        """What W_in and W_gate read."""
        return self.layer.mlp_input(self.resid_pre if self.layer.parallel else self.resid_mid)

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
        evaluation = self.evaluation.in_window(self.attention.window)
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
