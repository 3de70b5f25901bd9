"""Models in a live page: seconds to the first answer, and after it.

    python -m benchmarks.folders [--folder FOLDER] [--quick] [--rows REGEX] [--output FILE]

The shapes of bert-base and gpt2 with random weights, and the folder that is given, in headless
Chromium. Measured are the time from the choice of the folder to the first picture, of a last word
that is typed into a text of 16 tokens, of one head more set to zero (each until the page has
answered and drawn, by the clock and in processor time with 0.2 s after it; the median of --rounds,
at most 12), and the memory of the renderer beside the bytes of the weights.
The prediction is compared with Python's; a page that is wrong is a row with the reason.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from playwright.sync_api import Page, Playwright, sync_playwright

import minibert
from benchmarks.pages.browser import Visit, visiting
from benchmarks.session import Kept, machine, options
from minibert.bench.result_rows import GateError, Row, WrongError, failure, within
from minibert.viz.any_model import any_page
from minibert.viz.live import live_page

LIMIT = 60
# Of probabilities, as a share of them: single precision in another order of sums.
TOLERANCE = 1e-3
BARS = """(all) => all.map((bar) => [
  bar.dataset.id, bar.querySelector("[data-of=before]")?.value
])"""
LAST = ("of", "to", "in", "for", "on", "that", "by", "this", "with", "you", "not", "or")
SENTENCE = "the old horse ran up a hill because it was strong and very tired of it " * 9
# Milliseconds from an act until the page has answered and drawn.
ACT = """([text, head]) => new Promise((resolve) => {
  const page = document.getElementById("page");
  const start = performance.now();
  new MutationObserver((_, seen) => {
    if (page.getAttribute("aria-busy") !== "false") return;
    seen.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)));
  }).observe(page, { attributes: true, attributeFilter: ["aria-busy"] });
  const cell = `.live-cell[data-layer="0"][data-head="${head}"]`;
  if (text === null) return document.querySelector(cell).click();
  const field = document.querySelector("textarea.live-text");
  field.value = text;
  field.dispatchEvent(new Event("input"));
})"""
# From the choice of the next word to the numbers of all heads.
SWEEP = """() => new Promise((resolve) => {
  const start = performance.now();
  const cells = [...document.querySelectorAll(".live-cell[data-head]")];
  const filled = () => cells.every((one) => one.textContent);
  new MutationObserver((_, seen) => {
    if (!filled()) return;
    seen.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)));
  }).observe(document.querySelector(".live-grid"), { childList: true, subtree: true });
  document.querySelector(".live-word[aria-pressed=false]").click();
})"""
TINY = tuple((name, size) for name in ("tiny-bert", "tiny-gpt2") for size in (16, 128))


def shapes(folder: Path, quick: bool) -> Iterator[tuple[str, Path]]:
    """Folders with random weights, and their names."""
    import transformers

    tokenizers = {"bert-base": "tiny-bert", "gpt2": "tiny-gpt2"}
    kinds = {
        "bert-base": (transformers.BertForMaskedLM, transformers.BertConfig),
        "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config),
    }
    for name, (kind, config) in kinds.items():
        torch.manual_seed(0)
        kind(config(num_hidden_layers=2 if quick else 12)).save_pretrained(folder / name)
        tokenizer = minibert.load(tokenizers[name]).tokenizer
        (folder / name / "tokenizer.json").write_text(tokenizer.to_json() if tokenizer else "")
        yield name, folder / name


def text_of(model: minibert.Model, size: int = 16) -> str:
    """A text of so many tokens."""
    masked = not model.config.causal and model.config.task != "none"
    words = [*(["[MASK]"] if masked else []), *SENTENCE.split()]
    for count in range(1, len(words)):
        text = " ".join(words[:count])
        if model.tokenize(text).lengths[0] == size:
            return text
    raise GateError(f"no text of {size} tokens")


def checked(page: Page, model: minibert.Model, text: str) -> Row:
    """How far the bars of the page are from Python's probabilities."""
    if model.config.task == "none":
        return {}
    logits = model.trace(text).logits[0, -1 if model.config.causal else 1]
    bars = page.locator(".live-bar[data-id]").evaluate_all(BARS)
    probs = logits.softmax(-1)
    errors = [abs(float(value) / float(probs[int(token)]) - 1) for token, value in bars if value]
    if not errors:
        raise WrongError("the page has no bars")
    return {"max_error": within("probabilities", max(errors), TOLERANCE), "compared": len(errors)}


def used(visit: Visit) -> float:
    """Milliseconds of a processor that the renderers have used; what others use does not count."""
    processes = visit.browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
    return 1e3 * sum(
        one["cpuTime"] for one in processes["processInfo"] if one["type"] == "renderer"
    )


def named(acts: list[tuple[float, float]]) -> Iterator[tuple[str, list[float]]]:
    """The times by their names: of a clock, and of a processor."""
    return zip(("ms", "cpu_ms"), map(list, zip(*acts, strict=True)), strict=True)


def measured(
    playwright: Playwright, path: Path, folder: Path | str, rounds: int, size: int = 16
) -> Row:
    """The times and the memory of a folder, or of an embedded model whose page it is."""
    model = minibert.load(folder)
    one = text_of(model, size)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    with visiting(playwright, LIMIT) as visit:
        page = visit.page
        empty = visit.memory()["renderer_bytes"]
        start = time.monotonic()
        page.goto(path.as_uri())
        if isinstance(folder, Path):
            page.wait_for_selector(".drop button")
            empty = visit.memory()["renderer_bytes"]
            weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            start = time.monotonic()
            page.set_input_files("input[type=file]", folder)
        page.wait_for_selector("[data-drawn]", timeout=1e3 * LIMIT)
        first = time.monotonic() - start

        def act(*given: Any) -> tuple[float, float]:
            before = used(visit)
            took = float(page.evaluate(ACT, list(given)))
            visit.rest()
            return took, used(visit) - before

        act(one, None)
        gate = checked(page, model, one)
        # Never the same text again: the page would know it.
        texts = [f"{one.rsplit(' ', 1)[0]} {word}" for word in LAST[:rounds]]
        typed = [act(text, None) for text in texts]
        # The last text has no answer to a sweep yet.
        swept = [] if isinstance(folder, Path) else [float(page.evaluate(SWEEP)) for _ in "123"]
        ablated = [act(None, head % model.config.n_heads) for head in range(rounds)]
        grown = visit.memory()["renderer_bytes"] - empty
    return {
        **gate,
        "tokens": size,
        "weight_bytes": weights,
        "first_s": round(first, 2),
        **{f"key_{name}": round(median(some), 1) for name, some in named(typed)},
        **{f"ablation_{name}": round(median(some), 1) for name, some in named(ablated)},
        **({"sweep_ms": round(median(swept), 1)} if swept else {}),
        "memory_bytes": grown,
        "memory_share": round(grown / weights, 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every folder was run and was right."""
    parser = options("Folders dropped on a live page.", rounds=9, quick_rounds=2)
    parser.add_argument("--folder", type=Path, help="a folder to measure as well")
    chosen = parser.parse_args(arguments)
    kept = Kept("folders", chosen)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as place:
        known = machine(1, ("playwright",))
        path = any_page().save(Path(place) / "any.html")
        models: list[tuple[str, Path, Path | str, int]] = [
            (name, path, folder, 16) for name, folder in shapes(Path(place), chosen.quick)
        ]
        if chosen.folder:
            models.append((chosen.folder.name, path, chosen.folder, 16))
        for name, size in TINY:
            model = minibert.load(name)
            own = live_page(model, [text_of(model, size)]).save(Path(place) / f"{name}.html")
            models.append((name, own, name, size))
        for name, page, folder, size in models:
            if chosen.rows and not chosen.rows.search(name):
                continue
            row: Row = {"what": "folder", "model": name}
            try:
                row |= {"ok": True, **measured(playwright, page, folder, kept.rounds, size)}
            except GateError as error:
                row |= failure(error)
            kept.add(row | known, row)
    return int(any(not row["ok"] for row in kept.finish()))


if __name__ == "__main__":
    sys.exit(main())
