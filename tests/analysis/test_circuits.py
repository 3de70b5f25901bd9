"""Circuits, composition, copying: against full matrices, the model and TransformerLens."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune
from vocabulary_models import both

from minibert.analysis import (
    composition_scores,
    copying_scores,
    ov_circuit,
    ov_on_tokens,
    qk_circuit,
    qk_on_tokens,
)
from minibert.analysis.circuits import COMPOSITIONS, head_weights
from minibert.errors import MinibertError
from minibert.layers import linear_backends as backends
from minibert.loading import from_transformers, load
from minibert.model import Model
from tests.circuit_models import FAMILIES, ROTARY, SIZES, Array, Weights, model_pair, their_layer
from tests.families import Sizes, batch, hf_model, sizes
from tests.rotary.classes import LANGUAGE
from tests.transformer_lens_models import hooked, lens_model

IDS, OTHERS = [5, 2, 40, 7, 11], [3, 5, 19]
TURNED = ("gpt_neox", "llama", "gemma2", "modernbert")
every_family = pytest.mark.parametrize("family", [*FAMILIES, *ROTARY])


def layers_of(theirs: Any, family: str) -> list[Weights]:
    count = theirs.config.num_hidden_layers
    return [their_layer(theirs, family, layer) for layer in range(count)]


def ours(family: str, chosen: Sizes = SIZES) -> Model:
    return model_pair(family, chosen)[1]


def at_zero(family: str, kind: str = "Q") -> dict[str, Any]:
    """The distance at which nothing is turned, where the family asks for one."""
    return {"distance": 0} if family in LANGUAGE and kind != "V" else {}


def same(found: Any, expected: Any, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(found, expected, atol=atol)


@every_family
@settings(max_examples=4)
@given(chosen=sizes, data=st.data())
def test_the_factors_are_the_weights_that_transformers_holds(
    family: str, chosen: Sizes, data: st.DataObject
) -> None:
    theirs, model = model_pair(family, chosen)
    layer = data.draw(st.integers(0, model.config.n_layers - 1))
    head = data.draw(st.integers(0, model.config.n_heads - 1))
    weights = their_layer(theirs, family, layer)
    plain = [(False, weights.W)]
    for fold, W in [*plain, (True, weights.folded())] if model.config.pre_norm else plain:
        query, key, value, output = (W[name][head] for name in ("query", "key", "value", "output"))
        qk = qk_circuit(model, layer, head, fold_norm=fold, **at_zero(family))
        ov = ov_circuit(model, layer, head, fold_norm=fold)
        same(qk.matrix(), query @ key.T)
        same(ov.matrix(), value @ output)
        if not fold:
            same(qk.key_direction, key @ weights.b["query"][head])
            same(qk.query_direction, query @ weights.b["key"][head])
            same(ov.bias, weights.b["value"][head] @ output)


@pytest.mark.parametrize("family", [*FAMILIES, *TURNED])
@pytest.mark.parametrize("fold_norm", [False, True])
@pytest.mark.parametrize(("layer", "head"), [(0, 1), (-1, -1)])
def test_scores_and_moves_are_what_the_model_computes(
    family: str, fold_norm: bool, layer: int, head: int
) -> None:
    if family in TURNED:
        _, model, _, tokens = both(family, LANGUAGE[family])
        ids = tokens[0]
    else:
        _, model = model_pair(family)
        ids = batch(family)["input_ids"][:1]
    if fold_norm and not model.config.pre_norm:
        with pytest.raises(MinibertError, match="LayerNorm stands behind each layer"):
            qk_circuit(model, layer, head, fold_norm=True)
        return
    trace = model.trace(ids)
    at, block = trace[layer, head], model.body.layers[layer]
    x = read = block.attention_input(trace[layer].resid_pre)[0]
    if fold_norm and block.attention_norm is not None:
        # Raw and not centred: folded weights take the mean away themselves.
        stream = trace[layer].resid_pre[0]
        centred = stream if model.config.norm == "rms" else stream - stream.mean(-1, keepdim=True)
        read = stream / (centred.square().mean(-1, keepdim=True) + model.config.norm_eps).sqrt()
    if family in TURNED:
        for distance in (-3, 0, 1, 12):
            circuit = qk_circuit(model, layer, head, fold_norm=fold_norm, distance=distance)
            scores = at.scores[0].diagonal(-distance)
            same(circuit.scores(read, read).diagonal(-distance), scores)
            assert circuit.distance == distance
    else:
        same(qk_circuit(model, layer, head, fold_norm=fold_norm).scores(read, read), at.scores[0])
    if not fold_norm:
        same(at.probs[0] @ ov_circuit(model, layer, head).moves(x), at.head_out[0])


@settings(max_examples=8)
@given(chosen=sizes, kind=st.sampled_from([qk_circuit, ov_circuit]))
def test_singular_values_vectors_eigenvalues_and_norm_are_those_of_the_full_matrix(
    chosen: Sizes, kind: Any
) -> None:
    circuit = kind(model_pair("gpt2", chosen)[1], 0, 0)
    full, found = circuit.matrix().numpy(), circuit.singular_vectors()
    same(found.values, np.linalg.svd(full, compute_uv=False)[: chosen.d_head])
    same(found.left @ found.values.diag() @ found.right.T, full)
    for vectors in (found.left, found.right):
        same(vectors.T @ vectors, np.eye(chosen.d_head))
    same(circuit.norm(), np.linalg.norm(full))
    eigenvalues = circuit.eigenvalues().numpy()
    assert (np.diff(np.abs(eigenvalues)) <= 1e-12).all()
    theirs = np.linalg.eigvals(full)
    assert max(np.abs(theirs - value).min() for value in eigenvalues) < 1e-7
    same(eigenvalues.sum(), np.trace(full), 1e-10)


def full_scores(layers: list[Weights], kind: str, fold: str) -> Array:
    """Every score from d_model x d_model matrices. `fold` is "before", "behind" or nothing."""
    W = [each.folded() if fold == "before" else each.W for each in layers]
    size = (len(layers), len(W[0]["query"]))
    scores = np.zeros(size + size)
    for a, h, b, g in np.ndindex(*scores.shape):
        if a >= b:
            continue
        write = W[a]["value"][h] @ W[a]["output"][h]
        for between in layers[a:b] if fold == "behind" else ():
            for name in ("attention_norm", "mlp_norm"):
                write = write @ between.centre @ np.diag(between.norms[name])
        query, key, value, output = (W[b][n][g] for n in ("query", "key", "value", "output"))
        read = {"Q": query @ key.T, "K": key @ query.T, "V": value @ output}[kind]
        norms = np.linalg.norm(write) * np.linalg.norm(read)
        scores[a, h, b, g] = np.linalg.norm(write @ read) / norms
    return scores


@every_family
@settings(max_examples=4)
@given(chosen=sizes, kind=st.sampled_from(COMPOSITIONS), fold_norm=st.booleans())
def test_every_pair_scores_what_full_matrices_give(
    family: str, chosen: Sizes, kind: str, fold_norm: bool
) -> None:
    theirs, model = model_pair(family, chosen)
    fold = ("before" if model.config.pre_norm else "behind") if fold_norm else ""
    found = composition_scores(model, kind, fold_norm=fold_norm, **at_zero(family, kind))
    same(found.values, full_scores(layers_of(theirs, family), kind, fold))
    assert found.title == f"{kind}-composition"


def test_queries_of_a_rotary_model_compose_by_their_distance() -> None:
    _, model = model_pair("llama")
    near, far = (composition_scores(model, "Q", distance=n).values for n in (0, 5))
    assert not torch.allclose(near, far)


def test_pairs_are_read_by_name_and_the_best_come_first() -> None:
    found = composition_scores(ours("gpt2"), "Q")
    assert found.between((0, 1), (2, -1)) == found.values[0, 1, 2, 2].item()
    ranking = found.best(1000)
    assert len(ranking) == 3 * 9
    assert [score for *_, score in ranking] == sorted((s for *_, s in ranking), reverse=True)
    earlier, later, score = ranking[0]
    assert found.values[earlier][later].item() == score == found.values.max().item()
    assert found.largest(1) == [(*earlier, *later, score)]
    first = f"{earlier[0]}-{earlier[1]}, {later[0]}-{later[1]}"
    assert str(found).splitlines()[1].split() == [*first.split(), f"{score:+.3f}"]
    alone = composition_scores(ours("gpt2", Sizes(layers=1)), "K")
    assert not alone.best()
    with pytest.raises(MinibertError, match="one layer has no head that reads another"):
        alone.plot()


def test_a_head_whose_matrix_is_zero_scores_zero_and_a_broken_one_nan() -> None:
    _, model = model_pair("gpt2")
    value = model.body.layers[0].attention.value.weight
    value[:5], value[7, 3] = 0, torch.nan
    found = composition_scores(model, "V")
    assert not found.values[0, 0].any()
    assert found.values[0, 1, 1:].isnan().all()
    assert found.values[0, 2, 1:].gt(0).all()
    assert found.best()[0][2] > 0


def without_places(family: str) -> Model:
    """A model in which a token's embedding is all that a position holds."""
    _, model = model_pair(family)
    for table in (model.body.position, model.body.segment):
        if table is not None:
            table.weight.zero_()
    return model


@pytest.mark.parametrize("family", [*FAMILIES, *TURNED])
def test_token_scores_are_those_of_the_first_layer_where_positions_are_nothing(family: str) -> None:
    model = both(family, LANGUAGE[family])[1] if family in TURNED else without_places(family)
    scores = model.trace([IDS])[0, 1].scores[0]
    for distance in (-2, 0, 3) if family in TURNED else (None,):
        ids = torch.tensor(IDS, dtype=torch.int32)
        table = qk_on_tokens(model, 0, 1, queries=ids, keys=IDS, distance=distance)
        assert table.labels["query"] == tuple(map(str, IDS))
        if distance is None:
            same(table.values, scores)
            some = qk_on_tokens(model, 0, 1, queries=IDS[:2], keys=IDS[1:4])
            same(some.values, scores[:2, 1:4])
        else:
            same(table.values.diagonal(-distance), scores.diagonal(-distance))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "gpt2", *ROTARY])
def test_what_a_head_moves_is_read_by_the_norms_and_the_decoder_behind_it(family: str) -> None:
    theirs, model = model_pair(family)
    if family not in LANGUAGE:
        model = without_places(family)
    # A token that stands alone is looked at alone.
    moved = model.trace([[11]])[0, 2].head_out[0, 0].numpy()
    weights = their_layer(theirs, family, 0)
    moved = moved * weights.norms.get("output_norm", 1.0)
    decoder = model.body.word.weight if family != "bert" else model.head.decoder.weight
    final = 1.0
    if family == "gpt2":
        final, decoder = theirs.transformer.ln_f.weight.detach().numpy(), theirs.lm_head.weight
        moved = moved - moved.mean()
    elif family in ROTARY:
        final = theirs.model.norm.weight.detach().numpy() + (family == "gemma2")
        decoder = theirs.lm_head.weight
    rows = decoder.detach().numpy()[OTHERS]
    table = ov_on_tokens(model, 0, 2, sources=[11], targets=OTHERS)
    same(table.values[0], (moved * final) @ rows.T)


@pytest.mark.parametrize("family", ["bert", "gpt2", *ROTARY])
@settings(max_examples=4)
@given(chosen=sizes, data=st.data())
def test_copying_scores_come_from_the_eigenvalues_of_the_full_circuit(
    family: str, chosen: Sizes, data: st.DataObject
) -> None:
    theirs, model = model_pair(family, chosen)
    fold = model.config.pre_norm and data.draw(st.booleans())
    layer = data.draw(st.integers(0, model.config.n_layers - 1))
    head = data.draw(st.integers(0, model.config.n_heads - 1))
    weights, unembed = their_layer(theirs, family, layer), theirs.get_output_embeddings().weight
    W = weights.folded() if fold else weights.W
    embed = theirs.get_input_embeddings().weight.detach().numpy()
    embed = embed * (embed.shape[1] ** 0.5 if family == "gemma2" else 1.0)
    full = embed @ W["value"][head] @ W["output"][head]
    if fold:
        final = getattr(getattr(theirs, "transformer", None), "ln_f", None)
        norm = (theirs.model.norm if final is None else final).weight.detach().numpy()
        full = full @ weights.centre * (norm + (family == "gemma2"))
    eigenvalues = np.linalg.eigvals(full @ unembed.detach().numpy().T)
    found = copying_scores(model, fold_norm=fold)
    expected = eigenvalues.sum().real / np.abs(eigenvalues).sum()
    same(found.values[layer, head], expected, 1e-6)
    same(found.eigenvalues[layer, head].sum(), eigenvalues.sum(), 1e-7)
    assert found.eigenvalues.shape == (*found.values.shape, model.config.d_head)


def test_tokens_are_named_by_the_tokenizer() -> None:
    model = load()
    ids = model.tokenizer.encode("autumn leaves")
    table = qk_on_tokens(model, 1, 3, queries=ids, keys=ids[:1])
    assert table.labels["query"] == tuple(model.tokenizer.string(i) for i in ids)


def test_what_is_given_out_is_a_copy_in_float32_at_least_and_needs_no_gradient() -> None:
    _, model = model_pair("bert", dtype=torch.bfloat16)
    model.requires_grad_()
    ids = batch("bert")["input_ids"]
    before = model(ids)
    for tensor in vars(head_weights(model, 1)).values():
        assert (tensor.dtype, tensor.requires_grad) == (torch.float32, False)
        tensor.fill_(torch.nan)
    assert torch.equal(model(ids), before)
    circuit = ov_circuit(model, 1, 2)
    assert circuit.moves(torch.ones(2, 15, dtype=torch.bfloat16)).dtype == torch.float32


def test_reading_weights_does_not_unpack_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ours("gpt2").float()
    monkeypatch.setattr(backends, "PACK_FROM", 1)
    backends.use("onednn-packed")
    model.pack()
    backends.use(None)
    classes = [type(parameter) for parameter in model.parameters()]
    assert model.is_packed == (torch.float32 in backends.processor().onednn_dtypes)
    for fold in (False, True):
        head_weights(model, 0, fold_norm=fold)
    assert [type(parameter) for parameter in model.parameters()] == classes


class Adapted(nn.Module):
    """A linear layer and an adapter beside it, whose `weight` is the layer's alone."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear, self.weight = linear, linear.weight
        self.beside = nn.Linear(15, 15, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.beside(x)


def test_a_layer_in_the_place_of_another_is_read_as_it_acts() -> None:
    _, model = model_pair("bert")
    attention = model.body.layers[1].attention
    attention.query = Adapted(attention.query)
    attention.value = nn.Linear(15, 15, bias=False, dtype=torch.float64)
    trace = model.trace(batch("bert")["input_ids"][:1])
    x = model.body.layers[1].attention_input(trace[1].resid_pre)[0]
    same(qk_circuit(model, 1, 2).scores(x, x).detach(), trace[1, 2].scores[0].detach())
    moved = trace[1, 2].probs[0] @ ov_circuit(model, 1, 2).moves(x)
    same(moved.detach(), trace[1, 2].head_out[0].detach())
    prune.custom_from_mask(attention.output, "weight", torch.zeros_like(attention.output.weight))
    assert not ov_circuit(model, 1, 2).right.any()


def broken(layer: int) -> Model:
    """A model with one weight that is not finite."""
    _, model = model_pair("gpt2")
    model.body.layers[layer].attention.query.weight[7, 0] = torch.nan
    model.body.layers[layer].attention.value.weight[0, 0] = torch.inf
    return model


def narrow() -> Model:
    return from_transformers(hf_model("electra", "ElectraForMaskedLM", SIZES))


REFUSED: dict[str, Any] = {
    "There is no layer 3; expected 0 to 2": lambda: qk_circuit(ours("bert"), 3, 0),
    "There is no head -4; expected 0 to 2": lambda: ov_circuit(ours("bert"), 0, -4),
    "one QK circuit for each distance: give": lambda: qk_circuit(ours("llama"), 0, 0),
    "smaller than the 31 positions": lambda: qk_circuit(ours("llama"), 0, 0, distance=31),
    "distance=True: .* smaller": lambda: qk_circuit(ours("llama"), 0, 0, distance=True),
    "no rotary positions": lambda: qk_circuit(ours("gpt2"), 0, 0, distance=1),
    "whose divisor differs": lambda: qk_circuit(ours("olmo2"), 0, 0, distance=1),
    "give distance=": lambda: composition_scores(ours("llama"), "K"),
    "V-composition is about values": lambda: composition_scores(ours("llama"), "V", distance=1),
    "kind='q': expected one of 'Q', 'K', 'V'": lambda: composition_scores(ours("bert"), "q"),
    "head of the earlier layer first": lambda: composition_scores(ours("gpt2"), "Q").between(
        (1, 2), (1, 0)
    ),
    "There is no head 3; expected": lambda: composition_scores(ours("gpt2"), "Q").between(
        (0, 3), (1, 0)
    ),
    "count=0: expected a whole number from 1": lambda: composition_scores(ours("gpt2"), "Q").best(
        0
    ),
    "head 1-1 are not all finite.* no eigen": lambda: qk_circuit(broken(1), 1, 1).eigenvalues(),
    "finite.* no singular": lambda: qk_circuit(broken(1), 1, 1).singular_vectors(),
    "layer 2 or the embeddings are not all finite": lambda: copying_scores(broken(2)),
    "LayerNorm stands behind": lambda: copying_scores(ours("bert"), fold_norm=True),
    "11 wide and its stream 15": lambda: copying_scores(narrow()),
    "11 wide": lambda: ov_on_tokens(narrow(), 0, 0, sources=[1], targets=[1]),
    "Token id 41 is outside": lambda: qk_on_tokens(ours("gpt2"), 0, 0, queries=[1], keys=[41]),
    "Token id -1 is outside": lambda: ov_on_tokens(
        ours("gpt2"), 0, 0, sources=[3, -1], targets=[1]
    ),
    "expected a row of at least": lambda: qk_on_tokens(ours("gpt2"), 0, 0, queries=[], keys=[1]),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_exist_or_fit_is_refused(words: str) -> None:
    with pytest.raises(MinibertError, match=words):
        REFUSED[words]()


def peers(case: str) -> tuple[Model, Any, dict[str, bool]]:
    """The same random weights here and in TransformerLens, and whether they are folded."""
    pytest.importorskip("transformer_lens")
    chosen = Sizes(layers=3, heads=3, d_head=5, seed=3)
    if case == "bert":
        theirs = hf_model("bert", "BertForPreTraining", chosen)
        return from_transformers(theirs), hooked(theirs), {}
    theirs = hf_model("gpt2", "GPT2LMHeadModel", chosen)
    folded = case == "gpt2 folded"
    # What from_pretrained does to weights of a pre-norm model.
    flags = dict.fromkeys(("fold_ln", "center_writing_weights"), True) if folded else {}
    return from_transformers(theirs), lens_model(theirs, **flags), {"fold_norm": folded}


def near(found: Tensor, expected: Tensor, rtol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=rtol)


@pytest.mark.parametrize("case", ["gpt2", "gpt2 folded", "bert"])
def test_circuits_and_their_scores_are_those_of_transformer_lens(case: str) -> None:
    model, peer, fold = peers(case)
    from transformer_lens.utilities import composition_scores as score

    for name, circuit_of in (("QK", qk_circuit), ("OV", ov_circuit)):
        ours, theirs = circuit_of(model, 1, 2, **fold), getattr(peer, name)[1, 2]
        vectors = ours.singular_vectors()
        near(ours.matrix(), theirs.AB)
        near(ours.norm(), theirs.norm())
        near(vectors.values, theirs.S[:5])
        # A pair of singular vectors has no sign of its own.
        for mine, his in ((vectors.left, theirs.U), (vectors.right, theirs.V)):
            near((mine * his[:, :5]).sum(0).abs(), torch.ones(5))
        expected = theirs.eigenvalues.abs().sort(descending=True).values
        near(ours.eigenvalues().abs(), expected)
    later = torch.arange(3)[:, None, None, None] < torch.arange(3)[:, None]
    for kind in COMPOSITIONS:
        # HookedEncoder has no all_composition_scores; this is what it is made of.
        reads = {"Q": peer.QK, "K": peer.QK.T, "V": peer.OV}[kind]
        expected = score(peer.OV, reads, broadcast_dims=True) * later
        near(composition_scores(model, kind, **fold).values, expected)
        if case != "bert":
            made = peer.all_composition_scores(kind)
            # 4.3 wraps the tensor.
            near(getattr(made, "scores", made), expected)
    values, found = (peer.W_E @ peer.OV @ peer.W_U).eigenvalues, copying_scores(model, **fold)
    near(found.values, (values.sum(-1) / values.abs().sum(-1)).real)
    near(found.eigenvalues.abs().sort(-1).values, values.abs().sort(-1).values, 1e-4)
