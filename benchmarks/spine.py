"""Is the one spine as fast as it must be: minibert's rows beside transformers, with their targets.

    python -m benchmarks.spine [--quick] [--rows REGEX] [--threads 2] [--rounds 9] [--output FILE]

The gate, the clock and the shapes are those of benchmarks.models. Of its rows this runs those that
have a target, and the strongest peer that people write by hand. minibert is loaded by
`minibert.load` from a folder, with no option: what a user gets. The rows go to
`benchmarks/results/spine-<processor>-<date>.jsonl`; the exit status is 0 when every target is met.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import groupby

from benchmarks.cases import Shape
from benchmarks.contenders import BY_HAND, CONTENDERS, REFERENCE
from benchmarks.models import QUICK, SHAPES, measure, show
from benchmarks.session import Kept, parse, session
from minibert.bench.result_rows import Row

PLAIN, LAZY, KEPT, ONE_HEAD = (
    f"minibert {name}" for name in ("plain", "full trace", "trace keep=scores,probs", "one head")
)
LLAMA, LLAMA_QUICK = Shape("llama-1b-4", 1, 512), Shape("llama-quick", 1, 41)
TINY, LONG = Shape("bert-tiny", 1, 16), Shape("gpt2", 1, 1024)
#: Who, at which shapes, and the largest ratio to transformers' plain forward pass.
TARGETS: tuple[tuple[str, Callable[[Shape], bool], float], ...] = (
    (PLAIN, lambda shape: shape not in (TINY, LLAMA), 0.99),
    (PLAIN, lambda shape: shape == LLAMA, 1.00),
    (PLAIN, lambda shape: shape == TINY, 0.80),
    (LAZY, lambda shape: True, 1.00),
    (KEPT, lambda shape: shape == LONG, 1.10),
    (KEPT, lambda shape: shape == TINY, 0.80),
    (ONE_HEAD, lambda shape: shape != LLAMA, 0.36),
)
NAMES = (REFERENCE, BY_HAND, PLAIN, LAZY, KEPT, ONE_HEAD)
ENTERED = [one for one in CONTENDERS if one.name in NAMES]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when everyone was right and every target is met."""
    description = "minibert's speed beside transformers, with its targets."
    chosen = parse(arguments, description, rounds=9, quick_rounds=2)
    kept = Kept("spine", chosen)
    with session(chosen.threads) as known:
        measured = (*QUICK, LLAMA_QUICK) if chosen.quick else (*SHAPES, LLAMA)
        for model, shapes in groupby(measured, lambda shape: shape.model):
            for row in measure(model, list(shapes), ENTERED, chosen.rounds, chosen.rows):
                kept.rows.append({**row, **target(row), **known})
                show(kept.rows[-1])
                print(said(kept.rows[-1]), end="", flush=True)
            kept.save()
    rows = kept.finish()
    return 0 if all(row["ok"] and row.get("met", True) for row in rows) else 1


def target(row: Row) -> Row:
    """The target of a row and whether it is met; nothing where it has none."""
    shape = Shape(row["model"], row["batch"], row["position"])
    if shape not in (*SHAPES, LLAMA):
        return {}
    for name, applies, most in TARGETS:
        if name == row["implementation"] and applies(shape) and row["ok"]:
            return {"target": most, "met": row["ratio"] <= most}
    return {}


def said(row: Row) -> str:
    """A line below a row that has a target."""
    if "target" not in row:
        return ""
    return f"  at most {row['target']:.2f}: {'met' if row['met'] else 'NOT MET'}\n"


if __name__ == "__main__":
    sys.exit(main())
