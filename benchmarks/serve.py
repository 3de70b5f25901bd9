"""A served page: from a key press to the bytes of its picture, and many pages at once.

    python -m benchmarks.serve [--quick] [--threads 2] [--rounds 30] [--pages 50] [--seconds 60]
                               [--output FILE]

A server in a process of its own, a model with random weights of the shape of MiniLM (6 layers) or
GPT-2, and pages that are websockets of this process. One page types: each request is another text,
and its answer has to hold the weights of a layer as the same model has them here. Beside it, in
turns, one forward pass of the same text in this process. Target: at most 1.3 of a forward pass and
50 ms. Then many pages type for a minute: no errors, and memory that does not grow. The exit status
is 0 when everything is right and all targets are met.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from benchmarks.session import Kept, parse, session
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "MiniLM": (
        "tiny-bert",
        {"family": "bert", "task": "masked-lm", "vocab_size": 30522, "n_positions": 512,
         "n_layers": 6, "n_heads": 12, "d_model": 384, "d_mlp": 1536, "n_segments": 2},
    ),
    "gpt2": (
        "tiny-gpt2",
        {"family": "gpt2", "task": "causal-lm", "vocab_size": 50257, "n_positions": 1024,
         "n_layers": 12, "n_heads": 12, "d_model": 768, "d_mlp": 3072, "causal": True,
         "norm_eps": 1e-5, "activation": "gelu_tanh"},
    ),
}  # fmt: skip
TOKENS = (16, 128)
WORDS = ("the", "horse", "boat", "river", "house", "garden", "child", "turned", "away", "a", "day")
# A key press may take so much of a forward pass, and so many milliseconds more.
TIMES, MORE = 1.3, 50.0
# Pages type about so often.
PAUSE = 0.2
# Of memory, from the second sixth of the time to the last.
GROWTH = 1.05
HEADINGS = ("model", "tokens", "forward ms", "served ms", "p80", "target", "")
WIDTHS = (8, 8, 12, 12, 10, 10, 6)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when everything is right and the targets are met."""
    parser = argparse.ArgumentParser(description="A served page: latency, and many pages.")
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--server", choices=list(SHAPES), help=argparse.SUPPRESS)
    chosen = parse(arguments, "", rounds=30, quick_rounds=3, parser=parser)
    if chosen.server:
        return serve(chosen.server)
    with session(chosen.threads, ("starlette", "uvicorn", "websockets")) as known:
        kept = Kept("serve", chosen)
        print(line(HEADINGS, WIDTHS))
        for shape in SHAPES:
            with server(shape, chosen.threads) as (address, process):
                for row in measured(shape, address, process, chosen):
                    kept.rows.append({**row, **known})
                    show(row)
    return 0 if all(row["ok"] for row in kept.finish()) else 1


def build(shape: str) -> Any:
    """The model of a shape, the same in every process, with an embedded model's tokenizer."""
    import minibert

    name, sizes = SHAPES[shape]
    config = minibert.Config(**sizes)
    return minibert.Model.from_config(config, tokenizer=minibert.load(name).tokenizer, name=shape)


def serve(shape: str) -> int:
    """Serve until killed."""
    from minibert.viz.serve.server import PageServer

    page = PageServer(build(shape))
    print(page.address, flush=True)
    page.run()
    return 0


@contextmanager
def server(shape: str, threads: int) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.serve", "--server", shape]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert running.stdout
        yield running.stdout.readline().strip(), psutil.Process(running.pid)
    finally:
        running.kill()
        running.wait()


class Page:
    """The websocket of one page."""

    def __init__(self, address: str) -> None:
        from websockets.sync.client import connect

        page = urlsplit(address)
        where = f"ws://{page.netloc}/engine?{page.query}"
        options: Any = {"origin": f"http://{page.netloc}", "compression": None, "max_size": None}
        self.socket = connect(where, **options).__enter__()
        self.number = 0

    def ask(self, ask: str, text: str, **more: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The head of the answer, and its blocks."""
        self.number += 1
        request = {"texts": [text], "edits": []}
        self.socket.send(
            json.dumps({"number": self.number, "ask": ask, "request": request, **more})
        )
        frame = self.socket.recv()
        assert isinstance(frame, bytes)
        end = 4 + int.from_bytes(frame[:4], "little")
        head, blocks = json.loads(frame[4:end]), {}
        for block in head["blocks"]:
            blocks[block["name"]] = frame[end : end + block["bytes"]]
            end += block["bytes"]
        return head, blocks


def measured(
    shape: str, address: str, process: psutil.Process, chosen: argparse.Namespace
) -> Iterator[Row]:
    """Rows of one page that types, and of many."""
    model = build(shape)
    sizes = TOKENS[:1] if chosen.quick else TOKENS
    for tokens in sizes:
        yield one_page(shape, model, Page(address), tokens, chosen.rounds)
    pages, seconds = (5, 2.0) if chosen.quick else (chosen.pages, chosen.seconds)
    yield many_pages(shape, model, address, process, pages, seconds)


def text_of(model: Any, tokens: int, drawn: random.Random) -> str:
    """A text of so many tokens, special ones included."""
    words: list[str] = []
    while len(words) < tokens:
        words.append(drawn.choice(WORDS))
        length = model.tokenize(" ".join(words)).lengths[0]
        if length == tokens:
            return " ".join(words)
        if length > tokens:
            words = words[: -2 if len(words) > 2 else -1]
    raise RuntimeError(f"no text of {tokens} tokens")


def one_page(shape: str, model: Any, page: Page, tokens: int, rounds: int) -> Row:
    """A page that types, and in turns one forward pass of the same text."""
    drawn = random.Random(tokens)
    forward, served, right = [], [], True
    for turn in range(rounds + 3):
        text = text_of(model, tokens, drawn)
        start = time.perf_counter()
        model(text)
        middle = time.perf_counter()
        head, blocks = page.ask("trace", text, blocks=["probs-1"])
        end = time.perf_counter()
        if turn < 3:
            codes = np.frombuffer(blocks["probs-1"], np.uint8).reshape(-1, tokens, tokens)
            probs = model.trace(text)[1].probs[0].numpy()
            right &= head["answer"]["header"]["texts"] == [text]
            right &= bool(np.abs((codes / 255.0) ** 2 - probs).max() < 4e-3)
        else:
            forward.append(1000 * (middle - start))
            served.append(1000 * (end - middle))
    target = TIMES * median(forward) + MORE
    return {
        "what": "key press to bytes", "model": shape, "tokens": tokens, "rounds": rounds,
        "forward_ms": median(forward), "served_ms": median(served),
        "served_p80_ms": quantiles(served, n=5)[-1] if rounds > 1 else served[0],
        "target_ms": target, "ok": right and median(served) <= target, "wrong": not right,
        "reason": "" if right else "the weights are not those of the model here",
    }  # fmt: skip


def many_pages(
    shape: str, model: Any, address: str, process: psutil.Process, count: int, seconds: float
) -> Row:
    """Pages that type at once: answers, errors, and the server's memory."""
    texts = [text_of(model, 16, random.Random(number)) for number in range(200)]
    first = Page(address)
    for text in texts:
        # The server keeps passes up to a number of bytes: memory is compared once they are there.
        first.ask("trace", text, blocks=["probs-0"])
    first.socket.close()
    errors: list[str] = []
    waited: list[float] = []
    end = time.monotonic() + seconds

    def use(number: int) -> None:
        drawn = random.Random(number)
        try:
            page = Page(address)
            while time.monotonic() < end:
                text, start = drawn.choice(texts), time.perf_counter()
                for ask, more in (
                    ("trace", {"blocks": ["probs-0"]}),
                    ("block", {"blocks": ["key-1"]}),
                ):
                    head, _ = page.ask(ask, text, **more)
                    if "error" in head:
                        errors.append(str(head["error"]))
                    if ask == "trace":
                        waited.append(1000 * (time.perf_counter() - start))
                time.sleep(PAUSE * (0.5 + drawn.random()))
            page.socket.close()
        except Exception as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    memory = []
    while time.monotonic() < end:
        memory.append(process.memory_info().rss)
        time.sleep(seconds / 60)
    for thread in threads:
        thread.join()
    sixth = max(1, len(memory) // 6)
    early, late = median(memory[sixth : 2 * sixth] or memory), median(memory[-sixth:])
    level = late <= GROWTH * early
    return {
        "what": "many pages", "model": shape, "pages": count, "seconds": seconds,
        "answers": len(waited), "errors": len(errors), "first_error": errors[0] if errors else "",
        "served_ms": median(waited) if waited else None, "memory_mb": [early / 1e6, late / 1e6],
        "ok": not errors and level and bool(waited), "wrong": bool(errors),
        "reason": "" if level else "memory grows",
    }  # fmt: skip


def show(row: Row) -> None:
    """One line of the table."""
    mark = "ok" if row["ok"] else "MISSED"
    if row["what"] == "many pages":
        early, late = row["memory_mb"]
        print(
            f"{row['model']}: {row['pages']} pages, {row['seconds']:.0f} s: {row['answers']} "
            f"answers, {row['errors']} errors {row['first_error']}, median {row['served_ms']:.0f} "
            f"ms, memory {early:.0f} to {late:.0f} MB  {mark}"
        )
        return
    times = [
        f"{row[name]:.1f}" for name in ("forward_ms", "served_ms", "served_p80_ms", "target_ms")
    ]
    print(line((row["model"], str(row["tokens"]), *times, mark), WIDTHS))


if __name__ == "__main__":
    sys.exit(main())
