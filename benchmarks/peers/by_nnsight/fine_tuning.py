"""examples/fine_tuning.py with nnsight."""

import random
import tempfile

import nnsight
import torch
from nnsight import TransformersModel
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.peers.given import head_weights, model_folder

ADJECTIVES = {"negative": ("bad", "cold", "dark"), "positive": ("good", "warm", "great")}
NOUNS, LABELS = ("house", "water", "book", "city", "night", "horse"), list(ADJECTIVES)
both = [(f"the {n} was {a} .", k) for k in LABELS for n in NOUNS for a in ADJECTIVES[k]]
random.Random(0).shuffle(both)
(texts, answers), (new_texts, new) = (zip(*part, strict=True) for part in (both[:24], both[24:]))

torch.manual_seed(0)
options = {"dtype": torch.float32, "attn_implementation": "eager"}
inner = AutoModelForSequenceClassification.from_pretrained(model_folder(), num_labels=2, **options)
inner.classifier.weight.data = head_weights(*inner.classifier.weight.shape)
inner.classifier.bias.data.zero_()
tokenizer = AutoTokenizer.from_pretrained(model_folder())
model = TransformersModel(inner, tokenizer=tokenizer, task="text-classification")


def logits_of(model, texts):
    return model(**tokenizer(list(texts), padding=True, return_tensors="pt")).logits


inner.train()
optimizer = torch.optim.AdamW(inner.parameters(), lr=1e-3)
for _ in range(30):
    loss = cross_entropy(logits_of(inner, texts), torch.tensor([*map(LABELS.index, answers)]))
    optimizer.zero_grad(), loss.backward(), optimizer.step()
inner.eval()
guesses = [LABELS[n] for n in logits_of(inner, new_texts).argmax(1)]
print(f"loss {loss:.3f}; {sum(map(str.__eq__, guesses, new))} of {len(new)} new sentences right")

with model.trace(new_texts[0]):
    patterns = nnsight.save([one.attention.self.output[1] for one in model.bert.encoder.layer])
    logit = model.output.logits[0, LABELS.index(new[0])].save()
slopes = torch.autograd.grad(logit, patterns)
row = torch.eye(patterns[0].shape[-1])[0]
for pattern, slope in zip(reversed(patterns), reversed(slopes), strict=True):
    row = row + row @ (pattern * slope)[0].clamp(min=0).mean(0)
strings = tokenizer.tokenize(new_texts[0], add_special_tokens=True)
order = [n for n in row.argsort(descending=True).tolist() if strings[n] not in ("[CLS]", "[SEP]")]
print(f"{new[0]} because of", *(strings[n] for n in order))
folder = tempfile.mkdtemp()
inner.save_pretrained(folder)
again = AutoModelForSequenceClassification.from_pretrained(folder, **options)
same = torch.equal(logits_of(again, new_texts[:1]), logits_of(inner, new_texts[:1]))
print("saved and loaded the same:", same)
