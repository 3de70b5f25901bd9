"""examples/two_checkpoints.py --second FOLDER with nnsight."""

import nnsight
import torch
from nnsight import TransformersModel

from benchmarks.peers.given import model_folder, pairs, second_folder

torch.set_grad_enabled(False)
options = {"dtype": torch.float32, "attn_implementation": "eager", "dispatch": True}
first, second = (
    TransformersModel(folder, task="feature-extraction", **options)
    for folder in (model_folder(), second_folder())
)


def states(model, given):
    """The attention of each layer, the embeddings and the stream behind each layer."""
    with model.trace(given):
        patterns, streams = nnsight.save([]), nnsight.save([model.embeddings.output[0]])
        for layer in model.encoder.layer:
            patterns.append(layer.attention.self.output[1][0])
            streams.append(layer.output[0])
    return torch.stack(patterns), torch.stack(streams)


apart, moved = [], []
for text in [text for pair in pairs() for text in pair][12:]:
    given = first.tokenizer(text, return_tensors="pt")
    (patterns, streams), (others, changed) = states(first, given), states(second, given)
    apart.append((patterns - others).abs().sum(-1).mean(-1) / 2)
    moved.append((changed - streams).norm(dim=-1) / streams.norm(dim=-1))
mean, heads = torch.stack(apart).mean(0), first.config.num_attention_heads
largest = [divmod(int(n), heads) for n in mean.flatten().argsort(descending=True)[:4]]
print("heads that changed most:", *(f"{n}-{h} {mean[n, h]:.3f}" for n, h in largest))
print("attention, by layer:", *(f"{value:.3f}" for value in mean.mean(1)))
for number, row in enumerate(torch.cat(moved, 1).mean(1)):
    print(f"{f'resid_post {number - 1}' if number else 'embed'}: {row:.3f} of its length")
