"""Public calls with arguments that are wrong, and what may come of them: a table for hypothesis.

A call is a function of its arguments by name, with a good value for each. A draw replaces one or
two of them by something of another type, size, range or origin. What comes back is a result
without NaN, or a MinibertError.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import zero
from minibert.trace.read import Trace

LAYERS, HEADS, LENGTH, VOCABULARY, POSITIONS = 2, 3, 7, 41, 13


@cache
def model(family: str = "gpt2", task: str = "causal-lm", layers: int = LAYERS) -> Model:
    """Small, with its weights far enough from 0; bert has segments and no causality."""
    causal = family == "gpt2"
    shape: dict[str, Any] = {"n_layers": layers, "n_heads": HEADS, "d_model": 15, "d_mlp": 17}
    shape |= {"causal": causal, "n_segments": 0 if causal else 2, "pooler": not causal}
    config = Config(family, task, VOCABULARY, POSITIONS, **shape)
    made = Model.from_config(config, seed=layers, name=f"a small {family}")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(5)
    return made


def ids(seed: int = 0, batch: int = 1, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (batch, length), generator=generator)


def trace(family: str = "gpt2", **options: Any) -> Trace:
    task = "causal-lm" if family == "gpt2" else "masked-lm"
    return model(family, task).trace(ids(), **options)


def padded() -> Trace:
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [3]])
    return model().trace(Tokens.from_ids(ids(batch=2), mask=mask))


def differentiated() -> Trace:
    made = model().trace(ids(), grad=True)
    made.backward(made.logits[0, -1, 5])
    return made


def metric(logits: Tensor) -> Tensor:
    return logits[:, -1, 5] - logits[:, -1, 7]


NUMBERS = [None, True, 0, -1, 2, 1.5, 99, -99, 10**30, math.nan, math.inf, -math.inf, 1j]
TEXTS = ["", "x", "z", "probs", "a b", b"x", "\ud800"]
LISTS = [
    [],
    [[]],
    (),
    {},
    [0],
    [99],
    [-99],
    [1.5],
    ["x"],
    [None],
    [True],
    [0, 0],
    [0, [1]],
    range(0),
]
LISTS += [slice(None), slice(5, 2), slice("a", None), {1: 2}, {"z"}]
ARRAYS = [
    torch.tensor(1),
    torch.tensor(99),
    torch.tensor(1.5),
    torch.tensor(math.nan),
    torch.tensor([]),
    torch.tensor([0, 1]),
    torch.zeros(2, 0, dtype=torch.int64),
    torch.zeros(2, 3),
    torch.full((1, LENGTH, 15), math.nan),
    torch.ones(1, LENGTH, dtype=torch.bool),
    torch.zeros(1, LENGTH, 15, dtype=torch.complex64),
    torch.zeros(1, 2, 3, 4, 5, dtype=torch.int64),
    np.int64(1),
    np.float64(1.5),
    np.zeros((2, 3)),
    np.array([0, 1]),
]
OTHERS = [object(), lambda *_: None, lambda *_: "x", zero, ValueError("x")]


# Things of this library that do not belong here, each made when it is drawn.
STRANGERS: list[Callable[[], Any]] = [
    model,
    lambda: model("bert", "masked-lm"),
    lambda: model("bert", "none"),
    lambda: model("bert", "next-sentence"),
    lambda: trace("bert"),
    lambda: trace(until=0),
    lambda: trace(edit={("z", 0): zero}),
    lambda: model(layers=5).trace(ids()),
    lambda: model().trace(ids(length=3)),
    padded,
    lambda: Tokens.from_ids(ids(batch=2)),
    lambda: trace()[0],
]

WRONG = (
    st.sampled_from([*NUMBERS, *TEXTS, *LISTS, *ARRAYS, *OTHERS])
    | st.integers(-20, 50)
    # Larger ones leave float32 on the way through a model.
    | st.floats(-1e15, 1e15)
    | st.text(max_size=5)
    | st.lists(st.integers(-20, 50), max_size=3)
    | st.sampled_from(STRANGERS).map(lambda make: make())
)


def tensors_of(result: Any) -> Iterator[Tensor]:
    """Every tensor that a result holds."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Trace):
        yield from result.kept.values()
        for record in result.records:
            yield from record.values()
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for each in dataclasses.fields(result):
            yield from tensors_of(getattr(result, each.name))
    elif isinstance(result, Mapping):
        for each in result.values():
            yield from tensors_of(each)
    elif isinstance(result, list | tuple):
        for each in result:
            yield from tensors_of(each)


TOKEN_ARGUMENTS = [
    "token",
    "against",
    "target",
    "queries",
    "keys",
    "sources",
    "targets",
    "right",
    "wrong",
    "ids",
]
SYNONYMS = {
    **dict.fromkeys(TOKEN_ARGUMENTS, ("token", "vocabulary")),
    **dict.fromkeys(("text", "tokens", "repeated"), ("ids", "text", "token", "segment")),
    "where": ("trace[",),
    "pair": ("second text", "ids"),
    # What is read from a trace has its shape, and a model its task.
    **dict.fromkeys(("source", "value", "over", "edit"), ("shape", "length", "logits", "layers")),
    **dict.fromkeys(("trace", "model"), ("texts have", "task", "until", "backward", "layers")),
}


def words_for(argument: str, value: Any) -> set[str]:
    """What an error may call an argument: its name, its value, or what is wrong with it."""
    named = {argument, argument.removesuffix("s"), *SYNONYMS.get(argument, ())}
    named |= {type(value).__name__, str(value)[:20], repr(value)[:20]}
    if isinstance(value, list | tuple | set | np.ndarray):
        named |= set(map(str, value))
    if isinstance(value, Tensor):
        named |= {str(tuple(value.shape)), str(value.dtype)}
        named |= {str(value.item())} if value.numel() == 1 else set()
    return {word.casefold() for word in named if word}
