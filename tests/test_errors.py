"""Messages stay short and printable, whatever a file put into them."""

import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import CheckpointError, MinibertError, printable


@given(st.text(), st.integers(1, 1500), st.sampled_from([0, 200, 2000]))
def test_a_message_is_shorter_than_2_kb_and_acts_on_no_terminal(text, times, more):
    message = str(CheckpointError(text * times + "\x1b[31m" * more))
    assert len(message.encode()) <= 2000
    assert all(c.isprintable() or c == "\n" for c in message)
    assert printable(message) == message


def test_a_short_message_is_kept_and_what_cannot_be_printed_is_named():
    assert str(MinibertError("naïve 我\n\x1b[31m \u202e\ud800")) == (
        "naïve 我\n\\x1b[31m \\u202e\\ud800"
    )


def test_of_a_long_message_beginning_and_end_are_kept():
    message = str(MinibertError("config.json: " + "x" * 50_000_000 + "; take it out."))
    assert message.startswith("config.json: xxx")
    assert message.endswith("xxx; take it out.")
    assert "of 50000027 characters" in message


def test_an_error_survives_a_pickle():
    assert str(pickle.loads(pickle.dumps(CheckpointError("a", 3)))) == "('a', 3)"


LARGE = """
import resource, sys, torch, minibert
from minibert.layers.config import Config
from minibert.model import Model
from minibert.trace.read import Trace
from minibert.viz import view

sizes = dict(n_positions=6000, n_layers=2, n_heads=4, d_model=8, d_mlp=8)
model = Model.from_config(Config("gpt2", "causal-lm", 50, causal=True, **sizes))
ids = torch.zeros(1, 6000, dtype=torch.long)
made = model.trace(ids, grad=True)
made.backward(made.logits[0, -1, 3])
with torch.no_grad():
    path = model.trace(ids).save(sys.argv[1])
pages = int(open("/proc/self/statm").read().split()[0])
# Half of what a layer's four matrices of 6,000 x 6,000 take.
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**28, -1))
for trace in (made, Trace.load(path, model)):
    for read in (
        lambda: trace[0].probs,
        lambda: trace[1].quantity("scores"),
        lambda: trace[1].window("probs"),
        lambda: trace.attentions,
        lambda: trace.stack("scores"),
        lambda: trace.view(),
        lambda: view([trace]),
        lambda: trace.rerun({("probs", 0): lambda probs: probs}),
        lambda: model.trace(ids, keep=("probs",)),
        lambda: model.trace(ids, impl="eager"),
        lambda: made.grad[0].probs,
    ):
        try:
            read()
        except minibert.MinibertError as error:
            print(error)
        else:
            print("read")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system for its limits")
def test_a_trace_that_is_larger_than_memory_is_refused_wherever_it_is_read(tmp_path):
    command = [sys.executable, "-c", LARGE, str(tmp_path / "a.trace")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    said = done.stdout.splitlines()
    assert len(said) == 22
    assert all("not enough memory" in line for line in said)
