"""The script that made the embedded models runs, from texts and from the weights of a first run."""

import pytest
import torch

import minibert
from minibert.training import Recipe
from scripts import train_embedded
from scripts.train_embedded import carried_over, tokenizer_of
from tests.training.small_runs import TEXTS, bert, gpt2, run, story


@pytest.mark.parametrize(
    ("config", "word", "table"),
    [
        (bert(vocab_size=127, n_positions=31), "goldnight", "head.decoder.bias"),
        (gpt2(vocab_size=307, n_positions=31), " goldnight", "body.word.weight"),
    ],
)
def test_tokens_start_at_the_mean_of_the_tokens_that_spell_them(config, word, table, tmp_path):
    old = run(tmp_path, config=config)
    larger = type(config)(**vars(config) | {"vocab_size": 347, "n_positions": 67})
    tokenizer = tokenizer_of(TEXTS, larger, [word])
    larger = type(config)(**vars(larger) | {"vocab_size": tokenizer.vocab_size})
    new = carried_over(old, larger, tokenizer)
    rows = [dict(of.named_parameters())[table] for of in (old, new)]
    spelled = old.tokenizer.encode(word)
    (whole,) = tokenizer.encode(word)
    assert len(spelled) > 1
    torch.testing.assert_close(rows[1][whole], rows[0][spelled].mean(0))
    (a,), (b,) = (of.tokenizer.encode("a") for of in (old, new))
    assert torch.equal(rows[1][b], rows[0][a])
    first, second = (of.body.position.weight for of in (old, new))
    assert torch.equal(second[:31], first)
    shifts = [second[start : start + 5] - first[:5] for start in (31, 62)]
    torch.testing.assert_close(2 * shifts[0], shifts[1])
    torch.testing.assert_close(shifts[0][0].norm(), first.norm(dim=1).mean() / 2)
    for name, weight in old.named_parameters():
        if "groups" in name:
            assert torch.equal(dict(new.named_parameters())[name], weight), name


def test_the_script_trains_a_model_that_loads(tmp_path, monkeypatch):
    names = train_embedded.TEXTS + train_embedded.HELD_OUT
    for number, name in enumerate(names):
        (tmp_path / f"{name}.txt").write_text(story(number), encoding="utf-8")
    config = gpt2(vocab_size=331)
    monkeypatch.setitem(train_embedded.CONFIGS, "tiny-llama", config)
    monkeypatch.setitem(train_embedded.RECIPES, "tiny-llama", Recipe(steps=1, batch=2))
    monkeypatch.setattr(train_embedded, "whole_words", lambda model: [" garden"])
    out = tmp_path / "out"
    arguments = ["train_embedded", str(tmp_path), "tiny-llama", "--output", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    assert train_embedded.main() == 0
    assert len(minibert.load(out / "tiny-llama").tokenizer.encode(" garden")) == 1
