"""Which layer knows the part of speech: a linear probe of every layer on English EWT.

Tenney et al. 2019, "BERT rediscovers the classical NLP pipeline": a classifier on frozen states,
here by ridge regression, on 200 dev sentences of the treebank, measured on 200 test sentences.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch

import minibert
from minibert.survey import collect

EWT = os.environ.get("MINIBERT_TEST_DATA", ".") + "/text/ud-english-ewt"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="tiny-bert")
parser.add_argument("--data", default=EWT, help="the folder of EWT's .conllu files")
options = parser.parse_args()
files = [Path(options.data) / f"en_ewt-ud-{part}.conllu" for part in ("dev", "test")]
if not all(file.is_file() for file in files):
    raise SystemExit(f"No {files[0]}; give --data (universaldependencies.org has the treebank).")

model, folder = minibert.load(options.model), tempfile.mkdtemp()


def sentences(file: Path) -> Iterator[list[tuple[str, str]]]:
    """The sentences of a CoNLL-U file: the form and the part of speech of each word."""
    for block in file.read_text(encoding="utf-8").strip().split("\n\n"):
        lines = [line.split("\t") for line in block.splitlines()]
        yield [(columns[1], columns[3]) for columns in lines if columns[0].isdigit()]


sets = [list(islice(sentences(file), 200)) for file in files]
tags = sorted({tag for part in sets for one in part for _, tag in one})
truth = [torch.tensor([tags.index(tag) for one in part for _, tag in one]) for part in sets]
print(f"always NOUN: {(truth[1] == tags.index('NOUN')).float().mean():.3f}")
points = [("resid_pre", 0), *(("resid_post", n) for n in range(model.config.n_layers))]
words = [[minibert.Words(form for form, _ in one) for one in part] for part in sets]
found = [collect(model, part, points, output=f"{folder}/{n}") for n, part in enumerate(words)]
for point in points:
    values = [[torch.tensor(c.word_means(n, *point)) for n in range(len(c))] for c in found]
    x, y = map(torch.cat, values)
    one_hot = torch.eye(len(tags)).double()[truth[0]]
    weights = torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1]), x.T @ one_hot)
    print(f"{point[0]} {point[1]}: {((y @ weights).argmax(1) == truth[1]).float().mean():.3f}")
