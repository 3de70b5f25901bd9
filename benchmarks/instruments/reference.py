"""What is right: transformers in float32 with its explicit attention and the plainest hooks.

Its answers are what every contender's are compared with, and how far they may differ: an
ablation that was never made must not pass because it would have changed little.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cases import TOLERANCE, Case
from benchmarks.instruments import tasks
from benchmarks.instruments.tasks import RIGHT, Given, metric
from minibert.bench.gate import Outputs

# An error may be this part of the largest effect, or of the largest value.
EFFECT_TOLERANCE = 0.01


@dataclass(frozen=True)
class Answer:
    """What a task gives, by name, and how much a kind of it may differ."""

    found: Outputs
    limits: Mapping[str, float]


@dataclass(frozen=True)
class Parts:
    """Where a transformers model computes what is asked for."""

    layers: Sequence[nn.Module]
    attentions: Sequence[nn.Module]
    """They give (attn_out or z, probs)."""
    outputs: Sequence[nn.Module]
    """They read z, the heads side by side."""
    embeddings: nn.Module
    heads: int

    @classmethod
    def of(cls, model: Any) -> "Parts":
        """The parts of a BertForMaskedLM or GPT2LMHeadModel."""
        heads = model.config.num_attention_heads
        if model.config.model_type == "bert":
            layers = model.bert.encoder.layer
            attentions = [layer.attention.self for layer in layers]
            outputs = [layer.attention.output.dense for layer in layers]
            return cls(layers, attentions, outputs, model.bert.embeddings, heads)
        layers = model.transformer.h
        attentions = [layer.attn for layer in layers]
        outputs = [attention.c_proj for attention in attentions]
        return cls(layers, attentions, outputs, model.transformer.drop, heads)


def split_heads(merged: Tensor, heads: int) -> Tensor:
    """(batch, position, d_model) as (batch, head, position, d_head)."""
    return merged.unflatten(-1, (heads, -1)).transpose(1, 2)


@contextmanager
def hooks(*handles: Any) -> Iterator[None]:
    """Take the hooks away afterwards."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def on_input(module: nn.Module, change: Callable[[Tensor], Tensor | None]) -> Any:
    """A hook on what a module reads, which may give it something else."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        changed = change(inputs[0])
        return None if changed is None else (changed, *inputs[1:])

    return module.register_forward_pre_hook(hook)


def on_output(module: nn.Module, change: Callable[[Any], Any]) -> Any:
    """A hook on what a module gives, which may give something else."""
    return module.register_forward_hook(lambda module, inputs, output: change(output))


def without_head(parts: Parts, layer: int, head: int) -> Any:
    """A hook that makes z of one head 0."""

    def change(merged: Tensor) -> Tensor:
        merged = merged.clone()
        merged.unflatten(-1, (parts.heads, -1))[:, :, head] = 0
        return merged

    return on_input(parts.outputs[layer], change)


def with_patch(parts: Parts, layer: int, position: int, source: Tensor) -> Any:
    """A hook that takes what leaves a layer at one position from `source`."""

    def change(hidden: Tensor) -> Tensor:
        hidden = hidden.clone()
        hidden[:, position] = source[:, position]
        return hidden

    return on_output(parts.layers[layer], change)


def captured(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """One pass of a model with explicit attention, and everything a full trace has."""
    parts, found = Parts.of(model), dict[str, Tensor]()

    def keep(name: str) -> Callable[[Tensor], None]:
        return lambda value: found.__setitem__(name, value)

    def keep_joined(layer: int) -> Callable[[Tensor], None]:
        def keep(value: Tensor) -> None:
            for name, part in zip(("query", "key", "value"), value.chunk(3, -1), strict=True):
                found[f"{name} {layer}"] = split_heads(part, parts.heads)

        return keep

    def keep_heads(name: str) -> Callable[[Tensor], None]:
        return lambda value: found.__setitem__(name, split_heads(value, parts.heads))

    handles = []
    for layer, attention in enumerate(parts.attentions):
        if hasattr(attention, "c_attn"):
            handles.append(on_output(attention.get_submodule("c_attn"), keep_joined(layer)))
        else:
            for name in ("query", "key", "value"):
                linear = attention.get_submodule(name)
                handles.append(on_output(linear, keep_heads(f"{name} {layer}")))
        handles.append(on_input(parts.outputs[layer], keep_heads(f"z {layer}")))
        handles.append(on_output(parts.layers[layer], keep(f"hidden {layer}")))
    with hooks(*handles):
        out = model(ids, output_attentions=True)
    probs = {f"probs {layer}": value for layer, value in enumerate(out.attentions)}
    return {"logits": out.logits, **found, **probs}


def explicit(case: Case) -> Any:
    """transformers' model with explicit attention in float32."""
    return case.transformers("eager", torch.float32)


def answer(case: Case, task: str, given: Given) -> Answer:
    """What is right for a task."""
    return ANSWERS[task](case, given)


def full_trace(case: Case, given: Given) -> Answer:
    return Answer(captured(explicit(case), given.ids), {})


def one_head(case: Case, given: Given) -> Answer:
    probs = explicit(case)(given.ids, output_attentions=True).attentions[given.layer]
    found = probs[:, given.head]
    return Answer({"head": found}, {"head": EFFECT_TOLERANCE * float(found.max())})


def ablation(case: Case, given: Given) -> Answer:
    model = explicit(case)
    clean = model(given.ids).logits
    with hooks(without_head(Parts.of(model), given.layer, given.head)):
        ablated = model(given.ids).logits
    effect = float((ablated - clean).abs().max())
    return Answer({"clean": clean, "ablated": ablated}, {"ablated": EFFECT_TOLERANCE * effect})


def sweep(values: Tensor, clean: float) -> Answer:
    change = values - clean
    limits = {"change": EFFECT_TOLERANCE * float(change.abs().max())}
    return Answer({"change": change, "clean": torch.tensor(clean)}, limits)


def head_sweep(case: Case, given: Given) -> Answer:
    model, measured = explicit(case), metric(given)
    parts = Parts.of(model)
    values = torch.empty(len(parts.layers), parts.heads)
    for layer, head in torch.cartesian_prod(*map(torch.arange, values.shape)).tolist():
        with hooks(without_head(parts, layer, head)):
            values[layer, head] = measured(model(given.ids).logits)
    return sweep(values, float(measured(model(given.ids).logits)))


def patch_sweep(case: Case, given: Given) -> Answer:
    model, measured = explicit(case), metric(given)
    parts, source = Parts.of(model), captured(model, given.other)
    values = torch.empty(len(parts.layers), given.ids.shape[1])
    for layer, position in torch.cartesian_prod(*map(torch.arange, values.shape)).tolist():
        with hooks(with_patch(parts, layer, position, source[f"hidden {layer}"])):
            values[layer, position] = measured(model(given.ids).logits)
    return sweep(values, float(measured(model(given.ids).logits)))


def gradient(case: Case, given: Given) -> Answer:
    with torch.enable_grad():
        out = explicit(case)(given.ids, output_attentions=True)
        gradients = torch.autograd.grad(out.logits[0, given.position, RIGHT], out.attentions)
    found = {f"grad {layer}": value for layer, value in enumerate(gradients)}
    largest = max(float(value.abs().max()) for value in gradients)
    return Answer(found, {"grad": TOLERANCE * largest})


def ragged(case: Case, given: Given) -> Answer:
    out = explicit(case)(given.ids, attention_mask=given.attention_mask)
    return Answer({"logits": out.logits[given.mask]}, {})


ANSWERS: dict[str, Callable[[Case, Given], Answer]] = {
    tasks.FULL_TRACE: full_trace,
    tasks.ONE_HEAD: one_head,
    tasks.ABLATION: ablation,
    tasks.BESIDE_CLEAN: ablation,
    tasks.HEAD_SWEEP: head_sweep,
    tasks.PATCH_SWEEP: patch_sweep,
    tasks.GRADIENT: gradient,
    tasks.RAGGED: ragged,
    tasks.MEMORY: full_trace,
}
