"""A model that starts from the weights of another one, with other tokens and more positions."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training.small_runs import SIZES, TEXTS, UNSEEN

from minibert.errors import TrainingError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.training import Recipe, train
from minibert.training.starting import carry_over
from minibert.training.vocabulary import train_tokenizer

BERT = Config(
    family="bert",
    task="pre-training",
    vocab_size=127,
    n_positions=31,
    n_segments=2,
    pad_id=0,
    pooler=True,
    **SIZES,
)
GPT2 = Config(
    family="gpt2",
    task="causal-lm",
    causal=True,
    activation="gelu_tanh",
    vocab_size=307,
    n_positions=31,
    **SIZES,
)


def model(config: Config, *, seed: int, whole: tuple[str, ...] = ()) -> Model:
    texts = [document.text for document in TEXTS]
    tokenizer = train_tokenizer(texts, family=config.family, size=config.vocab_size, whole=whole)
    config = replace(config, vocab_size=tokenizer.vocab_size)
    return Model.from_config(config, seed=seed, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("config", "word", "table"),
    [
        (BERT, "goldnight", "head.decoder.bias"),
        (GPT2, " goldnight", "body.word.weight"),
    ],
)
def test_tokens_start_at_the_mean_of_the_tokens_that_spell_them(
    config: Config, word: str, table: str
) -> None:
    old = model(config, seed=1)
    larger = replace(config, vocab_size=config.vocab_size + 40, n_positions=67)
    new = model(larger, seed=2, whole=(word,))
    carry_over(old, new)
    rows = [dict(of.named_parameters())[table] for of in (old, new)]
    spelled = old.tokenizer.encode(word)
    (whole,) = new.tokenizer.encode(word)
    assert len(spelled) > 1
    torch.testing.assert_close(rows[1][whole], rows[0][spelled].mean(0))
    (a,), (b,) = (of.tokenizer.encode("a") for of in (old, new))
    assert torch.equal(rows[1][b], rows[0][a])
    first, second = (of.body.position.weight for of in (old, new))
    assert torch.equal(second[:31], first)
    shifts = [second[start : start + 5] - first[:5] for start in (31, 62)]
    torch.testing.assert_close(2 * shifts[0], shifts[1])
    torch.testing.assert_close(shifts[0], shifts[0][:1].expand(5, -1))
    torch.testing.assert_close(shifts[0][0].norm(), first.norm(dim=1).mean() / 2)
    for name, weight in old.named_parameters():
        if "groups" in name:
            assert torch.equal(dict(new.named_parameters())[name], weight), name


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"d_mlp": 96}, r"mlp\.up\.weight is \[64, 32\] in .* and \[96, 32\]"),
        (
            {"n_layers": 3, "n_layer_groups": 3},
            "has other weights than the model to be trained: body.groups.2",
        ),
        ({"n_positions": 29}, r"body\.position\.weight is \[31, 32\]"),
    ],
)
def test_another_shape_is_refused(change: dict[str, int], expected: str) -> None:
    with pytest.raises(TrainingError, match=expected):
        carry_over(model(GPT2, seed=1), model(replace(GPT2, **change), seed=2))


def test_a_run_starts_from_the_weights_and_resumes_only_with_them(tmp_path: Path) -> None:
    start = model(GPT2, seed=1)
    # A rate so small that float32 does not change.
    recipe = Recipe(steps=1, batch=2, rate=1e-30, matrix_rate=1e-30, bfloat16=False)
    arguments = {"config": GPT2, "recipe": recipe, "tokenizer": start.tokenizer}
    found = train(TEXTS, UNSEEN, tmp_path, **arguments, start=start)
    for name, weight in start.named_parameters():
        torch.testing.assert_close(dict(found.named_parameters())[name], weight, rtol=0, atol=1e-9)
    with pytest.raises(TrainingError, match="start"):
        train(TEXTS, UNSEEN, tmp_path, **arguments, start=model(GPT2, seed=2))
