"""A JupyterLab of its own for a test: its server, its folder, and a notebook in it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import minibert

ROOT = Path(minibert.__file__).parents[1]
# JupyterLab need not be in the environment of the tests: any one of the same Python will do.
COMMAND = os.environ.get("JUPYTER_LAB") or shutil.which(
    "jupyter-lab", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)


def write_notebook(path: Path, sources: Sequence[str]) -> None:
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{i}",
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for i, source in enumerate(sources)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4}
    path.write_text(json.dumps({**notebook, "nbformat_minor": 5}))


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a JupyterLab that shows the folder."""
    assert COMMAND
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = folder.parent / "jupyter"
    places = {f"JUPYTER_{name}_DIR": str(own / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    places |= {f"JUPYTERLAB_{name}_DIR": str(own / name) for name in ("SETTINGS", "WORKSPACES")}
    # The kernel may be another environment's: it gets what this one imports, after its own.
    paths = [
        str(ROOT),
        str(ROOT / "tests"),
        *(path for path in sys.path if "site-packages" in path),
    ]
    process = subprocess.Popen(
        [
            *(COMMAND, "--no-browser", "--allow-root", f"--port={port}"),
            *("--ServerApp.port_retries=0", "--IdentityProvider.token=", "--ServerApp.password="),
            *("--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"),
            f"--ServerApp.root_dir={folder}",
        ],
        env={**os.environ, **places, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(address, process)
        yield address
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """A busy machine's JupyterLab may wait for its kernels for minutes: what has not ended of
    the server and its kernels after a while is killed."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{address}/api/status", timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, "JupyterLab has ended"
            time.sleep(0.25)
    raise AssertionError("JupyterLab does not answer")
