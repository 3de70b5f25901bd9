"""Every field of every transformers configuration is judged, and its verdict is what happens.

Each field that transformers has is changed, one at a time. Then minibert either computes what
transformers computes with the changed field, or says that it does not.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

import minibert
from minibert.checkpoint.config import CONTRACT, config_from_hf
from minibert.checkpoint.files import open_state_dict
from minibert.checkpoint.load import Asked, Checkpoint
from minibert.layers.config import Dropout
from minibert.model import Model
from tests import families
from tests.checkpoint import small_families
from tests.families import CLASSES, VOCABULARY, Sizes
from tests.rotary import classes

# Their transformers class; those of small_families have rotary positions.
CONFIGS = families.CONFIGS | {
    family: small_families.hf_class(family).__name__ for family in small_families.FAMILIES
}
HEADS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2ForSequenceClassification"),
    "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Model"),
    "granite": ("GraniteForCausalLM", "GraniteModel"),
}
FEWER = Sizes(layers=2, heads=2, d_head=6)
# What a value of a type is changed to; several, so that no verdict rests on one.
OTHERS = {
    bool: lambda value: [not value],
    int: lambda value: [value + 1, 2 * value + 2],
    float: lambda value: [value + 0.25, 0.0],
    str: lambda value: ["relu", "x"],
    dict: lambda value: [{"0": "a"}, {"0": "a", "1": "b", "2": "c", "3": "d"}],
    list: lambda value: [[]],
    type(None): lambda value: [True, 3, "x", 0.5],
}
# Fields that older configurations have and today's classes do not list.
ALSO = {"num_labels": 2, "is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}


def heads(family: str) -> tuple[str, str]:
    if family in HEADS:
        return HEADS[family]
    lms = ("ForMaskedLM", "ForCausalLM")
    names = (CLASSES | classes.CLASSES)[family]
    lm = next(name for name in names if name.endswith(lms))
    return lm, f"{lm.removesuffix(lms[0]).removesuffix(lms[1])}ForSequenceClassification"


def hf_config(family: str) -> Any:
    if family in small_families.FAMILIES:
        return small_families.hf_config(family, num_hidden_layers=2)
    return families.hf_config(family, FEWER)


def fields(family: str) -> dict[str, Any]:
    """Every field that transformers has in this family, with its value in a small model."""
    config = hf_config(family)
    known = json.loads(config.to_json_string(use_diff=False))
    named = {field.name for field in dataclasses.fields(config)} | set(known)
    aliases = {name: known[own] for name, own in config.attribute_map.items()}
    return {name: known.get(name) for name in named} | aliases | ALSO | known


@pytest.mark.parametrize("family", CONFIGS)
def test_every_field_that_transformers_has_is_judged(family):
    unjudged = fields(family).keys() - CONTRACT[family].keys()
    assert not unjudged, f"say in checkpoint/families what becomes of {sorted(unjudged)}"


@pytest.mark.parametrize("family", CONFIGS)
def test_a_verdict_says_why(family):
    for name, judged in CONTRACT[family].items():
        assert judged.verdict in ("read", "irrelevant", "refused"), name
        assert (judged.verdict == "read") == (not judged.reason), name
        assert (judged.verdict == "refused") == bool(judged.allowed), name


def changes(family: str, head: int) -> Iterator[tuple[str, Any]]:
    """Every field, with every second of its other values for each head, or the only one."""
    for name, value in sorted(fields(family).items()):
        if name not in ("model_type", "architectures"):
            others = [other for other in OTHERS[type(value)](value) if other != value]
            yield from ((name, other) for other in others[head::2] or others)


def theirs(content: dict[str, Any], name: str) -> tuple[Any, list[torch.Tensor]] | None:
    """The transformers model of a config.json, its hidden states and logits.

    None where transformers refuses it as well.
    """
    try:
        config = getattr(transformers, CONFIGS[content["model_type"]]).from_dict(dict(content))
        torch.manual_seed(0)
        model = getattr(transformers, name)._from_config(config, attn_implementation="eager")
        model.eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.2)
            found = model(**INPUTS, output_hidden_states=True, return_dict=True)
        # A bare body has no logits.
        logits = found.get("logits", found.get("last_hidden_state"))
        return model, [*found.hidden_states, logits]
    except Exception:
        return None


INPUTS = {
    # No id that a changed pad_token_id could name.
    "input_ids": torch.tensor([[25, 19, 14, 22, 27, 31, 13], [11, 26, 17, 34, 38, 12, 23]]),
    "attention_mask": torch.ones(2, 7, dtype=torch.int64),
}


def ours(content: dict[str, Any], reference: Any, name: str) -> list[torch.Tensor] | None:
    """Hidden states and logits by minibert; None where it refuses the config."""
    try:
        config = config_from_hf(content)
        entries = open_state_dict(reference.state_dict())
        config = dataclasses.replace(config, tied=config.tied and "Sequence" not in name)
        checkpoint = Checkpoint(config, None, name, name, entries, Dropout(), Asked())
        with torch.device("meta"):
            model = Model(config)
        checkpoint.fill(model)
    except minibert.CheckpointError:
        return None
    ids, mask = INPUTS["input_ids"], INPUTS["attention_mask"].bool()
    tokens = minibert.Tokens.from_ids(ids, mask=mask)
    trace = model.trace(tokens)
    states = [trace.embed, *(trace[layer].resid_post for layer in range(config.n_layers))]
    if config.final_norm:
        # transformers gives the last state behind the final norm.
        states[-1] = model.body.final(states[-1])
    return [*states, states[-1] if config.task == "none" else trace.logits]


@pytest.mark.parametrize("head", [0, 1], ids=["language model", "classifier"])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_changed_field_gives_the_numbers_of_transformers_or_is_refused(family, head):
    name = heads(family)[head]
    base = json.loads(hf_config(family).to_json_string(use_diff=False))
    base |= {"architectures": [name], "model_type": family}
    wrong = []
    for field, value in [("", None), *changes(family, head)]:
        content = base | ({field: value} if field else {})
        reference = theirs(content, name)
        if reference is None:
            continue
        model, expected = reference
        found = ours(content, model, name)
        if found is None:
            assert field, "the model that nothing was changed in is refused"
            continue
        for mine, their in zip(found, expected, strict=True):
            if mine.shape != their.shape or (mine - their).abs().max() > 1e-4:
                wrong.append(f"{field} = {value!r}")
                break
    assert not wrong, f"neither equal nor refused in {name}: {wrong}"
    assert int(INPUTS["input_ids"].max()) < VOCABULARY
