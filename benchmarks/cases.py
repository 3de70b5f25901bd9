"""What is measured in `benchmarks.models`: models, sizes of input, one checkpoint for everyone.

Weights are random. transformers writes them to a folder, and each contender loads that folder.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.bench.contest import Contender
from minibert.bench.gate import Outputs, Truth, failure

# Largest absolute difference from transformers in float32 that still is the same computation.
TOLERANCE = 1e-4
# A lossy contender keeps its error within this part of the largest value, or it is broken.
LOSSY_TOLERANCE = 0.05
FLOP_FORMULA = "2BT(numbers in the weight matrices, the output embedding's included) + 4LBT²d"

# name -> class of the model, class of its config, what differs from that config's defaults.
# GPT-2's cache of keys and values is off for everyone: one pass has no use for it.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert-base": ("BertForMaskedLM", "BertConfig", {}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"use_cache": False}),
    "bert-tiny": (
        "BertForMaskedLM",
        "BertConfig",
        {
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 512,
        },
    ),
    # The layout of Llama-3.2-1B, cut to 4 of its 16 layers, and bfloat16 in its files as there.
    "llama-1b-4": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 4,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
            "use_cache": False,
        },
    ),
    # For --quick and the tests: is everything right, in seconds.
    "bert-quick": (
        "BertForMaskedLM",
        "BertConfig",
        {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "vocab_size": 997,
        },
    ),
    "gpt2-quick": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_embd": 64,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 64,
            "vocab_size": 997,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "use_cache": False,
        },
    ),
    "llama-quick": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "vocab_size": 997,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "use_cache": False,
        },
    ),
}


_SIZES = ("num_hidden_layers", "hidden_size", "vocab_size")


@dataclass(frozen=True)
class Shape:
    """One model and the size of what it reads."""

    model: str
    batch: int
    position: int

    def __str__(self) -> str:
        return f"{self.model} B{self.batch} T{self.position}"


@dataclass(frozen=True)
class Prepared:
    """An implementation that is built: `run` takes an input, `read` names what it gave."""

    run: Callable[[Any], Any]
    read: Callable[[Any], Outputs]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def on(self, given: Any) -> Contender:
        """The same on one input, which is made before the clock starts."""
        return Contender(partial(self.run, given), self.read, self.around)


@dataclass(frozen=True)
class Implementation:
    """One implementation under one name, how it is built for a case, and what it gives back."""

    name: str
    captures: str
    prepare: Callable[["Case"], Prepared]
    package: str = "minibert"
    dtype: str = "float32"
    lossy: bool = False
    # The one of the same dtype whose error this one may double (flash-attention's rule).
    yardstick: str | None = None
    applies: Callable[[Shape], bool] = lambda shape: True

    def truth(self, values: Outputs, limits: dict[str, float]) -> Truth:
        """What is right for it, and how far it may be off."""
        if self.lossy:
            return Truth(values, relative=LOSSY_TOLERANCE, limits=limits)
        return Truth(values, absolute=TOLERANCE, limits=limits)


class Case:
    """One checkpoint on disk, and the models loaded from it; each is loaded once."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model, self.folder = model, folder
        import transformers

        transformers.utils.logging.disable_progress_bar()
        name, config, changes = MODELS[model]
        self.model_class = getattr(transformers, name)
        self.config = getattr(transformers, config)(**changes)
        torch.manual_seed(0)
        stored = self.config.dtype or torch.float32
        self.model_class(self.config).to(stored).save_pretrained(folder)
        self.transformers = cache(self._transformers)
        self.minibert = cache(self._minibert)

    def _transformers(self, attention: str, dtype: torch.dtype, owner: str = "") -> Any:
        """A transformers model. Who changes it when wrapping it asks for its own as `owner`."""
        model = self.model_class.from_pretrained(
            self.folder, attn_implementation=attention, dtype=dtype
        )
        return model.eval()

    def _minibert(self, dtype: torch.dtype, linear: str | None) -> Any:
        import minibert

        with linear_backend(linear):
            return minibert.load(self.folder, dtype=dtype)

    def reference(self, ids: Tensor) -> Outputs:
        """What transformers computes in float32 with its explicit attention."""
        out = self.transformers("eager", torch.float32)(
            ids, output_hidden_states=True, output_attentions=True
        )
        found = read_transformers(out)
        layer, head = self.one_head
        return {**found, f"head {layer} {head}": out.attentions[layer][:, head]}

    @property
    def one_head(self) -> tuple[int, int]:
        """The layer and head of the rows that read a single one: (6, 3) of 12 x 12."""
        return self.config.num_hidden_layers // 2, self.config.num_attention_heads // 4

    def flop(self, shape: Shape) -> int:
        """Floating-point operations of the matrix products of one whole forward pass."""
        B, T = shape.batch, shape.position
        L, d, V = (getattr(self.config, name) for name in _SIZES)
        named = self.transformers("sdpa", torch.float32).named_parameters()
        matrices = [one for name, one in named if one.dim() == 2 and "embed" not in name]
        # Positions of GPT-2 are a table; the output embedding is the input embedding's.
        tables = {(self.config.max_position_embeddings, d), (V, d)}
        inner = sum(one.numel() for one in matrices if tuple(one.shape) not in tables)
        return 2 * B * T * (inner + d * V) + 4 * L * B * T * T * d


def attempt(work: Callable[..., Any], *given: Any) -> Any:
    """What `work` gives, or the row of its failure: the benchmark goes on."""
    try:
        return work(*given)
    # Whatever a peer raises is a finding about it.
    except Exception as error:
        return failure(error)


@contextmanager
def linear_backend(name: str | None) -> Iterator[None]:
    """minibert's linear back end, forced; None leaves the choice to its rule."""
    if name is None:
        yield
        return
    from minibert.layers import linear_backends as backends

    backends.use(name)
    try:
        yield
    finally:
        backends.use(None)


def numbered(kind: str, values: Iterable[Tensor]) -> dict[str, Tensor]:
    return {f"{kind} {number}": value for number, value in enumerate(values)}


def read_transformers(out: Any) -> Outputs:
    found = {"logits": out.logits, **numbered("hidden", out.get("hidden_states") or ())}
    return {**found, **numbered("probs", out.get("attentions") or ())}
