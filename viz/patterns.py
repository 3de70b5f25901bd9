"""Names that heads have before a page is made: what the page's model view marks.

What `minibert.survey.patterns.patterns` gives, or lists of heads -> checked -> the header's
`patterns`
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minibert.analysis.arguments import is_whole
from minibert.errors import AttentionError

if TYPE_CHECKING:
    from minibert.survey.patterns import HeadPatterns

__all__ = ["patterns_header"]

_FORMS = "expected what patterns(model, texts) returns, or lists of (layer, head) by name"
_DECIMALS = 4
_LONGEST = 60


def patterns_header(given: Any, n_layers: int, n_heads: int) -> list[dict[str, Any]] | None:
    """The patterns that name heads, with these heads and their scores, for a header; None for None.

    Raises AttentionError for another form, and for heads that a model of these sizes has not.
    """
    if given is None:
        return None
    # Pages without names need not wait for what a survey needs.
    from minibert.survey.patterns import HeadPatterns

    if isinstance(given, HeadPatterns):
        if given.shape != (n_layers, n_heads):
            raise AttentionError(
                f"patterns are of a model of {given.shape[0]} layers of {given.shape[1]} heads, "
                f"and the page is of one of {n_layers} layers of {n_heads}"
            )
        return _of_result(given)
    if not isinstance(given, Mapping):
        raise AttentionError(f"patterns is {type(given).__name__}, {_FORMS}")
    return [_of_list(name, heads, n_layers, n_heads) for name, heads in given.items()]


def _of_result(given: "HeadPatterns") -> list[dict[str, Any]]:
    from minibert.survey.pattern_table import PATTERNS

    named = given.named()
    found = []
    for name, pattern in PATTERNS.items():
        heads = [place for place, names in named.items() if name in names]
        scores = [[*place, round(float(given.score[name][place]), _DECIMALS)] for place in heads]
        if scores:
            label, says = pattern.label, pattern.words
            found.append({"name": name, "label": label, "says": says, "heads": scores})
    return found


def _of_list(name: Any, heads: Any, n_layers: int, n_heads: int) -> dict[str, Any]:
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST:
        raise AttentionError(f"patterns: {name!r:.80} is no name of 1 to {_LONGEST} characters")
    try:
        places = [tuple(place) for place in heads]
    except TypeError as error:
        raise AttentionError(f"patterns[{name!r}] is {heads!r:.80}, {_FORMS}") from error
    for place in places:
        whole = len(place) == 2 and all(map(is_whole, place))
        if not whole or not (0 <= place[0] < n_layers and 0 <= place[1] < n_heads):
            raise AttentionError(
                f"patterns[{name!r}] has {place!r:.80}; expected (layer, head) below "
                f"({n_layers}, {n_heads})"
            )
    whole_places = [[int(layer), int(head), None] for layer, head in places]
    return {"name": name, "label": name, "says": "", "heads": whole_places}
