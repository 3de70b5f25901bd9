"""examples/knockout.py with TransformerLens."""

import torch
from tiny import load

model, encode, decode = load()
ids = encode(" river window summer horse garden letter morning river window summer")
answer = int(encode(" horse")[0, 0])
subject = [n for n, one in enumerate(ids[0].tolist()) if decode([one]).strip() == "horse"]
last = ids.shape[1] - 1
others = [place for place in range(1, last) if place not in subject]
blocked = {"subject": subject, "last token": [last], "all others": others}


def hide(keys):
    def hook(scores, hook):
        scores[:, :, -1, keys] = -torch.inf
        return scores

    return hook


clean = model(ids)[0, -1].softmax(-1)[answer]
print(f"p of the answer {clean:.3f}; its change, layer by layer, without a look at")
for name, keys in blocked.items():
    changes = []
    for layer in range(model.cfg.n_layers):
        hooks = [(f"blocks.{layer}.attn.hook_attn_scores", hide(keys))]
        found = model.run_with_hooks(ids, fwd_hooks=hooks)[0, -1].softmax(-1)[answer]
        changes.append((found - clean) / clean)
    print(f"{name:11}", *(f"{100 * share:+4.0f}%" for share in changes))
