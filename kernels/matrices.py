"""scores and probs of long texts on a CPU, without the work above the diagonal and on padding.

The formulas are those of `eager.py`, row by row: a block of scores is copied, masked and turned
into probs while the cache holds it. scores are those before the mask, so all are computed. probs
that a mask makes 0 are never written: the memory starts as zeros.
"""

import math

import torch
from torch import Tensor

from minibert.kernels.call import Call
from minibert.kernels.large_pages import zeros
from minibert.kernels.work_memory import WorkMemory, traced
from minibert.quantities import Float

__all__ = ["applies", "with_matrices"]

#: Below this many cells of all heads together the time goes elsewhere.
_LEAST_CELLS = 2**20
#: Rows of a block: a quarter of the diagonal's square is computed in vain at 1024 tokens.
_ROWS = 128


def applies(call: Call) -> bool:
    """Whether the call is one that `with_matrices` can take, and large enough to gain by it."""
    query, key, keys = call.query, call.key, call.allowed
    n_queries, n_keys = query.shape[2], key.shape[2]
    if not query.is_cpu or query.dtype not in (torch.float32, torch.float64):
        return False
    if query[..., 0].numel() * n_keys < _LEAST_CELLS or n_queries > n_keys:
        return False
    masked = keys.given is not None or keys.causal != keys.in_order
    if masked or call.bias is not None or not call.want.keys() <= {"scores", "probs"}:
        return False
    tensors = (query, key, call.value)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return type(query) is Tensor and not traced()


def with_matrices(call: Call) -> dict[str, Float[Tensor, "batch head query _"]]:
    """z, scores and probs; no gradient flows through it."""
    query, key, value, keys = call.query, call.key, call.value, call.allowed
    (B, H, Q, _), K = query.shape, key.shape[2]
    shift = K - Q
    scores, probs = zeros((B, H, Q, K), query.dtype), zeros((B, H, Q, K), query.dtype)
    z = torch.zeros_like(query)
    lengths = keys.lengths or (K,) * B
    with WorkMemory(query, n_keys=K, causal=False) as memory, torch.no_grad():
        ahead = torch.ones(_ROWS, _ROWS, dtype=torch.bool).triu_(1)
        columns = key.transpose(-2, -1)
        for sentence, head in ((b, h) for b in range(B) for h in range(H)):
            place = (sentence, head)
            torch.mm(query[place] * call.scale, columns[place], out=scores[place])
            for start in range(0, Q, _ROWS):
                rows = slice(start, min(start + _ROWS, Q))
                n_keys = lengths[sentence]
                if keys.causal:
                    n_keys = min(n_keys, shift + rows.stop)
                if not n_keys:
                    continue
                block = memory.scores((rows.stop - start, n_keys))
                block.copy_(scores[place][rows, :n_keys])
                if keys.causal:
                    # Only the last keys can lie ahead of any row of the block.
                    tail = block[:, min(shift + start, n_keys) :]
                    tail.masked_fill_(ahead[: tail.shape[0], : tail.shape[1]], -math.inf)
                torch.softmax(block, dim=-1, out=block)
                probs[place][rows, :n_keys] = block
                product = memory.vectors("z", (len(block), z.shape[-1]))
                z[place][rows] = torch.mm(block, value[place][:n_keys], out=product)
    return {"z": z, "scores": scores, "probs": probs}
