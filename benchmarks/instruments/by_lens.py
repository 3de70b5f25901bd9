"""TransformerLens' answers: models of its own (up to 3.9) and the bridge around transformers'."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case, Implementation, Prepared
from benchmarks.instruments import entry, tasks
from benchmarks.instruments.entry import Entry
from benchmarks.instruments.tasks import RIGHT, Given, metric
from minibert.bench.gate import GateError, Outputs, require
from minibert.bench.result_rows import version

Build = Callable[[Case], Any]
Run = Callable[[Any, Given], Any]


def major() -> int:
    """The first number of TransformerLens' version."""
    require("transformer_lens")
    return int(str(version("transformer_lens")).partition(".")[0])


def hooked(case: Case) -> Any:
    """HookedTransformer or HookedEncoder with the weights of the case."""
    if major() > 3:
        raise GateError(f"TransformerLens {version('transformer_lens')} has none; 3.9 has")
    import transformer_lens as lens
    from transformer_lens.pretrained import weight_conversions as convert

    config, bert = case.config, case.config.model_type == "bert"
    wanted = lens.HookedTransformerConfig(
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        n_ctx=config.max_position_embeddings,
        d_head=config.hidden_size // config.num_attention_heads,
        n_heads=config.num_attention_heads,
        d_mlp=config.intermediate_size if bert else 4 * config.hidden_size,
        d_vocab=config.vocab_size,
        act_fn="gelu" if bert else "gelu_new",
        normalization_type="LN",
        eps=config.layer_norm_eps if bert else config.layer_norm_epsilon,
        attention_dir="bidirectional" if bert else "causal",
        device="cpu",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = (lens.HookedEncoder if bert else lens.HookedTransformer)(wanted)
    if bert:
        state = convert.convert_bert_weights(with_pooler(case), wanted)
    else:
        state = convert.convert_gpt2_weights(case.transformers("sdpa", torch.float32), wanted)
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    return model.eval()


def with_pooler(case: Case) -> Any:
    """The same BERT with a pooler, which TransformerLens' conversion asks for; nothing reads it."""
    import transformers

    model = transformers.BertForPreTraining(case.config)
    model.load_state_dict(case.transformers("sdpa", torch.float32).state_dict(), strict=False)
    return model


def bridge(case: Case, *, attention: str) -> Any:
    """TransformerBridge. From 4 on it makes attention explicit by itself, 3.9 has to be told."""
    require("transformer_lens")
    from transformer_lens.model_bridge import TransformerBridge

    model = case.transformers(attention, torch.float32, owner="TransformerLens")
    return TransformerBridge.boot_transformers(str(case.folder), hf_model=model, device="cpu")


def full_trace(model: Any, given: Given) -> Any:
    return model.run_with_cache(given.ids)


def read_cache(result: Any) -> Outputs:
    logits, cache = result
    found, layer = {"logits": logits}, 0
    while f"blocks.{layer}.hook_resid_post" in cache:
        # HookedEncoder's resid_post is what its LayerNorm reads.
        normalized = f"blocks.{layer}.hook_normalized_resid_post"
        post = normalized if normalized in cache else f"blocks.{layer}.hook_resid_post"
        found[f"hidden {layer}"] = cache[post]
        found[f"probs {layer}"] = cache[f"blocks.{layer}.attn.hook_pattern"]
        for name, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("z", "z")):
            value = cache[f"blocks.{layer}.attn.hook_{letter}"]
            # Theirs have the head behind the position.
            found[f"{name} {layer}"] = value.transpose(1, 2)
        layer += 1
    return found


def kind_of(model: Any) -> str:
    return type(model).__name__


def one_head(model: Any, given: Given) -> Tensor:
    name = f"blocks.{given.layer}.attn.hook_pattern"
    stop = {} if kind_of(model) == "HookedEncoder" else {"stop_at_layer": given.layer + 1}
    _, cache = model.run_with_cache(given.ids, names_filter=name, **stop)
    return cache[name][:, given.head]


def zero_head(head: int) -> Callable[..., Tensor]:
    def zero(value: Tensor, hook: Any) -> Tensor:
        value[:, :, head] = 0
        return value

    return zero


def z_hook(layer: int, head: int) -> list[tuple[str, Any]]:
    return [(f"blocks.{layer}.attn.hook_z", zero_head(head))]


def ablation(model: Any, given: Given) -> Tensor:
    return model.run_with_hooks(given.ids, fwd_hooks=z_hook(given.layer, given.head))


def can_start(model: Any) -> bool:
    """Whether start_at_layer spares the layers below: the bridge runs them and throws them away."""
    return kind_of(model) == "HookedTransformer"


def beside_clean(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    """Where the model can, the second pass starts at what entered the layer in the first."""
    if not can_start(model):
        return model(given.ids), ablation(model, given)
    name = f"blocks.{given.layer}.hook_resid_pre"
    clean, cache = model.run_with_cache(given.ids, names_filter=name)
    edit = z_hook(given.layer, given.head)
    return clean, model.run_with_hooks(cache[name], fwd_hooks=edit, start_at_layer=given.layer)


def starts(model: Any, given: Given) -> tuple[Tensor, list[tuple[Tensor, dict[str, int]]]]:
    """The clean logits, and for each layer where a pass that edits it begins."""
    n_layers = model.cfg.n_layers
    if not can_start(model):
        return model(given.ids), [(given.ids, {})] * n_layers
    logits, cache = model.run_with_cache(given.ids, names_filter=ending("hook_resid_pre"))
    streams = [cache[f"blocks.{layer}.hook_resid_pre"] for layer in range(n_layers)]
    return logits, [(stream, {"start_at_layer": n}) for n, stream in enumerate(streams)]


def ending(end: str) -> Callable[[str], bool]:
    return lambda name: name.endswith(end)


def head_sweep(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    measured = metric(given)
    clean, begins = starts(model, given)
    values = torch.empty(model.cfg.n_layers, model.cfg.n_heads)
    for layer, (start, options) in enumerate(begins):
        for head in range(model.cfg.n_heads):
            edited = model.run_with_hooks(start, fwd_hooks=z_hook(layer, head), **options)
            values[layer, head] = measured(edited)
    return values, measured(clean)[0]


def patch_sweep(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    """What patching.get_act_patch_resid_pre does, for resid_post and with start_at_layer."""
    measured, end = metric(given), "hook_resid_post"
    clean, begins = starts(model, given)
    _, source = model.run_with_cache(given.other, names_filter=ending(end))

    def patched(value: Tensor, hook: Any, *, name: str, position: int) -> Tensor:
        value[:, position] = source[name][:, position]
        return value

    values = torch.empty(model.cfg.n_layers, given.ids.shape[1])
    for layer, (start, options) in enumerate(begins):
        name = f"blocks.{layer}.{end}"
        for position in range(values.shape[1]):
            hooks = [(name, partial(patched, name=name, position=position))]
            values[layer, position] = measured(
                model.run_with_hooks(start, fwd_hooks=hooks, **options)
            )
    return values, measured(clean)[0]


def gradient(model: Any, given: Given) -> tuple[Tensor, ...]:
    kept: list[Tensor] = []

    def begin(value: Tensor, hook: Any) -> Tensor:
        return value.requires_grad_()

    def keep(value: Tensor, hook: Any) -> None:
        kept.append(value)

    hooks = [("blocks.0.hook_resid_pre", begin), (ending("attn.hook_pattern"), keep)]
    logits = model.run_with_hooks(given.ids, fwd_hooks=hooks)
    return torch.autograd.grad(logits[0, given.position, RIGHT], kept)


def padded(model: Any, given: Given) -> tuple[Tensor, Tensor]:
    name = "one_zero_attention_mask" if kind_of(model) == "HookedEncoder" else "attention_mask"
    return model(given.ids, **{name: given.attention_mask}), given.mask


def prepare(case: Case, *, build: Build, run: Run, read: Callable[[Any], Outputs]) -> Prepared:
    return Prepared(partial(run, entry.once(case, build)), read)


def prepare_gradient(case: Case, *, build: Build) -> Prepared:
    """Weights without gradients, so that the graph starts at the embeddings."""
    model = entry.once(case, build)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return Prepared(partial(gradient, model), entry.numbered_gradients, torch.enable_grad)


CACHE = "logits; query, key, value, scores, pattern, z, streams, MLP, norms"
# Task, what it gives, how, how that is read, and whether it needs explicit attention.
ROWS: list[tuple[str, str, Run, Callable[[Any], Outputs], bool]] = [
    (tasks.FULL_TRACE, CACHE, full_trace, read_cache, True),
    (tasks.ONE_HEAD, "pattern of a layer, names_filter, stop_at_layer", one_head, entry.head, True),
    (tasks.ABLATION, "logits, run_with_hooks", ablation, entry.ablated, False),
    (
        tasks.BESIDE_CLEAN,
        "clean and edited logits; start_at_layer where it spares layers",
        beside_clean,
        entry.clean_and_ablated,
        False,
    ),
    (tasks.HEAD_SWEEP, "a pass a head, start_at_layer", head_sweep, entry.sweep, False),
    (tasks.PATCH_SWEEP, "a pass a position, start_at_layer", patch_sweep, entry.sweep, False),
    (tasks.RAGGED, "logits of the padded batch", padded, entry.real_logits, False),
    (tasks.MEMORY, CACHE, full_trace, read_cache, True),
]


def entries() -> list[Entry]:
    """Both kinds of model, for each task."""
    explicit, fused = (partial(bridge, attention=name) for name in ("eager", "sdpa"))
    models: list[tuple[str, Build, Build]] = [
        ("TransformerLens HookedTransformer/HookedEncoder", hooked, hooked),
        ("TransformerLens TransformerBridge", explicit, fused),
    ]
    found = []
    for name, whole, plain in models:
        for task, gives, run, read, matrices in ROWS:
            built = partial(prepare, build=whole if matrices else plain, run=run, read=read)
            found.append(
                Entry(task, Implementation(name, gives, built, package="transformer_lens"))
            )
        built = partial(prepare_gradient, build=whole)
        gives = "gradients of the cached patterns"
        contender = Implementation(name, gives, built, package="transformer_lens")
        found.append(Entry(tasks.GRADIENT, contender))
    return found
