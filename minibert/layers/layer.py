"""A layer is one table: every quantity in the order of the data, each declared once.

A declaration is a function of the quantities before it. A `LayerPass` evaluates the table for one
layer of one pass: a plain forward asks for resid_post and keeps nothing; a trace keeps what was
computed; a lazy read asks for one quantity of some heads and rows later; an edit replaces a value
on the way; a rerun begins with what is known. Padding, packing and a past are properties of the
evaluation (`Evaluation`), not other code.

Behind it stand the gradients that autograd would give only where a pass computes more than it
needs: an N x N tensor, one as large as all head_out, the input of a head apart from that of the
others, or a norm apart from what it divides by. Each belongs to a quantity and follows from the
gradient of one after it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.allowed_keys import AllowedKeys, kept
from minibert.kernels.api import Statistics, compute
from minibert.kernels.call import Call
from minibert.kernels.eager import attention_probs, attention_scores, soft_capped, weighted_values
from minibert.layers.config import Config
from minibert.layers.evaluation import EVERYTHING, Evaluation, Past, Rows, cut, read_by
from minibert.layers.linear import dtype_of
from minibert.layers.parts import Divisors, Norm, centred, divisor
from minibert.layers.turns import Turns, rotate
from minibert.quantities import (
    QUANTITIES,
    AttentionMask,
    HeadVectors,
    Hidden,
    KeyVectors,
    Matrix,
    Mlp,
    NormScale,
    PerHeadHidden,
    PerKeyHeadHidden,
    Quantity,
    quantity,
)

if TYPE_CHECKING:
    from minibert.layers.parts import Attention, FeedForward, Layer
else:
    # A trace that is loaded without its model has something else in place of a layer.
    Attention = Layer = object

Change = Callable[[Tensor], Tensor]

# Where norms follow the sums with the stream (BERT) these come after what is added to it.
_BEHIND = {"attention_norm_scale": "attn_out", "mlp_norm_scale": "mlp_out"}

Quantity(("batch", "position", "d_model"), "what enters layer 0", name="embed", per_layer=False)


class LayerQuantities:
    """The table. `at` is one layer of one pass."""

    @quantity("the stream before attention")
    def resid_pre(at: "LayerPass") -> Hidden:
        raise NotImplementedError("what enters a layer is known before the layer is")

    @quantity("what the norm of attention divides by: root of mean square + eps")
    def attention_norm_scale(at: "LayerPass") -> NormScale:
        return at.divisor("attention_norm")

    @quantity("the x of a head's query: resid_pre (pre-norm: its norm)")
    def query_input(at: "LayerPass") -> PerHeadHidden:
        return at.for_each_head("head")

    @quantity("x·W_Q + b_Q before its rotation (a query norm included)")
    def query_unrotated(at: "LayerPass") -> HeadVectors:
        return at.project("query")

    @quantity(
        "x·W_Q + b_Q, x = resid_pre (pre-norm: its norm); rotary: query_unrotated turned; "
        "shortformer: + position·W_Q",
        kept=True,
    )
    def query(at: "LayerPass") -> HeadVectors:
        return at.turned_query() if at.turns else at.project("query")

    @quantity("the x of a head's key, as of query_input", of_keys=True)
    def key_input(at: "LayerPass") -> PerKeyHeadHidden:
        return at.for_each_head("kv_head")

    @quantity("x·W_K + b_K before its rotation (a key norm included)", of_keys=True)
    def key_unrotated(at: "LayerPass") -> KeyVectors:
        return at.project("key")

    @quantity(
        "x·W_K + b_K; rotary: key_unrotated turned; shortformer: + position·W_K",
        kept=True,
        of_keys=True,
    )
    def key(at: "LayerPass") -> KeyVectors:
        return at.turned_key() if at.turns else at.project("key")

    @quantity("the x of a head's value, as of query_input", of_keys=True)
    def value_input(at: "LayerPass") -> PerKeyHeadHidden:
        return at.for_each_head("kv_head")

    @quantity("x·W_V + b_V", kept=True, of_keys=True)
    def value(at: "LayerPass") -> KeyVectors:
        return at.project("value")

    @quantity("query·key times the scale, 1/sqrt(d_head) in most models; before soft cap and mask")
    def scores(at: "LayerPass") -> Matrix:
        return attention_scores(at.query, at.all_keys, scale=at.choices.scale)

    @quantity("softmax of the masked scores over keys; 0 where masked")
    def probs(at: "LayerPass") -> Matrix:
        capped = soft_capped(at.scores, at.choices.soft_cap)
        probs = attention_probs(capped, at.allowed_rows())
        if at.given("scores") and bool(probs.isnan().any()):
            raise EditError(
                f"scores of layer {at.index}: an edit made them NaN, or left a query without "
                "a key (all are −inf)."
            )
        return probs

    @quantity("probs·value", kept=True)
    def z(at: "LayerPass") -> HeadVectors:
        if at.given("scores", "probs"):
            return weighted_values(at.probs, at.all_values)
        return at.attend()

    @quantity("z·W_O of that head")
    def head_out(at: "LayerPass") -> PerHeadHidden:
        return at.attention.head_out(at.z, at.heads)

    @quantity("sum of head_out over heads + b_O")
    def attn_out(at: "LayerPass") -> Hidden:
        if at.wants("head_out"):
            return at.attention.sum_of_heads(at.of_all_heads().head_out)
        return at.attention.attn_out(at.of_all_heads().z)

    @quantity("what the norm of attn_out divides by")
    def attention_output_norm_scale(at: "LayerPass") -> NormScale:
        return at.divisor("attention_output_norm")

    @quantity(
        "resid_pre + attn_out (post-norm: its norm; output norm: resid_pre + norm of attn_out)",
        kept=True,
    )
    def resid_mid(at: "LayerPass") -> Hidden:
        layer, divisors = at.layer, at.divisors(at.layer.norm_behind("attention"))
        if at.wants("head_out", "attn_out") or layer.attention_output_norm is not None:
            return layer.added("attention", at.resid_pre, at.attn_out, divisors)
        # The same sum in one operation.
        total = at.attention.attn_out(at.of_all_heads().z, at.resid_pre)
        return layer.of_sum("attention", total, divisors)

    @quantity("what the norm of the MLP divides by, as attention_norm_scale")
    def mlp_norm_scale(at: "LayerPass") -> NormScale:
        return at.divisor("mlp_norm")

    @quantity("x·W_gate + b_gate, x as in mlp_pre")
    def mlp_gate(at: "LayerPass") -> Mlp:
        assert at.mlp.gate is not None
        return at.mlp.gate(at.mlp_input)

    @quantity("x·W_in + b_in, x = resid_mid (pre-norm: its norm; parallel: that of resid_pre)")
    def mlp_pre(at: "LayerPass") -> Mlp:
        return at.mlp.up(at.mlp_input)

    @quantity("activation(mlp_pre); gated: activation(mlp_gate) * mlp_pre")
    def mlp_post(at: "LayerPass") -> Mlp:
        mlp = at.mlp
        return mlp.post(at.mlp_pre, None if mlp.gate is None else at.mlp_gate)

    @quantity("mlp_post·W_out + b_out")
    def mlp_out(at: "LayerPass") -> Hidden:
        return at.mlp.down(at.mlp_post)

    @quantity("what the norm of mlp_out divides by")
    def mlp_output_norm_scale(at: "LayerPass") -> NormScale:
        return at.divisor("mlp_output_norm")

    @quantity(
        "resid_mid + mlp_out (post-norm: its norm; output norm: resid_mid + norm of mlp_out; "
        "without an MLP: resid_mid)",
        kept=True,
    )
    def resid_post(at: "LayerPass") -> Hidden:
        layer = at.layer
        if layer.mlp is None:
            return at.resid_mid
        divisors = at.divisors(layer.norm_behind("mlp"))
        if at.wants("mlp_gate", "mlp_pre", "mlp_post", "mlp_out"):
            return layer.added("mlp", at.resid_mid, at.mlp_out, divisors)
        if layer.mlp_output_norm is not None:
            return layer.added("mlp", at.resid_mid, layer.mlp(at.mlp_input), divisors)
        return layer.of_sum("mlp", layer.mlp(at.mlp_input, residual=at.resid_mid), divisors)


Quantity(
    ("batch", "position", "1"),
    "what the last norm divides the last resid_post by",
    name="final_norm_scale",
    per_layer=False,
)
Quantity(
    ("batch", "d_model"), "tanh(W·hidden[0] + b) of the pooler", name="pooled", per_layer=False
)

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
    names = [name for name, each in QUANTITIES.items() if each.per_layer and name not in absent]
    if config is not None and not config.pre_norm:
        for scale, before in _BEHIND.items():
            if scale not in names:
                continue
            names.remove(scale)
            names.insert(names.index(before) + 1, scale)
    return {name: QUANTITIES[name] for name in names}


def absent_because(name: str, config: Config) -> str:
    """Why a model lacks one of its `absent_quantities`, and what to read in its place."""
    kind = config.model_type
    if name.startswith("mlp_") and not config.d_mlp:
        return f"{name}: the layers of this {kind} have no MLP; resid_post is resid_mid."
    if name == "mlp_gate":
        return f"{name}: the MLP of {kind} has no gate; mlp_pre enters the activation."
    if name == "pooled":
        return f"{name}: this {kind} has no pooler."
    if name == "attention_norm_scale" and config.norm_place not in ("output", "none"):
        return f"{name}: the first layer of {kind} has no norm of attention; the others have."
    if name.endswith("_scale"):
        scales = [one for one in QUANTITIES if one.endswith("_scale")]
        there = ", ".join(one for one in scales if one not in config.absent_quantities)
        return f"{name}: {kind} has no such norm; there are {there or 'none'}."
    plain = name.removesuffix("_unrotated")
    return f"{name}: {kind} does not rotate queries and keys; {plain} is the same."


_PROJECTED = ("query", "key", "value")
_MATRICES = frozenset({"scores", "probs"})


class LayerPass(LayerQuantities):
    """One layer of one pass: what is known of it, resid_pre at least, and the table for the rest.

    Values stand as attributes once they are read.

    known        values from before, whole: they are cut to the chosen heads and rows when read
    edits        what changes a quantity, by its name
    keep         quantities that have to be computed, although what follows can do without them
    past         keys and values of the positions before
    heads, rows  those that are computed
    lazy         this is a read of one quantity, and not a pass; it is called before a weight is
                 read, and raises where the weights are not those of the pass
    choices      the attention, to be asked for its sizes and choices alone, not for weights
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
        lazy: Callable[[], None] | None = None,
    ) -> None:
        self._layer = layer
        self.choices = layer.attention
        if lazy is None:
            self.layer, self.attention = layer, layer.attention
        self.index = index
        self.evaluation = evaluation
        self.keep = keep
        self.known = known
        self.edits = edits
        self.past = past
        self.heads = heads
        self.rows = rows
        self.lazy = lazy

    @kept
    def layer(self) -> Layer:
        """The layer, its weights still those of the pass; raises where they are not."""
        if self.lazy is not None:
            self.lazy()
        return self._layer

    @kept
    def attention(self) -> "Attention":
        """The attention of the layer, likewise."""
        return self.layer.attention

    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """The value here: known, or computed; then changed, where there is an edit of it."""
        name = quantity.name
        value = self.known.get(name)
        if value is None:
            assert quantity.compute is not None
            value = quantity.compute(self)
        elif self.heads != EVERYTHING or self.rows != EVERYTHING:
            value = cut(value, quantity, self.heads, self.rows, self.choices.group)
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
            own = {name: getattr(at, f"{name}_input")}
            vectors = self.attention.query_key_value(at.attention_input, own)[name]
            return cut(vectors, QUANTITIES[name], self.heads, EVERYTHING, self.choices.group)
        if self._projected is None:
            # Keys and values of some rows alone are those of before, which nobody projects again.
            names = _PROJECTED if self.rows == EVERYTHING else _PROJECTED[:1]
            own = {each: getattr(self, f"{each}_input") for each in names if self.reads_apart(each)}
            self._projected = self.attention.query_key_value(self.attention_input, own)
        return self._projected[name]

    def reads_apart(self, name: str) -> bool:
        """True where each head of query, key or value reads an input of its own."""
        return self.wants(f"{name}_input")

    @property
    def turns(self) -> bool:
        """True where queries and keys are changed by where they stand."""
        return self.choices.turns

    def turned_query(self) -> HeadVectors:
        """The queries, turned by where they stand, or with their positions added."""
        if self.choices.rotary is None:
            return self.query_unrotated + self._of_positions("query", self.rows)
        return rotate(self.query_unrotated, self._turns(self.rows))

    def turned_key(self) -> KeyVectors:
        """The keys, likewise."""
        if self.choices.rotary is None:
            return self.key_unrotated + self._of_positions("key", EVERYTHING)
        return rotate(self.key_unrotated, self._turns(EVERYTHING))

    def _of_positions(self, name: str, rows: Rows) -> HeadVectors:
        added = self.attention.of_positions(name, self.evaluation.positions[:, rows])
        return cut(added, QUANTITIES[name], self.heads, EVERYTHING, self.choices.group)

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
    def mlp(self) -> "FeedForward":
        """The MLP of a layer that has one."""
        mlp = self.layer.mlp
        assert mlp is not None, "a layer without an MLP has no quantities of one"
        return mlp

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
        attention = self.choices
        count = attention.n_kv_heads if axis == "kv_head" else attention.n_heads
        if self.heads != EVERYTHING:
            count = len(range(attention.n_heads)[self.heads])
        at = self.of_all_rows() if axis == "kv_head" else self
        return at.attention_input.unsqueeze(1).expand(-1, count, -1, -1)

    def read_by_norm(self, name: str) -> Hidden:
        """What a norm of this layer divides."""
        attention = name.startswith("attention")
        stream, out = ("resid_pre", "attn_out") if attention else ("resid_mid", "mlp_out")
        if name.endswith("output_norm"):
            found: Hidden = getattr(self, out)
        elif self.layer.after:
            found = getattr(self, stream) + getattr(self, out)
        else:
            found = self.resid_pre if self.layer.parallel else getattr(self, stream)
        return found

    def divisor(self, norm: str) -> NormScale:
        """What a norm of this layer divides by."""
        return divisor(getattr(self.layer, norm), self.read_by_norm(norm))

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
        window, evaluation = self.choices.window, self.evaluation
        if window is not None:
            evaluation = evaluation.in_window(window)
        if self.rows == EVERYTHING:
            return evaluation.allowed
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
            self.choices.scale,
            self._allowed,
            want=want,
            soft_cap=self.choices.soft_cap,
        )
        found = compute(call, evaluation.impl)
        if want:
            self.statistics = found.statistics
            for name, matrix in (("scores", found.scores), ("probs", found.probs)):
                if matrix is not None:
                    self.__dict__[name] = matrix.to(self.query.dtype)
        # The reference computes in float64 whatever it is given.
        return found.z.to(self.query.dtype)

    def of_all_heads(self) -> "LayerPass":
        """This place with all heads, for quantities that sum over them."""
        return self if self.heads == EVERYTHING else self._again(EVERYTHING, self.rows)

    def of_all_rows(self) -> "LayerPass":
        """This place with all rows, for keys and values."""
        return self if self.rows == EVERYTHING else self._again(self.heads, EVERYTHING)

    def of_rows(self, rows: Rows) -> "LayerPass":
        """This place for only some rows; what is already computed is cut to them."""
        return self._again(self.heads, rows, {**self.known, **self.computed()})

    def _again(
        self, heads: slice, rows: Rows, known: Mapping[str, Tensor] | None = None
    ) -> "LayerPass":
        return LayerPass(
            self._layer,
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


class LayerGradients(LayerQuantities):
    """The gradients of one layer: what the functions below read beside the quantities."""

    values: LayerPass

    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """The gradient of the quantity here."""
        raise NotImplementedError

    def of_all_heads(self) -> "LayerGradients":
        """This place with all heads."""
        raise NotImplementedError

    def direct(self, name: str) -> Tensor | None:
        """The part of a gradient that is not by way of what is computed from the quantity."""
        raise NotImplementedError

    def below(self) -> Hidden:
        """The gradient of what entered the layer."""
        raise NotImplementedError


@LayerQuantities.probs.gradient_of("z")
def _probs_gradient(at: LayerGradients) -> Matrix:
    """dz·valueᵀ."""
    return weighted_values(at.z, at.values.value.transpose(-2, -1))


@LayerQuantities.scores.gradient_of("z")
def _scores_gradient(at: LayerGradients) -> Matrix:
    """probs * (dprobs − sum over keys of probs * dprobs): back through softmax and soft cap."""
    probs, cap = at.values.probs, at.values.choices.soft_cap
    weighted = probs * at.probs
    back = weighted.addcmul_(probs, weighted.sum(-1, keepdim=True), value=-1)
    return back if cap is None else back * (1 - torch.tanh(at.values.scores / cap) ** 2)


@LayerQuantities.head_out.gradient_of("attn_out")
def _head_out_gradient(at: LayerGradients) -> PerHeadHidden:
    """The gradient of attn_out, which is a sum over heads."""
    heads = range(at.values.choices.n_heads)[at.values.heads]
    return at.attn_out.unsqueeze(1).expand(-1, len(heads), -1, -1)


@LayerQuantities.resid_pre.gradient_of("resid_pre")
def _resid_pre_gradient(at: LayerGradients) -> Hidden:
    """The gradient of what left the layer below, or of the embeddings."""
    return at.below()


def _norm_gradient(at: LayerGradients, name: str) -> NormScale:
    """−sum of (gradient of the norm's output) · weight · centred(x) / scale² over a row."""
    values, layer = at.values, at.values.layer
    output = "resid_post" if name.startswith("mlp") else "resid_mid"
    if name == layer.norm_behind(name.partition("_")[0]):
        back: Hidden = getattr(at, output)
    elif name == "attention_norm":
        back = _attention_input_gradient(at.of_all_heads())
    else:
        mlp = values.mlp
        back = at.mlp_pre @ mlp.W_in.mT
        if (gate := mlp.W_gate) is not None:
            back = back + at.mlp_gate @ gate.mT
    norm: Norm = getattr(layer, name)
    scale: NormScale = getattr(values, f"{name}_scale")
    weighed = back * norm.scale * centred(norm, values.read_by_norm(name))
    return -weighed.sum(-1, keepdim=True) / scale.square()


# What W_Q, W_K and W_V, or W_in and W_gate, read is normed; in BERT the sum with the stream is.
LayerQuantities.attention_norm_scale.gradient_of("value", "resid_mid")(
    partial(_norm_gradient, name="attention_norm")
)
LayerQuantities.mlp_norm_scale.gradient_of("mlp_pre", "resid_post")(
    partial(_norm_gradient, name="mlp_norm")
)
LayerQuantities.attention_output_norm_scale.gradient_of("resid_mid")(
    partial(_norm_gradient, name="attention_output_norm")
)
LayerQuantities.mlp_output_norm_scale.gradient_of("resid_post")(
    partial(_norm_gradient, name="mlp_output_norm")
)


def _input_gradient(at: LayerGradients, name: str) -> PerHeadHidden:
    """The gradient of what each head's projection reads, such as dq·W_Qᵀ of that head."""
    attention, heads = at.values.attention, at.values.heads
    back, rows = _projected_gradient(at.of_all_heads(), name), attention.rows_of(name)
    if heads != EVERYTHING:
        chosen = read_by(heads, attention.n_heads, 1 if name == "query" else attention.group)
        back, rows = back[:, chosen], rows[chosen]
    return torch.einsum("bhpd,hdm->bhpm", back, rows)


def _attention_input_gradient(at: LayerGradients) -> Hidden:
    """The gradient of what W_Q, W_K and W_V read, where all heads read the same."""
    parts = [
        _projected_gradient(at, name).transpose(1, 2).flatten(2)
        @ at.values.attention.rows_of(name).flatten(0, 1)
        for name in ("query", "key", "value")
    ]
    # A number may be made of what single heads read, too.
    read = [at.direct(f"{name}_input") for name in ("query", "key", "value")]
    parts += [each.sum(1) for each in read if each is not None]
    return sum(parts[1:], parts[0])


def _projected_gradient(at: LayerGradients, name: str) -> HeadVectors:
    """The gradient of what W_Q, W_K or W_V gives, in front of a norm of queries and keys."""
    attention = at.values.attention
    turned = attention.rotary is not None and name != "value"
    back: HeadVectors = getattr(at, f"{name}_unrotated" if turned else name)
    return attention.before_norm(name, at.values.attention_input, back)


LayerQuantities.query_input.gradient_of("query")(partial(_input_gradient, name="query"))
LayerQuantities.key_input.gradient_of("key")(partial(_input_gradient, name="key"))
LayerQuantities.value_input.gradient_of("value")(partial(_input_gradient, name="value"))
