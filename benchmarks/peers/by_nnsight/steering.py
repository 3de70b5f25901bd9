"""examples/steering.py with nnsight."""

import torch
from nnsight import TransformersModel

from benchmarks.peers.given import LIST, OTHER_LIST, model_folder

torch.set_grad_enabled(False)
options = {"dtype": torch.float32, "dispatch": True}
model = TransformersModel(model_folder(), task="text-generation", **options)
layer, length = model.transformer.h[1], len(model.tokenizer(LIST).input_ids)
with model.trace() as tracer:
    with tracer.invoke(OTHER_LIST):
        toward = layer.output[:, -1].save()
    with tracer.invoke(LIST):
        away = layer.output[:, -1].save()
for factor in (0.0, 0.5, 1.0, 2.0):
    vector = factor * (toward - away)
    with model.generate(LIST, max_new_tokens=4, do_sample=False) as tracer:
        for _ in tracer.iter[:4]:
            layer.output += vector
        ids = tracer.result.save()
    print(f"{factor:.1f}:{model.tokenizer.decode(ids[0, length:])!r}")
