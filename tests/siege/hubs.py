"""Class "hub": a server that lies about commits, names and sizes, or sends other bytes.

What it serves is taken whole or refused, nothing is written outside the cache, and no other host
is asked.
"""

import hashlib
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random

from tests.hub_server import Fault, Hub
from tests.siege.judge import DiffersError
from tests.siege.mutations import change_value

LIES = [
    "http://localhost:9/x",
    "../../../../x", "a" * 40, "A" * 40, "g" * 40, "a" * 39, "", "../" * 13 + "a", "/etc/x", "a/b",
    "\\..\\x", ".", "..", "a" * 300, '"', '"../../x"', "W/\"../../y\"", "%2e%2e%2fx", "0",
]  # fmt: skip
NAMES = [
    "../../../x.json",
    "/absolute/x",
    "a/../../b",
    "config.json\x00",
    "..",
    "C:\\x",
    "sub/config.json",
]
HEADERS = ("sha", "X-Repo-Commit", "ETag", "X-Linked-Etag", "X-Linked-Size", "Location")
STATUSES = (401, 403, 404, 416, 429, 500, 503)


def settings() -> int:
    """Set what the Hub's client reads when it is imported; the port of the server to be."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    wanted = {"HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*"}
    wanted |= {"HF_HUB_ETAG_TIMEOUT": "20", "HF_HUB_DOWNLOAD_TIMEOUT": "20"}
    os.environ.update(wanted | {"HF_ENDPOINT": f"http://127.0.0.1:{port}"})
    return port


PORT = settings() if "huggingface_hub" not in sys.modules else 0


def build(folder: Path, random: Random) -> str:
    """A repository of an honest folder, and the seed of what the server does."""
    # It imports the Hub's client, which reads the settings above.
    from tests.siege import material

    base = random.choice(material.folders)
    shutil.copytree(base, folder / "served" / "owner" / "name")
    (folder / "seed").write_text(str(random.randrange(2**30)))
    return base.name


def use(folder: Path) -> None:
    """Load it over the server; compare what is in the cache and what is outside of it."""
    from huggingface_hub.utils import close_session

    import minibert

    # The connection to the server of another case.
    close_session()
    random = Random(int((folder / "seed").read_text()))
    # Between its tries the client waits for seconds.
    time.sleep = lambda seconds: None
    before = _tree(folder)
    hub = _Hub(folder / "served", port=PORT)
    honest = random.random() < 0.2
    said = "honest" if honest else _spoil(hub, random)
    try:
        with hub.running():
            model = minibert.load("owner/name", cache_dir=folder / "cache")
    except minibert.MinibertError as error:
        if honest:
            raise DiffersError(f"an honest server is refused: {error}") from None
        raise
    finally:
        if elsewhere := {host for host in hub.hosts if not host.startswith("127.0.0.1:")}:
            raise DiffersError(f"{said}: {elsewhere} was asked")
        outside = {path for path in _tree(folder) - before if not path.startswith("cache")}
        if outside:
            raise DiffersError(f"{said}: written outside the cache: {sorted(outside)[:3]}")
    served = minibert.load(folder / "served" / "owner" / "name")
    for (name, ours), theirs in zip(model.named_parameters(), served.parameters(), strict=True):
        if not bool((ours == theirs).all()):
            raise DiffersError(f"{said}: {name} is not what the repository has")


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class _Hub(Hub):
    """Can list other names than it serves."""

    more: tuple[str, ...] = ()

    def files(self, repository: str) -> dict[str, Path]:
        found = super().files(repository)
        return found | dict.fromkeys(self.more, next(iter(found.values()))) if found else found


def _endless(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.send_response(200)
    for name, value in {"ETag": '"abc"', "X-Repo-Commit": "0" * 40}.items():
        handler.send_header(name, value)
    handler.end_headers()
    with suppress(OSError):
        while handler.command == "GET":
            handler.wfile.write(b"[" * 2**16)


def _elsewhere(random: Random) -> Callable[[BaseHTTPRequestHandler], None]:
    status = random.choice((301, 302, 303, 307, 308))
    # The same server by other names.
    host = random.choice(("localhost", "127.0.0.2", "[::ffff:127.0.0.1]", "user@localhost"))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        where = f"http://{host}:{PORT}{random.choice(('/x', '/content/owner/name/config.json'))}"
        xet = {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": where}
        for name, value in ({"Location": where, "Content-Length": "0"} | xet).items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def _spoil(hub: _Hub, random: Random) -> str:
    """One thing that is wrong with the server; what it is."""
    kinds = (
        "header",
        "header",
        "name",
        "body",
        "status",
        "no digests",
        "listing",
        "digest",
        "endless",
    )
    kind = random.choice((*kinds, "listing", "elsewhere"))
    if kind == "listing":
        seed = random.randrange(2**30)
        hub.spoil = lambda about: change_value(
            Random(seed).choice((about, *about["siblings"])), Random(seed)
        )
        return f"a value of the list of files, {seed}"
    if kind == "digest":
        forged = hashlib.sha256(random.randbytes(9)).hexdigest()
        hub.spoil = lambda about: [
            one["lfs"].update(sha256=forged) if "lfs" in one else one.update(blobId=forged[:40])
            for one in about["siblings"]
        ]
        return "forged digests"
    if kind in ("endless", "elsewhere"):
        place = random.choice(("/api/", "/owner/name/resolve/", "/content/"))
        hub.instead[place] = _endless if kind == "endless" else _elsewhere(random)
        return f"{kind} {place}"
    if kind == "header":
        header, lie = random.choice(HEADERS), random.choice(LIES)
        hub.lies[header] = lie.encode("latin-1", "replace").decode("latin-1")
        return f"{header}: {lie!a}"
    if kind == "name":
        hub.more = (random.choice(NAMES),)
        return f"a file {hub.more}"
    if kind == "body":
        files = sorted(hub.files("owner/name"))
        name = random.choice(files)
        how = random.choice(("cut", "corrupt"))
        hub.faults[name] = Fault(how, random.randrange(200), random.choice((1, float("inf"))))
        return f"{how} {name}"
    if kind == "status":
        place = random.choice(("/api/", "/resolve/"))
        hub.refused[f"{place}owner/name"] = (
            random.choice(STATUSES),
            random.choice(("", "x", "GatedRepo")),
        )
        return f"{place} {hub.refused}"
    hub.digests = False
    return kind
