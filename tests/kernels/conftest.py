"""What the tests of kernels share."""

import jaxtyping
import pytest
import torch


@pytest.fixture
def triton_device() -> str:
    """Where kernels of Triton are tested; the test is skipped where Triton is not installed."""
    pytest.importorskip("triton")
    return "cuda" if torch.cuda.is_available() else "cpu"


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
