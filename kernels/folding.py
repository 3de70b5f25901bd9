"""A call in another form, for implementations that do not take it as it is.

Lengths, causal order, a window and a prefix become a mask; ALiBi a bias; fewer key heads are
repeated; pages are put one after the other; packed sentences are padded, or computed one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minibert.kernels.call import Call, Outputs, Want
from minibert.quantities import Float, Int


def folded(call: Call, taken: frozenset[str]) -> Call:
    """The call for an implementation with these options and shapes."""
    if call.pages is not None and "pages" not in taken:
        call = gathered(call)
    if "groups" in call.asks and "groups" not in taken:
        group = call.query.shape[1] // call.key.shape[1]
        key, value = (one.repeat_interleave(group, dim=1) for one in (call.key, call.value))
        call = replace(call, key=key, value=value)
    # An implementation with ALiBi counts positions from the end of all keys.
    alibi = "alibi_slopes" in taken and call.allowed.aligned
    if call.alibi_slopes is not None and not alibi:
        call = replace(call, bias=call.biases, alibi_slopes=None)
    return _masked(call, taken) if "mask" in taken else call


def _masked(call: Call, taken: frozenset[str]) -> Call:
    """The call with a mask in place of options that the implementation does not take."""
    keys = call.allowed
    left = keys.options - taken
    # A prefix is seen in spite of causal order: both are in the mask, or neither.
    in_mask = {
        "lengths": "lengths" in left,
        "order": bool({"causal", "prefix"} & left) and "causal" in keys.options,
        "window": "window" in left,
    }
    if not any(in_mask.values()):
        return call
    given = keys.mask(call.query.shape[2], **in_mask)
    # Where queries do not stand at the end the mask says what their order allows.
    order, window = in_mask["order"] or not keys.aligned, in_mask["window"] or not keys.aligned
    allowed = replace(
        keys,
        given=given,
        queries=None,
        ends=None,
        lengths=None if in_mask["lengths"] else keys.lengths,
        on_device=None if in_mask["lengths"] else keys.on_device,
        causal=keys.causal and not order,
        prefix=None if order else keys.prefix,
        window=None if window else keys.window,
    )
    return replace(call, allowed=allowed)


def gathered(call: Call) -> Call:
    """The keys and values of each sentence's pages, one after the other."""
    pages, lengths = call.pages, call.lengths
    assert pages is not None
    assert lengths is not None
    key, value = (_gathered(one, pages, lengths) for one in (call.key, call.value))
    # As a mask: beside lengths, as many queries as keys would count as padded self-attention.
    real = (torch.arange(key.shape[2], device=key.device) < lengths[:, None])[:, None, None]
    given = real if call.allowed.given is None else call.allowed.given & real
    allowed = replace(
        call.allowed, position=key.shape[2], ends=lengths, lengths=None, on_device=None, given=given
    )
    return replace(call, key=key, value=value, allowed=allowed, pages=None)


def _gathered(
    vectors: Float[Tensor, "n_pages kv_head slot size"],
    pages: Int[Tensor, "batch page"],
    lengths: Int[Tensor, " batch"],
) -> Float[Tensor, "batch kv_head key size"]:
    # What lies beyond a length is not read: it may name no page, and hold NaN.
    slots = vectors.shape[2]
    used = torch.arange(pages.shape[1], device=pages.device) * slots < lengths[:, None]
    found = vectors[torch.where(used, pages, 0).long()]  # batch page kv_head slot size
    found = found.transpose(1, 2).flatten(2, 3)
    real = torch.arange(found.shape[2], device=pages.device) < lengths[:, None]
    return torch.where(real[:, None, :, None], found, 0)


def reads_packed(asked: frozenset[str], taken: frozenset[str]) -> bool:
    """True where packed sentences are passed on unchanged.

    Not where something else becomes a mask or a bias, which packed sentences do not have.
    """
    return "packed" in taken and asked - taken <= {"groups"}


def padded_call(call: Call) -> Call:
    """Packed sentences as a batch, one sentence a row, zeros after its tokens."""
    queries, keys = _counts(call)

    def rows(vectors: Tensor, counts: Sequence[int]) -> Tensor:
        sentences = vectors[0].transpose(0, 1).split(list(counts))
        return pad_sequence(list(sentences), batch_first=True).transpose(1, 2)

    key, value = rows(call.key, keys), rows(call.value, keys)
    query, allowed = rows(call.query, queries), call.allowed.padded
    return replace(call, query=query, key=key, value=value, allowed=allowed)


def unpadded(outputs: Mapping[str, Tensor], call: Call) -> Outputs:
    """The rows of the tokens of what a `padded_call` gave, one after the other."""
    queries, keys = _counts(call)
    return {
        name: torch.cat(
            [
                rows[:, :n]
                for rows, n in zip(output, keys if name == "received" else queries, strict=True)
            ],
            dim=1,
        )[None]
        for name, output in outputs.items()
    }


def sentence_by_sentence(attend: Callable[[Call], Outputs], call: Call) -> Outputs:
    """The outputs of `attend` for each packed sentence by itself, concatenated along the tokens."""
    queries, keys = _counts(call)
    parts = [call.query.split(list(queries), dim=2)]
    parts += [vectors.split(list(keys), dim=2) for vectors in (call.key, call.value)]
    found, first, first_query = [], 0, 0
    for allowed, *vectors in zip(call.allowed.sentences, *parts, strict=True):
        length, want = allowed.position, call.want
        own = dict(zip(("query", "key", "value"), vectors, strict=True))
        one = attend(
            replace(call, **own, allowed=allowed, want=_within(want, first_query, first, length))
        )
        first, first_query = first + length, first_query + vectors[0].shape[2]
        if "key_mass" in want:
            inside = torch.tensor([n < length for n in want["key_mass"]], device=call.query.device)
            one = one | {"key_mass": torch.where(inside, one["key_mass"], 0)}
        found.append(one)
    outputs = {
        name: torch.cat([one[name] for one in found], dim=2)
        for name in ("z", "lse", *call.want)
        if name in found[0] and name != "pair_mass"
    }
    if "pair_mass" in call.want:
        # Each sentence gives 0 for the pairs of the others.
        outputs["pair_mass"] = torch.stack([one["pair_mass"] for one in found]).sum(0)
    return outputs


def _within(want: Want, first_query: int, first: int, length: int) -> Want:
    """The call for the one sentence that starts at these rows and has so many keys."""
    own: Want = {}
    if "key_mass" in want:
        own["key_mass"] = tuple(min(n, length - 1) for n in want["key_mass"])
    if "key_sums" in want:
        own["key_sums"] = want["key_sums"][:, :, first : first + length]
    if "pair_mass" in want:
        pairs = want["pair_mass"] - want["pair_mass"].new_tensor([first_query, first])
        inside = (pairs >= 0).all(-1, keepdim=True) & (pairs[..., 1:] < length)
        own["pair_mass"] = torch.where(inside, pairs, -1)
    return want | own


def _counts(call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The queries and the keys of each packed sentence."""
    assert call.packed is not None
    return call.packed, call.packed_keys or call.packed
