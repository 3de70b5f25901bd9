"""examples/direct_logit_attribution.py with TransformerLens."""

import torch

from benchmarks.peers.given import repeats
from benchmarks.peers.hooked import load

model = load()
ids = repeats(7, 8)[:, :10]
right, wrong = ids[:, 3], ids[:, 5]
rows = torch.arange(len(ids))
logits, cache = model.run_with_cache(ids)
measured = (logits[rows, -1, right] - logits[rows, -1, wrong]).mean()

# TransformerLens' own attribution leaves biases and the norm's bias out: they are added by hand.
heads = cache.stack_head_results(layer=-1, pos_slice=-1)
names = [f"head {n}-{h}" for n in range(model.cfg.n_layers) for h in range(model.cfg.n_heads)]
mlps = [cache["mlp_out", n][:, -1] for n in range(model.cfg.n_layers)]
biases = [model.blocks[n].attn.b_O.expand_as(mlps[0]) for n in range(model.cfg.n_layers)]
embeds = [cache["hook_embed"][:, -1], cache["hook_pos_embed"][:, -1]]
stack = torch.cat((heads, torch.stack([*mlps, *biases, *embeds])))
names += [f"mlp {n}" for n in range(len(mlps))] + [f"b_O {n}" for n in range(len(mlps))]
names += ["embed", "position"]
scaled = cache.apply_ln_to_stack(stack, layer=-1, pos_slice=-1)
direction = (model.W_U[:, right] - model.W_U[:, wrong]).T
if hasattr(model.ln_final, "w"):
    direction = direction * model.ln_final.w
terms = (scaled * direction).sum(-1).mean(1)
ends = (model.b_U[right] - model.b_U[wrong]).mean()
if hasattr(model.ln_final, "b"):
    ends = ends + (model.ln_final.b @ (model.W_U[:, right] - model.W_U[:, wrong])).mean()
print(f"logit difference {measured:.3f}, sum of {len(names) + 1} terms {terms.sum() + ends:.3f}")
for index in terms.abs().argsort(descending=True)[:6].tolist():
    print(f"{names[index]:14} {terms[index]:+.2f}")
for layer, row in enumerate(terms[: heads.shape[0]].unflatten(0, (model.cfg.n_layers, -1))):
    print(f"heads of layer {layer}:", *(f"{value:+.2f}" for value in row))
