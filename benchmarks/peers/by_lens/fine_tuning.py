"""examples/fine_tuning.py with TransformerLens."""

import random
import tempfile

import torch
from torch.nn.functional import cross_entropy

from benchmarks.peers.given import head_weights
from benchmarks.peers.hooked import load

ADJECTIVES = {"negative": ("bad", "cold", "dark"), "positive": ("good", "warm", "great")}
NOUNS, LABELS = ("house", "water", "book", "city", "night", "horse"), list(ADJECTIVES)
both = [(f"the {n} was {a} .", k) for k in LABELS for n in NOUNS for a in ADJECTIVES[k]]
random.Random(0).shuffle(both)
(texts, answers), (new_texts, new) = (zip(*part, strict=True) for part in (both[:24], both[24:]))


class Classifier(torch.nn.Module):
    """HookedEncoder has heads for masked words and next sentences alone."""

    def __init__(self):
        super().__init__()
        self.encoder = load()
        self.head = torch.nn.Linear(self.encoder.cfg.d_model, len(LABELS))
        self.head.weight.data = head_weights(len(LABELS), self.encoder.cfg.d_model)
        self.head.bias.data.zero_()

    def forward(self, texts):
        ids, types, mask = self.encoder.to_tokens(list(texts))
        states = self.encoder.encoder_output(ids, types, mask)
        return self.head(self.encoder.pooler(states))


torch.manual_seed(0)
model = Classifier()
torch.set_grad_enabled(True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(30):
    loss = cross_entropy(model(texts), torch.tensor([*map(LABELS.index, answers)]))
    optimizer.zero_grad(), loss.backward(), optimizer.step()
guesses = [LABELS[n] for n in model(new_texts).argmax(1)]
print(f"loss {loss:.3f}; {sum(map(str.__eq__, guesses, new))} of {len(new)} new sentences right")

patterns = []
with model.encoder.hooks(
    fwd_hooks=[(lambda name: name.endswith("pattern"), lambda p, hook: patterns.append(p))]
):
    logit = model(new_texts[:1])[0, LABELS.index(new[0])]
row = torch.eye(patterns[0].shape[-1])[0]
slopes = torch.autograd.grad(logit, patterns)
for pattern, slope in zip(reversed(patterns), reversed(slopes), strict=True):
    row = row + row @ (pattern * slope)[0].clamp(min=0).mean(0)
strings = model.encoder.tokenizer.tokenize(new_texts[0], add_special_tokens=True)
order = [n for n in row.argsort(descending=True).tolist() if strings[n] not in ("[CLS]", "[SEP]")]
print(f"{new[0]} because of", *(strings[n] for n in order))
path = f"{tempfile.mkdtemp()}/classifier.pt"
torch.save(model.state_dict(), path)
again = Classifier()
again.load_state_dict(torch.load(path))
print("saved and loaded the same:", torch.equal(again(new_texts[:1]), model(new_texts[:1])))
