"""How the embedded models do on kinds of text, most of which they were not made for."""

import csv
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.embedded_bert import masked_accuracy, pair_windows
from benchmarks.embedded_causal import token_losses
from benchmarks.evidence import Measurements, finding, known_tokenizer
from minibert.bench.gate import GateError
from minibert.bench.result_rows import Row
from minibert.model import Model
from minibert.training.texts import Corpus, Document, clean, read_texts

__all__ = ["kind_measurements", "kinds_of_text"]

# Of each kind the first characters, so that kinds weigh alike: some 70,000 tokens.
CHARACTERS = 300_000
MASKINGS = 4
NOVELS = ("11_alices_adventures_in_wonderland.txt", "271_black_beauty.txt")


def kinds_of_text(data: Path) -> dict[str, tuple[Document, ...]]:
    """The texts of each kind, from the folder that MINIBERT_TEST_DATA names.

    Raises GateError for a file that is not there.
    """
    text = data / "text"
    novels = [text / "litbank" / "original" / name for name in NOVELS]
    files = {
        "Wikipedia (GAP)": (text / "gap" / "gap-development.tsv", _gap),
        "Wikipedia (wikitext-2)": (text / "wikitext-2" / "wiki.test.tokens", _wikitext),
        "web (EWT)": (text / "ud-english-ewt" / "en_ewt-ud-dev.conllu", _ewt),
        "plays (Shakespeare)": (text / "tinyshakespeare" / "input.txt", str),
    }
    for path in (*novels, *(path for path, _ in files.values())):
        if not path.is_file():
            raise GateError(f"{path.name} is not in the folder of test data")
    share = CHARACTERS // len(NOVELS)
    cut = tuple(Document(one.name, one.text[:share]) for one in read_texts(novels))
    return {"novels": cut} | {kind: (_read(*files[kind]),) for kind in files}


def kind_measurements(model: Model, kinds: dict[str, tuple[Document, ...]]) -> Measurements:
    """Masked tokens right, or the loss of a causal model, by kind of text."""
    what, measure = _LOSS if model.config.causal else _MASKED
    return {f"{what}, {kind}": partial(measure, model, kinds[kind]) for kind in kinds}


def _read(path: Path, plain: Callable[[str], str]) -> Document:
    return Document(path.name, clean(plain(path.read_text(encoding="utf-8")))[:CHARACTERS])


def _gap(text: str) -> str:
    """The snippets, one a paragraph."""
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return "\n\n".join(row["Text"] for row in rows)


def _wikitext(text: str) -> str:
    """The sentences in which no word was replaced, with the usual spaces around punctuation."""
    lines = (line.strip() for line in text.splitlines())
    paragraphs = (line.split(" . ") for line in lines if line and not line.startswith("="))
    whole = (" . ".join(s for s in p if "<unk>" not in s) for p in paragraphs)
    joined = re.sub(r" @(.)@ ", r"\1", "\n\n".join(whole))
    return re.sub(r"([(\[]) ", r"\1", re.sub(r" ([,.;:!?)\]'])", r"\1", joined))


def _ewt(text: str) -> str:
    """The sentences as they were written, a document a paragraph."""

    def parts() -> Iterator[str]:
        for line in text.splitlines():
            if line.startswith("# newdoc"):
                yield "\n\n"
            elif line.startswith("# text = "):
                yield line.removeprefix("# text = ") + " "

    return "".join(parts())


def masked_of_kind(model: Model, documents: tuple[Document, ...]) -> Row:
    """How often the most probable token at a mask is right, as on held-out text."""
    tokenizer = known_tokenizer(model)
    corpus = Corpus.of(documents, tokenizer)
    windows = pair_windows(corpus, tokenizer, model.config.n_positions)
    row = masked_accuracy(model, windows, corpus.ids, MASKINGS)
    kept = ("value", "count", "error_95", "masked_share")
    return {"ok": True} | {name: row[name] for name in kept} | {"always": row["unigram_held_out"]}


def loss_of_kind(model: Model, documents: tuple[Document, ...]) -> Row:
    """The loss of every token with at least half a window before it, in nats a token."""
    tokenizer, length = known_tokenizer(model), model.config.n_positions
    losses, tokens, characters = [], 0, 0
    for document in documents:
        ids = torch.tensor(tokenizer.encode(document.text))
        windows = ids.unfold(0, length, length // 2)
        losses.append(token_losses(model, windows)[:, length // 2 - 1 :].flatten().double())
        tokens, characters = tokens + len(ids), characters + len(document.text)
    value = torch.cat(losses)
    return finding(
        float(value.mean()),
        unit="nats per token",
        bits_per_character=round(float(value.mean()) / math.log(2) * tokens / characters, 4),
        error_95=round(1.96 * float(value.std()) / math.sqrt(len(value)), 4),
        count=len(value),
    )


_MASKED = ("masked tokens right", masked_of_kind)
_LOSS = ("loss", loss_of_kind)
