"""minibert's answers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case, Implementation, Prepared
from benchmarks.instruments import entry, tasks
from benchmarks.instruments.entry import INFORMATION, MINIBERT, Entry
from benchmarks.instruments.tasks import RIGHT, WRONG, Given
from minibert.bench.gate import Outputs

Run = Callable[[Any, Given], Any]
Read = Callable[[Any], Outputs]

KEPT = ("query", "key", "value", "z", "probs")


def prepare(case: Case, *, run: Run, read: Read) -> Prepared:
    """minibert on the back end that it chooses by itself."""
    # A logit can be picked out of a trace with gradients only where torch records that.
    around = {"around": torch.enable_grad} if run is gradient else {}
    return Prepared(partial(run, case.minibert(torch.float32, None)), read, **around)


def full_trace(model: Any, given: Given) -> Any:
    return model.trace(given.ids)


def full_trace_kept(model: Any, given: Given) -> Any:
    return model.trace(given.ids, keep=("scores", "probs"))


def read_trace(trace: Any) -> Outputs:
    found = {"logits": trace.logits}
    for number, layer in enumerate(trace):
        found[f"hidden {number}"] = layer.resid_post
        found |= {f"{name} {number}": getattr(layer, name) for name in KEPT}
    return found


def one_head(model: Any, given: Given) -> Tensor:
    return model.trace(given.ids, until=given.layer)[given.layer, given.head].probs


def zeroed(given: Given) -> dict[Any, Any]:
    from minibert.trace.edit import zero

    return {("z", given.layer, given.head): zero}


def ablation(model: Any, given: Given) -> Tensor:
    return model.trace(given.ids, edit=zeroed(given)).logits


def beside_clean(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    trace = model.trace(given.ids)
    return trace.logits, trace.rerun(zeroed(given)).logits


def head_sweep(model: Any, given: Given) -> Any:
    from minibert.analysis import ablate_heads, logit_difference

    trace = model.trace(given.ids)
    return ablate_heads(trace, logit_difference(RIGHT, WRONG), positions=[given.position])


def patch_sweep(model: Any, given: Given) -> Any:
    from minibert.analysis import logit_difference, patch_positions

    trace, source = model.trace(given.ids), model.trace(given.other)
    measured = logit_difference(RIGHT, WRONG)
    return patch_positions(trace, source, measured, positions=[given.position])


def read_sweep(sweep: Any) -> Outputs:
    return {"change": sweep.change, "clean": torch.tensor(sweep.clean)}


def gradient(model: Any, given: Given) -> list[Tensor]:
    trace = model.trace(given.ids, grad=True)
    trace.backward(trace.logits[0, given.position, RIGHT])
    return [layer.probs for layer in trace.grad]


def packed(model: Any, given: Given) -> tuple[Tensor, ...]:
    return model.packed(given.tokens)


def padded(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    return model(given.tokens), given.mask


LAZY = "logits; query, key, value, z, residual streams of each layer; probs when read"

# Task, addition to the name, what it gives, how, and how that is read.
ROWS: list[tuple[str, str, str, Run, Read]] = [
    (tasks.FULL_TRACE, "", LAZY, full_trace, read_trace),
    (
        tasks.FULL_TRACE,
        " keep=scores,probs",
        f"{LAZY}; scores and probs stored",
        full_trace_kept,
        read_trace,
    ),
    (tasks.ONE_HEAD, "", "probs of one head, until=layer", one_head, entry.head),
    (tasks.ABLATION, "", "logits, edit of z; the trace beside them", ablation, entry.ablated),
    (
        tasks.BESIDE_CLEAN,
        "",
        "clean and edited logits, trace.rerun",
        beside_clean,
        entry.clean_and_ablated,
    ),
    (tasks.HEAD_SWEEP, "", "analysis.ablate_heads", head_sweep, read_sweep),
    (tasks.PATCH_SWEEP, "", "analysis.patch_positions", patch_sweep, read_sweep),
    (
        tasks.GRADIENT,
        "",
        "trace(grad=True), trace.grad[layer].probs of each layer",
        gradient,
        entry.numbered_gradients,
    ),
    (
        tasks.RAGGED,
        "",
        "logits, model.packed",
        packed,
        lambda rows: entry.logits(torch.cat(rows)),
    ),
    (tasks.MEMORY, "", LAZY, full_trace, read_trace),
]


def entries() -> list[Entry]:
    """One for each task, and what is worth knowing beside it."""
    found = []
    for task, more, gives, run, read in ROWS:
        built = partial(prepare, run=run, read=read)
        found.append(Entry(task, Implementation(f"minibert{more}", gives, built), MINIBERT))
    whole = partial(prepare, run=padded, read=entry.real_logits)
    padding = Implementation("minibert, padded", "logits of the padded batch", whole)
    return [*found, Entry(tasks.RAGGED, padding, INFORMATION)]
