"""pyvene's answers, on transformers' models.

It knows GPT-2's points by name and has none for BERT; there, as its tutorial does, points are
modules of the model by their paths, and interventions are functions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case, Implementation, Prepared
from benchmarks.instruments import entry, tasks
from benchmarks.instruments.entry import Entry, unable
from benchmarks.instruments.tasks import Given, metric
from minibert.bench.gate import Outputs, require

Run = Callable[["Instrument", Given], Any]
Change = Callable[[Tensor, Any], Tensor]


class Instrument:
    """A transformers model and the paths of its points."""

    def __init__(self, case: Case) -> None:
        require("pyvene")
        self.model = case.transformers("sdpa", torch.float32, owner="pyvene")
        config = self.model.config
        bert = config.model_type == "bert"
        self.layers, self.heads = config.num_hidden_layers, config.num_attention_heads
        self.z = (
            "bert.encoder.layer[{}].attention.output.dense.input"
            if bert
            else ("transformer.h[{}].attn.c_proj.input")
        )
        self.stream = "bert.encoder.layer[{}].output" if bert else "transformer.h[{}].output"

    def edited(self, ids: Tensor, component: str, change: Change) -> Tensor:
        """Logits with one point changed."""
        import pyvene

        wrapped = pyvene.IntervenableModel(
            {"component": component, "intervention": change}, model=self.model
        )
        return wrapped(base={"input_ids": ids}, unit_locations=None)[1].logits

    def without_head(self, ids: Tensor, layer: int, head: int) -> Tensor:
        """Logits with z of a head 0."""

        def change(base: Tensor, source: Any) -> Tensor:
            base = base.clone()
            base.unflatten(-1, (self.heads, -1))[:, :, head] = 0
            return base

        return self.edited(ids, self.z.format(layer), change)

    def patched(self, ids: Tensor, layer: int, position: int, source: Tensor) -> Tensor:
        """Logits with what leaves a layer at one position from another pass."""

        def change(base: Tensor, _: Any) -> Tensor:
            base = base.clone()
            base[:, position] = source[:, position]
            return base

        return self.edited(ids, self.stream.format(layer), change)

    def streams(self, ids: Tensor) -> list[Tensor]:
        """What leaves each layer, collected."""
        import pyvene

        points = [
            {"component": self.stream.format(n), "intervention": pyvene.CollectIntervention()}
            for n in range(self.layers)
        ]
        wrapped = pyvene.IntervenableModel(points, model=self.model)
        (_, collected), _ = wrapped(base={"input_ids": ids}, unit_locations=None)
        return [value[None] if value.dim() == 2 else value for value in collected]


def ablation(model: Instrument, given: Given) -> Tensor:
    return model.without_head(given.ids, given.layer, given.head)


def beside_clean(model: Instrument, given: Given) -> tuple[Tensor, Tensor]:
    return model.model(given.ids).logits, ablation(model, given)


def head_sweep(model: Instrument, given: Given) -> tuple[Tensor, Tensor]:
    measured = metric(given)
    values = torch.empty(model.layers, model.heads)
    for layer in range(model.layers):
        for head in range(model.heads):
            values[layer, head] = measured(model.without_head(given.ids, layer, head))
    return values, measured(model.model(given.ids).logits)[0]


def patch_sweep(model: Instrument, given: Given) -> tuple[Tensor, Tensor]:
    measured, source = metric(given), model.streams(given.other)
    values = torch.empty(model.layers, given.ids.shape[1])
    for layer in range(model.layers):
        for position in range(values.shape[1]):
            logits = model.patched(given.ids, layer, position, source[layer])
            values[layer, position] = measured(logits)
    return values, measured(model.model(given.ids).logits)[0]


def prepare(case: Case, *, run: Run, read: Callable[[Any], Outputs]) -> Prepared:
    return Prepared(partial(run, entry.once(case, Instrument)), read)


def without_probs(case: Case) -> Prepared:
    """pyvene reads what modules read and give; its attention_weight is a dropout module's input."""
    require("pyvene")
    return unable(
        "it reaches what modules read and give first; transformers computes probs in a function"
    )(case)


ROWS: list[tuple[str, str, Run, Callable[[Any], Outputs]]] = [
    (tasks.ABLATION, "logits", ablation, entry.ablated),
    (
        tasks.BESIDE_CLEAN,
        "clean and edited logits, two passes",
        beside_clean,
        entry.clean_and_ablated,
    ),
    (tasks.HEAD_SWEEP, "a pass a head", head_sweep, entry.sweep),
    (tasks.PATCH_SWEEP, "a pass a position", patch_sweep, entry.sweep),
]
WITHOUT = (tasks.FULL_TRACE, tasks.ONE_HEAD, tasks.GRADIENT)


def entries() -> list[Entry]:
    """The tasks without probs, and the reason for the others."""
    found = [
        Entry(task, Implementation("pyvene", gives, partial(prepare, run=run, read=read), "pyvene"))
        for task, gives, run, read in ROWS
    ]
    cannot = [
        Entry(task, Implementation("pyvene", "", without_probs, "pyvene")) for task in WITHOUT
    ]
    return [*found, *cannot]
