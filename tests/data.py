"""Real data for the tests, which lies outside the repository."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOT = Path(os.environ.get("MINIBERT_TEST_DATA", REPOSITORY.parent / "shared"))
MISSING = "set MINIBERT_TEST_DATA to the folder of test data"
# The tests that were skipped because of that, one a line.
WITHOUT_DATA = REPOSITORY / "build" / "tests" / "without_data"


def data_path(*parts: str) -> Path:
    """The file or folder of that name in the test data; the test is skipped where it is absent."""
    path = ROOT.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {path}; {MISSING}")
    return path
