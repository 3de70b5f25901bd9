"""A score is the sum of its pairs, a part is the sum of what it read, and NumPy says the same."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from vocabulary_models import ROTARY_CLASSES, VOCABULARY_CLASSES, both

import minibert
from minibert.analysis import decompose, why, why_heads, why_logit, why_stream
from minibert.analysis.reasons import Branch, Why
from minibert.errors import MinibertError, TraceError
from minibert.trace.edit import hide
from minibert.trace.read import Trace
from tests.circuit_models import Array, model_pair, their_layer
from tests.families import sizes
from tests.rotary.classes import LANGUAGE
from tests.rotary.theirs import computing

CLASSES = dict(VOCABULARY_CLASSES) | LANGUAGE | dict(ROTARY_CLASSES)
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-10}


def is_sum(values: Tensor, expected: float, limit: float) -> None:
    """The values add up, up to a share of the largest of them."""
    assert abs(values.sum().item() - expected) <= limit * max(values.abs().max().item(), 1e-30)


def drawn_trace(model: Any, tokens: Any, data: Any) -> tuple[Trace, str]:
    """A trace of three sentences: padded, packed, or with an edit, whose quantity it names."""
    kind = data.draw(st.sampled_from(["padded", "packed", "edited"]))
    if kind != "edited":
        return model.trace(tokens, packed=kind == "packed"), ""
    name = data.draw(st.sampled_from(["embed", "z", "mlp_out"]))
    key = name if name == "embed" else (name, 0)
    return model.trace(tokens, edit={key: lambda value: 1.5 * value}), name


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("dtype", LIMITS)
@settings(max_examples=6, phases=(Phase.generate,))
@given(chosen=sizes, data=st.data())
def test_every_level_adds_up_to_the_one_above(
    family: str, dtype: torch.dtype, chosen: Any, data: Any
) -> None:
    _, model, _, tokens = both(family, CLASSES[family], chosen, dtype)
    (trace, edits), limit, config = drawn_trace(model, tokens, data), LIMITS[dtype], model.config
    sentence = data.draw(st.integers(0, 2))
    length = trace.text(sentence).tokens.lengths[0]
    place = st.integers(0, length - 1)
    layer, head = data.draw(st.integers(0, config.n_layers - 1)), data.draw(st.integers(0, 1))
    head = head % config.n_heads
    query, key = sorted((data.draw(place), data.draw(place)), reverse=True)
    seen = trace.text(sentence)[layer].mask[0, 0, query]
    rows = ["row"] if seen[key] else []
    against = data.draw(st.sampled_from([None, *({0, 1} - {key} if query else []), *rows]))
    found = why(
        trace, layer, head, query, key, against=against, sentence=sentence,
        neurons=data.draw(st.sampled_from([0, 3])),
    )  # fmt: skip
    row = trace.text(sentence)[layer, head]
    scores = row.scores[0, query].double()
    others = {None: scores[:0].sum(), "row": scores[seen].mean()}
    other = others[against] if against in others else scores[against]
    # Two scores that are equal but for rounding leave rounding.
    limit *= max(1, float(scores.abs().max() / found.values.abs().max().clamp(min=1e-30)))
    is_sum(found.values, float(scores[key] - other), limit)
    for side in ("query", "key"):
        of = data.draw(st.sampled_from([None, f"{side}_component"]))
        own = {"query": "key_component", "key": "query_component"}[side]
        label = None if of is None else data.draw(st.sampled_from(list(found.labels[own])))
        number = found.side(side, of=label)
        axis = 1 - found.axes.index(own)
        expected = found.values.sum(1 - axis) if label is None else found.at(**{own: label})
        torch.testing.assert_close(number.values, expected, atol=limit * 10, rtol=1e-3)
        follow_to_the_end(number, limit, edits, data)


def follow_to_the_end(number: Why, limit: float, edits: str, data: Any) -> None:
    """Follow a drawn component, then one at a drawn token, and so on."""
    while writers := [c for c in number.components if c.kind in ("head", "mlp")]:
        label = data.draw(st.sampled_from(writers))
        try:
            found = number.follow(label)
        except TraceError:
            # What an edit wrote does not follow from what was read.
            if label.startswith({"z": "head 0-", "mlp_out": "mlp 0"}[edits]):
                break
            raise
        size = max(number.values.abs().max().item(), found.values.abs().max().item())
        assert abs(found.values.sum() - number[label]) <= 5 * limit * size
        if not label.startswith("head "):
            break
        number = found.at_token(data.draw(st.integers(0, found.values.shape[0] - 1)))


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


# Where transformers keeps what writes to the stream: layers, attention's output, MLP.
_PLACES = {
    "gpt2": ("transformer.h", "attn.c_proj", "mlp"),
    "bert": ("bert.encoder.layer", "attention.output.dense", "output.dense"),
    "llama": ("model.layers", "self_attn.o_proj", "mlp"),
    "gemma2": ("model.layers", "self_attn.o_proj", "mlp"),
    "qwen3": ("model.layers", "self_attn.o_proj", "mlp"),
}
LAYER, HEAD, QUERY, KEY = 1, 1, 5, 3


class Oracle:
    """The same table from transformers' modules and NumPy in float64."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.theirs, self.ours = model_pair(family)
        self.ids = torch.arange(3, 11)[None]
        layers, output, mlp = _PLACES[family]
        self.seen: dict[tuple[str, int], Array] = {}
        handles = []
        for n, block in enumerate(self.theirs.get_submodule(layers)):
            for name, path in (("z", output), ("mlp", mlp), ("layer", "")):
                handles.append(block.get_submodule(path).register_forward_hook(self.note(name, n)))
        with torch.no_grad(), computing(self.theirs):
            self.theirs(self.ids)
        for handle in handles:
            handle.remove()
        self.blocks = self.theirs.get_submodule(layers)
        self.eps = self.theirs.config.to_dict()
        (self.eps,) = (v for k, v in self.eps.items() if k.endswith(("norm_eps", "norm_epsilon")))

    def note(self, name: str, layer: int) -> Any:
        def hook(module: Any, given: Any, out: Any) -> None:
            out = out[0] if isinstance(out, tuple) else out
            self.seen[name, layer] = given[0][0].double().numpy() if name == "z" else out[0].numpy()
            if name == "z":
                self.seen["attention", layer] = out[0].double().numpy()
            if name == "layer":
                self.seen["stream", layer] = given[0][0].double().numpy()

        return hook

    def norm(self, module: Any, x: Array) -> Any:
        """The norm as a linear map with what it divided x by; x is (position, d_model)."""
        weight = module.weight.detach().double().numpy() + (self.family == "gemma2")
        centre = self.family in ("gpt2", "bert")

        def centred(y: Array) -> Array:
            return y - y.mean(-1, keepdims=True) if centre else y

        size = np.sqrt((centred(x) ** 2).mean(-1, keepdims=True) + self.eps)
        return lambda y: centred(y) / size * weight

    def bias(self, module: Any, like: Array) -> Array:
        return np.broadcast_to(module.bias.detach().double().numpy(), like.shape)

    def embedding(self) -> dict[str, Array]:
        body = self.theirs.get_submodule(_PLACES[self.family][0].rpartition(".")[0].split(".")[0])
        ids = self.ids[0]

        def rows(module: Any, which: Any = ids) -> Array:
            return module.weight[which].detach().double().numpy()

        if self.family == "gpt2":
            places = torch.arange(len(ids))
            return {"word embedding": rows(body.wte), "position embedding": rows(body.wpe, places)}
        if self.family != "bert":
            scale = len(rows(body.embed_tokens)[0]) ** 0.5 if self.family == "gemma2" else 1
            return {"word embedding": rows(body.embed_tokens) * scale}
        table = body.embeddings
        parts = {
            "word embedding": rows(table.word_embeddings),
            "position embedding": rows(table.position_embeddings, torch.arange(len(ids))),
            "segment embedding": rows(table.token_type_embeddings, 0 * ids),
        }
        norm = self.norm(table.LayerNorm, sum(parts.values()))  # type: ignore[arg-type]
        parts = {name: norm(part) for name, part in parts.items()}
        return parts | {
            "embedding norm bias": self.bias(table.LayerNorm, norm(parts["word embedding"]))
        }

    def written(self) -> dict[str, Array]:
        """What each component wrote to the stream in front of layer LAYER, (position, d_model)."""
        parts = self.embedding()
        for n in range(LAYER):
            weights, block = their_layer(self.theirs, self.theirs_family, n), self.blocks[n]
            z = self.seen["z", n].reshape(len(self.ids[0]), len(weights.W["output"]), -1)
            heads = {f"head {n}-{h}": z[:, h] @ W for h, W in enumerate(weights.W["output"])}
            if weights.b["output"].any():
                whole = self.seen["attention", n]
                heads[f"attention bias {n}"] = np.broadcast_to(weights.b["output"], whole.shape)
            mlp = {f"mlp {n}": self.seen["mlp", n]}
            if self.family == "gemma2":
                norm = self.norm(block.post_attention_layernorm, self.seen["attention", n])
                heads = {name: norm(part) for name, part in heads.items()}
                norm = self.norm(block.post_feedforward_layernorm, self.seen["mlp", n])
                mlp = {name: norm(part) for name, part in mlp.items()}
            for name, more, place in (
                ("attention", heads, "attention.output.LayerNorm"), ("mlp", mlp, "output.LayerNorm")
            ):  # fmt: skip
                parts |= more
                if self.family == "bert":
                    module = block.get_submodule(place)
                    norm = self.norm(module, sum(parts.values()))  # type: ignore[arg-type]
                    parts = {label: norm(part) for label, part in parts.items()}
                    parts[f"{name} norm bias {n}"] = self.bias(module, parts["word embedding"])
        return parts

    @property
    def theirs_family(self) -> str:
        return "llama" if self.family == "qwen3" else self.family

    def side(self, name: str, position: int) -> dict[str, Array]:
        """The parts of the query or key of HEAD at a position, rotated."""
        block, stream = self.blocks[LAYER], self.seen["stream", LAYER]
        weights = their_layer(self.theirs, self.theirs_family, LAYER)
        parts, bias = self.written(), weights.b[name][HEAD]
        place = {"gpt2": "ln_1"}.get(self.family, "input_layernorm")
        if self.family != "bert":
            module = block.get_submodule(place)
            norm = self.norm(module, stream)
            parts = {label: norm(part) for label, part in parts.items()}
            if self.family == "gpt2":
                parts[f"attention norm bias {LAYER}"] = self.bias(module, stream)
        found = {label: part[position] @ weights.W[name][HEAD] for label, part in parts.items()}
        if bias.any():
            found[f"{name} bias"] = bias
        if self.family == "qwen3":
            module = block.get_submodule(f"self_attn.{name[0]}_norm")
            norm = self.norm(module, sum(found.values()))  # type: ignore[arg-type]
            found = {label: norm(part) for label, part in found.items()}
        if self.family in LANGUAGE:
            found = {label: self.turned(part, position) for label, part in found.items()}
        return found

    def turned(self, x: Array, position: int) -> Array:
        half = len(x) // 2
        base = self.theirs.config.rope_parameters["rope_theta"]
        angles = position * base ** (-np.arange(half) / half)
        return np.concatenate([
            x[:half] * np.cos(angles) - x[half:] * np.sin(angles),
            x[half:] * np.cos(angles) + x[:half] * np.sin(angles),
        ])  # fmt: skip


@pytest.mark.parametrize("family", _PLACES)
def test_the_table_is_that_of_transformers_and_numpy(family: str) -> None:
    oracle = Oracle(family)
    trace = oracle.ours.trace(oracle.ids)
    found = why(trace, LAYER, HEAD, QUERY, KEY)
    queries, keys = oracle.side("query", QUERY), oracle.side("key", KEY)
    scale = trace.model.body.layers[LAYER].attention.scale
    assert set(found.labels["query_component"]) == set(queries)
    assert set(found.labels["key_component"]) == set(keys)
    expected = scale * np.array(
        [
            [queries[str(a)] @ keys[str(b)] for b in found.labels["key_component"]]
            for a in found.labels["query_component"]
        ]
    )
    np.testing.assert_allclose(found.values.numpy(), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("family", ["bert", "gpt2", "gemma2", "qwen3", "olmo2"])
def test_over_a_text_it_is_the_mean_of_all_pairs(family: str) -> None:
    _, model, _, tokens = both(family, CLASSES[family])
    trace = model.trace(tokens).text(1)
    found = why_heads(trace, 1)
    seen = trace[1].mask[0, 0].double()
    weights = trace[1].probs[0] - seen / seen.sum(-1, keepdim=True)
    expected = torch.zeros_like(found.values)
    for head in range(model.config.n_heads):
        for query, key in seen.nonzero().tolist():
            pair = why(trace, 1, head, query, key)
            expected[head] += weights[head, query, key] * pair.values / len(seen)
            assert found.labels.items() <= pair.labels.items()
    torch.testing.assert_close(found.values, expected, atol=1e-9, rtol=1e-6)
    # Sentences count by their tokens, in more rows than are held at once.
    whole, last = why_heads(model.trace(tokens), 1).values * 21, trace.tokens.lengths[0]
    others = [why_heads(model.trace(tokens).text(n), 1).values for n in (0, 2)]
    torch.testing.assert_close(whole, found.values * last + others[0] * 13 + others[1])


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_the_induction_head_looks_because_the_previous_token_head_wrote(name: str) -> None:
    model = minibert.load(name)
    ids = minibert.analysis.repeated_ids(model.config.vocab_size, draws=2, length=20)
    scores = minibert.analysis.head_scores(model, ids, repeated=ids)
    previous, induction = (
        divmod(int(scores[kind].argmax()), model.config.n_heads)
        for kind in ("previous", "induction")
    )
    generator = torch.Generator().manual_seed(0)
    first = 0
    for _ in range(50):
        half = torch.randint(300, 4000, (1, 20), generator=generator)
        trace = model.trace(torch.cat([half, half], 1))
        query = 30
        found = why(trace, *induction, query, query - 19, against="row").side("key")
        first += found.top(1)[0][0] == "head {}-{}".format(*previous)
    assert first == 50


def test_a_part_is_what_the_score_loses_without_it() -> None:
    for name in ("tiny-gpt2", "tiny-bert", "tiny-llama"):
        trace = minibert.load(name).trace("the horse ran away and the horse ran")
        found = why(trace, 2, 1, -1, 2)
        for side, component in (("key", "head 0-3"), ("query", "mlp 1"), ("key", "word embedding")):
            part, frozen, live = found.check(component, side).values.tolist()
            assert abs(part - frozen) < 1e-4 * found.values.abs().max()
            assert (abs(frozen - live) < 1e-4) == (name == "tiny-bert")


def test_what_is_equal_for_both_keys_is_said_to_be_gone() -> None:
    trace = minibert.load("tiny-gpt2").trace("the horse ran away")
    assert "so gone: attention norm bias 1, key bias" not in str(why(trace, 1, 2, -1, 1))
    assert "key bias" in str(why(trace, 1, 2, -1, 1, against=2)).splitlines()[-1]


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
            with pytest.raises(TraceError, match="expected a trace"):
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


def test_a_key_that_may_not_be_seen_is_said() -> None:
    trace = minibert.load("tiny-gpt2").trace("the horse ran away")
    assert "may not look at" in str(why(trace, 1, 2, 1, 3))
