"""examples/steering.py with TransformerLens."""

import torch

from benchmarks.peers.given import LIST, OTHER_LIST
from benchmarks.peers.hooked import load

model = load()
toward, away = (model.to_tokens(text, prepend_bos=False) for text in (OTHER_LIST, LIST))
name = "blocks.1.hook_resid_post"
ends = [model.run_with_cache(ids)[1][name][:, -1] for ids in (toward, away)]
for factor in (0.0, 0.5, 1.0, 2.0):
    ids = away
    for _ in range(4):

        def add(stream, hook, factor=factor):
            return stream + factor * (ends[0] - ends[1])

        logits = model.run_with_hooks(ids, fwd_hooks=[(name, add)])
        ids = torch.cat((ids, logits[:, -1].argmax(-1, keepdim=True)), 1)
    print(f"{factor:.1f}:{model.to_string(ids[0, away.shape[1] :])!r}")
