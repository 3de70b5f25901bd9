"""The report in a survey's folder: what was measured again beside the tables, and the pages."""

import json
from pathlib import Path

import numpy as np
import pytest
from survey.made_surveys import survey_of

from minibert import load
from minibert.errors import SurveyError
from minibert.survey.distances import head_distances
from minibert.survey.documents import Document
from minibert.survey.patterns import patterns
from minibert.trace.file import identity_of
from minibert.viz.survey_folder import write_survey_report

pytest.importorskip("pyarrow")

NAMES = ("entropy", "to_previous")
DOCUMENTS = [
    Document("a", "the horse quickly ran away and the dog slowly walked home"),
    Document("empty", " "),
    Document("b", "the boat turned in the sea", pair="the sea was blue"),
    # Longer than the model's positions.
    Document("long", "the rabbit ran " * 200),
    Document("beyond", "the cat slept"),
]


def test_a_folder_gets_its_report_and_what_the_report_was_made_of(tmp_path: Path) -> None:
    import pyarrow.parquet

    model = load()
    layers, heads = model.config.n_layers, model.config.n_heads
    means = np.random.default_rng(3).uniform(0.1, 0.4, size=(2, layers, heads))
    manifest = {"model": identity_of(model)}
    survey_of(means, NAMES, manifest=manifest, documents=["a", "b", "long"]).write(tmp_path)
    path = write_survey_report(tmp_path, model, lambda: iter(DOCUMENTS), sample=4)
    assert path == tmp_path / "report.html"
    used = [DOCUMENTS[0], DOCUMENTS[2], DOCUMENTS[3]]
    named = json.loads((tmp_path / "patterns.json").read_text())
    assert named == json.loads(json.dumps(patterns(model, used).to_dict()))
    table = pyarrow.parquet.read_table(tmp_path / "head_distances.parquet").to_pydict()
    expected = head_distances(model, used).mean
    assert len(table["mean"]) == expected.size
    for layer_a, head_a, layer_b, head_b, mean in zip(
        *(table[name] for name in ("layer_a", "head_a", "layer_b", "head_b", "mean")), strict=True
    ):
        assert mean == expected[layer_a * heads + head_a, layer_b * heads + head_b]
    assert {one.name for one in tmp_path.iterdir()} == {
        "distance_profile.parquet", "examples.html", "examples.parquet", "head_distances.parquet",
        "manifest.json", "measures.parquet", "patterns.json", "report.html",
    }  # fmt: skip


def test_a_folder_without_a_survey_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SurveyError, match="no finished survey"):
        write_survey_report(tmp_path, load(), lambda: iter(DOCUMENTS))
    assert list(tmp_path.iterdir()) == []
