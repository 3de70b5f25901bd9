"""One random damage to one file of a checkpoint folder, drawn from a seed."""

import json
import os
import struct
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "\x1b[31mred\x1b[0m", "../../x", "/dev/zero", "\ud800", "\u202e", "a\0b",
    "9" * 5000, "y" * 100_000, [], {}, [[]], [0, 1], {"0": "a", "5": "b"}, {"9" * 5000: "label"},
    {"\x1b]0;title\x07": 1}, ["z"] * 1000, "gelu", "relu", "bert", "gpt2", "[UNK]", "##", " ",
]  # fmt: skip
FILES = ("FIFO", "folder", "/dev/zero", "/dev/null", "/proc/self/mem", "loop", "sparse", "nothing")


def mutate(folder: Path, random: Random) -> str:
    """Damage one file; the description of what was done."""
    files = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
    path = random.choice(sorted(path for path in files if path.stat().st_size < 2**24))
    how = random.choices((change_bytes, change_json, special), (5, 6, 1))[0]
    return f"{path.name}: {how(path, random)}"


def special(path: Path, random: Random) -> str:
    """Put something that is no honest file in its place."""
    kind = random.choice(FILES)
    replace(path, kind)
    return f"{kind} in its place"


def replace(path: Path, kind: str) -> None:
    """Put something that is no honest file at that path."""
    path.unlink()
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**40)
    elif kind != "nothing":
        path.symlink_to(kind)


def change_bytes(path: Path, random: Random) -> str:
    """Flip, set, cut, repeat, insert or drop bytes."""
    content = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        if not content:
            break
        place = random.randrange(len(content))
        kind = random.choice(("flip", "set", "cut", "repeat", "insert", "drop"))
        if kind == "flip":
            content[place] ^= 1 << random.randrange(8)
        elif kind == "set":
            content[place] = random.choice((0, 0xFF, 0x7F, 0x22, 0x7B, 0x1B, random.randrange(256)))
        elif kind == "cut":
            del content[place:]
        elif kind == "repeat":
            content[place:place] = content[place : place + random.randrange(1, 64)]
        elif kind == "insert":
            content[place:place] = random.randbytes(random.randrange(1, 16))
        else:
            del content[place : place + random.randrange(1, 64)]
    path.write_bytes(content)
    return "bytes changed"


def change_json(path: Path, random: Random) -> str:
    """A change of JSON's values; in safetensors of the header's."""
    content = path.read_bytes()
    rest = b""
    if path.suffix == ".safetensors":
        size = struct.unpack("<Q", content[:8])[0]
        content, rest = content[8 : 8 + size], content[8 + size :]
    try:
        value = json.loads(content)
    except ValueError:
        return change_bytes(path, random)
    said = [change_value(value, random) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    text = json.dumps(value).encode("utf-8", "surrogatepass")
    if path.suffix == ".safetensors":
        text = struct.pack("<Q", len(text)) + text + rest
    path.write_bytes(text)
    return "; ".join(said)


def change_value(value: Any, random: Random) -> str:
    """Change one value somewhere in parsed JSON; what was done."""
    container, where = value, "."
    while True:
        keys = list(container) if isinstance(container, dict) else range(len(container))
        if not keys:
            return "nothing to change"
        key = random.choice(list(keys))
        inner = container[key]
        where += f"{str(key)[:40]}."
        if not isinstance(inner, dict | list) or not inner or random.random() < 0.2:
            break
        container = inner
    kind = random.choice(("value", "value", "value", "value", "drop", "rename", "nest", "swap"))
    if kind == "value":
        # A copy: two places with the same container could become one within itself.
        container[key] = deepcopy(random.choice(HOSTILE))
    elif kind == "drop":
        del container[key]
    elif kind == "rename" and isinstance(container, dict):
        container[str(random.choice(HOSTILE))] = container.pop(key)
    elif kind == "nest":
        for _ in range(random.choice((1, 70, 400))):
            inner = [inner]
        container[key] = inner
    else:
        other = random.choice(list(keys))
        container[key], container[other] = container[other], container[key]
    return f"{kind} at {where}"
