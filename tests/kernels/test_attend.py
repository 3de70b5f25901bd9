"""`attend` and `compute`: what they give and refuse, whatever computes it.

That any call is right to rounding is in `test_any_call.py`.
"""

import math

import pytest
import torch
from attention_inputs import (
    EVERYTHING,
    STATISTICS,
    B,
    D,
    H,
    K,
    Q,
    by_torch,
    outputs,
    some_mask,
    vectors,
)

from minibert.errors import AttentionError
from minibert.kernels import registry, torch_kernels
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import Implementation, attend, compute, implementations, register
from minibert.kernels.call import WANTS, Call
from minibert.kernels.eager import attention_scores

IMPLS = pytest.mark.parametrize("impl", ["eager", "sdpa", "chunked"])
CPU = torch.device("cpu")


def explicit(query, key, value, *, scale, mask=None):
    found = by_torch(query, key, value, allowed=mask, scale=scale)
    return found["z"].to(query.dtype), found["lse"]


def test_auto_takes_the_fused_pass_unless_the_matrices_or_their_gradients_are_wanted():
    query, key, value = vectors()

    def chosen(want=(), gradient=False):
        return registry.choose(
            "auto", registry.Request(frozenset(want), frozenset(), "cpu", torch.float32, gradient)
        ).name

    assert chosen() == "sdpa"
    assert chosen({"entropy"}) == chosen({"argmax"}) == "chunked"
    assert chosen({"probs"}) == chosen({"entropy"}, gradient=True) == "eager"
    found = attend(query.requires_grad_(), key, value, want=("entropy",))
    assert found.statistics.entropy.requires_grad


TRAINED = torch.ones(B, H, Q, D, requires_grad=True)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"query": torch.ones(Q, D)}, r"query has shape \(5, 11\).*four axes.*x\[None, None\]"),
        ({"query": torch.ones(B, H, 0, D)}, "query has shape.*none of them empty"),
        ({"query": torch.ones(B, H, Q, D, dtype=torch.int64)}, "query is torch.int64.*floating"),
        ({"key": torch.ones(B, 2, K, D)}, r"key has shape.*kv_heads by which the 3 query heads"),
        ({"key": torch.ones(B, H, K, D).half()}, "key is torch.float16.*query.dtype"),
        ({"value": torch.ones(B, H, K + 1, D)}, "value has shape.*one value for each key"),
        ({"value": torch.ones(B, H, K, D, device="meta")}, "value is on meta.*query on cpu"),
        ({"lengths": torch.tensor([1.0, math.nan])}, "lengths is torch.float32.*int64"),
        ({"lengths": torch.tensor([1, 2, 3])}, r"lengths has shape \(3,\).*\(2,\)"),
        ({"lengths": torch.tensor([3, 8])}, r"lengths holds \[8\] for sentences \[1\].*0 to 7"),
        ({"mask": torch.ones(B, K, dtype=torch.bool)}, r"mask has shape \(2, 7\).*None, None"),
        ({"mask": torch.ones(B, 1, Q, K)}, "mask is torch.float32.*torch.bool.*bias="),
        ({"bias": torch.ones(B, 2, Q, K)}, "bias has shape"),
        ({"bias": torch.ones(B, 1, Q, K).double()}, "bias is torch.float64.*query's dtype"),
        ({"bias": torch.full((1, 1, 1, K), -math.inf)}, "bias holds NaN or an infinity.*mask="),
        ({"impl": "fast"}, 'impl="fast" is not known; known are auto, reference, eager, sdpa'),
        ({"want": ("entropie",)}, "want holds 'entropie'.*known are scores, probs, row_max"),
        ({"want": "entropy"}, r"one text.*as \('entropy',\)"),
        ({"want": ("key_mass",)}, r"key_mass.*say which.*\(0,\)"),
        ({"want": (("key_mass", (0, 7)),)}, r"positions \[7\] do not exist.*0 to 6"),
        ({"want": (("entropy", 2),)}, "takes none"),
        ({"want": (("map", 0),)}, "at least one block"),
        ({"want": (("offset_mass", (0.5,)),)}, "whole numbers"),
        ({"want": ("map", ("map", 3))}, "twice"),
        ({"scale": math.nan}, "scale is nan; expected one finite number"),
        ({"scale": "x"}, "scale is 'x'; expected one finite number"),
        ({"scale": torch.ones(2)}, r"scale is tensor.*scale.item\(\)"),
        ({"causal": "no"}, "causal is 'no'; expected True or False"),
        ({"impl": []}, r"impl is \[\]; expected the name of an implementation, known are auto"),
        ({"query": torch.ones(B, H, Q, D).to_sparse()}, r"query is sparse.*query.to_dense\(\)"),
        (
            {
                "value": torch.nested.nested_tensor(
                    [torch.ones(3, D), torch.ones(2, D)], layout=torch.jagged
                )
            },
            r"value is a nested tensor.*to_padded_tensor\(value, 0.0\).*lengths=",
        ),
        (
            {"query": torch.ones(B, H, Q, D, dtype=torch.complex64)},
            r"query is torch.complex64; expected a floating dtype: float16.*query.real, or",
        ),
        (
            {"key": torch.ones(B, H, K, D).to(torch.float8_e4m3fn)},
            r"key is torch.float8_e4m3fn; expected.*key.to\(torch.bfloat16\), times",
        ),
        (
            {"prefix": 3, "causal": True},
            rf"prefix is 3; expected a tensor with a number.*torch.full\(\({B},\), 3\)",
        ),
        ({"want": 5}, "want is 5; expected a tuple of names"),
        ({"want": (("offset_mass", 10**30),)}, "offset_mass.*at most ±2147483647"),
        ({"impl": "sdpa", "want": ("probs",)}, 'sdpa" cannot.*cannot give probs.*"eager" can'),
        ({"impl": "reference", "query": TRAINED}, r"gradients do not flow.*no_grad.*eager"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_what_to_do(wrong, message):
    query, key, value = vectors(dtype=torch.float32)
    arguments = {"query": query, "key": key, "value": value} | wrong
    tensors = [arguments.pop(name) for name in ("query", "key", "value")]
    with pytest.raises(AttentionError, match=message):
        attend(*tensors, **arguments)


PACKED = (5, 1, 150, 7)


def packed_vectors(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shape = (3, 1, H, sum(PACKED), D)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).unbind()


@pytest.fixture
def padded_calls(clean_registry):
    """The shapes of queries that "mine" is asked for, which knows padding and no packing."""
    calls = []

    def mine(query, key, value, *, scale, lengths, mask, want):
        calls.append(tuple(query.shape))
        given = {"scale": scale, "mask": mask, "want": want | {"lse": ()}, "lengths": lengths}
        return implementations()["eager"].fn(Call.of(query, key, value, **given))

    register("mine", mine, wants=set(WANTS) - {"scores", "probs", "map"})
    return calls


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sentences_come_padded_to_a_function_that_knows_padding_alone(causal, padded_calls):
    want = (*STATISTICS[:5], ("key_mass", (0, 6)), ("offset_mass", (-2, 0, 1)))
    found, right = (
        outputs(attend(*packed_vectors(), packed=PACKED, causal=causal, want=want, impl=impl))
        for impl in ("mine", "reference")
    )
    assert found.keys() == {name for name in right if name not in ("scores", "probs")}
    for name, numbers in found.items():
        torch.testing.assert_close(numbers, right[name], rtol=1e-12, atol=1e-12, msg=name)
    # All of them come in one batch.
    assert padded_calls == [(len(PACKED), H, max(PACKED), D)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"packed": (5, 1)}, r"packed=\(5, 1\) holds 6 tokens.*a batch of one"),
        ({"packed": (0, 163)}, r"packed is \(0, 163\); expected.*whole numbers from 1"),
        ({"packed": "five"}, "packed is 'five'; expected"),
        ({"lengths": torch.tensor([3])}, "packed comes with lengths; expected it without"),
        ({"want": ("map",)}, "packed sentences: map wanted, but each sentence"),
        ({"want": ("scores", "probs")}, "packed sentences: probs, scores wanted"),
        ({"want": (("key_mass", (150,)),)}, r"positions \[150\] do not exist"),
        (
            {"want": (("pair_mass", torch.tensor([[[0, 5]]])),)},
            r"pair 0 is \[0, 5\].*same sentence",
        ),
        ({"want": (("key_sums", torch.ones(1, 1, 5, 2)),)}, r"key_sums.*shape \(1, 1, 5, 2\)"),
        (
            {"want": ("profile",), "impl": "mine"},
            'impl="mine" cannot do this: it pads packed sentences, where profile cannot be given; '
            'impl="chunked" can',
        ),
    ],
)
def test_what_packed_sentences_cannot_have_is_refused(wrong, message, padded_calls):
    with pytest.raises(AttentionError, match=message):
        attend(*packed_vectors(), **({"packed": PACKED} | wrong))


def test_queries_of_packed_sentences_cannot_be_chosen():
    allowed = AllowedKeys(1, sum(PACKED), CPU, packed=PACKED)
    with pytest.raises(AttentionError, match="queries of packed sentences were chosen"):
        allowed.at((0, 2))
    query, key, value = packed_vectors()
    with pytest.raises(AttentionError, match="packed sentences: given with bias"):
        compute(Call(query, key, value, 1.0, allowed, bias=torch.zeros(1, 1, 1, 1)))


@pytest.mark.usefixtures("clean_registry")
def test_a_registered_function_gets_what_it_takes_and_is_asked_for_nothing_else():
    record = register("mine", explicit, dtypes=(torch.float64,), devices=("cpu",))
    assert isinstance(record, Implementation)
    assert "bias" not in record.options
    query, key, value = vectors()
    options = {"lengths": torch.tensor([4, 6]), "mask": some_mask(), "causal": True}
    found = attend(query, key, value, impl="mine", **options)
    expected = attend(query, key, value, impl="reference", **options)
    torch.testing.assert_close(found.z, expected.z)
    torch.testing.assert_close(found.lse, expected.lse)
    bias = torch.zeros(1, 1, 1, K, dtype=torch.float64)
    with pytest.raises(AttentionError, match=r'"mine" cannot.*takes no bias; impl="sdpa" can'):
        attend(query, key, value, impl="mine", bias=bias)
    with pytest.raises(AttentionError, match="cannot give entropy"):
        attend(query, key, value, impl="mine", want=("entropy",))
    with pytest.raises(AttentionError, match=r"takes torch.float64"):
        attend(query.float(), key.float(), value.float(), impl="mine")


@pytest.mark.usefixtures("clean_registry", "unchecked")
@pytest.mark.parametrize(
    ("name", "fn", "options", "message"),
    [
        ("eager", explicit, {}, "taken"),
        ("mine", explicit, {"wants": ("entropie",)}, "entropie is not known"),
        ("mine", explicit, {"wants": ("entropy",)}, "takes no keyword `want`"),
        (5, explicit, {}, "expected a name"),
        ("", explicit, {}, "expected a name"),
        ("mine", None, {}, "None cannot be called; expected a function"),
        ("mine", torch.softmax, {}, "softmax.*cannot be read; expected a Python function"),
        ("mine", explicit, {"differentiable": ("foo",)}, "foo is not known; known are z, lse"),
    ],
)
def test_registering_what_cannot_work_is_an_error(name, fn, options, message):
    with pytest.raises(AttentionError, match=message):
        register(name, fn, **options)
    assert "mine" not in implementations()


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.ones(B, Q, H, D), r"gave z of shape \(2, 5, 3, 11\); expected \(2, 3, 5, 11\)"),
        (torch.ones(B, H, Q, D), "gave z and not lse"),
        ((torch.ones(B, H, Q, D), torch.ones(B, Q)), "gave lse of shape"),
        ("z", "gave a str"),
        ((torch.ones(B, H, Q, D), None), "gave lse as a NoneType"),
        ((torch.ones(B, H, Q, D).half(), torch.ones(B, H, Q)), "z in torch.float16.*torch.float32"),
        ((torch.ones(B, H, Q, D), torch.ones(B, H, Q).half()), "lse in torch.float16.*float32"),
        ((torch.ones(B, H, Q, D).double(), torch.ones(B, H, Q)), "z in torch.float64.*float32"),
        ((torch.ones(B, H, Q, D), torch.ones(B, H, Q).double()), "lse in torch.float64.*float32"),
    ],
)
def test_an_implementation_that_gives_the_wrong_thing_is_named(result, message):
    register("mine", lambda query, key, value: result)
    with pytest.raises(AttentionError, match=message):
        attend(*vectors(dtype=torch.float32), impl="mine")


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_an_implementation_that_writes_into_its_inputs_is_named(name):
    def writing(query, key, value):
        z = by_torch(query, key, value)["z"].float()
        {"query": query, "key": key, "value": value}[name].mul_(2)
        return z, torch.zeros(B, H, Q)

    register("mine", writing)
    inputs = vectors(dtype=torch.float32)
    with pytest.raises(AttentionError, match=f'impl="mine" wrote into {name}, or into memory'):
        attend(*inputs, impl="mine")
    # torch keeps no count for inference tensors: there nothing can be said at no cost.
    with torch.inference_mode():
        attend(*vectors(dtype=torch.float32), impl="mine")


ALLOWED = {
    "everything": AllowedKeys(B, K, CPU),
    "causal": AllowedKeys(B, K, CPU, causal=True),
    "lengths": AllowedKeys(B, K, CPU, lengths=(4, 7)),
    "both": AllowedKeys(B, K, CPU, causal=True, lengths=(4, 7)),
}


@pytest.mark.parametrize("impl", ["auto", "reference", "eager", "sdpa", "chunked"])
@pytest.mark.parametrize("name", list(ALLOWED))
def test_the_queries_see_what_is_allowed(name, impl):
    allowed = ALLOWED[name]
    # A query sees a real token that is not in its future.
    whole = torch.arange(K) < torch.tensor(allowed.lengths or (K, K))[:, None, None, None]
    whole = (whole & torch.ones(K, K).tril().bool()) if allowed.causal else whole.expand(B, 1, K, K)
    assert torch.equal(allowed.full(), whole)
    for positions in (range(K), (4, 5, 6), (6,), (5, 0)):
        query, key, value = vectors(queries=len(positions), keys=K)
        # Those that are not the last ones have to be said.
        keys = allowed.at(positions) if 0 in positions and len(positions) < K else allowed
        found = compute(Call(query, key, value, 1 / math.sqrt(D), keys), impl)
        expected = by_torch(query, key, value, allowed=whole[:, :, list(positions)])
        torch.testing.assert_close(found.z.double(), expected["z"], rtol=1e-5, atol=1e-5)
        assert (found.lse, found.scores, found.probs, found.statistics) == (None,) * 4


def test_a_mask_is_no_larger_than_it_must_be_and_layers_share_it():
    assert ALLOWED["everything"].rows() is None
    ids = torch.zeros(B, K, dtype=torch.long)
    assert AllowedKeys.of(ids == 0, causal=False, ids=ids).rows() is None
    assert ALLOWED["causal"].rows().shape == (1, 1, K, K)
    allowed = AllowedKeys(B, K, CPU, causal=True, lengths=(4, 7))
    whole = allowed.full()
    for queries in (slice(2, 5), slice(-3, None), slice(None, None, 2), slice(4, 4)):
        assert torch.equal(allowed.rows(queries).expand(B, 1, -1, K), whole[:, :, queries])
    query, key, value = vectors(queries=K)
    compute(Call(query, key, value, 1.0, allowed))
    mask = allowed.mask(K)
    compute(Call(query, key, value, 1.0, allowed), "eager")
    assert allowed.mask(K) is mask
    assert allowed.visible is mask


@pytest.mark.parametrize(
    ("impl", "dtype", "flash"),
    [
        ("chunked", torch.float64, True),
        ("eager", torch.float32, True),
        ("sdpa", torch.float32, True),
        ("sdpa", torch.bfloat16, True),
        ("sdpa", torch.float32, False),
        ("triton", torch.float32, True),
    ],
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_nan_comes_out_in_the_rows_that_see_it(impl, dtype, flash, which, monkeypatch):
    if impl == "triton":
        pytest.importorskip("triton")
    if not flash:
        monkeypatch.setattr(torch_kernels, "_flash_for_cpu", None)
    tensors = vectors(queries=K, dtype=dtype)
    tensors[which][1, 2, 0, 3] = math.nan
    options = [{}, {"causal": True}, {"mask": some_mask(queries=K)}][which]
    found = attend(*tensors, impl=impl, want=("entropy",), **options)
    expected = attend(*tensors, impl="reference", want=("entropy",), **options)
    for one in (found.lse, found.statistics.entropy, expected.statistics.entropy):
        assert torch.equal(one.isnan(), expected.lse.isnan())
    assert found.z[expected.lse.isnan()].isnan().all()
    assert bool(found.z.isnan().any())
    # The other sentence sees nothing of it.
    assert bool(found.z[0].isfinite().all())


@IMPLS
def test_scores_that_overflow_are_nan_and_no_dead_row(impl):
    query, key = torch.full((1, 1, 40, 8), 1e20), torch.full((1, 1, 40, 8), -1e20)
    for options in ({}, {"lengths": torch.tensor([40])}):
        found = attend(query, key, key, impl=impl, want=("entropy",), **options)
        assert found.lse.isnan().all()
        assert found.z.isnan().all()


@IMPLS
def test_vectors_whose_product_overflows_before_it_is_scaled_are_no_matter(impl):
    query = torch.full((1, 1, 40, 64), 3e18)
    found = attend(query, query, torch.ones_like(query), impl=impl, want=("entropy",))
    assert found.lse.isfinite().all()
    torch.testing.assert_close(found.statistics.entropy, torch.full((1, 1, 40), math.log(40)))
    half = torch.full((1, 1, 1, 64), 60.0, dtype=torch.float16)
    assert attention_scores(half, half, scale=1 / 8).item() == 60 * 60 * 64 / 8


@pytest.mark.parametrize("options", [{}, {"mask": some_mask(), "causal": True}])
def test_gradients_of_everything_eager_gives_are_those_of_finite_differences(options):
    query, key, value = (tensor.requires_grad_() for tensor in vectors())
    bias = torch.randn(1, H, Q, K, dtype=torch.float64, requires_grad=True)
    want = [item for item in EVERYTHING if item != "argmax"]

    def everything(query, key, value, bias):
        found = attend(query, key, value, impl="eager", bias=bias, want=want, **options)
        # The −inf of dead rows has no gradient; finite differences of it are NaN.
        return tuple(one[one.isfinite()] for one in outputs(found).values())

    assert torch.autograd.gradcheck(everything, (query, key, value, bias), fast_mode=True)
