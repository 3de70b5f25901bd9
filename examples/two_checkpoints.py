"""What fine-tuning changes: two checkpoints of one model, head by head.

Kovaleva et al. 2019, "Revealing the dark secrets of BERT", section 4.2: the last layers of BERT
change most. Of a training: --first EleutherAI/pythia-70m@step1000 --second ...@step143000.
"""

import argparse

import torch

import minibert
from minibert.survey import SAMPLE_PAIRS

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--first", default="tiny-bert", help="name, or name@revision")
parser.add_argument("--second", help="name, or name@revision; none: the first, fine-tuned here")
options = parser.parse_args()


def load(given: str) -> minibert.Model:
    """The model of a name, at its revision where one follows an @."""
    name, _, revision = given.partition("@")
    return minibert.load(name, revision=revision or None)


first, texts = load(options.first), [text for pair in SAMPLE_PAIRS for text in pair]
second = load(options.second or options.first)
if not options.second:
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(second.train().parameters(), lr=1e-4)
    for _ in range(20):
        loss = second(texts[:12])[:, 1].logsumexp(-1).mean()
        optimizer.zero_grad(), loss.backward(), optimizer.step()
pairs = [(first.trace(text), second.eval().trace(text)) for text in texts[12:]]
# Half the distance of two rows of attention, 0 to 1: (layer, head), the mean over rows and texts.
apart = [(a.stack("probs") - b.stack("probs"))[:, 0].abs().sum(-1).mean(-1) / 2 for a, b in pairs]
heads = torch.stack(apart).mean(0)
most = [divmod(place, heads.shape[1]) for place in heads.flatten().argsort().tolist()[:-5:-1]]
print("heads that changed most:", *(f"{n}-{h} {heads[n, h]:.3f}" for n, h in most))
print("attention, by layer:", *(f"{value:.3f}" for value in heads.mean(1)))
