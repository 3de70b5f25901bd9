"""The three scripts that BertViz' pages fetch, served from a folder.

They come from npm once, into a cache outside the repository. jQuery 2.0.0 was never on npm:
2.1.0, the oldest of its line there, stands in for it, and the rows say so.
"""

import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from minibert.bench.gate import GateError


@dataclass(frozen=True)
class Script:
    """A script by its address, and where npm has it."""

    address: str
    package: str
    member: str

    @property
    def name(self) -> str:
        """Its file in the cache."""
        return f"{self.package.replace('@', '-')}.js"


CDN = "https://cdnjs.cloudflare.com/ajax/libs"
SCRIPTS = (
    Script(f"{CDN}/require.js/2.3.6/require.min.js", "requirejs@2.3.6", "package/require.js"),
    Script(f"{CDN}/d3/5.7.0/d3.min.js", "d3@5.7.0", "package/dist/d3.min.js"),
    Script(f"{CDN}/jquery/2.0.0/jquery.min.js", "jquery@2.1.0", "package/dist/jquery.min.js"),
)


def usual_folder() -> Path:
    """The folder of scripts in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "minibert-benchmarks" / "scripts"


def served(folder: Path) -> dict[str, str]:
    """The text of each script by its address, fetched where the folder does not have it.

    Raises GateError where npm cannot be asked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for script in SCRIPTS:
        if not (folder / script.name).exists():
            fetch(script, folder)
    return {
        script.address: (folder / script.name).read_text(encoding="utf-8") for script in SCRIPTS
    }


def fetch(script: Script, folder: Path) -> None:
    """Puts a script into the folder, by `npm pack`."""
    command = ["npm", "pack", "--silent", script.package]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=120
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise GateError(
            f"npm pack {script.package} failed: BertViz' scripts are missing"
        ) from error
    archive = folder / done.stdout.split()[-1]
    with tarfile.open(archive) as packed:
        member = packed.extractfile(script.member)
        if member is None:
            raise GateError(f"{script.package} has no {script.member}")
        (folder / script.name).write_bytes(member.read())
    archive.unlink()
