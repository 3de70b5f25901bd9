"""A callback of transformers' Trainer: the entropy of every head, each 100 steps.

    watch = EntropyCallback({"input_ids": ids}, every=100)
    Trainer(model, ..., callbacks=[watch]).train()
    watch.history[-1]["entropy"]          # layer, head: nats

Near 0, every query looks at one key, and training no longer gets on (Zhai et al. 2023, "Stabilizing
transformer training by preventing attention entropy collapse").
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from minibert.attached.measuring import measuring
from minibert.untrusted import Json


class EntropyCallback(TrainerCallback):
    """Measures the same inputs each `every` steps, in evaluation mode and without gradients.

    `inputs` are the keywords of one call of the model, with input_ids and what belongs to them.
    Each entry, {"step": 100, "entropy": [[nats of each head] of each layer]}, goes to `history`, to
    the log of the Trainer, which its checkpoints have, and to `note`, if it is given.
    """

    def __init__(
        self,
        inputs: Mapping[str, Tensor],
        every: int = 100,
        note: Callable[[Json], object] = lambda entry: None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every}: expected 1 or more steps.")
        self.inputs, self.every, self.note = inputs, every, note
        self.history: list[Json] = []

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **more: Any
    ) -> None:
        """Measure, where the step is one of those."""
        if state.global_step % self.every:
            return
        self.history.append({"step": state.global_step, "entropy": entropies(model, self.inputs)})
        state.log_history.append(self.history[-1])
        self.note(self.history[-1])


def entropies(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[list[float]]:
    """The mean entropy of each layer and head in nats; the model's mode stays as it was."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        with torch.no_grad(), measuring(model, want=("entropy",)) as seen:
            model(**{name: one.to(device) for name, one in inputs.items()})
    finally:
        model.train(training)
    rows = seen.table()
    sizes = [1 + int(rows[-1][name]) for name in ("layer", "batch", "head")]
    found: list[list[float]] = (
        torch.tensor([row["entropy"] for row in rows]).view(sizes).mean(1).tolist()
    )
    return found
