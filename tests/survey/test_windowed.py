"""Patterns and gradients of models with windows: each layer counts the keys that it sees."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    ModernBertConfig,
    ModernBertForMaskedLM,
)

import minibert
from minibert.survey import survey
from minibert.survey.loss_gradients import Objective
from minibert.survey.patterns import patterns
from minibert.survey.segments import Segmenter
from tests.survey.test_gradients import cells_of

EMBEDDED = Path(minibert.__file__).parent / "embedded"
LONG = "the horse ran away , and a boat turned slowly near the river . the horse slept ."
TEXTS = [
    LONG,
    "and a boat sank near the old river under a tree",
    "the old tree , the river , the tree and the boat",
]
# Of each layer how far a query looks back, itself not counted; None: as far as it can.
BACK = {"gemma3": (4, None, 4), "modernbert": (None, 3, 3)}


def gemma3() -> Any:
    """Windows of 5 keys in layers 0 and 2."""
    config = Gemma3TextConfig(
        vocab_size=6656, hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, intermediate_size=24, sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        max_position_embeddings=64, initializer_range=0.2, query_pre_attn_scalar=16,
        attn_implementation="eager", pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return Gemma3ForCausalLM(config)


def modernbert() -> Any:
    """3 keys to either side in layers 1 and 2."""
    config = ModernBertConfig(
        vocab_size=6656, hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=24, local_attention=6, global_attn_every_n_layers=3,
        max_position_embeddings=64, initializer_range=0.2, attn_implementation="eager",
        pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return ModernBertForMaskedLM(config)


@pytest.fixture(scope="module", params=["gemma3", "modernbert"])
def both(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A name, the model of transformers and the same weights loaded, both in float64."""
    torch.manual_seed(0)
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    live = {"gemma3": gemma3, "modernbert": modernbert}[name]().double().eval()
    live.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(
        EMBEDDED / ("tiny-gpt2" if name == "gemma3" else "tiny-bert")
    )
    tokenizer.save_pretrained(folder)
    return name, live, minibert.load(folder, dtype=torch.float64)


def seen_by(name: str, layer: int, n: int) -> Any:
    """True where a query of the layer sees a key, (query, key)."""
    query, key = np.indices((n, n))
    back = n if BACK[name][layer] is None else BACK[name][layer]
    ahead = 0 if name == "gemma3" else back
    return (key >= query - back) & (key <= query + ahead)


def probs_of(model: Any, name: str, text: str) -> Any:
    """(layer, head, query, key): the softmax of the scores over what each layer sees."""
    found = []
    for layer, at in enumerate(model.trace(text)):
        scores = at.scores[0].detach().numpy()
        weights = np.exp(scores) * seen_by(name, layer, scores.shape[-1])
        found.append(weights / weights.sum(-1, keepdims=True))
    return np.stack(found)


def test_patterns_count_the_keys_that_a_layer_sees(both: Any) -> None:
    name, _, model = both
    draws = torch.arange(20, 31).repeat(2, 2)
    found = patterns(model, TEXTS, repeated=draws)
    tables: dict[str, list[list[Any]]] = {}
    for text in TEXTS:
        tokens, probs = model.tokenize(text), probs_of(model, name, text)
        n, special = tokens.lengths[0], np.array(tokens.special[0])
        query, key = np.indices((n, n))
        inside = ~special[query] & ~special[key]
        # The word that a token is a piece of: its number, and how it is written.
        number = np.array([-1 if one is None else one for one in tokens.words[0]])
        pieces = list(zip(number, tokens.strings[0], strict=True))
        words = np.array(
            ["".join(piece for of, piece in pieces if of == one).strip() for one in number]
        )
        # In a causal model the first token is where heads look that look at nothing.
        alike = (words[query] == words[key]) & (number[query] != number[key]) & inside
        alike &= (key > 0) if name == "gemma3" else True
        cells = {
            "previous": (key == query - 1) & ~special[query],
            "next": (key == query + 1) & ~special[query],
            "first": (key == 0) & (query > 0) & ~special[query],
            "same_word": alike,
        }
        for pattern, of in cells.items():
            into = tables.setdefault(pattern, [[] for _ in range(3)])
            for layer in range(3):
                seen = seen_by(name, layer, n)
                rows = (of & seen).any(1)
                if rows.any():
                    score = (probs[layer] * (of & seen)).sum(-1)[:, rows].mean(-1)
                    even = ((of & seen).sum(1) / seen.sum(1))[rows].mean()
                    into[layer].append((score, even))
    for pattern, layers in tables.items():
        for layer, of_documents in enumerate(layers):
            got = found.score[pattern][layer]
            if not of_documents:
                assert np.isnan(got).all()
                continue
            scores, evens = zip(*of_documents, strict=True)
            np.testing.assert_allclose(got, np.mean(scores, 0), atol=1e-9, err_msg=pattern)
            if pattern != "same_word":
                baseline = found.baseline[pattern][layer]
                np.testing.assert_allclose(baseline, np.mean(evens), atol=1e-9, err_msg=pattern)
    # Both copies of a drawn sequence are 11 long: further than any window sees.
    for layer, back in enumerate(BACK[name]):
        assert np.isnan(found.score["duplicate"][layer]).all() == (back is not None)
    assert found.documents["duplicate"] == 2


def test_gradients_count_the_keys_that_a_layer_sees(both: Any, tmp_path: Path) -> None:
    name, live, model = both
    causal = name == "gemma3"
    expected: dict[str, list[list[Any]]] = {}
    for segment in Segmenter(model).segments([*_documents()])[0]:
        predicted = Objective.of(model).predicted(segment)
        out = live(torch.tensor(predicted.ids)[None], output_attentions=True)
        loss = torch.nn.functional.cross_entropy(
            out.logits[0, predicted.places], torch.tensor(predicted.right), reduction="sum"
        )
        sizes = [one[0].abs().numpy() for one in torch.autograd.grad(loss, out.attentions)]
        tokens = [model.tokenizer.string(i).strip() for i in segment.ids]
        cells = cells_of(segment.ids, tokens, segment.tokens.text, causal=causal)
        for measure in ("to_any", "to_previous", "to_first", "to_duplicate"):
            into = expected.setdefault(measure, [[] for _ in range(3)])
            for layer in range(3):
                of = cells[measure] & seen_by(name, layer, len(tokens))
                rows = of.any(1)
                if rows.any():
                    means = (sizes[layer] * of).sum(-1)[:, rows] / of.sum(1)[rows]
                    into[layer].append(means.mean(-1))
    made = survey(model, TEXTS, gradients=True, output=tmp_path)
    again = type(made).read(tmp_path)
    for measure, layers in expected.items():
        gradient = f"gradient_{measure}"
        number = made.names.index(gradient)
        assert made.sums.documents[number].tolist() == list(map(len, layers)), measure
        assert made.count(gradient) == max(map(len, layers))
        for layer, each in enumerate(layers):
            np.testing.assert_allclose(
                made.table(gradient)[layer], np.mean(each, 0), rtol=1e-6, err_msg=measure
            )
        np.testing.assert_array_equal(made.table(gradient), again.table(gradient))
        np.testing.assert_array_equal(made.interval(gradient), again.interval(gradient))
    # Some texts repeat a word further apart than a window sees.
    counts = list(map(len, expected["to_duplicate"]))
    assert min(counts) < max(counts)


def _documents() -> Any:
    from minibert.survey import Document

    return (Document(str(number), text) for number, text in enumerate(TEXTS))
