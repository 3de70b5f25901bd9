"""When the answer is read from the subject: attention knockout.

Geva et al. 2023, "Dissecting recall of factual associations in auto-regressive language models",
section 5: the last token may not look at the subject, at itself, or at any other token, in a window
of layers around each layer; the answer's probability says what flowed there.
"""

import argparse

import minibert
from minibert.analysis import answer_probability, attention_knockout, phrase_positions

LIST = " river window summer horse garden letter morning river window summer"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-gpt2")
parser.add_argument("--prompt", default=LIST)
parser.add_argument("--subject", default="horse")
parser.add_argument("--answer", default=" horse")
parser.add_argument("--window", type=int, default=1, help="layers; the paper blocks 9 of 48")
parser.add_argument("--plot", help="a file for the picture, as knockout.svg")
options = parser.parse_args()

model = minibert.load(options.model)
trace = model.trace(options.prompt)
[subject] = phrase_positions(trace, options.subject)
last = len(trace.tokens.strings[0]) - 1
# The first token stays in sight: a row needs a key.
others = [place for place in range(1, last) if place not in subject]
blocked = {"subject": (-1, [subject]), "last token": (-1, -1), "all others": (-1, [others])}
answer = answer_probability(int(model.tokenize(options.answer).ids[0, 0]))
found = attention_knockout(trace, blocked, answer, window=options.window)
print(f"p of the answer {found.clean[0]:.3f}; its change, layer by layer, without a look at")
for name, row in zip(blocked, found.relative[:, 0].T, strict=True):
    print(f"{name:11}", *(f"{100 * share:+4.0f}%" for share in row))
if options.plot:
    found.plot(options.plot)
