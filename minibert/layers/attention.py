"""Self-attention: W_Q W_K W_V, then `minibert.kernels`, then W_O.

The forward pass hands everything it computes to `record` when there is one, by the names of
`minibert.quantities`. The other methods give the same quantities one at a time, from the same
weights, for whoever asks a trace later.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from minibert.kernels.call import AllowedKeys
from minibert.kernels.eager import attention_probs, attention_scores, weighted_values
from minibert.kernels.sdpa import fused_attention, packed_attention
from minibert.layers.cache import LayerCache
from minibert.layers.config import Config
from minibert.layers.linear import Linear, SharedInput, linear_is_plain
from minibert.layers.linear_backends import torch_linear
from minibert.quantities import Float, HeadVectors, Hidden, PerHeadHidden

__all__ = ["Attention", "Record"]

Record = dict[str, Tensor]
EXPLICIT = frozenset({"scores", "probs"})


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

    def forward(
        self,
        x: Hidden,
        residual: Hidden,
        allowed: AllowedKeys,
        mask: Tensor | None,
        record: Record | None = None,
        keep: Collection[str] = (),
        cache: LayerCache | None = None,
    ) -> Hidden:
        """residual + attn_out. `keep` names matrices ("scores", "probs") to record as well.

        With a cache, x holds the new tokens alone, and they look at all that were read before.
        """
        query, key, value = self.query_key_value(x)
        if cache is not None:
            key, value = cache.extend(key, value)
        if allowed.packed is not None:
            z = packed_attention(
                query,
                key,
                value,
                lengths=allowed.packed,
                causal=allowed.causal,
                scale=self.scale,
            )
        elif EXPLICIT.isdisjoint(keep):
            z = fused_attention(
                query,
                key,
                value,
                mask=mask,
                causal=mask is None and allowed.causal,
                scale=self.scale,
            )
        else:
            z = self._explicit(query, key, value, allowed, record, keep)
        if record is not None:
            record |= {"query": query, "key": key, "value": value, "z": z}
        return self.attn_out(z, residual)

    def _explicit(
        self,
        query: HeadVectors,
        key: HeadVectors,
        value: HeadVectors,
        allowed: AllowedKeys,
        record: Record | None,
        keep: Collection[str],
    ) -> HeadVectors:
        scores = attention_scores(query, key, scale=self.scale)
        probs = attention_probs(scores, allowed.rows())
        if record is not None:
            record |= {n: t for n, t in (("scores", scores), ("probs", probs)) if n in keep}
        return weighted_values(probs, value)

    def query_key_value(self, x: Hidden) -> tuple[HeadVectors, HeadVectors, HeadVectors]:
        """query, key and value of all heads: x·W + b."""
        query, key, value = (self._split(part) for part in self._project_all(x))
        return query, key, value

    def _project_all(self, x: Hidden) -> tuple[Tensor, ...]:
        linears = (self.query, self.key, self.value)
        # A hook, a pruned weight or a module put in a linear's place must run: one by one then.
        if not all(linear_is_plain(linear) for linear in linears):
            return tuple([linear(x) for linear in linears])
        if self._qkv.linears != linears:
            self._qkv = SharedInput(linears)
        return self._qkv(x)

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

    def _split(self, x: Hidden) -> Float[Tensor, "batch head position d_head"]:
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def _merge(self, z: HeadVectors) -> Hidden:
        return z.transpose(1, 2).flatten(2)
