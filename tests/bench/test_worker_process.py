"""Whatever the user's code does to its process, the judge gets an answer or says that none came."""

import io
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from planted_kernels import START, written

from minibert.bench.judged_function import JudgedFunction
from minibert.bench.shared_bytes import SharedBytes, described, room_for
from minibert.bench.worker_process import Printed, WorkerEndedError, WorkerError, progress
from minibert.errors import MinibertError
from minibert.kernels.check.cases import Case

SENT = {
    "plain": torch.randn(2, 3, 5, 7),
    "turned": torch.randn(2, 5, 3, 7).transpose(1, 2),
    "narrow": torch.randn(11).bfloat16(),
    "expanded": torch.randn(3, 1).expand(3, 5),
    "flags": torch.tensor([True, False, True]),
    "one": torch.tensor(7),
}


def test_what_one_end_puts_the_other_takes(tmp_path):
    here = SharedBytes.new(tmp_path / "file", room_for(SENT.values()))
    about = here.put(SENT)
    found = SharedBytes(here.path, here.size).take(about)
    shapes = described(about)
    for name, one in SENT.items():
        assert torch.equal(found[name], one)
        assert (shapes[name].shape, shapes[name].dtype) == (one.shape, one.dtype)
    assert found["turned"].stride() == SENT["turned"].stride()


def test_what_does_not_fit_is_described_and_cannot_be_taken(tmp_path):
    here = SharedBytes.new(tmp_path / "file", 64)
    about = here.put({"z": torch.zeros(100)})
    assert described(about)["z"].shape == (100,)
    with pytest.raises(ValueError, match="400 bytes in a file of 64"):
        here.take(about)


@pytest.mark.parametrize(
    "about",
    [
        None,
        7,
        [["z"]],
        [["z", "float7", [1], [0]]],
        [["z", "float32", [-1], [0]]],
        [["z", "float32", [2**63], [0]]],
        [["z", "float32", ["1"], [0]]],
        [["z", "float32", [2, 3], [0, 0]]],
        [[["z"], "float32", [1], [0]]],
    ],
)
def test_a_description_that_is_none_is_a_value_error(about):
    with pytest.raises(ValueError):  # noqa: PT011, the messages are torch's and Python's
        described(about)


def test_a_full_disk_is_one_line_and_no_crash(tmp_path):
    with pytest.raises(MinibertError, match="do not fit into"):
        SharedBytes.new(tmp_path / "file", 2**60)


def test_some_lines_are_shown_at_once_and_the_rest_is_counted(capsys):
    printed = Printed("kernel.py")
    for number in range(1000):
        printed.feed(f"line {number}\n")
    printed.feed("no end of line")
    printed.say_the_rest()
    printed.say_the_rest()
    out, err = capsys.readouterr()
    assert out == ""
    shown = [f"kernel.py prints: line {number}" for number in range(3)]
    assert err.splitlines() == [*shown, "note: kernel.py printed 998 more lines."]
    few = Printed("kernel.py")
    few.feed("one\ntw")
    few.feed("o")
    few.say_the_rest()
    assert capsys.readouterr().err == "kernel.py prints: one\nkernel.py prints: two\n"


def test_a_line_without_an_end_and_escape_codes_stay_harmless(capsys):
    printed = Printed("kernel.py")
    for _ in range(1000):
        printed.feed("x" * 1000)
    assert len(printed._open) < 1000
    printed.feed("\n\x1b[2Jgone\n")
    err = capsys.readouterr().err
    assert len(err) < 400
    assert "\x1b" not in err
    assert "gone" in err


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "drawn"), [(Screen, True), (io.StringIO, False)])
def test_the_bar_is_drawn_on_a_terminal_and_nowhere_else(monkeypatch, stream, drawn):
    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress("case") as watch:
        for done in range(5):
            watch(done, 5, f"lengths, {done}")
    assert bool(screen.getvalue()) == drawn
    if drawn:
        assert "lengths, 4" in screen.getvalue()
        assert "4/5" in screen.getvalue()
        # It leaves no line behind.
        assert not screen.getvalue().rpartition("\r")[2].strip()


CPU = torch.device("cpu")
PROBLEM = Case("plain", 5, 5, 1.0).draw(dtype=torch.float32, device=CPU, d_head=7, wants=(), seed=0)


def body(*lines):
    return "\n".join(
        ["import ctypes, os, sys, gc", "def attention(query, key, value, lengths, causal):"]
        + [f"    {line}" for line in lines]
    )


@pytest.fixture
def judged(tmp_path):
    """Makes a function of these lines, in a worker that ends with the test."""
    with ExitStack() as stack:

        def made(*lines, seconds=30.0):
            user = JudgedFunction(written(tmp_path, body(*lines)), CPU, seconds=seconds)
            stack.callback(user.close)
            user.worker.place = "plain, 5 x 5"
            return user

        yield made


def ends(process):
    """True when a process is gone, or only waits for somebody to ask for its status."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        except FileNotFoundError:
            return True
        if state.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("os._exit(0)", "ended the process with status 0, at plain, 5 x 5, before there was a ver"),
        ("os._exit(3)", "ended the process with status 3"),
        ("ctypes.string_at(0)", r"crashed the process, at plain, 5 x 5: SIGSEGV, .* \(line 19\)"),
        ("os.abort()", "crashed the process, at plain, 5 x 5: SIGABRT, C code gave up"),
        ("os.closerange(3, 256); return {'z': query}", "closed its connection|ended the process"),
        ("[os.write(n, b'x' * 9) for n in range(3, 64) if ours(n)]", "wrote into the connection"),
        ("[os.write(n, b'x') for n in range(3, 64) if ours(n)]", "wrote into|has not returned"),
        ("while True: pass", r"has not returned after 2 seconds \(--timeout\)\."),
    ],
)
def test_a_process_that_gives_no_answer_is_told_in_one_line(judged, line, message):
    ours = "ours = lambda n: os.path.exists(f'/proc/self/fd/{n}') and 'socket' in os.readlink("
    ours += "f'/proc/self/fd/{n}')"
    user = judged(*([ours] if "ours" in line else []), line, seconds=2.0)
    with pytest.raises(WorkerEndedError, match=message) as caught:
        user.call(PROBLEM)
    assert str(caught.value).startswith("kernel.py:attention ")
    # It stays so: nothing can be asked any more.
    with pytest.raises(WorkerEndedError):
        user.call(PROBLEM)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\nos._exit(0)\n", "status 0, while kernel.py was read, before there was a"),
        ("while True: pass\n", "kernel.py has not been read after 1 seconds"),
    ],
)
def test_a_file_that_ends_the_process_when_it_is_read_is_no_success(tmp_path, source, message):
    with pytest.raises(WorkerEndedError, match=message):
        JudgedFunction(written(tmp_path, source), CPU, seconds=1.0)


def test_an_answer_to_a_request_that_was_not_asked_ends_the_worker(judged):
    user = judged(
        "from multiprocessing.connection import Connection",
        "one = next(o for o in gc.get_objects() if type(o) is Connection and o.readable)",
        """one.send_bytes(b'{"id": "0", "outputs": []}')""",
        "return {'z': query}",
    )
    with pytest.raises(WorkerEndedError, match="wrote into the connection to the judge"):
        user.call(PROBLEM)


def test_an_error_leaves_the_worker_usable(judged):
    user = judged("raise KeyboardInterrupt")
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"^raises KeyboardInterrupt \(line 19 of ker"):
            user.call(PROBLEM)


def test_what_the_code_starts_ends_with_it(judged):
    user = judged(
        "import subprocess",
        "child = subprocess.Popen(['sleep', '60'])",
        "return {'z': query * 0 + child.pid}",
    )
    child = int(user.call(PROBLEM)["z"].flatten()[0])
    user.close()
    assert ends(child)


def test_a_worker_does_not_outlive_a_judge_that_is_killed(tmp_path):
    (tmp_path / "kernel.py").write_text(
        START + body("print(os.getpid(), flush=True)", "while True: pass"), encoding="utf-8"
    )
    command = [sys.executable, "-m", "minibert", "check", f"{tmp_path / 'kernel.py'}:attention"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as judge:
        assert judge.stderr is not None
        line = next(one for one in judge.stderr if one.startswith("kernel.py prints: "))
        worker = int(line.rpartition(" ")[2])
        judge.send_signal(signal.SIGKILL)
        judge.wait()
    assert ends(worker)
