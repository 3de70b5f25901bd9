"""Circuits, composition and copying scores equal TransformerLens', where that is installed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minibert.analysis import composition_scores, copying_scores, ov_circuit, qk_circuit
from minibert.analysis.circuits import COMPOSITIONS
from minibert.loading import from_transformers
from minibert.model import Model
from tests.families import Sizes, hf_model
from tests.transformer_lens_models import hooked, lens_model

pytest.importorskip("transformer_lens")

SIZES = Sizes(layers=3, heads=3, d_head=5, seed=3)
# What from_pretrained does to weights of a pre-norm model; here it is fold_norm=True.
FOLDED = {"fold_ln": True, "center_writing_weights": True}
CASES = ["gpt2", "gpt2 folded", "bert"]


def pair(case: str) -> tuple[Model, Any, bool]:
    """The same random weights here and there, and whether they are folded."""
    if case == "bert":
        theirs = hf_model("bert", "BertForPreTraining", SIZES)
        return from_transformers(theirs), hooked(theirs), False
    theirs = hf_model("gpt2", "GPT2LMHeadModel", SIZES)
    folded = case == "gpt2 folded"
    return from_transformers(theirs), lens_model(theirs, **FOLDED if folded else {}), folded


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["QK", "OV"])
def test_matrices_and_their_singular_values_are_those_of_transformer_lens(
    case: str, name: str
) -> None:
    model, peer, fold = pair(case)
    circuit_of = {"QK": qk_circuit, "OV": ov_circuit}[name]
    for layer in range(3):
        for head in range(3):
            ours = circuit_of(model, layer, head, fold_norm=fold)
            theirs = getattr(peer, name)[layer, head]
            same(ours.matrix(), theirs.AB)
            same(ours.norm(), theirs.norm())
            vectors = ours.singular_vectors()
            same(vectors.values, theirs.S[: SIZES.d_head])
            # A pair of singular vectors has no sign of its own.
            for mine, his in ((vectors.left, theirs.U), (vectors.right, theirs.V)):
                cosines = (mine * his[:, : SIZES.d_head]).sum(0).abs()
                same(cosines, torch.ones(SIZES.d_head))
            found, expected = (values.abs() for values in (ours.eigenvalues(), theirs.eigenvalues))
            same(found, expected.sort(descending=True).values)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", COMPOSITIONS)
def test_composition_scores_are_those_of_transformer_lens(case: str, kind: str) -> None:
    from transformer_lens.utilities import composition_scores as score

    model, peer, fold = pair(case)
    reads = {"Q": peer.QK, "K": peer.QK.T, "V": peer.OV}[kind]
    # HookedEncoder has no all_composition_scores; this is what it is made of.
    expected = score(peer.OV, reads, broadcast_dims=True)
    later = torch.arange(3)[:, None, None, None] < torch.arange(3)[:, None]
    same(composition_scores(model, kind, fold_norm=fold).scores, expected * later)
    if case != "bert":
        made = peer.all_composition_scores(kind)
        # 4.3 wraps the tensor.
        same(getattr(made, "scores", made), expected * later)


@pytest.mark.parametrize("case", CASES)
def test_copying_scores_are_those_of_the_eigenvalues_of_transformer_lens(case: str) -> None:
    model, peer, fold = pair(case)
    values = (peer.W_E @ peer.OV @ peer.W_U).eigenvalues.detach()
    found = copying_scores(model, fold_norm=fold)
    same(found.scores, (values.sum(-1) / values.abs().sum(-1)).real)
    sizes = (each.abs().sort(-1).values for each in (found.eigenvalues, values))
    for ours, theirs in zip(*sizes, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
