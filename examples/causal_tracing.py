"""Where a fact is read, and where it is by the end: causal tracing.

Meng et al. 2022, "Locating and editing factual associations in GPT", section 2: noise on the
subject takes the answer away; one state of the clean pass, restored, brings it back. The paper's
own is --model gpt2-xl --prompt "The Space Needle is in downtown" --subject "The Space Needle"
--answer " Seattle"; the embedded model knows no fact but those of its prompt.
"""

import argparse

import minibert
from minibert.analysis import answer_probability, causal_tracing, phrase_positions

LIST = " river window summer horse garden letter morning river window summer"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-gpt2")
parser.add_argument("--prompt", default=LIST)
parser.add_argument("--subject", default="horse")
parser.add_argument("--answer", default=" horse")
parser.add_argument("--plot", help="a file for the picture, as trace.svg")
options = parser.parse_args()

model = minibert.load(options.model)
trace = model.trace(options.prompt)
subject = phrase_positions(trace, options.subject)
answer = answer_probability(int(model.tokenize(options.answer).ids[0, 0]))
for name in ("resid_post", "mlp_out", "attn_out"):
    window = None if len(trace) >= 12 else 1
    found = causal_tracing(trace, subject, answer, name=name, window=window)
    if name == "resid_post":
        print(f"p: clean {found.clean[0]:.3f}, subject with noise {found.corrupt[0]:.3f}")
        if options.plot:
            found.plot(options.plot)
    layer, place = divmod(int(found.change[:, 0].argmax()), found.change.shape[2])
    print(f"{name}: most at layer {layer}, token {place}, {found.change[layer, 0, place]:+.3f}")
    for kind, row in zip(found.kinds, found.mean.T, strict=True):
        if not row.isnan().all():
            print(f"   {kind:22}", *(f"{value:+.2f}" for value in row))
