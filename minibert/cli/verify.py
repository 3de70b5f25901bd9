"""`minibert verify`: a checkpoint beside transformers. torch is imported when it runs."""

import sys
from pathlib import Path
from typing import Literal

import typer

from minibert.cli.options import check_file, json_text, spread
from minibert.terminal import Terminal, note, say, visible
from minibert.untrusted import Json
from minibert.writing import replacing

_SAID_FROM = 2**30


@spread()
def verify(
    folder: Path,
    output: Path | None = None,
    longest: int = 64,
    seed: int = 0,
    weights: Literal["int8"] | None = None,
    as_json: bool = False,
) -> None:
    """Compare the numbers of a checkpoint with those of transformers in float64.

    It compares embeddings, attention and stream of every layer, and logits, for texts of random
    token ids, padded and packed, and also in float32. It needs the extra `verify`, and exits with 1
    if a quantity is wrong.

    Options:
        folder [argument, FOLDER]: The folder of the checkpoint.
        output [-o, FILE]: Write the certificate there, as JSON.
        longest [N, >=1]: Tokens of the longest text.
        seed [N, >=0, <=999999999]: Decides the token ids.
        weights: Report the errors of int8 weights as well.
    """
    if output is not None:
        check_file(output)
    from minibert import verification

    needed = verification.memory(folder, longest)
    if needed > _SAID_FROM:
        note("note", f"this takes about {needed / 2**30:.0f} GiB of memory: weights in float64.")
    certificate = verification.verify(folder, longest=longest, seed=seed, weights=weights)
    written = json_text(certificate)
    if output is not None:
        with replacing(output) as unfinished:
            unfinished.write_text(f"{written}\n", encoding="utf-8")
    say(*([written] if as_json else _report(certificate, Terminal.of(sys.stdout))))
    if not certificate["right"]:
        raise typer.Exit(1)


def _report(certificate: Json, terminal: Terminal) -> list[str]:
    """The errors of each quantity, and the verdict, as lines."""
    count, longest = len(certificate["ids"]), len(certificate["ids"][-1])
    version, quantities = certificate["versions"]["transformers"], certificate["quantities"]
    title = f"{visible(certificate['model'], space=' ')} against transformers in float64"
    tried = f"{count} texts of up to {longest} tokens; transformers {version}"
    rounded = ["int8"] if quantities[0]["int8"] is not None else []
    header = ["", "largest", "padded", "packed", "float32", "theirs", "ratio", *rounded, ""]
    errors = ("padded", "packed", "float32", "float32_transformers")
    rows = [
        [
            one["name"],
            f"{one['largest']:.3g}",
            *(f"{one[name]:.1e}" for name in errors),
            f"{one['ratio']:.2f}",
            *(f"{one[name]:.1e}" for name in rounded),
            "" if one["right"] else "wrong",
        ]
        for one in quantities
    ]
    lines = [terminal.paint(title, "bold"), f"  {tried}", ""]
    lines += terminal.table(header, rows, f"<>>>>>>{'>' * len(rounded)}<")
    lines += ["", *(f"not covered: {reason}" for reason in certificate["not_covered"])]
    wrong = [one["name"] for one in quantities if not one["right"]]
    if not wrong:
        return [*lines, "right: every quantity, padded and packed, in float64 and in float32"]
    return [*lines, f"WRONG: {len(wrong)} of {len(quantities)} quantities, from {wrong[0]} on"]
