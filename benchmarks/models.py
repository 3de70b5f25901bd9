"""How fast whole models give logits, and logits with every number inside, beside transformers.

    python -m benchmarks.models [--quick] [--rows REGEX] [--threads 2] [--rounds 9] [--output F]

All in one process, in turns, on random weights, without a network. The reference is the forward
pass of transformers with sdpa, capturing nothing. Everyone loads the same checkpoint folder, which
transformers wrote, and does what a user of that package does to get the quantities in `captures`.
minibert is loaded by `minibert.load` from a folder, with no option: what a user gets.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.runner import Benchmark, Truth, Wanted, Workload, attempt
from minibert.bench.contest import Contender
from minibert.bench.result_rows import Outputs, Row

# Largest absolute difference from transformers in float32 that still is the same computation.
TOLERANCE = 1e-4
# A lossy contender keeps its error within this part of the largest value, or it is broken.
LOSSY_TOLERANCE = 0.05
FLOP_FORMULA = "2BT(numbers in the weight matrices, the output embedding's included) + 4LBT²d"
REFERENCE = "transformers sdpa"
BY_HAND = "transformers, own attention function"
REFERENCE_BFLOAT16 = "transformers bfloat16"

_BERT, _GPT2, _LLAMA = (
    ("BertForMaskedLM", "BertConfig"),
    ("GPT2LMHeadModel", "GPT2Config"),
    ("LlamaForCausalLM", "LlamaConfig"),
)
# For --quick and the tests: is everything right, in seconds.
_QUICK = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 997}
# One pass has no use for a cache of keys and values, so it is off for everyone.
_QUICK_CAUSAL = {"vocab_size": 997, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
#: name -> class of the model and of its config, and what differs from that config's defaults.
MODELS: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "bert-base": (_BERT, {}),
    "gpt2": (_GPT2, {"use_cache": False}),
    # With places for longer texts than GPT-2's, and cut to 3 layers.
    "gpt2-long": (_GPT2, {"use_cache": False, "n_positions": 8192}),
    "gpt2-long-3": (_GPT2, {**_QUICK_CAUSAL, "n_positions": 8192, "n_layer": 3}),
    "bert-tiny": (
        _BERT,
        {
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 512,
        },
    ),
    # The layout of Llama-3.2-1B, cut to 4 of its 16 layers, and bfloat16 in its files as there.
    "llama-1b-4": (
        _LLAMA,
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
    "bert-quick": (_BERT, {**_QUICK, "intermediate_size": 128}),
    "gpt2-quick": (
        _GPT2,
        {**_QUICK_CAUSAL, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64},
    ),
    "llama-quick": (
        _LLAMA,
        {
            **_QUICK,
            **_QUICK_CAUSAL,
            "intermediate_size": 96,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
        },
    ),
}


@dataclass(frozen=True)
class Shape:
    """One model and the size of what it reads."""

    model: str
    batch: int
    position: int

    def __str__(self) -> str:
        return f"{self.model} B{self.batch} T{self.position}"


SHAPES = (
    *(Shape("bert-base", batch, position) for batch, position in ((1, 128), (8, 128), (1, 512))),
    *(Shape("gpt2", batch, position) for batch, position in ((1, 128), (8, 128), (1, 1024))),
    Shape("bert-tiny", 1, 16),
    Shape("llama-1b-4", 1, 512),
)
QUICK = (
    *(Shape("bert-quick", batch, position) for batch, position in ((2, 19), (1, 37))),
    *(Shape(f"{name}-quick", 1, 41) for name in ("gpt2", "llama")),
)

Read = Callable[[Any], Outputs]
#: `run` takes an input, `read` names what it gave.
Prepared = tuple[Callable[[Any], Any], Read]


@dataclass(frozen=True)
class Implementation:
    """One implementation under one name, how it is built for a case, and what it gives back."""

    name: str
    captures: str
    prepare: Callable[["Case"], Prepared]
    package: str = "minibert"
    dtype: torch.dtype = torch.float32
    applies: Callable[[Shape], bool] = lambda shape: True

    def check(self, right: Outputs, found: Outputs, verdicts: Mapping[str, Row]) -> Row:
        """What the gate says of it.

        In bfloat16 minibert may err twice as much as transformers does (flash-attention's rule).
        """
        if self.dtype == torch.float32:
            return Truth(right, absolute=TOLERANCE).check(found)
        theirs = verdicts.get(REFERENCE_BFLOAT16, {}).get("errors", {})
        limits = {kind: 2 * error for kind, error in theirs.items()}
        return Truth(right, relative=LOSSY_TOLERANCE, limits=limits).check(found)


class Case:
    """One checkpoint on disk, and the models loaded from it; each is loaded once."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model, self.folder = model, folder
        import transformers

        transformers.utils.logging.disable_progress_bar()
        (name, config), changes = MODELS[model]
        self.model_class = getattr(transformers, name)
        self.config = getattr(transformers, config)(**changes)
        torch.manual_seed(0)
        stored = self.config.dtype or torch.float32
        self.model_class(self.config).to(stored).save_pretrained(folder)
        self.transformers = cache(self._transformers)
        self.minibert = cache(self._minibert)

    def _transformers(
        self, attention: str, dtype: torch.dtype = torch.float32, owner: str = ""
    ) -> Any:
        """A transformers model. Who changes it when wrapping it asks for its own as `owner`."""
        model = self.model_class.from_pretrained(
            self.folder, attn_implementation=attention, dtype=dtype
        )
        return model.eval()

    def _minibert(self, dtype: torch.dtype = torch.float32) -> Any:
        import minibert

        return minibert.load(self.folder, dtype=dtype)

    def ids(self, batch: int, length: int) -> Tensor:
        """Random token ids; low ones are special (padding) and left out."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(5, self.config.vocab_size, (batch, length), generator=generator)

    def reference(self, ids: Tensor) -> Outputs:
        """What transformers computes in float32 with its explicit attention."""
        out = self.transformers("eager")(ids, output_hidden_states=True, output_attentions=True)
        layer, head = self.one_head
        hidden, probs = numbered("hidden", out.hidden_states), numbered("probs", out.attentions)
        one = {f"head {layer} {head}": out.attentions[layer][:, head]}
        return {"logits": out.logits, **hidden, **probs, **one}

    @property
    def one_head(self) -> tuple[int, int]:
        """The layer and head of the rows that read a single one: (6, 3) of 12 x 12."""
        return self.config.num_hidden_layers // 2, self.config.num_attention_heads // 4

    def flop(self, shape: Shape) -> int:
        """Floating-point operations of the matrix products of one whole forward pass."""
        B, T, config = shape.batch, shape.position, self.config
        L, d, V = config.num_hidden_layers, config.hidden_size, config.vocab_size
        named = self.transformers("sdpa").named_parameters()
        matrices = [one for name, one in named if one.dim() == 2 and "embed" not in name]
        # Positions of GPT-2 are a table; the output embedding is the input embedding's.
        tables = {(self.config.max_position_embeddings, d), (V, d)}
        inner = sum(one.numel() for one in matrices if tuple(one.shape) not in tables)
        return 2 * B * T * (inner + d * V) + 4 * L * B * T * T * d


def numbered(kind: str, values: Iterable[Tensor]) -> dict[str, Tensor]:
    return {f"{kind} {number}": value for number, value in enumerate(values)}


def by_transformers(case: Case, dtype: torch.dtype) -> Prepared:
    return case.transformers("sdpa", dtype), lambda out: {"logits": out.logits}


def by_attention_function(case: Case) -> Prepared:
    """The strongest that people write by hand: an attention function of one's own, registered."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    calls: list[dict[str, Tensor]] = []

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor]:
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        group = query.shape[1] // key.shape[1]
        keys, values = (x.repeat_interleave(group, 1) if group > 1 else x for x in (key, value))
        scores = torch.matmul(query * scale, keys.transpose(-2, -1))
        # sdpa_mask leaves the mask out where there is none, or where it is the causal one alone.
        if mask is None and getattr(module, "is_causal", False):
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril_()
        masked = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        probs = masked.softmax(-1)
        z = torch.matmul(probs, values)
        kept = {"query": query, "key": key, "value": value, "scores": scores, "probs": probs}
        calls.append(kept | {"z": z})
        return z.transpose(1, 2).contiguous(), probs

    AttentionInterface.register("kept", attention)
    AttentionMaskInterface.register("kept", sdpa_mask)
    model = case.transformers("kept")

    def run(ids: Tensor) -> tuple[Tensor, list[dict[str, Tensor]]]:
        calls.clear()
        return model(ids).logits, list(calls)

    def read(result: tuple[Tensor, list[dict[str, Tensor]]]) -> Outputs:
        logits, layers = result
        return {"logits": logits, **numbered("probs", (layer["probs"] for layer in layers))}

    return run, read


def minibert_plain(case: Case) -> Prepared:
    return case.minibert(), lambda logits: {"logits": logits}


def minibert_trace(case: Case, dtype: torch.dtype = torch.float32, **options: Any) -> Prepared:
    def read(trace: Any) -> Outputs:
        hidden = numbered("hidden", trace.hidden_states)
        return {"logits": trace.logits, **hidden, **numbered("probs", trace.attentions)}

    return partial(case.minibert(dtype).trace, **options), read


def minibert_one_head(case: Case) -> Prepared:
    model, (layer, head) = case.minibert(), case.one_head

    def run(ids: Tensor) -> Tensor:
        return model.trace(ids, until=layer)[layer, head].probs

    return run, lambda probs: {f"head {layer} {head}": probs}


def attached_trace(case: Case) -> Prepared:
    import minibert

    attached = minibert.attach(case.transformers("sdpa"))
    return lambda ids: attached.trace(input_ids=ids), lambda trace: {"logits": trace.output.logits}


_STATISTICS = ("entropy", "received", ("offset_mass", (-1, 1)))


def measured_pass(case: Case) -> Prepared:
    import minibert

    attached = minibert.attach(case.transformers("sdpa"))

    def run(ids: Tensor) -> tuple[Any, Any]:
        with minibert.measuring(attached, want=_STATISTICS) as seen:
            return attached.model(input_ids=ids), seen

    return run, lambda result: {"logits": result[0].logits}


def by_matrices(case: Case) -> Prepared:
    """The same numbers from the matrices of transformers' explicit attention."""
    model = case.transformers("eager")

    def run(ids: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        out = model(ids, output_attentions=True)
        return out.logits, [
            (torch.special.entr(p).sum(-1), p.sum(2), p.diagonal(-1, 2, 3), p.diagonal(1, 2, 3))
            for p in out.attentions
        ]

    return run, lambda result: {"logits": result[0]}


_LAZY = "logits; embed; query, key, value, z, residual streams of each layer; the rest on demand"
_NARROW = torch.bfloat16
CONTENDERS = (
    Implementation(
        REFERENCE, "logits", partial(by_transformers, dtype=torch.float32), "transformers"
    ),
    Implementation(
        BY_HAND,
        "logits; query, key, value, scores, probs, z of each layer",
        by_attention_function,
        "transformers",
    ),
    Implementation(
        REFERENCE_BFLOAT16,
        "logits",
        partial(by_transformers, dtype=_NARROW),
        "transformers",
        _NARROW,
    ),
    Implementation("minibert plain", "logits", minibert_plain),
    Implementation("minibert full trace", _LAZY, minibert_trace),
    Implementation(
        "minibert trace keep=scores,probs",
        f"{_LAZY}; scores and probs stored",
        partial(minibert_trace, keep=("scores", "probs")),
    ),
    Implementation(
        "minibert one head",
        "probs of one head of the middle layer",
        minibert_one_head,
        applies=lambda shape: shape.model in ("bert-base", "bert-quick"),
    ),
    Implementation(
        "minibert bfloat16 full trace", _LAZY, partial(minibert_trace, dtype=_NARROW), dtype=_NARROW
    ),
    Implementation(
        "minibert attached trace", "logits; query, key, value, z of each layer", attached_trace
    ),
    Implementation("minibert measured pass", "logits; statistics of each row", measured_pass),
    Implementation(
        "transformers statistics of matrices",
        "logits; statistics of each row; probs of each layer",
        by_matrices,
        "transformers",
    ),
)


def workloads(
    shapes: Sequence[Shape], contenders: Sequence[Implementation], wanted: Wanted
) -> Iterator[Workload]:
    """A workload for each shape; with anyone who is asked for runs the reference."""
    for model, of_model in groupby(shapes, lambda shape: shape.model):
        with tempfile.TemporaryDirectory() as folder:
            case = cache(partial(Case, model, Path(folder)))
            built = cache(lambda one, case=case: attempt(partial(one.prepare, case())))
            for shape in of_model:
                if entered := select(shape, contenders, wanted):
                    yield workload(case(), shape, {one: built(one) for one in entered})


def select(
    shape: Shape, contenders: Sequence[Implementation], wanted: Wanted
) -> list[Implementation]:
    """Who runs at a shape; with anyone, the reference."""
    entered = [one for one in contenders if one.applies(shape)]
    asked = [one for one in entered if wanted(f"{shape} {one.name}")]
    return [one for one in entered if one in asked or one.name == REFERENCE] if asked else []


def workload(case: Case, shape: Shape, built: Mapping[Implementation, Prepared | Row]) -> Workload:
    """Everyone at one shape."""
    given, by_name = case.ids(shape.batch, shape.position), {one.name: one for one in built}
    right = cache(partial(case.reference, given))

    def about(name: str) -> Row:
        one = by_name[name]
        dtype = str(one.dtype).removeprefix("torch.")
        told = {"package": one.package, "dtype": dtype, "captures": one.captures}
        return {**vars(shape), **told, "flop": case.flop(shape), "flop_formula": FLOP_FORMULA}

    return Workload(
        str(shape),
        {
            one.name: Contender(partial(made[0], given), made[1])
            if isinstance(made, tuple)
            else made
            for one, made in built.items()
        },
        lambda name, found, verdicts: by_name[name].check(right(), found, verdicts),
        REFERENCE,
        about,
    )


BENCHMARK = Benchmark(
    "models",
    "Speed of whole models beside transformers.",
    lambda chosen, wanted: workloads(QUICK if chosen.quick else SHAPES, CONTENDERS, wanted),
    quick_rounds=3,
    columns=("median ms", "p20 - p80", "ratio", "its p20 - p80", "peak MiB", "error"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
