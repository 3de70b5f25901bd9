"""Every hostile folder found so far, by a name that says what it is."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.siege.material import PICKLE, SAFE
from tests.siege.mutations import replace

Change = Callable[[Path], Any]
BERT_FILES = ("config.json", SAFE, "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")


def config(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def config_text(text: str) -> Change:
    return lambda folder: (folder / "config.json").write_text(text)


def special(name: str, kind: str) -> Change:
    return lambda folder: replace(folder / name, kind)


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    def rewrite(folder: Path) -> None:
        found = load_file(folder / SAFE)
        change(found)
        save_file(found, folder / SAFE)

    return rewrite


def saved(state: Callable[[Path], Any]) -> Change:
    """A pickle of torch in the place of the weights."""

    def write(folder: Path) -> None:
        content = state(folder)
        (folder / SAFE).unlink()
        torch.save(content, folder / PICKLE)

    return write


def packed(folder: Path, content: bytes | None = None, **of_each: Any) -> None:
    """The pickle's archive written again, deflated, or with another data.pkl."""
    state = load_file(folder / SAFE)
    stored = io.BytesIO()
    torch.save(state, stored)
    (folder / SAFE).unlink()
    with zipfile.ZipFile(stored) as old, zipfile.ZipFile(folder / PICKLE, "w", **of_each) as new:
        for name in old.namelist():
            is_pickle = name.endswith("data.pkl") and content is not None
            new.writestr(name, content if is_pickle else old.read(name))


def deflated(folder: Path) -> None:
    packed(folder, compression=zipfile.ZIP_DEFLATED)


def bomb(folder: Path) -> None:
    packed(folder, b"\x80\x02]" + b"N0" * 2**26 + b".", compression=zipfile.ZIP_DEFLATED)


def entry_with(format: str, offset: int, value: int) -> Change:
    """An archive of which the list of entries says something else of the last one."""

    def write(folder: Path) -> None:
        saved(lambda folder: load_file(folder / SAFE))(folder)
        content = bytearray((folder / PICKLE).read_bytes())
        struct.pack_into(format, content, content.rfind(b"PK\x01\x02") + offset, value)
        (folder / PICKLE).write_bytes(content)

    return write


def slow_hash(folder: Path) -> None:
    nested = b"\x80\x02}(" + b"N\x85" + b"2\x86" * 200 + b"K\x01u."
    packed(folder, nested)


def flipped(folder: Path) -> None:
    state = load_file(folder / SAFE)
    (folder / SAFE).unlink()
    torch.save(state, folder / PICKLE)
    content = bytearray((folder / PICKLE).read_bytes())
    with zipfile.ZipFile(folder / PICKLE) as archive:
        entry = max(archive.infolist(), key=lambda one: one.file_size)
    content[entry.header_offset + 400] ^= 4
    (folder / PICKLE).write_bytes(content)


def shards(second: Callable[[dict[str, torch.Tensor]], Any], named: dict[str, str]) -> Change:
    def write(folder: Path) -> None:
        found = load_file(folder / SAFE)
        (folder / SAFE).unlink()
        half = len(found) // 2
        parts = [dict(list(found.items())[:half]), dict(list(found.items())[half:])]
        weight_map = {name: f"{i}.safetensors" for i, part in enumerate(parts) for name in part}
        parts[1] = {name: tensor.clone() for name, tensor in parts[1].items()}
        second(parts[1])
        parts[1] |= {name: parts[0][name] + 1 for name in list(parts[0])[:1] if "twice" in named}
        for i, part in enumerate(parts):
            save_file(part, folder / f"{i}.safetensors")
        extra = {name: file for name, file in named.items() if name != "twice"}
        index = {"weight_map": weight_map | extra}
        (folder / f"{SAFE}.index.json").write_text(json.dumps(index))

    return write


def many_shards(folder: Path) -> None:
    (folder / SAFE).unlink()
    entries = ",".join(f'"{i}":"{i}"' for i in range(10**6))
    (folder / f"{SAFE}.index.json").write_text(f'{{"weight_map": {{{entries}}}}}')


def fake_layers(folder: Path, count: int) -> None:
    """Layers of tensors without numbers."""
    content = (folder / SAFE).read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    about = json.loads(content[8 : 8 + size])
    end = len(content) - 8 - size
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
    name = "bert.encoder.layer.{}.output.dense.bias"
    about |= {name.format(layer): empty for layer in range(2, count)}
    header = json.dumps(about).encode()
    (folder / SAFE).write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    config(num_hidden_layers=count)(folder)


def header(size: int) -> Change:
    def write(folder: Path) -> None:
        (folder / SAFE).write_bytes(struct.pack("<Q", size) + b"{" + b" " * (2**25) + b"}")

    return write


class RebuiltOfMore:
    """A tensor rebuilt from more values than torch's function takes."""

    def __reduce__(self) -> Any:
        function, values, *_ = torch.ones(2)._reduce_ex_internal(2)
        return function, (*values, 1, 2)


class Runs:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("false",)


def plain_pickle(folder: Path) -> None:
    (folder / SAFE).unlink()
    (folder / PICKLE).write_bytes(pickle.dumps({"a": Runs()}))


def other(state: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    return saved(lambda folder: state(load_file(folder / SAFE)))


def with_first(make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return other(lambda found: found | {next(iter(found)): make(next(iter(found.values())))})


def renamed(name: str) -> Change:
    return tensors(lambda found: found.update({name: found.pop(next(iter(found)))}))


def huge(found: dict[str, torch.Tensor]) -> None:
    for tensor in found.values():
        tensor.fill_(3e38)


def settings(**changes: Any) -> Change:
    return lambda folder: (folder / "tokenizer_config.json").write_text(json.dumps(changes))


def file(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


# The library panics when it splits a text with it.
NOBODY = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    },
}
# The library would take gigabytes where it writes such a vocabulary out.
FAR_ID = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 2**31}, "unk_token": "a"},
}
_KINDS = ("FIFO", "/dev/zero", "/dev/null", "folder", "loop", "sparse", "/proc/self/mem")
KNOWN: dict[str, Change] = {
    **{f"{kind} as {name}": special(name, kind) for kind in _KINDS for name in BERT_FILES},
    "epsilon of 400 digits": config(layer_norm_eps=10**400),
    "epsilon of 5,000 digits": config_text('{"layer_norm_eps": 1' + "0" * 5000 + "}"),
    "label key of 5,000 digits": config(id2label={"9" * 5000: "a"}),
    "labels with a gap": config(id2label={"0": "a", "5": "b"}),
    "a million labels": config(num_labels=10**9),
    "config value of 50 MB": config(model_type="x" * 50_000_000),
    "config value of 3 MB": config(model_type="x" * 3_000_000),
    "escapes in a config value": config(model_type="\x1b]0;title\x07\x1b[31m"),
    "escapes in the architecture": config(architectures=["\x1b[31m" * 1000]),
    "deep config": config_text("[" * 200_000),
    "deep value in config": config(hidden_act=json.loads("[" * 900 + "]" * 900)),
    "is_decoder in distilbert's place": config(is_decoder=True),
    "60,000 fake layers": lambda folder: fake_layers(folder, 60_000),
    "500 fake layers": lambda folder: fake_layers(folder, 500),
    "index of a million shards": many_shards,
    "tensor in two shards": shards(lambda part: None, {"twice": ""}),
    "index that names more": shards(lambda part: None, {"ghost": "0.safetensors"}),
    "index that names fewer": shards(lambda part: part.update(extra=torch.ones(2)), {}),
    "escapes in a tensor name": renamed("\x1b[31mred\x1b[0m"),
    "tensor name of 1 MB": renamed("n" * 2**20),
    "header of 2**40 bytes": header(2**40),
    "header of 32 MB": header(2**25 + 2),
    "huge weights": tensors(huge),
    "deflated pickle": deflated,
    "pickle that inflates to 128 MB": bomb,
    "pickle whose keys take for ever": slow_hash,
    "pickle with a flipped bit": flipped,
    "pickle with an entry of two sizes": entry_with("<I", 20, 2**17),
    "pickle with an encrypted entry": entry_with("<H", 8, 0x2808),
    "pickle with an entry elsewhere": entry_with("<H", 34, 2),
    "pickle that runs a command": plain_pickle,
    "sparse tensor": with_first(lambda tensor: tensor.to_sparse()),
    "meta tensor": with_first(lambda tensor: tensor.to("meta")),
    "nested tensor": with_first(lambda tensor: torch.nested.nested_tensor([tensor])),
    "quantised tensor": with_first(lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8)),
    "complex tensor": with_first(lambda tensor: tensor.to(torch.complex64)),
    "expanded tensor": with_first(lambda tensor: tensor.flatten()[:1].expand(tensor.shape)),
    "transposed tensor": with_first(lambda tensor: tensor.t().contiguous().t()),
    "tensor of too many values": other(lambda found: found | {"more": RebuiltOfMore()}),
    "no dictionary": other(lambda found: list(found.values())),
    "training checkpoint": other(lambda found: {"state_dict": found, "epoch": 3}),
    "weights in float16": tensors(lambda t: t.update({k: v.half() for k, v in t.items()})),
    "tokenizer_config is a list": file("tokenizer_config.json", "[]"),
    "lower case is a word": settings(do_lower_case="\x1b[31m"),
    "class of tokenizer": settings(tokenizer_class="\x1b[31m" * 1000),
    "token is a number": settings(mask_token=5),
    "added tokens that are none": settings(added_tokens_decoder={"x" * 5000: "a"}),
    "added token with a huge id": settings(added_tokens_decoder={"99999999999": "a"}),
    "vocabulary of nothing": file("vocab.txt", ""),
    "vocabulary of one word": file("vocab.txt", "word"),
    "vocabulary of other bytes": lambda folder: (folder / "vocab.txt").write_bytes(b"\xff\xfe\0"),
    "empty tokenizer": file("tokenizer.json", "{}"),
    "unigram without entries": file(
        "tokenizer.json", '{"version":"1.0","model":{"type":"Unigram","unk_id":0,"vocab":[]}}'
    ),
    "unigram whose unknown is not there": file(
        "tokenizer.json",
        '{"version":"1.0","model":{"type":"Unigram","unk_id":9,"vocab":[["a",0.0]]}}',
    ),
    "unigram without unknown": file(
        "tokenizer.json", '{"version":"1.0","model":{"type":"Unigram","vocab":[["b",0.0]]}}'
    ),
    "word level without unknown": file(
        "tokenizer.json",
        '{"version":"1.0","model":{"type":"WordLevel","vocab":{},"unk_token":"u"}}',
    ),
    "token whose id is 2**31": file("tokenizer.json", json.dumps(FAR_ID)),
    "template that names nobody": file("tokenizer.json", json.dumps(NOBODY)),
    "generation config is a list": file("generation_config.json", "[]"),
}
# What must be accepted, not only refused in good form.
LEGAL = {"deflated pickle", "expanded tensor", "transposed tensor", "training checkpoint"}


def build(name: str, base: Path) -> Callable[[Path, Random], str]:
    """The known case on a copy of the honest folder."""
    import shutil

    def make(folder: Path, random: Random) -> str:
        shutil.copytree(base, folder)
        KNOWN[name](folder)
        return name

    return make
