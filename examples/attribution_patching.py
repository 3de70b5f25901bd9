"""How good an estimate is: attribution patching against true patching, and their correlation.

Nanda 2023, "Attribution patching: activation patching at industrial scale", and Syed, Rager and
Conmy 2023: one backward pass estimates what a patch of any head at any token would do. Here each
of these patches is made as well. Where one moves a softmax that is nearly 1, the estimate is poor.
"""

import argparse

import torch

import minibert
from minibert.analysis import attribution_patching, draws_for, logit_difference, patch_positions

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-gpt2")
parser.add_argument("--name", default="z", choices=["z", "query", "key", "value"])
parser.add_argument("--pairs", type=int, default=4)
options = parser.parse_args()

model = minibert.load(options.model)
clean = draws_for(model, length=7)[: options.pairs, :10]
corrupt = clean[:, [0, 1, 2, 5, 4, 3, 6, 7, 8, 9]]
metric = logit_difference(clean[:, 3].tolist(), clean[:, 5].tolist())
traces = model.trace(clean), model.trace(corrupt)
estimates = attribution_patching(*traces, metric, quantities=(options.name,))
guess = estimates[options.name].values.mean(1)  # layer head position
sweep = patch_positions(*traces, metric, name=options.name, heads=True, positions=[-1])
true = sweep.mean

print(f"{options.name} of {true.numel()} heads x tokens, the mean of {options.pairs} pairs")
for layer in (*range(len(true)), slice(None)):
    pair = torch.stack((guess[layer].flatten(), true[layer].flatten()))
    name = "all layers" if isinstance(layer, slice) else f"layer {layer}"
    print(f"{name}: correlation {torch.corrcoef(pair)[0, 1]:+.2f}", end=", largest estimate ")
    print(f"{pair[0].abs().max():.2f}, largest patch {pair[1].abs().max():.2f}")
