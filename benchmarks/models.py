"""How fast whole models give logits, and logits with every number inside, beside the peers.

    python -m benchmarks.models [--quick] [--rows REGEX] [--threads 2] [--rounds 9] [--output F]

All in one process, in turns, on random weights, without a network. The reference is the forward
pass of transformers with sdpa, capturing nothing. Everyone loads the same checkpoint folder, which
transformers wrote, and does what a user of that package does to get the quantities in `captures`.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.runner import Benchmark, Rows, Wanted, Workload, attempt
from minibert.bench.contest import Contender
from minibert.bench.gate import Outputs, Truth, require
from minibert.bench.result_rows import Row

# Largest absolute difference from transformers in float32 that still is the same computation.
TOLERANCE = 1e-4
# A lossy contender keeps its error within this part of the largest value, or it is broken.
LOSSY_TOLERANCE = 0.05
FLOP_FORMULA = "2BT(numbers in the weight matrices, the output embedding's included) + 4LBT²d"
REFERENCE = "transformers sdpa"
BY_HAND = "transformers, own attention function"

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


@dataclass(frozen=True)
class Shape:
    """One model and the size of what it reads."""

    model: str
    batch: int
    position: int

    def __str__(self) -> str:
        return f"{self.model} B{self.batch} T{self.position}"


SHAPES = (
    Shape("bert-base", 1, 128),
    Shape("bert-base", 8, 128),
    Shape("bert-base", 1, 512),
    Shape("gpt2", 1, 1024),
    Shape("bert-tiny", 1, 16),
)
QUICK = (Shape("bert-quick", 2, 19), Shape("bert-quick", 1, 37), Shape("gpt2-quick", 1, 41))


@dataclass(frozen=True)
class Prepared:
    """An implementation that is built: `run` takes an input, `read` names what it gave."""

    run: Callable[[Any], Any]
    read: Callable[[Any], Outputs]
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    def on(self, given: object) -> Contender:
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

    def check(self, right: Outputs, found: Outputs, verdicts: Rows) -> Row:
        """What the gate says of it."""
        own = verdicts.get(self.yardstick or "", {}).get("errors", {})
        limits = {kind: 2 * error for kind, error in own.items()}
        if self.lossy:
            return Truth(right, relative=LOSSY_TOLERANCE, limits=limits).check(found)
        return Truth(right, absolute=TOLERANCE, limits=limits).check(found)


SIZES = ("num_hidden_layers", "hidden_size", "vocab_size")


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
        L, d, V = (getattr(self.config, name) for name in SIZES)
        named = self.transformers("sdpa", torch.float32).named_parameters()
        matrices = [one for name, one in named if one.dim() == 2 and "embed" not in name]
        # Positions of GPT-2 are a table; the output embedding is the input embedding's.
        tables = {(self.config.max_position_embeddings, d), (V, d)}
        inner = sum(one.numel() for one in matrices if tuple(one.shape) not in tables)
        return 2 * B * T * (inner + d * V) + 4 * L * B * T * T * d


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


@contextmanager
def lossy_matmul() -> Iterator[None]:
    """torch's own switch: float32 products of oneDNN may round their inputs to bfloat16."""
    mkldnn: Any = torch.backends.mkldnn
    settings = mkldnn.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def transformers_plain(case: Case, *, dtype: torch.dtype, **around: Any) -> Prepared:
    return Prepared(case.transformers("sdpa", dtype), read_transformers, **around)


def transformers_captured(case: Case) -> Prepared:
    model = case.transformers("eager", torch.float32)
    run = partial(model, output_attentions=True, output_hidden_states=True)
    return Prepared(run, read_transformers)


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
    model = case.transformers("kept", torch.float32)

    def run(ids: Tensor) -> tuple[Tensor, list[dict[str, Tensor]]]:
        calls.clear()
        return model(ids).logits, list(calls)

    def read(result: tuple[Tensor, list[dict[str, Tensor]]]) -> Outputs:
        logits, layers = result
        return {"logits": logits, **numbered("probs", (layer["probs"] for layer in layers))}

    return Prepared(run, read)


def transformer_lens(case: Case) -> Prepared:
    require("transformer_lens")
    from transformer_lens.model_bridge import TransformerBridge

    # It makes the model's attention eager, so that scores and pattern exist.
    model = case.transformers("sdpa", torch.float32, owner="TransformerLens")
    bridge = TransformerBridge.boot_transformers(str(case.folder), hf_model=model, device="cpu")
    last = case.config.num_hidden_layers - 1
    final = "ln_final.hook_out" if case.config.model_type == "gpt2" else None

    def read(result: Any) -> Outputs:
        logits, kept = result
        hidden = [kept[f"blocks.{layer}.hook_resid_pre"] for layer in range(last + 1)]
        hidden.append(kept[final or f"blocks.{last}.hook_resid_post"])
        patterns = [kept[f"blocks.{layer}.attn.hook_pattern"] for layer in range(last + 1)]
        return {"logits": logits, **numbered("hidden", hidden), **numbered("probs", patterns)}

    return Prepared(bridge.run_with_cache, read)


def nnsight(case: Case, *, attention: str) -> Prepared:
    require("nnsight")
    from nnsight import NNsight

    hf = case.transformers(attention, torch.float32, owner="nnsight")
    with warnings.catch_warnings():
        # BERT calls a submodule `output`, and nnsight says how it renames it.
        warnings.simplefilter("ignore", UserWarning)
        model = NNsight(hf)
    trace = nnsight_gpt2 if case.config.model_type == "gpt2" else nnsight_bert

    def read(kept: dict[str, Tensor]) -> Outputs:
        checked = ("logits", "hidden", "probs")
        return {name: value for name, value in kept.items() if name.split()[0] in checked}

    return Prepared(partial(trace, model, attention == "eager"), read)


def nnsight_bert(model: Any, with_probs: bool, ids: Tensor) -> dict[str, Tensor]:
    import nnsight

    with model.trace(ids):
        kept = nnsight.save({})
        kept["hidden 0"] = model.bert.embeddings.output
        for number, layer in enumerate(model.bert.encoder.layer):
            attention = layer.attention.self
            kept[f"query {number}"] = attention.query.output
            kept[f"key {number}"] = attention.key.output
            kept[f"value {number}"] = attention.value.output
            kept[f"z {number}"] = attention.output[0]
            if with_probs:
                kept[f"probs {number}"] = attention.output[1]
            kept[f"hidden {number + 1}"] = layer.output
        kept["logits"] = model.output.logits
    return kept


def nnsight_gpt2(model: Any, with_probs: bool, ids: Tensor) -> dict[str, Tensor]:
    import nnsight

    last = model.config.n_layer
    with model.trace(ids):
        kept = nnsight.save({})
        for number, layer in enumerate(model.transformer.h):
            kept[f"hidden {number}"] = layer.input
            kept[f"query key value {number}"] = layer.attn.c_attn.output
            kept[f"z {number}"] = layer.attn.c_proj.input
            if with_probs:
                kept[f"probs {number}"] = layer.attn.output[1]
        kept[f"hidden {last}"] = model.transformer.ln_f.output
        kept["logits"] = model.output.logits
    return kept


def minibert_plain(case: Case, *, dtype: torch.dtype, linear: str | None) -> Prepared:
    model = case.minibert(dtype, linear)
    return Prepared(model, lambda logits: {"logits": logits}, partial(linear_backend, linear))


def minibert_trace(
    case: Case, *, dtype: torch.dtype, linear: str | None, **options: Any
) -> Prepared:
    run = partial(case.minibert(dtype, linear).trace, **options)
    return Prepared(run, read_trace, partial(linear_backend, linear))


def read_trace(trace: Any) -> Outputs:
    hidden, probs = trace.hidden_states, trace.attentions
    return {"logits": trace.logits, **numbered("hidden", hidden), **numbered("probs", probs)}


def minibert_one_head(case: Case, *, dtype: torch.dtype, linear: str | None) -> Prepared:
    model, (layer, head) = case.minibert(dtype, linear), case.one_head

    def run(ids: Tensor) -> Tensor:
        return model.trace(ids, until=layer)[layer, head].probs

    def read(probs: Tensor) -> Outputs:
        return {f"head {layer} {head}": probs}

    return Prepared(run, read, partial(linear_backend, linear))


def one_head_shape(shape: Shape) -> bool:
    return shape.model in ("bert-base", "bert-quick")


LAZY = "logits; embed; query, key, value, z, residual streams of each layer; the rest on demand"


def minibert_contenders(linear: str | None) -> list[Implementation]:
    """minibert's rows with one choice of the linear back end."""
    prefix = "minibert" if linear is None else f"minibert (linear={linear})"
    plain = partial(minibert_plain, dtype=torch.float32, linear=linear)
    trace = partial(minibert_trace, dtype=torch.float32, linear=linear)
    kept = partial(trace, keep=("scores", "probs"))
    one_head = partial(minibert_one_head, dtype=torch.float32, linear=linear)
    narrow: dict[str, Any] = {"dtype": "bfloat16", "lossy": True}
    narrow["yardstick"] = "transformers bfloat16"
    gives = "probs of one head of the middle layer"
    stored = f"{LAZY}; scores and probs stored"
    return [
        Implementation(f"{prefix} plain", "logits", plain),
        Implementation(f"{prefix} full trace", LAZY, trace),
        Implementation(f"{prefix} trace keep=scores,probs", stored, kept),
        Implementation(f"{prefix} one head", gives, one_head, applies=one_head_shape),
        Implementation(
            f"{prefix} bfloat16 full trace", LAZY, partial(trace, dtype=torch.bfloat16), **narrow
        ),
    ]


def peers() -> list[Implementation]:
    """The programs minibert is measured beside; the first is the reference."""
    plain = partial(transformers_plain, dtype=torch.float32)
    bfloat16 = partial(transformers_plain, dtype=torch.bfloat16)
    rounded = partial(plain, around=lossy_matmul)
    theirs: dict[str, Any] = {"package": "transformers"}
    named = "logits; query, key, value, z and hidden states of each layer"
    by_hand = "logits; query, key, value, scores, probs, z of each layer"
    hooks = "logits; all its hooks: query, key, value, scores, pattern, z, streams, MLP, norms"
    sdpa, eager = (partial(nnsight, attention=one) for one in ("sdpa", "eager"))
    eager_gives = "logits, hidden states, probs"
    return [
        Implementation(REFERENCE, "logits", plain, **theirs),
        Implementation("transformers eager, outputs", eager_gives, transformers_captured, **theirs),
        Implementation(BY_HAND, by_hand, by_attention_function, **theirs),
        Implementation(
            f"{REFERENCE}, fp32_precision=bf16", "logits", rounded, lossy=True, **theirs
        ),
        Implementation(
            "transformers bfloat16", "logits", bfloat16, dtype="bfloat16", lossy=True, **theirs
        ),
        Implementation(
            "TransformerLens run_with_cache", hooks, transformer_lens, "transformer_lens"
        ),
        Implementation("nnsight trace", named, sdpa, "nnsight"),
        Implementation("nnsight trace, eager", f"{named}; probs", eager, "nnsight"),
    ]


CONTENDERS = [*peers(), *minibert_contenders(None), *minibert_contenders("torch")]


def workloads(
    shapes: Sequence[Shape], contenders: Sequence[Implementation], wanted: Wanted
) -> Iterator[Workload]:
    """A workload for each shape; with anyone who is asked for runs the reference."""
    for model, of_model in groupby(shapes, lambda shape: shape.model):
        with tempfile.TemporaryDirectory() as folder:
            case = cache(partial(Case, model, Path(folder)))
            built = cache(lambda one, case=case: attempt(partial(one.prepare, case())))
            for shape in of_model:
                entered = select(shape, contenders, wanted)
                if entered:
                    yield workload(case(), shape, {one: built(one) for one in entered})


def select(
    shape: Shape, contenders: Sequence[Implementation], wanted: Wanted
) -> list[Implementation]:
    """Who runs at a shape; with anyone, the reference."""
    entered = [one for one in contenders if one.applies(shape)]
    asked = [one for one in entered if wanted(f"{shape} {one.name}")]
    return [one for one in entered if one in asked or one.name == REFERENCE] if asked else []


def workload(case: Case, shape: Shape, built: dict[Implementation, Prepared | Row]) -> Workload:
    """Everyone at one shape."""
    given, by_name = ids(case, shape), {one.name: one for one in built}
    right = cache(partial(case.reference, given))

    def about(name: str) -> Row:
        one = by_name[name]
        told = {"package": one.package, "dtype": one.dtype, "captures": one.captures}
        return {**vars(shape), **told, "flop": case.flop(shape), "flop_formula": FLOP_FORMULA}

    return Workload(
        str(shape),
        {
            one.name: made.on(given) if isinstance(made, Prepared) else made
            for one, made in built.items()
        },
        lambda name, found, verdicts: by_name[name].check(right(), found, verdicts),
        REFERENCE,
        about,
    )


def ids(case: Case, shape: Shape) -> Tensor:
    """Random token ids; low ones are special (padding) and left out."""
    generator = torch.Generator().manual_seed(0)
    size = (shape.batch, shape.position)
    return torch.randint(5, case.config.vocab_size, size, generator=generator)


def chosen_backends() -> Iterator[Row]:
    """What the rule of minibert's linear back ends says on this machine."""
    from minibert.cli.inventory import ROWS, linear_backends
    from minibert.layers.linear_backends import processor

    choices = {
        f"{row.dtype} {row.weight}": {
            "held": row.held.name,
            "rule": row.held.rule,
            "calls": dict(zip(map(str, ROWS), row.calls, strict=True)),
        }
        for row in linear_backends()
    }
    for shape, choice in choices.items():
        print(f"linear back end, {shape}: {choice['held']}  {choice['rule']}")
    yield {
        "what": "linear back ends",
        "ok": True,
        "processor": processor().name,
        "choices": choices,
    }


BENCHMARK = Benchmark(
    "models",
    "Speed of whole models beside their peers.",
    lambda chosen, wanted: workloads(QUICK if chosen.quick else SHAPES, CONTENDERS, wanted),
    quick_rounds=3,
    columns=("median ms", "p20 - p80", "ratio", "its p20 - p80", "peak MiB", "error"),
    last=chosen_backends,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
