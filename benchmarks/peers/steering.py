"""examples/steering.py with TransformerLens."""

import torch
from tiny import load

model, encode, decode = load()
toward = encode(" river window garden horse summer letter morning river window summer")
away = encode(" river window summer horse garden letter morning river window summer")
name = "blocks.1.hook_resid_post"
ends = [model.run_with_cache(ids)[1][name][:, -1] for ids in (toward, away)]
for factor in (0.0, 0.5, 1.0, 2.0):
    ids = away
    for _ in range(4):

        def add(stream, hook, factor=factor):
            return stream + factor * (ends[0] - ends[1])

        logits = model.run_with_hooks(ids, fwd_hooks=[(name, add)])
        ids = torch.cat((ids, logits[:, -1].argmax(-1, keepdim=True)), 1)
    print(f"{factor:.1f}:{decode(ids[0, away.shape[1] :].tolist())!r}")
