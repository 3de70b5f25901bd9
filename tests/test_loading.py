"""Every checkpoint that transformers writes, and that people keep, gives the same logits here."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from vocabularies import word_piece

import minibert
from minibert.loading import from_transformers
from minibert.model import Model
from tests.families import (
    ARCHITECTURES,
    VOCABULARY,
    Sizes,
    as_tokens,
    batch,
    hf_model,
    run_transformers,
    their_logits,
)

DECODERS = {
    "BertForMaskedLM": "cls.predictions.decoder.weight",
    "RobertaForMaskedLM": "lm_head.decoder.weight",
    "DistilBertForMaskedLM": "vocab_projector.weight",
    "ElectraForMaskedLM": "generator_lm_head.weight",
    "AlbertForMaskedLM": "predictions.decoder.weight",
    "GPT2LMHeadModel": "lm_head.weight",
}
LANGUAGE_MODELS = [pair for pair in ARCHITECTURES if pair[1] in DECODERS]


def assert_same(model: Any, theirs: Any, family: str) -> None:
    inputs = batch(family)
    expected = their_logits(run_transformers(theirs, inputs), type(theirs).__name__)
    got = model(as_tokens(inputs))
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-5


def rewrite(folder: Path, change: Any) -> None:
    """Applies `change` to the tensors of the folder's weights."""
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors)
    save_file(tensors if changed is None else changed, folder / "model.safetensors")


def reconfigure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
def test_what_transformers_saves_gives_the_same_logits(
    family: str, name: str, tied: bool, tmp_path: Path
) -> None:
    theirs = hf_model(family, name, Sizes(tied=tied))
    theirs.save_pretrained(tmp_path)
    model = minibert.load(tmp_path)
    assert model.name == str(tmp_path)
    assert_same(model, theirs, family)


@pytest.mark.parametrize(("family", "name"), LANGUAGE_MODELS)
def test_an_output_embedding_of_its_own_counts_even_where_the_config_says_tied(
    family: str, name: str, tmp_path: Path
) -> None:
    """As transformers 5 decides, which warns; earlier versions took the input embedding."""
    theirs = hf_model(family, name, Sizes(tied=False))
    theirs.save_pretrained(tmp_path)
    reconfigure(tmp_path, tie_word_embeddings=True)
    again = type(theirs).from_pretrained(tmp_path, attn_implementation="eager").eval()
    model = minibert.load(tmp_path)
    assert_same(model, again, family)
    assert not model.config.tied


@pytest.mark.parametrize("prefixed", [True, False])
def test_gpt2_is_read_with_and_without_its_prefix_and_with_its_mask_buffers(
    prefixed: bool, tmp_path: Path
) -> None:
    theirs = hf_model("gpt2", "GPT2LMHeadModel")
    theirs.save_pretrained(tmp_path)

    def as_on_the_hub(tensors: dict[str, Any]) -> dict[str, Any]:
        for layer in range(3):
            triangle = torch.ones(31, 31).tril()[None, None]
            tensors[f"transformer.h.{layer}.attn.bias"] = triangle
            tensors[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        cut = "" if prefixed else "transformer."
        return {name.removeprefix(cut): tensor for name, tensor in tensors.items()}

    rewrite(tmp_path, as_on_the_hub)
    assert_same(minibert.load(tmp_path), theirs, "gpt2")


@pytest.mark.parametrize("family", ["bert", "albert", "electra"])
def test_names_of_the_first_tensorflow_checkpoints_are_read(family: str, tmp_path: Path) -> None:
    name = {"bert": "BertForMaskedLM", "albert": "AlbertForMaskedLM"}.get(
        family, "ElectraForMaskedLM"
    )
    theirs = hf_model(family, name)
    theirs.save_pretrained(tmp_path)

    def old(name: str) -> str:
        if "norm" not in name.lower():
            return name
        return name.replace(".weight", ".gamma").replace(".bias", ".beta")

    rewrite(tmp_path, lambda tensors: {old(name): tensor for name, tensor in tensors.items()})
    assert_same(minibert.load(tmp_path), theirs, family)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_weights_in_a_pickle_are_read(family: str, tied: bool, tmp_path: Path) -> None:
    name = "BertForMaskedLM" if family == "bert" else "GPT2LMHeadModel"
    theirs = hf_model(family, name, Sizes(tied=tied))
    theirs.config.architectures = [name]
    theirs.config.save_pretrained(tmp_path)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    assert_same(minibert.load(tmp_path), theirs, family)


@pytest.mark.parametrize("with_pooler", [True, False])
@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_a_body_has_the_pooler_that_its_file_has(
    family: str, with_pooler: bool, tmp_path: Path
) -> None:
    name = {"bert": "BertModel", "roberta": "RobertaModel", "albert": "AlbertModel"}[family]
    theirs = hf_model(family, name)
    theirs.save_pretrained(tmp_path)
    if not with_pooler:
        rewrite(tmp_path, lambda tensors: {n: t for n, t in tensors.items() if "pooler" not in n})
    model = minibert.load(tmp_path)
    assert hasattr(model.trace(as_tokens(batch(family))), "pooled") == with_pooler
    assert_same(model, theirs, family)


def test_a_task_can_be_asked_for_and_heads_of_other_tasks_are_left_out(tmp_path: Path) -> None:
    theirs = hf_model("bert", "BertForPreTraining")
    theirs.save_pretrained(tmp_path)
    inputs = batch("bert")
    output = run_transformers(theirs, inputs)
    for task, expected in (
        ("masked-lm", output.prediction_logits),
        ("next-sentence", output.seq_relationship_logits),
        ("none", output.hidden_states[-1]),
    ):
        model = minibert.load(tmp_path, task=task)
        assert model.config.task == task
        assert (model(as_tokens(inputs)) - expected).abs().max() <= 1e-5


def test_a_tensor_nobody_knows_is_an_error_unless_it_is_allowed(tmp_path: Path) -> None:
    theirs = hf_model("bert", "BertForMaskedLM")
    theirs.save_pretrained(tmp_path)
    extra = {"zebra.weight": torch.ones(2), "bert.adapter.down": torch.ones(3)}
    rewrite(tmp_path, lambda tensors: tensors | extra)
    with pytest.raises(minibert.CheckpointError) as raised:
        minibert.load(tmp_path)
    message = str(raised.value)
    assert message.index("unexpected  adapter.down") < message.index("unexpected  zebra.weight")
    assert "allow_unexpected=True" in message
    assert_same(minibert.load(tmp_path, allow_unexpected=True), theirs, "bert")


def test_a_padded_vocabulary_is_read_and_its_padding_never_offered(tmp_path: Path) -> None:
    """More rows than entries, as people pad to a multiple of 64."""
    word_piece(tmp_path)
    entries = len((tmp_path / "vocab.txt").read_text("utf-8").splitlines())
    config = transformers.BertConfig(
        vocab_size=entries + 13,
        hidden_size=15,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=23,
        max_position_embeddings=31,
    )
    theirs = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        theirs.cls.predictions.bias[entries:] = 50.0
    theirs.save_pretrained(tmp_path)
    model = minibert.load(tmp_path)
    assert model("the quick fox").shape[-1] == entries + 13
    (prediction,) = model.predict("the quick [MASK]", top=entries + 13)
    assert sorted(choice.id for choice in prediction.choices) == list(range(entries))


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
def test_a_live_model_shares_its_memory(family: str, name: str) -> None:
    theirs = hf_model(family, name)
    model = from_transformers(theirs)
    memory = {parameter.untyped_storage().data_ptr() for parameter in theirs.parameters()}
    assert all(p.untyped_storage().data_ptr() in memory for p in model.parameters())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_folder_can_be_named_by_text_or_path_and_loaded_twice(tmp_path: Path) -> None:
    hf_model("bert", "BertModel").save_pretrained(tmp_path)
    first, second = minibert.load(str(tmp_path)), minibert.load(tmp_path)
    ids = torch.arange(7)[None] % VOCABULARY
    expected = second(ids)
    first.body.word.weight.zero_()
    assert torch.equal(second(ids), expected), "two models share writable memory"
    assert not torch.equal(first(ids), expected)


def test_a_model_can_be_pickled_and_copied(tmp_path: Path) -> None:
    word_piece(tmp_path)
    config = transformers.BertConfig(
        vocab_size=400, hidden_size=15, num_hidden_layers=2, num_attention_heads=3
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    model = minibert.load(tmp_path)
    torch.save(model, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), whole):
        assert torch.equal(again("the quick [MASK]"), model("the quick [MASK]"))
        assert again.predict("the quick [MASK]") == model.predict("the quick [MASK]")


# transformers keeps two biases where the decoder is not tied and reads the other one.
UNREAD = ("cls.predictions.bias", "lm_head.bias", "predictions.bias")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
def test_the_weights_of_transformers_come_back_bit_for_bit(
    family: str, name: str, tied: bool
) -> None:
    theirs = hf_model(family, name, Sizes(layers=2, tied=tied, layer_groups=2))
    ours = Model.from_transformers(theirs).to_state_dict("transformers")
    wanted = theirs.state_dict()
    assert set(ours) == set(wanted)
    for key, value in wanted.items():
        assert ours[key].dtype == value.dtype
        assert torch.equal(ours[key], value) or (key in UNREAD and not tied), key
    if tied:
        assert (
            not hf_model(family, name, Sizes(layers=2, layer_groups=2))
            .load_state_dict(ours, strict=True)
            .missing_keys
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_type_stays_unless_another_is_asked_for(dtype: torch.dtype) -> None:
    theirs = hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=1), dtype)
    kept = Model.from_transformers(theirs).to_state_dict()
    assert {value.dtype for value in kept.values()} == {dtype}
    wide = Model.from_transformers(theirs, dtype=torch.float64).to_state_dict()
    assert {value.dtype for value in wide.values()} == {torch.float64}


def test_a_body_alone_has_the_names_of_the_bare_class() -> None:
    theirs = hf_model("bert", "BertForMaskedLM", Sizes(layers=2))
    bare = Model.from_transformers(theirs, task="none").to_state_dict()
    wanted = hf_model("bert", "BertModel", Sizes(layers=2)).state_dict()
    assert set(bare) == {name for name in wanted if not name.startswith("pooler")}


def test_memory_is_shared_in_both_directions() -> None:
    theirs = hf_model("bert", "BertForMaskedLM", Sizes(layers=1))
    model = Model.from_transformers(theirs)
    state = model.to_state_dict()
    word = "bert.embeddings.word_embeddings.weight"
    assert state[word].data_ptr() == theirs.state_dict()[word].data_ptr()
    assert state["cls.predictions.decoder.weight"].data_ptr() == state[word].data_ptr()


@pytest.mark.parametrize("names", ["Transformers", "", "minibert"])
def test_other_names_are_an_error(names: str) -> None:
    model = Model.from_transformers(hf_model("bert", "BertModel", Sizes(layers=1)))
    with pytest.raises(minibert.CheckpointError, match='expected names="transformers"'):
        model.to_state_dict(names)


@pytest.mark.parametrize("wrong", [torch.nn.Linear(2, 3), None, "bert"])
def test_what_is_no_transformers_model_is_an_error(wrong: Any) -> None:
    with pytest.raises(minibert.CheckpointError, match="expected a transformers model"):
        Model.from_transformers(wrong)
