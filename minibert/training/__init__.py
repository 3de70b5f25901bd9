"""Training a small model from scratch on text files; the command is `minibert train`.

texts.py        files to documents, the tokenizer, documents to token ids
recipe.py       the settings of a run
batches.py      the batch of each step and its loss, of tokens and of single heads
loop.py         the whole run: the first weights, the steps, the log, the checkpoint
"""

from minibert.training.loop import train
from minibert.training.recipe import Recipe
from minibert.training.texts import Document, read_texts

__all__ = ["Document", "Recipe", "read_texts", "train"]
