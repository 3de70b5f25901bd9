"""Triton's interpreter prepares its language once a launch, and takes it back as it did before."""

import json
import os
import subprocess
import sys

import pytest

from tests.packages import REPOSITORY

# In a process of its own: in this one it may be set already. The first launch is without it.
PROGRAM = """
import json, torch
import triton.language as tl
from triton.runtime import interpreter
from minibert.kernels.interpreter import prepare_once_a_launch
from tests.kernels.softmax_kernel import softmax

prepared, plain, as_it_was = [], interpreter._patch_builtin, tl.range
interpreter._patch_builtin = lambda one, *more: (prepared.append(one), plain(one, *more))
rows = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
found = []
for setting in (int, prepare_once_a_launch, prepare_once_a_launch):
    setting()
    prepared.clear()
    out = torch.empty_like(rows)
    softmax[(3,)](rows, out, 16)
    torch.testing.assert_close(out, rows.softmax(-1))
    found.append([prepared.count(tl), tl.range is as_it_was])
print(json.dumps(found))
"""


def test_it_prepares_once_a_launch_however_many_functions_are_called() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (alone, taken_back), *others = json.loads(done.stdout)
    # Three programs, each of which calls a function of its file and two of Triton's.
    assert alone >= 1 + 3
    assert taken_back
    # Triton's own functions see the language under other names.
    assert others == [[2, True]] * 2
