"""What a kernel must leave alone is found replaced, put back and named; a call has its time."""

import time

import pytest
import torch

from minibert.bench.guards import _WATCHED, Guards, time_limit
from minibert.errors import MinibertError


@pytest.mark.parametrize(("name", "owner", "attribute"), _WATCHED, ids=[one[0] for one in _WATCHED])
def test_each_watched_function_is_found_replaced_and_put_back(monkeypatch, name, owner, attribute):
    before = getattr(owner, attribute)
    guards = Guards.now()
    guards.check("kernel.py:attention")
    # monkeypatch puts it back as well, should the guard not.
    monkeypatch.setattr(owner, attribute, lambda *given: None)
    with pytest.raises(MinibertError, match=rf"^kernel\.py:attention replaces {name}, which"):
        guards.check("kernel.py:attention")
    assert getattr(owner, attribute) == before
    guards.check("kernel.py:attention")


def test_all_that_was_replaced_is_named_at_once(monkeypatch):
    guards = Guards.now()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(torch, "equal", lambda one, other: True)
    with pytest.raises(MinibertError, match=r"replaces time\.time, torch\.equal,"):
        guards.check("kernel.py:attention")
    assert not torch.equal(torch.zeros(1), torch.ones(1))


def test_what_is_done_in_time_goes_on_and_the_limit_is_lifted():
    with time_limit(0.2, "it has not returned"):
        done = True
    time.sleep(0.3)
    assert done


def test_an_error_inside_comes_out_and_lifts_the_limit_as_well():
    with pytest.raises(ValueError, match="inside"), time_limit(0.2, "it has not returned"):
        raise ValueError("inside")
    time.sleep(0.3)
