"""`attend` and `compute`: attention by any implementation, with the statistics of its rows.

`attend` checks tensors that a user gives; a model, which made them, calls `compute`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.call import AllowedKeys, Call
from minibert.kernels.implementation import Implementation
from minibert.kernels.masks import allowed_keys
from minibert.kernels.packing import padded, unpadded
from minibert.kernels.registry import check_name, chosen_for, implementations, register
from minibert.kernels.requests import MATRICES, Want, check_tensors, parse_want
from minibert.kernels.validation import (
    check_inputs,
    check_options,
    check_packed,
    named_outputs,
    outputs_of,
)
from minibert.quantities import Float, Int, Shaped

__all__ = [
    "Attended",
    "Implementation",
    "Statistics",
    "arguments_for",
    "attend",
    "compute",
    "implementations",
    "register",
]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Numbers that describe each attention row; None where `want` did not name them.

    p is a row of probs, s the row of scores with bias added, both over the allowed keys alone.
    A dead row (no key allowed) has probs 0. In float32; in float64 for float64 inputs. Of packed
    sentences everything is counted within a token's own sentence: its rows, keys and positions.

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


@dataclass(frozen=True, eq=False)
class Attended:
    """What `attend` and `compute` give; None where it was not wanted (`attend` always wants lse).

    z           probs · value, in the dtype of the inputs (the reference: float64). Dead row: 0.
    lse         ln sum exp(s), natural logarithm, s the allowed scores with bias: what the softmax
                divides by, kept so that any prob is exp(s − lse) (Milakov & Gimelshein 2018;
                Dao et al. 2022, §3.1). float32; float64 for float64 inputs. Dead row: −inf.
    scores      scale · query · keyᵀ, before bias and mask.
    probs       softmax of the allowed scores with bias; exactly 0 where masked. Dead row: 0.
    statistics  see `Statistics`; None when none was asked for.
    """

    z: Float[Tensor, "batch head query d_head"]
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
    causal: bool = False,
    scale: float | None = None,
    bias: Shaped[Tensor, "..."] | None = None,
    impl: str = "auto",
    want: Iterable[Any] = (),
) -> Attended:
    """z = softmax(scale · query · keyᵀ + bias, over the allowed keys) · value, and its statistics.

    query is (batch, head, query, d_head), key and value are (batch, head, key, d_head).
    lengths, (batch), is the number of real keys of each sentence; the keys behind are padding,
    which must be finite: 0 · NaN is NaN, so a NaN in a key or value that nobody may see can still
    reach z.
    mask, (batch, head, query, key) with any axis 1, is True where attention is allowed.
    causal lets a query see the keys up to its own position. Positions are aligned to the end:
    query i of Q stands at position K − Q + i, so that the newest queries meet a KV cache.
    A key must be allowed by all three.
    packed, for instance (5, 7, 3), says that sentences of so many tokens lie one after the other in
    a batch of one, and each sees itself alone. It stands without lengths, mask and bias, and
    without scores, probs and map. Key positions count from 0 in each sentence; one that a sentence
    does not have gets 0.
    scale, finite, is 1/sqrt(d_head) unless given. bias,
    finite, in the shape of mask, is added to the scaled scores before the softmax.
    want names what to give beside z and lse: scores, probs, row_max, max_prob, entropy, argmax,
    received, ("key_mass", positions), "offset_mass" or ("offset_mass", offsets), "map" or
    ("map", blocks), ("key_sums", columns), ("pair_mass", pairs), profile.
    impl names the implementation; "auto" takes the fastest one that gives what is wanted.
    A NaN in query, or in a key it may see, makes z and lse of its row NaN.
    torch.autocast changes nothing: everything is computed as the dtype of the inputs says.
    Gradients: when an input requires them, "auto" takes an implementation through which they reach
    z, lse and everything wanted (eager). impl="sdpa" trains z alone, without an N x N tensor, and
    its lse is detached; `implementations()[impl].differentiable` says which outputs carry them.

    Raises AttentionError when the tensors do not fit together, when a name or an option is not what
    it should be, or when the implementation named cannot give what is asked; the message names one
    that can.
    Source: Vaswani et al. 2017, §3.2.1.

    >>> query, key, value = torch.randn(3, 1, 2, 5, 8).unbind()
    >>> attended = attend(query, key, value, causal=True, want=("probs", "entropy"))
    >>> attended.probs.shape, attended.statistics.entropy.shape
    (torch.Size([1, 2, 5, 5]), torch.Size([1, 2, 5]))
    """
    check_inputs(query, key, value, lengths=lengths, mask=mask, bias=bias)
    check_options(causal=causal, scale=scale)
    check_name(impl)
    (B, _, _, D), K = query.shape, key.shape[2]
    if packed is not None:
        packed = check_packed(packed, query, key, {"lengths": lengths, "mask": mask, "bias": bias})
    allowed = AllowedKeys(
        batch=B,
        position=K,
        device=query.device,
        causal=causal,
        lengths=None if lengths is None else tuple(lengths.tolist()),
        packed=packed,
        given=mask,
    )
    wanted = parse_want(want, n_keys=K if packed is None else max(packed)) | {"lse": ()}
    (_, H, Q, _) = query.shape
    check_tensors(wanted, batch=B, heads=H, queries=Q, keys=K, packed=packed)
    scale = 1 / math.sqrt(D) if scale is None else float(scale)
    return compute(Call(query, key, value, scale, allowed, bias, wanted), impl)


def compute(call: Call, impl: str = "auto") -> Attended:
    """z and what the call wants beside it, by any implementation; the inputs are not checked."""
    query, bias, want = call.query, call.bias, call.want
    gradient = torch.is_grad_enabled() and (
        query.requires_grad
        or call.key.requires_grad
        or call.value.requires_grad
        or (bias is not None and bias.requires_grad)
    )
    device, d_head, options = query.device.type, query.shape[-1], call.allowed.options
    if bias is not None:
        options = options | {"bias"}
    # Whoever takes no scale takes that of Vaswani et al.
    if abs(call.scale * call.scale * d_head - 1) > 1e-12 or call.scale < 0:
        options = options | {"scale"}
    chosen = chosen_for(impl, frozenset(want), options, device, query.dtype, gradient, d_head)
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            found = _outputs(chosen, call)
    else:
        found = _outputs(chosen, call)
    if not want:
        return Attended(found["z"])
    statistics = {name: found[name] for name in want if name in _STATISTICS}
    return Attended(
        z=found["z"],
        lse=found["lse"] if "lse" in want else None,
        statistics=Statistics(**statistics) if statistics else None,
        **{name: found[name] for name in MATRICES if name in want},
    )


def _outputs(chosen: Implementation, call: Call) -> Mapping[str, Tensor]:
    """z and what is wanted, by name."""
    if chosen.of_call is not None:
        return chosen.of_call(call)
    packed = call.allowed.packed
    if packed is not None and "packed" not in chosen.options:
        return unpadded(_outputs(chosen, _padded(call, packed)), packed)
    query, key, keys = call.query, call.key, call.allowed
    taken, options = chosen.options, call.options()
    if "mask" in taken and not keys.options <= taken:
        folded = {"lengths": "lengths" not in taken, "causal": "causal" not in taken}
        options["mask"] = keys.mask(query.shape[2], **folded)
    arguments = {name: options[name] for name in options if name in taken}
    if not chosen.checked:
        return named_outputs(chosen.fn(query, key, call.value, **arguments), chosen.name)
    return _checked(chosen, call, arguments)


def _checked(chosen: Implementation, call: Call, arguments: dict[str, Any]) -> dict[str, Tensor]:
    """What a user's implementation gives.

    Raises AttentionError when something is missing or has not the promised shape and dtype, and
    when torch has written into an input. Numbers are not looked at: that is what
    `check.parity.check` is for.
    """
    want = {name: parameters for name, parameters in call.want.items() if name != "lse"}
    if "want" in arguments:
        arguments["want"] = want
    before = _versions(call)
    result = chosen.fn(call.query, call.key, call.value, **arguments)
    if written := [name for name, version in _versions(call).items() if version != before[name]]:
        raise AttentionError(
            f'impl="{chosen.name}" wrote into {", ".join(written)}, or into memory shared with it; '
            "expected its inputs to stay as they are. Write into a copy: query.clone()."
        )
    found = outputs_of(result, chosen.name, call.query, call.key, want)
    if missing := [output for output in ("z", *call.want) if output not in found]:
        raise AttentionError(
            f'impl="{chosen.name}" gave {", ".join(found)} and not {", ".join(missing)}; expected '
            "z, lse and everything it was registered with as wants."
        )
    return {name: found[name] for name in ("z", *call.want)}


def _versions(call: Call) -> dict[str, int]:
    """How often torch has written into each input; it does not count for inference tensors."""
    given = {"query": call.query, "key": call.key, "value": call.value, "bias": call.bias}
    if torch.compiler.is_compiling():
        return {}
    return {
        name: one._version
        for name, one in given.items()
        if one is not None and not one.is_inference()
    }


def _padded(call: Call, packed: tuple[int, ...]) -> Call:
    """The same sentences as a padded batch."""
    query, key, value = (padded(one, packed) for one in (call.query, call.key, call.value))
    return Call(query, key, value, call.scale, call.allowed.padded, None, call.want)


_STATISTICS = frozenset(field.name for field in fields(Statistics))


def arguments_for(
    implementation: Implementation,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    options: dict[str, Any],
    want: Want,
) -> dict[str, Any]:
    """The keywords for `implementation.fn`, in the form it takes.

    Every option it names is there, with its default when not given. lengths and causal are folded
    into the mask of an implementation that takes only a mask.
    """
    taken = implementation.options
    given: dict[str, Any] = {"lengths": None, "mask": None, "causal": False, "bias": None}
    given |= {"scale": 1 / math.sqrt(query.shape[-1]), "want": want} | options
    fold_lengths, fold_causal = "lengths" not in taken, "causal" not in taken
    if "mask" in taken and (fold_lengths or fold_causal):
        given["mask"] = allowed_keys(
            query,
            key,
            lengths=given["lengths"] if fold_lengths else None,
            mask=given["mask"],
            causal=given["causal"] and fold_causal,
        )
    return {name: value for name, value in given.items() if name in taken}
