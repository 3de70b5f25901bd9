"""examples/sae_data.py with TransformerLens."""

import tempfile

import numpy as np
import torch

from benchmarks.peers.given import pairs
from benchmarks.peers.hooked import load

model, output = load(), tempfile.mkdtemp()
texts = [text for pair in pairs() for text in pair]
name = "blocks.1.hook_mlp_out"
for number, text in enumerate(texts):
    _, cache = model.run_with_cache(text, names_filter=name)
    np.save(f"{output}/{number}.npy", cache[name][0, 1:-1].numpy())
x = torch.tensor(np.concatenate([np.load(f"{output}/{n}.npy") for n in range(len(texts))]))
print(f"{len(texts)} texts, {len(x)} tokens x {x.shape[1]} in {output}")

torch.set_grad_enabled(True)
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
