"""How the embedded causal models copy random tokens: the rows "copying over ..." of embedded.jsonl.

    python -m benchmarks.copying [--draws 200] [--seed 1] [--output FILE]

Over distances: 16 random tokens, other random tokens, and the 16 again so many tokens later.
`scores` are the attention of the best head to the token after the earlier copy. Over periods:
random tokens that repeat to the end of the window. The first token of a repetition, which nobody
can know, is left out. A loss is a mean over draws in nats a token, `errors` their standard errors.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import torch

import minibert
from benchmarks.session import RESULTS, session
from minibert.analysis import repeated_ids, token_losses
from minibert.bench.result_rows import Row, write_rows
from minibert.model import Model

DISTANCES, PERIODS, PIECE = (16, 32, 64, 96, 128, 192, 240), (4, 8, 16, 32, 64, 96, 127), 16


def curve(model: Model, what: str, draws: int, seed: int) -> Row:
    """The row of a model over distances or over periods."""
    tokenizer, window = model.tokenizer, model.config.n_positions
    assert tokenizer is not None
    places = DISTANCES if what == "distances" else PERIODS
    row: Row = {what: places, "losses": [], "errors": [], "count": draws, "seed": seed}
    usable, special = min(tokenizer.vocab_size, model.config.vocab_size), tokenizer.special_ids
    for place in places:
        ids = repeated_ids(usable, length=place, draws=draws, seed=seed, exclude=special)
        repeated = ids[:, :place].repeat(1, window // place + 1)[:, :window]
        ids = ids[:, : place + PIECE] if what == "distances" else repeated
        each, found = [], []
        for part in ids.split(25):
            each.append(token_losses(model, part).values[:, place + 1 :].double().mean(1))
            if what == "distances":
                probs = model.trace(part).stack("probs").diagonal(1 - place, -2, -1)
                found.append(probs[..., 1:].double().mean((1, 3)) * len(part) / draws)
        losses = torch.cat(each)
        row["losses"].append(round(float(losses.mean()), 4))
        row["errors"].append(round(float(losses.std() / draws**0.5), 4))
        if found:
            row.setdefault("scores", []).append(round(float(torch.stack(found).sum(0).max()), 4))
    return row


def measured(draws: int, seed: int, known: Row) -> Iterator[Row]:
    """The rows of both models, each told."""
    for name in ("tiny-gpt2", "tiny-llama"):
        weights = Path(minibert.__file__).parent / "embedded" / name / "model.safetensors"
        for what in ("distances", "periods"):
            row = {"model": name, "what": f"copying over {what}", "ok": True}
            row |= curve(minibert.load(name), what, draws, seed)
            print(row)
            yield {**row, "weights_sha256": sha256(weights.read_bytes()).hexdigest(), **known}


def main() -> int:
    """The rows take the place of earlier ones of the same models in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "embedded.jsonl")
    chosen = parser.parse_args()
    with session(1) as known:
        rows = list(measured(chosen.draws, chosen.seed, known))
    made = {(row["model"], row["what"]): row for row in rows}
    if chosen.output.exists():
        lines = chosen.output.read_text(encoding="utf-8").splitlines()
        before = [json.loads(line) for line in lines]
        rows = [made.pop((row["model"], row["what"]), row) for row in before] + [*made.values()]
    write_rows(rows, chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
