"""Uses of minibert as a type checker sees them; never run. Only lines marked `# wrong` are."""

from pathlib import Path

import torch
from torch import Tensor, nn

import minibert
from minibert import Config, Model, Tokenizer, Tokens, Trace
from minibert.analysis import head_scores, logit_difference

model: Model = minibert.load()
named: Model = minibert.load("bert-base-uncased", device="cpu", offline=True)
folder: Model = minibert.load(Path("folder"), dtype=torch.float64, task="none")
live: Model = minibert.load(nn.Linear(2, 3))
config: Config = model.config
layers: int = config.n_layers
heads: int = config.n_heads
dtype: torch.dtype = model.dtype
tokens: Tokens = model.tokenize("leaves fall", "in autumn", truncate=True)
ids: Tensor = tokens.ids
strings: tuple[tuple[str, ...], ...] = tokens.strings
tokenizer: Tokenizer | None = model.tokenizer
logits: Tensor = model.forward(tokens)
trace: Trace = model.trace("leaves fall")
kept: Trace = model.trace(ids, keep=("scores", "probs"), until=1)
length: int = len(trace)
packed: tuple[Tensor, ...] = model.packed(["a", "b c"])
label: str = model.predict("the horse [MASK] away .", top=3)[0].choices[0].label
differing: Model = Model.from_config(config, seed=1)
q, k, v = torch.randn(3, 1, 12, 512, 64).unbind()
attended = minibert.attend(q, k, v, causal=True, want=("entropy", "received"))
z: Tensor = attended.z
scores = head_scores(model, " a b a b")
metric = logit_difference(7, 13)
number: Tensor = metric(logits, lengths=[3])
error: type[Exception] = minibert.MinibertError
version: str = minibert.__version__
from_tokens: Tensor = model.forward(ids)

minibert.load(3)  # wrong
minibert.load(["bert-base-uncased"])  # wrong
minibert.load("tiny-bert", task=1)  # wrong
minibert.load("tiny-bert", dtype="float32")  # wrong
minibert.load("tiny-bert", offlin=True)  # wrong
minibert.laod("tiny-bert")  # wrong
minibert.Modell  # wrong
model.tokenize(3)  # wrong
model.trace("leaves fall", until="1")  # wrong
model.predict("leaves", top="5")  # wrong
config.n_layer  # wrong
tokens.id  # wrong
text: str = model.tokenize("leaves")  # wrong
minibert.attend(q, k)  # wrong
