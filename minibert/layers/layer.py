"""A layer is one table: every quantity in the order of the data, each declared once.

A declaration is a function of the quantities before it. `LayerPass` (layer_pass.py) evaluates the
table for one layer of one pass: a plain forward asks for resid_post and keeps nothing; a trace
keeps what was computed; a lazy read asks for one quantity of some heads and rows later; an edit
replaces a value on the way; a rerun begins with what is known. Gradients that autograd would give
through an N x N tensor are declared in layer_gradients.py. Padding, packing and a past are
properties of the evaluation (`Evaluation`), not other code.
"""

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.eager import attention_probs, attention_scores, soft_capped, weighted_values
from minibert.layers.config import Config
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
    from minibert.layers.attention import Attention
    from minibert.layers.parts import Layer
else:
    # A trace that is loaded without its model has something else in the place of a layer.
    Attention = Layer = Any

__all__ = ["LayerQuantities", "absent_because", "layer_quantities"]

Quantity(STREAM_AXES, "what enters layer 0", name="embed", per_layer=False)


class At(Protocol):
    """What the table reads of one layer of one pass, which is a `LayerPass`."""

    layer: Layer
    attention: Attention
    index: int
    heads: slice
    resid_pre: Hidden
    query_unrotated: HeadVectors
    key_unrotated: KeyVectors
    query: HeadVectors
    scores: Matrix
    probs: Matrix
    z: HeadVectors
    head_out: PerHeadHidden
    attn_out: Hidden
    resid_mid: Hidden
    mlp_gate: Mlp
    mlp_pre: Mlp
    mlp_post: Mlp
    mlp_out: Hidden
    all_keys: KeyVectors
    all_values: KeyVectors
    mlp_input: Hidden

    def project(self, name: str) -> HeadVectors: ...

    def turned_query(self) -> HeadVectors: ...

    def turned_key(self) -> KeyVectors: ...

    def attend(self) -> HeadVectors: ...

    def allowed_rows(self) -> AttentionMask | None: ...

    def of_all_heads(self) -> "At": ...

    def wants(self, *names: str) -> bool: ...

    def given(self, *names: str) -> bool: ...


class LayerQuantities:
    """The table. `at` is one layer of one pass."""

    @quantity(STREAM_AXES, "the stream before attention")
    def resid_pre(at: At) -> Hidden:
        raise NotImplementedError("what enters a layer is known before the layer is")

    @quantity(HEAD_AXES, "x·W_Q + b_Q before its rotation (a query norm included)")
    def query_unrotated(at: At) -> HeadVectors:
        return at.project("query")

    @quantity(KEY_AXES, "x·W_K + b_K before its rotation (a key norm included)", of_keys=True)
    def key_unrotated(at: At) -> KeyVectors:
        return at.project("key")

    @quantity(
        HEAD_AXES,
        "x·W_Q + b_Q, x = resid_pre (pre-norm: its norm); rotary: query_unrotated turned",
        kept=True,
    )
    def query(at: At) -> HeadVectors:
        return at.project("query") if at.attention.rotary is None else at.turned_query()

    @quantity(KEY_AXES, "x·W_K + b_K; rotary: key_unrotated turned", kept=True, of_keys=True)
    def key(at: At) -> KeyVectors:
        return at.project("key") if at.attention.rotary is None else at.turned_key()

    @quantity(KEY_AXES, "x·W_V + b_V", kept=True, of_keys=True)
    def value(at: At) -> KeyVectors:
        return at.project("value")

    @quantity(MATRIX_AXES, "query·key / sqrt(d_head), before soft cap and mask")
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

    @quantity(("batch", "head", "position", "d_model"), "z·W_O of that head")
    def head_out(at: At) -> PerHeadHidden:
        return at.attention.head_out(at.z, at.heads)

    @quantity(STREAM_AXES, "sum of head_out over heads + b_O")
    def attn_out(at: At) -> Hidden:
        if at.wants("head_out"):
            return at.attention.sum_of_heads(at.of_all_heads().head_out)
        return at.attention.attn_out(at.of_all_heads().z)

    @quantity(
        STREAM_AXES,
        "resid_pre + attn_out (post-norm: its norm; output norm: resid_pre + norm of attn_out)",
        kept=True,
    )
    def resid_mid(at: At) -> Hidden:
        if at.wants("head_out", "attn_out") or at.layer.attention_output_norm is not None:
            return at.layer.after_attention(at.resid_pre, at.attn_out)
        # The same sum in one operation.
        return at.layer.of_sum(at.attention.attn_out(at.of_all_heads().z, at.resid_pre))

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

    @quantity(
        STREAM_AXES,
        "resid_mid + mlp_out (post-norm: its norm; output norm: resid_mid + norm of mlp_out)",
        kept=True,
    )
    def resid_post(at: At) -> Hidden:
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
