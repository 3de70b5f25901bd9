"""examples/induction.py with TransformerLens."""

from torch.nn.functional import cross_entropy

from benchmarks.peers.given import repeats
from benchmarks.peers.hooked import load

model = load()
count, length = 3, 30
ids = repeats(length, 16)
layers, heads = model.cfg.n_layers, model.cfg.n_heads
_, cache = model.run_with_cache(ids)
scores = {}
for layer in range(layers):
    pattern = cache["pattern", layer]
    for head in range(heads):
        diagonal = pattern[:, head].diagonal(1 - length, 1, 2)[:, 1:]
        scores[layer, head] = diagonal.mean().item()
order = sorted(scores, key=lambda one: -scores[one])
others = [one for one in reversed(order) if one[0] >= order[0][0]][:count]
print("induction heads:", *(f"{n}-{h} {scores[n, h]:.2f}" for n, h in order[:count]))


def without(head):
    def hook(z, hook):
        z[:, :, head] = 0
        return z

    return hook


for name, taken in (
    ("with all heads", []),
    ("without induction heads", order[:count]),
    ("without as many others", others),
):
    hooks = [(f"blocks.{n}.attn.hook_z", without(h)) for n, h in taken]
    logits = model.run_with_hooks(ids, fwd_hooks=hooks)[:, length - 1 : -1]
    loss = cross_entropy(logits.flatten(0, 1), ids[:, length:].flatten())
    print(f"loss of the second half, {name}: {loss:.2f}")
