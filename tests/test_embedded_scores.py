"""The scores of the embedded models: each measures what it says, on a model made for it."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from benchmarks import embedded
from benchmarks.embedded import (
    ablation,
    held_out_loss,
    masked_accuracy,
    next_sentence_accuracy,
    pair_windows,
    token_losses,
)
from minibert.bench.result_rows import GateError
from minibert.checkpoint.save import save
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.training.texts import Corpus, Document
from minibert.training.vocabulary import train_tokenizer

WORDS = ["the", "rabbit", "turtle", "hopped", "crawled", "slowly", "over", "green", "hill", "and"]


def story(seed: int, sentences: int = 40) -> Document:
    shuffler = random.Random(seed)
    lines = [" ".join(shuffler.choices(WORDS, k=7)) + "." for _ in range(sentences)]
    return Document(f"story {seed}", " ".join(lines))


HELD_OUT = (story(1), story(2))
TOKENIZERS = {
    family: train_tokenizer([story(3).text], size=300, byte_level=family == "gpt2")
    for family in ("bert", "gpt2")
}


def wide(family: str, task: str, **chosen: Any) -> Model:
    """Random weights, large enough for attention and answers to differ."""
    shape = {"n_positions": 104, "n_layers": 2, "n_heads": 3, "d_model": 33, "d_mlp": 29}
    tokenizer = TOKENIZERS[family]
    config = Config(family=family, task=task, vocab_size=tokenizer.vocab_size, **shape, **chosen)
    model = Model.from_config(config, tokenizer=tokenizer)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter *= 15
    return model


def bert(task: str = "pre-training") -> Model:
    return wide("bert", task, n_segments=2, pooler=True)


def gpt2() -> Model:
    return wide("gpt2", "causal-lm", causal=True)


def corpus(*texts: Document) -> Corpus:
    return Corpus.of(texts or HELD_OUT, TOKENIZERS["bert"])


def test_windows_hold_the_whole_text_in_order_as_pairs_cut_where_a_sentence_ends() -> None:
    tokenizer = TOKENIZERS["bert"]
    windows = pair_windows(corpus(), tokenizer, 61)
    assert (windows.ids[:, 0] == tokenizer.cls_id).all()
    assert (windows.ids[:, -1] == tokenizer.sep_id).all()
    assert ((windows.ids == tokenizer.sep_id).sum(1) == 2).all()
    # Segment 1 begins behind the first [SEP].
    first_end = (windows.ids == tokenizer.sep_id).int().argmax(1)
    assert torch.equal((windows.segments == 0).sum(1), first_end + 1)
    found = windows.ids[~torch.isin(windows.ids, torch.tensor([2, 3]))].tolist()
    encoded = [tokenizer.encode(document.text) for document in HELD_OUT]
    assert found == [token for ids in encoded for token in ids[: len(ids) // 58 * 58]]
    last = windows.ids[torch.arange(len(windows)), first_end - 1]
    assert {tokenizer.raw(i) for i in last.tolist()} == {"."}
    with pytest.raises(GateError, match="no held-out text has 101 tokens"):
        pair_windows(corpus(story(5, sentences=2)), tokenizer, 104)


def test_the_best_constant_answer_scores_as_the_baseline() -> None:
    model, rows = bert(), []
    windows = pair_windows(corpus(), TOKENIZERS["bert"], 61)
    bias = model.head.decoder.bias  # type: ignore[union-attr]
    for answer in corpus().ids.unique().tolist():
        with torch.no_grad():
            bias.zero_()[answer] = 1e4  # type: ignore[operator]
            rows.append(masked_accuracy(model, windows, 3))
    assert max(row["value"] for row in rows) == rows[0]["always"] > 0
    # Some 15 % of 58 text tokens of each window, three times.
    assert rows[0]["count"] == pytest.approx(0.15 * 58 * len(windows) * 3, rel=0.1)


def test_masked_tokens_are_not_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def echo(self: Model, tokens: Tokens) -> torch.Tensor:
        return F.one_hot(tokens.ids, self.config.vocab_size).float()

    monkeypatch.setattr(Model, "forward", echo)
    windows = pair_windows(corpus(), TOKENIZERS["bert"], 61)
    assert masked_accuracy(bert(), windows, 1)["value"] == 0


def test_the_same_answer_to_every_pair_is_right_half_of_the_time() -> None:
    for answer in (0, 1):
        model = bert()
        with torch.no_grad():
            model.head.next_sentence.bias[answer] = 1e4  # type: ignore[union-attr, index]
            row = next_sentence_accuracy(model, corpus(), 100)
        assert (row["value"], row["count"]) == (0.5, 100)
        assert (row["is_next"], row["is_other"]) == (1 - answer, answer)
    with pytest.raises(GateError, match="the task is masked-lm"):
        next_sentence_accuracy(bert("masked-lm"), corpus(), 50)
    with pytest.raises(GateError, match="two held-out texts"):
        next_sentence_accuracy(bert(), corpus(HELD_OUT[0]), 50)


def test_a_held_out_loss_is_the_cross_entropy_of_each_token_with_half_a_window_before_it() -> None:
    model, tokenizer = gpt2(), TOKENIZERS["gpt2"]
    ids = torch.tensor(tokenizer.encode(story(1).text))
    counted = range(52, 52 + (len(ids) - 104) // 52 * 52 + 52)
    losses = []
    with torch.no_grad():
        for token in counted:
            # As much before the token as the window that counts it has.
            first = (token - 52) // 52 * 52
            probs = model(ids[None, first:token])[0, -1].double().softmax(-1)
            losses.append(-float(probs[ids[token]].log()))
        row = held_out_loss(model, [story(1)])
    assert row["count"] == len(counted)
    assert row["value"] == pytest.approx(sum(losses) / len(losses), abs=1e-3)
    bits = row["value"] * len(ids) / len(story(1).text) / math.log(2)
    assert row["bits_per_character"] == pytest.approx(bits, abs=1e-3)


def test_ablation_is_the_rise_of_the_loss_on_what_is_repeated() -> None:
    model = gpt2()
    with torch.no_grad():
        # These heads add nothing to the stream, and so cost nothing.
        for layer, head in ((0, 0), (1, 2)):
            weight = model.body.layers[layer].attention.output.weight
            weight[:, head * 11 : head * 11 + 11] = 0
        row = ablation(model, [(0, 0), (1, 2)], controls=3)
        assert row["value"] == pytest.approx(0, abs=1e-4)
        assert row["heads"] == ["0-0", "1-2"]
        assert row["control_rise_most"] != 0
        assert abs(ablation(model, [(0, 1)], controls=1)["value"]) > 1e-3
    with pytest.raises(GateError, match="no head"):
        ablation(model, [])


def test_the_first_half_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_back(model: Model, ids: torch.Tensor, heads: object = ()) -> torch.Tensor:
        # Only what was said before is known.
        return 5.0 * (torch.arange(1, 100) <= 50).expand(len(ids), -1)

    monkeypatch.setattr(embedded, "token_losses", look_back)
    row = ablation(gpt2(), [(0, 0)], controls=1)
    assert row["loss_before"] == row["loss_after"] == 0


def test_a_run_writes_a_row_for_every_score_with_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SENTENCE_PAIRS", 100)
    texts, folders = [], []
    for document in HELD_OUT:
        texts.append(tmp_path / f"{document.name}.txt")
        texts[-1].write_text(document.text, encoding="utf-8")
    for model, name in ((bert(), "bert"), (gpt2(), "gpt2")):
        folders.append(save(model, tmp_path / name, dtype=torch.float16))
    output = tmp_path / "rows.jsonl"
    arguments = ["--held-out", *texts, "--models", *folders, "--threads", "1", "--output", output]
    # Random weights have no induction head to ablate; everything else is measured.
    assert embedded.main(list(map(str, arguments))) == 1
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 9
    assert {row["what"] for row in rows if not row["ok"]} == {"loss rise without induction heads"}
    for row in rows:
        assert {"versions", "cpu", "commit", "command", "held_out", "weights_sha256"} <= set(row)
        assert not row["ok"] or "value" in row
    assert embedded.main(["--held-out", str(tmp_path / "none.txt")]) == 2


def test_a_loss_is_that_of_the_next_token() -> None:
    model, ids = gpt2(), torch.randint(300, (2, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = token_losses(model, ids)
        probs = model(ids).double().softmax(-1)
    for i in range(16):
        wanted = -probs[torch.arange(2), i, ids[:, i + 1]].log()
        torch.testing.assert_close(found[:, i].double(), wanted, atol=1e-4, rtol=1e-4)
