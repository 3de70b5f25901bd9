"""The other end of hub_server.py: minibert's `fetch` in a process of its own, and its fixtures.

huggingface_hub reads its settings when it is imported, so each set of them needs a process.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import Hub
from vocabularies import write

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "owner/tiny"
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForMultipleChoice"],
    "vocab_size": 13,
    "hidden_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 7,
}
TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
WANTED = ["config.json", *TOKENIZER, "model.safetensors"]
# Between its tries the client waits for seconds, which here would help nobody.
WORKER = """
import json, os, sys, time, warnings
time.sleep = lambda seconds: None
from minibert.errors import CheckpointError
from minibert.checkpoint import hub_http
from minibert.checkpoint.hub import fetch
hub_http.PATIENCE = float(os.environ.get("PATIENCE", hub_http.PATIENCE))
for line in sys.stdin:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            answer = {"folder": str(fetch(**json.loads(line)))}
        except CheckpointError as error:
            answer = {"error": str(error)}
    print(json.dumps(answer | {"warnings": [str(w.message) for w in caught]}), flush=True)
"""


class Client:
    """`fetch` in a process of its own, which lives as long as its input is open."""

    def __init__(self, endpoint: str, home: Path, *prefix: str, **env: str) -> None:
        home.mkdir(exist_ok=True)
        self.stderr = home / "stderr"
        with self.stderr.open("w") as stderr:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-c", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=REPOSITORY,
                env=environment(endpoint, home, **env),
            )

    def send(self, name: str = NAME, **options: object) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"repo_id": name, **options}) + "\n")
        self._process.stdin.flush()

    def __call__(self, name: str = NAME, **options: object) -> dict:
        self.send(name, **options)
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, self.stderr.read_text()
        return json.loads(line)

    def fetch(self, name: str = NAME, **options: object) -> Path:
        answer = self(name, **options)
        assert "folder" in answer, answer
        return Path(answer["folder"])

    def fail(self, name: str = NAME, **options: object) -> str:
        answer = self(name, **options)
        assert "error" in answer, answer
        return answer["error"]

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def environment(endpoint: str, home: Path, **env: str) -> dict[str, str]:
    mine = {k: v for k, v in os.environ.items() if not k.upper().startswith(("HF_", "HTTP"))}
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        "NO_PROXY": "*",
        "OMP_NUM_THREADS": "1",
    }
    return mine | settings | env


@pytest.fixture(scope="session", name="served")
def served_folder(tmp_path_factory):
    with Hub(tmp_path_factory.mktemp("served")).running() as hub:
        yield hub


@pytest.fixture(name="hub")
def one_repository(served):
    """The server, with one small repository that has more than is needed."""
    served.forget()
    shutil.rmtree(served.folder / "owner", ignore_errors=True)
    root = served.folder / NAME
    (root / "onnx").mkdir(parents=True)
    write(root, config=CONFIG, **{Path(name).stem: {"file": name} for name in TOKENIZER})
    others = "README.md vocab.txt merges.txt tf_model.h5 flax_model.msgpack onnx/model.onnx"
    for name in [*others.split(), "pytorch_model.bin", "model.safetensors"]:
        (root / name).write_bytes(name.encode() * 100)
    return served


@pytest.fixture(scope="session", name="client")
def one_client(served, tmp_path_factory):
    with Client(served.url, tmp_path_factory.mktemp("home")) as client:
        yield client


def holds(folder: Path, hub: Hub, *names: str) -> bool:
    """True when the folder has those files, byte for byte, and no others."""
    source = hub.folder / NAME
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return found == {name: (source / name).read_bytes() for name in names}
