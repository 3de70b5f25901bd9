"""The scores by kind of text: what is read of each file, and what a run writes."""

import json
from pathlib import Path

import pytest
import torch

import minibert
from benchmarks import embedded
from benchmarks.embedded import kinds_of_text, token_losses
from minibert.bench.gate import GateError
from minibert.checkpoint.save import save
from tests.test_embedded_scores import HELD_OUT, gpt2, story, tokenizer_of


def test_kinds_of_text_are_measured_beside_the_other_scores(tmp_path: Path) -> None:
    texts = tmp_path / "data" / "text"
    files = {
        "litbank/original/11_alices_adventures_in_wonderland.txt": story(1).text,
        "litbank/original/271_black_beauty.txt": story(2).text,
        "gap/gap-development.tsv": f'ID\tText\n1\t{story(5).text}\n2\tAnother "one".\n',
        "wikitext-2/wiki.test.tokens": f" = Title = \n \n {story(6).text} . An <unk> word . \n",
        "ud-english-ewt/en_ewt-ud-dev.conllu": f"# newdoc id = 1\n# text = {story(7).text}\n1\tx\n",
        "tinyshakespeare/input.txt": story(8).text,
    }
    for name, content in files.items():
        (texts / name).parent.mkdir(parents=True, exist_ok=True)
        (texts / name).write_text(content, encoding="utf-8")
    found = kinds_of_text(tmp_path / "data")
    assert found["Wikipedia (GAP)"][0].text.endswith('.\nAnother "one".')
    assert "unk" not in found["Wikipedia (wikitext-2)"][0].text
    assert found["web (EWT)"][0].text == story(7).text
    output = tmp_path / "rows.jsonl"
    other = {"model": "tiny-gpt2", "what": "weights in MB", "ok": True, "value": 2.0}
    stale = {"model": "tiny-gpt2", "what": "loss, novels", "ok": True, "value": 1.0}
    output.write_text(f"{json.dumps(other)}\n{json.dumps(stale)}\n", encoding="utf-8")
    save(gpt2(), tmp_path / "gpt2")
    options = ["--kinds", str(tmp_path / "data"), "--models", "tiny-gpt2", "--threads", "1"]
    options += ["--tiny-gpt2", str(tmp_path / "gpt2"), "--output", str(output)]
    assert embedded.main(options) == 0
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert rows[0] == other
    assert [row["what"] for row in rows[1:]] == [f"loss, {kind}" for kind in found]
    # The loss of both novels is that of all their counted tokens.
    model = minibert.load(tmp_path / "gpt2")
    encode = tokenizer_of("gpt2").encode
    with torch.no_grad():
        windows = [torch.tensor(encode(one.text)).unfold(0, 104, 52) for one in HELD_OUT]
        losses = [token_losses(model, each)[:, 51:].flatten() for each in windows]
    expected = torch.cat(losses).mean()
    assert rows[1]["value"] == pytest.approx(float(expected), abs=1e-3)
    (texts / "tinyshakespeare" / "input.txt").unlink()
    with pytest.raises(GateError, match=r"input\.txt is not in the folder"):
        kinds_of_text(tmp_path / "data")
