"""Steering while a text is generated: a difference of two prompts, added to the stream.

Turner et al. 2023, "Activation addition: steering language models without optimization": the
stream of one prompt minus that of another, times a factor, is added at every new token.
"""

import argparse

import minibert

TOWARD = " river window garden horse summer letter morning river window summer"
AWAY = " river window summer horse garden letter morning river window summer"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-gpt2")
parser.add_argument("--prompt", default=AWAY)
parser.add_argument("--toward", default=TOWARD)
parser.add_argument("--away", default=AWAY)
parser.add_argument("--layer", type=int, default=1)
options = parser.parse_args()

model = minibert.load(options.model)
toward, away = (
    model.trace(text)[options.layer].resid_post[:, -1] for text in (options.toward, options.away)
)
for factor in (0.0, 0.5, 1.0, 2.0):
    vector = factor * (toward - away)
    written = model.generate(
        options.prompt,
        max_new_tokens=4,
        temperature=0,
        edit={("resid_post", options.layer): lambda stream, vector=vector: stream + vector},
    )
    print(f"{factor:.1f}:{written.new_text!r}")
