"""`attend`: attention by any implementation, with the statistics of its rows.

It checks tensors that a user gives; a model, which made them, calls `compute`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.allowed_keys import Window
from minibert.kernels.call import MATRICES, Call, Outputs, Statistic, parse_want
from minibert.kernels.checks import check_call, check_outputs, check_wanted_tensors
from minibert.kernels.folding import folded, padded_call, reads_packed, unpadded
from minibert.kernels.registry import (
    Implementation,
    check_name,
    chosen_for,
    implementations,
    register,
)
from minibert.quantities import Float, Int, Shaped

__all__ = [
    "Attended",
    "Implementation",
    "Statistics",
    "attend",
    "compute",
    "implementations",
    "register",
]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Numbers that describe each attention row; None where `want` did not name them.

    p is a row of probs and s the row of scores with soft cap, bias and ALiBi. Both are over the
    allowed keys only: a sink is not a key. A dead row (no key allowed) has probs 0. They are in
    float32; in float64 for float64 inputs. In packed sentences everything is counted within a
    token's own sentence: its rows, keys and positions.

    row_max      max s: the largest score. Dead row: −inf.
    max_prob     max p, in [0, 1]: how sure the query is. Dead row: 0.
    entropy      −sum p·ln p, in nats: 0 for one key, ln n for n equal keys (Clark et al. 2019,
                 §3.3). Dead row: 0.
    argmax       the key with the largest s; of equals any. Dead row: −1.
    received     sum of p over the query rows, per key: how much a key is looked at, in rows. With
                 lengths and as many queries as keys (self-attention) padded query rows are left
                 out; otherwise every row counts.
    key_mass     p at the key positions asked for ("key_mass", positions), in their order
                 (Clark et al. 2019, §3.2 with the positions of [CLS] and [SEP]).
    offset_mass  p at the key that stands at the query's position + offset, for the offsets asked
                 for: −1 previous, 0 itself, 1 next (Clark et al. 2019, §3.1). 0 outside the text.
                 Query i stands at position K − Q + i.
    map          mean of p over the real cells of each block, when queries and keys are cut into
                 equal blocks, at most ("map", blocks) a side; 64 unless told. Real as in received;
                 0 for a block without real cells.
    key_sums     sum of p times each of the columns ("key_sums", columns), (batch, head, key,
                 column), batch and head may be 1: the mass on a kind of keys where a column is 1
                 at these and 0 elsewhere, or anything linear in keys.
    pair_mass    p of each query and key of ("pair_mass", pairs), (batch, pair, 2), batch may be 1;
                 0 for the pair −1, −1. Of packed sentences tokens are counted over all of them.
    profile      sum of p along each diagonal, from offset 1 − K to Q − 1: how much goes how far.
                 Real queries as in received. Of packed sentences 2·n − 1 numbers each, one after
                 the other.
    top_keys     the keys of the k largest s, ("top_keys", k), the largest first; of equals any, and
                 −1 where a query sees fewer keys or its scores are NaN. k is at most 32, and 8
                 unless told.
    top_probs    p of these keys, ("top_probs", k); 0 where there is none.
    """

    row_max: Float[Tensor, "batch *head query"] | None = None
    max_prob: Float[Tensor, "batch *head query"] | None = None
    entropy: Float[Tensor, "batch *head query"] | None = None
    argmax: Int[Tensor, "batch *head query"] | None = None
    received: Float[Tensor, "batch *head key"] | None = None
    key_mass: Float[Tensor, "batch *head query position"] | None = None
    offset_mass: Float[Tensor, "batch *head query offset"] | None = None
    map: Float[Tensor, "batch *head query_block key_block"] | None = None
    key_sums: Float[Tensor, "batch *head query column"] | None = None
    pair_mass: Float[Tensor, "batch *head pair"] | None = None
    profile: Float[Tensor, "batch *head diagonal"] | None = None
    top_keys: Int[Tensor, "batch *head query key_rank"] | None = None
    top_probs: Float[Tensor, "batch *head query prob_rank"] | None = None


@dataclass(frozen=True, eq=False)
class Attended:
    """The result of `attend` and `compute`; None where not wanted (`attend` always wants lse).

    z           probs · value, in the dtype of the inputs (the reference: float64). Dead row: 0.
    lse         ln sum exp(s), natural logarithm, s the allowed scores with soft cap, bias and
                ALiBi, and the sink where there is one: what the softmax divides by, kept so that
                any prob is exp(s − lse) (Milakov & Gimelshein 2018; Dao et al. 2022, §3.1).
                float32; float64 for float64 inputs. Dead row: −inf, or the sink.
    scores      scale · query · keyᵀ, before soft cap, bias and mask.
    probs       exp(s − lse), 0 where masked. Rows sum to 1, to less with a sink. Dead row: 0.
    statistics  see `Statistics`; None when none was asked for.
    """

    z: Float[Tensor, "batch head query d_value"]
    lse: Float[Tensor, "batch head query"] | None = None
    scores: Float[Tensor, "batch head query key"] | None = None
    probs: Float[Tensor, "batch head query key"] | None = None
    statistics: Statistics | None = None


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
    want: Iterable[Statistic] = (),
) -> Attended:
    """z = softmax(scale · query · keyᵀ, modified by the options, over the allowed keys) · value.

    query is (batch, head, query, d_head), key (batch, kv_head, key, d_head) and value (batch,
    kv_head, key, d_value). There may be fewer kv_heads than heads: of H and G, query head h reads
    key head h // (H / G) (Ainslie et al. 2023).

    A query sees a key where every option that is given allows it:
    lengths, (batch), is the number of real keys of each sentence. The keys after them are padding,
    which must be finite: 0 · NaN is NaN, so a NaN in a hidden key or value can still reach z.
    mask, (batch, head, query, key) with any axis 1, is True where attention is allowed.
    causal lets a query see the keys up to its own position. Positions are aligned to the end:
    query i of Q stands at position K − Q + i, so that the newest queries meet a KV cache.
    window, (before, after), lets a query at position p see the keys p − before … p + after; None
    means no limit.
    prefix, (batch), with causal: how many first keys of each sentence every query sees despite
    causal order (but not despite a window).
    packed, for instance (5, 7, 3), says that sentences of so many tokens lie one after the other in
    a batch of one, and each sees only itself; packed_keys gives their numbers of keys, where these
    differ. It cannot be combined with lengths, mask, bias or pages, nor with scores, probs or map.
    Positions count from 0 in each sentence; a key position that it does not have gets 0.
    pages, (batch, page), with lengths: key and value are (page, kv_head, slot, ...), and sentence b
    has the keys of pages[b] one after the other. Its queries are aligned to the end of its length.

    How the scores are computed, in this order:
    scale, finite, is 1/sqrt(d_head) unless given. soft_cap c gives c · tanh(score / c).
    bias, finite, in the shape of mask, is added. alibi_slopes, (head) or (batch, head), subtract
    slope · |position of the query − position of the key|. sinks, (head), add one logit to the
    softmax of each row; it has no key and no value. dropout is refused: a result must be the same
    each time.

    want names the outputs besides z and lse: scores, probs, row_max, max_prob, entropy, argmax,
    received, ("key_mass", positions), "offset_mass" or ("offset_mass", offsets), "map" or
    ("map", blocks), ("key_sums", columns), ("pair_mass", pairs), profile, ("top_keys", k),
    ("top_probs", k). With lengths and as many queries as keys, received, map and profile leave out
    queries after their length.
    impl names the implementation; "auto" takes the fastest one that gives what is wanted.
    A NaN in query, or in a key it may see, makes z and lse of its row NaN.
    torch.autocast changes nothing: everything is computed as the dtype of the inputs says.
    Gradients: when an input requires them, "auto" takes an implementation through which they reach
    z, lse and everything wanted (eager). impl="sdpa" trains only z, without an N x N tensor, and
    its lse is detached; `implementations()[impl].differentiable` says which outputs carry them.
    On a GPU the numbers in lengths, bias and so on are not checked, which would stall it.

    Raises AttentionError when the tensors do not fit together, when a name or an option is invalid,
    or when the named implementation cannot give what is asked; the message names one that can.
    Source: Vaswani et al. 2017, §3.2.1; Gemma Team 2024 (soft cap); Press et al. 2022 (ALiBi); Xiao
    et al. 2024 (sinks); Kwon et al. 2023 (pages).

    >>> query, key, value = torch.randn(3, 1, 2, 5, 8).unbind()
    >>> attended = attend(query, key, value, causal=True, want=("probs", "entropy"))
    >>> attended.probs.shape, attended.statistics.entropy.shape
    (torch.Size([1, 2, 5, 5]), torch.Size([1, 2, 5]))
    """
    options: dict[str, Any] = {"lengths": lengths, "mask": mask, "causal": causal, "bias": bias}
    options |= {"packed": packed, "packed_keys": packed_keys, "window": window, "prefix": prefix}
    options |= {"scale": scale, "soft_cap": soft_cap, "alibi_slopes": alibi_slopes}
    options |= {"sinks": sinks, "pages": pages}
    options = check_call(query, key, value, dropout=dropout, **options)
    check_name(impl)
    call = Call.of(query, key, value, **options)
    n_keys = call.allowed.position
    if call.packed is not None:
        n_keys = max(call.packed_keys or call.packed)
    wanted = parse_want(want, n_keys=n_keys)
    check_wanted_tensors(call, wanted)
    return compute(replace(call, want=wanted | {"lse": ()}), impl)


_STATISTICS = frozenset(field.name for field in fields(Statistics))


def compute(call: Call, impl: str = "auto") -> Attended:
    """z and what else the call wants, by any implementation; the inputs are not checked."""
    want, device, asked = call.want, call.query.device.type, call.asks
    gradient = torch.is_grad_enabled() and call.requires_grad
    chosen = chosen_for(impl, call, asked, gradient=gradient)
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            found = _outputs(chosen, call, asked)
    else:
        found = _outputs(chosen, call, asked)
    if not want:
        return Attended(found["z"])
    statistics = {name: found[name] for name in want if name in _STATISTICS}
    return Attended(
        z=found["z"],
        lse=found["lse"] if "lse" in want else None,
        statistics=Statistics(**statistics) if statistics else None,
        **{name: found[name] for name in MATRICES if name in want},
    )


def _outputs(chosen: Implementation, call: Call, asked: frozenset[str]) -> Outputs:
    """z and what is wanted, by name."""
    taken = chosen.options
    if call.allowed.ends is not None or not asked <= taken:
        if call.packed is not None and not reads_packed(asked, taken):
            of_rows = padded_call(call)
            return unpadded(_outputs(chosen, of_rows, of_rows.asks), call)
        call = folded(call, taken)
    # What a pass over z alone is made of torch.compile can look into.
    if chosen.opaque and (call.want or not chosen.second_pass) and torch.compiler.is_compiling():
        from minibert.kernels.uncompiled import uncompiled

        return uncompiled(chosen, call)
    return _checked(chosen, call) if chosen.checked else chosen.fn(call)


def _checked(chosen: Implementation, call: Call) -> Outputs:
    """The result of a user's implementation, checked.

    Raises AttentionError when an output is missing or lacks the promised shape and dtype, and when
    torch has written into an input. The numbers themselves are not checked here, but by
    `check.parity.check`.
    """
    before = _versions(call)
    found = chosen.fn(call)
    if written := [name for name, version in _versions(call).items() if version != before[name]]:
        raise AttentionError(
            f'impl="{chosen.name}" wrote into {", ".join(written)}, or into memory shared with it; '
            "expected its inputs to stay as they are. Write into a copy: query.clone()."
        )
    check_outputs(found, chosen.name, call.query, call.key, call.value, call.want)
    if missing := [output for output in ("z", *call.want) if output not in found]:
        raise AttentionError(
            f'impl="{chosen.name}" gave {", ".join(found)} and not {", ".join(missing)}; expected '
            "z, lse and everything it was registered with as wants."
        )
    return {name: found[name] for name in ("z", *call.want)}


def _versions(call: Call) -> dict[str, int]:
    """The number of times that torch has written into each input; unknown for inference tensors."""
    if torch.compiler.is_compiling():
        return {}
    given = call.tensors
    if call.lengths is not None:
        given |= {"lengths": call.lengths}
    return {name: one._version for name, one in given.items() if not one.is_inference()}
