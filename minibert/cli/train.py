"""`minibert train`. torch is imported only when the command runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from minibert.cli.options import check_picture, spread, unusable
from minibert.errors import TrainingError
from minibert.terminal import note, say

if TYPE_CHECKING:
    from minibert.layers.config import Config
    from minibert.training.recipe import Recipe


@dataclass(frozen=True)
class Shape:
    """What is trained: a config.json, or a family and its sizes."""

    task: Annotated[
        Literal["causal-lm", "masked-lm", "pre-training"] | None,
        typer.Option(help="causal-lm is a GPT-2, the others are BERTs; needed without --config."),
    ] = None
    family: Annotated[
        Literal["bert", "gpt2", "llama"] | None,
        typer.Option(help="llama: a causal-lm with rotary positions and a gated MLP."),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A config.json in place of the sizes."),
    ] = None
    layers: Annotated[int, typer.Option(min=1, help="Layers.")] = 4
    heads: Annotated[int, typer.Option(min=1, help="Heads in each layer.")] = 4
    kv_heads: Annotated[
        int, typer.Option(min=0, help="Key-value heads of a llama; 0: as many as heads.")
    ] = 0
    width: Annotated[int, typer.Option(min=1, help="Width of the residual stream.")] = 128
    positions: Annotated[int, typer.Option(min=16, help="Longest input in tokens.")] = 128
    vocabulary: Annotated[int, typer.Option(min=1, help="Entries of the tokenizer.")] = 4096

    def read(self) -> "Config":
        """The Config. Exits with 2 for choices that do not go together."""
        from minibert.checkpoint.config import config_from_hf
        from minibert.untrusted import read_json

        if self.config is not None:
            if self.family is not None:
                unusable("--config names the family; leave --family out.")
            return config_from_hf(read_json(self.config, TrainingError), self.task)
        if self.task is None:
            unusable("The task is missing: give --task causal-lm, masked-lm or pre-training.")
        causal = self.task == "causal-lm"
        family = self.family or ("gpt2" if causal else "bert")
        if causal != (family != "bert"):
            unusable(
                f"--family {family} does not go with --task {self.task}: gpt2 and llama are "
                "trained for causal-lm, bert for masked-lm and pre-training."
            )
        if self.kv_heads and family != "llama":
            unusable(f"--kv-heads is for llama; a {family} has none of its own.")
        return self._of_sizes(family, self.task)

    def _of_sizes(self, family: str, task: str) -> "Config":
        from minibert.layers.config import Config
        from minibert.layers.rotary import Rotary

        gated = family == "llama"
        # As many weights as an MLP without a gate (Shazeer 2020, section 3.1), in whole eights.
        d_mlp = -(-self.width * 8 // 3 // 8) * 8 if gated else 4 * self.width
        options: dict[str, object] = {
            "n_segments": 2,
            "pad_id": 0,
            "pooler": task == "pre-training",
        }
        if family != "bert":
            options = {"causal": True, "norm_eps": 1e-5, "activation": "gelu_tanh"}
        if gated:
            options |= {"activation": "silu", "rotary": Rotary(self.width // self.heads)}
        return Config(
            family=family,
            task=task,
            vocab_size=self.vocabulary,
            n_positions=self.positions,
            n_layers=self.layers,
            n_heads=self.heads,
            n_kv_heads=self.kv_heads,
            d_model=self.width,
            d_mlp=d_mlp,
            **options,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Numbers:
    """The numbers of the recipe."""

    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 4000
    batch: Annotated[int, typer.Option(min=1, help="Sequences in each step.")] = 32
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=NUMBER",
            help="Another number of the recipe; minibert.training.Recipe has the names. "
            "Repeatable.",
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same weights.")] = 0
    threads: Annotated[int, typer.Option(min=1, help="Threads of the CPU.")] = 1
    float32: Annotated[
        bool, typer.Option("--float32", help="Multiply in float32 instead of bfloat16.")
    ] = False

    def recipe(self) -> "Recipe":
        """The recipe, with the numbers of --set converted to the types of its fields."""
        from minibert.training.recipe import Recipe

        found: dict[str, Any] = {"bfloat16": not self.float32}
        found |= {name: getattr(self, name) for name in ("steps", "batch", "seed", "threads")}
        known = {
            name: type(value)
            for name, value in Recipe().to_dict().items()
            if name not in found and not isinstance(value, bool)
        }
        for part in self.settings or ():
            name, _, text = part.partition("=")
            if name not in known:
                unusable(f"--set {part}: expected one of {', '.join(sorted(known))}.")
            try:
                found[name] = known[name](text)
            except ValueError:
                kind = "a whole number" if known[name] is int else "a number"
                unusable(f"--set {part}: expected {kind} after the =.")
        return Recipe(**found)


@spread()
def train(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT...", help="UTF-8 text files.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the model goes.")
    ],
    held_out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Text to measure on, not to train on; repeatable. Default: the ends of TEXT.",
        ),
    ] = None,
    *,
    shape: Shape,
    numbers: Numbers,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")] = "cpu",
    weights: Annotated[
        Literal["float32", "float16", "bfloat16"], typer.Option(help="Type of the saved weights.")
    ] = "float32",
    restart: Annotated[
        bool, typer.Option("--restart", help="Start again where FOLDER already holds a run.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the scores of all heads over time, as .svg, .pdf or .png."
        ),
    ] = None,
) -> None:
    """Train a small model from scratch on text files.

    To resume an interrupted run, give the same command again. In the end FOLDER holds config.json,
    model.safetensors, tokenizer.json, a card, and scores.jsonl, which has the losses and the scores
    of every head during the training.
    """
    if plot is not None:
        check_picture(plot, made=output)
    recipe, config = numbers.recipe(), shape.read()
    choices: dict[str, Any] = {"device": device, "restart": restart, "dtype": weights}
    size = _run(texts, held_out or [], output, config=config, recipe=recipe, **choices)
    say(f"{output}  {size / 1e6:.2f} million parameters, {numbers.steps} steps")
    if plot is not None:
        from minibert.viz.plots import training_scores

        training_scores(output / "scores.jsonl", plot)
        say(str(plot))


def _run(
    texts: list[Path], held_out: list[Path], output: Path, *, dtype: str, **options: Any
) -> int:
    """Train, and return the number of parameters."""
    import torch

    from minibert.training import read_texts
    from minibert.training import train as run
    from minibert.training.snapshot import snapshot_path
    from minibert.training.texts import hold_out

    training, unseen = read_texts(texts), read_texts(held_out)
    if not unseen:
        training, unseen = hold_out(training)
    try:
        model = run(training, unseen, output, dtype=getattr(torch, dtype), **options)
    except KeyboardInterrupt:
        if snapshot_path(output).exists():
            note("note", f"stopped; the same command resumes from the snapshot in {output}")
        raise
    return sum(parameter.numel() for parameter in model.parameters())
