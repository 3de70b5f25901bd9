"""How long until a model is there, and how much memory that takes, beside transformers.

    python -m benchmarks.loading [--quick] [--rows REGEX] [--rounds 7] [--threads 2] [--output FILE]

Two checkpoints: a BERT of base shape, and the layout of Llama-3-8B, four shards of bfloat16
safetensors with an index, 16 GB in all. Every tensor of that begins with random numbers; the rest
are holes, which read as zeros, so that the files take a twelfth of that of a disk.

Each number comes from fresh processes, started in turns, with files that are in memory ("warm"),
and of the large one first with files that are not ("cold"). A process notes the moment and its
memory after each step: imports, loading, a first pass, a longer one, since a loader may leave the
reading to the first pass, and some back ends copy weights for enough tokens at once. Memory is the
most that was held, less that of a process that only imports torch; `anonymous_bytes` are what is
not pages of files, which the system takes back when it needs them. A row whose process answers
otherwise than transformers, or read other numbers than were written, says so and has no speed.
"""

import argparse
import json
import math
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.models import TOLERANCE, Case
from benchmarks.session import QUIET, REPOSITORY, Kept, options, session
from minibert.bench.gate import GateError, failure, require, within
from minibert.bench.result_rows import Row, Timing, interleaved

PROGRAM = """
import json, sys, time
import torch
{imports}
folder, notes = sys.argv[1], {{}}
def at(name):
    lines = (line.split() for line in open("/proc/self/status"))
    used = {{line[0]: int(line[1]) * 1024 for line in lines if line[0] in ("VmHWM:", "RssAnon:")}}
    kinds = {{"peak_bytes": used["VmHWM:"], "anonymous_bytes": used["RssAnon:"]}}
    notes[name] = {{"moment": time.monotonic(), **kinds}}
at("imports")
with torch.inference_mode():
    model = {load}
    at("load")
    for n_tokens in {lengths}:
        out = model(torch.arange(n_tokens)[None])
        at(f"logits of {{n_tokens}} tokens")
print(json.dumps([notes, {read}]))
"""
TORCH_ALONE = "torch alone"
MINIBERT = ("import minibert", "minibert.load(folder, dtype=torch.{dtype})")
TRANSFORMERS = (
    "import transformers",
    "transformers.{auto}.from_pretrained(folder, dtype=torch.{dtype}).eval()",
)
#: What a process imports, and how it loads.
LOADERS = {TORCH_ALONE: ("", "None"), "minibert": MINIBERT, "transformers": TRANSFORMERS}
#: The numbers that a process tells, as code.
LOGITS = '{"logits": getattr(out, "logits", out).flatten()[::997].tolist()}'
BEGINNINGS = (
    "{{name: dict(model.named_parameters())[mine].flatten()[:64].tolist() "
    "for name, mine in {names}.items()}}"
)

LAST = "model.layers.{}.mlp.down_proj.weight"
#: By their names in the files the names of three weights in minibert's model.
NAMES = {
    "model.embed_tokens.weight": "body.word.weight",
    LAST: "body.groups.{}.mlp.down.weight",
    "lm_head.weight": "head.decoder.weight",
}
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
LLAMA_3_8B = dict(zip(SIZES, (4096, 32, 32, 8, 14336, 128256), strict=True))
SMALL = dict(zip(SIZES, (256, 4, 8, 2, 896, 8016), strict=True))
SHARDS = 4
#: Numbers at the beginning of each tensor that are not zero.
MARKED = 64
#: minibert refuses files of which less than a sixteenth is stored.
STORED = 1 / 12

#: Numbers by name: of a tensor the first, of a pass some logits.
Numbers = dict[str, list[float]]
#: What a process noted at each step.
Notes = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Checkpoint:
    """Weights on the disk, what is asked of them, and what the answer is."""

    name: str
    folder: Path
    dtype: str
    auto: str
    lengths: tuple[int, ...]
    files: tuple[str, ...]
    expected: Numbers
    rounds: int | None = None

    @property
    def bytes(self) -> int:
        """Those of all weights."""
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))

    def program(self, loader: str, dtype: str = "") -> str:
        """What a process runs."""
        imports, load = LOADERS[loader]
        load = load.format(auto=self.auto, dtype=dtype or self.dtype)
        if loader == TORCH_ALONE:
            return PROGRAM.format(imports="", load=load, lengths=(), read="{}")
        last = sum(name.endswith("down_proj.weight") for name in self.expected) - 1
        names = {its: mine if loader == "minibert" else its for its, mine in NAMES.items()}
        named = {its.format(last): mine.format(last) for its, mine in names.items()}
        read = LOGITS if "logits" in self.expected else BEGINNINGS.format(names=named)
        return PROGRAM.format(imports=imports, load=load, lengths=self.lengths, read=read)

    def check(self, read: Numbers) -> None:
        """Raise WrongError where a process answered wrongly, or read what was not written."""
        for name, values in read.items():
            pairs = zip(values, self.expected[name], strict=True)
            error = max(abs(found - right) for found, right in pairs)
            within(name, error, TOLERANCE if name == "logits" else 0.0)

    def forget(self) -> None:
        """Have the system drop the pages of the files, as if they were never read."""
        for path in self.folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def small(folder: Path, *, quick: bool) -> Checkpoint:
    """The BERT, whose logits transformers computes here."""
    case = Case("bert-quick" if quick else "bert-base", folder)
    with torch.no_grad():
        # As many tokens as the last pass of a process has.
        logits = case.transformers("eager")(torch.arange(128)[None]).logits
    expected = {"logits": logits.flatten()[::997].tolist()}
    auto = "AutoModelForMaskedLM"
    return Checkpoint(case.model, folder, "float32", auto, (8, 128), ("warm",), expected)


def large(folder: Path, *, quick: bool) -> Checkpoint:
    """The Llama of 16 GB, once each way."""
    marks = write(folder, SMALL if quick else LLAMA_3_8B)
    name, auto = "llama-quick" if quick else "llama-3-8b layout", "AutoModelForCausalLM"
    return Checkpoint(name, folder, "bfloat16", auto, (1,), ("cold", "warm"), marks, rounds=1)


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


def write(folder: Path, sizes: Mapping[str, int]) -> Numbers:
    """Write a Llama of these sizes; gives how each tensor begins, by its name."""
    generator = torch.Generator().manual_seed(0)
    marks: Numbers = {}
    tensors = shapes(sizes)
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
    return marks


def write_shard(
    path: Path, tensors: Mapping[str, tuple[int, ...]], generator: torch.Generator
) -> Numbers:
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
    parser = options("Time and memory until a model is there.", rounds=7, quick_rounds=1)
    chosen = parser.parse_args(arguments)
    if not Path("/proc/self/status").exists():
        print("benchmarks.loading reads /proc, which this system does not have")
        return 1
    kept = Kept("loading", chosen)
    with session(chosen.threads) as known:
        for make in (small, large):
            with tempfile.TemporaryDirectory() as folder:
                of = make(Path(folder), quick=chosen.quick)
                for row in rows_of(of, chosen):
                    kept.rows.append({"what": "loading", **row, **known})
                    print(shown(row), flush=True)
                kept.save()
    rows = kept.finish()
    return int(any(not row["ok"] and row["reason"] != "not installed" for row in rows))


def rows_of(checkpoint: Checkpoint, chosen: argparse.Namespace) -> Iterator[Row]:
    """A row for each loader and step, cold files before warm ones."""
    loaders = [one for one in LOADERS if one == TORCH_ALONE or wanted(checkpoint, one, chosen)]
    rounds = chosen.rounds or checkpoint.rounds or (1 if chosen.quick else 7)
    for files in checkpoint.files if len(loaders) > 1 else ():
        found: dict[str, list[Notes] | Row] = {name: [] for name in loaders}
        # A round before the first is not counted: it fills the page cache.
        extra = int(files == "warm" and checkpoint.rounds is None)
        for number, name in enumerate(interleaved(loaders, rounds + extra)):
            noted = found[name]
            if isinstance(noted, list):
                try:
                    notes = measured(name, checkpoint, chosen.threads, cold=files == "cold")
                    noted += [notes] if number >= extra * len(loaders) else []
                except GateError as error:
                    found[name] = failure(error)
        about = {"model": checkpoint.name, "dtype": checkpoint.dtype, "files": files}
        for row in summary(found, checkpoint.bytes):
            yield {**about, **row}


def wanted(checkpoint: Checkpoint, loader: str, chosen: argparse.Namespace) -> bool:
    """Whether the rows of this loader are asked for."""
    return chosen.rows is None or bool(chosen.rows.search(f"{checkpoint.name} {loader}"))


def measured(name: str, checkpoint: Checkpoint, threads: int, *, cold: bool = False) -> Notes:
    """What one fresh process noted, `seconds` from its start.

    Raises GateError where it fails or is wrong.
    """
    require("torch" if name == TORCH_ALONE else name)
    # Only minibert leaves the weights in their files.
    free = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
    if name == "transformers" and free < checkpoint.bytes * 1.2:
        raise GateError(
            f"{free / 2**30:.1f} GiB of memory are free; expected {checkpoint.bytes / 2**30:.1f}"
        )
    if cold:
        checkpoint.forget()
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", checkpoint.program(name), str(checkpoint.folder)],
        cwd=REPOSITORY,
        env={**os.environ, **QUIET, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise GateError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    notes, read = json.loads(done.stdout.splitlines()[-1])
    checkpoint.check(read)
    return {step: {**note, "seconds": note["moment"] - start} for step, note in notes.items()}


def summary(found: Mapping[str, list[Notes] | Row], size: int) -> Iterator[Row]:
    """The rows: medians of milliseconds from the start and after the imports, and memory."""
    for name, noted in found.items():
        about = {"implementation": name, "weights_bytes": size}
        if not isinstance(noted, list):
            yield {**about, "step": "load", **noted}
            continue
        for step in noted[0]:
            times = Timing([[note[step]["seconds"] * 1e3] for note in noted])
            later = [note[step]["moment"] - note["imports"]["moment"] for note in noted]
            row = {"after_imports_ms": round(1e3 * statistics.median(later), 2)}
            base, peer = found[TORCH_ALONE], found.get("transformers")
            if isinstance(base, list):
                beyond = _median(noted, step, "peak_bytes") - _median(base, "load", "peak_bytes")
                row |= {"peak_bytes": beyond, "peak_to_weights": round(beyond / size, 4)}
                row["anonymous_bytes"] = _median(noted, step, "anonymous_bytes")
            if isinstance(peer, list) and step in peer[0]:
                row |= times.ratios(Timing([[note[step]["seconds"] * 1e3] for note in peer]))
            yield {**about, "step": step, "ok": True, **times.fields(), **row}


def _median(noted: Sequence[Notes], step: str, kind: str) -> float:
    return statistics.median(note[step][kind] for note in noted)


def shown(row: Row) -> str:
    """A row as a line."""
    name = f"{row['model']}, {row['files']}: {row['implementation']}, {row['step']}"
    if not row["ok"]:
        return f"{name:<66}  {row['reason']}"
    text = f"{row['median_ms']:9.1f} ms, {row['after_imports_ms']:.1f} after the imports"
    text += f", ratio {row['ratio']:.2f}" if "ratio" in row else ""
    return f"{name:<66}  {text}, {row.get('peak_to_weights', 0):.2f} weights in memory"


if __name__ == "__main__":
    sys.exit(main())
