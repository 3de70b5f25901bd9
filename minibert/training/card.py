"""The card of a trained model: README.md for people, training.json for programs."""

import json
import platform
from pathlib import Path
from typing import Any

from minibert.model import Model
from minibert.training.snapshot import write_atomically
from minibert.untrusted import present

_KINDS = {
    "causal-lm": "a causal LM",
    "masked-lm": "a masked LM",
    "pre-training": "a masked LM with next-sentence prediction",
}
_PIPELINES = {"causal-lm": "text-generation", "masked-lm": "fill-mask", "pre-training": "fill-mask"}


def write_card(
    folder: Path, model: Model, about: dict[str, Any], log: list[dict[str, Any]], *, seconds: float
) -> None:
    """Write README.md and training.json into the folder of a trained model.

    An existing README.md that minibert did not write is kept.
    """
    last = log[-1] if log else {}
    facts = {
        "texts": sorted(about["texts"]),
        "held_out": sorted(about["held_out"]),
        "recipe": about["recipe"],
        "started_from": about["start"],
        "seconds": round(seconds),
        "machine": f"{platform.machine()}, {about['device']}, torch {about['torch']}",
        "last": last,
    }
    write_atomically(folder / "training.json", json.dumps(facts, indent=1) + "\n")
    path = folder / "README.md"
    if not present(path) or (path.is_file() and _MARK.encode() in _start_of(path)):
        write_atomically(path, _card(model, facts))


def _start_of(path: Path) -> bytes:
    # The mark stands above the text, and the README of somebody else may be of any length.
    with path.open("rb") as file:
        return file.read(2**12)


_MARK = "<!-- written by minibert train -->"


def _card(model: Model, facts: dict[str, Any]) -> str:
    config, recipe, last = model.config, facts["recipe"], facts["last"]
    size = sum(parameter.numel() for parameter in model.parameters())
    rows = {
        "texts": ", ".join(facts["texts"]),
        "held out": ", ".join(facts["held_out"]),
        "steps": f"{recipe['steps']:,}, {last.get('tokens', 0):,} tokens",
        "recipe": ", ".join(f"{key} {value}" for key, value in recipe.items() if key != "steps"),
        "time": f"{facts['seconds'] / 60:.0f} minutes on {facts['machine']}",
        "held-out loss": f"{last.get('held_out_loss', float('nan')):.3f} nats a predicted token",
    }
    for pattern, heads in best_heads(last.get("heads", {})).items():
        rows[f"{pattern} heads"] = ", ".join(f"{name} {score:.2f}" for score, name in heads[:3])
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return f"""---
pipeline_tag: {_PIPELINES[config.task]}
---

{_MARK}

# {model.name}

A {config.family} of {config.n_layers} layers x {config.n_heads} heads, {config.d_model} wide, \
{config.vocab_size:,} tokens in the vocabulary, {config.n_positions} positions: \
{_KINDS[config.task]} with {size / 1e6:.2f} million parameters, trained from scratch by \
`minibert train`. transformers loads the folder as well.

| | |
|---|---|
{table}

`scores.jsonl` holds the losses and the scores of all heads during the training.
"""


def best_heads(heads: dict[str, list[list[float | None]]]) -> dict[str, list[tuple[float, str]]]:
    """For each pattern that was measured its heads by score, the highest first."""
    found = {
        pattern: [
            (score, f"{layer}-{head}")
            for layer, row in enumerate(layers)
            for head, score in enumerate(row)
            if score is not None
        ]
        for pattern, layers in heads.items()
    }
    return {pattern: sorted(scores, reverse=True) for pattern, scores in found.items() if scores}
