"""How fast whole models give logits, and logits with every number inside, beside the peers.

    python -m benchmarks.models [--quick] [--rows REGEX] [--threads 2] [--rounds 9] [--output F]

All in one process, interleaved, on random weights, without a network. The reference is the
forward pass of transformers with sdpa, capturing nothing. Each contender's results are compared
with transformers first; one that is wrong, or not installed, is a row with the reason and no
speed. The rows go to `benchmarks/results/models-<processor>-<date>.jsonl`.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cases import FLOP_FORMULA, Case, Implementation, Prepared, Shape, attempt
from benchmarks.contenders import CONTENDERS, REFERENCE
from benchmarks.session import Kept, parse, session
from minibert.bench.clock import Clock
from minibert.bench.contest import gated, timed_rows
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

SHAPES = (
    Shape("bert-base", 1, 128),
    Shape("bert-base", 8, 128),
    Shape("bert-base", 1, 512),
    Shape("gpt2", 1, 1024),
    Shape("bert-tiny", 1, 16),
)
QUICK = (Shape("bert-quick", 2, 19), Shape("bert-quick", 1, 37), Shape("gpt2-quick", 1, 41))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every contender that is installed was right."""
    description = "Speed of whole models beside their peers."
    chosen = parse(arguments, description, rounds=9, quick_rounds=3)
    with session(chosen.threads) as known:
        rows = collect(chosen, known)
    wrong = [row for row in rows if not row["ok"] and row["reason"] != "not installed"]
    return 1 if wrong else 0


def collect(chosen: argparse.Namespace, known: Row) -> list[Row]:
    """All rows, shown as they come; in the file at the end, in `.partial.jsonl` until then."""
    kept = Kept("models", chosen)
    for model, shapes in groupby(SHAPES if not chosen.quick else QUICK, lambda s: s.model):
        for row in measure(model, list(shapes), CONTENDERS, chosen.rounds, chosen.rows):
            kept.rows.append({**row, **known})
            show(row)
        kept.save()
    kept.rows.append({**chosen_backends(), **known})
    return kept.finish()


def measure(
    model: str,
    shapes: Sequence[Shape],
    contenders: Sequence[Implementation],
    rounds: int,
    wanted: re.Pattern[str] | None = None,
) -> Iterator[Row]:
    """The rows of one model: everyone is built and passes the gate at every shape, then speed."""
    plan = {shape: select(shape, contenders, wanted) for shape in shapes}
    plan = {shape: entered for shape, entered in plan.items() if entered}
    entrants = [one for one in contenders if any(one in entered for entered in plan.values())]
    if not entrants:
        return
    with tempfile.TemporaryDirectory() as folder:
        case = Case(model, Path(folder))
        built = {one.name: attempt(one.prepare, case) for one in entrants}
        inputs = {shape: ids(case, shape) for shape in plan}
        gates = {shape: judged(case, inputs[shape], plan[shape], built) for shape in plan}
        for shape in plan:
            yield from clocked(case, shape, inputs[shape], plan[shape], built, gates[shape], rounds)


def select(
    shape: Shape, contenders: Sequence[Implementation], wanted: re.Pattern[str] | None
) -> list[Implementation]:
    """Who runs at a shape; with anyone, the reference."""
    entered = [one for one in contenders if one.applies(shape)]
    if wanted is None:
        return entered
    asked = [one for one in entered if wanted.search(f"{shape} {one.name}")]
    return [one for one in entered if one in asked or one.name == REFERENCE] if asked else []


def ids(case: Case, shape: Shape) -> Tensor:
    """Random token ids; low ones are special (padding) and left out."""
    generator = torch.Generator().manual_seed(0)
    size = (shape.batch, shape.position)
    return torch.randint(5, case.config.vocab_size, size, generator=generator)


def judged(
    case: Case,
    given: Tensor,
    entered: Sequence[Implementation],
    built: Mapping[str, Prepared | Row],
) -> dict[str, Row]:
    """What the gate says of each implementation at one shape."""
    reference = attempt(case.reference, given)
    if isinstance(reference, dict) and "reason" in reference:
        why = f"the reference failed: {reference['reason']}"
        return {one.name: {"ok": False, "reason": why} for one in entered}
    verdicts: dict[str, Row] = {}
    for one in entered:
        prepared = built[one.name]
        own = verdicts.get(one.yardstick or "", {}).get("errors", {})
        truth = one.truth(reference, {kind: 2 * error for kind, error in own.items()})
        verdicts[one.name] = (
            gated(prepared.on(given), truth.check) if isinstance(prepared, Prepared) else prepared
        )
    return verdicts


def clocked(
    case: Case,
    shape: Shape,
    given: Tensor,
    entered: Sequence[Implementation],
    built: Mapping[str, Prepared | Row],
    verdicts: Mapping[str, Row],
    rounds: int,
) -> Iterator[Row]:
    """The rows of one shape."""
    contenders = {
        name: one.on(given)
        for name, one in built.items()
        if name in verdicts and isinstance(one, Prepared)
    }
    rows = timed_rows(contenders, verdicts, Clock(), rounds=rounds, baseline=REFERENCE)
    for one in entered:
        yield {
            "what": "model",
            "model": shape.model,
            "batch": shape.batch,
            "position": shape.position,
            "implementation": one.name,
            "package": one.package,
            "dtype": one.dtype,
            "captures": one.captures,
            "flop": case.flop(shape),
            "flop_formula": FLOP_FORMULA,
            **rows[one.name],
        }


def chosen_backends() -> Row:
    """What the rule of minibert's linear back ends says on this machine."""
    from minibert.cli.inventory import ROWS, linear_backends
    from minibert.layers.linear_backends import processor

    choices = {
        f"{row.dtype} {row.weight}": {
            "held": row.held.name,
            "rule": row.held.rule,
            "calls": dict(zip(map(str, ROWS), row.calls, strict=True)),
        }
        for row in linear_backends()
    }
    for shape, choice in choices.items():
        print(f"linear back end, {shape}: {choice['held']}  {choice['rule']}")
    return {
        "what": "linear back ends",
        "ok": True,
        "processor": processor().name,
        "choices": choices,
    }


WIDTHS = (46, 10, 19, 7, 15, 9, 8)
HEADINGS = (
    "implementation",
    "median ms",
    "p20 - p80",
    "ratio",
    "its p20 - p80",
    "peak MiB",
    "error",
)


def show(row: Row) -> None:
    """Print a row; the reference opens the table of its shape. The error is that of the logits."""
    if row["implementation"] == REFERENCE:
        print(f"\n{row['model']} B{row['batch']} T{row['position']}")
        print(line(HEADINGS, WIDTHS))
    if not row["ok"]:
        print(f"{row['implementation']:<{WIDTHS[0]}}  {row['reason']}", flush=True)
        return
    peak = f"{row['peak_bytes'] / 2**20:.1f}" if "peak_bytes" in row else "unknown"
    cells = (
        row["implementation"],
        f"{row['median_ms']:.2f}",
        f"{row['p20_ms']:.2f} - {row['p80_ms']:.2f}",
        f"{row['ratio']:.2f}",
        f"{row['ratio_p20']:.2f} - {row['ratio_p80']:.2f}",
        peak,
        f"{row['errors'].get('logits', row['max_error']):.0e}",
    )
    print(line(cells, WIDTHS), flush=True)


if __name__ == "__main__":
    sys.exit(main())
