"""A survey of a live transformers model has the tables of the same weights loaded by minibert."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    BartConfig,
    BartModel,
    BertConfig,
    BertForMaskedLM,
    CLIPConfig,
    CLIPModel,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
)

import minibert
from minibert.errors import SurveyError
from minibert.survey import survey
from tests.survey.small_surveys import texts

EMBEDDED = Path(minibert.__file__).parent / "embedded"
MODELS = {"tiny-bert": AutoModelForPreTraining, "tiny-gpt2": AutoModelForCausalLM}
SIZES: dict[str, Any] = {"vocab_size": 6656, "initializer_range": 0.3}


def tokenizer_of(name: str) -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED / name)


def bert(**options: Any) -> Any:
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=2, num_attention_heads=3, hidden_size=33, intermediate_size=40,
        max_position_embeddings=64, **SIZES, **options,
    )  # fmt: skip
    return BertForMaskedLM(config).eval()


def gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=3, n_embd=33, n_positions=64, **SIZES, **options)
    return GPT2LMHeadModel(config).eval()


def bart() -> Any:
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=6656, d_model=33, encoder_layers=2, decoder_layers=3, init_std=0.3,
        encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=40,
        decoder_ffn_dim=40, max_position_embeddings=48,
    )  # fmt: skip
    return BartModel(config).eval()


def gpt_oss(**options: Any) -> Any:
    """Sinks, grouped heads, and a window of 8 in every other layer."""
    torch.manual_seed(0)
    config = GptOssConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        hidden_size=32, intermediate_size=16, num_local_experts=2, num_experts_per_tok=1,
        sliding_window=8, max_position_embeddings=64, pad_token_id=0, **SIZES, **options,
    )  # fmt: skip
    return GptOssForCausalLM(config).eval()


def differences(one: Any, other: Any) -> dict[str, float]:
    """By measure the largest difference of a head; where one is not measured, the other is not."""
    assert one.names == other.names
    found = {}
    for name in one.names:
        assert one.count(name) == other.count(name), name
        if one.count(name):
            found[name] = float(np.abs(one.table(name) - other.table(name)).max())
    found["profile"] = float(np.abs(one.sums.profile - other.sums.profile).max())
    # A sum over documents, not a mean.
    squares = np.abs(one.sums.squares - other.sums.squares).max()
    found["squares"] = float(squares / max(1.0, np.abs(other.sums.squares).max()))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_an_embedded_model_read_by_transformers_has_the_tables_of_the_loaded_one(name: str) -> None:
    live = MODELS[name].from_pretrained(EMBEDDED / name, dtype=torch.float32).eval()
    attached = minibert.attach(live, tokenizer=tokenizer_of(name))
    options: dict[str, Any] = {"offsets": (-2, 3), "tokens": ("the", "."), "pairs": True}
    theirs, ours = (survey(m, texts(22), **options) for m in (attached, minibert.load(name)))
    found = differences(theirs, ours)
    assert len(found) > 30
    assert max(found.values()) <= 1e-5, found
    corpus = theirs.manifest["corpus"]
    assert corpus == ours.manifest["corpus"]
    # Some documents were longer than the model, and were cut alike.
    assert corpus["segments"] == corpus["documents"] == 11
    assert corpus["pairs_cut"] > 0
    assert theirs.manifest["model"]["stack"]["name"] == ("encoder" if "bert" in name else "layers")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("build", [bert, gpt2])
def test_random_weights_saved_and_loaded_have_the_same_tables(
    build: Any, attention: str, tmp_path: Path
) -> None:
    live = build(attn_implementation=attention)
    tokenizer = tokenizer_of("tiny-bert" if build is bert else "tiny-gpt2")
    live.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    theirs = survey(minibert.attach(live, tokenizer=tokenizer), texts(9))
    ours = survey(minibert.load(tmp_path), texts(9))
    found = differences(theirs, ours)
    assert max(found.values()) <= 1e-5, found
    assert theirs.manifest["options"]["impl"] == attention
    assert theirs.manifest["options"]["longest"] == ours.manifest["options"]["longest"] == 64
    # The model is as it was.
    assert not live._forward_hooks
    assert live.config._attn_implementation == attention


def by_hand(probs: Any, ids: list[int]) -> dict[str, Any]:
    """Some measures of one text, from (layer, head, query, key), formula by formula."""
    n = len(ids)
    logs = np.log(np.where(probs > 0, probs, 1))
    repeats = [(q, [k for k in range(q) if ids[k] == ids[q]]) for q in range(n)]
    duplicates = [probs[..., q, keys].sum(-1) for q, keys in repeats if keys and ids[q] > 4]
    return {
        "entropy": -(probs * logs).sum(-1).mean(-1),
        "most_received": probs.sum(-2).max(-1) / n,
        # Every row counts, the first one too.
        "to_previous": np.trace(probs, -1, 2, 3) / n,
        "to_next": np.trace(probs, 1, 2, 3) / n,
        "to_self": np.trace(probs, 0, 2, 3) / n,
        "to_first": probs[..., 0].mean(-1),
        "to_duplicate": np.mean(duplicates, 0) if duplicates else None,
    }


def means(of_texts: list[dict[str, Any]]) -> dict[str, Any]:
    """The means over the texts that have each measure."""
    return {
        name: np.mean([one[name] for one in of_texts if one[name] is not None], 0)
        for name in of_texts[0]
    }


@pytest.mark.parametrize(("stack", "layers"), [("encoder", 2), ("decoder.self", 3)])
def test_an_encoder_and_a_decoder_that_load_does_not_know_are_surveyed_by_name(
    stack: str, layers: int
) -> None:
    live, tokenizer, documents = bart(), tokenizer_of("tiny-bert"), [*texts(3), *texts(6)[4:]]
    found = survey(minibert.attach(live, tokenizer=tokenizer), documents, stack=stack)
    live.set_attn_implementation("eager")
    side = "encoder" if stack == "encoder" else "decoder"
    expected = []
    for text in documents:
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            out = live(
                ids, decoder_input_ids=ids, output_attentions=True, output_hidden_states=True
            )
        probs = torch.cat(out[f"{side}_attentions"]).double().numpy()
        one = by_hand(probs, ids[0].tolist())
        norms = []
        for layer, hidden in zip(
            getattr(live, side).layers, out[f"{side}_hidden_states"], strict=False
        ):
            value = layer.self_attn.v_proj(hidden)[0].unflatten(-1, (3, 11))
            weight = layer.self_attn.out_proj.weight.unflatten(1, (3, 11))
            norms.append(torch.einsum("khd,ohd->hko", value, weight).norm(dim=-1).detach().numpy())
        weighed = probs * np.stack(norms)[:, :, None]
        weighed /= weighed.sum(-1, keepdims=True)
        one["to_previous_by_norm"] = by_hand(weighed, ids[0].tolist())["to_previous"]
        expected.append(one)
    assert found.table("entropy").shape == (layers, 3)
    for name, table in means(expected).items():
        np.testing.assert_allclose(found.table(name), table, atol=1e-5, err_msg=name)
    told = found.manifest["model"]["stack"]
    assert told["name"] == stack
    assert ("decoder_input_ids" in told) == (stack == "decoder.self")
    assert found.manifest["model"]["config"]["causal"] == (stack == "decoder.self")


def test_windows_and_sinks_of_a_model_that_load_does_not_know_are_in_its_tables() -> None:
    live, tokenizer = gpt_oss(attn_implementation="eager"), tokenizer_of("tiny-gpt2")
    documents = [*texts(3), "the horse ran away , and a boat turned slowly near the river . it was"]
    found = survey(minibert.attach(live, tokenizer=tokenizer), documents)
    expected = []
    for text in documents:
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            probs = torch.cat(live(ids, output_attentions=True).attentions).double().numpy()
        expected.append(by_hand(probs, ids[0].tolist()))
    for name, table in means(expected).items():
        np.testing.assert_allclose(found.table(name), table, atol=1e-5, err_msg=name)
    # Sinks take some of every row, and the window all that is further away.
    assert (found.sums.profile.sum(-1) < len(documents) - 0.01).all()
    middle = found.sums.profile.shape[-1] // 2
    assert (found.sums.profile[0, :, : middle - 7] == 0).all()
    assert (found.sums.profile[1, :, : middle - 7] > 0).any()


def test_a_narrow_live_model_says_how_far_it_is_from_float32() -> None:
    live = bert().to(torch.bfloat16)
    found = survey(minibert.attach(live, tokenizer=tokenizer_of("tiny-bert")), texts(3))
    drift = found.manifest["corpus"]["drift"]["largest_difference"]
    assert 0 < drift["entropy"] < 0.1
    assert live.dtype == torch.bfloat16


REFUSED = {
    "a tokenizer": (lambda: bert(), None, {}, "without a tokenizer"),
    "gradients": (bert, "tiny-bert", {"gradients": True}, "gradients=True of the attached model"),
    "impl": (bert, "tiny-bert", {"impl": "eager"}, "set_attn_implementation"),
    "a dtype": (bert, "tiny-bert", {"dtype": torch.bfloat16}, "load it in the other one"),
    "a stack": (bert, "tiny-bert", {"stack": "decoder"}, "BertForMaskedLM has 'encoder'"),
    "too long": (bert, "tiny-bert", {"longest": 65}, "from 8 to 64"),
    "several": (bart, "tiny-bert", {}, "several stacks; name one with stack=: 'encoder'"),
    "cross": (bart, "tiny-bert", {"stack": "decoder.cross"}, "'decoder.cross' cannot be surveyed"),
    "training": (lambda: bert().train(), "tiny-bert", {}, "training mode"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_surveyed_is_refused_before_a_document_is_read(what: str) -> None:
    build, tokenizer, options, message = REFUSED[what]
    given = None if tokenizer is None else tokenizer_of(tokenizer)

    def unread() -> Any:
        raise AssertionError("a document was read")
        yield ""

    with pytest.raises(SurveyError, match=message):
        survey(minibert.attach(build(), tokenizer=given), unread(), **options)


def test_a_model_that_needs_a_picture_is_refused_and_its_text_part_is_surveyed() -> None:
    torch.manual_seed(0)
    sizes = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 16,
        "intermediate_size": 8,
    }
    config = CLIPConfig(
        text_config=SIZES | sizes | {"max_position_embeddings": 32},
        vision_config=sizes | {"image_size": 8, "patch_size": 4},
    )
    live, tokenizer = CLIPModel(config).eval(), tokenizer_of("tiny-bert")
    with pytest.raises(SurveyError, match="cannot read a text alone"):
        survey(minibert.attach(live, tokenizer=tokenizer), texts(2))
    found = survey(minibert.attach(live.text_model, tokenizer=tokenizer), texts(2))
    assert found.table("to_next").max() == 0
    assert found.table("to_self").shape == (2, 2)


def test_a_tokenizer_that_is_not_what_its_file_says_is_refused() -> None:
    class Other(type(tokenizer_of("tiny-bert"))):  # type: ignore[misc]
        def __call__(self, text: Any, *rest: Any, **options: Any) -> Any:
            return super().__call__(f"{text} once more", *rest, **options)

    other = Other.from_pretrained(EMBEDDED / "tiny-bert")
    with pytest.raises(SurveyError, match=r"makes .* ids of the text"):
        survey(minibert.attach(bert(), tokenizer=other), texts(2))


def test_a_loaded_model_has_one_stack() -> None:
    with pytest.raises(SurveyError, match="has one stack"):
        survey(minibert.load(), texts(2), stack="encoder")
