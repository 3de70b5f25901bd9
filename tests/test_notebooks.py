"""The notebooks of examples/notebooks run from top to bottom, and what they show is so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt

pytestmark = pytest.mark.slow
NOTEBOOKS = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
# Right by arithmetic, by counting, by Clark's definition, or by the formula of Vaswani et al. 2017.
ANSWERS = {
    '"1-tokens", ...': '"1-tokens", 7',
    '"2-equal", ...': '"2-equal", 1 / 7',
    '"3-previous", ...': '"3-previous", "0-1"',
    '"4-entropy", ...': '"4-entropy", 1.5 * 0.6931472',
    "scores(query, key): ...": "scores(query, key): return query @ key.mT",
    "scaled(query, key): ...": "scaled(query, key): return query @ key.mT / query.shape[-1] ** 0.5",
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a notebook's cells in one namespace: that, and what they printed."""
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")

    def of(name: str, change=lambda code: code) -> tuple[dict[str, Any], str]:
        cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells)
        names: dict[str, Any] = {}
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile(change("".join(cell["source"])), name, "exec"), names)
        return names, capsys.readouterr().out

    return of


def test_figure_and_table_of_clark_have_what_the_traces_have(run):
    names, _ = run("clark_2019")
    shares = []
    for document in names["documents"]:
        trace = names["model"].trace(document.text, document.pair)
        shares.append([layer.probs[0, :, :, 0].mean(-1).tolist() for layer in trace])
    means = [
        [sum(one) / len(shares) for one in zip(*of, strict=True)]
        for of in zip(*shares, strict=True)
    ]
    for found, wanted in zip(names["figure"]["to_cls"].tolist(), means, strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)
    # Counted by hand: of 11 determiners 7 stand before their noun, 4 before an adjective.
    assert names["counts"]["det"] == 11
    assert names["table"]["det"][1] == pytest.approx(7 / 11)
    assert names["offsets"]["amod"] == {1: 6}
    weights = names["between_words"](["the", "dog", "chased", "the", "small", "cat", "."])
    assert weights.diagonal(dim1=-2, dim2=-1).abs().max() == 0
    assert weights.sum(-1).max() <= 1.0001


def test_the_homework_counts_what_is_right(run):
    assert run("homework")[1].endswith("0 of 6 right\n")

    def answered(code: str) -> str:
        for dots, answer in ANSWERS.items():
            code = code.replace(dots, answer)
        return code

    assert run("homework", answered)[1].endswith("6 of 6 right\n")


def test_the_kernel_is_judged_and_timed(run):
    names, _ = run("kernel")
    assert names["wrong"].returncode == 1
    assert re.search("scale", names["wrong"].stdout)
    assert names["mine"].returncode == 0, names["mine"].stdout
    assert names["timed"].returncode == 0, names["timed"].stdout + names["timed"].stderr
    assert "mine.py" in names["timed"].stdout
