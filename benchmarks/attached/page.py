"""docs/attached_models.md, from the rows of the sweep."""

from collections.abc import Sequence

from benchmarks.attached.checks import CHECK
from minibert.bench.result_rows import Row

__all__ = ["page_of"]

HEAD = """# Models that `minibert.attach` reads

Written by `python -m benchmarks.attach_sweep` with transformers {version}: {passed} of {total}
model types that were tried pass. Each was built small with random weights. A type passes when
every layer's probs are the model's own eager weights within 1e-5, writing query, key, value,
scores, probs and z back changes nothing, both under eager and, where the type has it, under sdpa,
and one head's z set to 0 is what a hook on the output projection gives. Types that are in none of
the lists were not tried.
"""
OLD = """
{old} of these rows are from an earlier check, which took a NaN for equal; the command makes all
rows again.
"""


def page_of(rows: Sequence[Row]) -> str:
    """The page."""
    passed = [row for row in rows if row["result"] == "pass"]
    version = rows[0]["transformers"] if rows else "?"
    parts = [
        HEAD.format(version=version, passed=len(passed), total=len(rows))
        + (OLD.format(old=old) if (old := sum(row.get("check") != CHECK for row in rows)) else ""),
        "## Types that pass\n",
    ]
    parts.append("| type | class | stacks | heads (key-value heads) | sdpa | one head |")
    parts.append("|---|---|---|---|---|---|")
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
    return f"| {row['type']} | {row['class']} | {stacks} | {heads} | {sdpa} | {head} |"
