"""When attention entropy collapses in training, by a callback of transformers' Trainer.

Zhai et al. 2023, "Stabilizing transformer training by preventing attention entropy collapse":
entropy near 0 goes with a loss that no longer falls. Needs accelerate; `--rate 0.3` collapses.
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import minibert

parser = argparse.ArgumentParser(description=__doc__)
for name, value in {"--steps": 300, "--every": 100, "--rate": 1e-3}.items():
    parser.add_argument(name, type=type(value), default=value)
options = parser.parse_args()
texts = torch.randint(0, 64, (64, 16)).repeat(1, 2)  # the second half says the first again


class EntropyWatch(TrainerCallback):
    """Prints the mean entropy of each layer over eight texts."""

    def on_step_end(self, args, state, control, model, **more):
        """Measure eight texts."""
        if state.global_step % options.every == 0:
            with torch.no_grad(), minibert.measuring(model.eval(), want=("entropy",)) as seen:
                model(texts[:8])
            layers = seen.result("entropy").values.mean((1, 2, 3))
            print(f"step {state.global_step}:", *(f"{float(nats):.3f}" for nats in layers), "nats")


sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0))
rows = [{"input_ids": text, "labels": text} for text in texts]
given = {"max_steps": options.steps, "learning_rate": options.rate, "disable_tqdm": True}
with tempfile.TemporaryDirectory() as folder:
    given = TrainingArguments(folder, **given)
    Trainer(model, given, None, rows, callbacks=[EntropyWatch()]).train()
