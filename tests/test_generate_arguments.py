"""What generation is given: one text or a batch in any container, and settings of a wrong type."""

from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

from minibert.answers.generate import Generated
from minibert.errors import MinibertError
from minibert.loading import from_transformers
from minibert.model import Model
from tests.families import hf_model


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As people run it: without the checks of annotations that only tests have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def small() -> Model:
    return from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": 3}, "stop=3: expected a string, or several"),
        ({"stop": [3]}, "stop has 3"),
        ({"stop": torch.tensor(1)}, r"stop=tensor\(1\)"),
        ({"stream": 3}, "stream=3: expected a function"),
        ({"seed": np.ones((2, 3))}, "seed="),
        ({"max_new_tokens": torch.ones(2)}, "max_new_tokens=tensor"),
    ],
)
def test_a_setting_of_another_type_is_an_error_before_a_token_is_drawn(
    options: dict[str, Any], message: str
) -> None:
    def never(module: Any, given: Any, out: Any) -> None:
        raise AssertionError("the model ran")

    model = small()
    model.head.register_forward_hook(never)
    with pytest.raises(MinibertError, match=message):
        model.generate([3, 4], **options)


def test_no_stop_strings_may_be_said_in_two_ways() -> None:
    generated = small().generate([3, 4], max_new_tokens=3, stop=None)
    assert generated == small().generate([3, 4], max_new_tokens=3)


@pytest.mark.parametrize("make", [list, tuple, torch.tensor, np.array])
def test_one_row_of_ids_is_one_text_and_two_are_a_batch_whatever_holds_them(
    make: Any,
) -> None:
    model = small()
    one = model.generate(make([3, 4]), max_new_tokens=2)
    assert isinstance(one, Generated)
    assert one == model.generate([3, 4], max_new_tokens=2)
    batch = model.generate(make([[3, 4], [5, 7]]), max_new_tokens=2)
    assert [text.ids[:2] for text in batch] == [(3, 4), (5, 7)]
    assert batch[0] == one


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy")
def test_a_list_of_arrays_is_a_batch() -> None:
    model = small()
    batch = model.generate([np.array([3, 4]), np.array([5, 7])], max_new_tokens=2)
    assert [text.ids[:2] for text in batch] == [(3, 4), (5, 7)]
