"""get_attention and show: the models and tokenizers that code written for BertViz passes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attention_pages import example_of, header_of, unpacked
from live.drawn import random_model
from torch import Tensor, nn

import minibert
from minibert.errors import AttentionError
from minibert.viz.neuron_view import get_attention, show

transformers = pytest.importorskip("transformers")

EMBEDDED = Path(minibert.__file__).parent / "embedded"
WORDS = ["<s>", "</s>", "<unk>", "<mask>", *(f"▁w{i}" for i in range(20))]
HEADS, WIDTH, POSITIONS = 2, 6, 24


class Pieces:
    """A tokenizer that only cuts texts into words, as those of 2019 and BertViz' own do."""

    cls_token, sep_token, mask_token, unk_token = "<s>", "</s>", "<mask>", "<unk>"

    def tokenize(self, text: str) -> list[str]:
        return [f"▁{word}" for word in text.split()]

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [WORDS.index(token) for token in tokens]

    def convert_ids_to_tokens(self, number: int) -> str:
        return WORDS[number]


class Calling(Pieces):
    """A tokenizer of today, with RoBERTa's ends."""

    all_special_ids = (0, 1, 2, 3)
    mask_token_id, unk_token_id, eos_token_id = 3, 2, 1

    def __call__(self, first: str, second: str | None = None) -> dict[str, list[int]]:
        rest = ["</s>", *self.tokenize(second), "</s>"] if second else []
        return {
            "input_ids": self.convert_tokens_to_ids(["<s>", *self.tokenize(first), "</s>", *rest])
        }


class OwnModel(nn.Module):
    """What the models of bertviz.transformers_neuron_view give: a mapping a layer, at the end."""

    def __init__(self, *, causal: bool = False, left_out: str = "", scale: float = 1.0) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), HEADS * WIDTH)
        self.places = nn.Embedding(POSITIONS, HEADS * WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.causal, self.left_out, self.scale = causal, left_out, scale
        self.called_with: dict[str, Tensor] = {}

    def forward(self, ids: Tensor, **others: Tensor) -> tuple[Any, ...]:
        self.called_with = others
        stream = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        layers = []
        for number in range(3):
            heads = (stream + number).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
            query, key = heads, heads.roll(1, -1)
            scores = query @ key.transpose(-1, -2) * WIDTH**-0.5 * self.scale
            if self.causal:
                ahead = torch.ones(scores.shape[-2:]).triu(1).bool()
                scores = scores.masked_fill(ahead, -1e4)
            layer = {"attn": self.dropout(scores.softmax(-1)), "queries": query, "keys": key}
            layers.append({name: value for name, value in layer.items() if name != self.left_out})
        return stream, tuple(layers)


def expected_of(model: OwnModel, tokens: list[str]) -> tuple[dict[str, Tensor], ...]:
    training = model.training
    model.eval()
    with torch.no_grad():
        layers = model(torch.tensor([[WORDS.index(token) for token in tokens]]))[-1]
    model.train(training)
    return layers


BERT_PAIR = (["<s>", "▁w1", "▁w2", "</s>"], ["▁w3", "</s>"])
ROBERTA_PAIR = (["<s>", "▁w1", "▁w2", "</s>"], ["</s>", "▁w3", "</s>"])
SHOWN = {"<s>": "[CLS]", "</s>": "[SEP]"}


class TestModelsThatGiveTheirVectors:
    @pytest.mark.parametrize(
        ("model_type", "parts"),
        [
            ("bert", BERT_PAIR),
            ("roberta", ROBERTA_PAIR),
            ("bert", (["<s>", "▁w1", "▁w2", "</s>"],)),
            ("gpt2", (["▁w1", "▁w2"],)),
            ("xlnet", (["▁w1", "▁w2", "</s>", "<s>"],)),
        ],
    )
    def test_their_own_numbers_are_given(
        self, model_type: str, parts: tuple[list[str], ...]
    ) -> None:
        model = OwnModel(causal=model_type == "gpt2").train()
        second = "w3" if len(parts) > 1 else None
        found = get_attention(model, model_type, Pieces(), "w1 w2", second, True)
        assert model.training
        assert model.dropout.training
        tokens = [token for part in parts for token in part]
        layers = expected_of(model, tokens)
        sides = {"all": slice(None)}
        if second:
            sides |= {"a": slice(0, len(parts[0])), "b": slice(len(parts[0]), None)}
        pairs = [(one, other) for one in sides for other in sides if "all" not in (one, other)]
        assert set(found) == {"all", *(one + other for one, other in pairs)}
        strings = [SHOWN.get(token, token.replace("▁", " ")) for token in tokens]
        for one, other in [("all", "all"), *pairs]:
            got = found["all" if one == "all" else one + other]
            queries, keys = sides[one], sides[other]
            assert (got["left_text"], got["right_text"]) == (strings[queries], strings[keys])
            for i, layer in enumerate(layers):
                assert got["attn"][i] == layer["attn"][0, :, queries, keys].tolist()
                assert got["queries"][i] == layer["queries"][0, :, queries].tolist()
                assert got["keys"][i] == layer["keys"][0, :, keys].tolist()

    @pytest.mark.parametrize("causal", [False, True])
    def test_show_holds_their_query_and_key(self, causal: bool) -> None:
        model = OwnModel(causal=causal)
        page = show(model, "gpt2" if causal else "bert", Pieces(), "w1 w2 w3", layer=-1, head=0)
        assert header_of(page)["view"] == "neuron"
        assert header_of(page)["start"] == "layer=2&heads=0&theme=dark"
        about = example_of(page)
        assert about["causal"] is causal
        assert about["texts"] == ["w1 w2 w3"]
        ends = ([], []) if causal else (["<s>"], ["</s>"])
        layers = expected_of(model, [*ends[0], "▁w1", "▁w2", "▁w3", *ends[1]])
        for i, layer in enumerate(layers):
            for name, theirs in (("query", "queries"), ("key", "keys")):
                exact = layer[theirs][0].numpy()
                np.testing.assert_array_equal(unpacked(page, name, i), exact.astype(np.float16))
            shown = unpacked(page, "probs", i)
            np.testing.assert_allclose(shown, layer["attn"][0], atol=4e-3)

    @pytest.mark.parametrize(
        ("model", "arguments", "message"),
        [
            (OwnModel(), ("albert", Pieces(), "w1"), "model_type='albert', expected one of"),
            (OwnModel(), (None, Pieces(), "w1"), "model_type=None, expected one of"),
            (OwnModel(), ("gpt2", Pieces(), "w1", "w2"), "sentence_b is given"),
            (OwnModel(), ("xlnet", Pieces(), "w1", "w2"), "sentence_b is given"),
            (OwnModel(), ("bert", Pieces(), "w1 " * 30), "OwnModel could not read 32 tokens"),
            (OwnModel(left_out="attn"), ("bert", Pieces(), "w1"), "does not end with a mapping"),
            (OwnModel(left_out="keys"), ("bert", Pieces(), "w1"), "and no 'keys'"),
            (OwnModel(scale=3), ("bert", Pieces(), "w1 w2"), "do not give its weights"),
            (OwnModel(), ("gpt2", Pieces(), "w1 w2 w3"), "do not give its weights .* model_type"),
            (nn.Linear(2, 2), ("bert", Pieces(), "w1"), "Linear could not read 3 tokens"),
            (OwnModel(), ("bert", None, "w1"), "tokenizer is not given"),
        ],
    )
    def test_what_they_cannot_show_is_refused(
        self, model: nn.Module, arguments: tuple[Any, ...], message: str
    ) -> None:
        with pytest.raises(AttentionError, match=message):
            show(model, *arguments)


def of_transformers(name: str) -> tuple[Any, Any]:
    folder = EMBEDDED / name
    model = transformers.AutoModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


class TestModelsOfTransformers:
    @pytest.mark.parametrize(
        ("name", "texts"), [("tiny-bert", ("the horse", "a boat")), ("tiny-gpt2", ("the horse",))]
    )
    def test_the_weights_are_those_of_transformers(self, name: str, texts: tuple[str, ...]) -> None:
        model, tokenizer = of_transformers(name)
        model_type = name.removeprefix("tiny-")
        found = get_attention(model, model_type, tokenizer, *texts, include_queries_and_keys=True)
        inputs = tokenizer(*texts, return_tensors="pt")
        with torch.no_grad():
            weights = model(**inputs, output_attentions=True).attentions
        strings = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        strings = [string.replace("Ġ", " ") for string in strings]
        assert found["all"]["left_text"] == found["all"]["right_text"] == strings
        for i, layer in enumerate(weights):
            np.testing.assert_allclose(found["all"]["attn"][i], layer[0], atol=1e-5)
            query, key = (torch.tensor(found["all"][side][i]) for side in ("queries", "keys"))
            scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
            if name == "tiny-gpt2":
                scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -1e9)
            np.testing.assert_allclose(scores.softmax(-1), layer[0], atol=1e-5)
        assert set(found) == ({"all", "aa", "ab", "ba", "bb"} if len(texts) > 1 else {"all"})
        if len(texts) > 1:
            start = inputs["token_type_ids"][0].tolist().index(1)
            assert found["ab"]["left_text"] == strings[:start]
            np.testing.assert_allclose(
                found["ba"]["attn"][1], weights[1][0, :, start:, :start], atol=1e-5
            )

    def test_a_pair_without_segments_is_still_two_texts(self) -> None:
        config = transformers.RobertaConfig(
            vocab_size=len(WORDS), hidden_size=12, num_hidden_layers=3, num_attention_heads=HEADS,
            intermediate_size=8, max_position_embeddings=POSITIONS, type_vocab_size=1,
        )  # fmt: skip
        model = transformers.RobertaModel(config)
        for tokenizer in (Calling(), Pieces()):
            page = show(model, "roberta", tokenizer, "w1 w2", "w3")
            assert example_of(page)["tokens"]["segment"] == [0, 0, 0, 0, 1, 1, 1]
            assert example_of(page)["texts"] == ["w1 w2", "w3"]
            found = get_attention(model, "roberta", tokenizer, "w1 w2", "w3")
            assert found["ba"]["left_text"] == ["[SEP]", " w3", "[SEP]"]
            assert found["ba"]["right_text"] == ["[CLS]", " w1", " w2", "[SEP]"]

    def test_what_contradicts_the_model_is_refused(self) -> None:
        bert, gpt2 = minibert.load("tiny-bert"), minibert.load("tiny-gpt2")
        for arguments, message in (
            ((gpt2, "bert", None, "a"), "model_type='bert', but the model is gpt2"),
            ((gpt2, None, None, "a", "b"), "sentence_b is given, but gpt2 reads one text"),
            ((bert, "xlnet", None, "a"), "model_type='xlnet', but the model is bert"),
        ):
            with pytest.raises(AttentionError, match=message):
                get_attention(*arguments)

    def test_a_tokenizer_beside_a_model_of_minibert_is_the_one_that_is_used(self) -> None:
        _, tokenizer = of_transformers("tiny-bert")
        model = minibert.load("tiny-bert")
        expected = get_attention(model, "bert", None, "the horse", "a boat")
        assert get_attention(model, "bert", tokenizer, "the horse", "a boat") == expected
        assert get_attention(model, "bert", model.tokenizer, "the horse", "a boat") == expected
        words = get_attention(model, "bert", Reversed(tokenizer), "the horse")["all"]["left_text"]
        assert words == ["[CLS]", "horse", "the", "[SEP]"]


def test_heads_that_share_a_key_each_have_it() -> None:
    model, text = random_model("llama"), "Once upon a time there was a small horse"
    found = get_attention(model, None, None, text, include_queries_and_keys=True)["all"]
    keys = [model.trace(text)[1, head].key[0].tolist() for head in range(4)]
    np.testing.assert_allclose(found["keys"][1], keys, atol=1e-6)


class Reversed:
    """Another tokenizer: the text backwards."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, *texts: str) -> Any:
        return self.tokenizer(*(" ".join(reversed(text.split())) for text in texts))
