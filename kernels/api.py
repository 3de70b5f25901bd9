"""`attend`: attention by any implementation, with the statistics of its rows.

It checks tensors that a user gives; a model, which made them, calls `compute`.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.attended import Attended, Statistics
from minibert.kernels.call import Call
from minibert.kernels.compute import compute
from minibert.kernels.implementation import Implementation
from minibert.kernels.masks import Window
from minibert.kernels.option_checks import check_prefix, check_score_options, check_window
from minibert.kernels.registry import check_name, implementations, register
from minibert.kernels.requests import check_tensors, parse_want
from minibert.kernels.validation import check_inputs, check_options, check_packed, may_look
from minibert.quantities import Shaped

__all__ = [
    "Attended",
    "Implementation",
    "Statistics",
    "attend",
    "compute",
    "implementations",
    "register",
]


def attend(
    query: Shaped[Tensor, "..."],
    key: Shaped[Tensor, "..."],
    value: Shaped[Tensor, "..."],
    *,
    lengths: Shaped[Tensor, "..."] | None = None,
    mask: Shaped[Tensor, "..."] | None = None,
    packed: Sequence[int] | None = None,
    packed_keys: Sequence[int] | None = None,
    pages: Shaped[Tensor, "..."] | None = None,
    causal: bool = False,
    window: Window | None = None,
    prefix: Shaped[Tensor, "..."] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias: Shaped[Tensor, "..."] | None = None,
    alibi_slopes: Shaped[Tensor, "..."] | None = None,
    sinks: Shaped[Tensor, "..."] | None = None,
    dropout: float = 0.0,
    impl: str = "auto",
    want: Iterable[Any] = (),
) -> Attended:
    """z = softmax(scale · query · keyᵀ, changed as told, over the allowed keys) · value.

    query is (batch, head, query, d_head), key (batch, kv_head, key, d_head) and value (batch,
    kv_head, key, d_value). There may be fewer kv_heads than heads: of H and G, query head h reads
    key head h // (H / G) (Ainslie et al. 2023).

    Which keys a query sees; all that is given must allow it:
    lengths, (batch), is the number of real keys of each sentence; the keys behind are padding,
    which must be finite: 0 · NaN is NaN, so a NaN in a key or value that nobody may see can still
    reach z.
    mask, (batch, head, query, key) with any axis 1, is True where attention is allowed.
    causal lets a query see the keys up to its own position. Positions are aligned to the end:
    query i of Q stands at position K − Q + i, so that the newest queries meet a KV cache.
    window, (before, after), lets a query at position p see the keys p − before … p + after; None
    for either is no limit.
    prefix, (batch), with causal: the first keys of each sentence, which every query sees in spite
    of causal order (not in spite of a window).
    packed, for instance (5, 7, 3), says that sentences of so many tokens lie one after the other in
    a batch of one, and each sees itself alone; packed_keys their numbers of keys where these are
    others. It stands without lengths, mask, bias and pages, and without scores, probs and map.
    Positions count from 0 in each sentence; a key position that it does not have gets 0.
    pages, (batch, page), with lengths: key and value are (page, kv_head, slot, ...), and sentence b
    has the keys of pages[b] one after the other. Its queries are aligned to the end of its length.

    What its scores are, in this order:
    scale, finite, is 1/sqrt(d_head) unless given. soft_cap c makes c · tanh(score / c) of a score.
    bias, finite, in the shape of mask, is added. alibi_slopes, (head) or (batch, head), take
    slope · |position of the query − position of the key| away. sinks, (head), are one more logit
    in the softmax of each row, which has no key and no value. dropout is refused: a result has to
    be the same each time.

    want names what to give beside z and lse: scores, probs, row_max, max_prob, entropy, argmax,
    received, ("key_mass", positions), "offset_mass" or ("offset_mass", offsets), "map" or
    ("map", blocks), ("key_sums", columns), ("pair_mass", pairs), profile. With lengths
    and as many queries as keys, received, map and profile leave out queries behind their length.
    impl names the implementation; "auto" takes the fastest one that gives what is wanted.
    A NaN in query, or in a key it may see, makes z and lse of its row NaN.
    torch.autocast changes nothing: everything is computed as the dtype of the inputs says.
    Gradients: when an input requires them, "auto" takes an implementation through which they reach
    z, lse and everything wanted (eager). impl="sdpa" trains z alone, without an N x N tensor, and
    its lse is detached; `implementations()[impl].differentiable` says which outputs carry them.
    On a GPU numbers in lengths, bias and the like are not looked at, which would stall it.

    Raises AttentionError when the tensors do not fit together, when a name or an option is not what
    it should be, or when the implementation named cannot give what is asked; the message names one
    that can.
    Source: Vaswani et al. 2017, §3.2.1; Gemma Team 2024 (soft cap); Press et al. 2022 (ALiBi); Xiao
    et al. 2024 (sinks); Kwon et al. 2023 (pages).

    >>> query, key, value = torch.randn(3, 1, 2, 5, 8).unbind()
    >>> attended = attend(query, key, value, causal=True, want=("probs", "entropy"))
    >>> attended.probs.shape, attended.statistics.entropy.shape
    (torch.Size([1, 2, 5, 5]), torch.Size([1, 2, 5]))
    """
    check_inputs(query, key, value, lengths=lengths, mask=mask, bias=bias, pages=pages)
    check_options(causal=causal, scale=scale, dropout=dropout)
    check_score_options(query, soft_cap=soft_cap, alibi_slopes=alibi_slopes, sinks=sinks)
    check_name(impl)
    if packed is not None:
        others = {"lengths": lengths, "mask": mask, "bias": bias, "pages": pages}
        packed, packed_keys = check_packed(packed, packed_keys, query, key, others)
    elif packed_keys is not None:
        raise AttentionError("packed_keys come without packed; expected both.")
    (B, H, Q, D), K = query.shape, key.shape[2] * (1 if pages is None else pages.shape[1])
    check_prefix(prefix, query, causal=causal, sentences=B if packed is None else len(packed))
    stays = lengths is not None and not may_look(lengths)
    allowed = AllowedKeys(
        batch=B,
        position=K,
        device=query.device,
        causal=causal,
        lengths=None if lengths is None or stays else tuple(lengths.tolist()),
        packed=packed,
        given=mask,
        window=check_window(window),
        prefix=prefix,
        packed_keys=packed_keys,
        on_device=lengths if stays else None,
        ends=lengths if pages is not None else None,
    )
    wanted = parse_want(want, n_keys=K if packed is None else max(packed_keys or packed))
    check_tensors(wanted, (B, H, Q, K), packed=packed, packed_keys=packed_keys)
    scale = 1 / math.sqrt(D) if scale is None else float(scale)
    cap = None if soft_cap is None else float(soft_cap)
    changes: dict[str, Any] = {
        "soft_cap": cap,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "pages": pages,
    }
    wanted |= {"lse": ()}
    return compute(Call(query, key, value, scale, allowed, bias, wanted, **changes), impl)
