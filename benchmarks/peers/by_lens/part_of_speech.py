"""examples/part_of_speech.py with TransformerLens."""

import torch

from benchmarks.peers.given import treebank
from benchmarks.peers.hooked import load


def sentences(part, count=200):
    """(words, tags) of each sentence: the lines of CoNLL-U whose first field is a number."""
    blocks = treebank(part).read_text("utf-8").split("\n\n")[:count]
    for block in blocks:
        fields = [line.split("\t") for line in block.splitlines() if line[0] != "#"]
        words = [each for each in fields if each[0].isdigit()]
        yield [each[1] for each in words], [each[3] for each in words]


model = load()
names = ["hook_full_embed"]
names += [f"blocks.{n}.hook_normalized_resid_post" for n in range(model.cfg.n_layers)]
sets = [list(sentences(part)) for part in ("dev", "test")]
tags = sorted({tag for part in sets for _, upos in part for tag in upos})
truth = [torch.tensor([tags.index(tag) for _, upos in part for tag in upos]) for part in sets]
print(f"always NOUN: {(truth[1] == tags.index('NOUN')).float().mean():.3f}")
means = {name: ([], []) for name in names}
for number, part in enumerate(sets):
    for words, _ in part:
        given = model.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        _, cache = model.run_with_cache(given.input_ids, names_filter=names)
        word_of = torch.tensor([-1 if word is None else word for word in given.word_ids()])
        for name in names:
            value = cache[name][0].double()
            found = [value[word_of == word].mean(0) for word in range(len(words))]
            means[name][number].append(torch.stack(found))
for number, name in enumerate(names):
    x, y = map(torch.cat, means[name])
    one_hot = torch.eye(len(tags)).double()[truth[0]]
    weights = torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1]), x.T @ one_hot)
    point = f"resid_post {number - 1}" if number else "resid_pre 0"
    print(f"{point}: {((y @ weights).argmax(1) == truth[1]).float().mean():.3f}")
