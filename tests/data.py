"""Real data for the tests, which lies outside the repository."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("MINIBERT_TEST_DATA", Path(__file__).resolve().parents[2] / "shared"))


def data_path(*parts: str) -> Path:
    """The file or folder of that name in the test data; the test is skipped where it is absent."""
    path = ROOT.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {path}; set MINIBERT_TEST_DATA to the folder of test data")
    return path
