"""examples/causal_tracing.py with TransformerLens."""

import torch

from benchmarks.peers.given import LIST, noises
from benchmarks.peers.hooked import load

model = load()
ids = model.to_tokens(LIST, prepend_bos=False)
subject = model.to_str_tokens(LIST, prepend_bos=False).index(" horse")
answer = model.to_single_token(" horse")
layers, length, samples = model.cfg.n_layers, ids.shape[1], 10
logits, cache = model.run_with_cache(ids)
noise = 3 * model.W_E[ids[0, subject]].std() * noises(samples, 1, model.cfg.d_model)[:, 0]


def corrupt(embed, hook):
    embed[:, subject] += noise
    return embed


def corrupted(hooks):
    fwd_hooks = [("hook_embed", corrupt), *hooks]
    logits = model.run_with_hooks(ids.expand(samples, -1), fwd_hooks=fwd_hooks)
    return logits[:, -1].softmax(-1)[:, answer].mean()


kinds = {
    "last subject token": [subject],
    "first token after": [subject + 1],
    "further tokens": list(range(subject + 2, length - 1)),
    "last token": [length - 1],
}
start = corrupted([])
print(f"p: clean {logits[0, -1].softmax(-1)[answer]:.3f}, subject with noise {start:.3f}")
for name in ("resid_post", "mlp_out", "attn_out"):
    change = torch.zeros(layers, length)
    for layer in range(layers):
        for place in range(length):

            def restore(value, hook, place=place):
                value[:, place] = cache[hook.name][:, place]
                return value

            hooks = [(f"blocks.{layer}.hook_{name}", restore)]
            change[layer, place] = corrupted(hooks) - start
    layer, place = divmod(int(change.argmax()), length)
    print(f"{name}: most at layer {layer}, token {place}, {change[layer, place]:+.3f}")
    for kind, places in kinds.items():
        print(f"   {kind:22}", *(f"{value:+.2f}" for value in change[:, places].mean(1)))
