"""Whatever ends the child before its verdict, the parent does not take it for a success."""

import signal
import subprocess
import sys
import time

import pytest

START = """
import atexit, ctypes, os, sys
from minibert.bench.verdict import at, ends, supervised
from minibert.errors import MinibertError

def run(work):
    try:
        status = supervised(work, "folder/kernel.py:attention".rpartition("/")[2])
    except MinibertError as error:
        sys.exit(f"error: {error}")
    sys.exit(status)
"""


def ended(work):
    """Status and standard error of a process that runs the lines of `work`, supervised."""
    lines = "".join(f"    {line}\n" for line in work)
    code = f"{START}\ndef work():\n{lines}\nrun(work)\n"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (["os._exit(0)"], "ended the process with status 0, while kernel.py was read, before"),
        (["at('lengths, 17 x 17')", "os._exit(0)"], "status 0, at lengths, 17 x 17, before there"),
        (["os._exit(3)"], "ended the process with status 3"),
        (
            ["at('causal, 65 x 65')", "ctypes.string_at(0)"],
            "crashed the process, at causal, 65 x 65: SIGSEGV, memory was read or written that",
        ),
        (["os.abort()"], "crashed the process, while kernel.py was read: SIGABRT, C code gave up"),
        (["atexit.register(os.abort)"], "crashed the process after the last call: SIGABRT"),
    ],
)
def test_a_process_that_is_ended_before_its_verdict_is_no_success(work, message):
    status, error = ended(work)
    assert status == 1
    assert error.startswith("error: kernel.py:attention ")
    assert message in error
    assert error.count("\n") == 1


def test_the_verdict_is_the_status():
    class_with_code = ["class Exit(Exception): exit_code = 2", "raise Exit"]
    assert ended(["pass"]) == (0, "")
    assert ended(class_with_code)[0] == 1  # an error nobody catches is 1 to Python
    assert ended(["ends(1)", "os._exit(1)"]) == (1, "")
    # What runs at exit cannot turn a verdict into a success.
    assert ended(["atexit.register(os._exit, 0)", "raise ValueError"])[0] == 1
    assert ended(["ends(2)", "os._exit(0)"]) == (2, "")


def test_standard_output_of_the_child_is_that_of_the_command():
    code = f"{START}\nrun(lambda: print('right'))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("right\n", 0)


def test_a_child_does_not_outlive_a_parent_that_is_killed():
    code = f"{START}\nimport time\nrun(lambda: (print(os.getpid(), flush=True), time.sleep(60)))\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert child != parent.pid
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        # The end of the pipe: no process has it open any more, so that the child has ended too.
        started = time.monotonic()
        assert parent.stdout.read() == b""
        assert time.monotonic() - started < 30
