import pytest
import torch
from attention_gradients import inputs, truth

from minibert.errors import AttentionError
from minibert.kernels.check.gradients import check_gradients, eager_gradients

OPTIONS = {"causal": True, "scale": 0.3, "lengths": torch.tensor([20, 7])}
ORDER = ("z_gradient", "query", "key", "value")


def problem(dtype):
    given = inputs(23, 23, 11, dtype=dtype)
    options = OPTIONS | {"bias": torch.randn(1, 2, 23, 23).to(dtype)}
    options["lse_gradient"] = torch.randn(2, 2, 23)
    return given, options


def test_eager_gradients_in_float64_are_those_of_the_formula():
    given, options = problem(torch.float32)
    found = eager_gradients(*(given[n] for n in ORDER), torch.float64, **options)
    expected = truth(given, options)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_torchs_own_gradients_pass(dtype):
    given, options = problem(dtype)
    vectors = [given[n] for n in ORDER]
    check_gradients(eager_gradients(*vectors, dtype, **options), *vectors, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
@pytest.mark.parametrize("mistake", ["without the gradient of lse", "without causal", "NaN"])
def test_mistakes_are_found(name, mistake, dtype):
    given, options = problem(dtype)
    vectors = [given[n] for n in ORDER]
    changed = dict(options)
    if mistake == "without the gradient of lse":
        if name == "value":
            pytest.skip("value has no part in lse")
        changed["lse_gradient"] = None
    elif mistake == "without causal":
        changed["causal"] = False
    found = eager_gradients(*vectors, dtype, **changed)
    if mistake == "NaN":
        found[name][0, 0, 3, 2] = float("nan")
    with pytest.raises(AttentionError, match=f"The gradient of {name} is wrong at"):
        check_gradients({name: found[name]}, *vectors, **options)
