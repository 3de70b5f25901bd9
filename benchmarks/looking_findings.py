"""What a survey and the probes say of each claim in looking_claims.py: a number, where, a verdict.

Where a claim has a threshold, it holds when the whole 95 % interval is on the right side of it.
Layers and heads are counted from 0. Dependency heads and probes are chosen and trained on the dev
part of English EWT and measured on its test part (the train part is not in the data); antecedent
heads are chosen on every other book of LitBank and measured on the rest, and chosen on the
development part of GAP and measured on its validation part.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minibert.model import Model
from minibert.survey import Document, Sentence, read_sentences, survey
from minibert.survey.distances import HeadDistances
from minibert.survey.head_map import layer_closeness
from minibert.survey.patterns import HeadPatterns
from minibert.survey.probes import (
    antecedent_scores,
    attachment_scores,
    count_antecedents,
    count_dependencies,
    cut_book,
    read_book,
    read_gap,
    relation_scores,
)
from minibert.survey.query_key_dimensions import QueryKeyDimensions
from minibert.survey.tables import Survey

Values = NDArray[np.float64]
Probes = dict[tuple[str, str], list[dict[str, Any]]]
_Z95 = 1.959963984540054


@dataclass(frozen=True, eq=False)
class Evidence:
    """What was measured of one model.

    gradients  (document, layer), as `sep_gradients` gives them
    probes     the scores by probe and data
    """

    survey: Survey
    patterns: HeadPatterns
    dimensions: QueryKeyDimensions
    distances: HeadDistances
    gradients: Values | None
    probes: Probes


@dataclass(frozen=True)
class Finding:
    """A number, its 95 % interval where it has one, where it was found, and what follows.

    `holds` is None where the claim cannot be asked of a model; `where` then says why.
    """

    value: float | None
    where: str
    holds: bool | None
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        """What follows, in words."""
        if self.holds is None:
            return "cannot be asked"
        return "holds" if self.holds else "does not hold"


def not_asked(why: str) -> Finding:
    """The finding of a claim that cannot be asked of a model."""
    return Finding(None, why, None)


# Numbers of heads and of layers.


def of_heads(survey: Survey, measure: str) -> Values:
    """(number, layer, head): mean over documents, and the ends of its interval."""
    return np.stack([survey.table(measure), *np.moveaxis(survey.interval(measure), -1, 0)])


def of_layers(survey: Survey, measure: str) -> Values:
    """(number, layer): the mean over the heads of a layer, and the ends of its interval.

    The interval is the mean of the heads' intervals: the standard error of a mean is at most the
    mean of the standard errors, so it is rather too wide.
    """
    return np.asarray(of_heads(survey, measure).mean(-1))


def named(heads: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{layer}-{head}" for layer, head in heads)


def over_half(survey: Survey, measure: str) -> list[tuple[int, int]]:
    """The heads whose whole interval is above a half, the highest first."""
    mean, low, _ = of_heads(survey, measure)
    return sorted(map(tuple, np.argwhere(low > 0.5).tolist()), key=lambda place: -mean[place])


def on_itself(evidence: Evidence) -> Finding:
    mean, low, high = (each.ravel() for each in of_heads(evidence.survey, "to_self"))
    middle = int(np.argsort(mean)[(len(mean) - 1) // 2])
    least = int((high < 0.1).sum())
    return Finding(
        float(mean[middle]),
        f"the middle head; {least} of {len(mean)} heads are below 10 %",
        bool(high[middle] < 0.1),
        float(low[middle]),
        float(high[middle]),
    )


def on_a_neighbour(measure: str) -> Callable[[Evidence], Finding]:
    def find(evidence: Evidence) -> Finding:
        numbers = of_heads(evidence.survey, measure)
        best = np.unravel_index(numbers[0].argmax(), numbers[0].shape)
        mean, low, high = numbers[:, *best].tolist()
        heads = over_half(evidence.survey, measure)
        where = f"best head {best[0]}-{best[1]}; over half: {named(heads) or 'none'}"
        return Finding(mean, where, bool(heads), low, high)

    return find


def neighbours_are_early(evidence: Evidence) -> Finding:
    heads = over_half(evidence.survey, "to_previous") + over_half(evidence.survey, "to_next")
    if not heads:
        return not_asked("no head puts more than half on the next or the previous token")
    depth = float(np.mean([layer for layer, _ in heads])) / (evidence.survey.n_layers - 1)
    return Finding(depth, f"heads {named(heads)}", depth < 0.5)


def on_sep(evidence: Evidence) -> Finding:
    mean, low, high = of_layers(evidence.survey, "to_sep")
    layer = int(mean.argmax())
    over = [str(one) for one in np.flatnonzero(low > 0.5)]
    where = f"layer {layer} of {len(mean)}; over half in: {', '.join(over) or 'none'}"
    holds = bool(low[layer] > 0.5) and 2 * layer >= len(mean) - 1
    return Finding(float(mean[layer]), where, holds, float(low[layer]), float(high[layer]))


def sep_on_sep(evidence: Evidence) -> Finding:
    layer = int(of_layers(evidence.survey, "to_sep")[0].argmax())
    mean, low, high = of_layers(evidence.survey, "sep_to_sep")[:, layer].tolist()
    return Finding(mean, f"layer {layer}, mean of its heads", low > 0.9, low, high)


def most_in(measure: str, *, early: bool) -> Callable[[Evidence], Finding]:
    """The layer with the most of a measure, and whether it is in the right half."""

    def find(evidence: Evidence) -> Finding:
        mean, low, high = of_layers(evidence.survey, measure)
        layer = int(mean.argmax())
        is_early = 2 * layer < len(mean) - 1
        where = f"layer {layer} of {len(mean)}"
        holds = is_early == early
        return Finding(float(mean[layer]), where, holds, float(low[layer]), float(high[layer]))

    return find


def gradients_on_sep(evidence: Evidence) -> Finding:
    """Those from the first layer with over half on [SEP] on, by those of the layers before."""
    if evidence.gradients is None:
        return not_asked("the model predicts no words, so it has no such loss")
    over = of_layers(evidence.survey, "to_sep")[1] > 0.5
    first = int(over.argmax())
    if not over.any() or first == 0:
        return not_asked("no layer begins to have over half on [SEP]")
    before, since = (part.mean(1) for part in np.split(evidence.gradients, [first], axis=1))
    ratio = float(since.mean() / before.mean())
    # The standard error of a ratio of two means: Cochran 1977, section 2.11.
    spread = float((since - ratio * before).std(ddof=1))
    half = _Z95 * spread / len(before) ** 0.5 / float(before.mean())
    shown = ", ".join(f"{value:.4f}" for value in evidence.gradients.mean(0))
    where = f"of what it is in the layers before {first}; mean size by layer: {shown}"
    return Finding(ratio, where, ratio + half < 0.5, ratio - half, ratio + half)


def broad_heads_are_low(evidence: Evidence) -> Finding:
    layers = of_layers(evidence.survey, "entropy")
    half = layers.shape[1] // 2
    first, rest = layers[:, :half].mean(1), layers[:, -half:].mean(1)
    where = f"{first[0]:.2f} nats in the first half, {rest[0]:.2f} in the second"
    low, high = first[1] - rest[2], first[2] - rest[1]
    return Finding(float(first[0] - rest[0]), where, bool(low > 0), float(low), float(high))


def broadest_head(evidence: Evidence) -> Finding:
    entropy = evidence.survey.table("entropy")
    layer, head = np.unravel_index(entropy.argmax(), entropy.shape)
    mean, low, high = of_heads(evidence.survey, "most_received")[:, layer, head].tolist()
    where = f"head {layer}-{head}, entropy {entropy[layer, head]:.2f} nats"
    return Finding(mean, where, high < 0.1, low, high)


def cls_looks_broadly(evidence: Evidence) -> Finding:
    of_cls = of_layers(evidence.survey, "entropy_cls")[:, -1]
    of_all = of_layers(evidence.survey, "entropy")[:, -1]
    where = f"last layer; all tokens there: {of_all[0]:.2f} nats"
    mean, low, high = of_cls.tolist()
    return Finding(mean, where, low > of_all[2], low, high)


def sep_by_norm(evidence: Evidence) -> Finding:
    plain, at_least, _ = of_layers(evidence.survey, "to_sep")
    layer = int(plain.argmax())
    if at_least[layer] <= 0.5:
        return not_asked(f"no layer has over half on [SEP]; layer {layer} has {plain[layer]:.0%}")
    mean, low, high = of_layers(evidence.survey, "to_sep_by_norm")[:, layer].tolist()
    where = f"layer {layer}, where weights alone give {plain[layer]:.0%}"
    return Finding(mean, where, high < plain[layer] / 2, low, high)


def heads_of_a_layer(evidence: Evidence) -> Finding:
    found = evidence.distances
    close = layer_closeness(found)
    n_layers, n_heads = found.shape
    layer = np.repeat(np.arange(n_layers), n_heads)
    same = layer[:, None] == layer
    other = ~np.eye(len(layer), dtype=bool)
    error = found.standard_error
    half = _Z95 * float(error[same & other].mean() + error[~same].mean())
    value = close.between - close.within
    where = (
        f"{close.within:.3f} nats within a layer, {close.between:.3f} between layers; the nearest "
        f"head is in the same layer for {close.nearest:.0%} (by chance {close.chance:.0%})"
    )
    return Finding(value, where, value - half > 0, value - half, value + half)


# Patterns and dimensions.


def pattern(name: str) -> Callable[[Evidence], Finding]:
    def find(evidence: Evidence) -> Finding:
        best = evidence.patterns.best(name, count=1)
        if not best:
            return not_asked("no document has rows that count")
        [one] = best
        heads = [place for place, names in evidence.patterns.named().items() if name in names]
        where = f"best head {one.layer}-{one.head}, baseline {one.baseline:.0%}; {len(heads)} named"
        return Finding(one.score, where, bool(heads), one.low, one.high)

    return find


def fewer_dimensions(name: str) -> Callable[[Evidence], Finding]:
    def find(evidence: Evidence) -> Finding:
        places = evidence.patterns.named()
        counts = {
            one: [
                float(evidence.dimensions.participation[place])
                for place, names in places.items()
                if one in names
            ]
            for one in (name, "next")
        }
        if missing := [one for one, values in counts.items() if not values]:
            return not_asked(f"no head is named {' or '.join(missing)}")
        mine, theirs = (float(np.mean(values)) for values in counts.values())
        where = (
            f"of {evidence.dimensions.d_head}, {len(counts[name])} heads; next word {theirs:.1f}, "
            f"{len(counts['next'])} heads"
        )
        return Finding(mine, where, mine < theirs, min(counts[name]), max(counts[name]))

    return find


def many_dimensions(evidence: Evidence) -> Finding:
    heads = [place for place, names in evidence.patterns.named().items() if "next" in names]
    if not heads:
        return not_asked("no head is named next")
    counts = [float(evidence.dimensions.participation[place]) for place in heads]
    value, d_head = float(np.mean(counts)), evidence.dimensions.d_head
    where = f"of {d_head}, heads {named(heads)}"
    return Finding(value, where, 2 * value > d_head, min(counts), max(counts))


_MEASURE = "gradient_to_sep"


def sep_gradients(model: Any, pairs: Iterable[Document]) -> Values | None:
    """(document, layer): mean |∂L/∂α| of attention on [SEP]; None where no words are predicted."""
    if model.config.task not in ("pre-training", "masked-lm"):
        return None
    rows = [
        survey(model, [pair], measures=[_MEASURE], gradients=True, profile=False)
        .table(_MEASURE)
        .mean(1)
        for pair in pairs
    ]
    return np.array(rows)


EWT, LITBANK, GAP = "EWT test", "LitBank, the other books", "GAP validation"
# The least positions that hold every text of GAP and every sentence of EWT.
_POSITIONS = 512
_LEAST_INSTANCES = 20
_LONGEST_PASSAGE = 128


def probes_of(model: Any, data: Path, limit: int | None) -> Probes:
    """The scores by probe and data, of at most `limit` sentences or passages of each part."""
    dev, test = treebank(model, data, limit)
    counts = count_dependencies(model, dev), count_dependencies(model, test)
    untrained = Model.from_config(model.config, tokenizer=model.tokenizer)
    found: dict[tuple[str, str], Sequence[Any]] = {
        ("dependency", EWT): relation_scores(*counts, least=1 if limit else _LEAST_INSTANCES),
        ("parser", EWT): attachment_scores(model, dev, test, random_model=untrained),
        ("coreference", LITBANK): coreference(model, litbank(model, data), limit),
    }
    if model.config.n_positions >= _POSITIONS:
        folder = data / "text" / "gap"
        parts = [read_gap(folder / f"gap-{part}.tsv") for part in ("development", "validation")]
        found["coreference", GAP] = coreference(model, parts, limit)
    return {key: [asdict(one) for one in scores] for key, scores in found.items()}


def treebank(model: Any, data: Path, limit: int | None) -> list[list[Sentence]]:
    """The sentences of both parts of EWT that fit into the model."""

    def fits(one: Sentence) -> bool:
        ids = model.tokenize(" ".join(one.words), truncate=True).ids
        return bool(ids.shape[1] < model.config.n_positions)

    folder = data / "text" / "ud-english-ewt"
    paths = [folder / f"en_ewt-ud-{part}.conllu" for part in ("dev", "test")]
    return [list(filter(fits, islice(read_sentences(path), limit))) for path in paths]


def litbank(model: Any, data: Path) -> list[Iterator[Any]]:
    """The passages of every other book, and of the rest."""
    books = sorted((data / "text" / "litbank" / "coref" / "conll").iterdir())
    return [
        (one for path in half for one in cut_book(model, read_book(path), _LONGEST_PASSAGE))
        for half in (books[::2], books[1::2])
    ]


def coreference(model: Any, parts: Sequence[Iterable[Any]], limit: int | None) -> Sequence[Any]:
    chosen, measured = (count_antecedents(model, islice(part, limit)) for part in parts)
    return antecedent_scores(chosen, measured)


def relation(name: str) -> Callable[[Evidence], Finding]:
    def find(evidence: Evidence) -> Finding:
        scores = evidence.probes["dependency", EWT]
        [one] = [score for score in scores if score["relation"] == name] or [None]
        if one is None:
            return not_asked(f"the treebank has too few words with the relation {name}")
        where = (
            f"head {one['layer']}-{one['head']}; fixed offset {one['offset']:+d}: "
            f"{one['offset_accuracy']:.0%}"
        )
        low, high = one["low"], one["high"]
        return Finding(one["accuracy"], where, low > one["offset_accuracy"], low, high)

    return find


def no_head_does_all(evidence: Evidence) -> Finding:
    found = relation("all")(evidence)
    if found.value is None or found.high is None:
        return found
    return Finding(found.value, found.where, found.high < 0.5, found.low, found.high)


def antecedents(data: str) -> Callable[[Evidence], Finding]:
    def find(evidence: Evidence) -> Finding:
        scores = evidence.probes.get(("coreference", data))
        if scores is None:
            return not_asked("some of its texts are longer than the model's positions")
        [one] = [score for score in scores if score["kind"] == "all"]
        # Of pronouns alone, as in GAP, no head word is the same.
        known = ("nearest", "same head word")
        rules = {name: share for name, share in one["baselines"].items() if name in known}
        name = max(rules, key=rules.__getitem__)
        where = f"head {one['layer']}-{one['head']}; {name}: {rules[name]:.0%}"
        return Finding(one["accuracy"], where, one["low"] > rules[name], one["low"], one["high"])

    return find


def attachment(name: str, over: Sequence[str]) -> Callable[[Evidence], Finding]:
    """A probe's score, which is to be above the best of some others."""

    def find(evidence: Evidence) -> Finding:
        by_name = {score["name"]: score for score in evidence.probes["parser", EWT]}
        one, other = by_name[name], max((by_name[each] for each in over), key=lambda s: s["score"])
        where = f"{other['name']}: {other['score']:.0%}"
        return Finding(one["score"], where, one["low"] > other["high"], one["low"], one["high"])

    return find
