"""Dictionaries of features: sparse autoencoders and transcoders, and the files they come in.

Two kinds of folder are read: SAELens' (cfg.json and sae_weights.safetensors) and circuit-tracer's
(config.yaml and one layer_N.safetensors a layer). A field that changes the numbers is honoured or
refused by its name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from minibert.checkpoint.files import read_safetensors
from minibert.checkpoint.headers import EMBEDDED, embedded_names
from minibert.checkpoint.hub import fetch_file
from minibert.errors import CheckpointError, check_index, did_you_mean
from minibert.quantities import Float
from minibert.untrusted import Json, present, read_json, read_yaml

Vectors = Float[Tensor, "*rows d_in"]


@dataclass(frozen=True, eq=False, repr=False)
class Dictionary:
    """What features of a vector are, and what they add up to.

        activations = activation((x' − b_dec) · W_enc + b_enc)
        decoded     = activations · directions + b_dec (+ x · W_skip), back in the units of x

    activation    "relu" (Bricken et al. 2023, "Towards monosemanticity"), "jumprelu": 0 up to a
                  `threshold` (Rajamanoharan et al. 2024, "Jumping ahead"), "gated": a gate
                  (`b_gate`) that shares W_enc with the size, times exp(r_mag) (Rajamanoharan et al.
                  2024, "Improving dictionary learning with gated sparse autoencoders"), or "topk":
                  the k largest (Gao et al. 2024, "Scaling and evaluating sparse autoencoders")
    subtracts     b_dec is taken from the input; a transcoder has none (Dunefsky et al. 2024,
                  "Transcoders find interpretable LLM feature circuits")
    normalizes    x' of x: "none", "layer_norm" (x − mean) / (deviation + 1e-5), or
                  "constant_norm_rescale", x · √d_in / ‖x‖
    centres       the mean of x is taken away first, as TransformerLens' centred writing weights do
    rescales      activations are in units of the directions' lengths ("topk")
    later         what an activation adds to the outputs of the later layers, one after the other,
                  of a cross-layer transcoder (Ameisen et al. 2025, "Circuit tracing"); in the
                  file's dtype
    model_weights the `weights_digest` of the model in float32, where the files say it
    """

    W_enc: Float[Tensor, "d_in feature"]
    b_enc: Float[Tensor, " feature"]
    W_dec: Float[Tensor, "feature d_out"]
    b_dec: Float[Tensor, " d_out"]
    threshold: Float[Tensor, " feature"] | None = None
    b_gate: Float[Tensor, " feature"] | None = None
    r_mag: Float[Tensor, " feature"] | None = None
    W_skip: Float[Tensor, "d_in d_out"] | None = None
    activation: str = "relu"
    k: int = 0
    subtracts: bool = False
    normalizes: str = "none"
    centres: bool = False
    rescales: bool = False
    later: tuple[Float[Tensor, "feature d_out"], ...] = ()
    model_weights: str = ""

    def like(self, x: Tensor) -> "Dictionary":
        """This dictionary with tensors of the dtype and device of x."""
        moved: Json = {n: t.to(x) for n, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, **moved)

    @property
    def directions(self) -> Float[Tensor, "feature d_out"]:
        """What an activation of 1 adds to `decoded`, where nothing is normalised."""
        return self.W_dec / self.W_dec.norm(dim=-1, keepdim=True) if self.rescales else self.W_dec

    def normalized(self, x: Vectors) -> tuple[Vectors, Tensor, Tensor]:
        """x' and what leads back, x' · scale + shift. A transcoder's output is not led back."""
        x = x - x.mean(-1, keepdim=True) if self.centres else x
        one = x.new_ones(*x.shape[:-1], 1)
        if self.normalizes == "layer_norm":
            shift, scale = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
            return (x - shift) / (scale + 1e-5), scale, shift
        if self.normalizes == "constant_norm_rescale":
            scale = x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5
            return x / scale, scale, 0 * one
        return x, one, 0 * one

    def encode(self, x: Vectors) -> Float[Tensor, "*rows feature"]:
        """The activation of each feature in each vector."""
        x = self.normalized(x)[0]
        pre = (x - self.b_dec if self.subtracts else x) @ self.W_enc
        if self.activation == "gated":
            assert self.r_mag is not None
            assert self.b_gate is not None
            size = (pre * self.r_mag.exp() + self.b_enc).relu()
            return size * (pre + self.b_gate > 0)
        pre = pre + self.b_enc
        if self.activation == "topk":
            pre = pre * self.W_dec.norm(dim=-1) if self.rescales else pre
            found = pre.topk(self.k, dim=-1)
            return torch.zeros_like(pre).scatter(-1, found.indices, found.values.relu())
        return pre.relu() if self.threshold is None else pre * (pre > self.threshold)


_OF_STREAM = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")


class Spot(NamedTuple):
    """Where vectors stand in a model: a quantity's name and its layer.

    Beside quantities there are "mlp_input", what the MLP reads, and "mlp_normalized", the same
    before the weight and bias of its norm.
    """

    name: str
    layer: int


_HOOKS = {
    "hook_resid_pre": "resid_pre", "hook_resid_mid": "resid_mid", "hook_resid_post": "resid_post",
    "hook_attn_out": "attn_out", "hook_mlp_out": "mlp_out", "mlp.hook_out": "mlp_out",
    "mlp.hook_post": "mlp_post", "attn.hook_z": "z",
}  # fmt: skip
_INPUTS = {
    "hook_mlp_in": "resid_mid", "mlp.hook_in": "mlp_input", "ln2.hook_normalized": "mlp_normalized",
}  # fmt: skip


def _spot(hook: object, where: object, *, reads: bool) -> Spot:
    """The place that TransformerLens' name says, "blocks.3.hook_resid_pre"."""
    found = re.fullmatch(r"blocks\.(\d{1,4})\.([\w.]+)", hook) if isinstance(hook, str) else None
    name = ((_INPUTS if reads else {}) | _HOOKS).get(found[2]) if found else None
    if found is None or name is None:
        raise CheckpointError(
            f"{where}: {hook!r:.80} is not a place that features are read at; expected "
            f"blocks.LAYER. and {', '.join(_HOOKS)}, or of a transcoder {', '.join(_INPUTS)}."
        )
    return Spot(name, int(found[1]))


_LINK = re.compile(r"hf://([\w.-]+/[\w.-]+)/([\w./-]+)(?:\?revision=([\w./-]+))?")


class _Kind(NamedTuple):
    """What an architecture of SAELens is."""

    activation: str
    transcodes: bool = False
    skips: bool = False


_KINDS = {
    "standard": _Kind("relu"),
    "gated": _Kind("gated"),
    "jumprelu": _Kind("jumprelu"),
    "topk": _Kind("topk"),
    "transcoder": _Kind("relu", transcodes=True),
    "skip_transcoder": _Kind("relu", transcodes=True, skips=True),
    "jumprelu_transcoder": _Kind("jumprelu", transcodes=True),
    "jumprelu_skip_transcoder": _Kind("jumprelu", transcodes=True, skips=True),
}
_BIASES = {
    "gated": {"b_gate": "b_gate", "b_mag": "b_enc", "r_mag": "r_mag"},
    "jumprelu": {"b_enc": "b_enc", "threshold": "threshold"},
}
# Fields that say how it was trained and with which model, not what a feature is.
_OF_TRAINING = re.compile(
    r"(adam|autocast|b_dec_init|dataset|dead_feature|decoder_|eval_|feature_sampling|hf_hook_|"
    r"jumprelu_|l0_|l1_|llm_|log|lr|model_(class_)?name|mse_loss|n_|noise_|sae_compilation|"
    r"sae_lens_|scale_sparsity|sparsity_|store_|train|wandb_).*|act_store_device|"
    r"activations_mixing_fraction|cached_activations_path|checkpoint_path|compile_(llm|sae)|"
    r"context_size|d_head|device|disable_concat_sequences|exclude_special_tokens|expansion_factor|"
    r"from_pretrained_path|hook_eval|init_encoder_as_decoder_transpose|is_dataset_tokenized|"
    r"model_kwargs|neuronpedia_id|normalize_sae_decoder|output_path|prefetch_llm_batches|"
    r"prepend_bos|resume(_from_checkpoint)?|run_name|save_final_checkpoint|seed|seqpos_slice|"
    r"sequence_separator_token|streaming|tokens_per_buffer|use_(cached_activations|"
    r"chat_formatting|ghost_grads)|verbose"
)
_OLD_NAMES = {
    "hook_point": "hook_name",
    "hook_point_layer": "hook_layer",
    "hook_point_head_index": "hook_head_index",
    "activation_fn_str": "activation_fn",
}
# Of metadata, which may hold anything, what changes the numbers.
_OF_METADATA = (
    "model_weights",
    "hook_name",
    "hook_name_out",
    "hook_head_index",
    "model_from_pretrained_kwargs",
)
_DTYPES = {
    name: dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    for name in (str(dtype), str(dtype).removeprefix("torch."))
}
Choice = TypeVar("Choice")


class _Fields:
    """The fields of a configuration, each taken once; what is left over was not expected."""

    def __init__(self, content: Json, where: Path) -> None:
        self.left, self.where = dict(content), where

    def take(self, name: str, default: object = None) -> object:
        """The field, or the default where it is absent or null."""
        found = self.left.pop(name, None)
        return default if found is None else found

    def one_of(self, name: str, choices: Mapping[str, Choice], default: object = None) -> Choice:
        """What the field stands for."""
        found = self.take(name, default)
        if not isinstance(found, str) or found not in choices:
            raise self.refused(name, found, f"expected one of {', '.join(choices)}")
        return choices[found]

    def flag(self, name: str, default: bool) -> bool:
        """The field, which is true or false."""
        found = self.take(name, default)
        if not isinstance(found, bool):
            raise self.refused(name, found, "expected true or false")
        return found

    def only(self, name: str, expected: object) -> None:
        """Take a field that has to be this where it is there."""
        if (found := self.take(name, expected)) != expected:
            raise self.refused(name, found, f"expected {expected!r:.80}")

    def refused(self, name: str, found: object, why: str) -> CheckpointError:
        """The error for a value that cannot be honoured."""
        return CheckpointError(f"{self.where}: {name} is {found!r:.80}; {why}.")

    def check_empty(self) -> None:
        """Raise CheckpointError for fields that nobody knows."""
        if self.left:
            unknown = ", ".join(sorted(map(str, self.left))[:8])
            raise CheckpointError(
                f"{self.where}: minibert does not know {unknown}, which may change the numbers. "
                "Remove the fields that do not."
            )


Found = tuple[Dictionary, Spot, Spot]


def read_saelens(config: Path, weights: Path) -> Found:
    """The dictionary of SAELens' two files, where it reads and what it explains.

    Source: `SAE.load_from_disk` of SAELens 6, `sae_lens/saes`.
    """
    given = _fields_of_saelens(config)
    kind = given.one_of("architecture", _KINDS, "standard")
    activation, k = kind.activation, given.take("k", 100)
    options = given.take("activation_fn_kwargs", {})
    if given.one_of("activation_fn", {"relu": False, "topk": True}, "relu"):
        activation, k = "topk", options.get("k") if isinstance(options, dict) else None
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise given.refused("k", k, "expected a whole number of at least 1")
    hook = given.take("hook_name")
    reads = writes = _spot(hook, config, reads=kind.transcodes)
    if kind.transcodes:
        writes = _spot(given.take("hook_name_out"), config, reads=False)
        given.only("apply_b_dec_to_input", expected=False)
    given.take("hook_name_out")
    given.only("hook_layer", reads.layer)
    given.only("hook_layer_out", writes.layer)
    given.only("hook_head_index", None)
    given.only("finetuning_scaling_factor", expected=False)
    given.only("reshape_activations", "hook_z" if reads.name == "z" else "none")
    choices = _choices(given)
    dtype = given.one_of("dtype", _DTYPES, "float32")
    subtracts = given.flag("apply_b_dec_to_input", not kind.transcodes)
    model_weights = str(given.take("model_weights", ""))
    d_in, d_sae = given.take("d_in"), given.take("d_sae")
    sizes = (d_in, d_sae, given.take("d_out", d_in))
    given.check_empty()
    wanted = {name: name for name in ("W_enc", "W_dec", "b_dec", *["W_skip"] * kind.skips)}
    wanted |= _BIASES.get(activation, {"b_enc": "b_enc"})
    made = replace(
        _checked(_tensors(weights, wanted, dtype), weights), activation=activation, **choices
    )
    if sizes != (*made.W_enc.shape, made.W_dec.shape[1]):
        raise given.refused("d_in, d_sae, d_out", sizes, "the weights have other sizes")
    if activation == "topk" and k > len(made.W_dec):
        raise given.refused("k", k, f"there are {len(made.W_dec)} features")
    if made.threshold is not None:
        # A ReLU stands in front of this threshold, which lets nothing below 0 through.
        made = replace(made, threshold=made.threshold.clamp(min=0))
    # Centred weights change the stream and what is written to it.
    centres = made.centres and reads.name in _OF_STREAM
    made = replace(made, k=k, subtracts=subtracts, centres=centres, model_weights=model_weights)
    return made, reads, writes


def _fields_of_saelens(config: Path) -> _Fields:
    content = read_json(config)
    about = content.pop("metadata", None) or {}
    if not isinstance(about, dict):
        raise CheckpointError(f"{config}: metadata is not an object.")
    both = {name: about[name] for name in _OF_METADATA if name in about} | content
    kept = {_OLD_NAMES.get(n, n): v for n, v in both.items() if not _OF_TRAINING.fullmatch(n)}
    return _Fields(kept, config)


def _choices(given: _Fields) -> Json:
    """What is done to vectors before they are read: normalizes, centres, rescales."""
    normalizes = given.take("normalize_activations", "none") or "none"
    known = ("none", "layer_norm", "constant_norm_rescale")
    if normalizes not in known:
        raise given.refused(
            "normalize_activations",
            normalizes,
            f"expected one of {', '.join(known)}. Others need numbers that the files do not have: "
            "fold them into the weights with SAELens and save again",
        )
    loading = given.take("model_from_pretrained_kwargs", {})
    centres = isinstance(loading, dict) and loading.pop("center_writing_weights", False)
    if not isinstance(loading, dict) or any(loading.values()):
        raise given.refused("model_from_pretrained_kwargs", loading, "the model is another one")
    rescales = given.flag("rescale_acts_by_decoder_norm", default=False)
    return {"normalizes": normalizes, "centres": bool(centres), "rescales": rescales}


def _tensors(path: Path, wanted: Mapping[str, str], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The tensors of a file, by our names for them; no others may be there."""
    entries = read_safetensors(path)
    scaling = entries.pop("scaling_factor", None)
    if scaling is not None and not bool((scaling.load() == 1).all()):
        raise CheckpointError(f"{path}: scaling_factor is not 1; such features are not read.")
    if wrong := sorted(wanted.keys() ^ entries.keys()):
        is_there = "was not expected" if wrong[0] in entries else "is missing"
        raise CheckpointError(f"{path}: {wrong[0]} {is_there}; expected {', '.join(wanted)}.")
    if odd := [name for name, each in entries.items() if not each.dtype.is_floating_point]:
        raise CheckpointError(f"{path}: {odd[0]} is {entries[odd[0]].dtype}; expected floats.")
    return {ours: entries[theirs].load().to(dtype) for theirs, ours in wanted.items()}


_AXES = {
    "W_enc": "d_in feature",
    "W_dec": "feature d_out",
    "W_skip": "d_out d_in",
    "b_dec": "d_out",
}


def _checked(tensors: dict[str, Tensor], path: Path) -> Dictionary:
    """The dictionary of these tensors, once all shapes fit and all numbers are finite."""
    sizes = dict[str, int]()
    for name, tensor in tensors.items():
        axes = _AXES.get(name, "feature").split()
        shape = tuple(
            sizes.setdefault(axis, n) for axis, n in zip(axes, tensor.shape, strict=False)
        )
        if tensor.ndim != len(axes) or tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{path}: {name} has the shape {tuple(tensor.shape)}; expected {axes}, of {sizes}."
            )
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{path}: {name} holds NaN or infinite numbers.")
    skip = tensors.pop("W_skip", None)
    return Dictionary(**cast(Any, tensors), W_skip=None if skip is None else skip.mT)


def read_circuit_tracer(
    config: Path, layer: int | None, file_of: Callable[[str], Path]
) -> list[Found]:
    """The transcoder of one layer of circuit-tracer's set, or of every layer of one across layers.

    `file_of` a name gives its file. Source: `load_transcoders`, `load_relu_transcoder` and
    `load_clt` of circuit-tracer 0.5.
    """
    given = _Fields(read_yaml(config), config)
    across = given.one_of("model_kind", {"transcoder_set": False, "cross_layer_transcoder": True})
    hooks = [given.take(f"feature_{side}_hook") for side in ("input", "output")]
    listed = given.take("transcoders")
    for name in ("model_name", "scan", "revision", "repo_id", "subfolder"):
        given.take(name)
    given.check_empty()

    def spots(layer: int) -> list[Spot]:
        names = [f"blocks.{layer}.{hook}" for hook in hooks]
        return [_spot(name, config, reads=not side) for side, name in enumerate(names)]

    if across:
        if layer is not None or listed is not None:
            raise CheckpointError(
                f"{config}: a cross_layer_transcoder is one of all layers, in W_enc_N.safetensors "
                "and W_dec_N.safetensors; leave out layer= and transcoders."
            )
        if spots(0)[1].name != "mlp_out":
            raise given.refused("feature_output_hook", hooks[1], "expected hook_mlp_out")
        first = _across(file_of, 0)
        n_layers = 1 + len(first.later)
        more = file_of("W_enc_0.safetensors").with_name(f"W_enc_{n_layers}.safetensors")
        if present(more):
            raise CheckpointError(f"{more}: W_dec_0 writes to {n_layers} layers; remove this file.")
        rest = [_across(file_of, n, first) for n in range(1, n_layers)]
        return [(one, *spots(n)) for n, one in enumerate([first, *rest])]  # type: ignore[misc]
    if layer is None:
        raise CheckpointError(f"{config}: it has one transcoder a layer; say which, layer=0.")
    most = len(listed) if isinstance(listed, list) else 2**14
    layer = check_index("layer", layer, most, CheckpointError)
    name = listed[layer] if isinstance(listed, list) else f"layer_{layer}.safetensors"
    path = file_of(str(name))
    wanted = {name: name for name in ("W_enc", "W_dec", "b_enc", "b_dec")}
    extra = {"W_skip": "W_skip", "activation_function.threshold": "threshold"}
    there = read_safetensors(path)
    tensors = _tensors(path, wanted | {n: o for n, o in extra.items() if n in there}, None)
    if tensors["W_enc"].ndim == 2:
        tensors["W_enc"] = tensors["W_enc"].mT
    activation = "jumprelu" if "threshold" in tensors else "relu"
    reads, writes = spots(layer)
    return [(replace(_checked(tensors, path), activation=activation), reads, writes)]


def _across(
    file_of: Callable[[str], Path], layer: int, first: Dictionary | None = None
) -> Dictionary:
    """The features of one layer of a cross-layer transcoder, of the sizes of the first layer's."""
    path, behind = (file_of(f"W_{side}_{layer}.safetensors") for side in ("enc", "dec"))
    wanted = {f"{name}_{layer}": name for name in ("W_enc", "b_enc", "b_dec")}
    if f"threshold_{layer}" in read_safetensors(path):
        wanted[f"threshold_{layer}"] = "threshold"
    tensors = _tensors(path, wanted, None)
    decoders = _tensors(behind, {f"W_dec_{layer}": "W_dec"}, None)["W_dec"]
    sizes = None if first is None else (len(first.W_dec), 1 + len(first.later) - layer)
    if decoders.ndim != 3 or not decoders.shape[1] or sizes not in (None, decoders.shape[:2]):
        raise CheckpointError(
            f"{behind}: W_dec_{layer} has the shape {tuple(decoders.shape)}; expected (features, "
            "layers from its own on, d_model)"
            + ("." if sizes is None else f", here {(*sizes, decoders.shape[-1])}.")
        )
    own, *later = decoders.unbind(1)
    if not all(bool(one.isfinite().all()) for one in later):
        raise CheckpointError(f"{behind}: W_dec_{layer} holds NaN or infinite numbers.")
    made = _checked(tensors | {"W_enc": tensors["W_enc"].mT, "W_dec": own}, path)
    activation = "relu" if made.threshold is None else "jumprelu"
    return replace(made, activation=activation, later=tuple(later))


def open_dictionary(
    name: str | Path,
    layer: int | None = None,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
) -> list[Found]:
    """The dictionary of a folder or of a Hub id, "owner/name" or "owner/name/a/folder/in/it".

    Of a cross-layer transcoder there is one a layer.
    Raises CheckpointError where it cannot be found, fetched or read.
    """
    folder = EMBEDDED / name / "features" if str(name) in embedded_names() else Path(name)
    files = _Files(folder, str(name), revision, cache_dir, offline)
    config = files.find("cfg.json", "config.yaml")
    if config.name == "config.yaml":
        return read_circuit_tracer(config, layer, files.find)
    found = read_saelens(config, files.find("sae_weights.safetensors"))
    if layer not in (None, found[1].layer):
        raise CheckpointError(f"{name}: these are features of layer {found[1].layer}, not {layer}.")
    return [found]


@dataclass(frozen=True)
class _Files:
    """The files of a folder, or of a Hub repository and a folder in it."""

    folder: Path
    name: str
    revision: str | None
    cache_dir: str | Path | None
    offline: bool

    def find(self, *names: str) -> Path:
        """The first of these that is there; a name may also be hf://owner/name/file."""
        if linked := re.fullmatch(_LINK, names[0]):
            return self._fetch(linked[1], (linked[2],), linked[3])
        if not all(re.fullmatch(r"[\w-][\w.-]{0,200}", each) for each in names):
            raise CheckpointError(f"{self.name}: {names[0]!r:.80} is not the name of a file.")
        if self.folder.is_dir():
            for each in names:
                if present(self.folder / each):
                    return self.folder / each
            raise CheckpointError(f"{self.folder} has no {' or '.join(names)}.")
        found = re.fullmatch(r"([\w.-]+/[\w.-]+)(/[\w./-]+)?", self.name)
        if found is None:
            here = [one for one in embedded_names() if (EMBEDDED / one / "features").is_dir()]
            raise CheckpointError(
                f"{self.name!r:.80} is neither a folder nor a Hub id (owner/name)"
                f"{did_you_mean(self.name, here)}; embedded are features of {', '.join(here)}."
            )
        inside = (found[2] or "").strip("/")
        return self._fetch(
            found[1], [f"{inside}/{each}".lstrip("/") for each in names], self.revision
        )

    def _fetch(self, repo: str, names: Sequence[str], revision: str | None) -> Path:
        options: Json = {"cache_dir": self.cache_dir, "offline": self.offline}
        return fetch_file(repo, names, revision=revision, **options)
