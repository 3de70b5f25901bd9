"""Class "kill": what is written is whole or not there, wherever the process was killed.

A child writes and is killed at a drawn byte (by the limit of a file's size) or before or after
one of its renames. Then every file holds the old content, the new one, or is not there.
"""

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from minibert.bench.result_rows import write_rows
from minibert.checkpoint.save import save
from minibert.trace.read import Trace
from minibert.training.snapshot import Snapshot, snapshot_path, write_atomically
from minibert.viz.document import write_page
from tests.siege import material
from tests.siege.judge import DiffersError


def _trace(folder: Path, text: str) -> None:
    material.models["bert"].trace(text).save(folder / "a.trace")


def _model(folder: Path, text: str) -> None:
    save(material.models["bert" if "fox" in text else "gpt2"], folder)


def _snapshot(folder: Path, text: str) -> None:
    state = material.models["gpt2"].state_dict()
    one = Snapshot(len(text), {"text": text}, "{}", state, {}, [], 1.0)
    one.save(folder)


def _page(folder: Path, text: str) -> None:
    write_page([text] * 500, folder / "page.html")


def _rows(folder: Path, text: str) -> None:
    write_rows([{"text": text}] * 100, folder / "rows.jsonl")


def _text(folder: Path, text: str) -> None:
    write_atomically(folder / "scores.jsonl", text * 300)


WRITERS: dict[str, Callable[[Path, str], None]] = {
    one.__name__[1:]: one for one in (_trace, _model, _snapshot, _page, _rows, _text)
}
MOST = {"trace": 20_000, "model": 30_000, "snapshot": 40_000, "page": 4000, "rows": 3000}


def build(folder: Path, random: Random) -> str:
    """What is written, whether something stood there before, and where the kill comes."""
    folder.mkdir()
    name = random.choice(sorted(WRITERS))
    place = random.choice(("byte", "byte", "before", "after"))
    most = MOST.get(name, 4000) if place == "byte" else 4
    plan = {
        "name": name,
        "place": place,
        "at": random.randrange(most),
        "old": random.random() < 0.7,
    }
    (folder / "plan").write_text(json.dumps(plan))
    return str(plan)


def use(folder: Path) -> None:
    """Write it whole elsewhere, then with a kill, and compare."""
    plan = json.loads((folder / "plan").read_text())
    write = WRITERS[plan["name"]]
    for kind, text in (("old", "the old fox"), ("new", "a new dog runs"), ("now", "the old fox")):
        (folder / kind).mkdir()
        if kind != "now" or plan["old"]:
            write(folder / kind, text)
    child = os.fork()
    if child == 0:
        try:
            _be_killed(plan)
            write(folder / "now", "a new dog runs")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    whole = [_files(folder / kind) for kind in ("old", "new")]
    for name, content in _files(folder / "now").items():
        old = whole[0].get(name) if plan["old"] else None
        if content not in (old, whole[1].get(name)):
            raise DiffersError(f"{name} holds {len(content)} bytes that nobody wrote: {plan}")
    if plan["old"] and not whole[0].keys() <= _files(folder / "now").keys():
        raise DiffersError(f"an old file is gone: {plan}")
    if plan["name"] == "trace" and (folder / "now" / "a.trace").exists():
        Trace.load(folder / "now" / "a.trace")
    if plan["name"] == "snapshot" and snapshot_path(folder / "now").exists():
        Snapshot.load(folder / "now")


def _files(folder: Path) -> dict[str, bytes]:
    """The files that have their final names."""
    found = ((path.relative_to(folder), path) for path in folder.rglob("*") if path.is_file())
    return {
        str(name): path.read_bytes()
        for name, path in found
        if not name.name.startswith(".") and not name.parts[0].startswith("tmp")
    }


def _be_killed(plan: dict[str, Any]) -> None:
    """From now on this process is killed at the place of the plan."""
    if plan["place"] == "byte":
        # Python ignores this signal; as the system has it, it kills.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (plan["at"], plan["at"]))
        return
    rename, left = os.replace, [plan["at"]]

    def replace(*paths: Any, **options: Any) -> None:
        left[0] -= 1
        if left[0] < 0 and plan["place"] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*paths, **options)
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace
