"""The live page: from a key press to its picture on screen, in a real browser from a file.

    python -m benchmarks.live [--quick] [--models tiny-bert,tiny-gpt2] [--rounds 15] [--output FILE]

Each model's page is written to a file and opened in Chromium without a network. A text of 16 or
128 tokens is typed in once; then each round presses a key, takes a head away and puts it back, and
waits for the sweep over all heads that the page makes unasked. Times are of the page's own clock:
from the event until the engine has answered, every view is drawn and the frame that holds it is on
screen. The exit status is 0 when all targets are met.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles

from playwright.sync_api import Browser, Page, sync_playwright

import minibert
from benchmarks.pages.browser import ARGUMENTS, CHROMIUM, WINDOW
from benchmarks.session import Kept, parse, session
from minibert.bench.result_rows import Row
from minibert.bench.tables import line
from minibert.viz.live import live_page

PROBE = Path(__file__).with_name("live_probe.js").read_text(encoding="utf-8")
TOKENS = (16, 128)
WORDS = "the horse and the boat were in the river by the house when the child turned away"
# A word's last letter, typed: one token more at most.
KEYS = "abcdefghijklmnopqrstuvwxyz"
# Milliseconds at most, by what is done and by how many tokens.
TARGETS = {
    "first key": {16: 600.0},
    "key press": {16: 50.0, 128: 150.0},
    "ablation": {16: 50.0},
    "sweep": {16: 500.0},
}
HEADINGS = ("model", "tokens", "what", "median ms", "p80", "target", "")
WIDTHS = (10, 8, 12, 12, 10, 10, 8)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when all targets are met."""
    parser = argparse.ArgumentParser(description="The live page: times from a key press.")
    parser.add_argument("--models", default="tiny-bert,tiny-gpt2")
    chosen = parse(arguments, "", rounds=15, quick_rounds=3, parser=parser)
    with (
        session(chosen.threads, ("playwright",), peer="playwright") as known,
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
    ):
        kept = Kept("live", chosen)
        print(line(HEADINGS, WIDTHS))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        for name in chosen.models.split(","):
            for row in measured(browser, name, Path(folder), chosen.rounds):
                kept.rows.append({**row, **known})
                show(row)
        browser.close()
    return 0 if all(row["ok"] for row in kept.finish()) else 1


def measured(browser: Browser, name: str, folder: Path, rounds: int) -> Iterator[Row]:
    """The rows of a model: what was done, at how many tokens, milliseconds and bytes."""
    model = minibert.load(name)
    path = folder / f"{name}.html"
    path.write_text(html := live_page(model).html, encoding="utf-8")
    for tokens in TOKENS:
        text = text_of(model, tokens)
        firsts = [first_key(browser, path, text) for _ in range(max(3, rounds // 3))]
        page = opened(browser, path, text)
        times: dict[str, list[float]] = {"first key": firsts, "key press": []}
        times |= {"ablation": [], "sweep": []}
        for turn in range(rounds):
            pressed = page.evaluate(
                "([text, key]) => live_probe.key(text, key)", [text, KEYS[turn]]
            )
            times["key press"].append(pressed["picture"])
            times["sweep"].append(pressed["sweep"])
            head = [turn % model.config.n_layers, turn % model.config.n_heads]
            ablated = page.evaluate("([layer, head]) => live_probe.head(layer, head)", head)
            times["ablation"].append(ablated["picture"])
            page.evaluate("([layer, head]) => live_probe.head(layer, head)", head)
        page.context.close()
        for what, found in times.items():
            yield about(name, tokens, what, found, len(html.encode()))


def text_of(model: minibert.Model, tokens: int) -> str:
    """English words and a space: so many tokens with a letter typed after them."""
    words = ["The", "[MASK]"] if not model.config.causal else ["The"]
    while len(model.tokenize(" ".join(words)).raw[0]) < tokens:
        words.append(WORDS.split()[len(words) % len(WORDS.split())])
    return " ".join(words[:-1]) + " "


def opened(browser: Browser, path: Path, text: str) -> Page:
    """The page with a text, when its picture, panels and sweep are there."""
    page = browser.new_context(offline=True, viewport=WINDOW).new_page()
    page.add_init_script(PROBE)
    page.goto(path.as_uri(), wait_until="commit")
    page.evaluate("([text]) => live_probe.type(text)", [text])
    return page


def first_key(browser: Browser, path: Path, text: str) -> float:
    """Milliseconds from the start of the navigation until a first key press is answered."""
    page = browser.new_context(offline=True, viewport=WINDOW).new_page()
    page.add_init_script(PROBE)
    page.goto(path.as_uri(), wait_until="commit")
    answered = float(page.evaluate("([text]) => live_probe.first(text)", [text]))
    page.context.close()
    return answered


def about(name: str, tokens: int, what: str, times: Sequence[float], size: int) -> Row:
    """The row of what was done."""
    target = TARGETS[what].get(tokens)
    found = median(times)
    return {
        "model": name, "tokens": tokens, "what": what, "median_ms": found,
        "p80_ms": quantiles(times, n=5)[3], "times_ms": list(times), "target_ms": target,
        "ok": target is None or found <= target, "bytes": size,
    }  # fmt: skip


def show(row: Row) -> None:
    """Print a row."""
    target = "" if row["target_ms"] is None else f"{row['target_ms']:.0f}"
    cells = (row["model"], str(row["tokens"]), row["what"], f"{row['median_ms']:.1f}",
             f"{row['p80_ms']:.1f}", target, "ok" if row["ok"] else "NOT MET")  # fmt: skip
    print(line(cells, WIDTHS), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
