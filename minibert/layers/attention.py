"""The weights of self-attention: W_Q, W_K and W_V in front of the dot product, W_O behind it.

The dot product, the softmax and the mean of the values are in `minibert.kernels`; layer.py makes
the call.
"""

import torch
from torch import nn

from minibert.layers.config import Config
from minibert.layers.linear import Linear, SharedInput, linear_is_plain
from minibert.layers.linear_backends import torch_linear
from minibert.quantities import Float, HeadVectors, Hidden, PerHeadHidden

__all__ = ["Attention"]


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        width = config.d_model
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.output = Linear(width, width)
        self.n_heads = config.n_heads
        self.d_head = config.d_head
        self.scale = config.attention_scale(layer)
        self._qkv = SharedInput((self.query, self.key, self.value))

    def query_key_value(self, x: Hidden) -> dict[str, HeadVectors]:
        """query, key and value of all heads: x·W + b."""
        linears = (self.query, self.key, self.value)
        # A hook, a pruned weight or a module put in a linear's place must run: one by one then.
        if all(linear_is_plain(linear) for linear in linears):
            if self._qkv.linears != linears:
                self._qkv = SharedInput(linears)
            parts = self._qkv(x)
        else:
            parts = tuple([linear(x) for linear in linears])
        return {
            name: self._split(part)
            for name, part in zip(("query", "key", "value"), parts, strict=True)
        }

    def project(self, name: str, x: Hidden, heads: slice = slice(None)) -> HeadVectors:
        """query, key or value of the chosen heads alone: x·W + b."""
        linear = getattr(self, name)
        if not linear_is_plain(linear):
            return self._split(linear(x))[:, heads]
        weight, bias = linear.weight, linear.bias
        if heads != slice(None):
            rows = slice((heads.start or 0) * self.d_head, heads.stop * self.d_head)
            weight, bias = weight[rows], bias[rows]
        return self._split(torch_linear(x, weight, bias))

    def head_out(self, z: HeadVectors, heads: slice = slice(None)) -> PerHeadHidden:
        """What each head adds to the stream: z·W_O of that head, without the bias."""
        per_head = self.output.weight.unflatten(1, (self.n_heads, self.d_head))[
            :, heads
        ]  # d_model head d_head
        return torch.einsum("bhpd,mhd->bhpm", z, per_head)

    def attn_out(self, z: HeadVectors, residual: Hidden | None = None) -> Hidden:
        """What attention adds to the stream, z·W_O + b_O over all heads; plus the residual."""
        return self.output(self._merge(z), residual=residual)

    def sum_of_heads(self, head_out: PerHeadHidden) -> Hidden:
        """attn_out from what each head adds: their sum + b_O."""
        bias = self.output.bias
        return head_out.sum(1) if bias is None else head_out.sum(1) + bias

    def _split(self, x: Hidden) -> Float[torch.Tensor, "batch head position d_head"]:
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def _merge(self, z: HeadVectors) -> Hidden:
        return z.transpose(1, 2).flatten(2)
