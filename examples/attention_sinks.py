"""Attention sinks of a model while it generates.

Xiao et al. 2024, "Efficient streaming language models with attention sinks", section 3.1: the first
tokens get much of every later query's weight, whatever they say. Here the share of the first four
keys is measured for every token that is written, in any model of transformers.
"""

import argparse
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import minibert

EMBEDDED = Path(minibert.__file__).parent / "embedded"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default=EMBEDDED / "tiny-gpt2", help="a folder, or a name")
parser.add_argument("--prompt", default="the sun rises in the")
parser.add_argument("--new", type=int, default=32, help="tokens to write")
parser.add_argument("--share", type=float, default=0.3, help="mean weight that makes a sink")
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(options.model)
model = AutoModelForCausalLM.from_pretrained(options.model, dtype="float32").eval()
inputs = tokenizer(options.prompt, return_tensors="pt")
written = {"max_new_tokens": options.new, "do_sample": False, "eos_token_id": None}
with minibert.measuring(model, want=("entropy", "received", ("key_mass", (0, 1, 2, 3)))) as seen:
    model.generate(**inputs, **written)
start = inputs.input_ids.shape[1]
new = seen.result("key_mass").values[:, 0, :, start:].sum(-1)  # layer, head, token
entropies = seen.result("entropy").values[:, 0, :, start:].mean((1, 2))
for layer, (shares, nats) in enumerate(zip(new.mean(-1), entropies, strict=True)):
    heads = " ".join(f"{100 * share:5.1f}%" for share in shares)
    print(f"layer {layer}: first four keys {heads}; entropy {nats:.3f} nats")
half = new.shape[-1] // 2
print(f"early {float(new[..., :half].mean()):.3f}, late {float(new[..., half:].mean()):.3f}")
for sink in seen.sinks(options.share):
    print(
        f"sink: layer {sink.layer} head {sink.head} key {sink.key}, {sink.share:.2f} of its weight"
    )
