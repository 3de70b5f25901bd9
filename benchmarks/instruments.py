"""How long minibert needs for what a researcher does to a model, beside its peers.

    python -m benchmarks.instruments [--quick] [--rows REGEX] [--threads 2] [--rounds 9]
                                     [--output FILE]

Each task is answered by every instrument as its documentation does it: minibert, transformers with
PyTorch's hooks, TransformerLens' bridge around transformers' models, nnsight. All in one process,
in turns, on random weights, without a network. What is right is transformers in float32 with
explicit attention and the plainest hooks: an ablation that was never made must not pass because it
would have changed little. The ratio is to transformers with hooks.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks.models import TOLERANCE, Case, Shape
from benchmarks.runner import Benchmark, Truth, Wanted, Workload, attempt
from minibert.bench.contest import Contender
from minibert.bench.result_rows import Outputs, Row, require

# Tokens whose logits the metric of a sweep compares.
RIGHT, WRONG = 7, 11
# Tokens of --quick.
QUICK = 13
LONG_ROUNDS = 2
# An error may be this part of the largest effect, or of the largest value.
EFFECT_TOLERANCE = 0.01


@dataclass(frozen=True)
class Task:
    """One question, the method that answers it, and where it is asked.

    A long one takes seconds: two rounds of one call, and the gate's call is the one that warms.
    """

    name: str
    method: str
    positions: tuple[int, ...]
    long: bool = False

    def shapes(self, *, quick: bool) -> list[Shape]:
        """Where it is asked; quick ones are small, one a model."""
        if quick:
            return [Shape(name, 1, QUICK) for name in ("bert-quick", "gpt2-quick")]
        return [Shape(model, 1, T) for model in ("bert-base", "gpt2") for T in self.positions]


SHORT = (32, 128)
TASKS = (
    Task("full trace", "trace", SHORT),
    Task("one head", "one_head", SHORT),
    Task("one ablation", "ablation", SHORT),
    Task("ablation beside the clean pass", "beside_clean", SHORT),
    Task("gradient", "gradient", SHORT),
    Task("head sweep", "head_sweep", (32,), long=True),
)


@dataclass(frozen=True, eq=False)
class Given:
    """What everyone reads at one shape: ids, and the places that are asked about."""

    ids: Tensor
    layer: int
    head: int
    position: int

    def metric(self, logits: Tensor) -> Tensor:
        """The difference of two logits at one position: a number a sentence."""
        return logits[:, self.position, RIGHT] - logits[:, self.position, WRONG]


def given(case: Case, shape: Shape) -> Given:
    """The input of a task, the same in every run."""
    layer, head = case.one_head
    position = 5 if case.config.model_type == "bert" else shape.position - 1
    return Given(case.ids(shape.batch, shape.position), layer, head, position)


#: What a second pass may start from, such as what left each layer in the first.
Start = Any


class Instrument:
    """One way to do the tasks: what of a model it can read and change.

    A subclass has these methods; the edited passes are made of the third and the fourth:

    built(method)                    the model, with explicit attention where the task needs probs
    trace(given), one_head(given)    everything of one pass; probs of one head of the middle layer
    clean(ids)                       the logits, and what edited passes start from
    without_head(ids, start, layer, head)                   the logits where z of a head is 0
    gradient(given)                  of one logit, with respect to probs of every layer
    """

    name: ClassVar[str]
    package: ClassVar[str] = "minibert"

    def __init__(self, case: Case, method: str) -> None:
        self.case, self.config = case, case.config
        self.layers, self.heads = case.config.num_hidden_layers, case.config.num_attention_heads
        self.bert = case.config.model_type == "bert"
        self.model = self.built(method)

    @property
    def blocks(self) -> list[Any]:
        """The layers of transformers' model, where it is one."""
        return list(self.model.bert.encoder.layer if self.bert else self.model.transformer.h)

    @property
    def attentions(self) -> list[Any]:
        """Their modules that give (attn_out or z, probs)."""
        return [one.attention.self if self.bert else one.attn for one in self.blocks]

    def read_trace(self, result: Any) -> Outputs:
        """logits, and of each layer hidden, query, key, value, z, probs."""
        found: Outputs = result
        return found

    def ablation(self, given: Given) -> Tensor:
        """The logits without one head."""
        return self.without_head(given.ids, None, given.layer, given.head)

    def beside_clean(self, given: Given) -> tuple[Tensor, Tensor]:
        """The logits of both passes, from the ids."""
        clean, start = self.clean(given.ids)
        return clean, self.without_head(given.ids, start, given.layer, given.head)

    def head_sweep(self, given: Given) -> Any:
        """The metric with each head ablated alone, and of the clean pass."""
        clean, start = self.clean(given.ids)
        values = torch.empty(self.layers, self.heads)
        for layer, head in product(*map(range, values.shape)):
            values[layer, head] = given.metric(self.without_head(given.ids, start, layer, head))
        return values, given.metric(clean)[0]

    def read(self, method: str, result: Any) -> Outputs:
        """What a method gave, by the names that the gate knows."""
        if method == "trace":
            return self.read_trace(result)
        if method == "beside_clean":
            return {"clean": result[0], "ablated": result[1]}
        if method.endswith("sweep"):
            return self.read_sweep(result)
        if method == "gradient":
            return {f"grad {layer}": one.detach() for layer, one in enumerate(result)}
        return {{"one_head": "head", "ablation": "ablated"}[method]: result}

    def read_sweep(self, result: Any) -> Outputs:
        """The change of the metric by each edit."""
        changed, clean = result
        return {"change": changed - clean, "clean": clean}

    def contender(self, method: str, given: Given) -> Contender:
        """The answer to one task on one input."""
        around = torch.enable_grad if method == "gradient" else nullcontext
        return Contender(partial(getattr(self, method), given), partial(self.read, method), around)


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


class Hooks(Instrument):
    """transformers with PyTorch's own hooks, as people write it."""

    name, package = "transformers + hooks", "transformers"

    def built(self, method: str) -> Any:
        # sdpa where probs are not asked for.
        attention = "eager" if method in ("trace", "one_head", "gradient") else "sdpa"
        if method == "gradient":
            # Weights without gradients, so that the graph starts at the embeddings.
            owned = self.case.transformers(attention, owner="gradient")
            return owned.requires_grad_(False)
        return self.case.transformers(attention)

    @cached_property
    def outputs(self) -> Sequence[nn.Module]:
        """Modules that read z, the heads side by side."""
        if self.bert:
            return [one.attention.output.dense for one in self.blocks]
        return [one.attn.c_proj for one in self.blocks]

    def trace(self, given: Given) -> Any:
        found: dict[str, Tensor] = {}

        def keep(name: str) -> Callable[[Tensor], None]:
            return lambda value: found.__setitem__(name, value)

        def keep_heads(*names: str) -> Callable[[Tensor], None]:
            def kept(value: Tensor) -> None:
                for name, part in zip(names, value.chunk(len(names), -1), strict=True):
                    found[name] = split_heads(part, self.heads)

            return kept

        handles = []
        for layer, attention in enumerate(self.attentions):
            names = [f"{name} {layer}" for name in ("query", "key", "value")]
            if self.bert:
                linears = (attention.query, attention.key, attention.value)
                pairs = zip(linears, names, strict=True)
                handles += [on_output(linear, keep_heads(name)) for linear, name in pairs]
            else:
                handles.append(on_output(attention.c_attn, keep_heads(*names)))
            handles.append(on_input(self.outputs[layer], keep_heads(f"z {layer}")))
            handles.append(on_output(self.blocks[layer], keep(f"hidden {layer}")))
        with hooks(*handles):
            out = self.model(given.ids, output_attentions=True)
        probs = {f"probs {layer}": value for layer, value in enumerate(out.attentions)}
        return {"logits": out.logits, **found, **probs}

    def one_head(self, given: Given) -> Tensor:
        out = self.model(given.ids, output_attentions=True)
        return out.attentions[given.layer][:, given.head]

    def clean(self, ids: Tensor) -> tuple[Tensor, Start]:
        return self.model(ids).logits, None

    def without_head(self, ids: Tensor, start: Start, layer: int, head: int) -> Tensor:
        def change(merged: Tensor) -> Tensor:
            merged = merged.clone()
            merged.unflatten(-1, (self.heads, -1))[:, :, head] = 0
            return merged

        with hooks(on_input(self.outputs[layer], change)):
            return self.model(ids).logits

    def gradient(self, given: Given) -> Sequence[Tensor]:
        embeddings = self.model.bert.embeddings if self.bert else self.model.transformer.drop
        with hooks(on_output(embeddings, lambda hidden: hidden.requires_grad_())):
            out = self.model(given.ids, output_attentions=True)
        return torch.autograd.grad(out.logits[0, given.position, RIGHT], out.attentions)


class TransformerLens(Instrument):
    """TransformerBridge. From 4 on it makes attention explicit by itself, 3.9 has to be told."""

    name, package = "TransformerLens TransformerBridge", "transformer_lens"

    def built(self, method: str) -> Any:
        require("transformer_lens")
        from transformer_lens.model_bridge import TransformerBridge

        probs = method in ("trace", "one_head", "gradient")
        attention, owner = ("eager" if probs else "sdpa"), f"TransformerLens {method == 'gradient'}"
        theirs = self.case.transformers(attention, owner=owner)
        folder = str(self.case.folder)
        model = TransformerBridge.boot_transformers(folder, hf_model=theirs, device="cpu")
        for parameter in model.parameters():
            parameter.requires_grad_(method != "gradient")
        return model

    def trace(self, given: Given) -> Any:
        return self.model.run_with_cache(given.ids)

    def read_trace(self, result: Any) -> Outputs:
        logits, kept = result
        found = {"logits": logits}
        for layer in range(self.layers):
            found[f"hidden {layer}"] = kept[f"blocks.{layer}.hook_resid_post"]
            found[f"probs {layer}"] = kept[f"blocks.{layer}.attn.hook_pattern"]
            for name, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("z", "z")):
                # Theirs have the head after the position.
                value = kept[f"blocks.{layer}.attn.hook_{letter}"]
                found[f"{name} {layer}"] = value.transpose(1, 2)
        return found

    def one_head(self, given: Given) -> Tensor:
        name, stop = f"blocks.{given.layer}.attn.hook_pattern", given.layer + 1
        _, kept = self.model.run_with_cache(given.ids, names_filter=name, stop_at_layer=stop)
        return kept[name][:, given.head]

    def clean(self, ids: Tensor) -> tuple[Tensor, Start]:
        return self.model(ids), None

    def without_head(self, ids: Tensor, start: Start, layer: int, head: int) -> Tensor:
        def zero(value: Tensor, hook: Any) -> Tensor:
            value[:, :, head] = 0
            return value

        edits = [(f"blocks.{layer}.attn.hook_z", zero)]
        return self.model.run_with_hooks(ids, fwd_hooks=edits)

    def gradient(self, given: Given) -> Sequence[Tensor]:
        kept: list[Tensor] = []

        def begin(value: Tensor, hook: Any) -> Tensor:
            return value.requires_grad_()

        def keep(value: Tensor, hook: Any) -> None:
            kept.append(value)

        patterns = [(f"blocks.{n}.attn.hook_pattern", keep) for n in range(self.layers)]
        edits = [("blocks.0.hook_resid_pre", begin), *patterns]
        logits = self.model.run_with_hooks(given.ids, fwd_hooks=edits)
        return torch.autograd.grad(logits[0, given.position, RIGHT], kept)


class NNsight(Instrument):
    """nnsight on transformers' models.

    The source of a `with model.trace(...)` block is read and run elsewhere, inside the pass: it
    must stand in a file, and ask for values in the order of the pass.
    """

    name = package = "nnsight"

    def built(self, method: str) -> Any:
        require("nnsight")
        from nnsight import NNsight as Wrapper

        attention = "eager" if method in ("trace", "one_head", "gradient") else "sdpa"
        owner = "nnsight, gradient" if method == "gradient" else "nnsight"
        theirs = self.case.transformers(attention, owner=owner)
        theirs.requires_grad_(method != "gradient")
        with warnings.catch_warnings():
            # BERT calls a submodule `output`, and nnsight says how it renames it.
            warnings.simplefilter("ignore", UserWarning)
            return Wrapper(theirs)

    def trace(self, given: Given) -> Any:
        return self._trace_bert(given) if self.bert else self._trace_gpt2(given)

    def _trace_bert(self, given: Given) -> dict[str, Tensor]:
        import nnsight

        model = self.model
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

    def _trace_gpt2(self, given: Given) -> dict[str, Tensor]:
        import nnsight

        model = self.model
        with model.trace(given.ids):
            kept = nnsight.save({})
            for number, layer in enumerate(model.transformer.h):
                kept[f"joined {number}"] = layer.attn.c_attn.output
                kept[f"z {number}"] = layer.attn.c_proj.input
                kept[f"probs {number}"] = layer.attn.output[1]
                kept[f"hidden {number}"] = layer.output
            kept["logits"] = model.output.logits
        return kept

    def read_trace(self, result: Any) -> Outputs:
        found: dict[str, Tensor] = {}
        for name, value in result.items():
            kind, _, number = name.partition(" ")
            if kind == "joined":
                for part, piece in zip(("query", "key", "value"), value.chunk(3, -1), strict=True):
                    found[f"{part} {number}"] = split_heads(piece, self.heads)
            else:
                per_head = kind in ("query", "key", "value", "z")
                found[name] = split_heads(value, self.heads) if per_head else value
        return found

    def one_head(self, given: Given) -> Tensor:
        model, attention, head = self.model, self.attentions[given.layer], given.head
        with model.trace(given.ids) as tracer:
            probs = attention.output[1][:, head].save()
            tracer.stop()
        return probs

    def clean(self, ids: Tensor) -> tuple[Tensor, Start]:
        import nnsight

        model, layers = self.model, self.blocks
        with model.trace(ids):
            kept = nnsight.save([])
            for layer in layers:
                kept.append(layer.output)
            logits = model.output.logits.save()
        return logits, kept

    def without_head(self, ids: Tensor, start: Start, layer: int, head: int) -> Tensor:
        """The layers below are skipped where their last one's output is known."""
        model, bert, attention = self.model, self.bert, self.attentions[layer]
        known = [] if start is None else list(zip(self.blocks, start, strict=True))[:layer]
        width = self.config.hidden_size // self.heads
        part = slice(head * width, (head + 1) * width)
        with model.trace(ids):
            for module, value in known:
                module.skip(value)
            z = attention.output[0] if bert else attention.c_proj.input
            z[:, :, part] = 0
            logits = model.output.logits.save()
        return logits

    def gradient(self, given: Given) -> Sequence[Tensor]:
        import nnsight

        model, attentions = self.model, self.attentions
        embeddings = model.bert.embeddings if self.bert else model.transformer.drop
        with model.trace(given.ids):
            kept = nnsight.save([])
            embeddings.output.requires_grad_()
            for attention in attentions:
                kept.append(attention.output[1])
            logits = model.output.logits.save()
        return torch.autograd.grad(logits[0, given.position, RIGHT], kept)


class Minibert(Instrument):
    """minibert on the back end that it chooses by itself."""

    name = "minibert"

    def built(self, method: str) -> Any:
        return self.case.minibert()

    def trace(self, given: Given) -> Any:
        return self.model.trace(given.ids)

    def read_trace(self, result: Any) -> Outputs:
        found = {"logits": result.logits}
        for number, layer in enumerate(result):
            found[f"hidden {number}"] = layer.resid_post
            for name in ("query", "key", "value", "z", "probs"):
                found[f"{name} {number}"] = getattr(layer, name)
        return found

    def one_head(self, given: Given) -> Tensor:
        return self.model.trace(given.ids, until=given.layer)[given.layer, given.head].probs

    def clean(self, ids: Tensor) -> tuple[Tensor, Start]:
        trace = self.model.trace(ids)
        return trace.logits, trace

    def without_head(self, ids: Tensor, start: Start, layer: int, head: int) -> Tensor:
        from minibert.trace.edit import zero

        edit = {("z", layer, head): zero}
        return (self.model.trace(ids, edit=edit) if start is None else start.rerun(edit)).logits

    def head_sweep(self, given: Given) -> Any:
        from minibert.analysis import ablate_heads, logit_difference

        trace, metric = self.model.trace(given.ids), logit_difference(RIGHT, WRONG)
        return ablate_heads(trace, metric, positions=[given.position])

    def read_sweep(self, result: Any) -> Outputs:
        return {"change": result.mean, "clean": result.clean[0]}

    def gradient(self, given: Given) -> Sequence[Tensor]:
        trace = self.model.trace(given.ids, grad=True)
        trace.backward(trace.logits[0, given.position, RIGHT])
        return [layer.probs for layer in trace.grad]


INSTRUMENTS = (Minibert, Hooks, TransformerLens, NNsight)


class Reference(Hooks):
    """What is right: the plainest hooks on explicit attention."""

    def built(self, method: str) -> Any:
        return self.case.transformers("eager")

    def gradient(self, given: Given) -> Sequence[Tensor]:
        with torch.enable_grad():
            out = self.model(given.ids, output_attentions=True)
            return torch.autograd.grad(out.logits[0, given.position, RIGHT], out.attentions)


def right(case: Case, method: str, given: Given) -> Truth:
    """The right answer, and how far each kind may be off: a part of the effect of the edits."""
    reference = Reference(case, method)
    asked = "beside_clean" if method == "ablation" else method
    found = reference.read(asked, getattr(reference, asked)(given))
    limits = {}
    if "ablated" in found:
        limits["ablated"] = EFFECT_TOLERANCE * float(
            (found["ablated"] - found["clean"]).abs().max()
        )
    for kind, part in (
        ("change", EFFECT_TOLERANCE),
        ("head", EFFECT_TOLERANCE),
        ("grad", TOLERANCE),
    ):
        largest = [float(one.abs().max()) for name, one in found.items() if name.split()[0] == kind]
        if largest:
            limits[kind] = part * max(largest)
    return Truth(found, absolute=TOLERANCE, limits=limits)


def asked(
    chosen: argparse.Namespace,
    wanted: Wanted,
    instruments: Sequence[type[Instrument]] = INSTRUMENTS,
) -> Iterator[Workload]:
    """A workload for each task and shape, one model after the other."""
    plan = [(shape, task) for task in TASKS for shape in task.shapes(quick=chosen.quick)]
    for model in dict.fromkeys(shape.model for shape, _ in plan):
        with tempfile.TemporaryDirectory() as folder:
            case = cache(partial(Case, model, Path(folder)))
            for shape, task in plan:
                asked = [one for one in instruments if wanted(f"{task.name} {shape} {one.name}")]
                # With anyone runs the one that all are divided by.
                entered = [one for one in instruments if one in asked or one is Hooks]
                if asked and shape.model == model:
                    yield workload(case(), task, shape, entered)


def workload(case: Case, task: Task, shape: Shape, entered: Sequence[type[Instrument]]) -> Workload:
    """Everyone's answer to one task at one shape."""
    asked, by_name = given(case, shape), {one.name: one for one in entered}
    truth = right(case, task.method, asked)

    def build(one: type[Instrument]) -> Contender:
        return one(case, task.method).contender(task.method, asked)

    def about(name: str) -> Row:
        return {"task": task.name, **vars(shape), "package": by_name[name].package}

    return Workload(
        f"{task.name} {shape}",
        {one.name: attempt(partial(build, one)) for one in entered},
        lambda name, found, verdicts: truth.check(found),
        baseline=Hooks.name if Hooks in entered else None,
        about=about,
        rounds=LONG_ROUNDS if task.long else None,
        calls=1 if task.long else None,
        memory=False,
    )


BENCHMARK = Benchmark(
    "instruments",
    "Speed of interpretability work beside the peers.",
    asked,
    quick_rounds=3,
    columns=("median ms", "p20 - p80", "ratio", "error"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
