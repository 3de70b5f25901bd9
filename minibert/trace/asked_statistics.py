"""What a trace asks of its kernel, and what it hands out: key positions are a sentence's own."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import Statistics
from minibert.kernels.call import Want, parse_want
from minibert.kernels.registry import check_name
from minibert.layers.evaluation import Evaluation
from minibert.trace.places import Places, check_index

__all__ = ["asked", "of_each_sentence", "of_one_sentence"]


def asked(statistics: Iterable[Any], allowed: AllowedKeys, impl: str) -> Evaluation:
    """The evaluation that gives these statistics; -1 in key_mass is a sentence's last token.

    The kernel is asked for every key that one of the sentences means; `key_columns` says which
    of them are whose. Raises AttentionError for what `minibert.attend` does not know either, and
    TraceError for a matrix and for a key that one of the sentences does not have.
    """
    check_name(impl)
    want = parse_want(statistics, n_keys=None)
    for name in ("scores", "probs"):
        if name in want:
            raise TraceError(
                f'statistics={name!r}: that is a matrix; ask for it as keep=("{name}",).'
            )
    for name in ("key_sums", "pair_mass", "profile"):
        if name in want:
            raise TraceError(
                f"statistics={name!r}: a trace has none of it, as it is not one number a token. "
                "Ask minibert.attend for it with the query, key and value of a layer."
            )
    if "key_mass" not in want:
        return Evaluation(allowed, impl, want)
    where = f'("key_mass", {want["key_mass"]}), text '
    chosen = [
        [
            check_index("key", key, length, TraceError, f"{where}{text}: ")
            for key in want["key_mass"]
        ]
        for text, length in enumerate(Places.of(allowed).lengths)
    ]
    keys = sorted({key for of_text in chosen for key in of_text})
    columns = tuple(tuple(keys.index(key) for key in of_text) for of_text in chosen)
    return Evaluation(allowed, impl, want | {"key_mass": tuple(keys)}, key_columns=columns)


def of_each_sentence(found: Statistics | None, evaluation: Evaluation) -> Statistics | None:
    """The statistics of a layer, key_mass with the columns that each sentence asked for."""
    if found is None or found.key_mass is None or evaluation.key_columns is None:
        return found
    mass, packed = found.key_mass, evaluation.allowed.packed
    columns = torch.tensor(evaluation.key_columns, device=mass.device)
    if packed is None:
        columns = columns[:, None, None]
    else:
        columns = columns.repeat_interleave(torch.tensor(packed, device=mass.device), 0)[None, None]
    return replace(found, key_mass=_columns(mass, columns))


def of_one_sentence(evaluation: Evaluation, index: int) -> Want:
    """What the statistics of this sentence alone would be asked with."""
    want = evaluation.want
    if evaluation.key_columns is None:
        return want
    keys = tuple(want["key_mass"][column] for column in evaluation.key_columns[index])
    return want | {"key_mass": keys}


def _columns(mass: Tensor, columns: Tensor) -> Tensor:
    return mass.gather(-1, columns.expand(*mass.shape[:-1], columns.shape[-1]))
