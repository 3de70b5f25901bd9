"""Whatever the user's code does to its process, the judge gets an answer or says that none came."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, suppress
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from planted_kernels import START, alone, written

import minibert
from minibert.bench import judge
from minibert.bench.judge import JudgedFunction
from minibert.bench.worker import Channel
from minibert.bench.worker_process import Printed, WorkerEndedError, WorkerError
from minibert.errors import MinibertError
from minibert.kernels.check import parity
from minibert.kernels.check.workload import KINDS, Case

SENT = {
    "plain": torch.randn(2, 3, 5, 7),
    "turned": torch.randn(2, 5, 3, 7).transpose(1, 2),
    "narrow": torch.randn(11).bfloat16(),
    "expanded": torch.randn(3, 1).expand(3, 5),
    "flags": torch.tensor([True, False, True]),
    "one": torch.tensor(7),
}


@pytest.fixture
def ends_of_a_channel():
    here, there = socket.socketpair()
    with here, there:
        yield Channel(here), Channel(there), there


def test_what_one_end_sends_the_other_receives(ends_of_a_channel):
    here, there, _ = ends_of_a_channel
    here.send({"task": "call"}, SENT)
    place = torch.zeros(2, 5, 3, 7).transpose(1, 2)
    message, found = there.receive(into=lambda message: {"turned": place, "plain": place})
    assert message == {"task": "call"}
    for name, one in SENT.items():
        assert torch.equal(found[name], one)
        assert found[name].dtype == one.dtype
    assert found["turned"] is place


def test_what_is_more_than_was_asked_for_is_described_alone(ends_of_a_channel):
    here, there, _ = ends_of_a_channel
    here.send({}, {"z": torch.zeros(100)}, most=399)
    here.send({"next": 1}, {})
    _, found = there.receive(most=399)
    assert found["z"].is_meta
    assert found["z"].shape == (100,)
    assert there.receive(most=0)[0] == {"next": 1}


ABOUT = [
    None,
    7,
    [["z"]],
    [["z", "float7", [1], [0]]],
    [["z", "float32", [-1], [0]]],
    [["z", "float32", [2**63], [0]]],
    [["z", "float32", [2**40, 2**40], [0, 1]]],
    [["z", "float32", ["1"], [0]]],
    [["z", "float32", [2, 3], [0, 0]]],
    [[["z"], "float32", [1], [0]]],
    [["z", "float32", [1], [0]], ["z", "float32", [1], [0]]],
]
TEXTS = [b"null", b"nul}", b"[" * 2**15, *(json.dumps({"tensors": one}).encode() for one in ABOUT)]
BYTES = [(len(one).to_bytes(4, "big") + one, (ValueError, RecursionError)) for one in TEXTS]
BYTES += [(b"", TimeoutError), (b"\0\0\0\4{", TimeoutError), (b"\xff\xff\xff\xff", ValueError)]


@pytest.mark.parametrize(("data", "error"), BYTES)
def test_bytes_that_are_no_message_end_in_an_error_in_time(ends_of_a_channel, data, error):
    here, _, raw = ends_of_a_channel
    raw.sendall(data)
    with pytest.raises(error):
        here.receive(most=100, seconds=0.1)


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


CPU = torch.device("cpu")
PROBLEM = Case.of("plain", KINDS["plain"], 5).draw(
    dtype=torch.float32, device=CPU, d_head=7, wants=(), seed=0
)


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


def becomes(running, name):
    """True as soon as a process that was started as `sleep 10.NAME` is there, or none is."""
    for _ in range(200):
        if any(f"10.{name}".encode() in words for words in commands()) == running:
            return True
        time.sleep(0.05)
    return False


def commands():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes()


def starts(name, session):
    """Lines that start that process, in a session of its own or not."""
    return (
        "import subprocess",
        f"subprocess.Popen(['sleep', '10.{name}'], start_new_session={session})",
    )


SESSIONS = [False, pytest.param(True, marks=alone)]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\nos._exit(0)\n", "status 0, while kernel.py was read, before there was a"),
        ("import time\ntime.sleep(99)\n", "kernel.py has not been read after 1 seconds"),
    ],
)
def test_a_file_that_ends_the_process_when_it_is_read_is_no_success(tmp_path, source, message):
    with pytest.raises(WorkerEndedError, match=message):
        JudgedFunction(written(tmp_path, source), CPU, seconds=1.0)


def test_an_error_leaves_the_worker_usable(judged):
    user = judged("raise KeyboardInterrupt")
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"^raises KeyboardInterrupt \(line 19 of ker"):
            user.call(PROBLEM)


@pytest.mark.parametrize("session", SESSIONS)
def test_what_the_code_starts_ends_with_it(judged, session):
    name = secrets.randbits(60)
    user = judged(*starts(name, session), "return {'z': query}")
    user.call(PROBLEM)
    assert becomes(True, name)
    user.close()
    assert becomes(False, name)


@pytest.mark.parametrize("session", SESSIONS)
def test_a_worker_does_not_outlive_a_judge_that_is_killed_and_leaves_nothing(tmp_path, session):
    name = secrets.randbits(60)
    source = body(*starts(name, session), "print('started', flush=True)", "while True: pass")
    (tmp_path / "kernel.py").write_text(START + source, encoding="utf-8")
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-m", "minibert", "check", f"{tmp_path / 'kernel.py'}:attention"]
    places = {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | places
    ) as judge:
        assert judge.stderr is not None
        assert any("started" in one for one in judge.stderr)
        judge.send_signal(signal.SIGKILL)
        judge.wait()
    assert becomes(False, name)
    left = [one for one in set(os.listdir("/dev/shm")) - before if "minibert" in one]
    assert left == []
    assert [one.name for one in (tmp_path / "tmp").iterdir() if "minibert" in one.name] == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["os._exit(0)"],
            "ended the process with status 0, at plain, 5 x 5, before there was a ver",
        ),
        (["ctypes.string_at(0)"], r"crashed the process, at plain, 5 x 5: SIGSEGV, .* \(line 21\)"),
        (["os.abort()"], "crashed the process, at plain, 5 x 5: SIGABRT, C code gave up"),
        (["time.sleep(100)"], r"has not returned after 2 seconds \(--timeout\)\."),
        # A process that nobody ends keeps the connection open.
        (["if os.fork() == 0: os.setsid(); time.sleep(100)", "os._exit(0)"], "with status 0|not r"),
        (["[one.sendall(b'x' * 2**20) for _ in range(10**6)]"], "wrote into the connection"),
        (["one.sendall(b'\\xff' * 4)", "time.sleep(100)"], "wrote into the connection"),
        (["one.sendall(b'\\0\\0\\0\\4')", "time.sleep(100)"], "has not returned after 2 seconds"),
        (["[(one.sendall(b'\\0'), time.sleep(.1)) for _ in range(999)]"], "wrote into|has not re"),
        (["one.close()", "time.sleep(100)"], "closed its connection"),
        (["os.kill(os.getpid(), signal.SIGSTOP)", "time.sleep(100)"], "has not returned after 2"),
        # Where a crash was once told, the judge opened what it found.
        (["faulthandler.disable()", "ctypes.string_at(0)"], r"SIGSEGV, memory was .* not there\.$"),
        (["print('Fatal Python error: ' * 2**18)", "ctypes.string_at(0)"], "SIGSEGV"),
    ],
)
def test_a_process_that_gives_no_answer_is_told_in_one_line(judged, lines, message):
    find = "one = next(o._socket for o in gc.get_objects() if type(o).__name__ == 'Channel')"
    start = "import faulthandler, signal, time"
    user = judged(start, find, *lines, "return {'z': query}", seconds=2.0)
    with pytest.raises(WorkerEndedError, match=message) as caught:
        user.call(PROBLEM)
    assert str(caught.value).startswith("kernel.py:attention ")
    # It stays so: nothing can be asked any more.
    with pytest.raises(WorkerEndedError):
        user.call(PROBLEM)


def test_more_than_was_asked_for_is_described(judged):
    with pytest.raises(MinibertError, match=r"gave z of shape \(4194304,\)"):
        judged("return {'z': torch.zeros(2**22)}").call(PROBLEM)


@alone
@pytest.mark.parametrize("proc", ["0", "ctypes.CDLL(None).umount2(b'/proc', 2)"])
def test_a_worker_reaches_no_process_but_its_own(judged, proc):
    forkserver.ensure_running()
    # Number 1 is the worker's own first process too, and our parent where who started us is gone.
    others = {os.getpid(), os.getppid(), forkserver._forkserver._forkserver_pid} - {1}
    user = judged(
        proc,
        "ways = [",
        "    lambda one: open(f'/proc/{one}/mem', 'r+b'),",
        "    lambda one: open(f'/proc/{one}/fd/1', 'ab'),",
        "    lambda one: os.setpriority(os.PRIO_PROCESS, one, 19),",
        "    lambda one: os.sched_setaffinity(one, {0}),",
        "    lambda one: os.kill(one, 0),",
        "]",
        "reached = 0",
        f"for one in {others}:",
        "    for number, way in enumerate(ways):",
        "        try: way(one)",
        "        except OSError: continue",
        "        reached += 10**number",
        "return {'z': query * 0 + reached}",
    )
    assert float(user.call(PROBLEM)["z"].max()) == 0


@alone
def test_a_worker_writes_neither_where_programs_come_from_nor_on_a_terminal(judged, monkeypatch):
    here = Path(minibert.__file__).parent.parent
    # As where a package is installed by links.
    monkeypatch.setattr(sys, "path", [one for one in sys.path if Path(one).resolve() != here])
    controller, terminal = os.openpty()
    places = [one.__file__ for one in (minibert, judge, parity, torch)]
    places += [f"{sys.prefix}/pyvenv.cfg", f"{sys.base_prefix}/new", "/etc/new"]
    places += ["/proc/sys/vm/swappiness", *map(str, Path("/sys/fs/cgroup").rglob("*.procs"))][:20]
    user = judged(
        "reached = 0",
        f"for one in {places}:",
        "    try: open(one, 'ab').close()",
        "    except OSError: continue",
        "    reached += 1",
        f"reached += os.path.exists({os.ttyname(terminal)!r})",
        "return {'z': query * 0 + reached}",
    )
    with closing(os.fdopen(controller, "rb")), closing(os.fdopen(terminal, "wb")):
        assert float(user.call(PROBLEM)["z"].max()) == 0


@alone
@pytest.mark.parametrize("line", ["os.kill(1, 9)", "os.kill(-1, 9)"])
def test_a_worker_cannot_end_its_guard(judged, line):
    # Outside of a namespace it would end the machine.
    line = f"try: os.getppid() == 1 and {line}"
    user = judged(line, "except OSError: pass", "return {'z': query * os.getppid()}")
    assert torch.equal(user.call(PROBLEM)["z"], PROBLEM.query)
    user.close()
    assert user.worker._process.exitcode == 128 + signal.SIGKILL


@pytest.mark.parametrize("session", SESSIONS)
def test_a_worker_that_is_stopped_stands_still_with_all_it_started(judged, session):
    user = judged(
        "import multiprocessing, time",
        "if not hasattr(sys, 'gap'):",
        "    sys.gap = multiprocessing.RawValue('d', 0)",
        "    now = time.monotonic()",
        "    if os.fork() == 0:",
        f"        {session} and os.setsid()",
        "        while True:",
        "            last, now = now, time.monotonic()",
        "            sys.gap.value = max(sys.gap.value, now - last)",
        "return {'z': query * 0 + sys.gap.value}",
    )
    user.call(PROBLEM)
    with user.worker.stopped():
        time.sleep(2)
    # It may take a while until it has seen that it stood still.
    for _ in range(200):
        if (gap := float(user.call(PROBLEM)["z"].max())) > 1.9:
            break
        time.sleep(0.05)
    assert gap > 1.9
