"""What is written to the stream and into a logit adds up, and is what autograd and NumPy give.

One driver for all families: `both` gives a model of transformers and ours, three sentences with
padding, and `edited` the same pass with other numbers in every norm's divisor.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import small_trace
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from vocabulary_models import ROTARY_CLASSES, VOCABULARY_CLASSES, both

import minibert
from minibert.analysis import decompose, head_norms, logit_lens, summed_norms, why_logit
from minibert.analysis import lens as lens_module
from minibert.analysis.lens import POINTS
from minibert.analysis.reasons import Why
from minibert.errors import MinibertError, TraceError
from minibert.trace.edit import replace, zero
from minibert.trace.read import Trace
from tests.circuit_models import FAMILIES as BODIES
from tests.circuit_models import ROTARY, Array, model_pair, their_layer
from tests.families import VOCABULARY, Sizes, as_tokens, batch, run_transformers, sizes
from tests.rotary import theirs as rotary
from tests.rotary.classes import LANGUAGE
from tests.trace.test_edit_peers import changed

CLASSES = VOCABULARY_CLASSES + ROTARY_CLASSES
FAMILIES = pytest.mark.parametrize(("family", "name"), CLASSES)
TOKENS = st.integers(0, VOCABULARY - 1)
SCALES = [f"{b}_{kind}_scale" for b in ("attention", "mlp") for kind in ("norm", "output_norm")]


def edited(family: str, name: str, **options: Any) -> tuple[Trace, Trace]:
    """The plain trace of three sentences, and the one with another divisor in every norm."""
    _, model, _, tokens = both(family, name)
    config = model.config
    keys: list[Any] = [
        (scale, layer)
        for scale in SCALES
        for layer in range(config.n_layers)
        if scale not in config.absent_in(layer)
    ]
    keys += [] if "final_norm_scale" in config.absent_quantities else ["final_norm_scale"]
    return model.trace(tokens), model.trace(tokens, edit=dict.fromkeys(keys, changed), **options)


def of_each(trace: Trace, token: Any, **options: Any) -> list[Why]:
    """The logit of every sentence."""
    return [why_logit(trace, token, sentence=n, **options) for n in range(trace.allowed.batch)]


def gap(found: Why) -> float:
    """How far the sum is from the logit, in units of the largest value (at least 1)."""
    return abs(found.total - found.number) / max(1.0, found.values.abs().max().item())


def capped(model: Any, logits: Tensor) -> Tensor:
    """What the model answers where these are its logits before the soft cap."""
    cap = model.config.logit_soft_cap
    return logits if cap is None else cap * torch.tanh(logits / cap)


@FAMILIES
@settings(max_examples=3)
@given(chosen=sizes, token=TOKENS, other=TOKENS, heads=st.booleans(), data=st.data())
def test_parts_add_up_to_the_stream_and_to_the_logit(
    family: str, name: str, chosen: Any, token: int, other: int, heads: bool, data: Any
) -> None:
    dtype, limit = data.draw(st.sampled_from([(torch.float64, 1e-10), (torch.float32, 1e-5)]))
    _, model, _, tokens = both(family, name, chosen, dtype)
    trace, last = model.trace(tokens), torch.tensor([12, 6, 0])
    logits = model(tokens)[torch.arange(3), last]
    of_token, of_other, of_both = (
        of_each(trace, one, against=against)
        for one, against in ((token, None), (other, None), (token, other))
    )
    for found, one in ((of_token, token), (of_other, other)):
        shown = capped(model, torch.tensor([each.number for each in found], dtype=dtype))
        torch.testing.assert_close(shown, logits[:, one], atol=limit, rtol=limit)
    for one, another, pair in zip(of_token, of_other, of_both, strict=True):
        assert pair.number == pytest.approx(one.number - another.number, abs=limit, rel=limit)
        assert max(map(gap, (one, another, pair))) <= limit
    layer = data.draw(st.integers(0, model.config.n_layers - 1))
    point = data.draw(st.sampled_from(["resid_pre", "resid_mid", "resid_post"]))
    parts = decompose(trace, layer, point=point, heads=heads)
    size = max(1.0, parts.values.abs().max().item())
    assert (parts.total - getattr(trace[layer], point)).abs().max() <= limit * size
    torch.testing.assert_close(parts.cumulative[-1], parts.total)
    labels = parts.labels["component"]
    assert len(set(labels)) == len(labels) == len(parts.values)
    torch.testing.assert_close(parts.shares().sum(0), torch.ones(tokens.ids.shape, dtype=dtype))


@FAMILIES
def test_parts_of_a_pass_with_edited_norms_add_up_to_it(family: str, name: str) -> None:
    plain, trace = edited(family, name)
    for position in (0, -1):
        found, before = (of_each(each, 7, against=11, position=position) for each in (trace, plain))
        for n, (one, was) in enumerate(zip(found, before, strict=True)):
            assert gap(one) <= 1e-10
            assert abs(one.number - was.number) > 1e-9
            if trace.config.logit_soft_cap is None:
                row = trace.logits[n, position if position == 0 else trace.tokens.lengths[n] - 1]
                assert one.number == (row[7] - row[11]).item()
    for point in ("resid_mid", "resid_post"):
        parts = decompose(trace, point=point)
        size = max(1.0, parts.values.abs().max().item())
        assert (parts.total - getattr(trace[-1], point)).abs().max() <= 1e-10 * size


class Frozen:
    """A model's path from the stream to the logits by hand, every standard deviation held.

    Each component is multiplied by a scale that starts at 1; the gradient of a logit by that
    scale is the component's value, since with norms and gates held the logit is linear in it.
    """

    def __init__(self, trace: Any, activation: Any) -> None:
        self.trace, self.model, self.activation = trace, trace.model, activation
        self.scales: dict[str, Tensor] = {}

    def scaled(self, label: str, part: Tensor) -> Tensor:
        self.scales[label] = torch.ones((), dtype=part.dtype, requires_grad=True)
        return self.scales[label] * part

    def norm(self, label: str, module: Any, x: Tensor) -> Tensor:
        if self.trace.config.norm == "rms":
            size = (x.square().mean(-1, keepdim=True) + module.eps).sqrt().detach()
            return x / size * (module.weight + float(self.trace.config.norm_plus_one))
        deviation = (x.var(-1, correction=0, keepdim=True) + module.eps).sqrt().detach()
        normed = (x - x.mean(-1, keepdim=True)) / deviation * module.weight
        return normed if module.bias is None else normed + self.scaled(label, module.bias)

    def stream(self, sentence: int, position: int, layers: int | None = None) -> Tensor:
        """The stream at a position behind so many layers, all of them unless told."""
        x = self.scaled("embed", self.trace.embed[sentence, position])
        place = self.trace.config.norm_place
        for n in range(len(self.trace) if layers is None else layers):
            here = self.trace[n]
            weights, wrote = self.model.body.layers[n], torch.zeros_like(x)
            for h, part in enumerate(here.head_out[sentence, :, position]):
                wrote = wrote + self.scaled(f"head {n}-{h}", part)
            if weights.attention.output.bias is not None:
                wrote = wrote + self.scaled(f"attention bias {n}", weights.attention.output.bias)
            for block, written in (
                ("attention", wrote),
                ("mlp", self.scaled(f"mlp {n}", here.mlp_out[sentence, position])),
            ):
                if place in ("output", "both"):
                    written = self.norm("", getattr(weights, f"{block}_output_norm"), written)
                x = x + written
                if place == "after":
                    x = self.norm(f"{block} norm bias {n}", getattr(weights, f"{block}_norm"), x)
        return x

    def logits(self, x: Tensor) -> Tensor:
        head = self.model.head
        if self.trace.config.pre_norm:
            x = self.norm("final norm bias", self.model.body.final_norm, x)
        if head.transform is not None:
            pre = F.linear(x, head.transform.weight)
            if head.transform.bias is not None:
                pre = pre + self.scaled("transform bias", head.transform.bias)
            held = (self.activation(pre) / pre).detach()
            x = self.norm("transform norm bias", head.norm, held * pre)
        logits = F.linear(x, head.decoder.weight) / self.trace.config.logits_divisor
        if head.decoder.bias is None:
            return logits
        return logits + self.scaled("unembedding bias", head.decoder.bias)


@FAMILIES
@settings(max_examples=2)
@given(chosen=sizes, token=TOKENS, other=TOKENS, position=st.integers(0, 6))
def test_values_are_the_gradients_by_each_component_with_norms_held(
    family: str, name: str, chosen: Any, token: int, other: int, position: int
) -> None:
    _, model, _, tokens = both(family, name, chosen)
    trace = model.trace(tokens)
    number = why_logit(trace, token, against=other, sentence=1, position=position)
    # By hand, what enters layer 0 is one component.
    found: dict[str, Tensor] = {"embed": torch.zeros((), dtype=torch.float64)}
    for part, size in zip(number.components, number.values, strict=True):
        label = "embed" if "embedding" in part and "un" not in part else part
        found[label] = found.get(label, 0) + size
    fixed = family in ("roberta", "electra", "modernbert")
    by_hand = Frozen(trace, ACT2FN["gelu" if fixed else chosen.activation])
    logits = by_hand.logits(by_hand.stream(1, position))
    shown = capped(model, logits.detach())
    torch.testing.assert_close(shown, trace.logits[1, position], atol=1e-9, rtol=1e-9)
    labels, scales = zip(*by_hand.scales.items(), strict=True)
    values = torch.autograd.grad(logits[token] - logits[other], scales, allow_unused=True)
    assert sorted(labels) == sorted(found)
    for label, value in zip(labels, values, strict=True):
        expected = 0.0 if value is None else value.item()
        assert abs(found[label].item() - expected) <= 1e-9 * max(1.0, abs(expected)), label
    # The parts of the stream, read by the rest of the path.
    whole = decompose(trace)
    direction = torch.autograd.functional.jacobian(
        lambda x: by_hand.logits(x)[[token, other]], whole.total[1, position]
    )
    read = whole.values[:, 1, position] @ (direction[0] - direction[1])
    for label, size in zip(whole.components, read, strict=True):
        torch.testing.assert_close(size, found[label], atol=1e-9, rtol=1e-9)


def test_tables_hold_the_values_of_their_components() -> None:
    _, model, _, tokens = both("bert", "BertForMaskedLM", Sizes(layers=5, heads=3))
    found = why_logit(model.trace(tokens), 7)
    assert found.by_head().shape == (5, 3)
    assert torch.equal(found.by_head()[4, 2], found["head 4-2"])
    assert torch.equal(found.by_layer("mlp")[3], found["mlp 3"])
    torch.testing.assert_close(found.by_layer("head"), found.by_head().sum(-1))
    rest = found.values[[n for n, c in enumerate(found.components) if c.layer is None]].sum()
    assert (found.by_layer().sum() + rest).item() == pytest.approx(found.total)
    values = [abs(value) for _, value in found.top(99)]
    assert values == sorted(values, reverse=True)


def test_an_unembedding_of_ones_own_is_read_as_it_acts() -> None:
    _, model, _, tokens = both("gpt2", "GPT2LMHeadModel")
    model.head.decoder = nn.Linear(model.config.d_model, VOCABULARY, dtype=torch.float64)
    found = why_logit(model.trace(tokens), 5, against=3)
    assert gap(found) <= 1e-10
    bias = model.head.decoder.bias
    torch.testing.assert_close(found["unembedding bias"], (bias[5] - bias[3]).detach())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("until", [None, 1])
def test_chosen_positions_give_the_same_as_all_of_them(causal: bool, until: int | None) -> None:
    model = small_trace(causal=causal, task="causal-lm" if causal else "masked-lm").model
    trace = model.trace(torch.randint(0, 41, (3, 11)), until=until)
    whole, some = decompose(trace, 1), decompose(trace, 1, positions=[9, -11])
    assert some.positions == ((9, 0),) * 3
    torch.testing.assert_close(some.values, whole.values[:, :, [9, 0]], atol=1e-5, rtol=1e-5)
    lens = logit_lens(trace, points=POINTS, keep_logits=True)
    cut = logit_lens(trace, points=POINTS, positions=[7, -1, 2], keep_logits=True)
    assert cut.positions == ((7, 10, 2),) * 3
    torch.testing.assert_close(cut.logits, lens.logits[:, :, [7, 10, 2]], atol=2e-5, rtol=1e-5)
    assert len(cut.rows) == 1 + 5 * len(trace)


@pytest.mark.parametrize("causal", [True, False])
def test_an_edited_trace_adds_up_or_is_refused(causal: bool) -> None:
    def moved(x: Tensor) -> Tensor:
        return 2 * x + 0.1

    trace = small_trace(causal=causal)
    for name in ("embed", "query", "probs", "z", "head_out", "mlp_post", "mlp_out"):
        again = trace.rerun({name if name == "embed" else (name, 1): moved})
        found = decompose(again)
        torch.testing.assert_close(found.total, again[-1].resid_post, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(found.total, trace[-1].resid_post, atol=1e-2)
    for name in ("attn_out", "resid_pre", "resid_mid", "resid_post"):
        again = trace.rerun({(name, 1): moved})
        with pytest.raises(TraceError, match=r"edited where none of them writes.*heads=False"):
            decompose(again)
        below = decompose(again, 0, point="resid_mid")
        torch.testing.assert_close(below.total, trace[0].resid_mid)
    again = trace.rerun({("attn_out", 1): moved})
    total = decompose(again, heads=False).total
    torch.testing.assert_close(total, again[-1].resid_post, atol=1e-4, rtol=1e-4)
    # At another position than the edited one the sum is the stream.
    again = trace.rerun({("resid_post", 1): replace(0.5, positions=4)})
    total = decompose(again, 1, positions=3).total
    torch.testing.assert_close(total, again[1].resid_post[:, 3:4], atol=1e-4, rtol=1e-4)
    with pytest.raises(TraceError, match="resid_post 1 of this trace is not the sum"):
        decompose(again, 1, positions=[3, 4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_an_edited_trace_is_refused_for_no_rounding(dtype: Any) -> None:
    _, model, _, tokens = both("gpt2", "GPT2LMHeadModel", Sizes(layers=5), dtype)
    trace = model.trace(tokens)
    decompose(trace.rerun({("z", 1): zero}))
    with pytest.raises(TraceError, match="edited where none of them writes"):
        decompose(trace.rerun({("resid_mid", 1): zero}))


def their_lens(name: str, theirs: Any, inputs: Any) -> list[Tensor]:
    """The logits of each hidden state by the transformers model's own modules."""
    kind = theirs.config.model_type
    if kind in LANGUAGE:
        states = [v for n, v in rotary.run(theirs, inputs).items() if n.startswith("stream")]
        norm = {
            "gpt_neox": lambda: theirs.gpt_neox.final_layer_norm,
            "modernbert": lambda: theirs.model.final_norm,
        }.get(kind, lambda: theirs.model.norm)()
        head = theirs.decoder if kind == "modernbert" else theirs.get_output_embeddings()
        cap = getattr(theirs.config, "final_logit_softcapping", None)
        with torch.no_grad(), rotary.computing(theirs):
            read = [norm(state) for state in states]
            read = [theirs.head(state) for state in read] if kind == "modernbert" else read
            scaling = getattr(theirs.config, "logits_scaling", 1.0)
            logits = [head(state) / scaling for state in read]
        return logits if cap is None else [cap * torch.tanh(each / cap) for each in logits]
    with torch.no_grad():
        states = list(theirs(**inputs, output_hidden_states=True).hidden_states)
        if name.startswith("GPT2"):
            # transformers gives the last one behind the last LayerNorm.
            states[:-1] = [theirs.transformer.ln_f(state) for state in states[:-1]]
        return [_their_head(name, theirs)(state) for state in states]


def _their_head(name: str, theirs: Any) -> Any:
    if name.startswith("Bert"):
        return getattr(theirs.cls, "predictions", theirs.cls)
    if name.startswith("Albert"):
        return theirs.predictions
    if name.startswith("Electra"):
        return lambda x: theirs.generator_lm_head(theirs.generator_predictions(x))
    if name.startswith("DistilBert"):
        return lambda x: theirs.vocab_projector(
            theirs.vocab_layer_norm(theirs.activation(theirs.vocab_transform(x)))
        )
    return theirs.lm_head


@FAMILIES
@settings(max_examples=2)
@given(chosen=sizes)
def test_the_lens_is_transformers_own_head_on_its_hidden_states(
    family: str, name: str, chosen: Any
) -> None:
    theirs, model, inputs, tokens = both(family, name, chosen)
    trace, real = model.trace(tokens), tokens.mask
    found = logit_lens(trace, points=("embed", "resid_post"), keep_logits=True)
    expected = torch.stack(their_lens(name, theirs, inputs))
    assert found.rows == ("embed", *(f"resid_post {n}" for n in range(model.config.n_layers)))
    difference = (found.logits - expected)[:, real].abs().max()
    assert difference <= 1e-9 * max(1.0, expected.abs().max().item())
    probs, ids = expected.softmax(-1).topk(5)
    torch.testing.assert_close(found.probs[:, real], probs[:, real], atol=1e-9, rtol=0)
    assert torch.equal(found.ids[:, real], ids[:, real])
    early = logit_lens(model.trace(tokens, until=0))
    assert early.rows == ("resid_post 0",)
    torch.testing.assert_close(early.probs[0], found.probs[1])


@FAMILIES
@pytest.mark.parametrize("grad", [False, True])
def test_the_last_row_of_the_lens_is_what_an_edited_model_predicts(
    family: str, name: str, grad: bool
) -> None:
    plain, trace = edited(family, name, grad=grad)
    for positions in (None, range(trace.inputs.mask.sum(1).min().item())):
        lens = logit_lens(trace, positions=positions, keep_logits=True)
        expected = trace.logits.detach()[:, : lens.logits.shape[2]]
        assert (lens.logits[-1] - expected).abs().max() <= 1e-10
    # Where nobody edits the last norm, each row is divided by what is found in it.
    edit = {("z", 0): lambda z: z}
    again = logit_lens(plain.model.trace(plain.tokens, edit=edit, grad=grad), keep_logits=True)
    assert (again.logits - logit_lens(plain, keep_logits=True).logits).abs().max() <= 1e-10


def test_every_row_of_the_lens_is_divided_by_the_edited_scale() -> None:
    _, model, _, tokens = both("llama", "LlamaForCausalLM")
    trace = model.trace(tokens, edit={"final_norm_scale": replace(2.0, positions=-1, sentences=0)})
    lens, plain = (logit_lens(t, keep_logits=True) for t in (trace, model.trace(tokens)))
    weight, last = model.body.final_norm.weight * model.head.decoder.weight, tokens.lengths[0] - 1
    for row, layer in enumerate(trace):
        expected = layer.resid_post[0, last] / 2 @ weight.T
        torch.testing.assert_close(lens.logits[row, 0, last], expected)
        torch.testing.assert_close(lens.logits[row, 1:], plain.logits[row, 1:])


def gpt2_trace() -> Trace:
    return small_trace(11, causal=True, task="causal-lm")


@given(top=st.integers(1, VOCABULARY))
@settings(max_examples=8)
def test_the_first_tokens_are_those_of_the_whole_vocabulary(top: int) -> None:
    trace = gpt2_trace()
    found, whole = logit_lens(trace, top=top), logit_lens(trace, top=VOCABULARY)
    assert torch.equal(found.ids, whole.ids[..., :top])
    torch.testing.assert_close(whole.probs.sum(-1), torch.ones_like(whole.probs[..., 0]))


def test_no_more_logits_are_held_at_once_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, held = gpt2_trace(), []
    whole = logit_lens(trace, keep_logits=True)
    trace.model.head.register_forward_hook(lambda _, __, out: held.append(out.numel()))
    trace = trace.model.trace(trace.tokens)
    held.clear()
    monkeypatch.setattr(lens_module, "_NUMBERS", 4 * VOCABULARY)
    found = logit_lens(trace, keep_logits=True)
    assert max(held) == 4 * VOCABULARY
    for name in ("ids", "probs", "logits"):
        torch.testing.assert_close(getattr(found, name), getattr(whole, name))
    assert logit_lens(trace).logits is None


def test_tokens_are_named_and_found_by_name() -> None:
    model = minibert.load("tiny-bert")
    tokenizer, trace = model.tokenizer, model.trace("The capital of France is [MASK].")
    found = logit_lens(trace, top=2)
    strings = [[tokenizer.string(i) for i in row] for row in found.ids[:, 0, :, 1].tolist()]
    assert found.texts(0, 1) == strings
    place = trace.tokens.ids[0].tolist().index(tokenizer.mask_id)
    attributed = why_logit(trace, "the", against="[SEP]", position="[MASK]")
    assert attributed.title == f"the logit of “the” − “[SEP]” at {place}"
    # A padded vocabulary has entries without a token, which are not named.
    tokenizer = model.tokenizer = type("Short", (), {"vocab_size": 29, "string": str})()
    short = logit_lens(trace, top=VOCABULARY)
    assert (short.ids.shape[-1], int(short.ids.max())) == (29, 28)
    assert (short.probs.sum(-1) < 1).all()


def their_vectors(family: str, chosen: Sizes, seed: int, layer: int) -> tuple[Trace, Array, Any]:
    """A trace, α_ij·f(x_j) as (batch, head, query, key, d_model), and the layer's weights.

    From transformers' weights, states and attention.
    """
    theirs, model = model_pair(family, chosen)
    weights = their_layer(theirs, family, layer)
    if family in ROTARY:
        inputs = rotary.batch(seed=seed)
        trace, out = model.trace(rotary.as_tokens(inputs)), rotary.run(theirs, inputs)
        x, probs = out[f"stream {layer}"].numpy(), out[f"probs {layer}"].numpy()
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + model.config.norm_eps)
        x = x * weights.norms["attention_norm"]
    else:
        inputs = batch(family, chosen.segments, seed)
        trace, output = model.trace(as_tokens(inputs)), run_transformers(theirs, inputs)
        states = output.hidden_states[layer]
        if family == "gpt2":
            states = theirs.transformer.h[layer].ln_1(states)
        x, probs = states.detach().numpy(), output.attentions[layer].numpy()
    value = np.einsum("bkm,hmd->bhkd", x, weights.W["value"])
    value = value + weights.b["value"][:, None]
    moved = np.einsum("bhkd,hdm->bhkm", value, weights.W["output"])
    return trace, probs[..., None] * moved[:, :, None], weights


@pytest.mark.parametrize("family", [*BODIES, *ROTARY])
@settings(max_examples=4)
@given(chosen=sizes, seed=st.integers(0, 2**20), data=st.data())
def test_norms_are_those_of_the_vectors_written_out(
    family: str, chosen: Sizes, seed: int, data: st.DataObject
) -> None:
    count = 2 if family in ROTARY else chosen.layers
    layer = data.draw(st.integers(0, count - 1))
    trace, vectors, _ = their_vectors(family, chosen, seed, layer)
    real = trace.tokens.mask.numpy()
    rows = real[:, :, None] & real[:, None]

    def near(found: Any, expected: Array, where: Any = rows) -> None:
        np.testing.assert_allclose(found[where], expected[where], atol=1e-8)

    heads, summed = (norms(trace, layer) for norms in (head_norms, summed_norms))
    near(heads.values.movedim(1, -1), np.moveaxis(np.linalg.norm(vectors, axis=-1), 1, -1))
    probs = trace[layer].probs * heads.vectors[:, :, None]
    torch.testing.assert_close(heads.values, probs, atol=1e-10, rtol=0)
    near(summed.values, np.linalg.norm(vectors.sum(1), axis=-1))
    assert heads.title.endswith(f", layer {layer}")
    assert heads.tokens == summed.tokens == trace.tokens.strings


def test_no_tensor_of_query_by_key_by_width_is_made() -> None:
    _, model = model_pair("gpt2", Sizes(layers=1, heads=3, d_head=11), torch.float32)
    trace = model.trace(batch("gpt2")["input_ids"][:1].repeat(1, 2))
    largest = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                largest.append(result.numel())
            return result

    with Watch():
        for norms in (head_norms, summed_norms):
            norms(trace, 0)
    assert 0 < max(largest) < trace.allowed.position**2 * 33


def test_half_precision_is_read_in_float32_without_a_graph() -> None:
    trace = gpt2_trace()
    trace.model.requires_grad_().bfloat16()
    again = trace.model.trace(trace.tokens)
    found = [head_norms(again, -1), why_logit(again, 3), decompose(again), logit_lens(again)]
    for each in found:
        assert (each.values.dtype, each.values.requires_grad) == (torch.float32, False)
    assert gap(found[1]) < 0.1


REQUESTS: list[tuple[Any, dict[str, Any], str]] = [
    *(
        (why_logit, {"token": 1} | options, words)
        for options, words in (
            ({"token": VOCABULARY}, "Token id 41: expected 0"),
            ({"token": None}, "None is not a token"),
            ({"token": False}, "False is not a token"),
            ({"token": "Paris"}, "has no tokenizer"),
            ({"token": [1, 2]}, "2 tokens for 1 sentences"),
            ({"token": torch.tensor([1.5])}, "is not a token"),
            ({"against": 99}, "Token id 99"),
            ({"position": 11}, "no position 11"),
            ({"position": "autumn"}, 'No token is "autumn"'),
            ({"position": [1, 2]}, "expected a position, or a token"),
            ({"position": True}, "position=True: expected a position"),
            ({"position": None}, "position=None: expected a position"),
            ({"sentence": 1}, "no text 1"),
            ({"sentence": False}, "whole number"),
        )
    ),
    *(
        (logit_lens, options, words)
        for options, words in (
            ({"positions": [0, -12]}, "no position -12"),
            ({"positions": []}, "at least one"),
            ({"points": "probs"}, "'probs' is not a point"),
            ({"points": ()}, "points is empty"),
            ({"top": 0}, "top=0"),
        )
    ),
    *(
        (decompose, options, words)
        for options, words in (
            ({"layer": 3}, "no layer 3"),
            ({"layer": True}, "expected a whole number"),
            ({"point": "z"}, "'z' is not a residual stream"),
            ({"positions": 11}, "no position 11"),
        )
    ),
    *((norms, {"layer": 3}, "no layer 3") for norms in (head_norms, summed_norms)),
]


@pytest.mark.parametrize(("function", "options", "words"), REQUESTS)
def test_wrong_requests_are_refused(function: Any, options: Any, words: str) -> None:
    with pytest.raises(MinibertError, match=words):
        function(gpt2_trace(), **options)


def test_what_was_not_computed_or_is_not_there_is_refused() -> None:
    trace = gpt2_trace()
    early, found = trace.model.trace(trace.tokens, until=1), why_logit(trace, 1)
    bert = minibert.load("tiny-bert").trace("leaves fall in autumn")
    electra = small_trace(family="electra", task="pre-training")
    for words, call in {
        "Layer 2 was not computed": partial(head_norms, early, 2),
        "was not computed": partial(decompose, early, 2),
        "needs every layer": partial(why_logit, early, 1),
        "its task is 'none'": partial(why_logit, small_trace(), 1),
        "its task is 'token-cl": partial(
            logit_lens, small_trace(task="token-classification", labels=("A", "B"))
        ),
        "no logits of tokens": partial(logit_lens, electra),
        "has no 'head 9-6'; there are word embedding": partial(found.__getitem__, "head 9-6"),
        "No layer has a 'neuron'": partial(found.by_layer, "neuron"),
        "count=0: expected a whole number from 1": partial(found.top, 0),
        "tokens of": partial(why_logit, bert, "the capital of France"),
        "is not a token": partial(why_logit, bert, "\N{SNOWMAN}"),
    }.items():  # fmt: skip
        with pytest.raises(MinibertError, match=words):
            call()
