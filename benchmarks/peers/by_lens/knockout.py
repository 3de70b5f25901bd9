"""examples/knockout.py with TransformerLens."""

import torch

from benchmarks.peers.given import LIST
from benchmarks.peers.hooked import load

model = load()
ids = model.to_tokens(LIST, prepend_bos=False)
answer = model.to_single_token(" horse")
subject, last = model.to_str_tokens(LIST, prepend_bos=False).index(" horse"), ids.shape[1] - 1
others = [place for place in range(1, last) if place != subject]
blocked = {"subject": [subject], "last token": [last], "all others": others}


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
