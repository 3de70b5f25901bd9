"""Whether a causal model continues a list that begins again: copying, counted in words."""

import torch

from benchmarks.evidence import finding, known_tokenizer, share
from minibert.bench.result_rows import Row
from minibert.course.texts import COPIED, copying_text
from minibert.model import Model

__all__ = ["lists_continued"]

AGAIN = 3


def lists_continued(model: Model) -> Row:
    """How often the most probable token is the word, or its beginning, that followed before.

    On the 100 lists of seven common words in no order of the course, the first three said again.
    """
    tokenizer, right = known_tokenizer(model), []
    for words in COPIED:
        best = int(model(model.tokenize(copying_text(words, AGAIN)))[0, -1].argmax())
        right.append(best == tokenizer.encode(f" {words[AGAIN]}")[0])
    answers = torch.tensor(right)
    return finding(float(answers.double().mean()), again=AGAIN, **share(answers))
