"""examples/two_checkpoints.py --second FOLDER with TransformerLens."""

import torch

from benchmarks.peers.given import pairs, second_folder
from benchmarks.peers.hooked import load

models = load(), load(second_folder())
layers, heads = models[0].cfg.n_layers, models[0].cfg.n_heads
streams = {"embed": "hook_full_embed"}
streams |= {f"resid_post {n}": f"blocks.{n}.hook_normalized_resid_post" for n in range(layers)}
apart, moved = [], {row: [] for row in streams}
for text in [text for pair in pairs() for text in pair][12:]:
    one, other = (model.run_with_cache(text)[1] for model in models)
    found = [(one["pattern", n] - other["pattern", n]).abs().sum(-1)[0] for n in range(layers)]
    apart.append(torch.stack(found).mean(-1) / 2)
    for row, name in streams.items():
        moved[row].append((other[name] - one[name]).norm(dim=-1)[0] / one[name].norm(dim=-1)[0])
mean = torch.stack(apart).mean(0)  # layer head
largest = [divmod(int(n), heads) for n in mean.flatten().argsort(descending=True)[:4]]
print("heads that changed most:", *(f"{n}-{h} {mean[n, h]:.3f}" for n, h in largest))
print("attention, by layer:", *(f"{value:.3f}" for value in mean.mean(1)))
for row, found in moved.items():
    print(f"{row}: {torch.cat(found).mean():.3f} of its length")
