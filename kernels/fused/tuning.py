"""Chooses tile sizes for a shape: a few candidates are timed once, the fastest is stored on disk.

A shape class is the kernel, what it computes, the dtype, the width of a head, and the length
rounded up to a power of two. On a GPU the candidates of a class are timed at its first call. This
takes some tens of milliseconds, at most about a second unless two launches take longer, and their
compilation. The fastest is written to a file of its own for this GPU, these versions and these
sources. With MINIBERT_TUNING=off, and on a CPU, the first candidate is used.
"""

import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from minibert.kernels.call import Call
from minibert.kernels.fused.launch import Config, block_of_features, on_device, words

#: Tiles that compile without spills, by kernel, bytes of a number and width of a head.
_PLAIN = {
    ("keys", 2, 64): Config(64, 128, 8, 3),
    ("keys", 2, 128): Config(64, 128, 8, 2),
    ("keys", 2, 256): Config(32, 32, 8, 2),
    ("queries", 2, 64): Config(128, 64, 8, 3),
    ("queries", 2, 128): Config(128, 64, 8, 2),
    ("queries", 2, 256): Config(64, 16, 8, 2),
    ("keys", 4, 64): Config(32, 32, 4, 2),
    ("keys", 4, 128): Config(16, 32, 4, 2),
    ("keys", 4, 256): Config(16, 16, 4, 1),
    ("queries", 4, 64): Config(32, 32, 4, 2),
    ("queries", 4, 128): Config(32, 16, 4, 2),
    ("queries", 4, 256): Config(16, 16, 4, 1),
}
#: Smaller tiles, for cases in which those would spill.
_NARROW = {
    ("keys", 2, 64): Config(32, 128, 8, 3),
    ("keys", 2, 128): Config(32, 128, 8, 3),
    ("queries", 2, 128): Config(128, 32, 8, 2),
    ("keys", 4, 64): Config(16, 32, 4, 2),
    ("keys", 4, 128): Config(16, 16, 4, 2),
    ("queries", 4, 64): Config(32, 32, 8, 2),
    ("queries", 4, 128): Config(16, 16, 8, 2),
}
#: For wide heads of 16 bits where even these would.
_NARROWEST = Config(16, 128, 8, 3)
#: Of 16 bits on GPUs whose product of matrices holds all it multiplies in registers, and smaller
#: ones where the places of mask and bias take registers too.
_AMPERE = Config(64, 64, 8, 2)
_AMPERE_EDGES = {
    ("keys", 64): Config(32, 32, 4, 2),
    ("keys", 128): Config(32, 64, 8, 2),
    ("queries", 64): Config(64, 32, 4, 2),
}
#: The gradient of a bias where sums of a product are not of Hopper's kind.
_BIAS = {64: Config(64, 32, 4, 2), 128: Config(64, 32, 8, 2)}


def backward_candidates(kernel: str, kind: str, d_head: int, shape: str) -> tuple[Config, ...]:
    """The configs of "backward keys", "backward queries" or "backward bias", the likeliest first.

    `shape` is in the words of `tuning.candidates`; beside them "groups" where several query heads
    share a key head. Those after the first are for a GPU that has less memory for a program.
    """
    words, size = set(shape.split()), 4 if kind == "fp32" else 2
    owner = "keys" if kernel == "backward keys" else "queries"
    case = (owner, size, max(64, block_of_features(d_head)))
    plain, narrow = _PLAIN[case], _NARROW.get(case, _PLAIN[case])
    if (
        kernel == "backward bias"
        and size == 2
        and words & {"ampere", "blackwell"}
        and d_head <= 128
    ):
        return (_BIAS[case[2]],)
    if kernel == "backward bias":
        # Two products and a sum, which a block of 16 by 16 spreads over fewer warps.
        return (narrow._replace(num_warps=4) if case == ("queries", 4, 128) else narrow,)
    first = plain
    if case == ("keys", 2, 128):
        # The sums of keys and values take half of the registers there.
        heavy = words & {"groups", "shaped", "edges"}
        # In causal order two stages would make each wgmma wait for the one before it.
        first = narrow if heavy else plain._replace(num_stages=2 + ("causal" in words))
        if {"groups", "packed"} <= words:
            first = _NARROWEST
    if "ampere" in words and size == 2 and d_head <= 128:
        first = _on_ampere(owner, case[2], words, plain)
    elif "edges" in words:
        first = narrow
    if "blackwell" in words and size == 2 and d_head <= 128:
        first = _on_blackwell(owner, case[2], words, first)
    smaller = Config(16, 16, 4, 1) if size == 4 else Config(32, 32, 4, 1)
    return (first, smaller) if d_head > 64 else (first,)


def _on_ampere(owner: str, width: int, words: set[str], plain: Config) -> Config:
    """The config for heads of at most 128 in 16 bits, of GPUs without wgmma."""
    if owner == "keys" and "groups" in words and "edges" not in words:
        return Config(32, 64, 8, 2)
    if "edges" in words:
        return _AMPERE_EDGES.get((owner, width), _AMPERE)
    return _AMPERE if width == 128 or words & {"groups", "shaped"} else plain


def _on_blackwell(owner: str, width: int, words: set[str], hopper: Config) -> Config:
    """The config for heads of at most 128 in 16 bits on Blackwell.

    There the sums of a block of keys pass through registers for each head of a group, beside what
    is loaded ahead: with one stage nothing is.
    """
    if owner == "keys" and "groups" in words:
        return Config(64, 128 if width == 64 and "edges" not in words else 64, 8, 1)
    return hopper


#: The word for a compute capability in the shapes that `candidates` takes.
GENERATIONS = {80: "ampere", 90: "", 100: "blackwell"}
KINDS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
#: How often a candidate is timed at most; the median is compared.
_REPEATS = 9
#: Milliseconds of the GPU for all candidates of a class.
_BUDGET = 1000.0


def candidates(kernel: str, kind: str, d_head: int, shape: str) -> tuple[Config, ...]:
    """The candidate configs, the most promising first; all of them compile without spills.

    `shape` is what is computed, in words: "causal", "edges" (a mask or a bias), "packed",
    "window", "shaped" (a soft cap or ALiBi), "tma" (keys and values that the copy unit can read),
    "plain" where there are no statistics, "ampere" or "blackwell" where it is no Hopper. d_head is
    the wider of those of keys and values.
    """
    if kernel.startswith("backward"):
        return backward_candidates(kernel, kind, d_head, shape)
    words = shape.split()
    if kind != "fp32" and kernel == "forward" and {"ampere", "blackwell"} & set(words):
        return _forward_elsewhere(d_head, set(words))
    if block_of_features(d_head) > 128:
        return _widest(kernel, kind, words)
    wide = block_of_features(d_head) > 64
    if kind == "fp32":
        # Without matrix instructions the registers hold what the multiplications need.
        return (Config(32, 16 if wide else 32, 4, 2),)
    if kernel == "columns":
        crowded = wide or "shaped" in words
        return (*[Config(64, 128, 4, 3)] * (not crowded), Config(64, 128, 8, 3))
    if wide or {"edges", "shaped"} & set(words):
        cuts, likeliest = [Config(128, 64, 8, 3)], [Config(128, 64, 8, 3)]
    else:
        cuts, likeliest = [Config(128, 128, 8, 3), Config(128, 64, 8, 3)], [Config(128, 128, 8, 3)]
        # Threads that own two rows of the tile cannot hold the sums of statistics as well.
        if "plain" in words and "packed" not in words:
            # With twice the queries in a block, each key is read half as often.
            cuts += [Config(128, 64, 4, 3), Config(256, 64, 8, 3)]
            likeliest.append(Config(128, 64, 4, 3))
    with_tma = [cut._replace(tma=True) for cut in likeliest] if "tma" in words else []
    return (*cuts, *with_tma)


def _widest(kernel: str, kind: str, words: list[str]) -> tuple[Config, ...]:
    """The configs where a vector takes 256 places: its tiles take most of the memory."""
    if kind == "fp32":
        return (Config(16, 16, 8, 1 if kernel == "columns" else 2),)
    # Statistics of 128 rows would not fit the registers beside sums of 256 places.
    plain = kernel == "forward" and "plain" in words
    narrow = Config(64, 64 if kernel == "columns" else 32, 8, 2)
    return (Config(128, 64, 8, 2) if plain else narrow,)


def _forward_elsewhere(d_head: int, words: set[str]) -> tuple[Config, ...]:
    """The configs of the forward in 16 bits where matrices are not multiplied as on Hopper.

    Ampere holds all that it multiplies in registers; Blackwell loads its sums into them for each
    step of the softmax.
    """
    width, plain = block_of_features(d_head), "plain" in words and "packed" not in words
    usual = Config(128, 64, 8, 3)
    if width <= 64:
        if not plain or words & {"edges", "shaped"}:
            return (usual,)
        likeliest = (Config(128, 128, 8, 3), Config(128, 64, 4, 3))
        with_tma = [cut._replace(tma=True) for cut in likeliest] if "tma" in words else []
        return (*likeliest, usual, *with_tma)
    small = Config(64, 64, 8, 2)
    if width > 128:
        return (small if plain else Config(32 if "ampere" in words else 64, 32, 8, 2),)
    if "edges" in words:
        return (Config(64, 32, 8, 2),)
    if "shaped" in words or ("blackwell" in words and not plain):
        return (small,)
    return (usual if plain else Config(128, 32, 8, 3),)


def generation(device: torch.device) -> str:
    """The word for a GPU whose products of matrices are not Hopper's: other tiles fit it."""
    if device.type != "cuda":
        return ""
    major, _ = torch.cuda.get_device_capability(device)
    # GPUs for games of later generations multiply as Ampere does, too.
    return GENERATIONS.get(10 * major, "ampere")


def run_tuned(
    kernel: str, call: Call, more: str, launch: Callable[[Config], None], config: Config | None
) -> None:
    """Runs `launch` with the config, or else with the fastest for this call and `more`, words."""
    query, value = call.query, call.value
    with on_device(query):
        # What decides is the wider vector, of keys or of values.
        widest = (query, call.key) if query.shape[-1] >= value.shape[-1] else (value, query)
        shape = f"{words(call)} {more}".strip()
        launch(config or best_config(kernel, shape, *widest, launch))


def best_config(
    kernel: str, shape: str, query: Tensor, key: Tensor, launch: Callable[[Config], None]
) -> Config:
    """The config for a call of this kind; `launch` runs the kernel with one."""
    if query.is_cpu:
        return Config(64, 64, 4, 1)
    kind, d_head = KINDS[query.dtype], query.shape[-1]
    shape = " ".join(filter(None, (shape, generation(query.device))))
    tried = candidates(kernel, kind, d_head, shape)
    if len(tried) == 1 or os.environ.get("MINIBERT_TUNING") == "off":
        return tried[0]
    length = 1 << (max(query.shape[2], key.shape[2]) - 1).bit_length()
    name = f"{kernel}, {shape}, {kind}, {block_of_features(d_head)}, {length}"
    path = cache_file(query.device)
    known = remembered(path).get(name)
    if known in tried:
        return known
    if torch.cuda.is_current_stream_capturing():
        # A graph that is being recorded launches nothing that could be timed.
        return tried[0]
    if known is not None:
        warnings.warn(
            f"{path.name} names {known} for {name}, which is none of its candidates; "
            "they are timed again.",
            stacklevel=2,
        )
    best = _fastest(name, tried, lambda cut, budget: _milliseconds(launch, cut, budget))
    _remember(path, name, best)
    return best


@cache
def cache_file(device: torch.device) -> Path:
    """The path of the file with the fastest configs for this GPU, these versions and sources."""
    import triton

    folder = os.environ.get("MINIBERT_CACHE") or os.path.expanduser("~/.cache/minibert")
    gpu = re.sub(r"\W+", "-", torch.cuda.get_device_name(device)).strip("-")
    measured = "\0".join((triton.__version__, torch.__version__, sources(Path(__file__).parent)))
    digest = hashlib.sha256(measured.encode()).hexdigest()[:12]
    return Path(folder) / f"tuning-{gpu}-{digest}.json"


def sources(folder: Path) -> str:
    """A digest of the kernels: with other sources another config may be the fastest."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


#: The contents of the file when it was last read or written; reading it takes longer than a kernel.
_known: dict[Path, dict[str, Config]] = {}


def remembered(path: Path) -> dict[str, Config]:
    """The configs in the file, by shape class; empty where it is missing or, said, damaged."""
    if path not in _known:
        _known[path] = {}
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            return _known[path]
        try:
            _known[path] = {name: _config(one) for name, one in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError) as error:
            warnings.warn(
                f"{path} is damaged ({error}), so that tile sizes are timed again.", stacklevel=2
            )
    return _known[path]


def _config(stored: list[int]) -> Config:
    found = Config(*stored)  # type: ignore[arg-type]
    if any(type(one) is not int for one in found[:4]) or type(found.tma) is not bool:
        raise ValueError(f"{stored} is no config")
    return found


def _remember(path: Path, name: str, best: Config) -> None:
    """Adds one config to the file. The whole file is replaced, so no reader sees half of it."""
    _known.pop(path, None)
    known = remembered(path)
    known[name] = best
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8"
        ) as file:
            json.dump(known, file, indent=1)
        os.replace(file.name, path)
    except OSError:
        # Where the folder cannot be written to, only the next process has to tune again.
        return


def _fastest(
    name: str,
    tried: tuple[Config, ...],
    milliseconds: Callable[[Config, float], tuple[float, float]],
) -> Config:
    """The fastest candidate that runs. An error of the first one is raised.

    `milliseconds(cut, budget)` gives the time of a launch and of all that it launched. When the
    budget is spent, the candidates that are left are not tried.
    """
    times: dict[Config, float] = {}
    left = _BUDGET
    for place, cut in enumerate(tried):
        if left <= 0:
            break
        try:
            times[cut], spent = milliseconds(cut, left / (len(tried) - place))
            left -= spent
        except Exception as error:
            if not times:
                raise
            warnings.warn(
                f"{name}: {cut} does not run on this GPU and was left out ({error}). Results are "
                "not touched by that; please report it.",
                stacklevel=2,
            )
    return min(times, key=lambda cut: times[cut])


def _milliseconds(
    launch: Callable[[Config], None], cut: Config, budget: float
) -> tuple[float, float]:
    """The median of a few launches, as many as the budget holds, and what all of them took."""
    launch(cut)
    times = [_one_launch(launch, cut)]
    # The launch that compiled took as long as the one that was timed first.
    for _ in range(min(_REPEATS - 1, int(budget / max(times[0], 1e-6)) - 2)):
        times.append(_one_launch(launch, cut))
    return sorted(times)[len(times) // 2], times[0] + sum(times)


def _one_launch(launch: Callable[[Config], None], cut: Config) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    launch(cut)
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop))
