"""examples/knockout.py with nnsight."""

import torch
from nnsight import TransformersModel

from benchmarks.peers.given import LIST, model_folder

torch.set_grad_enabled(False)
options = {"dtype": torch.float32, "attn_implementation": "eager", "dispatch": True}
model = TransformersModel(model_folder(), task="text-generation", **options)
ids = model.tokenizer(LIST, return_tensors="pt").input_ids
answer = model.tokenizer(" horse").input_ids[0]
subject, last = ids[0].tolist().index(answer), ids.shape[1] - 1
others = [place for place in range(1, last) if place != subject]
blocked = {"subject": [subject], "last token": [last], "all others": others}

with model.trace(ids):
    clean = model.output.logits[0, -1].softmax(-1)[answer].save()
print(f"p of the answer {clean:.3f}; its change, layer by layer, without a look at")
for name, keys in blocked.items():
    changes = []
    for layer in model.transformer.h:
        with model.trace(ids):
            args, given = layer.attn.inputs
            mask = given["attention_mask"].clone()
            mask[..., -1, keys] = -torch.inf
            layer.attn.inputs = (args, {**given, "attention_mask": mask})
            found = model.output.logits[0, -1].softmax(-1)[answer].save()
        changes.append((found - clean) / clean)
    print(f"{name:11}", *(f"{100 * share:+4.0f}%" for share in changes))
