"""The names that `want=` understands, and what each one needs to know."""

from collections.abc import Iterable
from typing import Any

from minibert.errors import AttentionError

__all__ = ["MATRICES", "WANTS", "Want", "parse_want"]

#: What an implementation receives: name -> parameters; a name without any maps to ().
Want = dict[str, tuple[int, ...]]

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
)
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
        if name in parsed and parsed[name] != parameters:
            raise AttentionError(
                f"want asks for {name!r} twice, with {parsed[name]} and {parameters}. "
                "Put all of them in one entry."
            )
        _check_range(name, parameters, n_keys)
        parsed[name] = parameters
    return parsed


def _name_and_parameters(item: Any) -> tuple[str, tuple[int, ...]]:
    name, given = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
    if not isinstance(name, str) or name not in WANTS:
        raise AttentionError(
            f"want holds {item!r}, which is not known; known are {', '.join(WANTS)}; "
            'with parameters ("key_mass", positions), ("offset_mass", offsets), ("map", blocks).'
        )
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
