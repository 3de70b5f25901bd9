"""The options by which commands read a corpus, and the documents that they name."""

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from minibert.survey.documents import Documents

__all__ = [
    "BatchTokens",
    "Corpus",
    "CorpusOptions",
    "Encoding",
    "Field",
    "InPairs",
    "Kind",
    "KindOfFiles",
    "Limit",
    "OnError",
    "PairField",
    "Restart",
    "Shortest",
    "Unit",
    "WhenWrong",
]


class Kind(StrEnum):
    """Kinds of files with texts."""

    text = "text"
    jsonl = "jsonl"
    parquet = "parquet"
    conllu = "conllu"


class OnError(StrEnum):
    """What becomes of documents that cannot be read."""

    stop = "raise"
    skip = "skip"


Corpus = Annotated[
    list[Path],
    typer.Argument(
        metavar="CORPUS...",
        help="Files or folders: plain text, JSON lines, Parquet or CoNLL-U, also as .gz.",
        show_default=False,
    ),
]
KindOfFiles = Annotated[
    Kind | None,
    typer.Option("--kind", help="What the files are, where their names do not say it."),
]
Unit = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A document: paragraph, line or file of plain text; sentence or document of CoNLL-U.",
    ),
]
Field = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The field or column with the text. Default: text."),
]
PairField = Annotated[
    str | None, typer.Option(metavar="NAME", help="The field or column with a second text.")
]
Encoding = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of plain text and JSON lines. Default: utf-8."),
]
Shortest = Annotated[
    int, typer.Option(metavar="N", min=1, help="Leave out texts with fewer characters.")
]
WhenWrong = Annotated[
    OnError,
    typer.Option("--on-error", help="Stop at what cannot be read, or skip and count it."),
]
InPairs = Annotated[
    bool, typer.Option("--pairs", help="Take each two documents as one with two texts.")
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Read no more than so many documents.")
]
BatchTokens = Annotated[
    int, typer.Option(metavar="N", min=1, help="Tokens that are computed together.")
]
Restart = Annotated[
    bool, typer.Option("--restart", help="Begin anew instead of going on with what is there.")
]


@dataclass(frozen=True)
class CorpusOptions:
    """What a command was told of its corpus."""

    paths: list[Path]
    kind: Kind | None = None
    unit: str | None = None
    field: str | None = None
    pair_field: str | None = None
    encoding: str | None = None
    on_error: OnError = OnError.stop
    shortest: int = 1

    @property
    def given(self) -> tuple[str, ...]:
        """The options that are not left at their defaults, as they are typed."""
        return tuple(
            f"--{one.name.replace('_', '-')}"
            for one in fields(self)
            if one.name != "paths" and getattr(self, one.name) != one.default
        )

    def documents(self) -> "Documents":
        """The documents, from the first. Raises SurveyError for what cannot be read."""
        from minibert.survey.documents import read_documents

        return read_documents(
            self.paths,
            kind=self.kind and self.kind.value,
            unit=self.unit,
            field=self.field,
            pair_field=self.pair_field,
            encoding="utf-8" if self.encoding is None else self.encoding,
            on_error=self.on_error.value,
            shortest=self.shortest,
        )
