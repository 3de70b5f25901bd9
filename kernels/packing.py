"""Packed sentences: each taken out to be computed alone, or all of them padded into one batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minibert.kernels.requests import Want
from minibert.quantities import Float, Int

__all__ = ["padded", "sentence_by_sentence", "unpadded"]

Packed = Float[Tensor, "1 head token d_head"]


def sentence_by_sentence(
    attend: Callable[..., dict[str, Tensor]],
    query: Float[Tensor, "1 head query d_head"],
    key: Float[Tensor, "1 kv_head key d_head"],
    value: Float[Tensor, "1 kv_head key d_value"],
    *,
    packed: Sequence[int],
    want: Want,
    packed_keys: Sequence[int] | None = None,
    prefix: Int[Tensor, " sentence"] | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """What `attend` gives for each sentence alone, one after the other along the tokens."""
    keys = packed if packed_keys is None else packed_keys
    parts = [query.split(list(packed), dim=2)]
    parts += [vectors.split(list(keys), dim=2) for vectors in (key, value)]
    options |= {"lengths": None, "mask": None, "bias": None}
    found, first, first_query = [], 0, 0
    for number, (length, n_queries, *vectors) in enumerate(zip(keys, packed, *parts, strict=True)):
        if prefix is not None:
            options["prefix"] = prefix[number : number + 1]
        one = attend(*vectors, want=_within(want, first_query, first, length), **options)
        first, first_query = first + length, first_query + n_queries
        if "key_mass" in want:
            inside = torch.tensor([n < length for n in want["key_mass"]], device=query.device)
            one = one | {"key_mass": torch.where(inside, one["key_mass"], 0)}
        found.append(one)
    outputs = {
        name: torch.cat([one[name] for one in found], dim=2)
        for name in ("z", "lse", *want)
        if name in found[0] and name != "pair_mass"
    }
    if "pair_mass" in want:
        # Each sentence gives 0 for the pairs of the others.
        outputs["pair_mass"] = torch.stack([one["pair_mass"] for one in found]).sum(0)
    return outputs


def _within(want: Want, first_query: int, first: int, length: int) -> Want:
    """The same for the sentence that begins with these, and has so many keys."""
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


def padded(vectors: Packed, packed: Sequence[int]) -> Float[Tensor, "sentence head longest d_head"]:
    """Each sentence in a row of its own, with zeros behind its tokens."""
    sentences = vectors[0].transpose(0, 1).split(list(packed))
    return pad_sequence(list(sentences), batch_first=True).transpose(1, 2)


def unpadded(
    outputs: Mapping[str, Tensor], packed: Sequence[int], packed_keys: Sequence[int] | None = None
) -> dict[str, Tensor]:
    """The rows of the tokens of each output (sentence, head, longest, ...), one after the other."""
    keys = packed if packed_keys is None else packed_keys
    return {
        name: torch.cat(
            [
                rows[:, :n]
                for rows, n in zip(output, keys if name == "received" else packed, strict=True)
            ],
            dim=1,
        )[None]
        for name, output in outputs.items()
    }
