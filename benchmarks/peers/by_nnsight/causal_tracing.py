"""examples/causal_tracing.py with nnsight."""

import nnsight
import torch
from nnsight import TransformersModel

from benchmarks.peers.given import LIST, model_folder, noises

torch.set_grad_enabled(False)
options = {"dtype": torch.float32, "dispatch": True}
model = TransformersModel(model_folder(), task="text-generation", **options)
ids = model.tokenizer(LIST, return_tensors="pt").input_ids
answer = model.tokenizer(" horse").input_ids[0]
subject, length, samples = ids[0].tolist().index(answer), ids.shape[1], 10
layers, embed = model.transformer.h, model.transformer.wte
noise = 3 * embed.weight[answer].std() * noises(samples, 1, model.config.n_embd)[:, 0]
points = {
    "resid_post": lambda layer: layer.output,
    "mlp_out": lambda layer: layer.mlp.output,
    "attn_out": lambda layer: layer.attn.output[0],
}
kinds = {
    "last subject token": [subject],
    "first token after": [subject + 1],
    "further tokens": list(range(subject + 2, length - 1)),
    "last token": [length - 1],
}


def p(logits):
    return logits[:, -1].softmax(-1)[:, answer].mean()


with model.trace(ids.expand(samples, -1)):
    embed.output[:, subject] += noise
    start = p(model.output.logits).save()
for name, point in points.items():
    with model.trace(ids):
        clean = nnsight.save([point(layer) for layer in layers])
        told = p(model.output.logits).save()
    if name == "resid_post":
        print(f"p: clean {told:.3f}, subject with noise {start:.3f}")
    change = torch.zeros(len(layers), length)
    for number, layer in enumerate(layers):
        for place in range(length):
            with model.trace(ids.expand(samples, -1)):
                embed.output[:, subject] += noise
                point(layer)[:, place] = clean[number][:, place]
                found = p(model.output.logits).save()
            change[number, place] = found - start
    number, place = divmod(int(change.argmax()), length)
    print(f"{name}: most at layer {number}, token {place}, {change[number, place]:+.3f}")
    for kind, places in kinds.items():
        print(f"   {kind:22}", *(f"{value:+.2f}" for value in change[:, places].mean(1)))
