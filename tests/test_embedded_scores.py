"""The scores of the embedded models: each measures what it says, on a model made for it."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import minibert
from benchmarks import embedded
from benchmarks.embedded import (
    SharedWord,
    Texts,
    ablation,
    held_out_loss,
    kinds_of_text,
    lists_continued,
    masked_accuracy,
    next_sentence_accuracy,
    over_distances,
    over_periods,
    pair_windows,
    same_word_in_other_text,
    sharing_pairs,
    token_losses,
    whole_words_right,
    without_heads,
    words,
)
from benchmarks.ngram import TrigramModel
from minibert.bench.gate import GateError
from minibert.checkpoint.save import save
from minibert.errors import MinibertError
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.training.texts import Corpus, Document
from minibert.training.vocabulary import train_tokenizer

WORDS = ["the", "rabbit", "turtle", "hopped", "crawled", "slowly", "over", "green", "hill", "and"]


def story(seed: int, sentences: int = 40) -> Document:
    shuffler = random.Random(seed)
    lines = [" ".join(shuffler.choices(WORDS, k=7)) + "." for _ in range(sentences)]
    return Document(f"story {seed}", " ".join(lines))


HELD_OUT = (story(1), story(2))
TEXTS = Texts(held_out=HELD_OUT, training=(story(3), story(4)))


def tokenizer_of(family: str) -> Tokenizer:
    return train_tokenizer([story(3).text], family=family, size=300)


def bert(task: str = "pre-training") -> Model:
    return wide(Config(**sizes("bert", task), n_segments=2, pooler=True))


def gpt2() -> Model:
    return wide(Config(**sizes("gpt2", "causal-lm"), causal=True))


def llama() -> Model:
    given = sizes("llama", "causal-lm") | {"d_model": 36, "d_head": 12}
    return wide(Config(**given, causal=True, n_kv_heads=1, rotary=Rotary(12), activation="silu"))


def sizes(family: str, task: str) -> dict[str, Any]:
    shape = {"n_positions": 104, "n_layers": 2, "n_heads": 3, "d_model": 33, "d_mlp": 29}
    vocab_size = tokenizer_of(family).vocab_size
    return {"family": family, "task": task, "vocab_size": vocab_size, **shape}


def wide(config: Config) -> Model:
    """Random weights, large enough for attention and answers to differ."""
    model = Model.from_config(config, tokenizer=tokenizer_of(config.family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter *= 15
    return model


def test_a_text_that_is_held_out_and_in_training_is_an_error(tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text("The same words.", encoding="utf-8")
    with pytest.raises(MinibertError, match=r"one\.txt is held out and in training as two\.txt"):
        Texts.read([tmp_path / "one.txt"], [tmp_path / "two.txt"])


class TestBert:
    def test_windows_hold_the_whole_text_in_order_as_pairs(self) -> None:
        tokenizer = tokenizer_of("bert")
        windows = pair_windows(Corpus.of(HELD_OUT, tokenizer), tokenizer, 61)
        assert windows.ids.shape[1] == 61
        assert (windows.ids[:, 0] == tokenizer.cls_id).all()
        assert (windows.ids[:, -1] == tokenizer.sep_id).all()
        assert ((windows.ids == tokenizer.sep_id).sum(1) == 2).all()
        # Segment 1 begins behind the first [SEP].
        first_end = (windows.ids == tokenizer.sep_id).int().argmax(1)
        assert torch.equal((windows.segments == 0).sum(1), first_end + 1)
        found = windows.ids[~torch.isin(windows.ids, torch.tensor([2, 3]))].tolist()
        wanted: list[int] = []
        for document in HELD_OUT:
            ids = tokenizer.encode(document.text)
            wanted += ids[: len(ids) // 58 * 58]
        assert found == wanted

    def test_a_pair_is_cut_where_a_sentence_ends(self) -> None:
        tokenizer = tokenizer_of("bert")
        windows = pair_windows(Corpus.of(HELD_OUT, tokenizer), tokenizer, 61)
        before = (windows.ids == tokenizer.sep_id).int().argmax(1) - 1
        last = windows.ids[torch.arange(len(windows)), before]
        assert {tokenizer.raw(i) for i in last.tolist()} == {"."}

    def test_a_text_shorter_than_a_window_is_a_reason(self) -> None:
        tokenizer = tokenizer_of("bert")
        short = Corpus.of([story(5, sentences=2)], tokenizer)
        with pytest.raises(GateError, match="no held-out text has 101 tokens"):
            pair_windows(short, tokenizer, 104)

    def test_a_model_that_always_says_the_most_frequent_token_scores_as_the_baseline(self) -> None:
        model, tokenizer = bert(), tokenizer_of("bert")
        corpus = Corpus.of(HELD_OUT, tokenizer)
        most = int(corpus.ids.bincount().argmax())
        with torch.no_grad():
            model.head.decoder.bias[most] = 1e4  # type: ignore[union-attr, index]
            windows = pair_windows(corpus, tokenizer, 61)
            row = masked_accuracy(model, windows, corpus.ids, 3)
        assert row["value"] == row["unigram_training"] > 0
        assert row["unigram_tokens"][0] == tokenizer.raw(most)
        # Some 15 % of 58 text tokens of each window, three times.
        assert row["count"] == pytest.approx(0.15 * 58 * len(windows) * 3, rel=0.1)

    def test_masked_tokens_are_not_to_be_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, tokenizer = bert(), tokenizer_of("bert")
        windows = pair_windows(Corpus.of(HELD_OUT, tokenizer), tokenizer, 61)

        def echo(self: Model, tokens: Tokens) -> torch.Tensor:
            return F.one_hot(tokens.ids, self.config.vocab_size).float()

        monkeypatch.setattr(Model, "forward", echo)
        assert masked_accuracy(model, windows, windows.ids.flatten(), 1)["value"] == 0

    @pytest.mark.parametrize("answer", [0, 1])
    def test_the_same_answer_to_every_pair_is_right_half_of_the_time(self, answer: int) -> None:
        model, tokenizer = bert(), tokenizer_of("bert")
        with torch.no_grad():
            model.head.next_sentence.bias[answer] = 1e4  # type: ignore[union-attr, index]
            row = next_sentence_accuracy(model, Corpus.of(HELD_OUT, tokenizer), 100)
        assert row["value"] == 0.5
        assert (row["is_next"], row["is_other"]) == (1 - answer, answer)
        assert row["count"] == 100

    def test_next_sentence_needs_its_head_and_two_texts(self) -> None:
        tokenizer = tokenizer_of("bert")
        with pytest.raises(GateError, match="the task is masked-lm"):
            next_sentence_accuracy(bert("masked-lm"), Corpus.of(HELD_OUT, tokenizer), 50)
        with pytest.raises(GateError, match="two held-out texts"):
            next_sentence_accuracy(bert(), Corpus.of(HELD_OUT[:1], tokenizer), 50)


class TestGpt2:
    def test_a_model_without_some_heads_is_one_whose_z_is_zero_there(self) -> None:
        model, ids = gpt2(), torch.randint(300, (2, 17), generator=torch.Generator().manual_seed(0))

        def zero(module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            z = inputs[0].clone()
            z[..., 11:22] = 0
            return (z, *inputs[1:])

        with torch.no_grad():
            before = model(ids)
            without = without_heads(model, [(1, 1)])(ids)
            assert torch.equal(model(ids), before)
            hooked: Any = model.body.layers[1].attention
            hooked.output.register_forward_pre_hook(zero)
            torch.testing.assert_close(without, model(ids))
        assert not without.allclose(before, atol=1e-2)

    def test_a_loss_is_the_cross_entropy_of_the_next_token(self) -> None:
        model, ids = gpt2(), torch.randint(300, (2, 17), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            found = token_losses(model, ids)
            probs = model(ids).double().softmax(-1)
        for i in range(16):
            wanted = -probs[torch.arange(2), i, ids[:, i + 1]].log()
            torch.testing.assert_close(found[:, i].double(), wanted, atol=1e-4, rtol=1e-4)

    def test_heads_that_add_nothing_cost_nothing(self) -> None:
        model = gpt2()
        with torch.no_grad():
            silent = without_heads(model, [(0, 0), (1, 2)])
            row = ablation(silent, [(0, 0), (1, 2)], controls=3)
        assert row["value"] == 0
        assert row["heads"] == ["0-0", "1-2"]
        assert row["control_heads"] == 2
        assert row["control_rise_most"] != 0
        with pytest.raises(GateError, match="no head"):
            ablation(model, [])

    def test_a_model_that_looks_back_loses_nothing_on_what_is_repeated(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def look_back(self: Model, ids: torch.Tensor) -> torch.Tensor:
            # Behind token i comes what came behind it 50 tokens before.
            logits = 100.0 * F.one_hot(ids.roll(49, dims=1), self.config.vocab_size)
            return logits.where(torch.arange(100)[:, None] >= 50, torch.zeros(()))

        monkeypatch.setattr(Model, "forward", look_back)
        row = ablation(gpt2(), [(0, 0)], controls=1)
        assert row["loss_before"] == row["loss_after"] == 0
        assert row["loss_first_half"] == pytest.approx(math.log(300), abs=1e-4)

    def test_both_models_are_measured_on_the_same_tokens(self) -> None:
        model, tokenizer = gpt2(), tokenizer_of("gpt2")
        document = torch.tensor(tokenizer.encode(story(1).text))
        training = [tokenizer.encode(story(3).text)]
        with torch.no_grad():
            row = held_out_loss(model, [document], training)
            counted = range(52, 52 + (len(document) - 104) // 52 * 52 + 52)
            losses = []
            for token in counted:
                # As much before the token as the window that counts it has.
                first = (token - 52) // 52 * 52
                losses.append(float(token_losses(model, document[None, first : token + 1])[0, -1]))
        assert row["count"] == len(counted)
        assert row["value"] == pytest.approx(sum(losses) / len(losses), abs=1e-3)
        trigrams = TrigramModel(training, vocab_size=model.config.vocab_size)
        theirs = trigrams.losses(document.numpy())[counted.start : counted.stop]
        assert row["trigram_loss"] == pytest.approx(theirs.mean(), abs=1e-4)
        assert row["difference"] == pytest.approx(row["value"] - row["trigram_loss"], abs=2e-4)
        bits = row["value"] * len(document) / len(story(1).text) / math.log(2)
        assert row["bits_per_character"] == pytest.approx(bits, abs=1e-3)

    def test_words_are_letters_with_apostrophes_inside(self) -> None:
        assert words("Don't 'stop', 3rd_time; Élan!") == ["don't", "stop", "rd", "time", "élan"]


def test_copying_is_measured_where_the_copy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def back(self: Model, ids: torch.Tensor) -> torch.Tensor:
        # The model knows what follows a token where it stood 16 tokens before, and nothing else.
        known = 100.0 * F.one_hot(ids.roll(15, dims=1), self.config.vocab_size)
        again = ids == ids.roll(16, dims=1)
        return known.where(again[..., None], torch.zeros(()))

    model = gpt2()
    monkeypatch.setattr(embedded, "DISTANCES", (16, 32))
    monkeypatch.setattr(embedded, "PERIODS", (16, 32))
    monkeypatch.setattr(Model, "forward", back)
    with torch.no_grad():
        near, far = over_distances(model)["losses"]
        same, double = over_periods(model)["losses"]
    guess = round(math.log(300), 4)
    assert (near, far, same, double) == (0, guess, 0, guess)


@pytest.fixture
def command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(embedded, "SENTENCE_PAIRS", 100)
    monkeypatch.setattr(embedded, "PROMPTS", 3)
    options = []
    for option, documents in (("--held-out", TEXTS.held_out), ("--text", TEXTS.training)):
        options.append(option)
        for document in documents:
            path = tmp_path / f"{document.name}.txt"
            path.write_text(document.text, encoding="utf-8")
            options.append(str(path))
    for name, model in (("tiny-bert", bert()), ("tiny-gpt2", gpt2()), ("tiny-llama", llama())):
        folder = tmp_path / name
        folder.mkdir()
        save(model, folder, dtype=torch.float16)
        options += [f"--{name}", str(folder)]
    return [*options, "--threads", "1", "--output", str(tmp_path / "rows.jsonl")]


def test_a_run_writes_a_row_for_every_score_with_where_it_comes_from(
    command_line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embedded.main(command_line) == 1
    lines = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {(row["model"], row["what"]): row for row in map(json.loads, lines)}
    assert len(rows) == len(lines) == 24
    failed = [what for what, row in rows.items() if not row["ok"]]
    # Random weights have no induction head to ablate, and every word of the stories is frequent;
    # everything else is measured.
    assert {what for _, what in failed} <= {
        "loss rise without induction heads",
        "best head for the same word in the other text",
    }
    for row in rows.values():
        assert {"versions", "cpu", "commit", "command", "held_out", "weights_sha256"} <= set(row)
        assert not row["ok"] or "value" in row
    assert str(tmp_path) not in "".join(lines)
    assert f"of 24 scores measured; rows in {tmp_path}" in capsys.readouterr().out


def test_kinds_of_text_are_measured_beside_the_other_scores(tmp_path: Path) -> None:
    texts = tmp_path / "data" / "text"
    files = {
        "litbank/original/11_alices_adventures_in_wonderland.txt": story(1).text,
        "litbank/original/271_black_beauty.txt": story(2).text,
        "gap/gap-development.tsv": f'ID\tText\n1\t{story(5).text}\n2\tAnother "one".\n',
        "wikitext-2/wiki.test.tokens": f" = Title = \n \n {story(6).text} . An <unk> word . \n",
        "ud-english-ewt/en_ewt-ud-dev.conllu": f"# newdoc id = 1\n# text = {story(7).text}\n1\tx\n",
        "tinyshakespeare/input.txt": story(8).text,
    }
    for name, content in files.items():
        (texts / name).parent.mkdir(parents=True, exist_ok=True)
        (texts / name).write_text(content, encoding="utf-8")
    found = kinds_of_text(tmp_path / "data")
    assert found["Wikipedia (GAP)"][0].text.endswith('.\nAnother "one".')
    assert "unk" not in found["Wikipedia (wikitext-2)"][0].text
    assert found["web (EWT)"][0].text == story(7).text
    output = tmp_path / "rows.jsonl"
    other = {"model": "tiny-gpt2", "what": "weights in MB", "ok": True, "value": 2.0}
    stale = {"model": "tiny-gpt2", "what": "loss, novels", "ok": True, "value": 1.0}
    output.write_text(f"{json.dumps(other)}\n{json.dumps(stale)}\n", encoding="utf-8")
    save(gpt2(), tmp_path / "gpt2")
    options = ["--kinds", str(tmp_path / "data"), "--models", "tiny-gpt2", "--threads", "1"]
    options += ["--tiny-gpt2", str(tmp_path / "gpt2"), "--output", str(output)]
    assert embedded.main(options) == 0
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert rows[0] == other
    assert [row["what"] for row in rows[1:]] == [f"loss, {kind}" for kind in found]
    # The loss of both novels is that of all their counted tokens.
    model = minibert.load(tmp_path / "gpt2")
    encode = tokenizer_of("gpt2").encode
    with torch.no_grad():
        windows = [torch.tensor(encode(one.text)).unfold(0, 104, 52) for one in HELD_OUT]
        losses = [token_losses(model, each)[:, 51:].flatten() for each in windows]
    expected = torch.cat(losses).mean()
    assert rows[1]["value"] == pytest.approx(float(expected), abs=1e-3)
    (texts / "tinyshakespeare" / "input.txt").unlink()
    with pytest.raises(GateError, match=r"input\.txt is not in the folder"):
        kinds_of_text(tmp_path / "data")


def test_pairs_share_one_rare_word_that_each_sentence_has_once() -> None:
    text = "The lark was above the hill. The lark sang for us. The owl slept. It was an owl owl."
    pages = [Document("a page", text), Document("another", "The owl sat above us all day.")]
    common = [Document("common", "hill above slept sang " * 9)]
    found = list(sharing_pairs(pages, common))
    assert found == [SharedWord("The lark was above the hill.", "The lark sang for us.", "lark")]
    frequent = [Document("common", "the lark " * 9)]
    assert not list(sharing_pairs(pages, frequent))


def test_the_same_word_is_looked_at_in_both_directions() -> None:
    model, pair = bert(), SharedWord("the rabbit hopped", "over the green rabbit", "rabbit")
    row = same_word_in_other_text(model, [pair])
    trace = model.trace(pair.first, pair.second)
    raw = list(trace.tokens.raw[0])
    here = raw.index("rabbit")
    there = raw.index("rabbit", here + 1)
    probs = torch.stack([layer[0] for layer in trace.attentions])
    both = (probs[:, :, here, there] + probs[:, :, there, here]) / 2
    torch.testing.assert_close(torch.tensor(row["scores"]), both, atol=1e-4, rtol=0)
    layer, head = map(int, row["head"].split("-"))
    assert both[layer, head] == both.max() == pytest.approx(row["value"], abs=1e-4)
    assert row["chance"] == pytest.approx(1 / len(raw), abs=1e-4)
    with pytest.raises(GateError, match="one token"):
        same_word_in_other_text(model, [SharedWord("a zebra", "one zebra", "zebra")])


def test_a_hidden_word_is_right_when_all_its_tokens_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, seen = bert(), []

    def always(self: Model, tokens: Tokens) -> torch.Tensor:
        seen.append(tokens)
        best = torch.full_like(tokens.ids, tokenizer_of("bert").encode("rabbit")[0])
        return F.one_hot(best, self.config.vocab_size).float()

    monkeypatch.setattr(Model, "forward", always)
    row = whole_words_right(model, HELD_OUT)
    mask = model.tokenizer.mask_id  # type: ignore[union-attr]
    # Of ten words one is the rabbit; some 15 % of all are hidden, and no sign is.
    assert row["count"] == pytest.approx(0.15 * 7 / 8 * 80 * sum(map(len, seen)), rel=0.2)
    assert 0 < row["value"] < 0.3
    assert sum(int((tokens.ids == mask).sum()) for tokens in seen) >= row["count"]


def test_a_list_is_continued_by_who_says_what_followed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = gpt2()
    assert lists_continued(model)["value"] < 0.5

    def fourth_word(self: Model, tokens: Tokens) -> torch.Tensor:
        text = self.tokenizer.decode(tokens.ids[0].tolist())  # type: ignore[union-attr]
        best = self.tokenizer.encode(f" {text.split()[3]}")[0]  # type: ignore[union-attr]
        return F.one_hot(torch.full_like(tokens.ids, best), self.config.vocab_size).float()

    monkeypatch.setattr(Model, "forward", fourth_word)
    row = lists_continued(model)
    assert (row["value"], row["count"]) == (1, 100)
