"""`minibert train`. torch is imported only when the command runs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from minibert.cli.options import spread, unusable
from minibert.errors import did_you_mean
from minibert.terminal import say

if TYPE_CHECKING:
    from minibert.layers.config import Config
    from minibert.training.recipe import Recipe


@dataclass(frozen=True)
class Shape:
    """What is trained: a family and its sizes.

    Options:
        task: causal-lm trains a GPT-2, the others a BERT.
        family: llama: a causal-lm with rotary positions and a gated MLP.
        layers [>=1]: Layers.
        heads [>=1]: Heads in each layer.
        kv_heads [>=0]: Key-value heads of a llama; 0: as many as heads.
        width [>=1]: Width of the residual stream.
        positions [>=16]: Longest input in tokens.
        vocabulary [>=1]: Entries of the tokenizer.
    """

    task: Literal["causal-lm", "masked-lm", "pre-training"] | None = None
    family: Literal["bert", "gpt2", "llama"] | None = None
    layers: int = 4
    heads: int = 4
    kv_heads: int = 0
    width: int = 128
    positions: int = 128
    vocabulary: int = 4096

    def read(self) -> "Config":
        """The Config. Exits with 2 for choices that do not go together."""
        from minibert.layers.config import Config
        from minibert.layers.rotary import Rotary

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

        gated = family == "llama"
        # As many weights as an MLP without a gate (Shazeer 2020, section 3.1), in whole eights.
        d_mlp = -(-self.width * 8 // 3 // 8) * 8 if gated else 4 * self.width
        options: dict[str, object] = {
            "n_segments": 2,
            "pad_id": 0,
            "pooler": self.task == "pre-training",
        }
        if family != "bert":
            options = {"causal": True, "norm_eps": 1e-5, "activation": "gelu_tanh"}
        if gated:
            options |= {"activation": "silu", "rotary": Rotary(self.width // self.heads)}
        return Config(
            family=family,
            task=self.task,
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
    """The numbers of the recipe.

    Options:
        steps [>=1]: Steps of training.
        batch [>=1]: Sequences in each step.
        settings [--set, NAME=NUMBER]: Change a number of the recipe; minibert.training.Recipe has
            the names. Repeatable.
        seed [>=0]: The same seed gives the same weights.
        threads [>=1]: Threads of the CPU.
        float32 [--float32]: Multiply in float32 instead of bfloat16.
    """

    steps: int = 4000
    batch: int = 32
    settings: list[str] | None = None
    seed: int = 0
    threads: int = 1
    float32: bool = False

    def recipe(self) -> "Recipe":
        """The recipe, with the numbers of --set converted to the types of its fields."""
        from minibert.training.recipe import Recipe

        found: dict[str, Any] = {"bfloat16": not self.float32}
        found |= {name: getattr(self, name) for name in ("steps", "batch", "seed", "threads")}
        known = {
            name: type(value)
            for name, value in asdict(Recipe()).items()
            if name not in found and not isinstance(value, bool)
        }
        for part in self.settings or ():
            name, _, text = part.partition("=")
            if name not in known:
                unusable(
                    f"--set {part}"
                    f"{did_you_mean(name, known)}: expected one of {', '.join(sorted(known))}."
                )
            try:
                found[name] = known[name](text)
            except ValueError:
                kind = "a whole number" if known[name] is int else "a number"
                unusable(f"--set {part}: expected {kind} after the =.")
        return Recipe(**found)


@spread()
def train(
    texts: list[Path],
    output: Path,
    held_out: list[Path] | None = None,
    *,
    shape: Shape,
    numbers: Numbers,
    device: str = "cpu",
    weights: Literal["float32", "float16", "bfloat16"] = "float32",
    restart: bool = False,
) -> None:
    """Train a small model from scratch on text files.

    To resume an interrupted run, give the same command again. In the end FOLDER holds config.json,
    model.safetensors, tokenizer.json, training.json, and scores.jsonl, which has the losses and the
    scores of every head during the training.

    Options:
        texts [argument, TEXT...]: UTF-8 text files.
        output [-o, FOLDER]: Where the model goes.
        held_out [FILE]: Text to measure on, not to train on; repeatable. Default: the ends of TEXT.
        device [NAME]: cpu or cuda.
        weights: Type of the saved weights.
        restart [--restart]: Start again where FOLDER already holds a run.
    """
    recipe, config = numbers.recipe(), shape.read()
    import torch

    from minibert.training import read_texts
    from minibert.training import train as run
    from minibert.training.texts import hold_out

    training, unseen = read_texts(texts), read_texts(held_out or [])
    if not unseen:
        training, unseen = hold_out(training)
    choices: dict[str, Any] = {"device": device, "restart": restart}
    choices |= {"config": config, "recipe": recipe, "dtype": getattr(torch, weights)}
    model = run(training, unseen, output, **choices)
    size = sum(parameter.numel() for parameter in model.parameters())
    say(f"{output}  {size / 1e6:.2f} million parameters, {numbers.steps} steps")
