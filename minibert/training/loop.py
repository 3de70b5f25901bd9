"""A training run: from texts and a Config to a folder that minibert and transformers load."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minibert.analysis.patterns import LENGTH, HeadScores, draws_for, head_scores
from minibert.checkpoint.save import save
from minibert.errors import TrainingError
from minibert.layers.config import Config
from minibert.layers.finite import NumbersError
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.training.batches import Batch, batch_of, check_corpus
from minibert.training.card import best_heads, write_card
from minibert.training.folder import Interrupts, folder_locked, interrupts_held
from minibert.training.objective import losses
from minibert.training.optimizer import Optimizer
from minibert.training.recipe import Recipe, check_task
from minibert.training.snapshot import (
    Snapshot,
    about_run,
    check_apart,
    check_no_stranger,
    check_writable,
    fitting_snapshot,
    write_atomically,
)
from minibert.training.starting import (
    corpus_of,
    device_of,
    starting_model,
    tokenizer_of,
    with_tokenizer,
)
from minibert.training.texts import Corpus, Document
from minibert.training.vocabulary import tokenizer_settings

_BATCHES = 4
_SENTENCES = 32


class Measure:
    """Measures a model on the same held-out batches each time."""

    def __init__(self, model: Model, corpus: Corpus, recipe: Recipe) -> None:
        self.model = model
        causal = model.config.causal
        plain = Recipe(
            batch=_SENTENCES,
            repeated=0.0,
            short=0.0,
            masked=0.15,
            same_text=0.0,
            seed=(recipe.seed + 1) % 2**32,
        )
        self.batches = [batch_of(corpus, model, plain, step) for step in range(_BATCHES)]
        # A model with few positions is measured on shorter repetitions.
        length = min(LENGTH, (model.config.n_positions - 2) // 2)
        self.repeated = draws_for(model, length=length)
        self.tokens = _as_tokens(self.batches[0], model, masked=not causal)

    def __call__(self) -> dict[str, Any]:
        """held_out_loss in nats for each predicted token, held_out_sentence_loss, and heads."""
        model, found = self.model, {}
        with torch.no_grad():
            device = model.body.word.weight.device
            parts = [losses(model, batch.to(device)) for batch in self.batches]
            for name, key in (("tokens", "loss"), ("sentences", "sentence_loss")):
                if name in parts[0]:
                    mean = torch.stack([part[name] for part in parts]).mean()
                    found[f"held_out_{key}"] = round(float(mean), 4)
        return found | {"heads": self.scores().by_pattern()}

    def scores(self) -> HeadScores:
        """The scores of all heads."""
        device = self.model.body.word.weight.device
        return head_scores(self.model, self.tokens.to(device), repeated=self.repeated.to(device))


def _as_tokens(batch: Batch, model: Model, *, masked: bool) -> Tokens:
    # Heads are measured on the text without mask tokens.
    ids = batch.ids if not masked else torch.where(batch.labels < 0, batch.ids, batch.labels)
    return Tokens.from_ids(ids, mask=batch.mask, segments=batch.segments, tokenizer=model.tokenizer)


def train(
    texts: Sequence[Document],
    held_out: Sequence[Document],
    folder: str | Path,
    *,
    config: Config,
    recipe: Recipe | None = None,
    tokenizer: Tokenizer | None = None,
    whole: Sequence[str] = (),
    start: Model | None = None,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    name: str | None = None,
    restart: bool = False,
    note: Callable[[str], None] | None = None,
) -> Model:
    """The trained model; it is also saved in `folder` with its tokenizer, log and card.

    `config.vocab_size` is the size wanted for the tokenizer; in the result it is the real size.
    Each of the words `whole` becomes one token of a new tokenizer. The weights start from those of
    the model `start`, which may have another tokenizer and fewer positions. A run that was
    interrupted, even killed, resumes from its last snapshot when `train` is called again with the
    same arguments. On the same kind of processor the final weights are then the same, bit for bit.
    `restart` starts from step 0. `dtype` is the type of the saved weights (float16 halves the
    file). `note` is called with each line of the log; without it the lines go to standard error.

    Raises TrainingError before anything is written, for texts that are too short, a task without
    an objective, a folder that holds another run or that another process trains into, and a device
    that cannot be used. Raises KeyboardInterrupt after Ctrl-C, once a snapshot is written.
    """
    folder, recipe = Path(folder), recipe or Recipe()
    with folder_locked(folder):
        check_task(config)
        _check_pairs(config, recipe)
        where = device_of(device)
        about = about_run(texts, held_out, config, recipe, tokenizer, whole, where, start)
        check_apart(texts, held_out)
        snapshot = None if restart else fitting_snapshot(folder, about)
        if snapshot is None and not restart:
            check_no_stranger(folder)
        chosen = tokenizer or tokenizer_of(texts, config, whole, snapshot)
        config = with_tokenizer(config, chosen)
        corpus, unseen = (corpus_of(part, chosen) for part in (texts, held_out))
        check_corpus(corpus, config, what="texts")
        check_corpus(unseen, config, what="held-out texts")
        name = name or folder.resolve().name
        model = starting_model(config, recipe, chosen, name=name, start=start).to(where)
        model.requires_grad_()
        run = Run(model, corpus, Measure(model, unseen, recipe), recipe, folder, about)
        check_writable(folder)
        if snapshot is not None:
            run.resume(snapshot)
        with _threads(recipe.threads):
            run.finish(note)
            save(model, folder, dtype=dtype)
            if tokenizer is None:
                _write_tokenizer_settings(model, folder)
            write_card(folder, model, about, run.log, seconds=run.seconds)
        model.requires_grad_(False)
    return model


def _check_pairs(config: Config, recipe: Recipe) -> None:
    if config.n_segments < 2 and (recipe.delimiter or recipe.matching):
        raise TrainingError(
            f"delimiter={recipe.delimiter}, matching={recipe.matching}: these targets need "
            "pairs of texts, and this model has no segments for them; expected 0."
        )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Run:
    """The state of a run between two steps. `step` is the number of steps done."""

    def __init__(
        self,
        model: Model,
        corpus: Corpus,
        measure: Measure,
        recipe: Recipe,
        folder: Path,
        about: dict[str, Any],
    ) -> None:
        self.model, self.corpus, self.measure = model, corpus, measure
        self.recipe, self.folder, self.about = recipe, folder, about
        self.optimizer = Optimizer(model, recipe)
        self.step = 0
        self.log: list[dict[str, Any]] = []
        self.seconds = 0.0

    def resume(self, snapshot: Snapshot) -> None:
        """Take up the state of a snapshot."""
        self.model.load_state_dict(snapshot.model)
        self.optimizer.load_state_dict(snapshot.optimizer)
        self.step, self.log, self.seconds = snapshot.step, snapshot.log, snapshot.seconds

    def finish(self, note: Callable[[str], None] | None = None) -> None:
        """Do the remaining steps. After an interrupt: save a snapshot, raise KeyboardInterrupt.

        An interrupt waits for the end of a step and for a snapshot. Measuring is cut off, and done
        when the run goes on.
        """
        note = note or _above_the_bar
        progress = tqdm(initial=self.step, total=self.recipe.steps, disable=None, unit="step")
        start = time.monotonic() - self.seconds
        with interrupts_held() as interrupted, progress:
            if self._measured(note, interrupted):
                self.snapshot().save(self.folder)
            if interrupted():
                raise KeyboardInterrupt
            while self.step < self.recipe.steps:
                parts = self._advance_or_explain()
                self.seconds = time.monotonic() - start
                last = self.step == self.recipe.steps
                if last or self.step % self.recipe.log_every == 0:
                    self._log(parts)
                    self._measured(note, interrupted)
                save = last or interrupted() or self.step % self.recipe.save_every == 0
                if save:
                    self.snapshot().save(self.folder)
                progress.update()
                # Without a snapshot of this step an interrupt waits for the end of the next one.
                if save and interrupted():
                    raise KeyboardInterrupt
        self._write_log()

    def _advance_or_explain(self) -> dict[str, float]:
        try:
            return self.advance()
        except RuntimeError as error:
            # torch has no exception type for a CPU that runs out of memory.
            if "alloc" not in str(error) and "out of memory" not in str(error):
                raise
            raise TrainingError(
                f"There is not enough memory for step {self.step + 1}. Lower batch (now "
                f"{self.recipe.batch}), the model's positions, or its width."
            ) from error

    def advance(self) -> dict[str, float]:
        """Do one step; returns the parts of its loss, in nats."""
        device = self.model.body.word.weight.device
        batch = batch_of(self.corpus, self.model, self.recipe, self.step).to(device)
        cast = torch.autocast(device.type, dtype=torch.bfloat16)
        with cast if self.recipe.bfloat16 else nullcontext():
            weights = self.recipe.targets_at(self.step)
            try:
                parts = losses(self.model, batch, targets=weights)
            except NumbersError as error:
                raise self._diverged(self.step + 1) from error
        total = torch.stack([part.float() * weights.get(name, 1.0) for name, part in parts.items()])
        total.sum().backward()
        self.optimizer.step(self.step)
        self.step += 1
        found = {name: part.item() for name, part in parts.items()}
        if not all(map(math.isfinite, found.values())):
            raise self._diverged(self.step)
        return found

    def _diverged(self, step: int) -> TrainingError:
        return TrainingError(
            f"The loss of step {step} is NaN or infinite. Lower rate or matrix_rate (now "
            f"{self.recipe.rate} and {self.recipe.matrix_rate}), and start again with restart=True."
        )

    def snapshot(self) -> Snapshot:
        """Everything needed to resume from this step."""
        assert self.model.tokenizer is not None
        return Snapshot(
            step=self.step,
            about=self.about,
            tokenizer=self.model.tokenizer.to_json(),
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            log=self.log,
            seconds=self.seconds,
        )

    def _log(self, parts: dict[str, float]) -> None:
        """Begin an entry of the log with the losses of the last step."""
        tokens = self.step * self.recipe.batch * self.model.config.n_positions
        entry: dict[str, Any] = {"step": self.step, "tokens": tokens}
        entry["loss"] = round(parts["tokens"], 4)
        if "sentences" in parts:
            entry["sentence_loss"] = round(parts["sentences"], 4)
        self.log.append(entry)

    def _measured(self, note: Callable[[str], None], interrupted: Interrupts) -> bool:
        """End the newest entry of the log with measurements: True where these were missing.

        An interrupt leaves it as it is in the snapshot, for the next time.
        """
        if not self.log or "heads" in self.log[-1]:
            return False
        try:
            with interrupted.acting():
                found = self.measure()
        except KeyboardInterrupt:
            return False
        self.log[-1] |= found
        self._write_log()
        note(_line(self.log[-1]))
        return True

    def _write_log(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(entry) + "\n" for entry in self.log]
        write_atomically(self.folder / "scores.jsonl", "".join(lines))


def _above_the_bar(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


def _line(entry: dict[str, Any]) -> str:
    """An entry of the log as a line of text: losses, and the best head of each pattern."""
    losses_ = [
        f"{name.replace('_', ' ')} {entry[name]:.3f}"
        for name in ("loss", "held_out_loss", "sentence_loss", "held_out_sentence_loss")
        if name in entry
    ]
    best = {name: heads[0] for name, heads in best_heads(entry["heads"]).items()}
    heads = [f"{name} {score:.2f} ({head})" for name, (score, head) in best.items() if score]
    return f"step {entry['step']:>6}  " + "  ".join(losses_ + heads)


def _write_tokenizer_settings(model: Model, folder: Path) -> None:
    assert model.tokenizer is not None
    config = model.config
    settings = tokenizer_settings(
        model.tokenizer, family=config.family, n_positions=config.n_positions
    )
    write_atomically(folder / "tokenizer_config.json", json.dumps(settings, indent=2) + "\n")
