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

import argparse
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
from typing import Any

import torch

from benchmarks.loading import surroundings
from benchmarks.session import REPOSITORY, default_output, warn_when_busy
from minibert.bench.gate import GateError, reason, require
from minibert.bench.result_rows import Row, facts, write_rows

PROGRAM = """
import json, sys, time
import torch
{imports}
folder = sys.argv[1]
def held():
    return {{
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in open("/proc/self/status") if line.startswith(("VmRSS", "RssAnon", "RssFile"))
    }}
before = held()
start, computed = time.monotonic(), time.process_time()
with torch.inference_mode():
    model = {load}
    if sys.argv[2] == "logits":
        model(torch.tensor([[1]]))
seconds, computed = time.monotonic() - start, time.process_time() - computed
noted = {{"seconds": seconds, "computed": computed, "before": before, "held": held()}}
print(json.dumps(noted), flush=True)
last = {layers}[-1]
marked = {{
    "model.embed_tokens.weight": {embed},
    f"model.layers.{{len({layers}) - 1}}.mlp.down_proj.weight": last.{down}.weight,
    "model.norm.weight": {norm}.weight,
    "lm_head.weight": {head},
}}
print(json.dumps({{
    "dtype": str(next(model.parameters()).dtype),
    "marks": {{name: one.flatten()[:64].tolist() for name, one in marked.items()}},
}}))
"""
LOADERS = {
    "minibert": {
        "imports": "import minibert\nminibert.load",
        "load": "minibert.load(folder, dtype=torch.DTYPE)",
        "layers": "model.body.groups",
        "embed": "model.body.word.weight",
        "down": "mlp.down",
        "norm": "model.body.final_norm",
        "head": "model.head.decoder.weight",
    },
    "transformers": {
        "imports": "import transformers",
        "load": "transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.DTYPE)",
        "layers": "model.model.layers",
        "embed": "model.model.embed_tokens.weight",
        "down": "mlp.down_proj",
        "norm": "model.model.norm",
        "head": "model.lm_head.weight",
    },
}

#: How far a process goes, and what its row says.
WHAT = {"load": "load", "logits": "load and the logits of one token"}
FILES = ("cold", "warm")


LLAMA_3_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 896,
    "vocab_size": 8016,
}
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
    chosen = parse(arguments)
    if not Path("/proc/self/status").exists():
        print("benchmarks.loading_at_size reads /proc, which this system does not have")
        return 1
    known = facts(threads=chosen.threads)
    warn_when_busy(known)
    sizes = SMALL if chosen.quick else LLAMA_3_8B
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        environment = surroundings(Path(folder), chosen.threads)
        weights = Path(folder) / "model"
        marks, size = write(weights, sizes)
        rows = []
        for name, what, files in product(LOADERS, WHAT, FILES):
            row: Row = {"what": WHAT[what], "files": files, "implementation": name}
            row["weights_bytes"] = size
            if files == "cold":
                forget(weights)
            try:
                found = measured(name, weights, environment, marks, size, until=what)
                row |= {"ok": True, **found, "peak_to_weights": found["peak_bytes"] / size}
            except GateError as error:
                row |= {"ok": False, "reason": reason(error)}
            show(row)
            model = "llama-quick" if chosen.quick else "llama-3-8b layout"
            rows.append({**row, "model": model, "dtype": "bfloat16", **known})
    if path := chosen.output or (None if chosen.quick else default_output("loading-at-size")):
        write_rows(rows, path)
        print(f"\n{len(rows)} rows in {path}")
    return 1 if any(not row["ok"] and row["reason"] != "not installed" for row in rows) else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time and memory to load 16 GB of weights.")
    parser.add_argument("--quick", action="store_true", help="a small model: is it right?")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the files go for the time being")
    parser.add_argument("--output", type=Path, help="file for the rows; --quick needs it")
    return parser.parse_args(arguments)


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
    if name != "minibert" and (free := available()) < size * 1.2:
        raise GateError(
            f"{free / 2**30:.1f} GiB of memory are free, and it needs {size / 2**30:.1f}"
        )
    program = PROGRAM.format(**LOADERS[name]).replace("DTYPE", dtype)
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
    loaded, read = map(json.loads, printed.splitlines()[-2:])
    if read["dtype"] != f"torch.{dtype}":
        raise GateError(f"weights are {read['dtype']}, not torch.{dtype}")
    for tensor, values in read["marks"].items():
        if values != marks[tensor]:
            raise GateError(f"{tensor} does not begin as it was written")
    held, before = loaded["held"], loaded["before"]
    return {
        "median_ms": loaded["seconds"] * 1e3,
        "processor_ms": loaded["computed"] * 1e3,
        "rounds": 1,
        "peak_bytes": peaks["VmHWM"],
        "peak_anonymous_bytes": peaks["RssAnon"],
        "peak_mapped_bytes": peaks["RssFile"],
        "before_bytes": before["VmRSS"],
        "before_anonymous_bytes": before["RssAnon"],
        "held_bytes": held["VmRSS"],
        "held_anonymous_bytes": held["RssAnon"],
        "held_mapped_bytes": held["RssFile"],
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


def available() -> int:
    """Bytes of memory that a process can have on this machine."""
    text = Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) * 1024


def show(row: dict[str, Any]) -> None:
    if not row["ok"]:
        print(f"{row['implementation']:<14}{row['what']}, {row['files']}: {row['reason']}")
        return
    gib = {name: value / 2**30 for name, value in row.items() if name.endswith("_bytes")}
    print(
        f"{row['implementation']:<14}{row['what']}, {row['files']}: {row['median_ms'] / 1e3:.1f} s "
        f"({row['processor_ms'] / 1e3:.1f} s of processors)  peak "
        f"{gib['peak_bytes']:.2f} GiB = {row['peak_to_weights']:.3f} weights "
        f"(anonymous {gib['peak_anonymous_bytes']:.2f}, mapped {gib['peak_mapped_bytes']:.2f}); "
        f"held {gib['held_bytes']:.2f} (anonymous {gib['held_anonymous_bytes']:.2f})"
    )


if __name__ == "__main__":
    sys.exit(main())
