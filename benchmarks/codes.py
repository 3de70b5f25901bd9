"""What 8 bits change in the file of `minibert live`: bytes, and errors on the lines of a text file.

    python -m benchmarks.codes --folder FOLDER --texts FILE [--output FILE]

The folder's model, and the shape of gpt2 with random weights, each beside itself with matrices in
8 bits and a scale a row. Of the first --rounds lines of 8 words and more, cut to 24 words, the rows
say the largest error of logits, attention weights and, where the model has a head, probabilities
after the last token; that of the last hidden states is a share of their length. `same` are the
texts whose most probable token stays, or of a model without a head the text nearest to it by the
mean of its hidden states.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import minibert
from benchmarks.folders import shapes
from benchmarks.session import Kept, options, session
from minibert.bench.result_rows import Row
from minibert.viz.live import in_8_bits, live_page

_WORDS = 24


def texts_of(path: Path, count: int) -> list[str]:
    """The beginnings of so many lines."""
    lines = [line.split() for line in path.read_text("utf-8").splitlines()]
    return [" ".join(words[:_WORDS]) for words in lines if len(words) >= 8][:count]


def compared(model: minibert.Model, coded: minibert.Model, texts: Sequence[str]) -> Row:
    """The largest errors, and on how many texts the answer stays."""
    errors = dict.fromkeys(("probs", "hidden", "logits", "probabilities"), 0.0)
    answers: tuple[list[Tensor], list[Tensor]] = ([], [])
    for text in texts:
        traces = [one.trace(text) for one in (model, coded)]
        first, second = [trace[-1].resid_post[0] for trace in traces]
        found = {"hidden": (second - first).norm() / first.norm()}
        pairs = [(one.probs, other.probs) for one, other in zip(*traces, strict=True)]
        found["probs"] = torch.stack([(one - other).abs().max() for one, other in pairs]).max()
        said = [first.mean(0), second.mean(0)]
        if model.config.task != "none":
            said = [trace.logits[0, -1] for trace in traces]
            found["logits"] = (said[1] - said[0]).abs().max()
            found["probabilities"] = (said[1].softmax(-1) - said[0].softmax(-1)).abs().max()
        for answer, vector in zip(answers, said, strict=True):
            answer.append(vector)
        errors |= {name: max(errors[name], float(value)) for name, value in found.items()}
    chosen = [_top(torch.stack(one), model.config.task == "none") for one in answers]
    known = {name: float(f"{value:.3g}") for name, value in errors.items() if value}
    return known | {"same": int((chosen[0] == chosen[1]).sum()), "texts": len(texts)}


def _top(said: Tensor, nearest: bool) -> Tensor:
    """The most probable token of each text, or the other text that is nearest."""
    if not nearest:
        return said.argmax(-1)
    directions = torch.nn.functional.normalize(said)
    return (directions @ directions.T).fill_diagonal_(-1).argmax(-1)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when everything was measured."""
    parser = options("Pages in 8 bits beside their models.", rounds=200, quick_rounds=5)
    parser.add_argument("--folder", type=Path, required=True, help="a model with real weights")
    parser.add_argument("--texts", type=Path, required=True, help="a file, a text a line")
    chosen = parser.parse_args(arguments)
    kept = Kept("codes", chosen)
    with session(chosen.threads) as known, tempfile.TemporaryDirectory() as place:
        folders = dict(shapes(Path(place), chosen.quick))
        cases = [(chosen.folder.name, chosen.folder, "real"), ("gpt2", folders["gpt2"], "random")]
        texts = texts_of(chosen.texts, kept.rounds)
        for name, folder, weights in cases:
            model = minibert.load(folder)
            page = live_page(model)
            coded = in_8_bits(model)
            assert isinstance(coded, minibert.Model)
            row: Row = {"what": "codes", "model": name, "ok": True, "weights": weights}
            stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            row |= {"page_bytes": page.size, "weight_bytes": stored, "in_8_bits": bool(page.note)}
            row |= compared(model, coded, texts)
            kept.add(row | known, row)
    kept.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
