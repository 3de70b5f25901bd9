"""Drawn scores of every family, and how far their parts and what follows from them miss."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from minibert.analysis import why
from minibert.analysis.reasons import Why
from minibert.errors import TraceError
from minibert.trace.read import Trace
from tests.rotary.classes import LANGUAGE
from tests.vocabulary_models import ROTARY_CLASSES, VOCABULARY_CLASSES, both

CLASSES = dict(VOCABULARY_CLASSES) | LANGUAGE | dict(ROTARY_CLASSES)
CLASSES |= {"xlm-roberta": "XLMRobertaForMaskedLM", "camembert": "CamembertForMaskedLM"}
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-10}


def drawn_trace(model: Any, tokens: Any, data: Any) -> tuple[Trace, str]:
    """A trace of one sentence or of three, packed or padded, or with an edit, which it names."""
    kind = data.draw(st.sampled_from(["single", "padded", "packed", "edited"]))
    if kind == "single":
        return model.trace(tokens.ids[:1]), ""
    if kind != "edited":
        return model.trace(tokens, packed=kind == "packed"), ""
    name = data.draw(st.sampled_from(["embed", "z", "mlp_out"]))
    key = name if name == "embed" else (name, 0)
    return model.trace(tokens, edit={key: lambda value: 1.5 * value}), name


class Miss(NamedTuple):
    """How far the parts miss what they are of, as a share of the largest, and of ‖query‖ · ‖key‖.

    The second is 0 of what is not a score.
    """

    level: str
    of_largest: float
    of_lengths: float = 0.0

    def within(self, dtype: torch.dtype) -> bool:
        """Whether the parts add up as `why` promises."""
        limit = LIMITS[dtype]
        return self.of_largest <= limit or 0 < self.of_lengths <= limit / 10


def misses(family: str, chosen: Any, dtype: torch.dtype, data: Any) -> Iterator[Miss]:
    """Those of a drawn score, and of every level of `follow` below it."""
    _, model, _, tokens = both(family, CLASSES[family], chosen, dtype)
    (trace, edits), config = drawn_trace(model, tokens, data), model.config
    sentence = data.draw(st.integers(0, len(trace.tokens.lengths) - 1))
    length = trace.text(sentence).tokens.lengths[0]
    place = st.integers(0, length - 1)
    layer = data.draw(st.integers(0, config.n_layers - 1))
    head = data.draw(st.integers(0, config.n_heads - 1))
    query, key = sorted((data.draw(place), data.draw(place)), reverse=True)
    row = trace.text(sentence)[layer, head]
    seen = row.mask[0, 0, query]
    rows = ["row"] if seen[key] else []
    against = data.draw(st.sampled_from([None, *({0, 1} - {key} if query else []), *rows]))
    found = why(
        trace, layer, head, query, key, against=against, sentence=sentence,
        neurons=data.draw(st.sampled_from([0, 3])),
    )  # fmt: skip
    scores = row.scores[0, query].double()
    others = {None: scores[:0].sum(), "row": scores[seen].mean()}
    other = others[against] if against in others else scores[against]
    missed = abs(found.values.double().sum() - (scores[key] - other)).item()
    keys = row.key[0].norm(dim=-1)
    keys = keys[key] if against is None else keys.max()
    lengths = float(row.query[0, query].norm() * keys * model.body.layers[layer].attention.scale)
    largest = max(found.values.abs().max().item(), 1e-30)
    yield Miss("score", missed / largest, missed / lengths)
    for side in ("query", "key"):
        of = data.draw(st.sampled_from([None, f"{side}_component"]))
        own = {"query": "key_component", "key": "query_component"}[side]
        label = None if of is None else data.draw(st.sampled_from(list(found.labels[own])))
        number = found.side(side, of=label)
        axis = 1 - found.axes.index(own)
        expected = found.values.sum(1 - axis) if label is None else found.at(**{own: label})
        yield Miss(f"{side} side", (number.values - expected).abs().max().item() / largest)
        yield from to_the_end(number, edits, data)


def to_the_end(number: Why, edits: str, data: Any) -> Iterator[Miss]:
    """Follow a drawn component, then one at a drawn token, and so on."""
    while writers := [c for c in number.components if c.kind in ("head", "mlp")]:
        label = data.draw(st.sampled_from(writers))
        try:
            found = number.follow(label)
        except TraceError:
            # What an edit wrote does not follow from what was read.
            if label.startswith({"z": "head 0-", "mlp_out": "mlp 0"}[edits]):
                break
            raise
        size = max(number.values.abs().max().item(), found.values.abs().max().item(), 1e-30)
        missed = abs(found.values.double().sum() - number[label].double()).item()
        yield Miss("follow", missed / size)
        if not label.startswith("head "):
            break
        number = found.at_token(data.draw(st.integers(0, found.values.shape[0] - 1)))
