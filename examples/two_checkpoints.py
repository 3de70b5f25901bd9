"""What fine-tuning changes: two checkpoints of one model, head by head and layer by layer.

Kovaleva et al. 2019, "Revealing the dark secrets of BERT", section 4.2, compare the attention of
BERT before and after fine-tuning, and find that the last layers change most. Two checkpoints of a
training: --first EleutherAI/pythia-70m@step1000 --second EleutherAI/pythia-70m@step143000.
"""

import argparse

import torch

import minibert
from minibert.analysis import compare_models
from minibert.survey.sample_texts import SAMPLE_PAIRS

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--first", default="tiny-bert", help="name, or name@revision")
parser.add_argument("--second", help="name, or name@revision; none: the first, fine-tuned here")
options = parser.parse_args()


def load(given: str) -> minibert.Model:
    """The model of a name, at its revision where one stands behind an @."""
    name, _, revision = given.partition("@")
    return minibert.load(name, revision=revision or None)


first, texts = load(options.first), [text for pair in SAMPLE_PAIRS for text in pair]
second = load(options.second or options.first)
if not options.second:
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(second.train().parameters(), lr=1e-4)
    for _ in range(20):
        loss = second(texts[:12])[:, 1].logsumexp(-1).mean()
        optimizer.zero_grad(), loss.backward(), optimizer.step()
found = compare_models(first, second.eval(), texts[12:])
print("heads that changed most:", *(f"{n}-{h} {far:.3f}" for n, h, far in found.largest(4)))
print("attention, by layer:", *(f"{value:.3f}" for value in found.values.mean((1, 2))))
for name, row in zip(found.rows, found.streams.nanmean((1, 2)), strict=True):
    print(f"{name}: {row:.3f} of its length")
