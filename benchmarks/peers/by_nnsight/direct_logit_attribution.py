"""examples/direct_logit_attribution.py with nnsight."""

import nnsight
import torch
from nnsight import TransformersModel

from benchmarks.peers.given import model_folder, repeats

torch.set_grad_enabled(False)
options = {"dtype": torch.float32, "dispatch": True}
model = TransformersModel(model_folder(), task="text-generation", **options)
ids = repeats(7, 8)[:, :10]
right, wrong = ids[:, 3], ids[:, 5]
rows, layers = torch.arange(len(ids)), list(model.transformer.h)
with model.trace(ids):
    embeds = nnsight.save([model.transformer.wte.output[:, -1]])
    embeds.append(model.transformer.wpe.output[:, -1].expand_as(embeds[0]))
    z, mlps = nnsight.save([]), nnsight.save([])
    for layer in layers:
        z.append(layer.attn.c_proj.input[:, -1].unflatten(-1, (model.config.n_head, -1)))
        mlps.append(layer.mlp.output[:, -1])
    stream = model.transformer.ln_f.input[:, -1].save()
    logits = model.output.logits[:, -1].save()
measured = (logits[rows, right] - logits[rows, wrong]).mean()

weights = [layer.attn.c_proj.weight.unflatten(0, (model.config.n_head, -1)) for layer in layers]
heads = [torch.einsum("bhd,hdm->hbm", *each) for each in zip(z, weights, strict=True)]
biases = [layer.attn.c_proj.bias.expand_as(stream) for layer in layers]
stack = torch.cat((*heads, torch.stack([*mlps, *biases, *embeds])))
names = [f"head {n}-{h}" for n in range(len(layers)) for h in range(model.config.n_head)]
names += [f"mlp {n}" for n in range(len(mlps))] + [f"b_O {n}" for n in range(len(mlps))]
names += ["embed", "position"]
norm = model.transformer.ln_f
scale = (stream.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
scaled = (stack - stack.mean(-1, keepdim=True)) / scale
direction = model.lm_head.weight[right] - model.lm_head.weight[wrong]
terms = (scaled * direction * norm.weight).sum(-1).mean(1)
ends = (direction @ norm.bias).mean()
print(f"logit difference {measured:.3f}, sum of {len(names) + 1} terms {terms.sum() + ends:.3f}")
for index in terms.abs().argsort(descending=True)[:6].tolist():
    print(f"{names[index]:14} {terms[index]:+.2f}")
for layer, row in enumerate(terms[: len(layers) * model.config.n_head].view(len(layers), -1)):
    print(f"heads of layer {layer}:", *(f"{value:+.2f}" for value in row))
