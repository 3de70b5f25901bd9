"""Class "text": what people type and pipe, given to models and to the command line.

Oracle: transformers' tokenizers for the ids of a text; for the command line its promises: no
traceback, an exit status of 0, 1 or 2, and at most 2 kB of printable error.
"""

import os
import resource
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from typer.testing import CliRunner

import minibert
from minibert.cli.main import app
from minibert.training.texts import read_texts
from tests.siege import material
from tests.siege.judge import DiffersError, tolerate

PIECES = [
    "the", "quick", " ", "  ", "\n", "\t", "[MASK]", "[SEP]", "<|endoftext|>", "\u00bd", "\u6211",
    "\u202e", "\x1b[31m", "\x00", "\ud800", "\U0001f642", "e\u0301", "\u0645\u0631", "a" * 300, ".",
    "weren't", "\ufeff", "\u2028", "\ufffd", "\U000e0001", "1314", "-", "--help", "\r", "\x7f",
]  # fmt: skip
NUMBERS = [
    "0",
    "1",
    "-1",
    "2",
    "7",
    "99999999999999999999",
    "-0",
    "1e3",
    "nan",
    "",
    "x",
    "0x1",
    "\u0661",
]
WORDS = [
    "none", "masked-lm", "causal-lm", "float16", "bfloat16", "float64", "eager", "sdpa", "triton",
    "x" * 5000, "\x1b[31m", "", "-", "..", "/dev/zero", "auto", "chunked", "reference",
]  # fmt: skip
OPTIONS = {
    "predict": {"--top": NUMBERS, "--task": WORDS, "--dtype": WORDS, "--impl": WORDS},
    "explain": {"--layer": NUMBERS, "--head": NUMBERS, "--query": PIECES, "--key": PIECES,
                "--top": NUMBERS, "--dtype": WORDS},
    "generate": {"--max-new-tokens": ["1", "3", "-1", "x"], "--temperature": NUMBERS,
                 "--top-k": NUMBERS, "--top-p": NUMBERS, "--seed": NUMBERS, "--stop": PIECES},
    "view": {"--layer": NUMBERS, "--head": NUMBERS, "--view": [*WORDS, "map", "neuron"]},
    "models": {"--backends": None, "--x": WORDS},
}  # fmt: skip
ALWAYS = {"explain": {"--layer": "1", "--head": "0", "--query": "1"}}


def build(folder: Path, random: Random) -> str:
    """The texts and the command of a case, each in a file."""
    folder.mkdir()
    texts = ["".join(random.choices(PIECES, k=random.randrange(7))) for _ in range(2)]
    raw = bytes(random.randbytes(random.randrange(40))) + texts[1].encode("utf-8", "surrogatepass")
    (folder / "raw").write_bytes(raw)
    (folder / "first").write_text(texts[0], "utf-8", "surrogatepass", newline="")
    (folder / "seed").write_text(str(random.randrange(2**30)))
    return ascii(texts)[:200]


def use(folder: Path) -> None:
    """Give them to a model, to the reader of training texts, and to a command."""
    random = Random(int((folder / "seed").read_text()))
    text = (folder / "first").read_bytes().decode("utf-8", "surrogatepass")
    name = random.choice(("bert", "gpt2"))
    model = material.models[name]
    for call in (
        lambda: _same_ids(model, name, text),
        lambda: model.predict(text),
        lambda: model.trace(text, text + " e")[0].probs,
        lambda: model.generate(text, max_new_tokens=2),
        lambda: read_texts([folder / "raw"]),
    ):
        try:
            call()
        except minibert.MinibertError as error:
            tolerate(error)
    if random.random() < 0.5:
        _command(folder, name, text, random)


def _same_ids(model: minibert.Model, name: str, text: str) -> None:
    ids = model.tokenize(text).ids[0].tolist()
    expected = _theirs(name)(text)["input_ids"]
    if ids != expected:
        raise DiffersError(f"{text!a}: other ids than transformers gives")


@cache
def _theirs(name: str) -> Any:
    import transformers

    folder = material.models[name].name
    kinds = {"bert": transformers.BertTokenizer, "gpt2": transformers.GPT2Tokenizer}
    return kinds[name].from_pretrained(folder)


def _command(folder: Path, name: str, text: str, random: Random) -> None:
    command = random.choice(sorted(OPTIONS))
    given = dict(ALWAYS.get(command, {}))
    for option in random.sample(sorted(OPTIONS[command]), random.randrange(3)):
        values = OPTIONS[command][option]
        given[option] = "" if values is None else random.choice(values)
    arguments = [part for pair in given.items() for part in pair if part]
    texts = [random.choice((text, "-", "the fox"))] if command != "models" else []
    if command != "models":
        arguments += ["-m", material.models[name].name]
    if command == "view":
        arguments += ["-o", str(folder / random.choice(("page.html", "no/page.html", "")))]
    os.chdir(folder)
    result = CliRunner().invoke(app, [command, *texts, *arguments], (folder / "raw").read_bytes())
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    where = ascii([command, *texts, *arguments])[:300]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code not in (0, 1, 2):
        raise DiffersError(f"{where}: exit status {result.exit_code}")
    error = result.stderr
    if len(error.encode("utf-8", "surrogatepass")) > 2600 or not all(
        c.isprintable() or c == "\n" for c in error
    ):
        raise DiffersError(f"{where}: {error[:200]!a} of {len(error)} characters")
    if (result.exit_code != 0) != bool(error) and "warning" not in error and "note" not in error:
        raise DiffersError(f"{where}: status {result.exit_code} and {error[:200]!a}")
