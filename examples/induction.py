"""Induction heads, found by what they do and proved by taking them away.

Olsson et al. 2022, "In-context Learning and Induction Heads": on random tokens that come twice,
heads are scored by their attention to the token after the earlier copy. Then the best are ablated,
and the loss of the second half is read, which nothing but copying can predict.
"""

import argparse

from torch.nn.functional import cross_entropy

import minibert
from minibert.analysis import draws_for, head_scores
from minibert.trace.edit import zero

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-gpt2", help="an embedded name, a folder or a Hub id")
parser.add_argument("--heads", type=int, default=3, help="so many heads are taken away")
options = parser.parse_args()

model, count, length = minibert.load(options.model), options.heads, 30
ids = draws_for(model, length=length)[:16]
scores = head_scores(model, ids, repeated=ids).induction
order = scores.flatten().argsort(descending=True).tolist()
heads = [divmod(index, model.config.n_heads) for index in order]
others = [one for one in reversed(heads) if one[0] >= heads[0][0]][:count]
print("induction heads:", *(f"{n}-{h} {scores[n, h]:.2f}" for n, h in heads[:count]))

for name, taken in (
    ("with all heads", []),
    ("without induction heads", heads[:count]),
    ("without as many others", others),
):
    edit = {("z", layer, head): zero for layer, head in taken}
    logits = model.trace(ids, edit=edit).logits[:, length - 1 : -1]
    loss = cross_entropy(logits.flatten(0, 1), ids[:, length:].flatten())
    print(f"loss of the second half, {name}: {loss:.2f}")
