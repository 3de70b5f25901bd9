"""examples/sae_data.py with nnsight."""

import tempfile

import numpy as np
import torch
from nnsight import TransformersModel

from benchmarks.peers.given import model_folder, pairs

options = {"dtype": torch.float32, "dispatch": True}
model = TransformersModel(model_folder(), task="feature-extraction", **options)
texts, output = [text for pair in pairs() for text in pair], tempfile.mkdtemp()
for number, text in enumerate(texts):
    with torch.no_grad(), model.trace(text):
        values = model.encoder.layer[1].E_output.dense.output[0, 1:-1].save()
    np.save(f"{output}/{number}.npy", values.numpy())
x = torch.tensor(np.concatenate([np.load(f"{output}/{n}.npy") for n in range(len(texts))]))
print(f"{len(texts)} texts, {len(x)} tokens x {x.shape[1]} in {output}")

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
