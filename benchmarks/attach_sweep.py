"""Does `minibert.attach` hold for every model type of the installed transformers?

    python -m benchmarks.attach_sweep [--attention] [--types REGEX [--update]] [--jobs 2]

Each type is built small with random weights, in a process of its own, and checked under eager and
sdpa, and its blocks in float64 (benchmarks/attached/checks.py). The rows go to
benchmarks/attached/sweep.jsonl and the list to docs/attached_models.md; with --types only to the
screen, or with --update in place of the older rows of these types. The exit status is 0 when at
least 280 types pass. It takes some 40 minutes of one core, a second or two a type.

With --attention those that passed are run under attn_implementation="minibert"
(benchmarks/attached/attention_checks.py), and the rows go to benchmarks/attached/attention.jsonl
and docs/attention_models.md.
"""

import argparse
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.attached.checks import CHECK
from benchmarks.session import QUIET, REPOSITORY
from minibert.bench.result_rows import Row, write_rows

SWEEP = Path(__file__).parent / "attached" / "sweep.jsonl"
PAGE = REPOSITORY / "docs" / "attached_models.md"
ATTENTION = SWEEP.with_name("attention.jsonl"), PAGE.with_name("attention_models.md")
WANTED, SECONDS, MOST_PARAMETERS, MOST_BYTES = 280, 60, 40_000_000, 6 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when enough types pass."""
    parser = argparse.ArgumentParser(description="attach, over all model types of transformers.")
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--types", type=re.compile)
    parser.add_argument("--update", action="store_true", help="of --types: write these rows")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args(arguments)
    os.environ.update(QUIET)
    import torch
    import transformers

    # What every model and check imports, once and not in each process.
    import transformers.models.bart.modeling_bart
    import transformers.models.clip.modeling_clip
    import transformers.models.llama.modeling_llama
    import transformers.models.whisper.modeling_whisper
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    import benchmarks.attached.attention_checks  # noqa: F401
    import minibert.attached.measuring  # noqa: F401

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    about: Row = {"transformers": transformers.__version__}
    names = sorted(CONFIG_MAPPING_NAMES)
    if chosen.attention:
        attached = [json.loads(line) for line in SWEEP.read_text(encoding="utf-8").splitlines()]
        names = [row["type"] for row in attached if row["result"] == "pass"]
    else:
        about["check"] = CHECK
    wanted = [name for name in names if chosen.types is None or chosen.types.search(name)]
    run = partial(apart, attention=chosen.attention)
    rows: list[Row] = []
    # Threads that wait for the processes.
    with ThreadPoolExecutor(chosen.jobs) as pool:
        waiting = {pool.submit(run, name): name for name in wanted}
        for one in as_completed(waiting):
            rows.append({"type": waiting[one], **about, **one.result()})
            print(json.dumps(rows[-1]), flush=True)
    rows.sort(key=lambda row: row["type"])
    if chosen.types is None or chosen.update:
        table, page = ATTENTION if chosen.attention else (SWEEP, PAGE)
        if chosen.update:
            before = [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]
            merged = {row["type"]: row for row in (*before, *rows)}
            rows = sorted(merged.values(), key=lambda row: row["type"])
        write_rows(rows, table)
        text = attention_page(rows, len(names)) if chosen.attention else page_of(rows)
        page.write_text(text, encoding="utf-8")
    passed = sum(row["result"] == "pass" for row in rows)
    print(f"{passed} of {len(rows)} types pass", file=sys.stderr)
    return 0 if passed >= WANTED or chosen.types else 1


def apart(name: str, *, attention: bool) -> Row:
    """The row of a type, made in a process that may hang or die."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        # Of the processor's time: others may use the machine too.
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        signal.alarm(40 * SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        # Never back into the pool, whose work it would go on with if nobody reads the pipe.
        try:
            with os.fdopen(write, "w") as pipe:
                try:
                    json.dump(row_of(name, attention=attention), pipe)
                except BaseException as error:
                    json.dump({"result": "fail", "note": f"{error!r:.300}"}, pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if not told:
        return {"result": "fail", "note": f"ended by signal {status & 127} after {SECONDS} s"}
    found: Row = json.loads(told)
    return found


def row_of(name: str, *, attention: bool) -> Row:
    """The row of a type: of the first small model of it whose attention was heard."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from benchmarks.attached import attention_checks, checks
    from benchmarks.attached.small_models import candidates, inputs_for, small_configs
    from minibert.errors import TraceError

    kind: Any = CONFIG_MAPPING[name]
    checked = attention_checks.checked if attention else checks.checked
    state = {"result": "not built", "note": ""}
    try:
        classes = list(candidates(kind))
        if attention:
            # Those that generate first.
            classes.sort(key=lambda one: not getattr(one, "can_generate", bool)())
        classes = classes[:5]
    except Exception as error:
        return {"result": "not built", "note": f"{error!r:.200}"}
    for one, config in ((one, config) for one in classes for config in small_configs(kind)):
        if state.get("class") == one.__name__:
            # Another config of a class without the interface has none either.
            continue
        if attention:
            # Weights of usual size leave rows of small models all but even.
            for part in (config, *(getattr(config, sub) for sub in kind.sub_configs)):
                if hasattr(part, "initializer_range"):
                    part.initializer_range = 0.2
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in one(config).parameters())
            if size > MOST_PARAMETERS:
                state["note"] = f"{size} parameters"
                continue
            torch.manual_seed(5)
            model = one(config).float().eval()
        except Exception as error:
            state["note"] = state["note"] or f"{one.__name__}: {error!r:.150}"
            continue
        for inputs in inputs_for(model):
            try:
                with torch.no_grad():
                    model(**inputs)
            except Exception as error:
                if state["result"] == "not built":
                    state = {"result": "not run", "note": f"{one.__name__}: {error!r:.150}"}
                continue
            try:
                found = checked(model, inputs)
                return {"class": one.__name__, "inputs": sorted(inputs), **found}
            except TraceError as error:
                note = str(error)[:300]
                state = {"result": "no interface", "class": one.__name__, "note": note}
    return state


HEAD = """# Models that `minibert.attach` reads

Written by `python -m benchmarks.attach_sweep` with transformers {version}: {passed} of {total}
model types that were tried pass. Each was built small with random weights. A type passes when
every layer's probs are the model's own eager weights within 1e-5, writing query, key, value,
scores, probs and z back changes nothing, both under eager and, where the type has it, under sdpa,
and one head's z set to 0 is what a hook on the output projection gives. Types that are in none of
the lists were not tried.

Block: which quantities of the block around each attention are read, in float64: "all" are
resid_pre, attn_out, resid_mid, mlp_pre, mlp_post, mlp_out and resid_post. Of {blocks} types that
pass and whose blocks were looked at {whole} have all of it in some stack, and {streams} have
resid_pre, attn_out, mlp_out and resid_post. Largest errors, of the largest number: {sums:.1e} of
resid_pre + attn_out + mlp_out = resid_post, where that is the sum; {states:.1e} of resid_post
against the model's own hidden states; {written:.1e} of the output after all of it is written back.
"""


def page_of(rows: Sequence[Row]) -> str:
    """The page."""
    passed = [row for row in rows if row["result"] == "pass"]
    version = rows[0]["transformers"] if rows else "?"
    head = HEAD.format(
        version=version, passed=len(passed), total=len(rows), **_about_blocks(passed)
    )
    parts = [head, "## Types that pass\n"]
    parts.append("| type | class | stacks | heads (key-value heads) | sdpa | one head | block |")
    parts.append("|---|---|---|---|---|---|---|")
    parts += [_line(row) for row in passed]
    parts.append(
        '\nOne head is "gated" where the module gates or normalises z before its output projection:'
        "\nthere z can be read and edited, and what a head writes (head_out) is not its alone.\n"
    )
    for result, title in TITLES.items():
        found = [row for row in rows if row["result"] == result]
        if found:
            names = ", ".join(row["type"] for row in found)
            parts.append(f"## {title} ({len(found)})\n\n{names}\n")
    return "\n".join(parts).rstrip() + "\n"


def attention_page(rows: Sequence[Row], n_attached: int) -> str:
    """The page of the types under attn_implementation="minibert"."""
    from benchmarks.attached.attention_checks import OWN

    passed = [row for row in rows if row["result"] == "pass"]
    counts = {"version": rows[0]["transformers"], "passed": len(passed), "total": len(rows)}
    parts = [ATTENTION_HEAD.format(**counts, attached=n_attached), "## Generations by cache\n"]
    parts.append("| cache | same tokens | a tie first | not taken by transformers |")
    parts.append("|---|---|---|---|")
    by_cache: dict[str, list[str]] = {}
    for row in passed:
        for name, told in row.get("caches", {}).items():
            by_cache.setdefault(name, []).append(told)
    for name, all_told in by_cache.items():
        numbers = [all_told.count("equal"), all_told.count("tie")]
        numbers.append(sum(told.startswith(OWN) for told in all_told))
        parts.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    slides = sum(row.get("slides", False) for row in passed)
    parts.append(f"\nIn {slides} of these types layers of the cache slide. {TIES}")
    parts += ["## Types that pass\n", "| type | class | beside | logits | statistics | caches |"]
    parts.append("|---|---|---|---|---|---|")
    for row in passed:
        taken = [name for name, told in row.get("caches", {}).items() if not told.startswith(OWN)]
        counted = row["statistics"]
        told = "its eager is another" if counted is False else f"{counted:.1e}"
        numbers = f"{row['logits']:.1e} | {told}"
        caches = ", ".join(taken) or "does not generate from text"
        parts.append(f"| {row['type']} | {row['class']} | {row['own']} | {numbers} | {caches} |")
    others = [row for row in rows if row["result"] != "pass"]
    parts += ["\n## Types that do not pass\n"] if others else []
    for row in others:
        numbers = {name: row.get(name) for name in ("logits", "statistics", "caches")}
        parts.append(f"- {row['type']}: {row['result']}: {row.get('note') or numbers}")
    return "\n".join(parts).rstrip() + "\n"


ATTENTION_HEAD = """# Models under attn_implementation="minibert"

Written by `python -m benchmarks.attach_sweep --attention` with transformers {version}. Of the
{attached} types that [`minibert.attach` reads](attached_models.md) {total} were tried, and {passed}
pass. Each was built small with random weights. A type passes when its outputs are those of its own
attention ("sdpa", or "eager" where it has no other) within 1e-5 of the largest number, or no
further than twice as far from float64; when the statistics of `minibert.measuring` are those of its
eager matrices within 1e-5; and when it writes the same 64 tokens with each cache that its own
attention takes.
"""
TIES = """Left padding is with a dynamic cache, and "measured" is the
same inside `minibert.measuring`. A tie is where rounding chose between two tokens that were equally
likely.
"""

TITLES = {
    "fail": "Types of which something does not hold",
    "no interface": "Types whose attention does not go through the interface, or that have none",
    "not run": "Types that were built and not run: they need inputs that the sweep cannot make",
    "not built": "Types that were not built small",
}


def _line(row: Row) -> str:
    stacks = ", ".join(f"{name} x {n}" for name, n in row["layers"].items())
    heads = f"{row['heads']} ({row['kv_heads']})"
    sdpa = "no" if row["sdpa"] is None else "yes"
    head = row["head"] if isinstance(row["head"], str) else "equal"
    cells = (row["type"], row["class"], stacks, heads, sdpa, head, _block(row))
    return f"| {' | '.join(cells)} |"


_STREAMS = ("resid_pre", "attn_out", "mlp_out", "resid_post")
_ALL = ("resid_mid", "mlp_pre", "mlp_post", *_STREAMS)


def _about_blocks(rows: Sequence[Row]) -> dict[str, float]:
    """The counts and errors in the head of the page."""
    looked = [row["block"].values() for row in rows if "block" in row]
    names = [[set(one.get("names", ())) for one in row] for row in looked]

    def largest(number: str) -> float:
        found = (one.get(number) for row in looked for one in row)
        return max((each for each in found if isinstance(each, float)), default=0.0)

    return {
        "blocks": len(looked),
        "whole": sum(any(one >= set(_ALL) for one in row) for row in names),
        "streams": sum(any(one >= set(_STREAMS) for one in row) for row in names),
        "sums": largest("sums"),
        "states": largest("states"),
        "written": largest("write_back"),
    }


def _block(row: Row) -> str:
    """What is read of the blocks of a type, a word for each stack that differs."""
    if "block" not in row:
        return "not looked at"
    told = {}
    for stack, one in row["block"].items():
        missing = [name for name in _ALL if name not in one.get("names", ())]
        told[stack] = f"without {', '.join(missing)}" if 0 < len(missing) < len(_ALL) else "all"
        told[stack] = "none" if len(missing) == len(_ALL) else told[stack]
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{stack}: {one}" for stack, one in told.items())


if __name__ == "__main__":
    sys.exit(main())
