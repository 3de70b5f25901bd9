"""Results know the names of their axes, with jaxtyping and without."""

import subprocess
import sys

import minibert
from minibert.analysis import logit_attribution, logit_lens
from minibert.analysis.flow import rollout

PROGRAM = """
import sys, minibert
from minibert.analysis import logit_lens
lens = logit_lens(minibert.load().trace("the horse ran"))
assert "jaxtyping" not in sys.modules
print(minibert.axes_of(lens))
"""


def test_each_tensor_of_a_result_has_the_axes_it_is_declared_with() -> None:
    trace = minibert.load().trace(["the horse ran", "a boy"], statistics=("entropy", "received"))
    results = [
        logit_lens(trace),
        rollout(trace),
        logit_attribution(trace, "horse"),
        logit_attribution(trace, "horse", sentence=None),
        trace[1].statistics,
        trace[1, 2].statistics,
    ]
    for result in results:
        axes = minibert.axes_of(result)
        assert axes
        for name, names in axes.items():
            assert len(names) == getattr(result, name).dim()
    assert minibert.axes_of(results[0])["values"] == ("row", "batch", "position", "rank")
    assert minibert.axes_of(results[4])["entropy"] == ("batch", "head", "query")
    assert minibert.axes_of(results[5])["entropy"] == ("batch", "query")


def test_the_names_are_there_without_jaxtyping() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'values': ('row', 'batch', 'position', 'rank')" in done.stdout
