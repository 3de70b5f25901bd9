"""How long a checkpoint of eight billion weights takes to load, and how much memory.

    python -m benchmarks.loading_at_size [--quick] [--threads 2] [--folder DIR] [--output FILE]

The files have the layout of Llama-3-8B: four shards of bfloat16 safetensors with an index, 16 GB in
all. Every tensor begins with random numbers; the rest are holes, which read as zeros, so that
the files take a twelfth of that of a disk. Each loader runs in fresh processes: to the model, and
to the logits of one token, since a loader may leave the reading to the first pass; each with files
that are not in memory ("cold"), and again ("warm"). The memory of a process is noted every few
milliseconds: the anonymous part is its own, the other part are pages of files, which the system
takes back when it needs them. A row whose process read other numbers than were written says so and
has no speed.
"""

import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import torch

from benchmarks.loading import finished, options, surroundings
from benchmarks.session import REPOSITORY, warn_when_busy
from minibert.bench.gate import GateError, reason, require
from minibert.bench.result_rows import Row, facts

PROGRAM = """
import json, sys, time
import torch
{imports}
before = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))
folder, start = sys.argv[1], time.monotonic()
with torch.inference_mode():
    model = {load}
    if sys.argv[2] == "logits":
        model(torch.tensor([[1]]))
noted = {{"median_ms": 1e3 * (time.monotonic() - start), "before_anonymous_bytes": before * 1024}}
named = dict(model.named_parameters())
read = {{name: named[mine].flatten()[:64].tolist() for name, mine in {marked}.items()}}
print(json.dumps([noted, str(next(model.parameters()).dtype), read]))
"""
LAST = "model.layers.{}.mlp.down_proj.weight"
#: How each loads, and by their names in the files the names of three weights in its model.
LOADERS = {
    "minibert": (
        "import minibert\nminibert.load",
        "minibert.load(folder, dtype=torch.{})",
        {
            "model.embed_tokens.weight": "body.word.weight",
            LAST: "body.groups.{}.mlp.down.weight",
            "lm_head.weight": "head.decoder.weight",
        },
    ),
    "transformers": (
        "import transformers",
        "transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.{})",
        {name: name for name in ("model.embed_tokens.weight", LAST, "lm_head.weight")},
    ),
}

#: How far a process goes, and what its row says.
WHAT = {"load": "load", "logits": "load and the logits of one token"}
FILES = ("cold", "warm")
NAMES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
LLAMA_3_8B = dict(zip(NAMES, (4096, 32, 32, 8, 14336, 128256), strict=True))
SMALL = dict(zip(NAMES, (256, 4, 8, 2, 896, 8016), strict=True))
SHARDS = 4
#: Numbers at the beginning of each tensor that are not zero.
MARKED = 64
#: minibert refuses files of which less than a sixteenth is stored.
STORED = 1 / 12

#: How each tensor begins, by its name in the checkpoint.
Marks = dict[str, list[float]]


def shapes(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama by their names in a checkpoint."""
    width, wide = sizes["hidden_size"], sizes["intermediate_size"]
    keys = width // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (sizes["vocab_size"], width)}
    for layer in range(sizes["num_hidden_layers"]):
        within = {
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (wide, width),
            "mlp.up_proj": (wide, width),
            "mlp.down_proj": (width, wide),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in within.items()}
    return found | {"model.norm.weight": (width,), "lm_head.weight": (sizes["vocab_size"], width)}


def write(folder: Path, sizes: Mapping[str, int]) -> tuple[Marks, int]:
    """Write the checkpoint: how each tensor begins, and the bytes of all."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    marks, tensors = {}, shapes(sizes)
    total = sum(map(math.prod, tensors.values())) * 2
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(SHARDS)]
    written = 0
    for name, shape in tensors.items():
        shards[min(written * SHARDS // total, SHARDS - 1)][name] = shape
        written += math.prod(shape) * 2
    where = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        where |= dict.fromkeys(shard, file)
        marks |= write_shard(folder / file, shard, generator)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    about = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        **sizes,
    }
    (folder / "config.json").write_text(json.dumps(about))
    return marks, total


def write_shard(
    path: Path, tensors: Mapping[str, tuple[int, ...]], generator: torch.Generator
) -> Marks:
    header, end = {}, 0
    for name, shape in tensors.items():
        start, end = end, end + math.prod(shape) * 2
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    marks = {}
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        size = file.tell() + end
        # Room on the disk that nothing is written to.
        os.posix_fallocate(file.fileno(), 0, int(size * STORED))
        file.truncate(size)
        for name, about in header.items():
            values = torch.randn(MARKED, generator=generator).mul(0.02).to(torch.bfloat16)
            file.seek(8 + len(text) + about["data_offsets"][0])
            file.write(values.view(torch.int16).numpy().tobytes())
            marks[name] = values.tolist()
    return marks


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every process that could run was right."""
    parser = options("Time and memory to load 16 GB of weights.")
    parser.add_argument("--folder", type=Path, help="where the files go for the time being")
    chosen = parser.parse_args(arguments)
    if not Path("/proc/self/status").exists():
        print("benchmarks.loading_at_size reads /proc, which this system does not have")
        return 1
    known = facts(threads=chosen.threads)
    warn_when_busy(known)
    model, rows = "llama-quick" if chosen.quick else "llama-3-8b layout", []
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        environment = surroundings(Path(folder), chosen.threads)
        weights = Path(folder) / "model"
        marks, size = write(weights, SMALL if chosen.quick else LLAMA_3_8B)
        for name, what, files in product(LOADERS, WHAT, FILES):
            row: Row = {"what": WHAT[what], "files": files, "implementation": name}
            row |= {"weights_bytes": size, "model": model, "dtype": "bfloat16"}
            if files == "cold":
                forget(weights)
            try:
                row |= {"ok": True, **measured(name, weights, environment, marks, size, until=what)}
                row["peak_to_weights"] = row["peak_bytes"] / size
            except GateError as error:
                row |= {"ok": False, "reason": reason(error)}
            print(f"{name}: {row['what']}, {files}:", shown(row), flush=True)
            rows.append({**row, **known})
    return finished(rows, chosen, "loading-at-size")


def shown(row: Row) -> str:
    """The seconds and the peak of a row, or why there is none."""
    if not row["ok"]:
        return str(row["reason"])
    return f"{row['median_ms'] / 1e3:.1f} s, at most {row['peak_to_weights']:.3f} weights in memory"


def measured(
    name: str,
    weights: Path,
    environment: Mapping[str, str],
    marks: Marks,
    size: int,
    dtype: str = "bfloat16",
    until: str = "load",
) -> Row:
    """Milliseconds and bytes of one loader. Raises GateError where it fails or reads wrongly."""
    require(name)
    # Only minibert leaves the weights in their files.
    free = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
    if name != "minibert" and free < size * 1.2:
        needed = f"{free / 2**30:.1f} GiB of memory are free, and it needs {size / 2**30:.1f}"
        raise GateError(needed)
    imports, load, named = LOADERS[name]
    last = sum(one.endswith("down_proj.weight") for one in marks) - 1
    marked = {mine.format(last): its.format(last) for mine, its in named.items()}
    program = PROGRAM.format(imports=imports, load=load.format(dtype), marked=marked)
    done = subprocess.Popen(
        [sys.executable, "-c", program, str(weights), until],
        cwd=REPOSITORY,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peaks: dict[str, int] = {}
    watching = threading.Thread(target=watch, args=(done, peaks))
    watching.start()
    printed, said = done.communicate()
    watching.join()
    if done.returncode:
        raise GateError((said.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    noted, found, read = json.loads(printed.splitlines()[-1])
    if found != f"torch.{dtype}":
        raise GateError(f"weights are {found}, not torch.{dtype}")
    for tensor, values in read.items():
        if values != marks[tensor]:
            raise GateError(f"{tensor} does not begin as it was written")
    return {
        **noted,
        "rounds": 1,
        "peak_bytes": peaks["VmHWM"],
        "peak_anonymous_bytes": peaks["RssAnon"],
        "peak_mapped_bytes": peaks["RssFile"],
    }


def forget(folder: Path) -> None:
    """Have the system drop the pages of the files of a folder, as if they were never read."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def watch(process: "subprocess.Popen[str]", peaks: dict[str, int]) -> None:
    """Note the most memory of each kind that a process holds until it ends."""
    while process.poll() is None:
        for name, used in memory(process.pid).items():
            peaks[name] = max(peaks.get(name, 0), used)
        time.sleep(0.005)


def memory(process: int) -> dict[str, int]:
    """Bytes that a process holds, by Linux's names; nothing once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    named = (line.split(":", 1) for line in lines)
    kinds = ("VmHWM", "RssAnon", "RssFile")
    return {name: int(rest.split()[0]) * 1024 for name, rest in named if name in kinds}


if __name__ == "__main__":
    sys.exit(main())
