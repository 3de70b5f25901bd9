"""examples/attribution_patching.py with nnsight."""

import nnsight
import torch
from nnsight import TransformersModel

from benchmarks.peers.given import model_folder, repeats

options = {"dtype": torch.float32, "dispatch": True}
model = TransformersModel(model_folder(), task="text-generation", **options)
clean = repeats(7, 4)[:, :10]
corrupt = clean[:, [0, 1, 2, 5, 4, 3, 6, 7, 8, 9]]
right, wrong, rows = clean[:, 3], clean[:, 5], torch.arange(len(clean))
attns, heads = [layer.attn for layer in model.transformer.h], model.config.n_head
width = model.config.n_embd // heads


def metric(logits):
    return logits[rows, -1, right] - logits[rows, -1, wrong]


with torch.no_grad(), model.trace(corrupt):
    corrupt_z = nnsight.save([attn.c_proj.input for attn in attns])
with model.trace(clean):
    clean_z = nnsight.save([attn.c_proj.input for attn in attns])
    start = metric(model.output.logits).save()
slopes = torch.autograd.grad(start.sum(), clean_z)
moved = [(b - a) * slope for a, b, slope in zip(clean_z, corrupt_z, slopes, strict=True)]
guess = torch.stack(moved).detach().unflatten(-1, (heads, width))  # layer batch position head width
guess = guess.sum(-1).mean(1).transpose(1, 2)  # layer head position
true = torch.zeros_like(guess)
torch.set_grad_enabled(False)
for layer, attn in enumerate(attns):
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        for place in range(clean.shape[1]):
            with model.trace(clean):
                attn.c_proj.input[:, place, part] = corrupt_z[layer][:, place, part]
                patched = metric(model.output.logits).save()
            true[layer, head, place] = (patched - start).mean()

print(f"z of {true.numel()} heads x tokens, the mean of {len(clean)} pairs")
for layer in (*range(len(attns)), slice(None)):
    pair = torch.stack((guess[layer].flatten(), true[layer].flatten()))
    name = "all layers" if isinstance(layer, slice) else f"layer {layer}"
    print(f"{name}: correlation {torch.corrcoef(pair)[0, 1]:+.2f}", end=", largest estimate ")
    print(f"{pair[0].abs().max():.2f}, largest patch {pair[1].abs().max():.2f}")
