"""What the tests of kernels share."""

import pytest
import torch


@pytest.fixture
def triton_device() -> str:
    """Where kernels of Triton are tested; the test is skipped where Triton is not installed."""
    pytest.importorskip("triton")
    return "cuda" if torch.cuda.is_available() else "cpu"
