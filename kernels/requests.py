"""The names that `want=` understands, and what each one needs to know."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError

__all__ = ["MATRICES", "TENSORS", "WANTS", "Want", "check_tensors", "parse_want"]

#: What an implementation receives: name -> whole numbers, or a tensor for `TENSORS`; a name without
#: parameters maps to ().
Want = dict[str, Any]

MATRICES = ("scores", "probs")
WANTS = (
    *MATRICES,
    "row_max",
    "max_prob",
    "entropy",
    "argmax",
    "received",
    "key_mass",
    "offset_mass",
    "map",
    "key_sums",
    "pair_mass",
    "profile",
)
#: Those whose parameter is a tensor, by what it holds.
TENSORS = {
    "key_sums": "(batch, head, key, column) of floating numbers, batch and head may be 1",
    "pair_mass": "(batch, pair, 2) of query and key, whole numbers, batch may be 1",
}
_DEFAULTS: dict[str, tuple[int, ...]] = {"offset_mass": (-1, 0, 1), "map": (64,)}
#: Far beyond any text, and small enough to be added to a position in int64.
_LARGEST = 2**31 - 1
_PARAMETRISED = ("key_mass", "offset_mass", "map")


def parse_want(want: Iterable[Any], *, n_keys: int | None) -> Want:
    """What is wanted, by name, defaults filled in: ("map",) becomes {"map": (64,)}.

    Raises AttentionError for an unknown name, a missing parameter or one out of range. With n_keys
    None, whether there are such keys is left to the caller.
    """
    if isinstance(want, str):
        raise AttentionError(
            f"want is the text {want!r}; expected a tuple of names. Write want=({want!r},)."
        )
    if not isinstance(want, Iterable):
        raise AttentionError(
            f"want is {want!r}; expected a tuple of names, () for z and lse alone, "
            'for instance want=("entropy",).'
        )
    parsed: Want = {}
    for item in want:
        name, parameters = _name_and_parameters(item)
        if name in parsed and (name in TENSORS or parsed[name] != parameters):
            raise AttentionError(
                f"want asks for {name!r} twice, with {parsed[name]!s:.99} and {parameters!s:.99}. "
                "Put all of them in one entry."
            )
        if name not in TENSORS:
            _check_range(name, parameters, n_keys)
        parsed[name] = parameters
    return parsed


def check_tensors(
    want: Want,
    shape: tuple[int, int, int, int],
    *,
    packed: Iterable[int] | None,
    packed_keys: Iterable[int] | None = None,
) -> None:
    """Raises AttentionError where a wanted tensor does not fit a call with scores of this shape."""
    batch, heads, queries, keys = shape
    for name in TENSORS.keys() & want.keys():
        tensor = want[name]
        shape = tuple(tensor.shape)
        sizes = (batch, heads, keys) if name == "key_sums" else (batch,)
        fits = all(
            size == wanted or (size == 1 and axis < 2)
            for axis, (size, wanted) in enumerate(zip(shape, sizes, strict=False))
        )
        if not fits or (name == "pair_mass" and shape[-1] != 2):
            raise AttentionError(
                f"({name!r}, tensor of shape {shape}): expected {TENSORS[name]}; here batch is "
                f"{batch}, head {heads} and key {keys}."
            )
    if "pair_mass" in want:
        _check_pairs(want["pair_mass"], queries, keys, packed, packed_keys or packed)


def _check_pairs(
    pairs: Tensor,
    queries: int,
    keys: int,
    packed: Iterable[int] | None,
    packed_keys: Iterable[int] | None,
) -> None:
    query, key = pairs.unbind(-1)
    inside = (query >= 0) & (query < queries) & (key >= 0) & (key < keys)
    wrong = ~(inside | ((query == -1) & (key == -1)))
    if packed is not None and packed_keys is not None:
        of_query, of_key = (_sentences(one, pairs.device) for one in (packed, packed_keys))
        wrong |= inside & (of_query[query.clamp(0, queries - 1)] != of_key[key.clamp(0, keys - 1)])
    if bool(wrong.any()):
        _, number = wrong.nonzero()[0].tolist()
        raise AttentionError(
            f'("pair_mass", pairs): pair {number} is {pairs[:, number].tolist()[0]}; expected a '
            f"query from 0 to {queries - 1} and a key from 0 to {keys - 1}, of the same sentence "
            "where they are packed, or −1 and −1 for no pair."
        )


def _sentences(lengths: Iterable[int], device: torch.device) -> Tensor:
    """Which sentence each token is of."""
    numbers = torch.tensor(tuple(lengths), device=device)
    return torch.arange(len(numbers), device=device).repeat_interleave(numbers)


def _name_and_parameters(item: Any) -> tuple[str, Any]:
    name, given = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
    if not isinstance(name, str) or name not in WANTS:
        raise AttentionError(
            f"want holds {item!r:.200}, which is not known; known are {', '.join(WANTS)}; "
            'with parameters ("key_mass", positions), ("offset_mass", offsets), ("map", blocks), '
            '("key_sums", columns), ("pair_mass", pairs).'
        )
    if name in TENSORS:
        return name, _tensor(name, given)
    if given is None:
        if name == "key_mass":
            raise AttentionError(
                'want holds "key_mass" without key positions; '
                'say which, for instance ("key_mass", (0,)) for the first token.'
            )
        return name, _DEFAULTS.get(name, ())
    if name not in _PARAMETRISED:
        raise AttentionError(f"want gives {name!r} the parameter {given!r}; it takes none.")
    if name == "map":
        given = (given,)
    try:
        numbers = tuple(given)
    except TypeError:
        numbers = (given,)
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise AttentionError(
            f"want gives {name!r} the parameter {given!r}; expected whole numbers, "
            f"for instance ({name!r}, {64 if name == 'map' else (0, 1)})."
        )
    return name, numbers


def _tensor(name: str, given: Any) -> Tensor:
    axes = 4 if name == "key_sums" else 3
    if isinstance(given, Tensor) and given.ndim == axes:
        kind = given.dtype
        if kind.is_floating_point if name == "key_sums" else kind == torch.int64:
            return given
    told = f"{given.dtype}, {tuple(given.shape)}" if isinstance(given, Tensor) else f"{given!r:.80}"
    raise AttentionError(f"want gives {name!r} {told}; expected a tensor {TENSORS[name]}.")


def _check_range(name: str, parameters: tuple[int, ...], n_keys: int | None) -> None:
    if any(abs(number) > _LARGEST for number in parameters):
        raise AttentionError(
            f"({name!r}, {parameters}): expected numbers of at most {_LARGEST} either way."
        )
    if name == "map" and parameters[0] < 1:
        raise AttentionError(f'("map", {parameters[0]}): expected at least one block.')
    if name == "key_mass" and n_keys is not None:
        outside = [position for position in parameters if not 0 <= position < n_keys]
        if outside:
            raise AttentionError(
                f'("key_mass", {parameters}): positions {outside} do not exist; '
                f"there are {n_keys} keys, counted from 0 to {n_keys - 1}."
            )
