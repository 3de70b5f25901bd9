"""Model types with traps of their own; `python -m benchmarks.attach_sweep` goes through all."""

import json
from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import minibert
from benchmarks.attach_sweep import PAGE, SWEEP, WANTED, page_of
from benchmarks.attached.checks import TOLERANCE, checked, difference, own_weights
from benchmarks.attached.small_models import candidates, inputs_for, small_configs

TYPES = {
    "bert": {"encoder": 2},
    "gpt2": {"layers": 2},
    "bart": {"encoder": 2, "decoder.self": 2, "decoder.cross": 2},
    # Position bias.
    "t5": {"encoder": 2, "decoder.self": 2, "decoder.cross": 2},
    "whisper": {"encoder": 2, "decoder.self": 2, "decoder.cross": 2},
    "vit": {"layers": 2},
    "clip": {"text": 2, "vision": 2},
    # A soft cap, sinks: neither runs under sdpa.
    "gemma2": {"layers": 2},
    "gpt_oss": {"layers": 2},
    # One module for all layers.
    "albert": {"encoder": 2},
}
# Under another name than "eager" and "sdpa" these give other logits: they ask for the name.
ASKING = ("deepseek_v32", "glm_moe_dsa", "axk2")


def small(name: str) -> tuple[Any, Any]:
    """The first small model of a type that runs, and its inputs."""
    kind = CONFIG_MAPPING[name]
    one = next(iter(candidates(kind)))
    for config in small_configs(kind):
        torch.manual_seed(5)
        model = one(config).eval()
        for inputs in inputs_for(model):
            try:
                with torch.no_grad():
                    model(**inputs)
            except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
                continue
            return model, inputs
    raise AssertionError(f"no small {name} runs")


@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_read_written_and_ablated(name: str) -> None:
    row = checked(*small(name))
    assert row["result"] == "pass", row
    assert row["untouched"] == 0
    assert row["probs"] <= TOLERANCE
    assert row["head"] != "gated"
    assert row["layers"] == TYPES[name]


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_type_that_asks_for_the_name_computes_what_it_did(name: str, implementation: str) -> None:
    model, inputs = small(name)
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        plain = model(**inputs)
    trace = minibert.attach(model).trace(**inputs)
    assert difference(plain, trace.output) == 0.0
    assert [layer.problem for layer in trace] == ["", ""]


def test_weights_of_padded_queries_and_keys_are_the_models_own() -> None:
    model, inputs = small("gpt_oss")
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, :3] = 0
    with own_weights() as weights:
        trace = minibert.attach(model).trace(**inputs, attention_mask=mask)
    for layer, (_, own) in zip(trace, weights, strict=True):
        real = (layer.probs - own)[1, :, 3:]
        assert float(real.abs().max()) <= TOLERANCE
        # A sink takes its share.
        assert float(layer.probs.sum(-1).max()) < 1


def test_the_page_agrees_with_the_results_of_the_sweep() -> None:
    rows = [json.loads(one) for one in SWEEP.read_text(encoding="utf-8").splitlines()]
    assert PAGE.read_text(encoding="utf-8") == page_of(rows)
    passed = {row["type"] for row in rows if row["result"] == "pass"}
    assert len(passed) >= WANTED
    assert passed >= {*TYPES, *ASKING}
