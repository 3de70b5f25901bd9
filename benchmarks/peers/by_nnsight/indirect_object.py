"""examples/indirect_object.py with nnsight."""

import nnsight
import torch
from nnsight import TransformersModel

from benchmarks.peers.given import model_folder, repeats

torch.set_grad_enabled(False)
options = {"dtype": torch.float32, "dispatch": True}
model = TransformersModel(model_folder(), task="text-generation", **options)
clean = repeats(7, 8)[:, :10]
corrupt = clean[:, [0, 1, 2, 5, 4, 3, 6, 7, 8, 9]]
right, wrong, rows = clean[:, 3], clean[:, 5], torch.arange(len(clean))
attns, heads = [layer.attn for layer in model.transformer.h], model.config.n_head
layers, width = len(attns), model.config.n_embd // heads


def metric(logits):
    return (logits[rows, -1, right] - logits[rows, -1, wrong]).mean()


def part(head):
    return slice(head * width, (head + 1) * width)


def run(ids):
    """The metric, and z of each layer."""
    with model.trace(ids):
        z = nnsight.save([attn.c_proj.input for attn in attns])
        value = metric(model.output.logits).save()
    return value, z


def paths(receiver):
    """The change for each sender, by way of one receiver: a layer and columns, or the logits."""
    change = torch.zeros(layers, heads)
    at, columns = receiver or (None, None)
    for layer in range(layers if receiver is None else at):
        for head in range(heads):
            with model.trace(clean):
                for n in range(layer, layers):
                    if n == at:
                        found = attns[n].c_attn.output[..., columns].save()
                    z = clean_z[n].clone()
                    if n == layer:
                        z[..., part(head)] = corrupt_z[n][..., part(head)]
                    attns[n].c_proj.input = z
                value = metric(model.output.logits).save()
            if receiver:
                with model.trace(clean):
                    attns[at].c_attn.output[..., columns] = found
                    value = metric(model.output.logits).save()
            change[layer, head] = value - first
    return change


(first, clean_z), (second, corrupt_z) = run(clean), run(corrupt)
print(f"logit difference {first:+.2f}, corrupt {second:+.2f}, {len(clean)} pairs")
patched = torch.zeros(layers, heads)
for layer in range(layers):
    for head in range(heads):
        with model.trace(clean):
            attns[layer].c_proj.input[..., part(head)] = corrupt_z[layer][..., part(head)]
            value = metric(model.output.logits).save()
        patched[layer, head] = value - first
largest = [divmod(int(n), heads) for n in patched.flatten().abs().argsort(descending=True)[:4]]
print("patched:", *(f"{n}-{h} {patched[n, h]:+.2f}" for n, h in largest))
direct = paths(None)
layer, head = divmod(int(direct.abs().argmax()), heads)
print(f"on its own path to the logits: {layer}-{head} {direct[layer, head]:+.2f}")
for number, name in enumerate(("query", "key", "value")):
    change = paths((layer, part(number * heads + head)))
    sender = divmod(int(change.abs().argmax()), heads)
    print(f"by way of the {name} of {layer}-{head}: {sender[0]}-{sender[1]} {change[sender]:+.2f}")
