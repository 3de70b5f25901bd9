"""The same input gives the same bits in every process, quiet or loaded, on every back end.

MINIBERT_TEST_PROCESSES says how many processes are compared: 2 unless set, one of them under load.
"""

import os
import subprocess
import sys
from pathlib import Path

import minibert
from minibert.layers import linear as backends

REPOSITORY = Path(__file__).resolve().parents[1]
PROCESSES = int(os.environ.get("MINIBERT_TEST_PROCESSES", "2"))
UNDER_LOAD = PROCESSES // 2
# PACK_FROM = 1: the weights of tiny-bert are too small to be packed otherwise.
PROGRAM = """
import hashlib, os, sys, torch, minibert
from minibert.layers import linear as backends
backends.PACK_FROM = 1
texts = ["the rain falls on the field", "a longer text of some more words, and then a full stop."]
for name in (None, *backends.NAMES):
    os.environ["MINIBERT_LINEAR"] = name or ""
    model = minibert.load(sys.argv[1])
    digest = hashlib.sha256()
    with torch.no_grad():
        for text in (texts[0], texts[1] * 3, texts):
            digest.update(model(text).numpy())
    print(name, model.is_packed, digest.hexdigest())
"""
BUSY = "while True: sum(range(100_000))"


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "MINIBERT_LINEAR"}
    environment["PYTHONPATH"] = str(REPOSITORY)
    program = [sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)


def test_processes_give_identical_logits_quiet_and_under_load(tmp_path):
    minibert.load("tiny-bert").save(tmp_path)
    quiet = [start(tmp_path).communicate()[0] for _ in range(PROCESSES - UNDER_LOAD)]
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        together = [start(tmp_path) for _ in range(UNDER_LOAD)]
        loaded = [process.communicate()[0] for process in together]
    finally:
        busy.kill()
        busy.wait()
    assert quiet
    assert loaded
    assert len(set(quiet + loaded)) == 1, quiet + loaded
    packed = [line.split()[1] for line in quiet[0].splitlines()]
    assert len(packed) == 1 + len(backends.NAMES)
    if backends.processor().onednn_dtypes:
        assert packed[1:] == [str(name == "onednn-packed") for name in backends.NAMES]
