"""A training run: from texts and a Config to a folder that minibert and transformers load.

Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks") steps along the
orthogonal matrix nearest to the momentum. It trains the matrices of attention and MLPs, AdamW
everything else. In a model of this size the previous-token, next-token and induction heads then
form within a few hundred steps; with AdamW alone they need thousands.
"""

import json
import math
import platform
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from tqdm import tqdm

from minibert.analysis.patterns import LENGTH, draws_for, head_scores
from minibert.errors import TrainingError
from minibert.layers.config import Config
from minibert.layers.finite import NumbersError
from minibert.model import Model, device_of
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.training.batches import batch_of, check_corpus, losses
from minibert.training.recipe import Recipe, check_task
from minibert.training.texts import (
    END_OF_TEXT,
    Corpus,
    Document,
    train_tokenizer,
    write_tokenizer_settings,
)
from minibert.untrusted import Json, open_regular
from minibert.writing import replacing

CHECKPOINT = "checkpoint.pt"
# What heads and held-out losses are measured on: so many batches of so many sequences.
_BATCHES, _SEQUENCES = 4, 32
# And entropy on so many texts, one at a time.
_MEASURED = 8
# Amplitude of the sinusoids that positions start as.
_AMPLITUDE = 0.05


def train(
    texts: Sequence[Document],
    held_out: Sequence[Document],
    folder: str | Path,
    *,
    config: Config,
    recipe: Recipe | None = None,
    tokenizer: Tokenizer | None = None,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    name: str | None = None,
    restart: bool = False,
    note: Callable[[Json], None] | None = None,
) -> Model:
    """The trained model; it is also saved in `folder` with its tokenizer, log and facts.

    Without a `tokenizer` one is trained on the texts, of `config.vocab_size` entries at most; in
    the result that is the real size. A run that was interrupted, even killed, resumes from its last
    checkpoint when `train` is called again with the same arguments; on the same kind of processor
    the final weights are then the same, bit for bit. `restart` starts from step 0. `dtype` is the
    type of the saved weights (float16 halves the file). `note` is called with each entry of the
    log; without it a line goes to standard error.

    Raises TrainingError before anything is written, for texts that are too short, a task without
    an objective, a folder that holds another run, and a device that cannot be used.
    """
    folder, recipe = Path(folder), recipe or Recipe()
    check_task(config)
    _check_apart(texts, held_out)
    where = device_of(device, TrainingError)
    if where.type not in ("cpu", "cuda"):
        raise TrainingError(f"device={device!r} cannot be trained on; expected cpu or cuda.")
    tokenizer = tokenizer or train_tokenizer(
        (text.text for text in texts), size=config.vocab_size, byte_level=config.causal
    )
    config = _with_tokenizer(config, tokenizer)
    corpus, unseen = (_corpus_of(part, tokenizer) for part in (texts, held_out))
    check_corpus(corpus, config, what="texts")
    check_corpus(unseen, config, what="held-out texts")
    model = starting_model(config, recipe, tokenizer, name=name or folder.resolve().name)
    run = Run(model.to(where).requires_grad_(), corpus, recipe)
    about = {
        "texts": [[text.name, text.digest] for text in texts],
        "held_out": [[text.name, text.digest] for text in held_out],
        "config": json.loads(json.dumps(asdict(config))),
        "recipe": asdict(recipe),
        "tokenizer": tokenizer.to_json(),
        "device": where.type,
        "torch": str(torch.__version__),
    }
    _check_folder(folder, restart=restart)
    if not restart:
        run.resume(folder, about)
    with _threads(recipe.threads):
        run.finish(folder, about, Measure(model, unseen, recipe), note or _print)
    model.requires_grad_(False)
    model.save(folder, dtype=dtype)
    write_tokenizer_settings(model, folder)
    facts = {
        "texts": sorted(text.name for text in texts),
        "held_out": sorted(text.name for text in held_out),
        "recipe": about["recipe"],
        "seconds": round(run.seconds),
        "machine": f"{platform.machine()}, {where.type}, torch {torch.__version__}",
        "last": run.log[-1],
    }
    _write(folder / "training.json", json.dumps(facts, indent=1) + "\n")
    return model


def starting_model(config: Config, recipe: Recipe, tokenizer: Tokenizer, *, name: str) -> Model:
    """A model with random weights, and sinusoids as its positions where it has a table of them.

    With random positions a model of this size needs most of the run to learn which tokens are
    neighbours. Where norms stand before the blocks, the matrices that write into the stream start
    smaller by 1/sqrt(2·layers) (Radford et al. 2019, section 2.3).
    """
    model = Model.from_config(config, seed=recipe.seed, tokenizer=tokenizer, name=name)
    with torch.no_grad():
        if recipe.waves and model.body.position is not None:
            table = model.body.position.weight[config.position_offset :]
            table.copy_(waves(*table.shape, longest=recipe.waves))
        if config.pre_norm:
            for place, parameter in model.named_parameters():
                if place.endswith(("attention.output.weight", "mlp.down.weight")):
                    parameter.mul_((2 * config.n_layers) ** -0.5)
    return model


def waves(positions: int, width: int, *, longest: float) -> Tensor:
    """Sines and cosines of the position (Vaswani et al. 2017, section 3.5), of amplitude 0.05.

    `longest` is the longest wavelength over 2π. The paper has 10,000. For 128 positions 100 is
    better: neighbours differ more, so heads can tell them apart with smaller scores.
    """
    position = torch.arange(positions)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(longest) / width))
    table = torch.empty(positions, width)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)[:, : width // 2]
    return _AMPLITUDE * table


class Measure:
    """Measures a model on the same held-out batches each time."""

    def __init__(self, model: Model, corpus: Corpus, recipe: Recipe) -> None:
        self.model = model
        plain = Recipe(
            batch=_SEQUENCES,
            repeated=0.0,
            short=0.0,
            masked=0.15,
            same_text=0.0,
            seed=(recipe.seed + 1) % 2**32,
        )
        device = model.body.device
        batches = [batch_of(corpus, model, plain, step) for step in range(_BATCHES)]
        self.batches = [batch.to(device) for batch in batches]
        # A model with few positions is measured on shorter repetitions.
        length = min(LENGTH, (model.config.n_positions - 2) // 2)
        self.repeated = draws_for(model, length=length).to(device)
        first = self.batches[0]
        ids = first.ids
        if not model.config.causal:
            # Heads are measured on the text without mask tokens.
            ids = torch.where(first.labels < 0, ids, first.labels)
        self.tokens = Tokens.from_ids(
            ids, mask=first.mask, segments=first.segments, tokenizer=model.tokenizer
        )

    @torch.no_grad()
    def __call__(self) -> Json:
        """held_out_loss in nats a predicted token, held_out_sentence_loss, heads, and entropy."""
        found: Json = {}
        parts = [losses(self.model, batch) for batch in self.batches]
        for name, key in (("tokens", "loss"), ("sentences", "sentence_loss")):
            if name in parts[0]:
                mean = torch.stack([part[name] for part in parts]).mean()
                found[f"held_out_{key}"] = round(float(mean), 4)
        scores = head_scores(self.model, self.tokens, repeated=self.repeated)
        entropy = entropies(self.model, self.tokens)
        return found | {"heads": scores.by_pattern(), "entropy": entropy}


def entropies(model: Model, tokens: Tokens) -> list[list[float]]:
    """The entropy of each layer and head in nats, mean over the queries of the first eight texts.

    Near 0 training no longer gets on (Zhai et al. 2023, "Stabilizing transformer training by
    preventing attention entropy collapse").
    """
    config = model.config
    total, count = torch.zeros(config.n_layers, config.n_heads), 0
    for row in range(min(_MEASURED, len(tokens))):
        one = itemgetter(slice(row, row + 1))
        text = model.trace(tokens.each(one, one), statistics=("entropy",)).text(0)
        for layer, sums in enumerate(total):
            found = cast(Tensor, text[layer].statistics.entropy)  # asked for
            sums += found[0].sum(-1).cpu()
        count += found.shape[-1]
    return [[round(nats, 4) for nats in layer] for layer in (total / count).tolist()]


@dataclass
class Run:
    """The state of a run between two steps. `step` is the number of steps done."""

    model: Model
    corpus: Corpus
    recipe: Recipe
    step: int = 0
    seconds: float = 0.0
    log: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizers = optimizers(self.model, self.recipe)

    def finish(
        self, folder: Path, about: Json, measure: Measure, note: Callable[[Json], None]
    ) -> None:
        """Do the remaining steps; the log and checkpoints go to the folder on the way."""
        every, start = self.recipe, time.monotonic() - self.seconds
        progress = tqdm(initial=self.step, total=every.steps, disable=None, unit="step")
        with progress:
            while self.step < every.steps:
                parts = self.advance()
                progress.update()
                self.seconds = time.monotonic() - start
                last = self.step == every.steps
                if last or self.step % every.log_every == 0:
                    self.log.append(self._entry(parts) | measure())
                    note(self.log[-1])
                if last or self.step % every.save_every == 0:
                    self.save(folder, about)
                    lines = [json.dumps(entry) + "\n" for entry in self.log]
                    _write(folder / "scores.jsonl", "".join(lines))

    def advance(self) -> dict[str, float]:
        """Do one step; returns the parts of its loss, in nats."""
        device = self.model.body.device
        batch = batch_of(self.corpus, self.model, self.recipe, self.step).to(device)
        weights = self.recipe.targets_at(self.step)
        cast = torch.autocast(device.type, dtype=torch.bfloat16)
        try:
            with cast if self.recipe.bfloat16 else nullcontext():
                parts = losses(self.model, batch, targets=weights)
        except NumbersError as error:
            raise self._diverged() from error
        total = torch.stack([part.float() * weights.get(name, 1.0) for name, part in parts.items()])
        total.sum().backward()
        if not bool(total.isfinite().all()):
            raise self._diverged()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        rates = (self.recipe.matrix_rate, self.recipe.rate)
        for optimizer, rate in zip(self.optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * self.recipe.pace(self.step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {name: part.item() for name, part in parts.items()}

    def _diverged(self) -> TrainingError:
        return TrainingError(
            f"The loss of step {self.step + 1} is NaN or infinite. Lower rate or matrix_rate (now "
            f"{self.recipe.rate} and {self.recipe.matrix_rate}), and start again with restart=True."
        )

    def _entry(self, parts: dict[str, float]) -> Json:
        """The losses of the last step, as the log has them."""
        tokens = self.step * self.recipe.batch * self.model.config.n_positions
        entry = {"step": self.step, "tokens": tokens, "loss": round(parts["tokens"], 4)}
        if "sentences" in parts:
            entry["sentence_loss"] = round(parts["sentences"], 4)
        return entry

    def save(self, folder: Path, about: Json) -> None:
        """Write all that a run needs to resume."""
        state = {
            "about": about,
            **{name: getattr(self, name) for name in ("step", "seconds", "log")},
            "model": self.model.state_dict(),
            "optimizers": [one.state_dict() for one in self.optimizers],
        }
        write_checkpoint(folder / CHECKPOINT, state)

    def resume(self, folder: Path, about: Json) -> None:
        """Take up the checkpoint of the folder, if there is one.

        Raises TrainingError for one that is damaged, and for that of another run, naming what
        differs.
        """
        path = folder / CHECKPOINT
        if not path.exists():
            return
        state = read_checkpoint(path)
        changed = [key for key, value in about.items() if state["about"].get(key) != value]
        if changed:
            raise TrainingError(
                f"{folder} holds a run with other {', '.join(changed)} (step {state['step']}). "
                "Give the same arguments to resume it, another folder, or restart=True."
            )
        self.model.load_state_dict(state["model"])
        for optimizer, one in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(one)
        self.step, self.seconds, self.log = state["step"], state["seconds"], state["log"]


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A path to write to; a kill leaves the old file or the new one."""
    try:
        with replacing(path) as beside:
            yield beside
    # torch says that the disk is full with a RuntimeError.
    except (OSError, RuntimeError) as error:
        raise TrainingError(
            f"{path}: could not be written ({error}). Once it can be, repeat the command to resume."
        ) from error


def _write(path: Path, text: str) -> None:
    with _writing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_checkpoint(path: Path, state: Json) -> None:
    """Replace the checkpoint at this path."""
    with _writing(path) as beside, beside.open("wb") as file:
        torch.save(state, file)


def read_checkpoint(path: Path) -> Json:
    """The content of a checkpoint. Raises TrainingError for a file that is damaged or another's."""
    keys = {"about", "step", "seconds", "log", "model", "optimizers"}
    with open_regular(path, TrainingError) as file:
        try:
            # torch loads a damaged tensor without an error, although the file has checksums.
            with zipfile.ZipFile(file) as archive:
                whole = archive.testzip() is None
            file.seek(0)
            # weights_only: a file may hold tensors and plain Python values, and no code.
            state = torch.load(file, map_location="cpu", weights_only=True) if whole else {}
        # A damaged file can raise any exception, from IndexError to struct.error.
        except Exception:
            state = {}
    if not isinstance(state, dict) or set(state) != keys or not isinstance(state["about"], dict):
        raise TrainingError(
            f"{path}: damaged, or not a checkpoint of this version of minibert. Delete it, or give "
            "restart=True, to start from step 0."
        )
    return state


def optimizers(model: nn.Module, recipe: Recipe) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the layers; AdamW for embeddings, classifiers, biases and norms."""
    kinds: tuple[list[nn.Parameter], ...] = ([], [], [])
    for name, parameter in model.named_parameters():
        inner = ".attention." in name or ".mlp." in name or name == "head.transform.weight"
        kinds[2 if parameter.dim() < 2 else 0 if inner else 1].append(parameter)
    matrices, tables, vectors = kinds
    groups = [
        {"params": tables, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return (
        torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), fused=True),
    )


def best_heads(entry: Json) -> dict[str, tuple[float, str]]:
    """For each pattern that was measured its highest score, and whose that is."""
    found = {}
    for pattern, layers in entry["heads"].items():
        rows = [(n, h, s) for n, row in enumerate(layers) for h, s in enumerate(row)]
        if scores := [(s, f"{n}-{h}") for n, h, s in rows if s is not None]:
            found[pattern] = max(scores)
    return found


def _print(entry: Json) -> None:
    """Write an entry of the log as a line: losses, least entropy, best head of each pattern."""
    names = ("loss", "held_out_loss", "sentence_loss", "held_out_sentence_loss")
    parts = [f"{name.replace('_', ' ')} {entry[name]:.3f}" for name in names if name in entry]
    parts.append(f"entropy {min(min(layer) for layer in entry['entropy']):.2f} or more")
    parts += [f"{kind} {score:.2f} ({head})" for kind, (score, head) in best_heads(entry).items()]
    tqdm.write(f"step {entry['step']:>6}  " + "  ".join(parts), file=sys.stderr)


def _check_apart(texts: Sequence[Document], held_out: Sequence[Document]) -> None:
    names = {document.digest: document.name for document in texts}
    for document in held_out:
        if document.digest in names:
            raise TrainingError(
                f"{document.name} is held out, and trained on as {names[document.digest]}. "
                "Held-out text must be new to the model: remove it from one of the two."
            )


def _check_folder(folder: Path, *, restart: bool) -> None:
    """Make the folder. Raises TrainingError where it cannot be written to or has another model."""
    found = [name for name in ("config.json", "model.safetensors") if (folder / name).exists()]
    if found and not restart and not (folder / CHECKPOINT).exists():
        raise TrainingError(
            f"{folder} already holds a model ({', '.join(found)}) but no checkpoint of its "
            "training; give another folder, or restart=True to replace the model."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be written to ({error.strerror}).") from error


def _with_tokenizer(config: Config, tokenizer: Tokenizer) -> Config:
    """The config with the ids that the tokenizer decides."""
    if not config.causal and None in (tokenizer.mask_id, tokenizer.pad_id):
        raise TrainingError("A masked LM needs a tokenizer with a mask and a padding token.")
    pad_id = config.pad_id if tokenizer.pad_id is None else tokenizer.pad_id
    return replace(config, vocab_size=tokenizer.vocab_size, pad_id=pad_id)


def _corpus_of(documents: Sequence[Document], tokenizer: Tokenizer) -> Corpus:
    """The documents as ids, each followed by the end-of-text token where there is one."""
    ids = tokenizer.encode(END_OF_TEXT)
    between = ids if len(ids) == 1 and ids[0] in tokenizer.special_ids else []
    return Corpus.of(documents, tokenizer, between=between)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
