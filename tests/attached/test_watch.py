"""`minibert watch`: the page follows a run, and waits where there is nothing yet."""

import re
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

import minibert
from minibert.cli import pages
from tests.attached.live_models import ids, llama
from tests.command_line import fails, run

WANT = ("entropy", "received", ("key_mass", (1, 2)))


def test_the_page_follows_a_run_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache, told, steps = llama(), DynamicCache(), [], iter((7, 14, 0))
    page = tmp_path / "watch.html"
    with minibert.measuring(model, want=WANT, folder=tmp_path) as seen:

        def sleep(seconds: int) -> None:
            told.append(page.read_text())
            assert f'http-equiv="refresh" content="{seconds}"' in told[-1]
            if not (total := next(steps)):
                raise KeyboardInterrupt
            model(ids()[:, : total - cache.get_seq_length()], past_key_values=cache)

        monkeypatch.setattr(pages.time, "sleep", sleep)
        command = ["watch", str(tmp_path), "--no-open", "--passage", "late=9-12"]
        done = run(*command, "--passage", "it=1-3")
    assert (done.exit_code, done.stdout.strip()) == (0, str(page)), done.output
    assert "has no numbers yet" in told[0]
    # The late passage is not there yet.
    assert "expected tokens of 0 to 7" in told[1]
    assert "14 tokens, 3 layers" in told[2]
    # As the numbers say: the mean of the queries after the passage, and of all.
    last = page.read_text()
    assert "refresh" not in last
    shares = seen.result("key_mass").values.sum(-1)[..., 3:].mean(-1)
    for about, expected in (
        ("weight on it (tokens 1 to 2), mean over the queries after it, sentence 1", shares),
        (
            "weight on late (tokens 9 to 11), mean over all queries, sentence 1",
            seen.result("received").values[..., 9:12].sum(-1) / 14,
        ),
    ):
        part = last.partition(f"<h2>{about}</h2>")[2].partition("</table>")[0]
        cells = [float(one) for one in re.findall(r'head \d: ([\d.e-]+)"', part)]
        assert torch.tensor(cells) == pytest.approx(expected[:, 1].flatten(), abs=1e-5)
    written = run("watch", str(tmp_path), "-o", str(tmp_path / "once.html"))
    assert written.exit_code == 0
    told_sinks = f"weight or more: {len(seen.sinks(0.3)) or 'none'}</h2>"
    assert told_sinks in (tmp_path / "once.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (("none",), "none is not a folder", 1),
        ((".", "-o", "page.html"), "has no numbers yet", 1),
        ((".", "-o", "page.html", "--request", "a"), "no request 'a'", 1),
        (("damaged", "-o", "page.html"), "damaged, or not written by measuring", 1),
        ((".", "--passage", "3-4"), "NAME=START-STOP", 2),
    ],
)
def test_a_folder_that_cannot_be_drawn_is_said(
    arguments: tuple[str, ...],
    message: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "measured.json").write_text('{"model": ')
    fails(run("watch", *arguments), message, status)
