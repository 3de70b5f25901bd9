"""The settings of a training run, besides its texts and the Config of the model."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from minibert.errors import TrainingError
from minibert.layers.config import Config

# More than processors have, and fewer than a process may start.
_MOST_THREADS = 512
_TARGETS = ("previous", "induction")
_FIELDS: dict[str, tuple[tuple[str, ...], Callable[[float], bool]]] = {
    "1 or more": (("steps", "batch", "threads", "log_every", "save_every"), lambda n: n >= 1),
    f"{_MOST_THREADS} at most": (("threads",), lambda n: n <= _MOST_THREADS),
    "a number above 0": (("matrix_rate", "rate", "clip"), lambda n: n > 0),
    "0 or more": (("warm_up", "waves", "weight_decay", *_TARGETS, "seed"), lambda n: n >= 0),
    "a share between 0 and 1": (
        ("masked", "repeated", "short", "cool_down", "targets_until", "same_text"),
        lambda n: 0 <= n <= 1),
    "less than 2 to the power of 32": (("seed",), lambda n: n < 2**32),
}  # fmt: skip
"""What the fields of a recipe are checked for: what is expected, and of which."""
TASKS = ("pre-training", "masked-lm", "causal-lm")


@dataclass(frozen=True)
class Recipe:
    """The settings of one run. The same recipe, texts, Config and machine give the same weights."""

    steps: int = 4000
    batch: int = 32
    """Sequences of full length in a step; a step with shorter sequences has more of them."""
    matrix_rate: float = 0.02
    """Learning rate of the weights of attention and MLPs (Muon; Jordan et al. 2024)."""
    rate: float = 2e-3
    """Learning rate of embeddings, biases and LayerNorms (AdamW; Loshchilov and Hutter 2019)."""
    weight_decay: float = 0.1
    warm_up: int = 100
    """Steps at the start in which the learning rates grow from 0."""
    cool_down: float = 0.4
    """Share of the steps, at the end, in which the learning rates fall to 0."""
    clip: float = 1.0
    """The largest norm of the gradient of all weights together."""
    waves: float = 100.0
    """Longest wavelength / 2π, in tokens, of the sinusoids that positions start as; 0: random."""
    masked: float = 0.2
    """Share of the tokens that a masked LM predicts (Devlin et al. 2019 took 0.15)."""
    repeated: float = 0.25
    """Share of a causal LM's sequences that are repeated random tokens, which teach induction."""
    short: float = 0.25
    """Share of the steps with sequences of a quarter or an eighth of the length (16 tokens at
    least), half of them single texts."""
    same_text: float = 0.3
    """Next sentence: share of the unrelated second texts that come from another place in the same
    document. Without them a model can answer from the names in each document alone."""
    previous: float = 0.0
    """First weight of a loss on the last head of the first layer: −log of its attention to the
    previous token. With rotary positions and no biases nothing is the same in all queries and keys
    at first, and this head forms late or not at all."""
    induction: float = 0.0
    """First weight of a loss on the last head of layer 1: −log of its attention to the tokens
    after earlier occurrences of the same token."""
    targets_until: float = 0.9
    """Share of the steps during which these weights fall linearly to 0; then the heads are left to
    themselves, and may give up what they were taught."""
    seed: int = 0
    bfloat16: bool = True
    """Multiply matrices in bfloat16 (autocast); everything else stays float32."""
    threads: int = 1
    """Threads of the CPU. Their number changes how sums are split, and so the last bits."""
    log_every: int = 200
    """Steps between two lines of the log, each with the scores of all heads."""
    save_every: int = 200
    """Steps between two checkpoints, from which an interrupted run resumes."""

    def __post_init__(self) -> None:
        for expected, (names, fits) in _FIELDS.items():
            for name in names:
                value = getattr(self, name)
                if not (math.isfinite(value) and fits(value)):
                    raise TrainingError(f"{name}={value}: expected {expected}.")
        if self.masked == 0:
            raise TrainingError("masked=0.0: a masked LM that predicts no token learns nothing.")

    def pace(self, step: int) -> float:
        """The factor on the learning rates in this step: it rises to 1, stays, then falls to 0."""
        up = min(1.0, (step + 1) / max(1, self.warm_up))
        left = 1 - step / self.steps
        return up * (min(1.0, left / self.cool_down) if self.cool_down else 1.0)

    def targets_at(self, step: int) -> dict[str, float]:
        """The weights of the losses of single heads in this step, without those that are 0."""
        end = self.targets_until * self.steps
        left = 1 - step / end if step < end else 0.0
        weights = {name: getattr(self, name) * left for name in _TARGETS}
        return {name: weight for name, weight in weights.items() if weight}


def check_task(config: Config) -> None:
    """Raise TrainingError for a Config that cannot be trained here."""
    next_sentence = config.task == "pre-training"
    if (
        config.task not in TASKS
        or config.family == "roberta"
        or (next_sentence and config.family != "bert")
    ):
        raise TrainingError(
            f"A {config.family} with the task {config.task!r} cannot be trained here; expected "
            "causal-lm (gpt2, llama and their like), masked-lm (bert, distilbert, electra, albert) "
            "or pre-training, which is masked LM and next sentence (bert)."
        )
    if config.causal != (config.task == "causal-lm"):
        sight = "sees no later token" if config.causal else "sees later tokens"
        raise TrainingError(
            f"The task {config.task!r} does not fit a model that {sight}; "
            f"expected causal={not config.causal} (is_decoder in the config.json of a BERT)."
        )
    if next_sentence and not (config.pooler and config.n_segments > 1):
        raise TrainingError(
            f"Next-sentence prediction needs a pooler and two segments; this config has "
            f"pooler={config.pooler} and n_segments={config.n_segments} (type_vocab_size)."
        )
    if config.n_positions < 16:
        raise TrainingError(f"{config.n_positions} positions are too few; expected 16 or more.")
