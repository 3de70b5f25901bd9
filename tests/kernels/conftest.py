"""What holds for the tests of kernels: Triton, where there is no GPU, runs in its interpreter."""

import os

import pytest
import torch

# Read when triton is first imported, and by minibert's registry.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def triton_device() -> str:
    """Where kernels of Triton are tested; the test is skipped where Triton is not installed."""
    pytest.importorskip("triton")
    return "cuda" if torch.cuda.is_available() else "cpu"
