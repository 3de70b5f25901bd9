"""`minibert serve` as a user starts it, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.command_line import fails, run
from tests.served import Client, request

LONG = "the horse " * 60


class Serving:
    """The command in a process of its own; its temporary files would be in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minibert", "serve", "--no-open"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "PYTHONUNBUFFERED": ""},
            # Of a shell's background jobs SIGINT is ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert self.process.stdout
        self.address = self.process.stdout.readline().strip()
        self.port = urlsplit(self.address).port or 0

    def busy_page(self) -> Client:
        """A page whose requests are being answered."""
        page = Client(self.address)
        page.ask("about")
        for layer in range(40):
            page.send("block", request=request([LONG]), blocks=[f"probs-{layer % 4}"])
        page.answer()
        return page

    def end(self, number: int) -> tuple[int, str]:
        """The exit status after a signal, and what was said on standard error."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path)
    yield made
    made.process.kill()
    made.process.communicate()


def test_it_serves_this_machine_alone_until_control_c(serving: Serving) -> None:
    assert serving.address.startswith("http://127.0.0.1:")
    assert "?token=" in serving.address
    listening = [
        each.laddr
        for each in psutil.Process(serving.process.pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    assert [(where.ip, where.port) for where in listening] == [("127.0.0.1", serving.port)]
    page = serving.busy_page()
    assert serving.end(signal.SIGINT) == (130, "")
    page.close()
    socket.create_server(("127.0.0.1", serving.port)).close()


def test_killed_in_the_middle_of_a_request_it_leaves_nothing(serving: Serving) -> None:
    page = serving.busy_page()
    children = psutil.Process(serving.process.pid).children(recursive=True)
    assert serving.end(signal.SIGKILL) == (-signal.SIGKILL, "")
    page.close()
    assert children == []
    assert list(serving.folder.iterdir()) == []
    socket.create_server(("127.0.0.1", serving.port)).close()


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "websockets"])
def test_a_missing_package_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    fails(run("serve", "--no-open"), rf"needs {missing}.*pip install 'minibert-attention\[serve\]'")


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fails(run("serve", "--no-open", "--port", str(port)), f"port {port}.*another --host or")
