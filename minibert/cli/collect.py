"""`minibert collect`: values for every token of a corpus. torch is imported when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from minibert.cli.options import Loading, Reading, spread
from minibert.terminal import note, say

if TYPE_CHECKING:
    from minibert.survey.collecting import Collected
    from minibert.survey.documents import Documents


@spread()
def collect(
    corpus: list[Path],
    points: list[str],
    output: Path,
    *,
    reading: Reading,
    store: Literal["float32", "float16", "float64"] = "float32",
    special: bool = True,
    batch_tokens: int = 2048,
    restart: bool = False,
    loading: Loading,
) -> None:
    """Write the values of chosen points for every token of a corpus.

    Probes and sparse autoencoders are trained on such values. Each point becomes a NumPy array in
    FOLDER; beside them are the tokens, words and texts. To resume an interrupted run, give the
    same command again.

    Options:
        points [--point, -p, NAME:LAYER[:HEAD]]: What to collect: resid_post:3, z:3:5, embed.
            Repeatable.
        output [-o, FOLDER]: Where the arrays go.
        store [--store]: The number type of the arrays.
        special [--special/--no-special]: Rows for [CLS], [SEP] and their like.
    """
    documents, model = reading.documents(corpus), loading.load()
    from minibert.survey.collecting import collect as collect_values

    collected = collect_values(
        model,
        documents,
        [_point(point) for point in points],
        output=output,
        dtype=store,
        special=special,
        batch_tokens=batch_tokens,
        on_error=reading.on_error,
        resume=not restart,
        progress=True,
    )
    _report(collected, documents)


def _report(collected: "Collected", documents: "Documents") -> None:
    """Say what is there now, and what was left out."""
    counts, folder = collected.manifest["counts"], collected.folder
    say(f"{folder}: {counts['texts']} texts, {counts['tokens']} tokens")
    for point in collected.points:
        say(f"  {point}.npy  {tuple(collected.array(point).shape)}")
    left_out = {
        "shorter than --shortest": documents.n_short,
        "could not be read": documents.n_skipped,
        "have no tokens": counts["n_skipped"],
    }
    for reason, number in left_out.items():
        if number:
            note("note", f"{number} documents {reason}; {folder / 'manifest.json'} has more")


def _point(text: str) -> tuple[str | int, ...]:
    name, *numbers = text.split(":")
    return (name, *(int(n) if n.lstrip("-").isdecimal() else n for n in numbers))
