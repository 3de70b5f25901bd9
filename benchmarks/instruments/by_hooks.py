"""transformers with PyTorch's own hooks: as people write it, and batched by hand."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case, Implementation, Prepared
from benchmarks.instruments import entry, tasks
from benchmarks.instruments.entry import BY_HAND, PEER, Entry
from benchmarks.instruments.reference import (
    Parts,
    captured,
    hooks,
    on_input,
    on_output,
    with_patch,
    without_head,
)
from benchmarks.instruments.tasks import RIGHT, WRONG, Given, metric
from minibert.bench.gate import Outputs

Run = Callable[[Any, Given], Any]


def prepare(case: Case, *, attention: str, run: Run, read: Callable[[Any], Outputs]) -> Prepared:
    return Prepared(partial(run, case.transformers(attention, torch.float32)), read)


def prepare_gradient(case: Case) -> Prepared:
    """Weights without gradients, so that the graph starts at the embeddings."""
    model = case.transformers("eager", torch.float32, owner="gradient").requires_grad_(False)
    run = partial(gradient, model)
    return Prepared(run, entry.numbered_gradients, torch.enable_grad)


def full_trace(model: Any, given: Given) -> dict[str, Tensor]:
    return captured(model, given.ids)


def one_head(model: Any, given: Given) -> Tensor:
    return model(given.ids, output_attentions=True).attentions[given.layer][:, given.head]


class _Stop(Exception):  # noqa: N818 - nothing is wrong
    """Everything asked for is there."""


def one_head_stopped(model: Any, given: Given) -> Tensor:
    found: list[Tensor] = []

    def stop(output: Any) -> None:
        found.append(output[1][:, given.head])
        raise _Stop

    with hooks(on_output(Parts.of(model).attentions[given.layer], stop)):
        try:
            model(given.ids)
        except _Stop:
            return found[0]
    raise AssertionError("the layer was not reached")


def ablation(model: Any, given: Given) -> Tensor:
    with hooks(without_head(Parts.of(model), given.layer, given.head)):
        return model(given.ids).logits


def beside_clean(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    return model(given.ids).logits, ablation(model, given)


def head_sweep(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    parts, measured = Parts.of(model), metric(given)
    values = torch.empty(len(parts.layers), parts.heads)
    for layer in range(len(parts.layers)):
        for head in range(parts.heads):
            with hooks(without_head(parts, layer, head)):
                values[layer, head] = measured(model(given.ids).logits)
    return values, measured(model(given.ids).logits)[0]


def hidden_of(model: Any, parts: Parts, ids: Tensor) -> list[Tensor]:
    """What leaves each layer."""
    found: list[Tensor] = []
    with hooks(*(on_output(layer, found.append) for layer in parts.layers)):
        model(ids)
    return found


def patch_sweep(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    parts, measured = Parts.of(model), metric(given)
    source = hidden_of(model, parts, given.other)
    values = torch.empty(len(parts.layers), given.ids.shape[1])
    for layer, hidden in enumerate(source):
        for position in range(values.shape[1]):
            with hooks(with_patch(parts, layer, position, hidden)):
                values[layer, position] = measured(model(given.ids).logits)
    return values, measured(model(given.ids).logits)[0]


def measured_batch(model: Any, given: Given, count: int) -> Tensor:
    """The metric of the input repeated in a batch; GPT-2 can leave out the other logits."""
    ids = given.ids.expand(count, -1)
    if model.config.model_type == "gpt2":
        last = model(ids, logits_to_keep=1).logits[:, 0]
        return last[:, RIGHT] - last[:, WRONG]
    return metric(given)(model(ids).logits)


def head_sweep_batched(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    parts, rows = Parts.of(model), []
    each = torch.arange(parts.heads)

    def change(merged: Tensor) -> Tensor:
        merged = merged.clone()
        merged.unflatten(-1, (parts.heads, -1))[each, :, each] = 0
        return merged

    for output in parts.outputs:
        with hooks(on_input(output, change)):
            rows.append(measured_batch(model, given, parts.heads))
    return torch.stack(rows), measured_batch(model, given, 1)[0]


def patch_sweep_batched(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    parts, rows = Parts.of(model), []
    each = torch.arange(given.ids.shape[1])
    for layer, source in zip(parts.layers, hidden_of(model, parts, given.other), strict=True):

        def change(hidden: Tensor, source: Tensor = source) -> Tensor:
            hidden = hidden.clone()
            hidden[each, each] = source[0]
            return hidden

        with hooks(on_output(layer, change)):
            rows.append(measured_batch(model, given, len(each)))
    return torch.stack(rows), measured_batch(model, given, 1)[0]


def gradient(model: Any, given: Given) -> tuple[Tensor, ...]:
    embeddings = Parts.of(model).embeddings
    with hooks(on_output(embeddings, lambda hidden: hidden.requires_grad_())):
        out = model(given.ids, output_attentions=True)
    return torch.autograd.grad(out.logits[0, given.position, RIGHT], out.attentions)


def padded(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    return model(given.ids, attention_mask=given.attention_mask).logits, given.mask


NAME = "transformers + hooks"
EVERYTHING = "logits; query, key, value, z, probs, residual streams of each layer"


def entries() -> list[Entry]:
    """Explicit attention where probs are asked for, sdpa elsewhere."""

    def one(
        task: str,
        attention: str,
        gives: str,
        run: Run,
        read: Any,
        *,
        more: str = "",
        kind: str = PEER,
    ) -> Entry:
        built = partial(prepare, attention=attention, run=run, read=read)
        return Entry(task, Implementation(NAME + more, gives, built, package="transformers"), kind)

    both, a_layer = "clean and edited logits, two passes", "a batch a layer"
    batched: dict[str, str] = {"more": ", batched by hand", "kind": BY_HAND}
    return [
        one(tasks.FULL_TRACE, "eager", EVERYTHING, full_trace, lambda found: found),
        one(tasks.ONE_HEAD, "eager", "probs of every head", one_head, entry.head),
        one(
            tasks.ONE_HEAD,
            "eager",
            "probs of one head; an exception ends the pass",
            one_head_stopped,
            entry.head,
            more=", stopped by hand",
            kind=BY_HAND,
        ),
        one(tasks.ABLATION, "sdpa", "logits", ablation, entry.ablated),
        one(tasks.BESIDE_CLEAN, "sdpa", both, beside_clean, entry.clean_and_ablated),
        one(tasks.HEAD_SWEEP, "sdpa", "a pass a head", head_sweep, entry.sweep),
        one(tasks.HEAD_SWEEP, "sdpa", a_layer, head_sweep_batched, entry.sweep, **batched),
        one(tasks.PATCH_SWEEP, "sdpa", "a pass a position", patch_sweep, entry.sweep),
        one(
            tasks.PATCH_SWEEP,
            "sdpa",
            a_layer,
            patch_sweep_batched,
            entry.sweep,
            **batched,
        ),
        Entry(
            tasks.GRADIENT,
            Implementation(NAME, "gradients of probs", prepare_gradient, package="transformers"),
        ),
        one(tasks.RAGGED, "sdpa", "logits of the padded batch", padded, entry.real_logits),
    ]
