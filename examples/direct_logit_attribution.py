"""Who writes the answer: a difference of two logits as the sum of what each part adds to it.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (the direct path), as Wang
et al. 2022 use it, section 3.1. The terms sum to the logits, so nothing is left out.
"""

import argparse

import torch

import minibert
from minibert.analysis import draws_for, why_logit

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-gpt2")
parser.add_argument("--plot", help="a file for the picture of the first prompt, as terms.svg")
options = parser.parse_args()

model = minibert.load(options.model)
# A list of random tokens begins again: the fourth comes next, and the sixth is no less likely.
ids = draws_for(model, length=7)[:8, :10]
right, wrong = ids[:, 3].tolist(), ids[:, 5].tolist()
trace = model.trace(ids)
found = [why_logit(trace, right[n], against=wrong[n], sentence=n) for n in range(len(ids))]

last, rows = trace.logits[:, -1], range(len(ids))
measured = (last[rows, right] - last[rows, wrong]).mean()
mean = torch.stack([each.values for each in found]).mean(0)
print(f"logit difference {measured:.3f}, sum of {len(mean)} terms {mean.sum():.3f}")
for number in mean.abs().argsort(descending=True)[:6]:
    print(f"{found[0].components[number]:14} {mean[number]:+.2f}")
for layer, heads in enumerate(torch.stack([each.by_head() for each in found]).mean(0)):
    print(f"heads of layer {layer}:", *(f"{value:+.2f}" for value in heads))
if options.plot:
    found[0].plot(options.plot)
