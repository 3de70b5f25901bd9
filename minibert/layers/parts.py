"""What holds the weights of a layer: attention, norms and MLP; and embeddings.

The dot product, the softmax and the mean of the values are in `minibert.kernels`; layer.py makes
the call.
"""
# ruff: noqa: N815 - weights have the names of the literature

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minibert.errors import EditError
from minibert.layers.config import Config
from minibert.layers.evaluation import EVERYTHING, read_by
from minibert.layers.linear import (
    Int8Linear,
    Linear,
    activate,
    counting,
    linear_is_plain,
    matrix_of,
    of_same_input,
    offset_of,
    torch_linear,
)
from minibert.quantities import Float, HeadVectors, Hidden, Int, Mlp, PerHeadHidden

Divisors = tuple[Tensor, Tensor]
"""What a norm is to divide by, and what it divides by on its own: (..., 1) each."""


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last axis.

    LayerNorm   (x − mean) / sqrt(variance + eps) · weight + bias (Ba, Kiros and Hinton 2016,
                equation 4)
    RMSNorm     x / sqrt(mean(x²) + eps) · weight (Zhang and Sennrich 2019, equation 4): it does not
                take the mean away, so `centres` is False; with `plus_one` · (1 + weight)
    """

    bias: nn.Parameter | None

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.centres = config.norm == "layer"
        self.plus_one = config.norm_plus_one and not self.centres
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        has_bias = self.centres and config.norm_bias
        values = nn.Parameter(torch.empty(width), requires_grad=False) if has_bias else None
        self.register_parameter("bias", values)
        self.eps = config.norm_eps

    @property
    def scale(self) -> Float[Tensor, " width"]:
        """What the divided x is multiplied by."""
        return 1 + self.weight if self.plus_one else self.weight

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """x with a variance, or a mean square, of 1 over its last axis, then scaled and shifted."""
        if self.centres:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return F.rms_norm(x, self.weight.shape, self.scale, self.eps)


def centred(norm: Norm, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    """x as the norm divides it: LayerNorm takes the mean of each row away, RMSNorm nothing."""
    return x - x.mean(-1, keepdim=True) if norm.centres else x


def deviation(norm: Norm, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows 1"]:
    """What the norm divides this x by: the root of the mean square of `centred` + eps."""
    return (centred(norm, x).square().mean(-1, keepdim=True) + norm.eps).sqrt()


def divisor(norm: Norm, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows 1"]:
    """`deviation` in the dtype of x, computed in float32 or wider as the norm itself does."""
    return deviation(norm, _wide(x)).to(x.dtype)


def normed(
    norm: Norm | None, x: Float[Tensor, "*rows width"], divisors: Divisors | None = None
) -> Float[Tensor, "*rows width"]:
    """norm(x), or x without a norm; with `divisors` what it is divided by is the first of them.

    norm(x) + weight · centred(x) · (1 / first − 1 / second): where both are the same the second
    summand is 0, so the result is norm(x) to the bit.
    """
    if norm is None:
        return x
    plain = norm(x)
    if divisors is None:
        return plain
    to, own = map(_wide, divisors)
    moved = norm.scale * centred(norm, _wide(x)) * (1 / to - 1 / own)
    return (plain + moved).to(plain.dtype)


def _wide(x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    return x.float() if x.dtype.itemsize < 4 else x


Vectors = Float[torch.Tensor, "batch _ position d_head"]
Inputs = Float[torch.Tensor, "batch _ position d_model"]
PerHead = Float[torch.Tensor, "some_head d_model d_head"]
PerHeadBias = Float[torch.Tensor, "some_head d_head"]
Projected = Float[torch.Tensor, "batch position d_heads"]
Table = Callable[[], nn.Module]
"""Gives the table of positions, which is a part of the body and not of attention."""


def weight(read: Callable[[Any], object], says: str) -> Any:
    """A property of a module: what a linear layer, or what stands in its place, computes with."""
    return property(lambda self: counting(read(self)), doc=says)


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2.2).

    Several heads may share a key-value head (Ainslie et al. 2023).
    """

    large = ("query", "key", "value", "output")
    """Layers that `weights="int8"` rounds; likewise in FeedForward and VocabularyHead."""
    same_input = ("query", "key", "value")
    """Layers that read the same x, so that one product may give all three."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = config.n_heads, config.n_kv_heads
        self.d_model, self.d_head = config.d_model, config.d_head
        self.group = config.n_heads // config.n_kv_heads
        width, inner, kv_inner = config.d_model, *self._widths()
        self.query = Linear(width, inner, bias=config.query_bias)
        self.key = Linear(width, kv_inner, bias=config.query_bias)
        self.value = Linear(width, kv_inner, bias=config.query_bias)
        self.output = Linear(
            inner, width, bias=config.output_bias, multiplier=config.residual_multiplier
        )
        self.norms_heads = config.query_key_norm == "head"
        sizes = (config.d_head,) * 2 if self.norms_heads else self._widths()
        norms: list[Norm | None] = [None, None]
        if config.query_key_norm != "none":
            norms = [Norm(config, size) for size in sizes]
        self.query_norm, self.key_norm = norms
        self.scale = config.attention_scale(layer)
        self.soft_cap = config.attention_soft_cap
        self.window = config.window(layer)
        self.rotary = config.rotary_of(layer)
        self.turns = config.turns
        self.position_table: Table | None = None

    def _widths(self) -> tuple[int, int]:
        return self.n_heads * self.d_head, self.n_kv_heads * self.d_head

    def query_key_value(
        self, x: Hidden, inputs: Mapping[str, Inputs] = MappingProxyType({})
    ) -> dict[str, Vectors]:
        """query, key and value of all heads: x·W + b, the first two normed where the model does.

        Of the names in `inputs` each head reads its own in place of x.
        """
        parts = of_same_input((self.query, self.key, self.value), x)
        named = dict(zip(self.same_input, parts, strict=True))
        for name, of_heads in inputs.items():
            named[name] = self._from_heads(name, named[name], x, of_heads)
        if self.query_norm is None:
            return {name: self._split(part) for name, part in named.items()}
        return {name: self._normed(name, part) for name, part in named.items()}

    def project(self, name: str, x: Hidden, heads: slice = EVERYTHING) -> Vectors:
        """query, or what these heads read of key or value: x·W + b, normed where the model does."""
        linear = getattr(self, name)
        group = 1 if name == "query" else self.group
        read = EVERYTHING if heads == EVERYTHING else read_by(heads, self.n_heads, group)
        of_width = not self.norms_heads and self._norm(name) is not None
        if heads == EVERYTHING or of_width or not linear_is_plain(linear):
            return self._normed(name, linear(x))[:, read]
        weight, bias = linear.readable, linear.readable_bias
        # Of a head the rows of its own; several heads may share them.
        rows = weight.unflatten(0, (-1, self.d_head))[read].flatten(0, 1)
        offset = None if bias is None else bias.unflatten(0, (-1, self.d_head))[read].flatten()
        return self._normed(name, torch_linear(x, rows, offset))

    def of_positions(self, name: str, rows: Int[Tensor, "#batch position"]) -> Vectors:
        """What the table of positions adds to query or key: position·W (Press et al. 2021)."""
        assert self.position_table is not None, "a body with shortformer positions gives it"
        return torch.einsum("bpm,hdm->bhpd", self.position_table()(rows), self.rows_of(name))

    def rows_of(self, name: str) -> Float[torch.Tensor, "some_head d_head d_model"]:
        """What each head of query, key or value multiplies its input by."""
        return self._read_by(name).mT

    W_Q: PerHead = weight(lambda self: self._read_by("query"), "query = x·W_Q + b_Q of each head")
    W_K: PerHead = weight(lambda self: self._read_by("key"), "key = x·W_K + b_K of each kv head")
    W_V: PerHead = weight(lambda self: self._read_by("value"), "value = x·W_V + b_V, likewise")
    W_O: Float[torch.Tensor, "head d_head d_model"] = weight(
        lambda self: matrix_of(self.output, self.n_heads * self.d_head).unflatten(
            0, (-1, self.d_head)
        ),
        "head_out = z·W_O of each head, what the family multiplies it by included",
    )
    b_Q: PerHeadBias | None = weight(lambda self: self._bias_of("query"), "None without biases")
    b_K: PerHeadBias | None = weight(lambda self: self._bias_of("key"), "None without biases")
    b_V: PerHeadBias | None = weight(lambda self: self._bias_of("value"), "None without biases")
    b_O: Float[torch.Tensor, " d_model"] | None = weight(
        lambda self: offset_of(self.output, self.n_heads * self.d_head),
        "attn_out is the sum of head_out + b_O; None without it",
    )

    def _read_by(self, name: str) -> PerHead:
        matrix = matrix_of(getattr(self, name), self.d_model)
        return matrix.unflatten(1, (-1, self.d_head)).movedim(1, 0)

    def _bias_of(self, name: str) -> PerHeadBias | None:
        offset = offset_of(getattr(self, name), self.d_model)
        return None if offset is None else offset.unflatten(0, (-1, self.d_head))

    def head_out(self, z: HeadVectors, heads: slice = EVERYTHING) -> PerHeadHidden:
        """What each head adds to the stream: z·W_O of that head, without the bias."""
        per_head = self.output.readable.unflatten(1, (self.n_heads, self.d_head))[
            :, heads
        ]  # d_model head d_head
        out = torch.einsum("bhpd,mhd->bhpm", z, per_head)
        return out if self.output.multiplier == 1.0 else out * self.output.multiplier

    def attn_out(self, z: HeadVectors, residual: Hidden | None = None) -> Hidden:
        """What attention adds to the stream, z·W_O + b_O over all heads; plus the residual."""
        return self.output(self._merge(z), residual=residual)

    def sum_of_heads(self, head_out: PerHeadHidden) -> Hidden:
        """attn_out from what each head adds: their sum + b_O. Raises EditError for int8 weights."""
        if isinstance(self.output, Int8Linear):
            raise EditError(
                'head_out is not edited or differentiated with weights="int8": W_O reads a rounded '
                "z, so heads do not add up to attn_out. Take z, or load the model without weights=."
            )
        bias = self.b_O
        return head_out.sum(1) if bias is None else head_out.sum(1) + bias

    def _from_heads(self, name: str, part: Projected, x: Hidden, inputs: Inputs) -> Projected:
        """What a projection gives where it was `part` = x·W + b, and each head reads its own."""
        linear = getattr(self, name)
        if not linear_is_plain(linear):
            # Whatever stands in its place is asked once a head.
            of_heads = enumerate(inputs.unbind(1))
            each = [linear(one).unflatten(-1, (-1, self.d_head))[..., h, :] for h, one in of_heads]
            return torch.cat(each, -1)
        # Of the difference, so that inputs which are x give the same bits as x.
        moved = torch.einsum("bhpm,hdm->bphd", inputs - x.unsqueeze(1), self.rows_of(name))
        return part + moved.flatten(2)

    def before_norm(self, name: str, x: Hidden, back: Vectors) -> Vectors:
        """The gradient of what W_Q, W_K or W_V gives for x, from that of the normed vectors."""
        norm = self._norm(name)
        if norm is None:
            return back
        with torch.inference_mode(False), torch.enable_grad():
            flat = getattr(self, name)(x).detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(self._normed(name, flat), flat, back)
        return self._split(found)

    def _norm(self, name: str) -> Norm | None:
        return None if name == "value" else self.query_norm if name == "query" else self.key_norm

    def _normed(self, name: str, x: Hidden) -> Vectors:
        """The vectors of each head, normed over all heads together, head by head, or not."""
        norm = self._norm(name)
        if norm is None:
            return self._split(x)
        return norm(self._split(x)) if self.norms_heads else self._split(norm(x))

    def _split(self, x: Hidden) -> Vectors:
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def _merge(self, z: HeadVectors) -> Hidden:
        return z.transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """mlp_out = activation(x·W_in + b_in)·W_out + b_out (Vaswani et al. 2017, section 3.3).

    Gated it is (activation(x·W_gate + b_gate) * (x·W_in + b_in))·W_out + b_out (Shazeer 2020,
    section 2).
    """

    large = ("gate", "up", "down")

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner, bias = config.d_model, config.d_mlp, config.mlp_bias
        self.d_model, self.d_mlp = width, inner
        self.gate = Linear(width, inner, bias=bias) if config.gated else None
        self.up = Linear(width, inner, bias=bias)
        self.down = Linear(inner, width, bias=bias, multiplier=config.residual_multiplier)
        self.activation = config.activation

    def forward(self, x: Hidden, residual: Hidden | None = None) -> Hidden:
        """mlp_out, plus the residual when one is given."""
        if self.gate is None:
            return self.down(self.up(x, activation=self.activation), residual=residual)
        gate, up = self.gate(x, activation=self.activation), self.up(x)
        # In place where nothing else can hold it, a hook say: a fresh buffer costs page faults.
        own = linear_is_plain(self.gate) and not (gate.requires_grad or up.requires_grad)
        return self.down(gate.mul_(up) if own else gate * up, residual=residual)

    W_in: Float[Tensor, "d_model d_mlp"] = weight(
        lambda self: matrix_of(self.up, self.d_model), "mlp_pre = x·W_in + b_in"
    )
    W_gate: Float[Tensor, "d_model d_mlp"] | None = weight(
        lambda self: None if self.gate is None else matrix_of(self.gate, self.d_model),
        "mlp_gate = x·W_gate + b_gate; None where the MLP has no gate",
    )
    W_out: Float[Tensor, "d_mlp d_model"] = weight(
        lambda self: matrix_of(self.down, self.d_mlp),
        "mlp_out = mlp_post·W_out + b_out, what the family multiplies it by included",
    )
    b_in: Float[Tensor, " d_mlp"] | None = weight(
        lambda self: offset_of(self.up, self.d_model), "None without biases"
    )
    b_gate: Float[Tensor, " d_mlp"] | None = weight(
        lambda self: None if self.gate is None else offset_of(self.gate, self.d_model),
        "None without biases or without a gate",
    )
    b_out: Float[Tensor, " d_model"] | None = weight(
        lambda self: offset_of(self.down, self.d_mlp), "None without biases"
    )

    def post(self, pre: Mlp, gate: Mlp | None = None) -> Mlp:
        """mlp_post: what W_out reads."""
        if gate is None:
            return activate(pre, self.activation)
        return activate(gate, self.activation) * pre


class Layer(nn.Module):
    """The weights of one layer: attention, MLP and their norms.

    Before (GPT-2):    mid = x + attn_out(norm(x)),         post = mid + mlp_out(norm(mid))
    After (BERT):      mid = norm(x + attn_out(x)),         post = norm(mid + mlp_out(mid))
    Output (OLMo 2):   mid = x + norm(attn_out(x)),         post = mid + norm(mlp_out(mid))
    Both (Gemma 2):    mid = x + norm(attn_out(norm(x))),   post = mid + norm(mlp_out(norm(mid)))
    Parallel (NeoX):   mid = x + attn_out(norm(x)),         post = mid + mlp_out(norm(x))
    Attention alone:   mid = x + attn_out(norm(x)),         post = mid

    `divisors` are those of the norm that a method applies, where they are not its own.
    """

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        place = config.norm_place
        self.after, self.parallel = place == "after", config.parallel
        absent = config.absent_in(layer)

        def norm(of: str) -> Norm | None:
            return None if f"{of}_scale" in absent else Norm(config, config.d_model)

        self.attention = Attention(config, layer)
        self.attention_norm = norm("attention_norm")
        self.attention_output_norm = norm("attention_output_norm")
        self.mlp = FeedForward(config) if config.d_mlp else None
        self.mlp_norm = norm("mlp_norm")
        self.mlp_output_norm = norm("mlp_output_norm")

    def forward(self, at: Any) -> Hidden:
        """resid_post of a `LayerPass` of this layer, so that hooks on a layer run."""
        return at.resid_post

    def attention_input(self, resid_pre: Hidden, divisors: Divisors | None = None) -> Hidden:
        """What W_Q, W_K and W_V read."""
        return normed(None if self.after else self.attention_norm, resid_pre, divisors)

    def mlp_input(self, stream: Hidden, divisors: Divisors | None = None) -> Hidden:
        """What W_in and W_gate read."""
        return normed(None if self.after else self.mlp_norm, stream, divisors)

    def norm_behind(self, block: str) -> str:
        """The name of the norm after a block, attention or mlp, if there is one."""
        return f"{block}_norm" if self.after else f"{block}_output_norm"

    def added(
        self, block: str, stream: Hidden, out: Hidden, divisors: Divisors | None = None
    ) -> Hidden:
        """resid_mid or resid_post: the stream with what attention or the MLP adds to it."""
        if self.after:
            return self.of_sum(block, stream + out, divisors)
        return stream + normed(getattr(self, self.norm_behind(block)), out, divisors)

    def of_sum(self, block: str, total: Hidden, divisors: Divisors | None = None) -> Hidden:
        """The stream after a block, from the sum, where no norm is of the block's output alone."""
        return normed(getattr(self, f"{block}_norm") if self.after else None, total, divisors)
