"""`attend`: attention by any implementation, with the statistics of its rows.

Place: the door of `minibert.kernels`. Behind it stand `reference`, `eager`, `sdpa` and whatever a
user registers; `parity.check` proves that they agree.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.call import Call
from minibert.kernels.masks import allowed_keys
from minibert.kernels.registry import Implementation, Request, choose, implementations, register
from minibert.kernels.requests import MATRICES, Want, parse_want
from minibert.kernels.validation import check_inputs, check_options, outputs_of
from minibert.quantities import Float, Int, Shaped

__all__ = ["Attended", "Implementation", "Statistics", "attend", "implementations", "register"]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Numbers that describe each attention row; None where `want` did not name them.

    p is a row of probs, s the row of scores with bias added, both over the allowed keys alone.
    A dead row (no key allowed) has probs 0. In float32; in float64 for float64 inputs.

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
    """

    row_max: Float[Tensor, "batch head query"] | None = None
    max_prob: Float[Tensor, "batch head query"] | None = None
    entropy: Float[Tensor, "batch head query"] | None = None
    argmax: Int[Tensor, "batch head query"] | None = None
    received: Float[Tensor, "batch head key"] | None = None
    key_mass: Float[Tensor, "batch head query position"] | None = None
    offset_mass: Float[Tensor, "batch head query offset"] | None = None
    map: Float[Tensor, "batch head query_block key_block"] | None = None


@dataclass(frozen=True, eq=False)
class Attended:
    """What `attend` gives; None where `want` did not name it.

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
    A key must be allowed by all three. scale, finite, is 1/sqrt(d_head) unless given. bias,
    finite, in the shape of mask, is added to the scaled scores before the softmax.
    want names what to give beside z and lse: scores, probs, row_max, max_prob, entropy, argmax,
    received, ("key_mass", positions), "offset_mass" or ("offset_mass", offsets), "map" or
    ("map", blocks).
    impl names the implementation; "auto" takes the fastest one that gives what is wanted.
    A NaN in query, or in a key it may see, makes z and lse of its row NaN.
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
    options: dict[str, Any] = {"lengths": lengths, "mask": mask, "bias": bias}
    options["scale"] = None if scale is None else float(scale)
    options = {name: option for name, option in options.items() if option is not None}
    if causal:
        options["causal"] = True
    wanted = parse_want(want, n_keys=key.shape[2])
    tensors = [tensor for tensor in (query, key, value, bias) if tensor is not None]
    request = Request(
        wants=frozenset(wanted),
        options=frozenset(options),
        device=query.device.type,
        dtype=query.dtype,
        gradient=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
        d_head=query.shape[-1],
    )
    chosen = choose(impl, request)
    result = chosen.fn(query, key, value, **arguments_for(chosen, query, key, options, wanted))
    found = outputs_of(result, chosen.name, query, key, wanted)
    if missing := [output for output in ("z", "lse", *wanted) if output not in found]:
        raise AttentionError(
            f'impl="{chosen.name}" gave {", ".join(found)} and not {", ".join(missing)}; expected '
            "z, lse and everything it was registered with as wants."
        )
    return _packed(found, wanted)


def compute(call: Call, impl: str = "auto") -> Attended:
    """z and what the call wants beside it, by any implementation; the inputs are not checked."""
    allowed, wants = call.allowed, frozenset(call.want)
    given = {
        "lengths": allowed.length_tensor,
        "mask": allowed.mask,
        "causal": allowed.causal and allowed.queries is None,
        "bias": call.bias,
        "scale": call.scale,
    }
    options = {
        name: option for name, option in given.items() if option is not None and option is not False
    }
    tensors = (call.query, call.key, call.value)
    request = Request(
        wants=wants,
        options=frozenset(options),
        device=call.query.device.type,
        dtype=call.query.dtype,
        gradient=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
        d_head=call.query.shape[-1],
    )
    chosen = choose(impl, request)
    if chosen.plain is not None and not call.want:
        return Attended(z=chosen.plain(call))
    arguments = arguments_for(chosen, call.query, call.key, options, call.want)
    result = chosen.fn(*tensors, **arguments)
    return _packed(outputs_of(result, chosen.name, call.query, call.key, call.want), call.want)


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


def _packed(found: dict[str, Tensor], want: Want) -> Attended:
    statistics = {
        field.name: found[field.name] for field in fields(Statistics) if field.name in want
    }
    matrices = {matrix: found[matrix] for matrix in MATRICES if matrix in want}
    return Attended(
        z=found["z"],
        lse=found.get("lse"),
        statistics=Statistics(**statistics) if statistics else None,
        **matrices,
    )
