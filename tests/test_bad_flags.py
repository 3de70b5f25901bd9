"""A flag takes True or False, and nothing that only counts as one of them."""

from typing import Any

import jaxtyping
import pytest

import minibert


@pytest.mark.parametrize("flag", ["packed", "grad", "truncate", "offline", "allow_unexpected"])
def test_a_flag_that_is_neither_true_nor_false_is_refused(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model, wrong = minibert.load(), {flag: "no"}
    calls: dict[str, Any] = {"packed": model.trace, "grad": model.trace, "truncate": model.tokenize}
    with pytest.raises(minibert.MinibertError, match=f"{flag}='no': expected True or False"):
        calls.get(flag, minibert.load)("the horse", **wrong)
