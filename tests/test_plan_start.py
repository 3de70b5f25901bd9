"""Where a plan begins: the lowest layer and the first position that its edits reach."""

from typing import Any

import torch

from minibert.trace.edit import noise, replace, zero
from minibert.trace.plan import Plan
from tests.editing import model_of, sentences


def test_an_empty_plan_changes_nothing_and_knows_no_layer() -> None:
    model, tokens = model_of("bert"), sentences("bert")
    allowed = model.allowed(tokens.ids, tokens.mask)

    def planned(edits: Any) -> Plan:
        return Plan.of(edits, model.config, allowed, dtype=model.dtype)

    plan = planned({})
    assert plan.first_layer is None
    assert plan.names(0) == frozenset()
    assert torch.equal(model.trace(tokens, edit={}).logits, model(tokens))
    edits = {("z", 2): zero, ("key", -2): zero, "logits": zero}
    assert planned(edits).first_layer == 1
    assert planned(edits | {"embed": zero}).first_layer == 0
    later = noise(1, positions=slice(5, None))
    somewhere = {("z", 2): replace(0.5, positions=[7, 3]), ("key", 1): later}
    assert planned(somewhere).first_position == 3
    assert planned(somewhere | {("mlp_out", 2): zero}).first_position == 0
    assert planned({"logits": zero, ("z", 0): replace(0.5, positions=4)}).first_position == 4
