"""`minibert survey-diff`, on folders as a survey leaves them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import fails, run
from survey.made_surveys import survey_of

from minibert.survey.differences import diff
from minibert.survey.tables import Survey

pytest.importorskip("pyarrow")

NAMES = ("entropy", "to_previous", "to_sep")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """Two surveys: head 1-0 lost half of what it gave [SEP]."""
    means = np.random.default_rng(9).uniform(0.1, 0.9, size=(3, 2, 3))
    means[2, 1, 0] = 0.8
    later = means.copy()
    later[2, 1, 0] = 0.4
    for name, one in (("before", means), ("after", later)):
        survey_of(one, NAMES).write(tmp_path / name)
    return str(tmp_path / "before"), str(tmp_path / "after")


def test_the_table_names_the_head_that_changed(folders: tuple[str, str]) -> None:
    done = run("survey-diff", *folders, "--top", "2")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1 of 6 heads changed beyond the 95 % interval")
    assert lines[3].split()[:2] == ["1-0", "1-0"]
    assert lines[3].endswith("to_sep 0.8000 to 0.4000")
    assert lines[-1] == "  and 4 more; --top 6 shows all"


def test_every_number_comes_as_json_and_into_a_file(
    folders: tuple[str, str], tmp_path: Path
) -> None:
    found = diff(*map(Survey.read, folders))
    done = run("survey-diff", *folders, "--json", "-o", str(tmp_path / "changes.csv"))
    assert json.loads(done.stdout) == found.to_dict()
    rows = list(csv.DictReader((tmp_path / "changes.csv").read_text().splitlines()))
    assert len(rows) == 6 * 3
    changed = [row for row in rows if row["exceeds"] == "1"]
    assert [(row["layer_a"], row["head_a"], row["measure"]) for row in changed] == [
        ("1", "0", "to_sep")
    ]
    assert float(changed[0]["change"]) == pytest.approx(-0.4)


def test_what_cannot_be_compared_is_one_line(folders: tuple[str, str], tmp_path: Path) -> None:
    fails(run("survey-diff", folders[0], str(tmp_path / "none")), "no finished survey")
    fails(run("survey-diff", *folders, "-o", "changes.xlsx"), "must end in .csv or .json")
    fewer = survey_of(np.random.default_rng(1).uniform(size=(2, 2, 3)), NAMES[:2])
    fewer.write(tmp_path / "fewer")
    fails(run("survey-diff", folders[0], str(tmp_path / "fewer")), "only in A .'to_sep'.")
