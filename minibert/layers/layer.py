"""A layer is one table: every quantity in the order of the data, each declared once.

A declaration is a function of the quantities before it. `LayerPass` (layer_pass.py) evaluates the
table for one layer of one pass: a plain forward asks for resid_post and keeps nothing; a trace
keeps what was computed; a lazy read asks for one quantity of some heads and rows later; an edit
replaces a value on the way; a rerun begins with what is known. Gradients that autograd would give
through an N x N tensor are declared in layer_gradients.py. Padding, packing and a past are
properties of the evaluation (`Evaluation`), not other code.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.eager import attention_probs, attention_scores, soft_capped, weighted_values
from minibert.layers.config import Config
from minibert.layers.norms import Divisors
from minibert.quantities import (
    HEAD_AXES,
    KEY_AXES,
    MATRIX_AXES,
    MLP_AXES,
    QUANTITIES,
    SCALE_AXES,
    STREAM_AXES,
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
    from minibert.layers.parts import Attention, Layer
else:
    # A check at run time would read, and so compute, every quantity.
    At = Any


_INPUT_AXES = ("batch", "head", "position", "d_model")
_KEY_INPUT_AXES = ("batch", "kv_head", "position", "d_model")
_NORMS = (
    "attention_norm",
    "attention_output_norm",
    "mlp_norm",
    "mlp_output_norm",
    "final_norm",
)
# Where norms follow the sums with the stream (BERT) these stand behind what is added to it.
_BEHIND = {"attention_norm_scale": "attn_out", "mlp_norm_scale": "mlp_out"}

Quantity(STREAM_AXES, "what enters layer 0", name="embed", per_layer=False)


class LayerQuantities:
    """The table. `at` is one layer of one pass."""

    @quantity(STREAM_AXES, "the stream before attention")
    def resid_pre(at: At) -> Hidden:
        raise NotImplementedError("what enters a layer is known before the layer is")

    @quantity(SCALE_AXES, "what the norm of attention divides by: root of mean square + eps")
    def attention_norm_scale(at: At) -> NormScale:
        behind = at.layer.after
        return at.divisor("attention_norm", at.resid_pre + at.attn_out if behind else at.resid_pre)

    @quantity(_INPUT_AXES, "the x of a head's query: resid_pre (pre-norm: its norm)")
    def query_input(at: At) -> PerHeadHidden:
        return at.for_each_head("head")

    @quantity(HEAD_AXES, "x·W_Q + b_Q before its rotation (a query norm included)")
    def query_unrotated(at: At) -> HeadVectors:
        return at.project("query")

    @quantity(
        HEAD_AXES,
        "x·W_Q + b_Q, x = resid_pre (pre-norm: its norm); rotary: query_unrotated turned",
        kept=True,
    )
    def query(at: At) -> HeadVectors:
        return at.project("query") if at.attention.rotary is None else at.turned_query()

    @quantity(_KEY_INPUT_AXES, "the x of a head's key, as of query_input", of_keys=True)
    def key_input(at: At) -> PerKeyHeadHidden:
        return at.for_each_head("kv_head")

    @quantity(KEY_AXES, "x·W_K + b_K before its rotation (a key norm included)", of_keys=True)
    def key_unrotated(at: At) -> KeyVectors:
        return at.project("key")

    @quantity(KEY_AXES, "x·W_K + b_K; rotary: key_unrotated turned", kept=True, of_keys=True)
    def key(at: At) -> KeyVectors:
        return at.project("key") if at.attention.rotary is None else at.turned_key()

    @quantity(_KEY_INPUT_AXES, "the x of a head's value, as of query_input", of_keys=True)
    def value_input(at: At) -> PerKeyHeadHidden:
        return at.for_each_head("kv_head")

    @quantity(KEY_AXES, "x·W_V + b_V", kept=True, of_keys=True)
    def value(at: At) -> KeyVectors:
        return at.project("value")

    @quantity(
        MATRIX_AXES,
        "query·key times the scale, 1/sqrt(d_head) in most models; before soft cap and mask",
    )
    def scores(at: At) -> Matrix:
        return attention_scores(at.query, at.all_keys, scale=at.attention.scale)

    @quantity(MATRIX_AXES, "softmax of the masked scores over keys; 0 where masked")
    def probs(at: At) -> Matrix:
        capped = soft_capped(at.scores, at.attention.soft_cap)
        probs = attention_probs(capped, at.allowed_rows())
        if at.given("scores") and bool(probs.isnan().any()):
            raise EditError(
                f"scores of layer {at.index}: an edit made NaN of them, or left a query without "
                "a key (all are −inf)."
            )
        return probs

    @quantity(HEAD_AXES, "probs·value", kept=True)
    def z(at: At) -> HeadVectors:
        if at.given("scores", "probs"):
            return weighted_values(at.probs, at.all_values)
        return at.attend()

    @quantity(_INPUT_AXES, "z·W_O of that head")
    def head_out(at: At) -> PerHeadHidden:
        return at.attention.head_out(at.z, at.heads)

    @quantity(STREAM_AXES, "sum of head_out over heads + b_O")
    def attn_out(at: At) -> Hidden:
        if at.wants("head_out"):
            return at.attention.sum_of_heads(at.of_all_heads().head_out)
        return at.attention.attn_out(at.of_all_heads().z)

    @quantity(SCALE_AXES, "what the norm of attn_out divides by")
    def attention_output_norm_scale(at: At) -> NormScale:
        return at.divisor("attention_output_norm", at.attn_out)

    @quantity(
        STREAM_AXES,
        "resid_pre + attn_out (post-norm: its norm; output norm: resid_pre + norm of attn_out)",
        kept=True,
    )
    def resid_mid(at: At) -> Hidden:
        divisors = at.divisors(at.layer.norms_behind[0])
        if at.wants("head_out", "attn_out") or at.layer.attention_output_norm is not None:
            return at.layer.after_attention(at.resid_pre, at.attn_out, divisors)
        # The same sum in one operation.
        return at.layer.of_sum(at.attention.attn_out(at.of_all_heads().z, at.resid_pre), divisors)

    @quantity(SCALE_AXES, "what the norm of the MLP divides by, as attention_norm_scale")
    def mlp_norm_scale(at: At) -> NormScale:
        if at.layer.after:
            return at.divisor("mlp_norm", at.resid_mid + at.mlp_out)
        return at.divisor("mlp_norm", at.resid_pre if at.layer.parallel else at.resid_mid)

    @quantity(MLP_AXES, "x·W_gate + b_gate, x as in mlp_pre")
    def mlp_gate(at: At) -> Mlp:
        return at.layer.mlp.gate_of(at.mlp_input)

    @quantity(
        MLP_AXES, "x·W_in + b_in, x = resid_mid (pre-norm: its norm; parallel: that of resid_pre)"
    )
    def mlp_pre(at: At) -> Mlp:
        return at.layer.mlp.pre(at.mlp_input)

    @quantity(MLP_AXES, "activation(mlp_pre); gated: activation(mlp_gate) * mlp_pre")
    def mlp_post(at: At) -> Mlp:
        mlp = at.layer.mlp
        return mlp.post(at.mlp_pre, None if mlp.gate is None else at.mlp_gate)

    @quantity(STREAM_AXES, "mlp_post·W_out + b_out")
    def mlp_out(at: At) -> Hidden:
        return at.layer.mlp.down(at.mlp_post)

    @quantity(SCALE_AXES, "what the norm of mlp_out divides by")
    def mlp_output_norm_scale(at: At) -> NormScale:
        return at.divisor("mlp_output_norm", at.mlp_out)

    @quantity(
        STREAM_AXES,
        "resid_mid + mlp_out (post-norm: its norm; output norm: resid_mid + norm of mlp_out)",
        kept=True,
    )
    def resid_post(at: At) -> Hidden:
        divisors = at.divisors(at.layer.norms_behind[1])
        if at.wants("mlp_gate", "mlp_pre", "mlp_post", "mlp_out"):
            return at.layer.after_mlp(at.resid_mid, at.mlp_out, divisors)
        return at.layer.mlp_added(at.resid_mid, at.mlp_input, divisors)


if TYPE_CHECKING:

    class At(LayerQuantities):
        """What the table reads of one layer of one pass beside the quantities: a `LayerPass`."""

        layer: Layer
        attention: Attention
        index: int
        heads: slice
        all_keys: KeyVectors
        all_values: KeyVectors
        attention_input: Hidden
        mlp_input: Hidden

        def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor: ...

        def divisor(self, norm: str, x: Hidden) -> NormScale: ...

        def divisors(self, norm: str) -> Divisors | None: ...

        def for_each_head(self, axis: str) -> PerHeadHidden: ...

        def project(self, name: str) -> HeadVectors: ...

        def turned_query(self) -> HeadVectors: ...

        def turned_key(self) -> KeyVectors: ...

        def attend(self) -> HeadVectors: ...

        def allowed_rows(self) -> AttentionMask | None: ...

        def of_all_heads(self) -> "At": ...

        def wants(self, *names: str) -> bool: ...

        def given(self, *names: str) -> bool: ...


Quantity(
    SCALE_AXES,
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
            names.remove(scale)
            names.insert(names.index(before) + 1, scale)
    return {name: QUANTITIES[name] for name in names}


def absent_because(name: str, config: Config) -> str:
    """Why a model lacks one of its `absent_quantities`, and what to read in its place."""
    kind = config.model_type
    if name == "mlp_gate":
        return f"{name}: the MLP of {kind} has no gate; mlp_pre enters the activation."
    if name == "pooled":
        return f"{name}: this {kind} has no pooler."
    if name == "attention_norm_scale" and config.norm_place != "output":
        return f"{name}: the first layer of {kind} has no norm of attention; the others have."
    if name.endswith("_scale"):
        scales = [f"{norm}_scale" for norm in _NORMS]
        there = ", ".join(one for one in scales if one not in config.absent_quantities)
        return f"{name}: {kind} has no such norm; there are {there}."
    plain = name.removesuffix("_unrotated")
    return f"{name}: {kind} does not rotate queries and keys; {plain} is the same."
