"""examples/attribution_patching.py with TransformerLens."""

import torch

from benchmarks.peers.given import repeats
from benchmarks.peers.hooked import load

model = load()
clean = repeats(7, 4)[:, :10]
corrupt = clean[:, [0, 1, 2, 5, 4, 3, 6, 7, 8, 9]]
right, wrong, rows = clean[:, 3], clean[:, 5], torch.arange(len(clean))
layers, heads = model.cfg.n_layers, model.cfg.n_heads
names = [f"blocks.{n}.attn.hook_z" for n in range(layers)]


def metric(logits):
    return logits[rows, -1, right] - logits[rows, -1, wrong]


_, corrupt_cache = model.run_with_cache(corrupt)
gradients, values = {}, {}


def forward(value, hook):
    values[hook.name] = value.detach().clone()
    value.requires_grad_().register_hook(lambda g: gradients.update({hook.name: g}))
    return value


with torch.enable_grad():
    for parameter in model.parameters():
        parameter.requires_grad_()
    logits = model.run_with_hooks(clean, fwd_hooks=[(name, forward) for name in names])
    metric(logits).sum().backward()
start = metric(logits).detach()
moved = [(corrupt_cache[name] - values[name]) * gradients[name] for name in names]
guess = torch.stack(moved).sum(-1).mean(1).transpose(1, 2)  # layer head position
true = torch.zeros_like(guess)
for layer, name in enumerate(names):
    for head in range(heads):
        for place in range(clean.shape[1]):

            def put(value, hook, head=head, place=place):
                value[:, place, head] = corrupt_cache[hook.name][:, place, head]
                return value

            patched = metric(model.run_with_hooks(clean, fwd_hooks=[(name, put)]))
            true[layer, head, place] = (patched - start).mean()

print(f"z of {true.numel()} heads x tokens, the mean of {len(clean)} pairs")
for layer in (*range(layers), slice(None)):
    pair = torch.stack((guess[layer].flatten(), true[layer].flatten()))
    name = "all layers" if isinstance(layer, slice) else f"layer {layer}"
    print(f"{name}: correlation {torch.corrcoef(pair)[0, 1]:+.2f}", end=", largest estimate ")
    print(f"{pair[0].abs().max():.2f}, largest patch {pair[1].abs().max():.2f}")
