"""A layer is one table: a quantity is declared once, and one kernel call a layer evaluates it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minibert
from minibert.errors import AttentionError
from minibert.kernels.api import attend, implementations, register
from minibert.kernels.call import WANTS
from minibert.layers.layer import LayerPass, LayerQuantities, layer_quantities
from minibert.layers.readers import reached
from minibert.model import Model, from_transformers
from minibert.quantities import QUANTITIES, Float, quantity
from minibert.trace.edit import zero
from minibert.trace.read import Trace
from tests.families import Sizes, as_tokens, batch, difference, hf_model
from tests.small_traces import other_trace, small_trace


def model_of(family: str, dtype: torch.dtype = torch.float64) -> Model:
    name = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[family]
    return from_transformers(hf_model(family, name, Sizes(), dtype))


@pytest.fixture
def length_of_mid(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more quantity: the length of resid_mid."""

    def compute(at: LayerPass) -> Float[Tensor, "batch position"]:
        return at.resid_mid.square().sum(-1).sqrt()

    monkeypatch.setitem(QUANTITIES, "length_of_mid", None)
    declared = quantity("the length of resid_mid", kept=True)(compute)
    monkeypatch.setattr(LayerQuantities, "length_of_mid", declared, raising=False)
    # Python calls this for what stands in the body of a class.
    declared.__set_name__(LayerQuantities, "length_of_mid")


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_one_declaration_makes_a_quantity(family: str, length_of_mid: None, tmp_path: Path) -> None:
    model, tokens = model_of(family), as_tokens(batch(family))
    trace = model.trace(tokens, grad=True)
    expected = trace[1].resid_mid.norm(dim=-1)
    assert torch.allclose(trace[1].length_of_mid, expected)
    assert trace.stack("length_of_mid").shape == (3, *tokens.ids.shape)
    assert torch.allclose(trace.text(1)[1].length_of_mid[0], expected[1, :7])
    # Listed.
    assert "length_of_mid" in layer_quantities()
    assert "length_of_mid" in dir(trace[0])
    with pytest.raises(minibert.TraceError, match=r"there are .*resid_post, length_of_mid"):
        _ = trace[0].length
    # Nothing reads it: an edit would do nothing, and no other number has a gradient by it.
    for edit in (trace.rerun, lambda one: trace.rerun_each([one], lambda logits: logits[:, 0, 5])):
        with pytest.raises(minibert.EditError, match="nothing is computed from length_of_mid"):
            edit({("length_of_mid", 1): zero})
    trace.backward(trace.logits[0, 0, 5])
    with pytest.raises(minibert.TraceError, match="no gradient of length_of_mid: nothing is"):
        _ = trace.grad[1].length_of_mid
    # Differentiated.
    trace.backward(trace[1].length_of_mid[0].square().sum() / 2)
    assert torch.allclose(trace.grad[1].length_of_mid[0], expected[0])
    assert torch.allclose(trace.grad[1].resid_mid[0], trace[1].resid_mid[0])
    assert trace.grad[1].length_of_mid[1].count_nonzero() == 0
    # Saved and loaded.
    again = Trace.load(model.trace(tokens).save(tmp_path / "b.trace"), model)
    assert torch.allclose(again[1].length_of_mid, expected)


@pytest.mark.parametrize("kind", ["bert", "gemma2", "gpt_neox", "modernbert"])
def test_an_edit_reaches_what_is_computed_from_it_and_nothing_else(kind: str) -> None:
    """In its own layer; `reached` is recorded from the table."""
    trace = small_trace() if kind == "bert" else other_trace(kind)
    trace = trace.rerun({}, keep=("scores", "probs"))
    names = list(layer_quantities(trace.config))
    for name in set(names) - trace.config.absent_in(1) - {"resid_pre"}:
        changed = trace.rerun({(name, 1): lambda value: 1.5 * value + 0.1})
        pairs = {one: (changed[1].quantity(one), trace[1].quantity(one)) for one in names}
        moved = {one for one, pair in pairs.items() if not torch.equal(*pair)}
        assert moved - {name} == reached(trace.config, 1, {name}), name


@pytest.fixture
def calls(clean_registry: None) -> list[str]:
    """A registered implementation that is better than all others writes its calls down here."""
    seen: list[str] = []

    def counting(name: str) -> Any:
        def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
            seen.append(name)
            found = attend(query, key, value, impl="eager", **options)
            given = {"lse": found.lse, "scores": found.scores, "probs": found.probs}
            statistics = vars(found.statistics) if found.statistics else {}
            given |= {"z": found.z} | statistics
            return {one: numbers for one, numbers in given.items() if numbers is not None}

        return attention

    outputs = {"z", "lse", *WANTS}
    register("best", counting("best"), wants=WANTS, rank=-1, differentiable=outputs)
    register("named", counting("named"), wants=WANTS, differentiable=outputs)
    return seen


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_registered_implementation_is_called_once_a_layer(family: str, calls: list[str]) -> None:
    model, tokens = model_of(family), as_tokens(batch(family))
    model.trace(tokens, impl="eager")
    assert calls == []

    def ran(function: Any, name: str = "best", layers: int = 3) -> Any:
        calls.clear()
        result = function()
        assert calls == [name] * layers
        return result

    ran(lambda: model(tokens))
    trace = ran(lambda: model.trace(tokens, statistics=("entropy",)))
    ran(lambda: model.trace(tokens, keep=("probs",), grad=True))
    ran(lambda: model.packed(tokens))
    ran(lambda: model.trace(tokens, packed=True, statistics=("received",)))
    ran(lambda: model.trace(tokens, impl="named"), "named")
    ran(lambda: trace.rerun({("z", 0, 1): zero}), layers=2)
    if family == "gpt2":
        ran(lambda: model.generate([3, 5, 7], max_new_tokens=1, temperature=0))
    model.impl = "named"
    ran(lambda: model(tokens), "named")
    ran(lambda: model.trace(tokens), "named")
    with pytest.raises(AttentionError, match='impl="fastest" is not known'):
        model.trace(tokens, impl="fastest")


HERE = [
    one.name
    for one in implementations().values()
    if one.name != "reference" and not one.unavailable and "cpu" in (one.devices or ("cpu",))
]


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_each_implementation_runs_whole_models(family: str, name: str) -> None:
    """Within 1e-10 in float64; else at most twice as far from float64 as torch's own attention."""
    one = implementations()[name]
    dtype = torch.float64 if torch.float64 in one.dtypes else torch.float32
    exact, model = model_of(family), model_of(family, dtype)
    exact.impl = "reference"
    tokens = as_tokens(batch(family))
    errors = {}
    for impl in (name, "eager"):
        found = [model.trace(tokens, impl=impl).logits[tokens.mask]]
        found.append(model.trace(tokens, packed=True, impl=impl).logits[0])
        expected = exact(tokens)[tokens.mask]
        errors[impl] = max(difference(one.double(), expected) for one in found)
    limit = 1e-10 if dtype == torch.float64 else 2 * errors["eager"]
    assert errors[name] <= limit
