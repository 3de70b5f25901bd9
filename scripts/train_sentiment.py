"""Fine-tunes tiny-bert to tell a positive sentence from a negative one: tiny-bert-sentiment.

    python scripts/train_sentiment.py DATA [--output FOLDER]

DATA is a folder with two collections, both under CC BY 4.0. "Sentiment Labelled Sentences"
(Kotzias et al. 2015, UCI repository, doi:10.24432/C57604): imdb_labelled.txt, yelp_labelled.txt,
amazon_cells_labelled.txt. "Sentence Polarity Dataset" (Pang and Lee 2005; the licence is that of
NLTK's package sentence_polarity): rt-polarity.pos and rt-polarity.neg, in Latin-1. A fifth of the
sentences is held out, chosen by a hash of their words. Results go to build/training; look at their
scores before they take the place of those in minibert/embedded.
"""

import argparse
import hashlib
import json
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional as F

import minibert
from minibert.checkpoint.save import save
from minibert.errors import MinibertError
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.training.vocabulary import write_tokenizer_settings
from minibert.untrusted import read_bytes

REPOSITORY = Path(__file__).resolve().parents[1]
LABELLED = ("imdb_labelled.txt", "yelp_labelled.txt", "amazon_cells_labelled.txt")
POLARITY = {"rt-polarity.neg": 0, "rt-polarity.pos": 1}
LABELS = ("negative", "positive")
START = "tiny-bert"


@dataclass(frozen=True)
class Sentence:
    """A labelled sentence and the file it is from."""

    text: str
    label: int
    """0 negative, 1 positive."""
    source: str

    @property
    def held_out(self) -> bool:
        """True for a fifth of the sentences. Those with the same words are on the same side."""
        words = " ".join(re.findall(r"\w+", self.text.lower()))
        return hashlib.sha256(words.encode()).digest()[0] % 5 == 0


@dataclass(frozen=True)
class Recipe:
    """The settings of the fine-tuning. They were chosen before any score was seen."""

    epochs: int = 4
    batch: int = 32
    rate: float = 3e-4
    """AdamW's largest learning rate; it rises during a tenth of the steps and falls to 0."""
    weight_decay: float = 0.05
    masked: float = 0.15
    """Share of the tokens of a sentence that are [MASK] in a step, against learning by heart."""
    seed: int = 0
    threads: int = 1


def read_sentences(folder: Path) -> list[Sentence]:
    """All labelled sentences, each once. Raises MinibertError for a file that cannot be read."""
    found = [Sentence(*row) for row in _rows(folder)]
    return list({sentence.text: sentence for sentence in found}.values())


def _rows(folder: Path) -> Iterator[tuple[str, int, str]]:
    for name in LABELLED:
        for line in _lines(folder / name, "utf-8"):
            text, label = line.rsplit("\t", 1)
            yield text.strip(), int(label), name
    for name, label in POLARITY.items():
        for line in _lines(folder / name, "latin-1"):
            yield line.strip(), label, name


def _lines(path: Path, encoding: str) -> list[str]:
    content = read_bytes(path, MinibertError, most=2**25).decode(encoding)
    # Not splitlines: some sentences have the character NEL inside.
    return [line for line in content.replace("\x85", " ").split("\n") if line.strip()]


def untrained(name: str, *, seed: int) -> Model:
    """The model of that name with a head for sentiment whose weights are random."""
    return minibert.load(name, task="sequence-classification", labels=LABELS, head_seed=seed)


def fine_tune(model: Model, sentences: Sequence[Sentence], recipe: Recipe) -> None:
    """Train all weights of the model on these sentences, in place, with its dropout."""
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay
    )
    steps = recipe.epochs * -(-len(sentences) // recipe.batch)
    done = 0
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(sentences), generator=generator).split(recipe.batch):
            pace = min(1.0, (done + 1) / (0.1 * steps)) * (1 - done / steps)
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * pace
            chosen = [sentences[row] for row in rows.tolist()]
            tokens = masked(model, chosen, recipe.masked, generator)
            wanted = torch.tensor([sentence.label for sentence in chosen])
            F.cross_entropy(model(tokens), wanted).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
    model.eval()
    model.requires_grad_(False)


def masked(
    model: Model, sentences: Sequence[Sentence], share: float, generator: torch.Generator
) -> Tokens:
    """The sentences as tokens, a share of which is [MASK]."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    assert tokenizer.mask_id is not None
    tokens = model.tokenize([sentence.text for sentence in sentences], truncate=True)
    hidden = torch.rand(tokens.ids.shape, generator=generator) < share
    hidden &= ~torch.isin(tokens.ids, torch.tensor(sorted(tokenizer.special_ids)))
    ids = torch.where(hidden, tokenizer.mask_id, tokens.ids)
    return replace(tokens, ids=ids)


@torch.no_grad()
def probabilities(model: Model, sentences: Sequence[Sentence]) -> torch.Tensor:
    """(sentence, label): how probable the model finds each label."""
    found = []
    for first in range(0, len(sentences), 64):
        texts = [sentence.text for sentence in sentences[first : first + 64]]
        found.append(model(model.tokenize(texts, truncate=True)).softmax(-1))
    return torch.cat(found)


def main() -> int:
    """The exit status: 0 when the model is trained."""
    parser = argparse.ArgumentParser(description="Fine-tune tiny-bert on labelled sentences.")
    parser.add_argument("data", type=Path, help="the folder with the sentences")
    output = REPOSITORY / "build" / "training" / "tiny-bert-sentiment"
    parser.add_argument("--output", type=Path, default=output)
    parser.add_argument("--epochs", type=int, default=Recipe.epochs)
    chosen = parser.parse_args()
    recipe = Recipe(epochs=chosen.epochs)
    torch.set_num_threads(recipe.threads)
    start = time.monotonic()
    try:
        sentences = read_sentences(chosen.data)
        kept = [sentence for sentence in sentences if not sentence.held_out]
        model = untrained(START, seed=recipe.seed)
        fine_tune(model, kept, recipe)
        save(model, chosen.output, dtype=torch.float16)
    except MinibertError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    facts = {
        "start": START,
        "start_sha256": hashlib.sha256(weights_of(START).read_bytes()).hexdigest(),
        "sentences": dict(Counter(sentence.source for sentence in kept)),
        "held_out": dict(Counter(one.source for one in sentences if one.held_out)),
        "recipe": asdict(recipe),
        "seconds": round(time.monotonic() - start),
        "machine": f"{platform.machine()}, cpu, torch {torch.__version__}",
    }
    (chosen.output / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
    write_tokenizer_settings(model, chosen.output)
    return 0


def weights_of(name: str) -> Path:
    """The file with the weights of an embedded model."""
    return REPOSITORY / "minibert" / "embedded" / name / "model.safetensors"


if __name__ == "__main__":
    sys.exit(main())
