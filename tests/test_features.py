"""Features are those of the published formulas in NumPy, and of SAELens and circuit-tracer."""

import json
import shutil
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from vocabulary_models import both

import minibert
from minibert import features
from minibert.analysis import prediction_graph, why, why_logit, why_stream
from minibert.errors import CheckpointError, EditError, MinibertError, TraceError
from tests.checkpoint.hub_server import NAME, hub_of

Array = np.ndarray
ARCHITECTURES = (
    *("standard", "gated", "jumprelu", "topk", "transcoder", "skip_transcoder"),
    *("jumprelu_transcoder", "jumprelu_skip_transcoder"),
)
POINTS = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z")
INPUTS = {"hook_mlp_in": "resid_mid", "hook_resid_mid": "resid_mid", "hook_resid_pre": "resid_pre"}


class Drawn:
    """Random weights of an architecture, and its formulas in NumPy and float64."""

    def __init__(self, data: Any, kind: str, d_in: int, d_out: int) -> None:
        seed = data.draw(st.integers(0, 2**20))
        self.random, self.kind = np.random.default_rng(seed), kind
        count, normal = data.draw(st.integers(3, 40)), self.random.normal
        self.transcodes = "transcoder" in kind
        self.weights = {
            "W_enc": normal(size=(d_in, count)), "W_dec": normal(size=(count, d_out)),
            "b_dec": normal(size=d_out),
        }  # fmt: skip
        own = ["b_gate", "b_mag", "r_mag"] if kind == "gated" else ["b_enc"]
        own += ["threshold"] * ("jumprelu" in kind)
        self.weights |= {name: normal(size=count) for name in own}
        if "skip" in kind:
            self.weights["W_skip"] = normal(size=(d_out, d_in))
        self.k = data.draw(st.integers(1, count))
        flag = st.booleans()
        self.rescales = kind == "topk" and data.draw(flag)
        self.subtracts = not self.transcodes and data.draw(flag)
        kinds = ["none", "layer_norm", "constant_norm_rescale"]
        self.normalizes = data.draw(st.sampled_from(kinds))
        self.centres = not self.transcodes and self.normalizes == "none" and data.draw(flag)

    def save(self, folder: Path, hooks: tuple[str, str], *, old: bool = False) -> Path:
        """SAELens' two files, with its newest fields or those of old."""
        about: dict[str, Any] = {
            "architecture": self.kind, "d_in": len(self.weights["W_enc"]), "dtype": "float64",
            "d_sae": len(self.weights["W_dec"]), "device": "cpu", "reshape_activations":
            "hook_z" if hooks[0].endswith("z") else "none", "apply_b_dec_to_input": self.subtracts,
            "normalize_activations": self.normalizes,
        }  # fmt: skip
        if self.kind == "topk":
            about |= {"k": self.k, "rescale_acts_by_decoder_norm": self.rescales}
        if self.transcodes:
            about["d_out"] = len(self.weights["b_dec"])
        metadata: dict[str, Any] = {"hook_name": hooks[0], "sae_lens_version": "6.54.12"}
        metadata["model_from_pretrained_kwargs"] = {"center_writing_weights": self.centres}
        if self.transcodes:
            metadata["hook_name_out"] = hooks[1]
        if old:
            about |= {"hook_point": metadata.pop("hook_name"), "lr": 1e-3, "prepend_bos": True}
            about |= metadata | {"sae_lens_version": "3.0.0"}
            if self.kind == "topk":
                about |= {"activation_fn_str": "topk", "architecture": "standard"}
                about["activation_fn_kwargs"] = {"k": about.pop("k")}
        else:
            about["metadata"] = metadata
        folder.mkdir()
        (folder / "cfg.json").write_text(json.dumps(about))
        tensors = {name: torch.from_numpy(each) for name, each in self.weights.items()}
        save_file(tensors, folder / "sae_weights.safetensors")
        return folder

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Activations and what they decode to, of rows of x."""
        w, given, scale, shift = self.weights, x, 1.0, 0.0
        if self.centres:
            x = x - x.mean(-1, keepdims=True)
        if self.normalizes == "layer_norm":
            shift, scale = x.mean(-1, keepdims=True), x.std(-1, keepdims=True, ddof=1)
            x = (x - shift) / (scale + 1e-5)
        if self.normalizes == "constant_norm_rescale":
            scale = np.linalg.norm(x, axis=-1, keepdims=True) / np.sqrt(x.shape[-1])
            x = x / scale
        if self.subtracts:
            x = x - w["b_dec"]
        lengths = np.linalg.norm(w["W_dec"], axis=-1)
        if self.kind == "gated":
            size = x @ (w["W_enc"] * np.exp(w["r_mag"])) + w["b_mag"]
            acts = np.maximum(size, 0) * (x @ w["W_enc"] + w["b_gate"] > 0)
        else:
            pre = x @ w["W_enc"] + w["b_enc"]
            pre = pre * lengths if self.rescales else pre
            least = np.sort(pre)[..., -self.k][..., None] if self.kind == "topk" else -np.inf
            acts = np.maximum(pre, 0) * (pre >= least)
            if "threshold" in w:
                acts = acts * (pre > w["threshold"])
        decoded = (acts / lengths if self.rescales else acts) @ w["W_dec"] + w["b_dec"]
        if not self.transcodes:
            decoded = decoded * scale + shift
        return acts, decoded + (given @ w["W_skip"].T if "W_skip" in w else 0)


@cache
def small(family: str = "gpt2", kind: str = "GPT2LMHeadModel") -> tuple[Any, Any]:
    """A model of two layers in float64, and three sentences for it."""
    _, model, _, tokens = both(family, kind)
    return model, tokens


def flat(at: Any, name: str) -> Tensor:
    """A quantity, heads side by side."""
    value: Tensor = getattr(at, name)
    return value.transpose(1, 2).flatten(2) if name == "z" else value


def drawn_features(data: Any, folder: Path, model: Any, kind: str, points: Any = POINTS) -> Any:
    """Features of a drawn place, the formulas, and the quantity that they read and explain."""
    layer, name = data.draw(st.integers(0, 1)), data.draw(st.sampled_from(points))
    hooks = f"blocks.{layer}." + ("attn.hook_z" if name == "z" else f"hook_{name}")
    reads, width = name, model.config.d_model
    if "transcoder" in kind:
        hook = data.draw(st.sampled_from(list(INPUTS)))
        reads, name = INPUTS[hook], "mlp_out"
        pair = (f"blocks.{layer}.{hook}", f"blocks.{layer}.hook_mlp_out")
    else:
        pair = (hooks, hooks)
    drawn = Drawn(data, kind, width, width)
    drawn.save(folder, pair, old=data.draw(st.booleans()))
    drawn.centres = drawn.centres and name != "z"
    return features.load(folder), drawn, layer, reads, name


@pytest.mark.parametrize("kind", ARCHITECTURES)
@settings(max_examples=5, phases=(Phase.generate,))
@given(data=st.data())
def test_features_are_those_of_the_formulas(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: Any
) -> None:
    model, tokens = small()
    folder = tmp_path_factory.mktemp("drawn") / "files"
    own, drawn, layer, reads, writes = drawn_features(data, folder, model, kind)
    trace = model.trace(tokens)
    found = own.read(trace)
    x, whole = (flat(trace[layer], name).numpy() for name in (reads, writes))
    acts, decoded = drawn(x)
    np.testing.assert_allclose(found.values.numpy(), acts, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.decoded.numpy(), decoded, rtol=1e-9, atol=1e-9)
    both_parts = (found.decoded + found.error).numpy()
    np.testing.assert_allclose(both_parts, whole, rtol=1e-15, atol=1e-12)
    # One feature is moved at some positions, and everything else stays.
    feature, value = data.draw(st.integers(0, len(own) - 1)), data.draw(st.floats(-3, 3))
    change = data.draw(st.sampled_from([value, lambda a: 2 * a + value]))
    again = trace if drawn.transcodes else None
    edit = own.edit({feature: change}, trace=again, positions=[1, -1], sentences=1)
    after = flat(trace.rerun(edit)[layer], writes).numpy()
    last, expected = trace.tokens.lengths[1] - 1, whole.copy()
    scale, direction = found.scale.numpy(), own.dictionary.directions[feature].numpy()
    for place in {1, last}:
        old = acts[1, place, feature]
        new = value if change is value else 2 * old + value
        expected[1, place] += (new - old) * direction * scale[1, place]
    np.testing.assert_allclose(after, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["standard", "gated", "topk", "skip_transcoder"])
@settings(max_examples=4, phases=(Phase.generate,))
@given(data=st.data())
def test_gradients_are_those_of_autograd_with_the_error_held(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: Any
) -> None:
    model, tokens = small()
    folder = tmp_path_factory.mktemp("drawn") / "files"
    own, _, layer, _, name = drawn_features(data, folder, model, kind, POINTS[:5])
    trace = model.trace(tokens, grad=True)
    found = own.read(trace)
    trace.backward(trace.logits[1, 3, 7])
    acts = found.values.detach().requires_grad_()
    sizes, rest = acts * found.scale.detach(), found.values.detach() * found.scale.detach()
    directions = own.dictionary.directions
    whole = (found.decoded + found.error - rest @ directions).detach()
    with torch.enable_grad():
        moved = trace.rerun({(name, layer): lambda _: whole + sizes @ directions})
        (expected,) = torch.autograd.grad(moved.logits[1, 3, 7], acts)
    torch.testing.assert_close(found.grad, expected, atol=1e-10, rtol=1e-8)
    # A feature is a number of the trace, whose own gradients can be asked for.
    active = found.values[0].nonzero()
    if name != "embed" and len(active):
        place, feature = active[0].tolist()
        trace.backward(found.values[0, place, feature])
        assert trace.grad.embed[0, : place + 1].abs().max() > 0


@pytest.mark.parametrize(
    ("family", "classes"),
    [("gpt2", "GPT2LMHeadModel"), ("bert", "BertForMaskedLM"), ("llama", "LlamaForCausalLM")],
)
@settings(max_examples=5, phases=(Phase.generate,))
@given(data=st.data())
def test_reasons_by_feature_add_up_to_the_level_above(
    tmp_path_factory: pytest.TempPathFactory, family: str, classes: str, data: Any
) -> None:
    model, tokens = small(family, classes)
    folder = tmp_path_factory.mktemp("drawn") / "files"
    kind = data.draw(st.sampled_from(ARCHITECTURES))
    kind = data.draw(st.sampled_from([kind, "across"]))
    if kind == "across":
        saved_across(folder, data.draw(st.integers(0, 99)), model.config.d_model)
        own, layer, name = features.load(folder), 0, "mlp_out"
    else:
        own, _, layer, _, name = drawn_features(data, folder, model, kind, POINTS[:5])
    if family == "llama" and own.dictionary.centres:
        with pytest.raises(TraceError, match="center_writing_weights"):
            own.read(model.trace(tokens))
        return
    trace, sentence = model.trace(tokens), data.draw(st.integers(0, 1))
    strongest = data.draw(st.sampled_from([0, 2, 99]))
    ask = {"features": own, "strongest": strongest, "sentence": sentence}
    before = why_logit(trace, 7, sentence=sentence, position=2)
    after = why_logit(trace, 7, position=2, **ask)
    assert after.total == pytest.approx(before.total, abs=1e-9)
    kept = [one for one in after.components if not one.kind.startswith("feature")]
    for component in kept:
        assert after[component].item() == pytest.approx(before[component].item(), abs=1e-10)
    heads = [one for one in kept if one.kind == "head"]
    if heads:
        read = after.follow(heads[-1])
        if name.startswith("resid"):
            assert f"feature error {layer}" in read.labels["component"]
    # Along a direction each feature is its activation times its own part of the direction.
    direction = torch.randn(model.config.d_model, dtype=torch.float64)
    found, text = own.read(trace), trace.text(sentence)
    if name in ("resid_pre", "resid_mid", "resid_post"):
        parts = why_stream(trace, direction, layer, point=name, position=1, **ask)
        sizes = (found.values * found.scale)[sentence, 1] * (own.dictionary.directions @ direction)
        for one in parts.components:
            if one.kind == "feature":
                assert parts[one].item() == pytest.approx(sizes[one.head].item(), abs=1e-10)
        error = found.error[sentence, 1] @ direction
        assert parts[f"feature error {layer}"].item() == pytest.approx(error.item(), abs=1e-10)
        assert sum(one.kind == "feature" for one in parts.components) <= strongest
    if layer == 0 or name == "resid_pre":
        for against in (None, "row", 0):
            score = why(trace, 1, 1, 3, 2, against=against, **ask)
            plain = why(trace, 1, 1, 3, 2, against=against, sentence=sentence)
            assert score.total == pytest.approx(plain.total, abs=1e-9)
            rows = [one for one in score.labels["key_component"] if str(one).startswith("head 0")]
            for row in rows:
                got = score.at(key_component=row).sum()
                assert got.item() == pytest.approx(plain.at(key_component=row).sum().item())
    if family == "gpt2":
        graph = prediction_graph(text, 7, features=own, share=0.0)
        into = sum(link.v for link in graph.links if link.target == 0)
        assert into == pytest.approx(graph.number, abs=1e-9)


def changed(folder: Path, **fields: Any) -> None:
    """Write other fields into cfg.json; None takes one out."""
    about = json.loads((folder / "cfg.json").read_text())
    for name, value in fields.items():
        about.pop(name, None)
        about |= {} if value is None else {name: value}
    (folder / "cfg.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"architecture": "matryoshka"}, "architecture"),
        ({"normalize_activations": "expected_average_only_in"}, "normalize_activations"),
        ({"activation_fn": "tanh-relu"}, "activation_fn"),
        ({"finetuning_scaling_factor": True}, "finetuning_scaling_factor"),
        ({"hook_head_index": 3}, "hook_head_index"),
        ({"hook_layer": 1}, "hook_layer"),
        ({"reshape_activations": "hook_z"}, "reshape_activations"),
        ({"model_from_pretrained_kwargs": {"fold_ln": True}}, "model_from_pretrained_kwargs"),
        ({"dtype": "int8"}, "dtype"),
        ({"apply_b_dec_to_input": "no"}, "apply_b_dec_to_input"),
        ({"d_sae": 7}, "d_sae"),
        ({"k": 0}, "k is 0"),
        ({"temperature": 2}, "temperature"),
        ({"metadata": {"hook_name": "blocks.0.hook_pattern"}}, "hook_pattern"),
        ({"metadata": 3}, "metadata"),
    ],
)
def test_a_field_that_changes_the_result_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], part: str
) -> None:
    folder = tmp_path / "files"
    saved(folder)
    changed(folder, **fields)
    with pytest.raises(CheckpointError, match=part):
        features.load(folder)


def saved(folder: Path, width: int = 4, layer: int = 0) -> dict[str, Tensor]:
    """A standard autoencoder of four numbers and five features."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"W_enc": (width, 5), "b_enc": (5,), "W_dec": (5, width), "b_dec": (width,)}
    tensors = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    folder.mkdir(exist_ok=True)
    about = {"architecture": "standard", "d_in": width, "d_sae": 5, "dtype": "float32"}
    about["metadata"] = {"hook_name": f"blocks.{layer}.hook_resid_pre"}  # type: ignore[assignment]
    (folder / "cfg.json").write_text(json.dumps(about))
    save_file(tensors, folder / "sae_weights.safetensors")
    return tensors


def test_files_and_requests_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    tensors = saved(folder)
    load, weights = partial(features.load, folder), folder / "sae_weights.safetensors"
    own, trace = load(), minibert.load("tiny-gpt2").trace("the horse ran")
    saved(tmp_path / "wide", 128, 1)
    wide = features.load(tmp_path / "wide")
    for part, other in {
        "b_enc is missing": {name: t for name, t in tensors.items() if name != "b_enc"},
        "log_sparsity was not expected": tensors | {"log_sparsity": torch.ones(5)},
        "scaling_factor is not 1": tensors | {"scaling_factor": 2 * torch.ones(5)},
        "W_dec has the shape": tensors | {"W_dec": torch.ones(5, 4, 1)},
        "b_dec has the shape": tensors | {"b_dec": torch.ones(3)},
        "NaN": tensors | {"b_dec": torch.full((4,), torch.nan)},
        "expected floats": tensors | {"b_dec": torch.ones(4, dtype=torch.int64)},
    }.items():
        save_file(other, weights)
        with pytest.raises(CheckpointError, match=part):
            load()
    for part, error, call in (
        ("not 3", CheckpointError, lambda: features.load(tmp_path / "wide", 3)),
        ("has no cfg.json", CheckpointError, lambda: features.load(tmp_path)),
        ("neither a folder", CheckpointError, lambda: features.load("no such thing")),
        ("another model", TraceError, lambda: own.read(trace)),
        ("expected a trace", TraceError, lambda: own.read("text")),  # type: ignore[arg-type]
        ("feature 9", EditError, lambda: own.edit({9: 0.0})),
        ("expected features", EditError, lambda: own.edit({})),
        ("expected a number", EditError, lambda: own.edit({1: "0"})),  # type: ignore[dict-item]
        ("named twice", EditError, lambda: own.edit({-1: 0.0, len(own) - 1: 1.0})),
        ("minibert.features.load", TraceError, lambda: why_logit(trace, 5, features=3)),
        ("comes after what", TraceError, lambda: why(trace, 0, 1, 2, 1, features=wide)),
        ("by_head", TraceError, lambda: why_logit(trace, 5, features=wide).by_head()),
    ):  # fmt: skip
        with pytest.raises(error, match=part):
            call()


@settings(max_examples=10, phases=(Phase.generate,))
@given(data=st.data())
def test_features_of_a_batch_are_those_of_each_text_and_know_their_model(data: Any) -> None:
    model, found = minibert.load("tiny-gpt2"), features.load("tiny-gpt2")
    words = st.lists(st.sampled_from(["the", "horse", "ran", "away"]), min_size=1, max_size=7)
    texts = [" ".join(data.draw(words)) for _ in range(data.draw(st.integers(1, 4)))]
    values = found.read(model.trace(texts)).values
    for text, batched in zip(texts, values, strict=True):
        own = found.read(model.trace(text)).values[0]
        assert torch.allclose(batched[: len(own)], own, atol=1e-4)
    weights = data.draw(st.sampled_from([*model.parameters()]))
    with torch.no_grad():
        weights[(0,) * weights.ndim] += 0.5
    other = model.trace(texts)
    with pytest.raises(TraceError, match="are of another model: the weights of tiny-gpt2 differ"):
        found.read(other)
    assert features.load("tiny-gpt2", other_model=True).read(other).values.shape == values.shape


@pytest.mark.parametrize("name", ["tiny-gpt", "gpt2", "GPT-2", "tinygpt-2"])
def test_a_name_that_is_nearly_one_of_ours_is_suggested(name: str) -> None:
    for load in (features.load, partial(minibert.load, offline=True)):
        with pytest.raises(CheckpointError, match=r"did you mean 'tiny-gpt2'\?"):
            load(name)


def saved_set(folder: Path, data: Any, layers: int, width: int) -> list[dict[str, Array]]:
    """circuit-tracer's set of transcoders, with and without thresholds and skips."""
    folder.mkdir()
    random, sets = np.random.default_rng(data.draw(st.integers(0, 999))), []
    jumps, skips, count = data.draw(st.booleans()), data.draw(st.booleans()), 17
    for layer in range(layers):
        sizes: dict[str, tuple[int, ...]] = {"W_enc": (count, width), "W_dec": (count, width)}
        sizes |= {"b_enc": (count,), "b_dec": (width,)}
        sizes |= {"activation_function.threshold": (count,)} if jumps else {}
        sizes |= {"W_skip": (width, width)} if skips else {}
        sets.append({name: random.normal(size=size) for name, size in sizes.items()})
        tensors = {name: torch.from_numpy(each) for name, each in sets[-1].items()}
        save_file(tensors, folder / f"layer_{layer}.safetensors")
    about = {"model_kind": "transcoder_set", "feature_input_hook": "hook_resid_mid"}
    about |= {"feature_output_hook": "hook_mlp_out", "model_name": "small", "scan": "small"}
    (folder / "config.yaml").write_text(yaml.safe_dump(about))
    return sets


@settings(max_examples=5, phases=(Phase.generate,))
@given(data=st.data())
def test_a_set_of_transcoders_is_that_of_its_formula(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    model, tokens = small()
    folder = tmp_path_factory.mktemp("drawn") / "set"
    sets, trace = saved_set(folder, data, 2, model.config.d_model), model.trace(tokens)
    for layer, w in enumerate(sets):
        found, x = features.load(folder, layer).read(trace), trace[layer].resid_mid.numpy()
        pre = x @ w["W_enc"].T + w["b_enc"]
        acts = pre * (pre > w.get("activation_function.threshold", 0))
        decoded = acts @ w["W_dec"] + w["b_dec"]
        decoded = decoded + (x @ w["W_skip"].T if "W_skip" in w else 0)
        np.testing.assert_allclose(found.values.numpy(), acts, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.decoded.numpy(), decoded, rtol=1e-9, atol=1e-9)
    config = folder / "config.yaml"
    for part, text in {
        "one transcoder a layer": config.read_text(),
        "model_kind": config.read_text().replace("transcoder_set", "crosscoder"),
        "references": "a: &a [1]\nb: *a\n",
        "expected a mapping": "- 1\n",
        "minibert does not know": config.read_text() + "top_k: 3\n",
    }.items():
        config.write_text(text)
        with pytest.raises(MinibertError, match=part):
            features.load(folder)


def saved_across(folder: Path, seed: int, width: int) -> list[dict[str, Array]]:
    """circuit-tracer's cross-layer transcoder of two layers; odd seeds have thresholds."""
    folder.mkdir()
    random, found, count, layers = np.random.default_rng(seed), [], 17, 2
    for layer in range(layers):
        sizes: dict[str, tuple[int, ...]] = {"W_enc": (count, width), "b_enc": (count,)}
        sizes |= {"b_dec": (width,)} | ({"threshold": (count,)} if seed % 2 else {})
        found.append({name: random.normal(size=size) for name, size in sizes.items()})
        own = {f"{name}_{layer}": torch.from_numpy(each) for name, each in found[-1].items()}
        save_file(own, folder / f"W_enc_{layer}.safetensors")
        decoder = found[-1]["W_dec"] = random.normal(size=(count, layers - layer, width))
        own = {f"W_dec_{layer}": torch.from_numpy(decoder)}
        save_file(own, folder / f"W_dec_{layer}.safetensors")
    about = {"model_kind": "cross_layer_transcoder", "feature_input_hook": "hook_resid_mid"}
    about |= {"feature_output_hook": "hook_mlp_out", "model_name": "small", "scan": "small"}
    (folder / "config.yaml").write_text(yaml.safe_dump(about))
    return found


@settings(max_examples=8, phases=(Phase.generate,))
@given(data=st.data())
def test_a_cross_layer_transcoder_is_that_of_its_formula(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    model, tokens = small()
    folder = tmp_path_factory.mktemp("drawn") / "across"
    sets = saved_across(folder, data.draw(st.integers(0, 99)), model.config.d_model)
    trace = model.trace(tokens)
    own = features.load(folder)
    found, acts = own.read(trace), []
    for layer, w in enumerate(sets):
        pre = trace[layer].resid_mid.numpy() @ w["W_enc"].T + w["b_enc"]
        acts.append(pre * (pre > w.get("threshold", 0)))
    outputs = [trace[layer].mlp_out.numpy() for layer in range(2)]
    decoded = [acts[0] @ sets[0]["W_dec"][:, layer] + sets[layer]["b_dec"] for layer in range(2)]
    decoded[1] = decoded[1] + acts[1] @ sets[1]["W_dec"][:, 0]
    for ours, wanted in ((found.values, acts), (found.decoded, decoded)):
        np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.error.numpy(), np.subtract(outputs, decoded), atol=1e-9)
    # A feature moves all outputs behind it, whose errors and other features stay.
    layer, feature = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 16))
    value, position = data.draw(st.floats(-3, 3)), data.draw(st.integers(0, 4))
    edit = own.edit({(layer, feature): value}, trace=trace, positions=position, sentences=1)
    after, more = trace.rerun(edit), value - acts[layer][1, position, feature]
    for at in range(layer, 2):
        direction = sets[layer]["W_dec"][feature, at - layer]
        outputs[at][1, position] += more * direction
        np.testing.assert_allclose(after[at].mlp_out.numpy(), outputs[at], atol=1e-9)
    # Along a direction it is the activation times what it wrote to both layers.
    direction = torch.randn(model.config.d_model, dtype=torch.float64)
    parts = why_stream(trace, direction, 1, position=2, features=own, strongest=99, sentence=1)
    names = [one for one in parts.components if one.kind == "feature"]
    assert len(names) == sum((each[1, 2] != 0).sum() for each in acts)
    for one in names:
        of_layer, number = one.layer or 0, one.head or 0
        wrote = sets[of_layer]["W_dec"][number].sum(0) @ direction.numpy()
        expected = acts[of_layer][1, 2, number] * wrote
        assert parts[one].item() == pytest.approx(expected, abs=1e-9)
    # Gradients: MLPs behind follow, unless an edit holds them.
    held = data.draw(st.booleans())
    wholes = [trace[at].mlp_out.clone() for at in range(2)]
    keep = {("mlp_out", at): lambda _, at=at: wholes[at] for at in range(2)} if held else None
    traced = model.trace(tokens, grad=True, edit=keep)
    again = own.read(traced)
    traced.backward(traced.logits[1, 3, 7])
    moved = torch.zeros_like(again.values.detach(), requires_grad=True)
    adds = [
        sum(moved[one] @ torch.from_numpy(sets[one]["W_dec"][:, at - one]) for one in range(at + 1))
        for at in range(2)
    ]
    with torch.enable_grad():
        other = trace.rerun({
            ("mlp_out", at): lambda x, at=at: (wholes[at] if held else x) + adds[at]
            for at in range(2)
        })  # fmt: skip
        (expected,) = torch.autograd.grad(other.logits[1, 3, 7], moved)
    torch.testing.assert_close(again.grad, expected, atol=1e-10, rtol=1e-8)


def test_a_cross_layer_transcoder_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder, trace = tmp_path / "across", small()[0].trace(small()[1])
    saved_across(folder, 1, trace.config.d_model)
    own = features.load(folder)
    for key in (3, (2, 0), (0, 17)):
        with pytest.raises(EditError, match=r"feature|layer"):
            own.edit({key: 0.0}, trace=trace)  # type: ignore[dict-item]
    with pytest.raises(MinibertError, match="features of one place"):
        trace.text(0).view(features=own)
    with pytest.raises(CheckpointError, match="leave out layer="):
        features.load(folder, 1)
    shutil.copy(folder / "W_enc_1.safetensors", folder / "W_enc_2.safetensors")
    with pytest.raises(CheckpointError, match="writes to 2 layers; remove"):
        features.load(folder)
    (folder / "W_enc_2.safetensors").unlink()
    last, config = folder / "W_dec_1.safetensors", (folder / "config.yaml").read_text()
    for part, tensor in (
        (r"expected \(features", torch.ones(17, 2, trace.config.d_model)),
        (r"expected \(features", torch.ones(17, trace.config.d_model)),
        ("NaN", torch.full((17, 1, trace.config.d_model), torch.nan)),
    ):
        save_file({"W_dec_1": tensor}, last)
        with pytest.raises(CheckpointError, match=part):
            features.load(folder)
    (folder / "config.yaml").write_text(config.replace("hook_mlp_out", "hook_resid_post"))
    with pytest.raises(CheckpointError, match="feature_output_hook"):
        features.load(folder)


def test_a_folder_in_a_repository_is_fetched_with_its_digests(tmp_path: Path) -> None:
    folder = tmp_path / "served" / "blocks.0"
    folder.mkdir(parents=True)
    saved(folder)
    with hub_of(tmp_path / "served", tmp_path / "cache") as server:
        name = f"{NAME}/blocks.0"
        found = features.load(name)
        assert torch.equal(found.dictionary.W_enc, features.load(folder).dictionary.W_enc)
        server.log.clear()
        assert len(features.load(name, offline=True)) == len(found)
        assert server.log == []
        with pytest.raises(CheckpointError, match="no request was made"):
            features.load(f"{NAME}/blocks.1", offline=True)
        with pytest.raises(CheckpointError, match=r"has no blocks.1/cfg.json"):
            features.load(f"{NAME}/blocks.1")


@pytest.mark.parametrize("kind", ARCHITECTURES)
@settings(max_examples=5, phases=(Phase.generate,))
@given(data=st.data())
def test_saelens_reads_the_same_features_of_the_files_that_it_saved(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: Any
) -> None:
    theirs = pytest.importorskip("sae_lens")
    model, tokens = small()
    folder = tmp_path_factory.mktemp("drawn")
    own, _, layer, reads, _ = drawn_features(data, folder / "drawn", model, kind)
    theirs.SAE.load_from_disk(folder / "drawn", dtype="float64").save_model(folder / "saved")
    for place in ("drawn", "saved"):
        sae, own = theirs.SAE.load_from_disk(folder / place), features.load(folder / place)
        trace = model.trace(tokens)
        x = getattr(trace[layer], reads)
        x = x.transpose(1, 2) if reads == "z" else x
        if own.dictionary.centres:
            x = x - x.mean(-1, keepdim=True)
        with torch.no_grad():
            acts, decoded = sae.encode(x), sae(x)
        found = own.read(trace)
        assert (found.values - acts).abs().max() <= 1e-6
        assert (found.decoded - decoded.flatten(2)).abs().max() <= 1e-6


@settings(max_examples=6, phases=(Phase.generate,))
@given(data=st.data())
def test_circuit_tracer_reads_the_same_features(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    name = "circuit_tracer.transcoder.single_layer_transcoder"
    theirs = pytest.importorskip(name, exc_type=ImportError)
    model, tokens = small()
    folder = tmp_path_factory.mktemp("drawn") / "set"
    saved_set(folder, data, 2, model.config.d_model)
    paths = {layer: str(folder / f"layer_{layer}.safetensors") for layer in range(2)}
    sets = theirs.load_transcoder_set(
        paths, "small", "hook_resid_mid", "hook_mlp_out", dtype=torch.float64,
        device=torch.device("cpu"),
    )  # fmt: skip
    trace = model.trace(tokens)
    for layer in range(2):
        found, x = features.load(folder, layer).read(trace), trace[layer].resid_mid
        with torch.no_grad():
            assert (found.values - sets[layer].encode(x)).abs().max() <= 1e-6
            assert (found.decoded - sets[layer](x)).abs().max() <= 1e-6
    across = pytest.importorskip("circuit_tracer.transcoder.cross_layer_transcoder")
    folder = folder.with_name("across")
    saved_across(folder, data.draw(st.integers(0, 99)), model.config.d_model)
    both_layers = across.load_clt(
        str(folder), dtype=torch.float64, device=torch.device("cpu"), lazy_decoder=False
    )
    found = features.load(folder).read(trace)
    for sentence in range(len(tokens)):
        x = torch.stack([trace[layer].resid_mid[sentence] for layer in range(2)])
        with torch.no_grad():
            assert (found.values[:, sentence] - both_layers.encode(x)).abs().max() <= 1e-6
            assert (found.decoded[:, sentence] - both_layers(x)).abs().max() <= 1e-6
