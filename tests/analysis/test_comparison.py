"""Where two checkpoints of one model differ, against NumPy on what both traces hold."""

from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert.analysis import compare_models
from minibert.errors import TraceError
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens

L, H, N, VOCABULARY = 3, 2, 7, 41


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    largest = logits.max(-1, keepdims=True)
    return logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))


def model(seed: int, *, task: str = "causal-lm", n_heads: int = H) -> Model:
    config = Config(
        family="gpt2",
        task=task,
        vocab_size=VOCABULARY,
        n_positions=N,
        n_layers=L,
        n_heads=n_heads,
        d_model=12,
        d_mlp=13,
        causal=True,
    )
    made = Model.from_config(config, seed=seed)
    for parameter in made.parameters():
        parameter.mul_(10)
    return made.double()


def texts() -> Tokens:
    ids = torch.randint(VOCABULARY, (2, N), generator=torch.Generator().manual_seed(3))
    return Tokens.from_ids(ids, mask=torch.arange(N) < torch.tensor([[N], [N - 3]]))


def test_each_number_is_what_its_formula_says() -> None:
    first, second = model(1), model(2)
    found = compare_models(first, second, texts())
    assert found.rows == ("embed", "resid_post 0", "resid_post 1", "resid_post 2")
    assert found.logits is not None
    for row, length in ((0, N), (1, N - 3)):
        ids = texts().ids[row : row + 1, :length]
        one, other = first.trace(ids), second.trace(ids)
        for layer in range(L):
            p, q = (trace[layer].probs[0].numpy() for trace in (one, other))
            expected = np.abs(p - q).sum(-1).mean(-1) / 2
            np.testing.assert_allclose(found.values[layer, row], expected, atol=1e-12)
            x, y = (trace[layer].resid_post[0].numpy() for trace in (one, other))
            expected = np.linalg.norm(y - x, axis=-1) / np.linalg.norm(x, axis=-1)
            np.testing.assert_allclose(found.streams[layer + 1, row, :length], expected, atol=1e-12)
        p, q = (log_softmax(trace.logits[0].numpy()) for trace in (one, other))
        expected = (np.exp(p) * (p - q)).sum(-1)
        np.testing.assert_allclose(found.logits[row, :length], expected, atol=1e-12)
        assert found.logits[row, length:].isnan().all()
        assert found.streams[:, row, length:].isnan().all()
    assert minibert.axes_of(found) == {
        "values": ("layer", "batch", "head"),
        "streams": ("row", "batch", "position"),
        "logits": ("batch", "position"),
    }


def test_a_model_is_no_distance_from_itself() -> None:
    one = model(1)
    found = compare_models(one, one, texts())
    assert not found.values.any()
    assert not found.streams.nan_to_num().any()
    assert found.logits is not None
    assert found.logits.nan_to_num().abs().max() == 0


def test_the_head_that_was_changed_differs_most_in_its_layer() -> None:
    first, second = model(1), model(1)
    query = second.body.layers[1].attention.query.weight
    query[second.config.d_head :] *= -2
    found = compare_models(first, second, texts())
    assert found.values[0].abs().max() == 0
    assert found.values[1, :, 0].abs().max() == 0
    assert found.values[1, :, 1].min() > 0.01
    assert found.streams[:2].nan_to_num().abs().max() == 0
    assert (1, 1) in [place[:2] for place in found.largest(3)]
    sizes = [value for _, _, value in found.largest(3)]
    assert sizes == sorted(sizes, reverse=True)


def test_models_without_a_vocabulary_have_no_divergence() -> None:
    assert compare_models(model(1, task="none"), model(2, task="none"), texts()).logits is None


def test_models_of_other_shapes_are_refused() -> None:
    with pytest.raises(TraceError, match=r"n_heads=2.*n_heads=3"):
        compare_models(model(1), model(1, n_heads=3), texts())
