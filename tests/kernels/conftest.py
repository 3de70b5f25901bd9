"""What the tests of kernels share."""

import jaxtyping
import pytest


@pytest.fixture
def as_for_users(monkeypatch):
    """The annotations are checked in tests alone: a user meets the messages of the border."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def clean_registry(monkeypatch):
    """What a test registers is forgotten after it."""
    from minibert.kernels import registry

    monkeypatch.setattr(registry, "_IMPLEMENTATIONS", dict(registry._IMPLEMENTATIONS))
    monkeypatch.setattr(registry, "_CHOICES", {})
