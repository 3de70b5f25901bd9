"""Activations for a sparse autoencoder, collected on the disk, and one trained on them.

Bricken et al. 2023, "Towards Monosemanticity", and Cunningham et al. 2023, "Sparse autoencoders
find highly interpretable features": MLP activations of every token of a corpus, then a dictionary
with an L1 penalty. Give --corpus for text of your own; without it a few sentences show the way.
"""

import argparse
import tempfile

import torch

import minibert
from minibert.survey import SAMPLE_PAIRS, collect, read_documents

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-bert")
parser.add_argument("--corpus", help="a text file, or a folder of them")
parser.add_argument("--output", default=tempfile.mkdtemp(), help="where the activations are kept")
options = parser.parse_args()

model = minibert.load(options.model)
sample = [text for pair in SAMPLE_PAIRS for text in pair]
texts = read_documents([options.corpus]) if options.corpus else sample
found = collect(model, texts, [("mlp_out", 1)], output=options.output, special=False)
x = torch.tensor(found.values("mlp_out", 1))
print(f"{len(found)} texts, {len(x)} tokens x {x.shape[1]} in {options.output}")

torch.manual_seed(0)
x, width = x - x.mean(0), x.shape[1]
encoder, decoder = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(301):
    codes = encoder(x).relu()
    error, penalty = (decoder(codes) - x).pow(2).sum(1).mean(), codes.abs().sum(1).mean()
    if step % 100 == 0:
        explained, used = 1 - error / x.pow(2).sum(1).mean(), (codes > 0).float().sum(1).mean()
        print(f"step {step}: {explained:.2f} of the variance, {used:.1f} features a token")
    optimizer.zero_grad(), (error + 0.03 * penalty).backward(), optimizer.step()
