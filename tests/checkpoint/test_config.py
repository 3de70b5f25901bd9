"""A Config says what transformers' configuration says, both ways, or says what is wrong."""

import json
from typing import Any

import jaxtyping
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import minibert
from minibert.checkpoint.config import MODEL_TYPES, config_from_hf, config_to_hf
from minibert.layers.config import Config
from tests.checkpoint import small_families
from tests.families import ARCHITECTURES, CLASSES, Sizes, hf_config, sizes

# Our field -> transformers' attribute; its attribute_map makes these names work in every family.
SAME = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
}
ROBERTA = ("roberta", "xlm-roberta", "camembert")


def as_json(config: Any) -> dict[str, Any]:
    """What the config.json of a checkpoint says, without what is only implied."""
    return json.loads(config.to_json_string(use_diff=False))


def assert_fields(ours: Config, theirs: Any) -> None:
    for field, attribute in SAME.items():
        assert getattr(ours, field) == getattr(theirs, attribute)
    reserved = theirs.pad_token_id + 1 if ours.model_type in ROBERTA else 0
    assert ours.position_offset == reserved
    assert ours.n_positions == theirs.max_position_embeddings - reserved
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.labels == tuple(theirs.id2label[index] for index in range(theirs.num_labels))
    assert ours.model_type == theirs.model_type
    assert ours.d_head == theirs.hidden_size // theirs.num_attention_heads


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
@settings(max_examples=5)
@given(chosen=sizes)
def test_a_config_survives_the_way_to_transformers_and_back(
    family: str, name: str, chosen: Sizes
) -> None:
    theirs = hf_config(family, chosen)
    theirs.architectures = [name]
    ours = config_from_hf(as_json(theirs))
    assert_fields(ours, theirs)
    again = type(theirs)(**config_to_hf(ours))
    assert_fields(ours, again)
    assert config_to_hf(ours)["architectures"] == [name]
    assert config_from_hf(config_to_hf(ours)) == ours
    assert config_from_hf(as_json(again) | {"architectures": [name]}) == ours
    json.dumps(config_to_hf(ours))


@pytest.mark.parametrize("family", CLASSES)
def test_what_a_config_leaves_out_is_what_transformers_takes_for_it(family: str) -> None:
    """config.json holds what differs from the default only; defaults differ between families."""
    defaults = getattr(transformers, type(hf_config(family, Sizes())).__name__)()
    short = json.loads(defaults.to_json_string(use_diff=True))
    sized = {
        name: value
        for name, value in as_json(defaults).items()
        if name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
        or name in ("max_position_embeddings", "dim", "n_layers", "n_heads", "pad_token_id")
        or name in ("n_embd", "n_layer", "n_head", "n_positions", "intermediate_size", "hidden_dim")
    }
    given_little = config_from_hf(sized | short | {"model_type": family})
    assert given_little == config_from_hf(as_json(defaults) | {"model_type": family})


@pytest.mark.parametrize("task", ["none", "masked-lm", "sequence-classification"])
def test_a_task_can_be_asked_for(task: str) -> None:
    about = as_json(hf_config("bert", Sizes())) | {"architectures": ["BertForPreTraining"]}
    config = config_from_hf(about, task=task)
    assert config.task == task
    assert config.pooler == (task != "masked-lm")


@pytest.mark.parametrize("architectures", [None, []])
def test_a_config_that_names_no_class_is_of_a_bare_body(architectures: Any) -> None:
    about = as_json(hf_config("gpt2", Sizes())) | {"architectures": architectures}
    assert config_from_hf(about).task == "none"


BERT = {
    "model_type": "bert",
    "vocab_size": 41,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 23,
    "max_position_embeddings": 31,
}
# What is changed, and words that must stand in the message.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "t5"}, r"'t5'.*known are albert, bert, .*from Python: minibert\.attach\("),
    ({"model_type": "gemma3"}, r"'gemma3'.*texts and images.*gemma3_text"),
    ({"model_type": None}, r"None.*known are"),
    ({"model_type": ["bert"]}, r"\['bert'\].*known are"),
    ({"architectures": ["BertForMultipleChoice"]}, r"'BertForMultipleChoice'.*BertForMasked.*none"),
    ({"architectures": "BertModel"}, r"architectures.*'BertModel'"),
    ({"architectures": ["LlamaModel"]}, r"'LlamaModel'.*BertForMaskedLM"),
    ({"num_attention_heads": 4}, r"4 heads do not divide a width of 15"),
    ({"hidden_size": -15}, r"hidden_size is -15; expected a positive whole number"),
    ({"num_hidden_layers": 0}, r"num_hidden_layers is 0"),
    ({"vocab_size": "41"}, r"vocab_size is '41'"),
    ({"vocab_size": 41.5}, r"vocab_size is 41.5"),
    ({"vocab_size": None}, r"vocab_size is missing"),
    ({"intermediate_size": -1}, r"-1; expected a positive whole number"),
    ({"intermediate_size": "big"}, r"'big'; expected a positive whole number"),
    ({"type_vocab_size": "2"}, r"type_vocab_size.*'2'"),
    ({"type_vocab_size": -2}, r"type_vocab_size.*-2"),
    ({"max_position_embeddings": True}, r"max_position_embeddings is True"),
    ({"layer_norm_eps": "small"}, r"layer_norm_eps.*'small'"),
    ({"hidden_act": "mish"}, r"'mish' is not implemented; known are gelu"),
    ({"hidden_act": ["gelu"]}, r"\['gelu'\] is not implemented"),
    ({"position_embedding_type": "relative_key"}, r"'relative_key'.*'absolute'"),
    ({"add_cross_attention": True}, r"cross attention"),
    (
        {
            "model_type": "gpt2",
            "is_causal": False,
            "n_embd": 8,
            "n_layer": 1,
            "n_head": 2,
            "n_positions": 5,
        },
        r"is_causal is False",
    ),
    ({"id2label": ["a", "b"]}, r"id2label"),
    ({"id2label": {"x": "a"}}, r"id2label"),
    ({"pad_token_id": "0", "model_type": "roberta"}, r"pad_token_id.*'0'"),
    ({"quantization_config": {"quant_method": "gptq"}}, r"quanti[sz].*gptq"),
    ({"model_type": "roberta", "max_position_embeddings": 2}, r"positions"),
    ({"model_type": "albert", "num_hidden_groups": 3}, r"3 layer groups for 2 layers"),
    ({"model_type": "albert", "num_hidden_groups": "1"}, r"num_hidden_groups.*'1'"),
    ({"model_type": "albert", "inner_group_num": 2}, r"inner_group_num"),
    ({"model_type": "electra", "embedding_size": -3}, r"-3; expected a positive"),
    ({"is_decoder": "false"}, r"is_decoder is 'false'; expected true or false"),
    ({"tie_word_embeddings": "no"}, r"tie_word_embeddings is 'no'; expected true or false"),
    ({"model_type": "gpt2", "scale_attn_weights": 1}, r"scale_attn_weights is 1"),
    ({"hidden_size": 15 * 10**14}, r"d_model is 15\d+; expected at most"),
    ({"type_vocab_size": 10**15}, r"n_segments is 10+; expected at most"),
    ({"model_type": "albert", "num_hidden_layers": 10**9}, r"n_layers is 10+; expected at most"),
    ({"num_labels": 10**9}, r"num_labels is 10+; expected at most"),
    ({"problem_type": "guess"}, r"'guess'; expected one of single_label_classification"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_config_that_cannot_be_is_an_error_that_says_why(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As people run it: without the checks of annotations that only tests have.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(minibert.CheckpointError, match=f"(?s)config.*{message}"):
        config_from_hf(BERT | change)


def test_a_task_the_family_lacks_is_an_error_that_lists_what_it_has() -> None:
    with pytest.raises(minibert.CheckpointError, match=r"gpt2.*'masked-lm'.*none, causal-lm"):
        config_from_hf(as_json(hf_config("gpt2", Sizes())), task="masked-lm")
    with pytest.raises(minibert.CheckpointError, match=r"'poetry'.*masked-lm"):
        config_from_hf(BERT, task="poetry")


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 50) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=3,
)


@pytest.mark.parametrize("family", sorted(MODEL_TYPES))
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_stands_in_a_config_the_answer_is_a_config_or_a_checkpoint_error(
    family: str, data: st.DataObject
) -> None:
    classes = CLASSES | small_families.CLASSES
    small = family in small_families.CLASSES
    chosen = small_families.hf_config(family) if small else hf_config(family, Sizes())
    whole = as_json(chosen) | {"architectures": [classes[family][0]]}
    name = data.draw(st.sampled_from(sorted(whole)))
    whole[name] = data.draw(junk)
    with pytest.MonkeyPatch.context() as patch:
        # As people run it: without the checks of annotations that only tests have.
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        try:
            config = config_from_hf(whole)
        except minibert.CheckpointError:
            return
        assert config_from_hf(config_to_hf(config)) == config
        hash(config)


@pytest.mark.parametrize("kind", [None, "regression", "multi_label_classification"])
def test_the_kind_of_classification_is_kept(kind: str | None) -> None:
    config = config_from_hf(BERT | {"problem_type": kind})
    assert config.problem_type == (kind or "")
    assert transformers.BertConfig(**config_to_hf(config)).problem_type == kind
