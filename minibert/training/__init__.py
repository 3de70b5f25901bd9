"""Training a small model from scratch on text files; the command is `minibert train`.

texts.py        files to documents, documents to token ids
vocabulary.py   the tokenizer
recipe.py       the numbers of a run
starting.py     what a run begins with: tokenizer, config, device, the first weights
batches.py      the batch of each step
objective.py    the loss, and losses of single heads
optimizer.py    Muon and AdamW
folder.py       one run at a time in a folder, and Ctrl-C that waits for the end of a step
snapshot.py     the file from which an interrupted run resumes, and which runs may
loop.py         the whole run, with held-out loss and head scores
card.py         README.md and training.json of the result
"""

from minibert.training.loop import train
from minibert.training.recipe import Recipe
from minibert.training.texts import Document, read_texts

__all__ = ["Document", "Recipe", "read_texts", "train"]
