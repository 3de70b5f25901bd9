"""Who is measured in `benchmarks.models`: how each is built, what it runs, what it gives back.

Everyone reads the same checkpoint folder, written by transformers. `run` does what a user of
that package does to get the quantities in `captures`; `read` names them for the gate.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import (
    Case,
    Implementation,
    Prepared,
    Shape,
    linear_backend,
    numbered,
    read_transformers,
)
from minibert.bench.gate import Outputs, require

REFERENCE = "transformers sdpa"
BY_HAND = "transformers, own attention function"


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
    one_head = partial(minibert_one_head, dtype=torch.float32, linear=linear)
    return [
        Implementation(f"{prefix} plain", "logits", plain),
        Implementation(f"{prefix} full trace", LAZY, trace),
        Implementation(
            f"{prefix} trace keep=scores,probs",
            f"{LAZY}; scores and probs stored",
            partial(trace, keep=("scores", "probs")),
        ),
        Implementation(
            f"{prefix} one head",
            "probs of one head of the middle layer",
            one_head,
            applies=one_head_shape,
        ),
        Implementation(
            f"{prefix} bfloat16 full trace",
            LAZY,
            partial(trace, dtype=torch.bfloat16),
            dtype="bfloat16",
            lossy=True,
            yardstick="transformers bfloat16",
        ),
    ]


def peers() -> list[Implementation]:
    """The programs minibert is measured beside; the first is the reference."""
    plain = partial(transformers_plain, dtype=torch.float32)
    bfloat16 = partial(transformers_plain, dtype=torch.bfloat16)
    named = "logits; query, key, value, z and hidden states of each layer"
    return [
        Implementation(REFERENCE, "logits", plain, package="transformers"),
        Implementation(
            "transformers eager, outputs",
            "logits, hidden states, probs",
            transformers_captured,
            package="transformers",
        ),
        Implementation(
            BY_HAND,
            "logits; query, key, value, scores, probs, z of each layer",
            by_attention_function,
            package="transformers",
        ),
        Implementation(
            "transformers sdpa, fp32_precision=bf16",
            "logits",
            partial(plain, around=lossy_matmul),
            package="transformers",
            lossy=True,
        ),
        Implementation(
            "transformers bfloat16",
            "logits",
            bfloat16,
            package="transformers",
            dtype="bfloat16",
            lossy=True,
        ),
        Implementation(
            "TransformerLens run_with_cache",
            "logits; all its hooks: query, key, value, scores, pattern, z, streams, MLP, norms",
            transformer_lens,
            package="transformer_lens",
        ),
        Implementation(
            "nnsight trace", named, partial(nnsight, attention="sdpa"), package="nnsight"
        ),
        Implementation(
            "nnsight trace, eager",
            f"{named}; probs",
            partial(nnsight, attention="eager"),
            package="nnsight",
        ),
    ]


CONTENDERS = [*peers(), *minibert_contenders(None), *minibert_contenders("torch")]
