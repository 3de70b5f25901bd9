"""An edit of a quantity gives what hooks on transformers give, and what TransformerLens gives."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minibert
from minibert.errors import EditError, TraceError
from minibert.model import Model, from_transformers
from minibert.trace.edit import as_edit, mean, replace, zero
from minibert.trace.read import Trace
from tests.families import Sizes, difference, hf_model, run_transformers, their_logits
from tests.families import as_tokens as as_kinds
from tests.families import batch as batch_of_encoder
from tests.rotary.classes import FAMILIES as ROTARY
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain
from tests.rotary.theirs import as_tokens, batch, computing, forget, model_of
from tests.trace.editing import FAMILIES as ENCODERS
from tests.trace.editing import model_of as encoder_of
from tests.trace.editing import sentences, theirs_of

LAYER = 1
FAMILIES = [*ENCODERS, *ROTARY]
_BERT = {"attention_norm": "attention.output.LayerNorm", "mlp_norm": "output.LayerNorm"}
_LLAMA = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_OUTPUT = {
    "attention_output_norm": "post_attention_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}
_GEMMA2 = _OUTPUT | {"attention_norm": "input_layernorm", "mlp_norm": "pre_feedforward_layernorm"}
#: The norms of a layer; each family is listed with where its layers are.
NORMS = {
    **dict.fromkeys(("bert", "roberta"), ("encoder.layer", _BERT)),
    "electra": ("electra.encoder.layer", _BERT),
    "distilbert": (
        "distilbert.transformer.layer",
        {"attention_norm": "sa_layer_norm", "mlp_norm": "output_layer_norm"},
    ),
    "gpt2": ("transformer.h", {"attention_norm": "ln_1", "mlp_norm": "ln_2"}),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma"), ("layers", _LLAMA)),
    **dict.fromkeys(("phi3", "gpt_neox"), ("layers", _LLAMA)),
    **dict.fromkeys(("gemma2", "gemma3_text"), ("layers", _GEMMA2)),
    "olmo2": ("layers", _OUTPUT),
    "modernbert": ("layers", {"attention_norm": "attn_norm", "mlp_norm": "mlp_norm"}),
}
FINAL = {"gpt2": "ln_f", "gpt_neox": "final_layer_norm", "modernbert": "final_norm"}
FINAL |= {name: "norm" for name in ROTARY if name not in FINAL}
PROJECTIONS = {
    **dict.fromkeys(("bert", "roberta", "electra"), "attention.self.{}"),
    **dict.fromkeys(("llama", "qwen3", "gemma2", "olmo2", "mistral"), "self_attn.{}_proj"),
}
_SHORT = {"query": "q", "key": "k", "value": "v"}

Rewrite = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Pair:
    """A family's model of transformers in float64, the same of ours, and a batch for both."""

    def __init__(self, family: str) -> None:
        self.family = family
        rotary = family in ROTARY
        self.theirs: Any = (
            model_of(plain(family), LANGUAGE[family])
            if rotary
            else theirs_of(family, torch.float64)
        )
        self.inputs = batch((7, 3)) if rotary else batch_of_encoder(family)
        self.tokens: minibert.Tokens = (as_tokens if rotary else as_kinds)(self.inputs)
        self.ours: Model = from_transformers(self.theirs)
        self.trace: Trace = self.ours.trace(self.tokens)

    def logits(self) -> Tensor:
        """What transformers gives, hooks included."""
        if self.family in ROTARY:
            with torch.no_grad(), computing(self.theirs):
                forget(self.theirs)
                return self.theirs(**self.inputs).logits
        output = run_transformers(self.theirs, self.inputs)
        return their_logits(output, type(self.theirs).__name__)

    def module(self, path: str, layer: int | None = LAYER) -> nn.Module:
        """The one module of a layer, or of the body, whose name ends with this path."""
        if layer is not None:
            path = f"{NORMS[self.family][0]}.{layer}.{path}"
        named = self.theirs.named_modules()
        (found,) = [one for name, one in named if name == path or name.endswith(f".{path}")]
        return found

    def projection(self, name: str) -> nn.Linear:
        """W_Q, W_K or W_V of the layer."""
        short = name if "self." in PROJECTIONS[self.family] else _SHORT[name]
        found = self.module(PROJECTIONS[self.family].format(short))
        assert isinstance(found, nn.Linear)
        return found


@cache
def pair_of(family: str) -> Pair:
    return Pair(family)


@contextmanager
def rewritten(*places: tuple[nn.Module, Rewrite]) -> Iterator[None]:
    """While this lasts, each module gives what its function makes of its input and output."""
    with ExitStack() as stack:
        for module, rewrite in places:

            def hook(
                module: nn.Module, given: tuple[Any, ...], out: Tensor, rewrite: Rewrite = rewrite
            ) -> Tensor:
                return rewrite(module, given[0], out)

            stack.callback(module.register_forward_hook(hook).remove)
        yield


def scale_by_hand(module: nn.Module, x: Tensor) -> Tensor:
    """What a norm of transformers divides by, from its formula: (batch, position, 1)."""
    eps = next(getattr(module, n) for n in ("eps", "variance_epsilon") if hasattr(module, n))
    if isinstance(module, nn.LayerNorm):
        return (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    return (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def divided_by(scale: Callable[[Tensor], Tensor]) -> Rewrite:
    """The norm's output had it divided by another scale, a function of its own one."""

    def rewrite(module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        own = scale_by_hand(module, x)
        bias = getattr(module, "bias", None)
        bias = 0 if bias is None else bias
        return (out - bias) * own / scale(own) + bias

    return rewrite


def of_input(change: Callable[[Tensor], Tensor]) -> Rewrite:
    """What a module makes of another input."""
    return lambda module, x, out: module.forward(change(x))


def of_output(change: Callable[[Tensor], Tensor]) -> Rewrite:
    """Another output; of several the first is it."""
    return lambda module, x, out: (
        (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)
    )


WITH_NORMS = [family for family in FAMILIES if family in NORMS]
TOLERANCE = 1e-10
Z = ("attention.output.dense", "attention.out_lin", "attn.c_proj", "self_attn.o_proj")
Z += ("attention.dense", "attn.Wo")
MLP = ("output.dense", "ffn.lin2", "mlp.c_proj", "mlp.down_proj", "mlp.dense_4h_to_h", "mlp.Wo")


def one_of(pair: Pair, paths: tuple[str, ...]) -> nn.Module:
    root = f"{NORMS[pair.family][0]}.{LAYER}"
    names = {name for name, _ in pair.theirs.named_modules()}
    (path,) = [p for p in paths if any(name.endswith(f"{root}.{p}") for name in names)]
    return pair.module(path)


def check_same(pair: Pair, edit: Any, *places: tuple[nn.Module, Rewrite]) -> None:
    """An edit, in a new pass and in a rerun, gives the logits of transformers with these hooks."""
    real, trace = pair.tokens.mask, pair.trace
    with rewritten(*places):
        expected = pair.logits()
    for edited in (trace.rerun(edit), pair.ours.trace(pair.tokens, edit=edit)):
        assert difference(edited.logits[real], expected[real]) <= TOLERANCE, edit
    assert difference(expected[real], trace.logits[real]) > 1e-6, edit


@pytest.mark.parametrize("family", WITH_NORMS)
def test_heads_neurons_and_positions_are_changed_as_by_hooks_in_transformers(family: str) -> None:
    pair = pair_of(family)
    heads, lengths = pair.ours.config.n_heads, pair.tokens.lengths

    def without_head(x: Tensor) -> Tensor:
        x = x.clone()
        x.unflatten(-1, (heads, -1))[:, :, 1] = 0
        return x

    def at_ends(x: Tensor) -> Tensor:
        x = x.clone()
        for sentence, length in enumerate(lengths):
            x[sentence, [0, length - 1][:length]] = x[sentence, [0, length - 1][:length]].sin()
        return x

    ends = as_edit(torch.sin).at(positions=-1)
    first = as_edit(torch.sin).at(
        positions=0, sentences=[n for n, length in enumerate(lengths) if length > 1]
    )
    layer = pair.module(f"{NORMS[family][0]}.{LAYER}", None)
    check_same(pair, {("z", LAYER, 1): zero}, (one_of(pair, Z), of_input(without_head)))
    check_same(pair, {("mlp_post", LAYER): [ends, first]}, (one_of(pair, MLP), of_input(at_ends)))
    check_same(pair, {("resid_post", LAYER): [ends, first]}, (layer, of_output(at_ends)))


def changed(scale: Tensor) -> Tensor:
    """Another scale at each position."""
    factors = 0.5 + torch.arange(scale.shape[1], dtype=scale.dtype)[:, None] / 3
    return scale * factors


@pytest.mark.parametrize("family", WITH_NORMS)
def test_each_scale_is_that_of_transformers_and_an_edit_is_a_hook_there(family: str) -> None:
    pair = pair_of(family)
    real, trace = pair.tokens.mask, pair.trace
    places: dict[Any, torch.nn.Module] = {
        (f"{name}_scale", LAYER): pair.module(path) for name, path in NORMS[family][1].items()
    }
    if family in FINAL:
        places["final_norm_scale"] = pair.module(FINAL[family], None)
    for key, module in places.items():
        seen: list[Tensor] = []

        def see(module: Any, x: Tensor, out: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(scale_by_hand(module, x))
            return out

        with rewritten((module, see)):
            pair.logits()
        found = trace.final_norm_scale if isinstance(key, str) else trace[LAYER].quantity(key[0])
        assert found.shape == (*real.shape, 1)
        assert difference(found[real], seen[0][real]) <= TOLERANCE, key
        check_same(pair, {key: changed}, (module, divided_by(changed)))


def test_a_pass_that_nobody_asks_for_scales_computes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = encoder_of("gpt2", torch.float64), sentences("gpt2")
    expected = model.trace(tokens).logits
    # Who reads what is found out once, at the first edit.
    model.trace(tokens, edit={("z", 1): zero})

    def never(*_: Any) -> Tensor:
        raise AssertionError("a scale was computed")

    monkeypatch.setattr("minibert.layers.layer.divisor", never)
    monkeypatch.setattr("minibert.trace.run.divisor", never)
    trace = model.trace(tokens)
    assert torch.equal(trace.logits, expected)
    assert torch.equal(model(tokens), expected)
    trace.rerun({("z", 1): lambda z: 2 * z})
    with pytest.raises(AssertionError, match="a scale was computed"):
        _ = trace[1].mlp_norm_scale


def test_what_a_model_or_a_trace_lacks_is_refused_in_its_own_words() -> None:
    bert, gpt2 = (encoder_of(family).trace(sentences(family)) for family in ("bert", "gpt2"))
    early = gpt2.model.trace(gpt2.tokens, until=1)
    # The first layer of ModernBERT alone has no norm of attention.
    live = minibert.load(model_of(plain("modernbert"), LANGUAGE["modernbert"]))
    modern = live.trace(as_tokens(batch((7, 3))))
    first = "the first layer of modernbert has no norm of attention"
    edits: list[tuple[Trace, dict[Any, Any], str]] = [
        (bert, {"final_norm_scale": 1.0}, "has no such norm; there are attention_norm_scale"),
        (early, {"final_norm_scale": 1.0}, "a trace with until=1 has no final_norm_scale"),
        (gpt2, {("mlp_norm_scale", 1, 0): 1.0}, "mlp_norm_scale has no heads"),
        (gpt2, {("final_norm_scale", 1): 1.0}, "final_norm_scale has no layers"),
        (gpt2, {("mlp_norm_scale", 1): torch.ones(3, 13, 2)}, r"does not fit \(3, 13, 1\)"),
        (modern, {("attention_norm_scale", 0): 1.0}, first),
    ]
    for trace, edit, words in edits:
        with pytest.raises(EditError, match=words):
            trace.rerun(edit)
    for read, words in (
        (lambda: bert.final_norm_scale, "has no such norm"),
        (lambda: early.final_norm_scale, "final_norm_scale needs every layer"),
        (
            lambda: gpt2[1].attention_output_norm_scale,
            "attention_output_norm_scale: gpt2 has no such norm",
        ),
        (lambda: modern[0].attention_norm_scale, first),
    ):
        with pytest.raises(TraceError, match=words):
            read()
    assert modern[1].attention_norm_scale.shape == (2, 7, 1)


PROJECTED = ("query", "key", "value")


def other(x: Tensor) -> Tensor:
    return x.sin() + 0.5


@pytest.mark.parametrize("name", PROJECTED)
@pytest.mark.parametrize("family", PROJECTIONS)
def test_an_edit_of_one_head_is_a_hook_on_its_rows_in_transformers(family: str, name: str) -> None:
    pair = pair_of(family)
    d_head, head = pair.ours.config.d_head, 1
    rows = slice(head * d_head, (head + 1) * d_head)

    def of_head(module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        assert isinstance(module, nn.Linear)
        out = out.clone()
        out[..., rows] = other(x) @ module.weight[rows].T
        if module.bias is not None:
            out[..., rows] += module.bias[rows]
        return out

    edit = {(f"{name}_input", LAYER, head): other}
    check_same(pair, edit, (pair.projection(name), of_head))


def test_key_value_heads_are_counted_as_the_model_has_them() -> None:
    pair = pair_of("llama")
    config, trace = pair.ours.config, pair.trace
    assert config.n_kv_heads == 2
    assert config.n_heads == 4
    assert trace[1].key_input.shape[1] == 2
    assert trace[1].key_input.stride(1) == 0, "nothing is copied for the heads"
    edited = trace.rerun({("key_input", 1, 1): other})
    # Heads 2 and 3 read key-value head 1.
    assert torch.equal(edited[1, 1].key_input, trace[1, 1].key_input)
    assert torch.equal(edited[1, 3].key_input, other(trace[1, 3].key_input))
    with pytest.raises(EditError, match="no kv_head 2; expected 0 to 1"):
        trace.rerun({("key_input", 1, 2): other})


POOLED = [("bert", "BertForSequenceClassification"), ("albert", "AlbertForSequenceClassification")]


@pytest.mark.parametrize(("family", "name"), POOLED)
def test_the_pooled_output_is_edited_differentiated_swept_and_stored(
    family: str, name: str, tmp_path: Path
) -> None:
    theirs = hf_model(family, name, Sizes(), torch.float64)
    ours, inputs = from_transformers(theirs), batch_of_encoder(family)
    trace, seen = ours.trace(as_kinds(inputs), grad=True), list[Tensor]()
    # ALBERT applies tanh behind its linear pooler.
    body = getattr(theirs, family)
    pooler = body.pooler_activation if family == "albert" else body.pooler

    def last_one(module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        seen.append(out)
        return torch.cat((out[:2], out[2:].cos()))

    with rewritten((pooler, last_one)):
        expected = run_transformers(theirs, inputs).logits
    assert difference(trace.pooled, seen[0]) <= TOLERANCE
    edit = {"pooled": as_edit(torch.cos).at(sentences=-1)}
    edited = trace.rerun(edit)
    assert difference(edited.logits, expected) <= TOLERANCE
    assert difference(edited.text(2).pooled, seen[0][2:].cos()) <= TOLERANCE
    swept = trace.rerun_each([edit, {"pooled": mean(trace)}], lambda logits: logits[:, 1])
    assert difference(swept[0], expected[:, 1]) <= TOLERANCE
    assert difference(swept[1], swept[1][:1].expand(3)) <= TOLERANCE
    assert torch.equal(Trace.load(edited.save(tmp_path / "a.trace"), ours).pooled, edited.pooled)
    # The gradient of a logit is the row of the classifier, through an edit of what it reads, too.
    tripled = trace.rerun({"pooled": lambda pooled: 3 * pooled})
    row = torch.zeros_like(trace.pooled)
    row[1] = theirs.classifier.weight[2]
    for each in (trace, tripled):
        each.backward(each.logits[1, 2])
        assert difference(each.grad.pooled, row) <= TOLERANCE


def test_what_cannot_be_pooled_is_refused_in_its_own_words() -> None:
    theirs = hf_model("bert", "BertForSequenceClassification", Sizes(), torch.float64)
    ours, tokens = from_transformers(theirs), as_kinds(batch_of_encoder("bert"))
    for edit, match, options in (
        ({("pooled", 1): 0.0}, "pooled has no layers", {}),
        ({"pooled": replace(0.0, positions=0)}, "pooled is of whole texts and has no", {}),
        ({"pooled": 0.0}, "a trace with until=1 has no pooled", {"until": 1}),
        ({"pooled": 0.0}, "packed sentences share a row", {"packed": True}),
        ({"pooled": torch.zeros(3, 4, dtype=torch.float64)}, r"does not fit \(3, 15\)", {}),
    ):
        with pytest.raises(EditError, match=match):
            ours.trace(tokens, edit=edit, **options)
    with pytest.raises(EditError, match="pooled: this gpt2 has no pooler"):
        encoder_of("gpt2").trace(sentences("gpt2"), edit={"pooled": 0.0})
    with pytest.raises(TraceError, match="pooled: this gpt2 has no pooler"):
        _ = encoder_of("gpt2").trace(sentences("gpt2")).pooled
