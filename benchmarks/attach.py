"""What reading a live transformers model costs: a lazy capture beside its plain forward pass.

    python -m benchmarks.attach [--quick] [--rows REGEX] [--threads 2] [--rounds 9] [--output FILE]

Both are the same model under sdpa and the same inputs, turn by turn in one run, without
gradients. A capture keeps query, key, value and z of every layer and computes nothing from them.
Before the clock its output is compared with the plain one, bit for bit. The exit status is 0 when
every capture takes at most 1.05 x the plain forward pass.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import minibert
from benchmarks.session import Kept, parse, session
from minibert.bench.clock import Clock
from minibert.bench.result_rows import Row
from minibert.bench.tables import line
from minibert.bench.timing import Timing, interleaved
from minibert.errors import MinibertError

PLAIN, CAPTURE = "transformers sdpa", "attached trace"
MOST = 1.05
SHAPES = {"bert-base": ((1, 128), (8, 128), (1, 512)), "gpt2": ((1, 128), (8, 128), (1, 1024))}
QUICK = {"bert-tiny": ((1, 16), (1, 128))}
HEADINGS = ("model", "batch", "tokens", "what", "median ms", "p20", "p80", "ratio", "")
WIDTHS = (10, 7, 8, 19, 11, 9, 9, 8, 8)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when all captures are cheap enough."""
    parser = argparse.ArgumentParser(description="attach: a lazy capture beside a plain pass.")
    chosen = parse(arguments, "", rounds=9, quick_rounds=3, parser=parser)
    with session(chosen.threads, ("transformers",)) as known:
        kept = Kept("attach", chosen)
        print(line(HEADINGS, WIDTHS))
        for name, shapes in (QUICK if chosen.quick else SHAPES).items():
            for row in measured(name, shapes, chosen.rounds, chosen.rows):
                kept.rows.append({**row, **known})
                show(row)
            kept.save()
    return 0 if all(row["ok"] for row in kept.finish()) else 1


def measured(
    name: str, shapes: Sequence[tuple[int, int]], rounds: int, wanted: re.Pattern[str] | None
) -> Iterator[Row]:
    """The rows of a model: at each shape its plain pass, then the capture."""
    model = live_model(name)
    attached = minibert.attach(model)
    for batch, tokens in shapes:
        if wanted and not wanted.search(f"{name} {batch} {tokens}"):
            continue
        generator = torch.Generator().manual_seed(7)
        ids = torch.randint(100, 1000, (batch, tokens), generator=generator)
        mask = torch.ones_like(ids)

        @torch.no_grad()
        def plain(ids: Any = ids, mask: Any = mask) -> Any:
            return model(input_ids=ids, attention_mask=mask)

        def capture(ids: Any = ids, mask: Any = mask) -> Any:
            return attached.trace(input_ids=ids, attention_mask=mask)

        check_same(plain()[0], capture().output[0])
        timed = turns({PLAIN: plain, CAPTURE: capture}, rounds)
        for what, timing in timed.items():
            ratios = timing.ratios(timed[PLAIN])
            yield {
                "model": name, "batch": batch, "tokens": tokens, "what": what,
                **timing.fields(), **ratios, "target": MOST if what == CAPTURE else None,
                "noise": round(timing.noise, 4),
                "ok": what == PLAIN or ratios["ratio"] <= MOST,
            }  # fmt: skip


def live_model(name: str) -> Any:
    """A model of that shape with random weights, under sdpa."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    torch.manual_seed(0)
    if name == "gpt2":
        model: Any = GPT2Model(GPT2Config(attn_implementation="sdpa", use_cache=False))
    elif name == "bert-base":
        model = BertModel(BertConfig(attn_implementation="sdpa"))
    else:
        sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = BertModel(BertConfig(attn_implementation="sdpa", intermediate_size=512, **sizes))
    return model.eval()


def check_same(plain: torch.Tensor, captured: torch.Tensor) -> None:
    """Raise MinibertError where a captured pass computes anything else than a plain one."""
    if not torch.equal(plain, captured):
        worst = float((plain - captured).abs().max())
        raise MinibertError(f"the captured pass differs from the plain one, by up to {worst:.3g}")


def turns(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """The times of each, in turns."""
    clock = Clock()
    calls = {name: clock.calls(run, 3) for name, run in contenders.items()}
    most = max(calls.values())
    times: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for name in interleaved(contenders, rounds):
        milliseconds, _ = clock.turn(contenders[name], calls=most)
        times[name].append(milliseconds)
    return {name: Timing(turns) for name, turns in times.items()}


def show(row: Row) -> None:
    """Print a row."""
    verdict = "" if row["target"] is None else ("ok" if row["ok"] else "NOT MET")
    cells = (
        row["model"], str(row["batch"]), str(row["tokens"]), row["what"],
        *(f"{row[one]:.2f}" for one in ("median_ms", "p20_ms", "p80_ms")),
        f"{row['ratio']:.3f}", verdict,
    )  # fmt: skip
    print(line(cells, WIDTHS), flush=True)


if __name__ == "__main__":
    sys.exit(main())
