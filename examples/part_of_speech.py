"""Which layer knows the part of speech: a linear probe of every layer on English EWT.

Tenney et al. 2019, "BERT rediscovers the classical NLP pipeline": a classifier on frozen states,
here by ridge regression, on 200 dev sentences of the treebank, measured on 200 test sentences.
"""

import argparse
import re
import tempfile
from pathlib import Path

import torch

import minibert
from minibert.survey import collect

FORM_AND_TAG = r"(?m)^\d+\t(.+?)\t.+?\t(.+?)\t"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-bert")
parser.add_argument("--data", default=".", help="the folder of EWT's .conllu files")
options = parser.parse_args()
files = [Path(options.data) / f"en_ewt-ud-{part}.conllu" for part in ("dev", "test")]
if not all(file.is_file() for file in files):
    raise SystemExit(f"No {files[0]}; give --data (universaldependencies.org has the treebank).")

model, folder = minibert.load(options.model), tempfile.mkdtemp()
parts = [file.read_text(encoding="utf-8").split("\n\n")[:200] for file in files]
sets = [[re.findall(FORM_AND_TAG, sentence) for sentence in part] for part in parts]
tags = sorted({tag for part in sets for one in part for _, tag in one})
truth = [torch.tensor([tags.index(tag) for one in part for _, tag in one]) for part in sets]
print(f"always NOUN: {(truth[1] == tags.index('NOUN')).float().mean():.3f}")
points = [("resid_pre", 0), *(("resid_post", n) for n in range(model.config.n_layers))]
words = [[minibert.Words(form for form, _ in one) for one in part] for part in sets]
found = [collect(model, part, points, output=f"{folder}/{n}") for n, part in enumerate(words)]
for point in points:
    values = ([torch.tensor(c.word_means(n, *point)) for n in range(len(c))] for c in found)
    x, y = map(torch.cat, values)
    one_hot = torch.eye(len(tags)).double()[truth[0]]
    weights = torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1]), x.T @ one_hot)
    print(f"{point[0]} {point[1]}: {((y @ weights).argmax(1) == truth[1]).float().mean():.3f}")
