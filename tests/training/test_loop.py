"""A whole run from Python: what it refuses, how it resumes, and which files it writes."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from minibert.errors import TrainingError
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.training import Document, train
from minibert.training import loop as loop_module
from minibert.training.loop import Run
from minibert.training.snapshot import Snapshot, snapshot_path
from minibert.training.vocabulary import train_tokenizer
from tests.training.small_runs import TEXTS, UNSEEN, bert, gpt2, recipe, same_weights


def run(folder: Path, **changes: Any) -> Model:
    arguments = {"texts": TEXTS, "held_out": UNSEEN, "config": gpt2(), "recipe": recipe()}
    chosen = {**arguments, "note": lambda line: None, **changes}
    return train(chosen.pop("texts"), chosen.pop("held_out"), folder, **chosen)


def stop_in(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C while this step is done."""
    advance = Run.advance

    def pressed(self: Run) -> dict[str, float]:
        if self.step + 1 == step:
            signal.raise_signal(signal.SIGINT)
        return advance(self)

    monkeypatch.setattr(Run, "advance", pressed)


CONFIGS = {"gpt2": gpt2(), "bert": bert()}


class TestGoingOn:
    @pytest.mark.parametrize(("family", "bfloat16"), [("gpt2", True), ("bert", False)])
    def test_an_interrupted_run_ends_with_the_same_weights(
        self, family: str, bfloat16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = {"config": CONFIGS[family], "recipe": recipe(bfloat16=bfloat16, save_every=100)}
        whole = run(tmp_path / "whole", **chosen)
        with monkeypatch.context() as patch:
            stop_in(4, patch)
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path / "parts", **chosen)
        snapshot = Snapshot.load(tmp_path / "parts")
        assert snapshot is not None
        assert snapshot.step == 4
        assert not (tmp_path / "parts" / "model.safetensors").exists()
        resumed = run(tmp_path / "parts", **chosen)
        assert same_weights(resumed, whole)
        for name in ("model.safetensors", "tokenizer.json", "config.json", "scores.jsonl"):
            ours, theirs = tmp_path / "parts" / name, tmp_path / "whole" / name
            assert ours.read_bytes() == theirs.read_bytes(), name

    def test_runs_that_share_nothing_but_the_seed_end_with_the_same_weights(
        self, tmp_path: Path
    ) -> None:
        one = run(tmp_path / "a", config=bert())
        torch.manual_seed(5)
        other = run(tmp_path / "b", config=bert())
        assert same_weights(one, other)
        assert not same_weights(one, run(tmp_path / "c", config=bert(), recipe=recipe(seed=1)))

    def test_a_finished_run_does_no_more_steps(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = run(tmp_path)
        for name in ("model.safetensors", "README.md", "scores.jsonl"):
            (tmp_path / name).unlink()
        monkeypatch.setattr(Run, "advance", lambda self: pytest.fail("a step was done"))
        again = run(tmp_path)
        assert same_weights(first, again)
        assert (tmp_path / "model.safetensors").exists()
        assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 2

    def test_an_interrupt_right_behind_a_step_waits_for_a_snapshot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Progress(loop_module.tqdm):  # type: ignore[misc]
            def update(self, n: float = 1) -> bool | None:
                if not fired:
                    fired.append(True)
                    signal.raise_signal(signal.SIGINT)
                return super().update(n)

        fired: list[bool] = []
        monkeypatch.setattr(loop_module, "tqdm", Progress)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, recipe=recipe(save_every=100))
        snapshot = Snapshot.load(tmp_path)
        assert snapshot is not None
        assert snapshot.step == 2

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"recipe": recipe(rate=0.001)}, "recipe"),
            ({"config": gpt2(n_layers=3)}, "config"),
            ({"texts": TEXTS[::-1]}, "texts"),
            ({"texts": TEXTS[:2], "held_out": UNSEEN[:1]}, "texts, held_out"),
            ({"tokenizer": train_tokenizer(["A b."], family="gpt2", size=300)}, "own_tokenizer"),
            ({"whole": [" apple"]}, "whole"),
        ],
    )
    def test_other_arguments_are_an_error_naming_which(
        self, changes: dict[str, Any], named: str, tmp_path: Path
    ) -> None:
        run(tmp_path, recipe=recipe(steps=1))
        changes = {"recipe": recipe(steps=1), **changes}
        before = snapshot_path(tmp_path).read_bytes()
        with pytest.raises(
            TrainingError, match=rf"holds a run with other {named} \(step 1\)\. Give"
        ):
            run(tmp_path, **changes)
        assert snapshot_path(tmp_path).read_bytes() == before

    def test_texts_of_one_name_are_told_apart(self, tmp_path: Path) -> None:
        same = [Document("book.txt", document.text) for document in TEXTS]
        run(tmp_path, texts=same, recipe=recipe(steps=1))
        for order in ([1, 0, 2], [0, 2, 1], [2, 2, 2]):
            with pytest.raises(TrainingError, match="other texts"):
                run(tmp_path, texts=[same[n] for n in order], recipe=recipe(steps=1))

    def test_restart_begins_anew_whatever_lies_there(self, tmp_path: Path) -> None:
        run(tmp_path, recipe=recipe(seed=3))
        snapshot_path(tmp_path).write_bytes(b"damaged")
        with pytest.raises(TrainingError, match=r"snapshot\.pt: the snapshot cannot be read"):
            run(tmp_path)
        model = run(tmp_path, restart=True)
        assert same_weights(model, run(tmp_path / "new"))


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"texts": ()}, "The longest of the texts has 0 tokens"),
            ({"held_out": ()}, "The longest of the held-out texts has 0 tokens"),
            ({"config": gpt2(vocab_size=100)}, "vocabulary of 100 has no room"),
            ({"config": bert(), "texts": TEXTS[:1]}, "one text for texts. Next-sentence"),
            ({"config": bert("none")}, "cannot be trained here"),
            (
                {"config": bert(), "tokenizer": train_tokenizer(["A."], family="gpt2", size=300)},
                "a mask and a padding token",
            ),
            ({"recipe": recipe(delimiter=0.1)}, "delimiter=0.1, matching=0.0: these targets"),
            ({"device": "cuda:7"}, "The device 'cuda:7' cannot be used"),
            ({"device": "meta"}, "The device 'meta' cannot be trained on; expected cpu or cuda"),
            ({"device": "abacus"}, "The device 'abacus' cannot be used"),
        ],
    )
    def test_what_cannot_be_trained_is_an_error_and_nothing_is_written(
        self, changes: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        if changes.get("device") == "cuda:7" and torch.cuda.device_count() > 7:
            pytest.skip("there is such a device")
        with pytest.raises(TrainingError, match=message):
            run(tmp_path / "new", **changes)
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize("place", ["file", "file/below"])
    def test_a_place_that_is_no_folder_is_an_error_before_the_first_step(
        self, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setattr(Run, "advance", lambda self: pytest.fail("a step was done"))
        with pytest.raises(TrainingError, match=r"file.*: cannot be written to"):
            run(tmp_path / place)

    def test_a_loss_that_is_no_number_stops_the_run(self, tmp_path: Path) -> None:
        with pytest.raises(TrainingError, match=r"loss of step 2 is NaN or infinite\. Lower rate"):
            run(tmp_path, recipe=recipe(rate=1e30, warm_up=1, save_every=1))
        assert not (tmp_path / "model.safetensors").exists()


class TestLog:
    def test_it_has_a_line_each_so_many_steps_and_at_the_end(self, tmp_path: Path) -> None:
        said: list[str] = []
        run(tmp_path, config=bert(), recipe=recipe(steps=7), note=said.append)
        lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [3, 6, 7]
        assert [line["tokens"] for line in lines] == [n * 4 * 32 for n in (3, 6, 7)]
        patterns = {"previous", "next", "duplicate", "induction", "delimiter"}
        for line in lines:
            assert {"loss", "held_out_loss", "sentence_loss", "held_out_sentence_loss"} <= set(line)
            assert set(line["heads"]) == patterns
            for layers in line["heads"].values():
                assert [len(row) for row in layers] == [4, 4]
                assert all(0 <= score <= 1 for row in layers for score in row)
        assert [line.split()[1] for line in said] == ["3", "6", "7"]

    def test_a_score_that_does_not_apply_is_null(self, tmp_path: Path) -> None:
        run(tmp_path, recipe=recipe(steps=1))
        (line,) = (tmp_path / "scores.jsonl").read_text().splitlines()
        assert json.loads(line)["heads"]["next"] == [[None] * 4] * 2
        assert "NaN" not in line
        assert "sentence_loss" not in line


def test_a_tokenizer_of_ones_own_is_kept(tmp_path: Path) -> None:
    own = train_tokenizer([document.text for document in UNSEEN], family="gpt2", size=300)
    model = run(tmp_path, tokenizer=own)
    assert model.config.vocab_size == own.vocab_size
    assert Tokenizer.from_folder(tmp_path).to_json() == own.to_json()
    assert not (tmp_path / "tokenizer_config.json").exists()


def test_the_process_is_as_before(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen: list[int] = []
    try:
        model = run(tmp_path, note=lambda line: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [1, 1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not math.isnan(float(model("The rabbit").sum()))


def test_a_folder_with_a_model_from_elsewhere_is_left_alone(tmp_path: Path) -> None:
    run(tmp_path, recipe=recipe(steps=1))
    snapshot_path(tmp_path).unlink()
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(TrainingError, match="already holds a model"):
        run(tmp_path, recipe=recipe(steps=2))
    assert (tmp_path / "model.safetensors").read_bytes() == before
    run(tmp_path, recipe=recipe(steps=2), restart=True)


def test_a_text_cannot_be_trained_on_and_held_out(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="held out, and trained on"):
        run(tmp_path, held_out=(TEXTS[1], UNSEEN[0]))
    assert not list(tmp_path.iterdir())
