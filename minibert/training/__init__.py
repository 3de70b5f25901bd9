"""Training a small model from scratch on text files; the command is `minibert train`.

texts.py        files to documents, documents to token ids
vocabulary.py   the tokenizer
recipe.py       the numbers of a run
starting.py     the first weights
batches.py      the batch of each step
objective.py    the loss; targets.py: losses of single heads
optimizer.py    Muon and AdamW
measure.py      held-out loss and head scores during the run
snapshot.py     the file from which an interrupted run resumes
identity.py     which runs may resume from a snapshot
interrupt.py    Ctrl-C waits for the end of a step
loop.py         the whole run
card.py         README.md and training.json of the result
"""

from minibert.training.loop import train
from minibert.training.recipe import Recipe
from minibert.training.texts import Document, read_texts

__all__ = ["Document", "Recipe", "read_texts", "train"]
