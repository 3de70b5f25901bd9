"""examples/indirect_object.py with TransformerLens."""

import torch

from benchmarks.peers.given import repeats
from benchmarks.peers.hooked import load

model = load()
clean = repeats(7, 8)[:, :10]
corrupt = clean[:, [0, 1, 2, 5, 4, 3, 6, 7, 8, 9]]
right, wrong = clean[:, 3], clean[:, 5]
layers, heads, rows = model.cfg.n_layers, model.cfg.n_heads, torch.arange(len(clean))
logits, clean_cache = model.run_with_cache(clean)
corrupt_logits, corrupt_cache = model.run_with_cache(corrupt)


def metric(logits):
    return (logits[rows, -1, right] - logits[rows, -1, wrong]).mean()


def put(cache, head):
    def hook(value, hook):
        if head is None:
            # The next hook writes into what this one returns.
            return cache[hook.name].clone()
        value[:, :, head] = cache[hook.name][:, :, head]
        return value

    return hook


def z(layer):
    return f"blocks.{layer}.attn.hook_z"


def paths(receiver):
    """The change for each sender, by way of one receiver: a hook's name and head, or the logits."""
    change = torch.zeros(layers, heads)
    for layer in range(layers):
        for head in range(heads):
            frozen = [(z(n), put(clean_cache, None)) for n in range(layer, layers)]
            sent = [*frozen, (z(layer), put(corrupt_cache, head))]
            if receiver is None:
                value = metric(model.run_with_hooks(clean, fwd_hooks=sent))
            else:
                name, at = receiver
                found = {}
                keep = (name, lambda v, hook, found=found: found.update({hook.name: v.clone()}))
                model.run_with_hooks(clean, fwd_hooks=[*sent, keep])
                value = metric(model.run_with_hooks(clean, fwd_hooks=[(name, put(found, at))]))
            change[layer, head] = value - metric(logits)
    return change


first, second = metric(logits), metric(corrupt_logits)
print(f"logit difference {first:+.2f}, corrupt {second:+.2f}, {len(clean)} pairs")
patched = torch.zeros(layers, heads)
for layer in range(layers):
    for head in range(heads):
        hooks = [(z(layer), put(corrupt_cache, head))]
        patched[layer, head] = metric(model.run_with_hooks(clean, fwd_hooks=hooks)) - first
largest = [divmod(int(n), heads) for n in patched.flatten().abs().argsort(descending=True)[:4]]
print("patched:", *(f"{n}-{h} {patched[n, h]:+.2f}" for n, h in largest))
direct = paths(None)
layer, head = divmod(int(direct.abs().argmax()), heads)
print(f"on its own path to the logits: {layer}-{head} {direct[layer, head]:+.2f}")
for name in ("query", "key", "value"):
    change = paths((f"blocks.{layer}.attn.hook_{name[0]}", head))
    sender = divmod(int(change.abs().argmax()), heads)
    print(f"by way of the {name} of {layer}-{head}: {sender[0]}-{sender[1]} {change[sender]:+.2f}")
