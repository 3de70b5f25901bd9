"""examples/induction.py with nnsight."""

import nnsight
import torch
from nnsight import TransformersModel
from torch.nn.functional import cross_entropy

from benchmarks.peers.given import model_folder, repeats

torch.set_grad_enabled(False)
options = {"dtype": torch.float32, "attn_implementation": "eager", "dispatch": True}
model = TransformersModel(model_folder(), task="text-generation", **options)
count, length = 3, 30
ids = repeats(length, 16)
heads, width = model.config.n_head, model.config.n_embd // model.config.n_head
with model.trace(ids):
    patterns = nnsight.save([layer.attn.output[1] for layer in model.transformer.h])
scores = {}
for layer, pattern in enumerate(patterns):
    for head in range(heads):
        diagonal = pattern[:, head].diagonal(1 - length, 1, 2)[:, 1:]
        scores[layer, head] = diagonal.mean().item()
order = sorted(scores, key=lambda one: -scores[one])
others = [one for one in reversed(order) if one[0] >= order[0][0]][:count]
print("induction heads:", *(f"{n}-{h} {scores[n, h]:.2f}" for n, h in order[:count]))

for name, taken in (
    ("with all heads", []),
    ("without induction heads", order[:count]),
    ("without as many others", others),
):
    with model.trace(ids):
        # Modules are asked for in the order of the pass.
        for layer, head in sorted(taken):
            z = model.transformer.h[layer].attn.c_proj.input
            z[:, :, head * width : (head + 1) * width] = 0
        logits = model.output.logits[:, length - 1 : -1].save()
    loss = cross_entropy(logits.flatten(0, 1), ids[:, length:].flatten())
    print(f"loss of the second half, {name}: {loss:.2f}")
