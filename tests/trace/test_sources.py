"""Traces as sources of edits: of the same model, or of another one where that is asked for."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace as changed
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from minibert import EditError
from minibert.analysis import (
    attribution_patching,
    logit_difference,
    patch_heads,
    patch_positions,
    path_patching,
)
from minibert.model import Model
from minibert.trace.edit import mean, replace, zero
from minibert.trace.read import Trace
from tests.trace.test_file import random_model

METRIC = logit_difference(7, 13)


def _ask(read: Callable[..., Any]) -> Callable[[Model, Trace, Trace, dict[str, bool]], Any]:
    """An edit that reads a trace, asked for or not."""
    return lambda model, trace, source, asked: trace.rerun({("z", 1): read(source, **asked)})


DOORS: dict[str, Callable[[Model, Trace, Trace, dict[str, bool]], Any]] = {
    "replace": _ask(replace),
    "mean": _ask(mean),
    "one of several": _ask(lambda source, **asked: [zero, replace(source, **asked)]),
    "limited": _ask(lambda source, **asked: replace(source, **asked).at(positions=[1])),
    "a new pass": lambda model, trace, source, asked: model.trace(
        trace.tokens, edit={"embed": replace(source, **asked)}
    ),
    "side by side": lambda model, trace, source, asked: trace.rerun_each(
        [{}, {("z", 0): replace(source, **asked)}], METRIC
    ),
    "while a text is written": lambda model, trace, source, asked: model.generate(
        trace.tokens.ids[0].tolist(), max_new_tokens=2, edit={("z", 0): mean(source, **asked)}
    ),
    "patch_heads": lambda m, t, source, asked: patch_heads(t, source, METRIC, **asked),
    "patch_positions": lambda m, t, source, asked: patch_positions(t, source, METRIC, **asked),
    "path_patching": lambda m, t, source, asked: path_patching(
        t, source, METRIC, receivers=["logits"], senders=[("z", 0, 1)], **asked
    ),
    "attribution_patching": lambda m, t, source, asked: attribution_patching(
        t, source, METRIC, **asked
    ),
}


@settings(max_examples=3, phases=[Phase.generate])
@given(data=st.data())
def test_another_model_is_a_source_where_that_is_asked_for(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = random_model("gpt2", "GPT2LMHeadModel", seed=data.draw(st.integers(0, 99)))
    same, other = deepcopy(model), deepcopy(model)
    if data.draw(st.booleans()):
        weight = data.draw(st.sampled_from(list(other.parameters())))
        with torch.no_grad():
            weight[(0,) * weight.dim()] += 1e-3
    else:
        other.config = changed(model.config, norm_eps=0.1)
    folder = tmp_path_factory.mktemp("sources")
    stored = data.draw(st.sampled_from(["in memory", "a file"]))

    def source_of(of: Model) -> Trace:
        trace = of.trace([[5, 7, 11, 13, 17]])
        if stored == "in memory":
            return trace
        path = trace.save(folder / f"{id(of)}.trace")
        return Trace.load(path, of)

    trace, of_same, of_other = model.trace([[5, 7, 11, 13, 19]]), source_of(same), source_of(other)
    for run in DOORS.values():
        with pytest.raises(EditError, match="of another model"):
            run(model, trace, of_other, {})
        run(model, trace, of_same, {})
        run(model, trace, of_other, {"other_model": True})
