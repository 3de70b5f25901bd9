"""Functions in other people's calling conventions: right ones pass, slips are named."""

import re

import planted_kernels as planted
import pytest
import torch
from called_here import report
from kernel_zoo import GROUPED, OPTIONS, PLANTED, RIGHT, SOFTMAX, START, WRONG, changed

from minibert.bench.signatures import SIGNATURES, guessed_by
from minibert.bench.user_file import load_function
from minibert.errors import MinibertError

#: A line of the zoo's flash-attn, before which a slip is planted.
G = "    g = q.shape[1] // k.shape[1]"


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")


def written(folder, text, *slips):
    path = folder / "kernel.py"
    path.write_text(START + SOFTMAX + changed(text, *slips), encoding="utf-8")
    return path


def wrong_and_named(found, cause):
    assert not found.ok, str(found)
    assert re.search(cause, "\n".join(found.causes)), str(found)
    # Each is said once, whatever its numbers.
    said = [re.sub(r"-?[\d.]+(e-?\d+)?", "", one) for one in found.causes]
    assert len(said) == len({*said})


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_right(tmp_path, name):
    options = OPTIONS.get(name, {}) | {"backward": name == "own gradients"}
    found = report(written(tmp_path, RIGHT[name]), "attention", **options)
    assert found.ok, str(found)


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_mistake_is_wrong_and_named(tmp_path, name):
    base, old, new, cause = WRONG[name]
    options = OPTIONS.get(name, {}) | {"backward": "own" in base}
    path = written(tmp_path, RIGHT[base], (old, new))
    wrong_and_named(report(path, "attention", **options), cause)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_kernel_is_wrong_and_named(tmp_path, name):
    sizes = (65,) if name == "READS_ON" else (17,)
    path = written(tmp_path, planted.START + getattr(planted, name))
    wrong_and_named(report(path, "attention", sizes=sizes), PLANTED[name])


def test_what_a_function_can_be_told_is_asked_and_nothing_else(tmp_path):
    asked = {one: set() for one in ("flash", "varlen", "plain")}
    for name in asked:
        found = report(written(tmp_path, RIGHT[name]), "attention")
        asked[name] = {one.case.split(",")[0] for one in found.findings}
    assert asked["flash"] >= {"scale", "causal", "groups", "window", "soft cap", "alibi"}
    assert not asked["flash"] & {"lengths", "mask", "bias", "sinks"}
    assert asked["varlen"] >= {"plain", "causal"}
    assert not asked["varlen"] & {"mask", "bias", "prefix"}
    assert asked["plain"] == {"plain", "strided", "causal"}


def test_a_function_that_is_always_causal_is_asked_nothing_else(tmp_path):
    path = written(tmp_path, RIGHT["always causal"])
    for causal_only in (False, True):
        found = report(path, "attention", causal_only=causal_only)
        assert found.ok, str(found)
        assert all("causal" in one.case for one in found.findings)


def test_a_layout_that_is_named_is_the_only_one(tmp_path):
    path = written(tmp_path, RIGHT["einsum"])
    for layout in ("", "bnhd", "bnhd,bnhd"):
        assert report(path, "attention", layout=layout).ok
    found = report(path, "attention", layout="bhnd")
    assert any("layout: the axes are taken for" in one for one in found.causes), str(found)
    assert report(
        written(tmp_path, RIGHT["einsum, merged heads"]), "attention", layout="bnhd,bn(hd)"
    ).ok
    for layout in ("bhn", "bhhnd", "bhxd", "b(h)nd"):
        with pytest.raises(MinibertError, match="expected the letters b"):
            report(path, "attention", layout=layout)


def test_gradients_are_checked_through_a_convention_and_a_lost_one_is_named(tmp_path):
    kinds = ("causal", "groups")
    found = report(written(tmp_path, RIGHT["flash"]), "attention", kinds=kinds, backward=True)
    assert found.ok, str(found)
    outputs = {one.output for one in found.findings}
    assert outputs == {"z", "z, mean", "query_gradient", "key_gradient", "value_gradient"}
    slip = written(tmp_path, RIGHT["flash"], (G, f"    v = v.detach()\n{G}"))
    found = report(slip, "attention", kinds=kinds, backward=True)
    assert {one.output for one in found.failures} == {"value_gradient"}
    assert found.causes == ("value_gradient is 0: nothing flows to it",)


@pytest.mark.parametrize(
    ("slip", "cause"),
    [
        ("v = (v + v.detach()) / 2", "value_gradient is off by the factor 0.5, everywhere"),
        (
            "q, k = q.detach() + (k - k.detach()), k.detach() + (q - q.detach())",
            "query_gradient holds the numbers of key_gradient: two gradients are swapped",
        ),
    ],
)
def test_gradients_that_are_halved_or_swapped_are_named(tmp_path, slip, cause):
    slip = written(tmp_path, RIGHT["flash"], (G, f"    {slip}\n{G}"))
    found = report(slip, "attention", kinds=("causal",), backward=True)
    assert found.causes == (cause,)


def test_a_function_of_two_conventions_is_not_guessed_and_a_c_function_needs_a_name():
    both = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "score_mod", "block_mask")
    with pytest.raises(MinibertError, match="flash-attn-varlen and flex; say which: --sig"):
        guessed_by(both)
    with pytest.raises(MinibertError, match="say how they are called: --signature NAME"):
        load_function("torch.nn.functional", "scaled_dot_product_attention")
    assert guessed_by(("query", "key", "value", "lengths")) == "minibert"


@pytest.mark.parametrize("name", [name for name, one in SIGNATURES.items() if one.known_by])
def test_what_is_no_tensor_is_told_in_a_line(tmp_path, name):
    path = tmp_path / "kernel.py"
    path.write_text("def attention(*_, **__): return None\n", encoding="utf-8")
    found = report(path, "attention", signature=name)
    assert not found.ok
    assert any("gave a NoneType" in one or "not iterable" in one for one in found.causes)


def test_torch_sdpa_is_right_in_every_kind_that_it_can_be_told():
    found = report("torch.nn.functional", "scaled_dot_product_attention", signature="sdpa")
    assert found.ok, str(found)
    assert {"groups", "window", "prefix", "alibi", "mask"} <= {
        one.case.split(",")[0] for one in found.findings
    }
    assert found.findings[0].dtype == torch.float32


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mistral", "modernbert_decoder"])
def test_functions_of_transformers_are_right_as_they_are_named(family):
    """They end in **kwargs, which takes every option and uses none."""
    module = f"transformers.models.{family}.modeling_{family}"
    found = report(module, "eager_attention_forward")
    assert found.ok, str(found)
    kinds = {one.case.split(",")[0] for one in found.findings}
    assert {"causal", "lengths", "window", "mask"} <= kinds
    assert ("soft cap" in kinds, "sinks" in kinds) == (family == "gemma2", family == "gpt_oss")
    assert {one.output for one in found.findings} == {"z", "z, mean", "probs"}


def test_what_a_function_of_transformers_refuses_by_an_error_is_not_called_wrong():
    module = "transformers.integrations.sdpa_attention"
    found = report(module, "sdpa_attention_forward")
    assert found.ok, str(found)
    assert list(found.refused) == ["soft_cap"]
    assert "does not take soft_cap: it raised ValueError: `sdpa` attention does not" in str(found)
    kinds = {one.case.split(",")[0] for one in found.findings}
    assert {"causal", "lengths", "window", "mask", "groups"} <= kinds


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("assert not is_causal", "causal"),
        ("if is_causal: raise NotImplementedError", "causal"),
        ("if is_causal: raise ValueError('causal is not supported')", "causal"),
        ("if is_causal: raise IndexError('causal: index 3 is out of range')", None),
        ("if is_causal: q[0, 9]", None),
    ],
)
def test_an_error_is_a_refusal_only_where_it_says_so(tmp_path, line, refused):
    told = "    n_rep"
    found = report(written(tmp_path, GROUPED, (told, f"    {line}\n{told}")), "attention")
    assert found.ok == bool(refused), str(found)
    assert list(found.refused) == [refused] * bool(refused)


def test_a_file_that_compiles_by_torch_is_not_one_of_triton(tmp_path):
    text = f"import torch._inductor.runtime.triton_helpers\n{RIGHT['plain']}"
    assert not load_function(written(tmp_path, text), "attention").triton
