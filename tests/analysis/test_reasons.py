"""A score is the sum of its pairs, a part that of what it read, and autograd says the same."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from vocabulary_models import both

import minibert
from minibert.analysis import decompose, why, why_heads, why_logit, why_stream
from minibert.analysis.reasons import Branch
from minibert.errors import MinibertError, TraceError
from minibert.trace.edit import hide
from tests.analysis.test_stream import Frozen
from tests.drawn_reasons import CLASSES, LIMITS, misses
from tests.families import sizes
from tests.rotary.theirs import computing

Array = np.ndarray
Parts = dict[str, Array]


def is_sum(values: Tensor, expected: float, limit: float) -> None:
    """The values add up, up to a share of the largest of them."""
    assert abs(values.sum().item() - expected) <= limit * max(values.abs().max().item(), 1e-30)


@pytest.mark.parametrize("family", CLASSES)
@settings(max_examples=5, phases=(Phase.generate,))
@given(chosen=sizes, dtype=st.sampled_from(list(LIMITS)), data=st.data())
def test_every_level_adds_up_to_the_one_above(
    family: str, chosen: Any, dtype: torch.dtype, data: Any
) -> None:
    for miss in misses(family, chosen, dtype, data):
        assert miss.within(dtype), miss


@pytest.mark.parametrize("family", CLASSES)
def test_a_direction_of_the_stream_is_read_of_its_parts(family: str) -> None:
    _, model, _, tokens = both(family, CLASSES[family])
    trace = model.trace(tokens)
    direction = torch.linspace(-1, 2, model.config.d_model, dtype=torch.float64)
    parts = decompose(trace.text(0), 1, point="resid_mid", positions=3)
    along = why_stream(trace, direction, 1, point="resid_mid", position=3)
    torch.testing.assert_close(along["head 0-1"], parts["head 0-1"][0, 0] @ direction)
    is_sum(along.values, along.number, 1e-10)
    tree = why_logit(trace, 7, against=11, position=2).tree(depth=2, share=0.05)
    adds_up(tree)
    assert "the rest" in str(tree)


def adds_up(branch: Branch) -> None:
    if branch.branches:
        assert abs(sum(each.value for each in branch.branches) - branch.value) < 1e-9
        for each in branch.branches:
            adds_up(each)


LAYER, HEAD, QUERY, KEY = 1, 1, 5, 3


def side(by_hand: Frozen, name: str, position: int, theta: float) -> Tensor:
    """The query or key of HEAD at a position, its norms held, by each component's scale."""
    layer, config = by_hand.model.body.layers[LAYER], by_hand.trace.config
    attention, x = layer.attention, by_hand.stream(0, position, LAYER)
    if config.norm_place in ("before", "both"):
        x = by_hand.norm(f"attention norm bias {LAYER}", layer.attention_norm, x)
    weights, biases = (getattr(attention, f"{kind}_{name[0].upper()}") for kind in "Wb")
    own = HEAD * len(weights) // config.n_heads
    x = x @ weights[own]
    if biases is not None:
        x = x + by_hand.scaled(f"{name} bias", biases[own])
    if config.query_key_norm == "head":
        x = by_hand.norm("", getattr(attention, f"{name}_norm"), x)
    if config.rotary is None:
        return x
    half = len(x) // 2
    angles = position * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin])


#: Of each family the paths of the norm in front of attention, of what projects queries, keys and
#: values, of what projects z, of the norms of its output and behind the sum, and so of the MLP.
PATHS = {
    "gpt2": ("ln_1", "attn.c_attn", "attn.c_proj", "", "", "mlp", "", ""),
    "bert": (
        "", "attention.self.{}", "attention.output.dense", "", "attention.output.LayerNorm",
        "output.dense", "", "output.LayerNorm",
    ),
    "gemma2": (
        "input_layernorm", "self_attn.{}_proj", "self_attn.o_proj", "post_attention_layernorm",
        "", "mlp", "post_feedforward_layernorm", "",
    ),
}  # fmt: skip
PATHS["llama"] = PATHS["qwen3"] = (*PATHS["gemma2"][:3], "", "", "mlp", "", "")


class ByHooks:
    """The parts of a query and a key from what hooks on transformers see, in NumPy and float64."""

    def __init__(self, theirs: Any, family: str, given: Any) -> None:
        self.family, self.config, self.modules = family, theirs.config, dict(theirs.named_modules())
        self.ids = given["input_ids"][0].numpy()
        self.seen: dict[str, tuple[Array | None, Array | None]] = {}

        def note(path: str) -> Any:
            def hook(_: Any, inputs: Any, out: Any) -> None:
                pair = (inputs[0] if inputs else None, out)
                found = [
                    x[0].numpy() if isinstance(x, Tensor) and x.ndim > 1 else None for x in pair
                ]
                self.seen[path] = found[0], found[1]

            return hook

        handles = [m.register_forward_hook(note(path)) for path, m in self.modules.items()]
        with torch.no_grad(), computing(theirs):
            theirs(**given)
        for handle in handles:
            handle.remove()
        base = {"gpt2": "transformer.h", "bert": "bert.encoder.layer"}
        self.base = base.get(family, "model.layers")
        heads = getattr(theirs.config, "num_attention_heads", 0)
        self.heads, self.groups = (
            heads,
            heads // getattr(theirs.config, "num_key_value_heads", heads),
        )

    def matrix(self, path: str) -> tuple[Array, Array | None]:
        """The weight of a projection, in by out, and its bias."""
        module = self.modules[path]
        weight = module.weight.detach().numpy()
        bias = getattr(module, "bias", None)
        turned = weight if type(module).__name__ == "Conv1D" else weight.T
        return turned, None if bias is None else bias.detach().numpy()

    def normed(self, parts: Parts, path: str, name: str, x: Array | None = None) -> Parts:
        """The parts behind a norm that divides by what it divided by; its bias is one more."""
        module = self.modules[path]
        given = self.seen[path][0] if x is None else x
        assert given is not None
        bias, weight = getattr(module, "bias", None), module.weight.detach().numpy()
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if bias is None:
            weight = weight + ("gemma" in self.family)
            divisor = np.sqrt((given**2).mean(-1, keepdims=True) + eps)
            return {label: part / divisor * weight for label, part in parts.items()}
        divisor = np.sqrt(given.var(-1, keepdims=True) + eps)
        found = {
            label: (part - part.mean(-1, keepdims=True)) / divisor * weight
            for label, part in parts.items()
        }
        return found | {name: np.broadcast_to(bias.detach().numpy(), given.shape)}

    def stream(self, layer: int) -> Parts:
        """What was written to the stream in front of a layer, (position, d_model)."""
        if self.family == "bert":
            kinds = {"word": "word_embeddings", "position": "position_embeddings"}
            kinds["segment"] = "token_type_embeddings"
            found = {f"{k} embedding": self.out(f"bert.embeddings.{p}") for k, p in kinds.items()}
            found = self.normed(found, "bert.embeddings.LayerNorm", "embedding norm bias")
        elif self.family == "gpt2":
            found = {"word embedding": self.out("transformer.wte")}
            found["position embedding"] = self.out("transformer.wpe")
        else:
            factor = self.config.hidden_size**0.5 if self.family == "gemma2" else 1.0
            word = self.modules["model.embed_tokens"].weight.detach().numpy()
            found = {"word embedding": word[self.ids] * factor}
        for n in range(layer):
            _, _, project, output, after, mlp, mlp_output, mlp_after = (
                f"{self.base}.{n}.{path}" if path else "" for path in PATHS[self.family]
            )
            z, (matrix, bias) = self.seen[project][0], self.matrix(project)
            assert z is not None
            z, matrix = (np.split(x, self.heads, axis) for x, axis in ((z, -1), (matrix, 0)))
            wrote = {f"head {n}-{h}": z[h] @ matrix[h] for h in range(self.heads)}
            if bias is not None:
                wrote[f"attention bias {n}"] = np.broadcast_to(bias, wrote[f"head {n}-0"].shape)
            found |= self.normed(wrote, output, "") if output else wrote
            found = self.normed(found, after, f"attention norm bias {n}") if after else found
            wrote = {f"mlp {n}": self.out(mlp)}
            found |= self.normed(wrote, mlp_output, "") if mlp_output else wrote
            found = self.normed(found, mlp_after, f"mlp norm bias {n}") if mlp_after else found
        return found

    def out(self, path: str) -> Array:
        """What a module gave."""
        found = self.seen[path][1]
        assert found is not None
        return found

    def side(self, name: str, layer: int, head: int, position: int) -> Parts:
        """The parts of a query or key of a head at a position, rotated."""
        before, path = (f"{self.base}.{layer}.{each}" for each in PATHS[self.family][:2])
        parts = self.stream(layer)
        if PATHS[self.family][0]:
            parts = self.normed(parts, before, f"attention norm bias {layer}")
        parts = {label: part[position] for label, part in parts.items()}
        short = name if self.family == "bert" else name[0]
        matrix, bias = self.matrix(path.format(short))
        if self.family == "gpt2":
            third = ("query", "key", "value").index(name)
            matrix = np.split(matrix, 3, 1)[third]
            bias = None if bias is None else np.split(bias, 3)[third]
        count = self.heads if name == "query" else self.heads // self.groups
        own = head if name == "query" else head // self.groups
        parts = {label: part @ np.split(matrix, count, 1)[own] for label, part in parts.items()}
        if bias is not None:
            parts[f"{name} bias"] = np.split(bias, count)[own]
        if self.family == "qwen3":
            norm = f"{self.base}.{layer}.self_attn.{name[0]}_norm"
            given = self.seen[norm][0]
            assert given is not None
            parts = self.normed(parts, norm, "", given[position, own])
        if self.family in ("gpt2", "bert"):
            return parts
        half = len(next(iter(parts.values()))) // 2
        theta = self.config.rope_parameters["rope_theta"]
        angles = position * theta ** (-np.arange(half) / half)
        turn = np.exp(1j * angles)
        turned = {label: (part[:half] + 1j * part[half:]) * turn for label, part in parts.items()}
        return {label: np.concatenate([x.real, x.imag]) for label, x in turned.items()}


@pytest.mark.parametrize("family", PATHS)
@settings(max_examples=3, phases=(Phase.generate,))
@given(data=st.data())
def test_the_table_is_that_of_hooks_on_transformers_in_numpy(family: str, data: Any) -> None:
    theirs, model, given_ids, tokens = both(family, CLASSES[family])
    hooked = ByHooks(theirs, family, given_ids)
    layer = data.draw(st.integers(0, model.config.n_layers - 1))
    head = data.draw(st.integers(0, model.config.n_heads - 1))
    query = data.draw(st.integers(0, 12))
    key = data.draw(st.integers(0, query))
    found = why(model.trace(tokens), layer, head, query, key)
    sides = [hooked.side(n, layer, head, at) for n, at in (("query", query), ("key", key))]
    width = len(next(iter(sides[0].values())))
    scale = getattr(theirs.config, "query_pre_attn_scalar", width) ** -0.5
    for axis, parts in zip(found.axes, sides, strict=True):
        assert {*found.labels[axis]} == {*parts}
    rows, columns = (np.stack([parts[label] for label in found.labels[axis]])
                     for axis, parts in zip(found.axes, sides, strict=True))  # fmt: skip
    expected = scale * rows @ columns.T
    error = np.abs(found.values.numpy() - expected).max()
    assert error <= 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize("family", ["roberta", "distilbert", "albert", "granite"])
def test_the_table_is_the_second_derivative_of_the_score_with_norms_held(family: str) -> None:
    """A score is bilinear in the scales of what its query and its key are made of."""
    theirs, model, _, tokens = both(family, CLASSES[family])
    trace = model.trace(tokens)
    found, sides = why(trace, LAYER, HEAD, QUERY, KEY), [Frozen(trace, None) for _ in range(2)]
    rope = getattr(theirs.config, "rope_parameters", None) or {"rope_theta": 1.0}
    query, key = (
        side(one, name, place, rope["rope_theta"])
        for one, name, place in zip(sides, ("query", "key"), (QUERY, KEY), strict=True)
    )
    score = model.body.layers[LAYER].attention.scale * (query @ key)
    assert score.item() == pytest.approx(trace[LAYER].scores[0, HEAD, QUERY, KEY].item())
    scales = [list(one.scales.values()) for one in sides]
    by_key = torch.autograd.grad(score, scales[1], create_graph=True)
    labels = [
        ["embed" if "embedding" in part else part for part in found.labels[f"{name}_component"]]
        for name in ("query", "key")
    ]
    assert [set(one) for one in labels] == [set(one.scales) for one in sides]
    for label, slope in zip(sides[1].scales, by_key, strict=True):
        expected = torch.autograd.grad(slope, scales[0], retain_graph=True)
        of_key = [n for n, part in enumerate(labels[1]) if part == label]
        for other, wanted in zip(sides[0].scales, expected, strict=True):
            of_query = [n for n, part in enumerate(labels[0]) if part == other]
            got = found.values[of_query][:, of_key].sum().item()
            assert got == pytest.approx(wanted.item(), rel=1e-8, abs=1e-10), (other, label)


@pytest.mark.parametrize("family", ["bert", "gemma2", "qwen3", "olmo2"])
def test_over_a_text_it_is_the_mean_of_all_pairs(family: str) -> None:
    _, model, _, tokens = both(family, CLASSES[family])
    trace = model.trace(tokens).text(1)
    found = why_heads(trace, 1)
    seen = trace[1].mask[0, 0].double()
    weights = trace[1].probs[0] - seen / seen.sum(-1, keepdim=True)
    expected = torch.zeros_like(found.values)
    for head in {0, model.config.n_heads - 1}:
        for query, key in seen.nonzero().tolist():
            pair = why(trace, 1, head, query, key)
            expected[head] += weights[head, query, key] * pair.values / len(seen)
            assert found.labels.items() <= pair.labels.items()
    ends = [0, -1]
    torch.testing.assert_close(found.values[ends], expected[ends], atol=1e-9, rtol=1e-6)
    # Sentences count by their tokens, in more rows than are held at once.
    whole, last = why_heads(model.trace(tokens), 1).values * 21, trace.tokens.lengths[0]
    others = [why_heads(model.trace(tokens).text(n), 1).values for n in (0, 2)]
    torch.testing.assert_close(whole, found.values * last + others[0] * 13 + others[1])


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
@settings(max_examples=8, phases=(Phase.generate,))
@given(data=st.data())
def test_what_is_the_same_for_every_key_is_so_and_is_not_named(name: str, data: Any) -> None:
    trace = minibert.load(name).trace("the horse ran away and the boy ran")
    layer, head, query = (data.draw(st.integers(0, n)) for n in (3, 3, 7))
    seen = trace[layer, head].mask[0, 0, query].nonzero()[:, 0].tolist()
    found = [why(trace, layer, head, query, key) for key in seen]
    columns = [[each in one.same for each in one.labels["key_component"]] for one in found]
    equal = torch.stack([one.values[:, c].sum() for one, c in zip(found, columns, strict=True)])
    assert "key bias" in found[0].same
    assert sum(columns[0]) == 2
    largest = max(one.values.abs().max().item() for one in found)
    assert (equal - equal[0]).abs().max().item() <= 1e-5 * largest
    for one in found:
        telling = [pair for pair in one.top(one.values.numel()) if pair[1] not in one.same]
        assert f"{telling[0][0]} at the query x {telling[0][1]} at the key" in one.note()


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_the_induction_head_looks_because_the_previous_token_head_wrote(name: str) -> None:
    """First in the table, and first where each head's path to the keys is patched."""
    model = minibert.load(name)
    ids = minibert.analysis.repeated_ids(model.config.vocab_size, draws=2, length=20)
    scores = minibert.analysis.head_scores(model, ids, repeated=ids)
    previous, (layer, head) = (
        divmod(int(scores[kind].argmax()), model.config.n_heads)
        for kind in ("previous", "induction")
    )
    assert (previous[0], layer) == (0, 1)
    generator = torch.Generator().manual_seed(0)
    query, key, heads = 30, 11, range(model.config.n_heads)
    own = head // (model.config.n_heads // model.config.n_kv_heads)
    for _ in range(50):
        halves = torch.randint(300, 4000, (2, 1, 20), generator=generator)
        trace, other = (model.trace(torch.cat([half, half], 1)) for half in halves)
        found = why(trace, layer, head, query, key, against="row").side("key")
        assert found.top(1)[0][0] == "head {}-{}".format(*previous)
        left = []
        for sender in heads:
            sent = trace.rerun({("z", 0, sender): other[0, sender].z})
            patched = trace.rerun({("key", layer, own): sent[layer].key[:, own]})
            left.append(patched[layer, head].probs[0, query, key])
        assert min(heads, key=left.__getitem__) == previous[1]


def test_a_part_is_what_the_score_loses_without_it() -> None:
    for name in ("tiny-gpt2", "tiny-bert", "tiny-llama"):
        trace = minibert.load(name).trace("the horse ran away and the horse ran")
        found = why(trace, 2, 1, -1, 2)
        for side, component in (("key", "head 0-3"), ("query", "mlp 1"), ("key", "word embedding")):
            part, frozen, live = found.check(component, side).values.tolist()
            assert abs(part - frozen) < 1e-4 * found.values.abs().max()
            assert (abs(frozen - live) < 1e-4) == (name == "tiny-bert")


@pytest.mark.parametrize(
    ("arguments", "options", "part"),
    [
        ((9, 0, 1, 0), {}, "layer"),
        ((0, 9, 1, 0), {}, "head"),
        ((0, 0, 99, 0), {}, "query"),
        ((0, 0, 1, "no such word"), {}, "key"),
        ((0, 0, 1, 0), {"against": 99}, "against"),
        ((0, 0, 1, 0), {"neurons": -1}, "neurons"),
        ((0, 0, 1, 0), {"sentence": 3}, "text"),
        ((0, None, 1, 0), {}, "head"),
        ((0, 0, 1.0, 0), {}, "query=1.0"),
        ((0, 0, 1, True), {}, "key=True"),
        ((0, 0, 1, 0), {"against": "rows"}, '"row" compares'),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, options: Any, part: str) -> None:
    trace = minibert.load("tiny-gpt2").trace("the horse ran away")
    with pytest.raises(MinibertError, match=part):
        why(trace, *arguments, **options)


def test_what_has_no_parts_is_refused() -> None:
    model = minibert.load("tiny-gpt2")
    trace = model.trace("the horse ran away")
    found = why(trace, 1, 2, -1, 1)
    for component in ("word embedding", "key bias"):
        with pytest.raises(TraceError, match="not computed from tokens"):
            found.follow(component)
    with pytest.raises(TraceError, match="side"):
        found.side("value")
    with pytest.raises(TraceError, match="key bias cannot be taken out"):
        found.check("key bias")
    with pytest.raises(TraceError, match="against"):
        why(trace, 1, 2, -1, 1, against="row").check("head 0-3")
    for other in (minibert.Model, model, "text"):
        for ask in (partial(why_heads, layer=1), partial(why_logit, token=5)):
            with pytest.raises(TraceError, match=r"expected what model\.trace gives"):
                ask(other)
    with pytest.raises(TraceError, match="128 floats"):
        why_stream(trace, torch.ones(127))


@pytest.mark.parametrize("name", ["resid_pre", "resid_post", "attn_out", "query", "scores"])
def test_what_an_edit_wrote_past_the_components_is_refused(name: str) -> None:
    model = minibert.load("tiny-gpt2")
    layer = 0 if name in ("resid_post", "attn_out") else 1
    trace = model.trace("the horse ran away", edit={(name, layer): lambda x: x + x.square()})
    asked = [lambda: why_heads(trace, 1), lambda: why(trace, 1, 2, -1, 1)]
    if name not in ("query", "scores"):
        asked += [lambda: why_logit(trace, 7), lambda: why_stream(trace, torch.ones(128))]
    for ask in asked:
        with pytest.raises(TraceError, match="an edit wrote"):
            ask()
    hidden = model.trace("the horse ran away", edit={("scores", 1): hide(1)})
    with pytest.raises(TraceError, match="hid this key"):
        why(hidden, 1, 2, -1, 1)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2", "tiny-llama"])
def test_half_precision_is_followed_and_checked_too(name: str) -> None:
    trace = minibert.load(name, dtype=torch.bfloat16).trace("the horse ran away and the boy ran")
    for head in range(4):
        found = why(trace, 2, head, -1, 1)
        found.tree()
        part, frozen, _ = found.check("mlp 1").values.tolist()
        assert abs(part - frozen) <= 0.1 * max(found.values.abs().max(), abs(part))
