"""nnsight's answers, on transformers' models.

The source of a `with model.trace(...)` block is read and run elsewhere, inside the pass: it must
stand in a file, and ask for values in the order of the pass.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case, Implementation, Prepared
from benchmarks.instruments import entry, tasks
from benchmarks.instruments.entry import Entry
from benchmarks.instruments.reference import split_heads
from benchmarks.instruments.tasks import RIGHT, Given, metric
from minibert.bench.gate import Outputs, require

Run = Callable[[Any, Given], Any]


def build(case: Case, *, attention: str, grad: bool = False) -> Any:
    """The model in nnsight's wrapper."""
    require("nnsight")
    from nnsight import NNsight

    owner = "nnsight, gradient" if grad else "nnsight"
    theirs = case.transformers(attention, torch.float32, owner=owner)
    theirs.requires_grad_(not grad)
    with warnings.catch_warnings():
        # BERT calls a submodule `output`, and nnsight says how it renames it.
        warnings.simplefilter("ignore", UserWarning)
        return NNsight(theirs)


def is_bert(model: Any) -> bool:
    return model.config.model_type == "bert"


def layers_of(model: Any) -> Any:
    return model.bert.encoder.layer if is_bert(model) else model.transformer.h


def attentions_of(model: Any) -> list[Any]:
    """What gives (z or attn_out, probs)."""
    return [layer.attention.self if is_bert(model) else layer.attn for layer in layers_of(model)]


def full_trace(model: Any, given: Given) -> tuple[int, dict[str, Tensor]]:
    trace = full_trace_bert if is_bert(model) else full_trace_gpt2
    return model.config.num_attention_heads, trace(model, given)


def full_trace_bert(model: Any, given: Given) -> dict[str, Tensor]:
    import nnsight

    with model.trace(given.ids):
        kept = nnsight.save({})
        for number, layer in enumerate(model.bert.encoder.layer):
            attention = layer.attention.self
            kept[f"query {number}"] = attention.query.output
            kept[f"key {number}"] = attention.key.output
            kept[f"value {number}"] = attention.value.output
            z, probs = attention.output
            kept[f"z {number}"], kept[f"probs {number}"] = z, probs
            kept[f"hidden {number}"] = layer.output
        kept["logits"] = model.output.logits
    return kept


def full_trace_gpt2(model: Any, given: Given) -> dict[str, Tensor]:
    import nnsight

    with model.trace(given.ids):
        kept = nnsight.save({})
        for number, layer in enumerate(model.transformer.h):
            kept[f"joined {number}"] = layer.attn.c_attn.output
            kept[f"z {number}"] = layer.attn.c_proj.input
            kept[f"probs {number}"] = layer.attn.output[1]
            kept[f"hidden {number}"] = layer.output
        kept["logits"] = model.output.logits
    return kept


def read_full_trace(result: tuple[int, dict[str, Tensor]]) -> Outputs:
    heads, kept = result
    found: dict[str, Tensor] = {}
    for name, value in kept.items():
        kind, _, number = name.partition(" ")
        if kind == "joined":
            for part, piece in zip(("query", "key", "value"), value.chunk(3, -1), strict=True):
                found[f"{part} {number}"] = split_heads(piece, heads)
        else:
            per_head = kind in ("query", "key", "value", "z")
            found[name] = split_heads(value, heads) if per_head else value
    return found


def one_head(model: Any, given: Given) -> Tensor:
    attention, head = attentions_of(model)[given.layer], given.head
    with model.trace(given.ids) as tracer:
        probs = attention.output[1][:, head].save()
        tracer.stop()
    return probs


def part_of(model: Any, head: int) -> slice:
    """Where a head's numbers are in z."""
    width = model.config.hidden_size // model.config.num_attention_heads
    return slice(head * width, (head + 1) * width)


def ablation(model: Any, given: Given) -> Tensor:
    attention, part = attentions_of(model)[given.layer], part_of(model, given.head)
    bert = is_bert(model)
    with model.trace(given.ids):
        z = attention.output[0] if bert else attention.c_proj.input
        z[:, :, part] = 0
        logits = model.output.logits.save()
    return logits


def clean_pass(model: Any, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits, and what leaves each layer."""
    import nnsight

    layers = list(layers_of(model))
    with model.trace(ids):
        kept = nnsight.save([])
        for layer in layers:
            kept.append(layer.output)
        logits = model.output.logits.save()
    return logits, kept


def edited_from(model: Any, ids: Tensor, streams: list[Tensor], layer: int, part: slice) -> Tensor:
    """Logits without a head; the layers below are skipped, their last one's output is known."""
    below, attention = list(layers_of(model))[:layer], attentions_of(model)[layer]
    bert = is_bert(model)
    with model.trace(ids):
        for number, module in enumerate(below):
            module.skip(streams[number])
        z = attention.output[0] if bert else attention.c_proj.input
        z[:, :, part] = 0
        logits = model.output.logits.save()
    return logits


def beside_clean(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    clean, streams = clean_pass(model, given.ids)
    part = part_of(model, given.head)
    return clean, edited_from(model, given.ids, streams, given.layer, part)


def head_sweep(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    measured, config = metric(given), model.config
    clean, streams = clean_pass(model, given.ids)
    values = torch.empty(config.num_hidden_layers, config.num_attention_heads)
    for layer in range(values.shape[0]):
        for head in range(values.shape[1]):
            part = part_of(model, head)
            logits = edited_from(model, given.ids, streams, layer, part)
            values[layer, head] = measured(logits)
    return values, measured(clean)[0]


def patch_sweep(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    """The patched layer and those below are skipped too: what leaves them is known."""
    measured = metric(given)
    clean, streams = clean_pass(model, given.ids)
    _, source = clean_pass(model, given.other)
    values = torch.empty(model.config.num_hidden_layers, given.ids.shape[1])
    for layer in range(values.shape[0]):
        for position in range(values.shape[1]):
            hidden = streams[layer].clone()
            hidden[:, position] = source[layer][:, position]
            logits = continued(model, given.ids, [*streams[:layer], hidden])
            values[layer, position] = measured(logits)
    return values, measured(clean)[0]


def continued(model: Any, ids: Tensor, known: list[Tensor]) -> Tensor:
    """Logits of a pass whose first layers give what is known of them."""
    layers = list(layers_of(model))
    with model.trace(ids):
        for number, value in enumerate(known):
            layers[number].skip(value)
        logits = model.output.logits.save()
    return logits


def gradient(model: Any, given: Given) -> tuple[Tensor, ...]:
    import nnsight

    attentions = attentions_of(model)
    embeddings = model.bert.embeddings if is_bert(model) else model.transformer.drop
    with model.trace(given.ids):
        kept = nnsight.save([])
        embeddings.output.requires_grad_()
        for attention in attentions:
            kept.append(attention.output[1])
        logits = model.output.logits.save()
    return torch.autograd.grad(logits[0, given.position, RIGHT], kept)


def padded(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    with model.trace(given.ids, attention_mask=given.attention_mask):
        logits = model.output.logits.save()
    return logits, given.mask


def prepare(
    case: Case, *, attention: str, run: Run, read: Callable[[Any], Outputs], grad: bool = False
) -> Prepared:
    model = entry.once(case, partial(build, attention=attention, grad=grad))
    around = {"around": torch.enable_grad} if grad else {}
    return Prepared(partial(run, model), read, **around)


# Task, what it gives, how, how that is read, and the attention it needs.
ROWS: list[tuple[str, str, Run, Callable[[Any], Outputs], str]] = [
    (
        tasks.FULL_TRACE,
        "logits; query, key, value, z, probs, hidden states",
        full_trace,
        read_full_trace,
        "eager",
    ),
    (tasks.ONE_HEAD, "probs of one head, tracer.stop", one_head, entry.head, "eager"),
    (tasks.ABLATION, "logits", ablation, entry.ablated, "sdpa"),
    (
        tasks.BESIDE_CLEAN,
        "clean and edited logits; the layers below skipped",
        beside_clean,
        entry.clean_and_ablated,
        "sdpa",
    ),
    (tasks.HEAD_SWEEP, "a pass a head, layers below skipped", head_sweep, entry.sweep, "sdpa"),
    (tasks.PATCH_SWEEP, "a pass a position, layers skipped", patch_sweep, entry.sweep, "sdpa"),
    (tasks.RAGGED, "logits of the padded batch", padded, entry.real_logits, "sdpa"),
]


def entries() -> list[Entry]:
    """One for each task but the memory of a trace, which is TransformerLens' matter."""

    def one(task: str, gives: str, **options: Any) -> Entry:
        built = partial(prepare, **options)
        return Entry(task, Implementation("nnsight", gives, built, package="nnsight"))

    found = [
        one(task, gives, run=run, read=read, attention=attention)
        for task, gives, run, read, attention in ROWS
    ]
    grads = {"attention": "eager", "run": gradient, "read": entry.numbered_gradients, "grad": True}
    return [*found, one(tasks.GRADIENT, "gradients of probs", **grads)]
