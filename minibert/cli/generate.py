"""`minibert generate`: a GPT-2 continues a text, which is printed while it is written."""

import sys

from minibert.cli.options import Loading, spread
from minibert.terminal import encodable, note, printable, say, standard_input


@spread("model", "task")
def generate(
    text: str,
    max_new_tokens: int = 40,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: list[str] | None = None,
    model: str = "tiny-gpt2",
    *,
    loading: Loading,
) -> None:
    """Continue a text, token by token.

    Options:
        max_new_tokens [>=1]: The most tokens to add.
        temperature [>=0]: Above 1: more surprising text; below 1: less. 0: always the most probable
            token.
        top_k [>=1]: Draw from this many of the most probable tokens.
        top_p: Draw from the likeliest tokens that together have this probability.
        seed [>=0]: Another seed gives another text.
        stop [STRING]: End before this string; repeatable.
        model [-m, NAME]: An embedded GPT-2, a checkpoint folder, or a Hub id.
    """
    prompt = standard_input() if text == "-" else text
    loaded = loading.load(model=model)
    beginning: list[str] = [prompt]

    def show(piece: str) -> None:
        # With the first piece, so that a prompt that cannot be continued is not printed.
        _write("".join([*beginning, piece]))
        beginning.clear()

    generated = loaded.generate(
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop or (),
        stream=show,
    )
    say("".join(map(_shown, beginning)))
    if generated.stopped_by == "positions":
        limit = loaded.config.n_positions
        note("note", f"the text ends here, because {loaded.name} has only {limit} positions.")


def _write(text: str) -> None:
    sys.stdout.write(encodable(_shown(text), sys.stdout.encoding))
    sys.stdout.flush()


def _shown(text: str) -> str:
    """The text; for a terminal, without characters that would control it."""
    return printable(text) if sys.stdout.isatty() else text
