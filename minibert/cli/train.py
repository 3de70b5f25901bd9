"""`minibert train`. torch is imported only when the command runs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minibert.cli.options import unusable
from minibert.cli.output_files import check_picture
from minibert.errors import TrainingError
from minibert.terminal import note, say

if TYPE_CHECKING:
    from minibert.layers.config import Config

__all__ = ["train"]


class TrainingTask(StrEnum):
    """What a model can be trained to do."""

    causal_lm = "causal-lm"
    masked_lm = "masked-lm"
    pre_training = "pre-training"


class TrainingFamily(StrEnum):
    """Families that the sizes on the command line can describe."""

    bert = "bert"
    gpt2 = "gpt2"
    llama = "llama"


class WeightType(StrEnum):
    """Number types that weights are saved in."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


Texts = Annotated[list[Path], typer.Argument(metavar="TEXT...", help="UTF-8 text files.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the model goes.")
]
HeldOut = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Text to measure on, not to train on; repeatable. Default: the ends of TEXT.",
    ),
]
Task = Annotated[
    TrainingTask | None,
    typer.Option(help="causal-lm is a GPT-2, the others are BERTs; needed without --config."),
]
Family = Annotated[
    TrainingFamily | None,
    typer.Option(help="llama: a causal-lm with rotary positions and a gated MLP."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A config.json in place of the sizes."),
]
Layers = Annotated[int, typer.Option(min=1, help="Layers.")]
Heads = Annotated[int, typer.Option(min=1, help="Heads in each layer.")]
KeyValueHeads = Annotated[
    int, typer.Option(min=0, help="Key-value heads of a llama; 0: as many as heads.")
]
Width = Annotated[int, typer.Option(min=1, help="Width of the residual stream.")]
Positions = Annotated[int, typer.Option(min=16, help="Longest input in tokens.")]
Vocabulary = Annotated[int, typer.Option(min=1, help="Entries of the tokenizer.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps of training.")]
Batch = Annotated[int, typer.Option(min=1, help="Sequences in each step.")]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=NUMBER",
        help="Another number of the recipe; minibert.training.Recipe has the names. Repeatable.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same weights.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of the CPU.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")]
Float32 = Annotated[
    bool, typer.Option("--float32", help="Multiply in float32 instead of bfloat16.")
]
Weights = Annotated[WeightType, typer.Option(help="Type of the saved weights.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Start again where FOLDER already holds a run.")
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Draw the scores of all heads over time, as .svg, .pdf or .png."
    ),
]


def train(
    texts: Texts,
    output: Output,
    held_out: HeldOut = None,
    task: Task = None,
    family: Family = None,
    config: ConfigFile = None,
    layers: Layers = 4,
    heads: Heads = 4,
    kv_heads: KeyValueHeads = 0,
    width: Width = 128,
    positions: Positions = 128,
    vocabulary: Vocabulary = 4096,
    steps: Steps = 4000,
    batch: Batch = 32,
    settings: Setting = None,
    seed: Seed = 0,
    threads: Threads = 1,
    device: Device = "cpu",
    float32: Float32 = False,
    weights: Weights = WeightType.float32,
    restart: Restart = False,
    plot: Plot = None,
) -> None:
    """Train a small model from scratch on text files.

    To resume an interrupted run, give the same command again. In the end FOLDER holds config.json,
    model.safetensors, tokenizer.json, a card, and scores.jsonl, which has the losses and the scores
    of every head during the training.
    """
    sizes = {
        "vocab_size": vocabulary,
        "n_positions": positions,
        "n_layers": layers,
        "n_heads": heads,
        "d_model": width,
        "n_kv_heads": kv_heads,
    }
    if plot is not None:
        check_picture(plot, made=output)
    numbers = {"steps": steps, "batch": batch, "seed": seed, "threads": threads}
    numbers |= {"bfloat16": not float32, **_settings(settings or [], taken=numbers)}
    size = _run(
        texts,
        held_out or [],
        output,
        numbers,
        config=_config(config, task, family, sizes),
        device=device,
        dtype=weights.value,
        restart=restart,
    )
    say(f"{output}  {size / 1e6:.2f} million parameters, {steps} steps")
    if plot is not None:
        _draw(output / "scores.jsonl", plot)


def _draw(scores: Path, plot: Path) -> None:
    from minibert.viz.plots import training_scores

    training_scores(scores, plot)
    say(str(plot))


def _run(
    texts: list[Path],
    held_out: list[Path],
    output: Path,
    numbers: dict[str, Any],
    *,
    dtype: str,
    **options: Any,
) -> int:
    """Train, and return the number of parameters."""
    import torch

    from minibert.training import Recipe, read_texts
    from minibert.training import train as run
    from minibert.training.snapshot import snapshot_path
    from minibert.training.texts import hold_out

    training, unseen = read_texts(texts), read_texts(held_out)
    if not unseen:
        training, unseen = hold_out(training)
    options |= {"recipe": Recipe(**numbers), "dtype": getattr(torch, dtype)}
    try:
        model = run(training, unseen, output, **options)
    except KeyboardInterrupt:
        if snapshot_path(output).exists():
            note("note", f"stopped; the same command resumes from the snapshot in {output}")
        raise
    return sum(parameter.numel() for parameter in model.parameters())


def _settings(given: list[str], *, taken: dict[str, Any]) -> dict[str, Any]:
    """The numbers of --set by name, converted to the types of the recipe's fields."""
    from minibert.training.recipe import Recipe

    known = {
        name: type(value)
        for name, value in Recipe().to_dict().items()
        if name not in taken and not isinstance(value, bool)
    }
    found = {}
    for part in given:
        name, _, text = part.partition("=")
        if name not in known:
            unusable(f"--set {part}: expected one of {', '.join(sorted(known))}.")
        try:
            found[name] = known[name](text)
        except ValueError:
            kind = "a whole number" if known[name] is int else "a number"
            unusable(f"--set {part}: expected {kind} after the =.")
    return found


def _config(
    path: Path | None,
    task: TrainingTask | None,
    family: TrainingFamily | None,
    sizes: dict[str, int],
) -> "Config":
    from minibert.checkpoint.config import config_from_hf
    from minibert.untrusted import read_json

    if path is not None:
        if family is not None:
            unusable("--config names the family; leave --family out.")
        return config_from_hf(read_json(path, TrainingError), None if task is None else task.value)
    if task is None:
        unusable("The task is missing: give --task causal-lm, masked-lm or pre-training.")
    causal = task is TrainingTask.causal_lm
    chosen = family or (TrainingFamily.gpt2 if causal else TrainingFamily.bert)
    if causal != (chosen is not TrainingFamily.bert):
        unusable(
            f"--family {chosen.value} does not go with --task {task.value}: gpt2 and llama are "
            "trained for causal-lm, bert for masked-lm and pre-training."
        )
    if sizes["n_kv_heads"] and chosen is not TrainingFamily.llama:
        unusable(f"--kv-heads is for llama; a {chosen.value} has none of its own.")
    return _of_sizes(chosen, task, sizes)


def _of_sizes(family: TrainingFamily, task: TrainingTask, sizes: dict[str, Any]) -> "Config":
    from minibert.layers.config import Config
    from minibert.layers.rotary import Rotary

    width = sizes["d_model"]
    given = {"family": family.value, "task": task.value, **sizes}
    if family is TrainingFamily.bert:
        pooler = task is TrainingTask.pre_training
        return Config(**given, d_mlp=4 * width, n_segments=2, pad_id=0, pooler=pooler)
    given |= {"causal": True, "norm_eps": 1e-5}
    if family is TrainingFamily.gpt2:
        return Config(**given, d_mlp=4 * width, activation="gelu_tanh")
    # As many weights as an MLP without a gate (Shazeer 2020, section 3.1), rounded up to eights.
    d_mlp = -(-width * 8 // 3 // 8) * 8
    d_head = width // sizes["n_heads"]
    return Config(**given, d_mlp=d_mlp, activation="silu", rotary=Rotary(d_head))
