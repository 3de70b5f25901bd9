"""When attention entropy collapses in training, by a callback of transformers' Trainer.

Zhai et al. 2023, "Stabilizing transformer training by preventing attention entropy collapse":
entropy near 0 goes with a loss that no longer falls. Needs accelerate; `--rate 0.3` collapses.
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from minibert.transformers_callback import EntropyCallback

parser = argparse.ArgumentParser(description=__doc__)
for name, value in {"--steps": 300, "--every": 100, "--rate": 1e-3}.items():
    parser.add_argument(name, type=type(value), default=value)
options = parser.parse_args()
texts = torch.randint(0, 64, (64, 16)).repeat(1, 2)  # the second half says the first again


def told(entry):
    """Print the mean entropy of each layer."""
    means = (sum(layer) / len(layer) for layer in entry["entropy"])
    print(f"step {entry['step']}:", *(f"{nats:.3f}" for nats in means), "nats")


sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0))
rows = [{"input_ids": text, "labels": text} for text in texts]
given = {"max_steps": options.steps, "learning_rate": options.rate, "disable_tqdm": True}
with tempfile.TemporaryDirectory() as folder:
    given = TrainingArguments(folder, **given)
    watch = EntropyCallback({"input_ids": texts[:8]}, options.every, told)
    Trainer(model, given, None, rows, callbacks=[watch]).train()
