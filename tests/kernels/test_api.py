import math

import pytest
import torch
from attention_inputs import (
    EVERYTHING,
    OF_TENSORS,
    B,
    D,
    H,
    K,
    Q,
    by_torch,
    some_mask,
    vectors,
)

from minibert.errors import AttentionError
from minibert.kernels import registry
from minibert.kernels.api import Implementation, attend, implementations, register
from minibert.kernels.call import WANTS, Call


def explicit(query, key, value, *, scale, mask=None):
    found = by_torch(query, key, value, allowed=mask, scale=scale)
    return found["z"].to(query.dtype), found["lse"]


def test_auto_gives_whatever_is_wanted_and_nothing_else():
    query, key, value = vectors()
    assert attend(query, key, value).statistics is None
    found = attend(query, key, value, want=("probs", "entropy"))
    assert found.scores is None
    assert found.probs.shape == (B, H, Q, K)
    assert found.statistics.entropy.shape == (B, H, Q)
    assert found.statistics.max_prob is None
    everything = attend(query, key, value, want=(*EVERYTHING, *OF_TENSORS))
    assert None not in vars(everything.statistics).values()
    assert everything.statistics.received.shape == (B, H, K)
    assert everything.statistics.offset_mass.shape == (B, H, Q, 3)
    assert everything.statistics.key_mass.shape == (B, H, Q, 2)
    assert everything.statistics.map.shape == (B, H, 3, 3)
    assert everything.statistics.key_sums.shape == (B, H, Q, 2)
    assert everything.statistics.pair_mass.shape == (B, H, 5)
    assert everything.statistics.profile.shape == (B, H, Q + K - 1)


def test_auto_takes_the_fused_pass_unless_the_matrices_or_their_gradients_are_wanted():
    query, key, value = vectors()

    def chosen(want=(), gradient=False):
        return registry.choose(
            "auto",
            registry.Request(frozenset(want), frozenset(), "cpu", torch.float32, gradient),
        ).name

    assert chosen() == "sdpa"
    assert chosen({"entropy"}) == chosen({"argmax"}) == "chunked"
    assert chosen({"probs"}) == chosen({"entropy"}, gradient=True) == "eager"
    found = attend(query.requires_grad_(), key, value, want=("entropy",))
    assert found.statistics.entropy.requires_grad


def test_bare_offset_mass_and_map_have_defaults():
    query, key, value = vectors(queries=67, keys=67)
    found = attend(query, key, value, want=("offset_mass", "map"))
    assert found.statistics.offset_mass.shape == (B, H, 67, 3)
    assert found.statistics.map.shape == (B, H, 34, 34)


def test_default_scale_is_one_over_the_root_of_d_head():
    query, key, value = vectors()
    given = attend(query, key, value, scale=1 / math.sqrt(D))
    assert torch.equal(attend(query, key, value).z, given.z)


@pytest.mark.usefixtures("as_for_users")
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
        ({"lengths": torch.tensor([-1, 2])}, r"lengths holds \[-1\] for sentences \[0\]"),
        ({"mask": torch.ones(B, K, dtype=torch.bool)}, r"mask has shape \(2, 7\).*None, None"),
        ({"mask": torch.ones(B, 1, Q, K)}, "mask is torch.float32.*torch.bool.*bias="),
        ({"bias": torch.ones(B, 2, Q, K)}, "bias has shape"),
        ({"bias": torch.ones(B, 1, Q, K).double()}, "bias is torch.float64.*query's dtype"),
        ({"bias": torch.full((1, 1, 1, K), -math.inf)}, "bias holds NaN or an infinity.*mask="),
        ({"impl": "fast"}, 'impl="fast" is not known; known are auto, reference, eager, sdpa'),
        ({"want": ("entropie",)}, "want holds 'entropie'.*known are scores, probs, row_max"),
        ({"want": "entropy"}, r"want is the text.*want=\('entropy',\)"),
        ({"want": ("key_mass",)}, r"key_mass.*say which.*\(0,\)"),
        ({"want": (("key_mass", (0, 7)),)}, r"positions \[7\] do not exist.*0 to 6"),
        ({"want": (("key_mass", (-1,)),)}, r"positions \[-1\] do not exist"),
        ({"want": (("entropy", 2),)}, "takes none"),
        ({"want": (("map", 0),)}, "at least one block"),
        ({"want": (("offset_mass", (0.5,)),)}, "whole numbers"),
        ({"want": ("map", ("map", 3))}, "twice"),
        ({"scale": math.nan}, "scale is nan; expected one finite number"),
        ({"scale": -math.inf}, "scale is -inf; expected one finite number"),
        ({"scale": 10**400}, "expected one finite number"),
        ({"scale": "x"}, "scale is 'x'; expected one finite number"),
        ({"scale": torch.ones(2)}, r"scale is tensor.*scale.item\(\)"),
        ({"causal": "no"}, "causal is 'no'; expected True or False"),
        ({"causal": torch.tensor(True)}, r"causal is tensor\(True\); expected True or False"),
        ({"impl": []}, r"impl is \[\]; expected the name of an implementation, known are auto"),
        ({"impl": None}, r"impl is None; expected the name.*Leave it out, or write impl=\"auto\""),
        ({"query": torch.ones(B, H, Q, D).to_sparse()}, r"query is sparse.*query.to_dense\(\)"),
        ({"mask": some_mask().to_sparse()}, r"mask is sparse \(torch.sparse_coo\).*mask.to_dense"),
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
        ({"want": None}, "want is None; expected a tuple of names"),
        ({"want": 5}, "want is 5; expected a tuple of names"),
        ({"want": (("offset_mass", 10**30),)}, "offset_mass.*numbers of at most 2147483647"),
        ({"want": (("map", 10**400),)}, "map.*numbers of at most 2147483647"),
        ({"impl": "sdpa", "want": ("probs",)}, 'sdpa" cannot.*cannot give probs.*"eager" can'),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_what_to_do(wrong, message):
    query, key, value = vectors(dtype=torch.float32)
    arguments = {"query": query, "key": key, "value": value} | wrong
    tensors = [arguments.pop(name) for name in ("query", "key", "value")]
    with pytest.raises(AttentionError, match=message):
        attend(*tensors, **arguments)


def test_the_reference_refuses_to_be_trained_through():
    query, key, value = (tensor.requires_grad_() for tensor in vectors())
    with pytest.raises(AttentionError, match=r"gradients do not flow.*no_grad.*eager"):
        attend(query, key, value, impl="reference")
    with torch.no_grad():
        attend(query, key, value, impl="reference")


def test_implementations_say_what_they_can_give():
    known = implementations()
    torch_by_name = {"flash", "cudnn", "efficient", "math", "flex"}
    assert set(known) == {"reference", "eager", "sdpa", "chunked", "triton", *torch_by_name}
    assert known["reference"].wants == known["eager"].wants == set(WANTS)
    assert known["sdpa"].wants == set(WANTS) - {"scores", "probs"}
    assert known["chunked"].wants == known["sdpa"].wants
    of_tensors = {"key_sums", "pair_mass", "profile"}
    assert known["triton"].wants == known["sdpa"].wants - of_tensors
    # Forced by name only: what is measured must be what was asked for.
    assert all(known[name].rank is None for name in torch_by_name)
    assert [name for name, one in known.items() if "bias" not in one.options] == ["flash", "cudnn"]
    assert all(known[name].unavailable is None for name in ("reference", "eager", "sdpa"))
    known.clear()
    assert implementations()


@pytest.mark.usefixtures("clean_registry")
def test_a_registered_function_is_used_when_named_and_gets_what_it_takes():
    register("mine", explicit, dtypes=(torch.float64,))
    query, key, value = vectors()
    lengths, mask = torch.tensor([4, 6]), some_mask()
    found = attend(query, key, value, impl="mine", lengths=lengths, mask=mask, causal=True)
    expected = attend(query, key, value, impl="reference", lengths=lengths, mask=mask, causal=True)
    torch.testing.assert_close(found.z, expected.z)
    torch.testing.assert_close(found.lse, expected.lse)


@pytest.mark.usefixtures("clean_registry")
def test_a_registered_function_is_never_asked_for_what_it_cannot_do():
    record = register("mine", explicit, dtypes=(torch.float64,), devices=("cpu",))
    assert isinstance(record, Implementation)
    assert "bias" not in record.options
    query, key, value = vectors()
    bias = torch.zeros(1, 1, 1, K, dtype=torch.float64)
    with pytest.raises(AttentionError, match=r'"mine" cannot.*takes no bias; impl="sdpa" can'):
        attend(query, key, value, impl="mine", bias=bias)
    with pytest.raises(AttentionError, match="cannot give entropy"):
        attend(query, key, value, impl="mine", want=("entropy",))
    with pytest.raises(AttentionError, match=r"takes torch.float64"):
        attend(query.float(), key.float(), value.float(), impl="mine")


@pytest.mark.usefixtures("clean_registry")
def test_auto_considers_a_registered_function_only_when_it_has_a_rank_and_can_run():
    def never(query, key, value):
        raise RuntimeError("called")

    register("unranked", never)
    register("elsewhere", never, rank=1, devices=("cuda",))
    register("absent", never, rank=1, unavailable="its compiler is missing")
    query, key, value = vectors()
    attend(query, key, value)
    with pytest.raises(AttentionError, match="its compiler is missing"):
        attend(query, key, value, impl="absent")
    register("ranked", never, rank=1)
    with pytest.raises(RuntimeError, match="called"):
        attend(query, key, value)


@pytest.mark.usefixtures("clean_registry", "as_for_users")
def test_registering_what_cannot_work_is_an_error():
    with pytest.raises(AttentionError, match="taken"):
        register("eager", explicit)
    with pytest.raises(AttentionError, match="entropie is not known"):
        register("mine", explicit, wants=("entropie",))
    with pytest.raises(AttentionError, match="takes no keyword `want`"):
        register("mine", explicit, wants=("entropy",))
    for name in (5, ""):
        with pytest.raises(AttentionError, match="expected a name"):
            register(name, explicit)
    with pytest.raises(AttentionError, match="None cannot be called; expected a function"):
        register("mine", None)
    with pytest.raises(
        AttentionError, match=r"softmax.*cannot be read; expected a Python function"
    ):
        register("mine", torch.softmax)
    with pytest.raises(AttentionError, match="foo is not known; known are z, lse, scores"):
        register("mine", explicit, differentiable=("foo",))
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
@pytest.mark.parametrize(
    "name", [item if isinstance(item, str) else item[0] for item in EVERYTHING]
)
@pytest.mark.parametrize("slip", ["shape", "dtype"])
def test_a_statistic_of_the_wrong_shape_or_dtype_is_named(name, slip):
    def slipped(query, key, value, *, want):
        found = implementations()["reference"].fn(Call.of(query, key, value, want=want))
        wrong = found[name][..., :-1] if slip == "shape" else found[name].to(torch.complex64)
        return found | {name: wrong}

    register("mine", slipped, wants=WANTS)
    with pytest.raises(AttentionError, match=f'"mine" gave {name} (of shape|in torch.complex64)'):
        attend(*vectors(), impl="mine", want=EVERYTHING)
