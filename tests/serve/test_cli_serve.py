"""`minibert serve` as a user starts it, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import psutil
import pytest

from tests.command_line import fails, run
from tests.served import Client, request


@pytest.fixture
def process(tmp_path):
    """The command in a process of its own."""
    made = subprocess.Popen(
        [sys.executable, "-m", "minibert", "serve", "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": ""},
        # Of a shell's background jobs SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    yield made
    made.kill()
    made.communicate()


def test_it_serves_this_machine_alone_until_control_c(process):
    assert process.stdout
    address = process.stdout.readline().strip()
    port = urlsplit(address).port
    assert address.startswith("http://127.0.0.1:")
    assert "?token=" in address
    listening = [
        tuple(each.laddr)
        for each in psutil.Process(process.pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    assert listening == [("127.0.0.1", port)]
    page = Client(address)
    page.ask("about")
    # Requests are being answered when it ends.
    for layer in range(40):
        page.send("block", request=request(["the horse " * 60]), blocks=[f"probs-{layer % 4}"])
    page.answer()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 130
    page.close()
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "websockets"])
def test_a_missing_package_is_named(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    fails(run("serve", "--no-open"), rf"needs {missing}.*pip install 'minibert-attention\[serve\]'")


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fails(run("serve", "--no-open", "--port", str(port)), f"port {port}.*another --host or")
