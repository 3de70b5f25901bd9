"""What holds the weights of a layer: attention, norms and MLP; and embeddings."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minibert.layers.attention import Attention
from minibert.layers.config import Config
from minibert.layers.linear import Linear, linear_is_plain
from minibert.layers.linear_backends import activate
from minibert.layers.norms import Divisors, Norm, norm_of, normed
from minibert.quantities import Float, Hidden, Mlp

__all__ = ["Embedding", "FeedForward", "Layer"]


class Embedding(nn.Module):
    """A table with one row for each id."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of the ids."""
        return F.embedding(ids, self.weight)


class FeedForward(nn.Module):
    """mlp_out = activation(x·W_in + b_in)·W_out + b_out (Vaswani et al. 2017, section 3.3).

    Gated it is (activation(x·W_gate + b_gate) * (x·W_in + b_in))·W_out + b_out (Shazeer 2020,
    section 2).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner, bias = config.d_model, config.d_mlp, config.mlp_bias
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

    @property
    def W_in(self) -> Float[Tensor, "d_model d_mlp"]:  # noqa: N802
        """mlp_pre = x·W_in + b_in."""
        return self.up.matrix

    @property
    def W_gate(self) -> Float[Tensor, "d_model d_mlp"] | None:  # noqa: N802
        """mlp_gate = x·W_gate + b_gate; None where the MLP has no gate."""
        return None if self.gate is None else self.gate.matrix

    @property
    def W_out(self) -> Float[Tensor, "d_mlp d_model"]:  # noqa: N802
        """mlp_out = mlp_post·W_out + b_out, what the family multiplies it by included."""
        return self.down.matrix

    @property
    def b_in(self) -> Float[Tensor, " d_mlp"] | None:
        """None without biases."""
        return self.up.offset

    @property
    def b_gate(self) -> Float[Tensor, " d_mlp"] | None:
        """None without biases or without a gate."""
        return None if self.gate is None else self.gate.offset

    @property
    def b_out(self) -> Float[Tensor, " d_model"] | None:
        """None without biases."""
        return self.down.offset

    def gate_of(self, x: Hidden) -> Mlp:
        """mlp_gate: what enters the activation of a gated MLP."""
        assert self.gate is not None
        return self.gate(x)

    def pre(self, x: Hidden) -> Mlp:
        """mlp_pre: x·W_in + b_in."""
        return self.up(x)

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

    `divisors` are those of the norm that a method applies, where they are not its own.
    """

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        place = config.norm_place
        self.after, self.parallel = place == "after", config.parallel

        def norm(wanted: bool) -> Norm | None:
            return norm_of(config, config.d_model) if wanted else None

        self.attention = Attention(config, layer)
        self.attention_norm = norm(place != "output" and (layer > 0 or config.first_norm))
        self.attention_output_norm = norm(place in ("output", "both"))
        self.mlp = FeedForward(config)
        self.mlp_norm = norm(place != "output")
        self.mlp_output_norm = norm(place in ("output", "both"))

    def forward(self, at: Any) -> Hidden:
        """resid_post of a `LayerPass` of this layer, so that hooks on a layer run."""
        return at.resid_post

    @property
    def norms_behind(self) -> tuple[str, str]:
        """The names of the norms that stand behind attention and behind the MLP, if there are."""
        if self.after:
            return "attention_norm", "mlp_norm"
        return "attention_output_norm", "mlp_output_norm"

    def attention_input(self, resid_pre: Hidden, divisors: Divisors | None = None) -> Hidden:
        """What W_Q, W_K and W_V read."""
        return normed(None if self.after else self.attention_norm, resid_pre, divisors)

    def after_attention(
        self, resid_pre: Hidden, attn_out: Hidden, divisors: Divisors | None = None
    ) -> Hidden:
        """resid_mid."""
        if self.after:
            return self.of_sum(resid_pre + attn_out, divisors)
        return resid_pre + normed(self.attention_output_norm, attn_out, divisors)

    def of_sum(self, total: Hidden, divisors: Divisors | None = None) -> Hidden:
        """resid_mid from the sum resid_pre + attn_out."""
        return normed(self.attention_norm if self.after else None, total, divisors)

    def mlp_input(self, stream: Hidden, divisors: Divisors | None = None) -> Hidden:
        """What W_in and W_gate read."""
        return normed(None if self.after else self.mlp_norm, stream, divisors)

    def after_mlp(
        self, resid_mid: Hidden, mlp_out: Hidden, divisors: Divisors | None = None
    ) -> Hidden:
        """resid_post."""
        if self.after:
            return normed(self.mlp_norm, resid_mid + mlp_out, divisors)
        return resid_mid + normed(self.mlp_output_norm, mlp_out, divisors)

    def mlp_added(
        self, resid_mid: Hidden, mlp_input: Hidden, divisors: Divisors | None = None
    ) -> Hidden:
        """resid_post from what the MLP reads, the sum in one operation where that is possible."""
        if self.mlp_output_norm is not None:
            return self.after_mlp(resid_mid, self.mlp(mlp_input), divisors)
        total = self.mlp(mlp_input, residual=resid_mid)
        return normed(self.mlp_norm if self.after else None, total, divisors)
