"""A file of shapes: one attention call a line, in the words that people use for its sizes.

    {"batch": 1, "heads": 32, "kv_heads": 8, "keys": 4096, "d_head": 128, "causal": true}

The fields are those of `Workload`, with the other names of `_NAMES`. Of a YAML file, as GPU MODE's
task.yml, the lines that are a list's JSON object are read; what is not a size of attention there,
as the seed, is left out. Of FlashInfer-Bench's traces of paged and ragged attention the definition
says heads and d_head, and the axes batch, queries and keys: the mean of its sentences, in one
cache without pages.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from minibert.errors import MinibertError, did_you_mean
from minibert.kernels.check.workload import Workload
from minibert.untrusted import Json

_NAMES = {
    "batch": ("batch_size", "bsz", "B", "b"),
    "heads": ("num_heads", "n_heads", "q_heads", "num_qo_heads", "num_q_heads", "H_q", "H", "h"),
    "key_heads": ("kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads", "H_kv"),
    "tokens": ("keys", "seq_len", "seqlen", "sequence_length", "seqlen_k", "kv_len", "S", "N", "T"),
    "queries": ("seqlen_q", "q_len", "qo_len"),
    "d_head": ("head_dim", "headdim", "head_size", "D", "d"),
    "d_value": ("head_dim_v", "d_v"),
    "causal": ("is_causal",),
    "soft_cap": ("softcap", "logits_soft_cap"),
    "scale": ("softmax_scale", "sm_scale"),
}
_OWN = {other: name for name, others in _NAMES.items() for other in others}
_COUNTS = ("batch", "heads", "tokens", "d_head", "queries", "key_heads", "d_value", "prefix")
_NUMBERS = ("soft_cap", "scale")
_SWITCHES = ("causal", "alibi", "sinks", "mask", "bias", "strided")
_CHOICES = {
    "dtype": ("float16", "bfloat16", "float32"),
    "lengths": ("full", "varied"),
    "layout": ("padded", "packed", "paged"),
}
#: What a line may say; the rest of a workload is said by the command.
FIELDS = (*_COUNTS, *_SWITCHES, *_NUMBERS, *_CHOICES, "window")
_NEEDED = _COUNTS[:4]
#: A list's object on one line of YAML.
_ITEM = re.compile(r"\s*- (\{.*\})\s*$")
_DEFINITION = re.compile(
    r"gqa_(paged|ragged)_(decode|prefill_causal)_h(\d+)_kv(\d+)_d(\d+)(?:_ps(\d+))?$"
)


def workloads_of(
    path: Path, *, causal: bool | None = None, dtypes: Sequence[str] = ()
) -> list[Workload]:
    """The calls of a file, in order; `causal` and `dtypes` are of lines that do not say them.

    Without them, such a line is read once in full and once in causal order, and in float32.
    Raises MinibertError for a file without calls, and names the line and field of what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MinibertError(f"{path} cannot be read: {error}.") from error
    yaml = path.suffix in (".yml", ".yaml")
    found: list[Workload] = []
    for place, line in _lines(path, text, yaml):
        said = _translated(place, _of_trace(place, line) if "definition" in line else line)
        if yaml:
            said = {name: one for name, one in said.items() if name in FIELDS}
            if not said.keys() & {*_NEEDED}:
                continue
        ways = product(dtypes or ["float32"], [False, True] if causal is None else [causal])
        calls = [_workload(place, {"dtype": kind, "causal": order} | said) for kind, order in ways]
        found += dict.fromkeys(calls)
    if not found:
        raise MinibertError(
            f"{path} has no shapes; expected a JSON object on each line"
            f"{' of a list, - {...}' if yaml else ''}, with {', '.join(_NEEDED)}."
        )
    return found


def kinds_among(works: Iterable[Workload]) -> list[Workload]:
    """The first of those that differ in nothing but sentences and tokens."""
    kinds: dict[object, Workload] = {}
    for work in works:
        queries = None if work.queries is None else min(work.queries, 2)
        kinds.setdefault(replace(work, batch=1, tokens=1, queries=queries, name=""), work)
    return [*kinds.values()]


def _lines(path: Path, text: str, yaml: bool) -> Iterator[tuple[str, Json]]:
    """Each object with its place."""
    lines = text.splitlines()
    if text.lstrip().startswith("[") and isinstance(array := _parsed(path.name, text), list):
        # An object is a line.
        lines = [json.dumps(one) for one in array]
    for number, line in enumerate(lines, 1):
        item = _ITEM.match(line)
        if (yaml and not item) or not line.strip():
            continue
        place = f"{path.name}:{number}"
        one = _parsed(place, item[1] if yaml and item else line)
        if not isinstance(one, dict):
            raise MinibertError(f"{place} is {line.strip():.40}; expected a JSON object.")
        yield place, one


def _parsed(place: str, text: str) -> object:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise MinibertError(f"{place} is not JSON: {error}.") from error


def _translated(place: str, line: Json) -> Json:
    """The line with the names of the fields. Raises MinibertError where two say one field."""
    said: Json = {}
    for name, one in line.items():
        own = _OWN.get(name, name)
        if own in said:
            raise MinibertError(f"{place} says {own} twice, by two of its names; leave one out.")
        said[own] = one
    return said


def _of_trace(place: str, line: Json) -> Json:
    """A workload of FlashInfer-Bench (its schema: docs.flashinfer.ai, "trace")."""
    known = _DEFINITION.match(str(line["definition"]))
    axes = (line.get("workload") or {}).get("axes")
    if known is None or not isinstance(axes, dict):
        raise MinibertError(
            f"{place}: {line['definition']!r:.80} is not read; expected a workload of a gqa_paged "
            "or gqa_ragged definition."
        )
    kind, stage, heads, key_heads, d_head, page = known.groups()
    try:
        batch = axes["batch_size"] if stage == "decode" else axes["len_indptr"] - 1
        keys = axes["total_kv"] if kind == "ragged" else axes["num_kv_indices"] * int(page or 1)
        queries = batch if stage == "decode" else axes["total_q"]
        tokens = math.ceil(keys / batch)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise MinibertError(f"{place}: its axes {axes} do not say batch and keys.") from error
    return {
        "batch": batch,
        "heads": int(heads),
        "key_heads": int(key_heads),
        "d_head": int(d_head),
        "tokens": tokens,
        "queries": math.ceil(queries / batch),
        "dtype": "bfloat16",
        # One query at the end sees all keys.
        "causal": stage != "decode",
    }


def _workload(place: str, said: Json) -> Workload:
    for name, one in said.items():
        if name not in FIELDS:
            raise MinibertError(
                f"{place}: {name!r:.40} is not a field{did_you_mean(name, [*FIELDS, *_OWN])}; "
                f"expected some of {', '.join(FIELDS)}."
            )
        _check(place, name, one)
    if missing := [name for name in _NEEDED if name not in said]:
        raise MinibertError(f"{place} does not say {missing[0]}.")
    heads, key_heads = said["heads"], said.get("key_heads") or said["heads"]
    if heads % key_heads:
        raise MinibertError(f"{place}: {heads} heads cannot share {key_heads} key heads.")
    queries = said.get("queries")
    if queries is not None and queries > said["tokens"] and said["causal"]:
        raise MinibertError(
            f"{place}: {queries} queries and {said['tokens']} keys in causal order; expected at "
            "least as many keys."
        )
    alone = {"queries": None} if queries == said["tokens"] else {}
    # What is null is not said.
    told = {name: one for name, one in (said | alone).items() if one is not None}
    return Workload(**told, name=place)


def _check(place: str, name: str, one: object) -> None:
    """Raise MinibertError where a field has a value of another kind."""
    if one is None and name not in _NEEDED:
        return
    if name in _COUNTS:
        least = 0 if name == "prefix" else 1
        expected, good = f"a whole number of at least {least}", type(one) is int and one >= least
    elif name in _NUMBERS:
        expected = "a number above 0"
        good = isinstance(one, int | float) and type(one) is not bool and 0 < one < math.inf
    elif name in _SWITCHES:
        expected, good = "true or false", type(one) is bool
    elif name in _CHOICES:
        expected, good = " or ".join(_CHOICES[name]), one in _CHOICES[name]
    else:
        expected = "[before, after], each a number of keys or null"
        pair = one if isinstance(one, list) and len(one) == 2 else [-1]
        good = all(n is None or (type(n) is int and n >= 0) for n in pair)
    if not good:
        raise MinibertError(f"{place}: {name} is {one!r:.40}; expected {expected}.")
