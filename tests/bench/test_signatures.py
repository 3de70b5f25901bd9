"""Functions in other people's calling conventions: right ones pass, slips are named."""

import pytest
import torch
from called_here import report
from planted_signatures import FLASH, PLAIN, TRANSFORMERS, VARLEN, source

from minibert.bench.signatures import SIGNATURES, guessed_by
from minibert.bench.user_file import load_function
from minibert.errors import MinibertError

SLOPES = "alibi_slopes = None if alibi_slopes is None else {}"
GROUPS = "k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))"


def written(folder, text, slip="pass"):
    path = folder / "kernel.py"
    path.write_text(source(text, slip), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "name", "fewest"),
    [
        (FLASH, "flash-attn", 9),
        (VARLEN, "flash-attn-varlen", 6),
        (TRANSFORMERS, "transformers", 6),
        (PLAIN, "plain", 4),
    ],
)
def test_a_right_function_is_right_and_its_convention_is_known_by_its_parameters(
    tmp_path, text, name, fewest
):
    path = written(tmp_path, text)
    assert load_function(path, "attention").signature.name == name
    found = report(path, "attention")
    assert found.ok, str(found)
    assert len({one.case.split(",")[0] for one in found.findings}) >= fewest


@pytest.mark.parametrize(
    ("text", "slip", "cause"),
    [
        (FLASH, "softmax_scale = 1.0", "wrong scale: it behaves as 1"),
        (FLASH, GROUPS, "heads are repeated in the wrong order, interleaved"),
        (FLASH, "softcap = 0.0", "the soft cap is left out"),
        (FLASH, "given = {}", "the window is ignored"),
        (FLASH, "given = sides([n - (n > 0) for n in window_size])", "window is off by one"),
        (FLASH, "alibi_slopes = None", "the ALiBi slopes are ignored"),
        (FLASH, SLOPES.format("-alibi_slopes"), "ALiBi is added where it is subtracted"),
        (
            FLASH,
            SLOPES.format("alibi_slopes.flip(-1)"),
            "the ALiBi slopes are those of other heads",
        ),
        (VARLEN, "keys = slice(cu_seqlens_k[i], cu_seqlens_k[i + 1] - 1)", "the last key of each"),
        (VARLEN, "keys = slice(0, len(k))", "the packed sentences see each other"),
        (TRANSFORMERS, "attention_mask = None", "causal is ignored"),
        (TRANSFORMERS, "scaling = scaling**2", "wrong scale: it behaves as"),
        (PLAIN, "causal = False", "causal is ignored"),
    ],
)
def test_a_slip_is_wrong_and_named(tmp_path, text, slip, cause):
    found = report(written(tmp_path, text, slip), "attention")
    assert not found.ok
    assert any(part in one for one in found.causes for part in cause.split("|")), str(found)


def test_a_function_that_is_always_causal_is_asked_nothing_else(tmp_path):
    (tmp_path / "kernel.py").write_text(
        source("\ndef attention(q, k, v):\n    return right(q, k, v, causal=True)\n")
    )
    for causal_only in (False, True):
        found = report(tmp_path / "kernel.py", "attention", causal_only=causal_only)
        assert found.ok, str(found)
        assert all("causal" in one.case for one in found.findings)


def test_a_layout_that_is_named_is_the_only_one(tmp_path):
    text = "\ndef attention(q, k, v):\n    q, k, v = (x.transpose(1, 2) for x in (q, k, v))\n"
    (tmp_path / "kernel.py").write_text(source(text + "    return right(q, k, v).flatten(2)\n"))
    assert report(tmp_path / "kernel.py", "attention", layout="bnhd,bh(nd)").ok
    (tmp_path / "kernel.py").write_text(
        source(text + "    return right(q, k, v).transpose(1, 2)\n")
    )
    for layout in ("", "bnhd", "bnhd,bnhd"):
        assert report(tmp_path / "kernel.py", "attention", layout=layout).ok
    found = report(tmp_path / "kernel.py", "attention", layout="bhnd")
    assert not found.ok
    assert any("layout: the axes are taken for" in one for one in found.causes), str(found)
    for layout in ("bhn", "bhhnd", "bhxd", "b(h)nd"):
        with pytest.raises(MinibertError, match="expected the letters b"):
            report(tmp_path / "kernel.py", "attention", layout=layout)


def test_gradients_are_checked_through_a_convention_and_a_lost_one_is_named(tmp_path):
    kinds = ("causal", "groups")
    found = report(written(tmp_path, FLASH), "attention", kinds=kinds, backward=True)
    assert found.ok, str(found)
    outputs = {one.output for one in found.findings}
    assert outputs == {"z", "z, mean", "query_gradient", "key_gradient", "value_gradient"}
    slip = written(tmp_path, FLASH, "v = v.detach()")
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
    slip = written(tmp_path, FLASH, slip)
    found = report(slip, "attention", kinds=("causal",), backward=True)
    assert found.causes == (cause,)


def test_a_function_of_two_conventions_is_not_guessed_and_a_c_function_needs_a_name():
    both = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "score_mod", "block_mask")
    with pytest.raises(MinibertError, match="flash-attn-varlen and of flex; say which: --sig"):
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
        ("assert not causal", "causal"),
        ("if causal: raise NotImplementedError", "causal"),
        ("if causal: raise ValueError('causal is not supported')", "causal"),
        ("if causal: raise IndexError('causal: index 3 is out of range')", None),
        ("if causal: q[0, 9]", None),
    ],
)
def test_an_error_is_a_refusal_only_where_it_says_so(tmp_path, line, refused):
    found = report(written(tmp_path, PLAIN, line), "attention")
    assert found.ok == bool(refused), str(found)
    assert list(found.refused) == [refused] * bool(refused)


def test_a_file_that_compiles_by_torch_is_not_one_of_triton(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text("import torch._inductor.runtime.triton_helpers\n" + source(PLAIN))
    assert not load_function(path, "attention").triton
