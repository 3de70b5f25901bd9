"""Chooses tile sizes for a call by rules: the same call has the same tiles, and bits, each time.

What decides is the kernel, what it computes, the dtype, the width of a head, and the GPU's
generation. All tiles compile without spills; their speed has not been measured on a GPU. `config=`
of `forward`, `backward` and `received_and_map` takes others.
"""

from collections.abc import Callable

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


def backward_candidates(kernel: str, kind: str, d_head: int, shape: str) -> tuple[Config, ...]:
    """The configs of "backward keys" or "backward queries", the likeliest first.

    `shape` is in the words of `tuning.candidates`; beside them "groups" where several query heads
    share a key head. Those after the first are for a GPU that has less memory for a program.
    """
    words, size = set(shape.split()), 4 if kind == "fp32" else 2
    owner = "keys" if kernel == "backward keys" else "queries"
    case = (owner, size, max(64, block_of_features(d_head)))
    plain, narrow = _PLAIN[case], _NARROW.get(case, _PLAIN[case])
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


def candidates(kernel: str, kind: str, d_head: int, shape: str) -> tuple[Config, ...]:
    """The config of a kernel; of a backward also those for a GPU with less memory for a program.

    `shape` is what is computed, in words: "causal", "edges" (a mask or a bias), "packed",
    "window", "shaped" (a soft cap or ALiBi), "plain" where there are no statistics, "ampere" or
    "blackwell" where it is not a Hopper. d_head is the wider of those of keys and values.
    """
    if kernel.startswith("backward"):
        return backward_candidates(kernel, kind, d_head, shape)
    words = set(shape.split())
    if kernel == "strongest":
        # Beside a tile of scores each row holds up to 32 of them with their keys.
        rows = 16 if kind == "fp32" else 64 if block_of_features(d_head) <= 128 else 32
        return (Config(rows, 32, 4, 2),)
    if kind != "fp32" and kernel == "forward" and {"ampere", "blackwell"} & words:
        return (_forward_elsewhere(d_head, words),)
    if block_of_features(d_head) > 128:
        return (_widest(kernel, kind, words),)
    wide = block_of_features(d_head) > 64
    if kind == "fp32":
        # Without matrix instructions the registers hold what the multiplications need.
        return (Config(32, 16 if wide else 32, 4, 2),)
    if kernel == "columns":
        return (Config(64, 128, 8 if wide or "shaped" in words else 4, 3),)
    return (Config(128, 64 if wide or {"edges", "shaped"} & words else 128, 8, 3),)


def _widest(kernel: str, kind: str, words: set[str]) -> Config:
    """The config where a vector takes 256 places: its tiles take most of the memory."""
    if kind == "fp32":
        return Config(16, 16, 8, 1 if kernel == "columns" else 2)
    # Statistics of 128 rows would not fit the registers beside sums of 256 places.
    plain = kernel == "forward" and "plain" in words
    narrow = Config(64, 64 if kernel == "columns" else 32, 8, 2)
    return Config(128, 64, 8, 2) if plain else narrow


def _forward_elsewhere(d_head: int, words: set[str]) -> Config:
    """The config of the forward in 16 bits where matrices are not multiplied as on Hopper.

    Ampere holds all that it multiplies in registers; Blackwell loads its sums into them for each
    step of the softmax.
    """
    width, plain = block_of_features(d_head), "plain" in words and "packed" not in words
    usual = Config(128, 64, 8, 3)
    if width <= 64:
        return Config(128, 128, 8, 3) if plain and not words & {"edges", "shaped"} else usual
    small = Config(64, 64, 8, 2)
    if width > 128:
        return small if plain else Config(32 if "ampere" in words else 64, 32, 8, 2)
    if "edges" in words:
        return Config(64, 32, 8, 2)
    if "shaped" in words or ("blackwell" in words and not plain):
        return small
    return usual if plain else Config(128, 32, 8, 3)


def generation(device: torch.device) -> str:
    """The word for a GPU whose products of matrices are not Hopper's: other tiles fit it."""
    if device.type != "cuda":
        return ""
    major, _ = torch.cuda.get_device_capability(device)
    # GPUs for games of later generations multiply as Ampere does, too.
    return GENERATIONS.get(10 * major, "ampere")


def run(
    kernel: str, call: Call, more: str, launch: Callable[[Config], None], config: Config | None
) -> None:
    """Runs `launch` with the config, or else with that for this call and `more`, words."""
    query, value = call.query, call.value
    # What decides is the wider vector, of keys or of values.
    widest = query if query.shape[-1] >= value.shape[-1] else value
    with on_device(query):
        launch(config or configs_of(kernel, f"{words(call)} {more}", widest)[0])


def configs_of(kernel: str, shape: str, vectors: Tensor) -> tuple[Config, ...]:
    """`candidates` for vectors of this width, dtype and device."""
    if vectors.is_cpu:
        return (Config(64, 64, 4, 1),)
    shape = f"{shape} {generation(vectors.device)}"
    return candidates(kernel, KINDS[vectors.dtype], vectors.shape[-1], shape)
