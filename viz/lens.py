"""What each layer would predict, as a page holds it: `analysis.lens` made small."""

from typing import Any

import torch

from minibert.analysis.lens import logit_lens
from minibert.analysis.positions import rows_of
from minibert.analysis.vocabulary import vocabulary_head
from minibert.errors import AttentionError, MinibertError
from minibert.trace.read import Trace

__all__ = ["computed_lens", "has_lens", "lens_of"]

_TOP = 5
# Multiplications that a page may cost beside the model's own: under a second on two cores.
_CHEAP = 2 * 10**10
# What is shown has two digits; more would only make the file longer.
_DECIMALS = 5

_NO_HEAD = "lens=True: {reason}"
_NONE = (
    "There is no picture of what each layer would predict: this model has no output head over"
    " words."
)
_LONG = (
    "What each layer would predict is left out, since it would take longer than the model itself;"
    " view(..., lens=True) puts it in."
)


def lens_of(
    trace: Any, sentence: int, length: int, wanted: bool | None
) -> tuple[dict[str, Any] | None, str]:
    """The header's `lens` of a sentence of a trace, or None and a note that says why not.

    For `wanted` None it is there where the model has a vocabulary head and reading it is cheap.
    Raises AttentionError where it is wanted and the model has none.
    """
    if wanted is False or (wanted is None and not isinstance(trace, Trace)):
        return None, ""
    try:
        vocabulary_head(trace.model)
    except (MinibertError, AttributeError) as error:
        if wanted:
            raise AttentionError(_NO_HEAD.format(reason=error)) from error
        return None, _NONE
    config = trace.config
    cost = (len(trace) + 1) * length * config.d_model * config.vocab_size
    if wanted is None and cost > _CHEAP:
        return None, _LONG
    return computed_lens(trace, sentence, length), ""


def has_lens(trace: Trace) -> bool:
    """True where the trace's model has a vocabulary head, which reads what each layer leaves."""
    try:
        vocabulary_head(trace.model)
    except MinibertError:
        return False
    return True


def computed_lens(trace: Trace, sentence: int, length: int) -> dict[str, Any]:
    """`lens` of data.js: points, and the 5 most probable tokens at each, by position.

    Raises TraceError for a model without a vocabulary head.
    """
    one = rows_of(trace, torch.tensor([sentence]), torch.arange(length)[None])
    lens = logit_lens(one, points=("embed", "resid_post"), top=_TOP)
    probs = [
        [[round(p, _DECIMALS) for p in ranks] for ranks in row[0]] for row in lens.probs.tolist()
    ]
    strings = [[list(ranks) for ranks in row[0]] for row in lens.strings]
    return {"points": list(lens.labels), "probs": probs, "strings": strings}
