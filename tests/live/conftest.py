"""The models of the page and their engines: each is opened once for all tests of it."""

from dataclasses import dataclass
from typing import Any

import pytest
from live.drawn import random_model
from live.engines import AnyEngine, EngineHere, EngineProcess, opened
from small_traces import OTHER_KINDS, SERVED_KINDS

import minibert
from minibert.layers.layer import layer_quantities
from minibert.viz.engine_edits import OFF_PAGES

EMBEDDED = ("tiny-bert", "tiny-gpt2", "tiny-llama")
#: Models that write words or vectors.
WORDS = (*EMBEDDED, *OTHER_KINDS, "qwen3", "olmo2", *SERVED_KINDS, "dynamic", "wide")
BERT = {"family": "bert", "causal": False, "n_kv_heads": 4, "windows": (), "n_segments": 2}
CLASSES = {"task": "sequence-classification", "labels": ("bad", "good", "neither")}
OF_TEXT: dict[str, dict[str, Any]] = {
    "classes at the end": {"kind": "llama", **CLASSES},
    "classes at the front": {"kind": "llama", **CLASSES, **BERT, "rotary": None, "pooler": True},
}
# Of single precision in another order of sums.
NEAR = 1e-4


@dataclass
class Case:
    """A model and the engines of its page: that of Python, which gives its very bits, and a page's.

    The page's engine stands in its file, or behind a server where no file can hold the model.
    """

    name: str
    model: Any
    page: EngineProcess

    def __post_init__(self) -> None:
        here: AnyEngine = EngineHere(self.model)
        self.engines: list[tuple[AnyEngine, float]] = [(here, 0.0), (self.page, NEAR)]

    @property
    def of_text(self) -> bool:
        return bool(self.model.config.task == "sequence-classification")

    @property
    def everything(self) -> list[tuple[str, int | None]]:
        layers = range(self.model.config.n_layers)
        names = [one for one in layer_quantities(self.model.config) if one not in OFF_PAGES]
        return [("embed", None), *((one, n) for n in layers for one in names), ("logits", None)]

    def trace(self, texts: list[str]) -> Any:
        return self.model.trace(self.model.tokenize(*texts, truncate=True))

    def able(self, texts: list[str]) -> list[tuple[AnyEngine, float]]:
        """The engines that read these texts: the one of Python refuses what the other cuts."""
        fits = self.model.tokenizer(*texts).lengths[0] <= self.model.config.n_positions
        return [one for one in self.engines if fits or one[1]]


@pytest.fixture(scope="session", params=[*WORDS, "tiny-bert-sentiment", *OF_TEXT])
def case(request):
    name = request.param
    if name.startswith("tiny-"):
        model = minibert.load(name)
    else:
        model = random_model(**({"kind": name} | OF_TEXT.get(name, {})))
    with opened(model) as engine:
        yield Case(name, model, engine)
