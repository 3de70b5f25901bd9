"""What heads and probes know of syntax and coreference, and what that says of the claims about it.

The committed result of benchmarks.probes is read. What it does not have of heads is measured in the
same way; probes, which take long to train, are not.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import probes
from benchmarks.looking_findings import Evidence, Finding, not_asked, not_measured
from benchmarks.session import RESULTS
from minibert.bench.result_rows import read_rows

__all__ = [
    "GAP",
    "LITBANK",
    "antecedents",
    "attachment",
    "no_head_does_all",
    "probes_of",
    "relation",
]

LITBANK, GAP = "LitBank, the other books", "GAP validation"
# The least positions that hold every text of GAP and every sentence of EWT.
_POSITIONS = 512
_LEAST_INSTANCES = 20

_NO_PROBES = "the committed results of benchmarks.probes do not have it"
_EWT = "EWT test"


def probes_of(
    name: str, model: Any, data: Path, limit: int | None
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The scores by probe and data: the committed ones of this model, and what can be measured."""
    files = sorted(RESULTS.glob("probes-*.jsonl"))
    rows = [row for row in (read_rows(files[-1]) if files else []) if row["model"] == name]
    found = {(row["probe"], row["on"]): row["scores"] for row in rows}
    measure = {("dependency", _EWT): dependency, ("coreference", LITBANK): probes.litbank}
    if model.config.n_positions >= _POSITIONS:
        measure["coreference", GAP] = probes.gap
    for key, scores in measure.items():
        if key not in found:
            found[key] = [asdict(one) for one in scores(model, data, limit)]
    return found


def dependency(model: Any, data: Path, limit: int | None) -> Sequence[Any]:
    """As benchmarks.probes measures it, on the sentences that fit into the model."""
    from minibert.survey.probes import count_dependencies, relation_scores

    def fits(words: Sequence[str]) -> bool:
        ids = model.tokenize(" ".join(words), truncate=True).ids
        return bool(ids.shape[1] < model.config.n_positions)

    parts = [[one for one in part if fits(one.words)] for part in probes.treebank(data, limit)]
    chosen, measured = (count_dependencies(model, part) for part in parts)
    return relation_scores(chosen, measured, least=1 if limit else _LEAST_INSTANCES)


def relation(name: str) -> Callable[[Evidence], Finding]:
    def find(evidence: Evidence) -> Finding:
        scores = evidence.probes.get(("dependency", _EWT))
        if scores is None:
            return not_measured(_NO_PROBES)
        [one] = [score for score in scores if score["relation"] == name] or [None]
        if one is None:
            return not_measured(f"the treebank has too few words with the relation {name}")
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
        scores = evidence.probes.get(("parser", _EWT))
        if scores is None:
            return not_measured(_NO_PROBES)
        by_name = {score["name"]: score for score in scores}
        one, other = by_name[name], max((by_name[each] for each in over), key=lambda s: s["score"])
        where = f"{other['name']}: {other['score']:.0%}"
        return Finding(one["score"], where, one["low"] > other["high"], one["low"], one["high"])

    return find
