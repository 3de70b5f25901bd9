"""Trains the embedded models anew: which texts, which recipe.

    python scripts/train_embedded.py TEXTS [tiny-bert|tiny-gpt2|tiny-llama ...] --start START

tiny-bert and tiny-gpt2 start from their weights at commit 1343cd5, which had a smaller vocabulary
and 128 positions, in the folders START/tiny-bert and START/tiny-gpt2.

TEXTS is a folder with the files named below: six novels of LitBank (its `original` texts), ten
books of the Gutenberg selection that NLTK distributes, as UTF-8. Paragraphs with a slur are left
out: these models stand in front of classes. An interrupted run goes on when
it is called again. Results go to build/training; look at their card and scores before they take
the place of those in minibert/embedded.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch

from minibert import load
from minibert.errors import MinibertError
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.training import Document, Recipe, read_texts, train
from minibert.training.vocabulary import train_tokenizer

REPOSITORY = Path(__file__).resolve().parents[1]
# Words that become one token: of the lessons, and of present-day English in general.
WHOLE_WORDS = {
    "tiny-bert": ("whole_words", "common_words"),
    "tiny-gpt2": ("whole_words", "common_words"),
    "tiny-llama": ("whole_words",),
}
TEXTS = [
    "113_the_secret_garden",
    "1342_pride_and_prejudice",
    "32_herland",
    "36_the_war_of_the_worlds",
    "45_anne_of_green_gables",
    "514_little_women",
    "austen-emma",
    "austen-persuasion",
    "austen-sense",
    "bryant-stories",
    "burgess-busterbrown",
    "chesterton-ball",
    "chesterton-brown",
    "chesterton-thursday",
    "edgeworth-parents",
    "melville-moby_dick",
]
LEFT_OUT = re.compile("nig{2}er", re.IGNORECASE)
HELD_OUT = ["11_alices_adventures_in_wonderland", "271_black_beauty"]
SIZES = {"vocab_size": 6656, "n_positions": 256, "n_layers": 4, "n_heads": 4}
WIDTHS = {"d_model": 128, "d_mlp": 512}
CONFIGS = {
    "tiny-bert": Config(
        family="bert", task="pre-training", n_segments=2, pad_id=0, pooler=True, **SIZES, **WIDTHS
    ),
    "tiny-gpt2": Config(
        family="gpt2",
        task="causal-lm",
        causal=True,
        norm_eps=1e-5,
        activation="gelu_tanh",
        **SIZES,
        **WIDTHS,
    ),
    "tiny-llama": Config(
        family="llama",
        task="causal-lm",
        vocab_size=6144,
        n_positions=256,
        n_layers=4,
        n_heads=4,
        n_kv_heads=2,
        d_model=128,
        d_mlp=344,
        causal=True,
        norm_eps=1e-5,
        activation="silu",
        rotary=Rotary(32, base=500_000.0),
    ),
}
STARTED = ("tiny-bert", "tiny-gpt2")
RECIPES = {
    "tiny-bert": Recipe(
        steps=5_000,
        batch=16,
        cool_down=0.8,
        short=0.35,
        half=0.25,
        bfloat16=False,
        delimiter=0.1,
        matching=0.1,
        targets_kept=0.3,
    ),
    "tiny-gpt2": Recipe(
        steps=4_000,
        batch=16,
        cool_down=0.8,
        half=0.6,
        bfloat16=False,
    ),
    "tiny-llama": Recipe(steps=4_000, batch=16, previous=0.1, induction=0.1),
}


def main() -> int:
    """The exit status: 0 when every model asked for is trained."""
    parser = argparse.ArgumentParser(description="Train the embedded models.")
    parser.add_argument("texts", type=Path, help="the folder with the texts")
    parser.add_argument(
        "models", nargs="*", default=list(RECIPES), help="tiny-bert, tiny-gpt2, tiny-llama"
    )
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "training")
    parser.add_argument("--start", type=Path, help="the folder with the models to start from")
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    if unknown := set(chosen.models) - set(RECIPES):
        parser.error(f"no recipe for {', '.join(sorted(unknown))}; there are {', '.join(RECIPES)}")
    if chosen.start is None and set(chosen.models) & set(STARTED):
        parser.error(f"--start: expected the folder of the models that {STARTED} start from")
    try:
        texts = [kept(text) for text in read_texts(chosen.texts / f"{n}.txt" for n in TEXTS)]
        held_out = read_texts(chosen.texts / f"{name}.txt" for name in HELD_OUT)
        for name in chosen.models:
            tokenizer = tokenizer_of(texts, CONFIGS[name], whole_words(name))
            config = replace(CONFIGS[name], vocab_size=tokenizer.vocab_size)
            start = None
            if name in STARTED:
                start = carried_over(load(chosen.start / name), config, tokenizer)
            train(
                texts,
                held_out,
                chosen.output / name,
                config=config,
                recipe=RECIPES[name],
                tokenizer=tokenizer,
                start=start,
                device=chosen.device,
                dtype=torch.float16,
                name=name,
            )
    except MinibertError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def whole_words(model: str) -> list[str]:
    """The words of the model's lists as tokens: behind a space, and those with ^ also without."""
    files = [Path(__file__).with_name(f"{name}.txt") for name in WHOLE_WORDS[model]]
    words = [word for file in files for word in file.read_text(encoding="utf-8").split()]
    both = [word.removesuffix("^") for word in words if word.endswith("^")]
    return [" " + word.removesuffix("^") for word in words] + both


def tokenizer_of(texts: Sequence[Document], config: Config, whole: Sequence[str]) -> Tokenizer:
    """A tokenizer of these texts in which each of these words is one token."""
    # BPE's last merges join pairs that occur 50 to 70 times in these texts.
    often = (word for word in whole for _ in range(200))
    read = chain((text.text for text in texts), often)
    tokenizer = train_tokenizer(read, size=config.vocab_size, byte_level=config.causal)
    if torn := [word for word in whole if len(tokenizer.encode(word)) != 1]:
        raise MinibertError(f"{', '.join(torn[:8])}: {len(torn)} words are not single tokens.")
    return tokenizer


@torch.no_grad()
def carried_over(old: Model, config: Config, tokenizer: Tokenizer) -> Model:
    """A model with the weights of `old`, for another vocabulary and more positions.

    A token that both know keeps its row of every table over tokens; any other token starts at the
    mean of the rows of the old tokens that spell it (Gee et al. 2022, "Fast vocabulary transfer for
    language model compression", section 3.2). Positions that `old` lacks start as its own again,
    each copy shifted by one more step of half a row's length: equal copies stay equal for long.
    """
    new = Model.from_config(config, tokenizer=tokenizer, name=old.name)
    assert old.tokenizer is not None
    known = {old.tokenizer.raw(index): index for index in range(old.config.vocab_size)}
    spelled = [
        torch.tensor(spelling(known, old.tokenizer, tokenizer, token))
        for token in range(config.vocab_size)
    ]
    weights = dict(old.named_parameters())
    for name, parameter in new.named_parameters():
        weight = weights[name]
        if (len(weight), len(parameter)) == (old.config.vocab_size, config.vocab_size):
            parameter.copy_(torch.stack([weight[ids].mean(0) for ids in spelled]))
        elif name == "body.position.weight":
            place = torch.arange(len(parameter))
            step = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(0))
            step *= weight.norm(dim=1).mean() / (2 * step.norm())
            parameter.copy_(weight[place % len(weight)] + place[:, None] // len(weight) * step)
        else:
            parameter.copy_(weight)
    return new


def spelling(known: dict[str, int], old: Tokenizer, new: Tokenizer, token: int) -> list[int]:
    """The ids of the tokens of `old` that spell a token of `new`; `known` has those of `old`."""
    raw = new.raw(token)
    if raw in known:
        return [known[raw]]
    if not raw.startswith("##"):
        return old.encode(new.string(token))
    first, *rest = old.encode(raw.removeprefix("##"))
    return [known.get("##" + old.raw(first), first), *rest]


def kept(text: Document) -> Document:
    """The text without the paragraphs that are left out."""
    lines = [line for line in text.text.split("\n") if not LEFT_OUT.search(line)]
    return Document(text.name, "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
