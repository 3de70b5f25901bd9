"""Which heads carry the answer, and by which way: heads, paths and edges over many prompts.

Wang et al. 2022, "Interpretability in the wild"; edges: Hanna et al. 2024, Marks et al. 2024. Each
clean prompt has one with the other answer. `--model gpt2` reads the paper's prompts; the embedded
model, which knows no names, continues a list of random tokens that began again.
"""

import argparse

import minibert
from minibert import analysis

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-gpt2")
model = minibert.load(parser.parse_args().model)
if model.name.startswith("tiny-"):
    clean = analysis.draws_for(model, length=7)[:8, :10]
    corrupt = clean[:, [0, 1, 2, 5, 4, 3, 6, 7, 8, 9]]
    right, wrong = clean[:, 3].tolist(), clean[:, 5].tolist()
else:
    prompt = "When{} and{} went to the store,{} gave a drink to"
    pairs = [(a, b) for a in (" Mary", " Anna", " Sarah") for b in (" John", " Paul", " Tom")]
    clean, corrupt = ([prompt.format(*pair, pair[n]) for pair in pairs] for n in (1, 0))
    right, wrong = ([int(model.tokenize(pair[n]).ids[0, -1]) for pair in pairs] for n in (0, 1))
given = model.trace(clean), model.trace(corrupt), analysis.logit_difference(right, wrong)

sweep = analysis.patch_heads(*given, positions=[-1])
clean, corrupt = sweep.clean.mean(), sweep.patched.mean()
print(f"logit difference {clean:+.2f}, corrupt {corrupt:+.2f}, {len(right)} pairs")
print("patched:", *(f"{n}-{h} {change:+.2f}" for n, h, change in sweep.largest(4)))
[(layer, head, change)] = analysis.path_patching(*given, receivers=["logits"]).largest(1)
print(f"on its own path to the logits: {layer}-{head} {change:+.2f}")
group = model.config.n_heads // model.config.n_kv_heads
for name, own in (("query", head), ("key", head // group), ("value", head // group)):
    change = analysis.path_patching(*given, receivers=[(name, layer, own)]).mean.nan_to_num()
    sender = divmod(int(change.abs().argmax()), model.config.n_heads)
    print(f"by way of the {name} of {layer}-{head}: {sender[0]}-{sender[1]} {change[sender]:+.2f}")
edges = analysis.edge_attribution(*given, steps=8)
for row in analysis.faithfulness(edges, *given, counts=[10, 40, 160]).table():
    print(f"{row['kind']} of {row['count']} edges: {row['value']:.2f} of the logit difference")
