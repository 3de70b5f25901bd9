"""A classifier fine-tuned, measured on sentences it never saw, explained and saved.

Devlin et al. 2019, section 4: a fresh head on a pre-trained body, all weights trained; Chefer
et al. 2021: the words an answer came from. No noun of the test has met its adjective in training.
"""

import argparse
import random
import tempfile

import torch
from torch.nn.functional import cross_entropy

import minibert
from minibert.analysis import relevance_of

ADJECTIVES = {"negative": ("bad", "cold", "dark"), "positive": ("good", "warm", "great")}
NOUNS, LABELS = ("house", "water", "book", "city", "night", "horse"), list(ADJECTIVES)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-bert")
name = parser.parse_args().model
both = [(f"the {n} was {a} .", k) for k in LABELS for n in NOUNS for a in ADJECTIVES[k]]
random.Random(0).shuffle(both)
(texts, answers), (new_texts, new) = (zip(*part, strict=True) for part in (both[:24], both[24:]))

torch.manual_seed(0)
model = minibert.load(name, task="sequence-classification", labels=LABELS, head_seed=0).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(30):
    loss = cross_entropy(model(list(texts)), torch.tensor([*map(LABELS.index, answers)]))
    optimizer.zero_grad(), loss.backward(), optimizer.step()
guesses = [LABELS[n] for n in model.eval()(list(new_texts)).argmax(1)]
print(f"loss {loss:.3f}; {sum(map(str.__eq__, guesses, new))} of {len(new)} new sentences right")
trace = model.trace(new_texts[0], grad=True)
trace.backward(trace.logits[0, LABELS.index(new[0])])
order = relevance_of(trace, 0).values[0, 0].argsort(descending=True).tolist()
because = [trace.tokens.strings[0][n] for n in order if not trace.tokens.special[0][n]]
print(f"{new[0]} because of", *because)
again = minibert.load(model.save(tempfile.mkdtemp()))
print("saved and loaded the same:", torch.equal(again(new_texts[0]), model(new_texts[0])))
