"""The tile sizes of the backward, for `tuning.py` to choose from.

In a `Config` block_m are queries and block_n keys, as everywhere.
"""

from minibert.kernels.fused.launch import Config, block_of_features

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
    share a key head, and "relevance" where it is summed beside gradients. Those after the first
    are for a GPU that has less memory for a program.
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
        heavy = words & {"relevance", "groups", "shaped", "edges"}
        # In causal order two stages would make each wgmma wait for the one before it.
        first = narrow if heavy else plain._replace(num_stages=2 + ("causal" in words))
        if "groups" in words and words & {"relevance", "packed"}:
            first = _NARROWEST
    if "ampere" in words and size == 2 and d_head <= 128:
        first = _on_ampere(owner, case[2], words, plain)
    elif "edges" in words or ("relevance" in words and case == ("keys", 4, 64)):
        first = narrow
    if "blackwell" in words and size == 2 and d_head <= 128:
        first = _on_blackwell(owner, case[2], words, first)
    smaller = Config(16, 16, 4, 1) if size == 4 else Config(32, 32, 4, 1)
    return (first, smaller) if d_head > 64 else (first,)


def _on_ampere(owner: str, width: int, words: set[str], plain: Config) -> Config:
    """The config for heads of at most 128 in 16 bits, of GPUs without wgmma."""
    if owner == "keys" and "groups" in words and "edges" not in words:
        return Config(32, 32 if "relevance" in words else 64, 8, 2)
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
    return hopper._replace(num_stages=2) if owner == "queries" and "relevance" in words else hopper
