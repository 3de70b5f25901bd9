"""Which retrieved passage an answer was read from: weight that it received, beside an ablation.

Jain and Wallace 2019, "Attention is not explanation": so each passage is also taken away, and what
the answer loses stands beside what the passage received. Passages here are lists of words; the
question begins one of them. The first token is a sink: it is left out of what is received.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import minibert

PASSAGES = [" river window summer horse", " garden letter morning bridge", " music stone paper"]
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default=Path(minibert.__file__).parent / "embedded" / "tiny-gpt2")
parser.add_argument("--passages", nargs="+", default=PASSAGES)
parser.add_argument("--question", default=" garden letter morning")
parser.add_argument("--answer", default=" bridge")
options = parser.parse_args()
tokenizer = AutoTokenizer.from_pretrained(options.model)
model = AutoModelForCausalLM.from_pretrained(options.model, dtype="float32").eval()
texts = [tokenizer(text).input_ids for text in (*options.passages, options.question)]
p_of = []
for left_out in (*range(len(options.passages)), None):
    ids = torch.tensor([[i for n, text in enumerate(texts) if n != left_out for i in text]])
    want = ("key_mass", tuple(range(ids.shape[1])))
    with torch.no_grad(), minibert.measuring(model, want=(want,)) as seen:
        logits = model(ids).logits[0, -1].log_softmax(-1)
    p_of.append(float(logits[tokenizer(options.answer).input_ids[0]]))
received = seen.result("key_mass").values[:, 0, :, -1]  # of the whole: layer, head, key
received[..., 0] = 0
for number, part in enumerate(received.split([len(text) for text in texts], -1)[:-1]):
    mass, lost = part.sum(-1), p_of[-1] - p_of[number]
    told = (
        f"{float(mass.mean()):.3f} of all heads, {float(mass.max()):.3f} of one, {lost:+.2f} nats"
    )
    print(f"{told}:{options.passages[number]}")
