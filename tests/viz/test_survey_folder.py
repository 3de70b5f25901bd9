"""The report of a survey: numbers of the tables and nothing else, and pages of its examples."""

import numpy as np
import pytest
from attention_pages import HOSTILE
from survey.made_surveys import patterns_of, survey_of

from minibert import load
from minibert.survey.documents import Document
from minibert.survey.patterns import Example
from minibert.viz.survey_folder import Entry, ExamplePages, survey_report, write_example_pages

NAMES = ("entropy", "to_cls", "to_sep", "to_previous", "to_previous_by_norm", "to_token:[the]")
MEANS = np.random.default_rng(2).uniform(0.05, 0.9, size=(6, 2, 3))
EXAMPLE = Example("document 1", 4, "horse", 3, "the", 0.75, 0.8)


def test_the_report_has_the_numbers_of_the_tables():
    survey = survey_of(MEANS, NAMES, absent=["to_cls"])
    header = survey_report(survey).header
    assert [one["name"] for one in header["measures"]] == list(NAMES)
    for one in header["measures"]:
        name = one["name"]
        if name == "to_cls":
            assert one["mean"] == one["low"] == one["high"] == [None] * 6
            assert one["documents"] == 0
            continue
        np.testing.assert_allclose(one["mean"], survey.table(name).ravel(), rtol=5e-7)
        ends = np.stack([one["low"], one["high"]], axis=-1)
        np.testing.assert_allclose(ends, survey.interval(name).reshape(6, 2), rtol=5e-7)
        assert one["documents"] == survey.count(name)
        for place, examples in enumerate(one["examples"]):
            found = survey.examples(name, *divmod(place, 3))
            assert [header["documents"][i] for i, _ in examples] == [e.document for e in found]
            assert [score for _, score in examples] == pytest.approx([e.score for e in found])
    words = {one["name"]: (one["words"], one["unit"]) for one in header["measures"]}
    assert words["to_token:[the]"] == ("mass on the token '[the]'", "share")
    assert words["entropy"][1] == "nats"
    assert "weighted by norms" in words["to_previous_by_norm"][0]
    # The middle is offset 0; made surveys halve the mass at each step.
    assert header["profile"]["reach"] == 3
    assert header["profile"]["mass"][5] == [0.125, 0.25, 0.5, 1, 0.5, 0.25, 0.125]
    assert survey_report(survey_of(MEANS, NAMES, reach=0)).header["profile"] is None


def test_patterns_have_their_heads():
    survey = survey_of(MEANS, NAMES)
    named = patterns_of({"previous": np.array([[0.9, 0.2, 0.7], [0.3, 0.555, 0.1]])}, [EXAMPLE])
    header = survey_report(survey, patterns=named).header
    (previous,) = [one for one in header["patterns"] if one["name"] == "previous"]
    # 1-1 is not known by it: its interval begins below half of what the baseline of 0.1 leaves.
    known = [(one["place"], one["named"]) for one in previous["heads"]]
    assert known == [(0, True), (2, True), (4, False)]
    (example,) = previous["heads"][0]["examples"]
    assert header["documents"][example.pop("document")] == "document 1"
    tokens = {"key": 3, "key_token": "the", "query": 4, "query_token": "horse"}
    assert example == tokens | {"score": 0.8}
    assert not any(one["heads"] for one in header["patterns"] if one["name"] != "previous")
    assert survey_report(survey).header["patterns"] == []


def test_nothing_of_a_manifest_can_leave_its_element_and_paths_stay_at_home():
    manifest = {
        "model": {"name": "/home/ada/models/secret-name"},
        "corpus": {"files": list(HOSTILE), "skipped": [{"place": HOSTILE[0], "reason": "broken"}]},
        "options": {"dtype": "bfloat16", "limit": None, "profile": True},
        "versions": {"minibert": "0.1.0", "torch": "2.13"},
    }
    survey = survey_of(MEANS, NAMES, manifest=manifest, documents=HOSTILE[:3])
    report = survey_report(survey, command="minibert survey corpus.txt")
    assert report.header["title"] == "secret-name"
    assert report.header["command"] == "minibert survey corpus.txt"
    facts = dict(report.header["facts"])
    assert facts["options: dtype"] == "bfloat16"
    assert facts["options: profile"] == "yes"
    assert "options: limit" not in facts
    assert facts["model: name"] == "secret-name"
    assert facts["versions"] == "minibert 0.1.0, torch 2.13"
    assert facts["corpus: files"].endswith("and 4 more")
    assert "broken" in facts["corpus: skipped"]
    html = report.html
    assert "window.pwned" not in html
    assert "default-src 'none'" in html
    assert html == survey_report(survey, command="minibert survey corpus.txt").html


def test_pages_hold_the_heads_that_were_asked_for_and_say_what_they_leave_out(tmp_path):
    model = load()
    documents = [
        Document("a", "the horse quickly ran away"),
        Document("unused", "no"),
        Document("b", None, words=("the", "boat", "slowly", "turned")),
        Document("c", "the rabbit ran", pair="the horse slept"),
    ]
    wanted = [
        [Entry("c", 1, (0, 2)), Entry("a", 3, (1,))],
        [Entry("b", 0, (3,)), Entry("gone", 0, (0,))],
    ]
    pages = write_example_pages(tmp_path / "examples.html", wanted, iter(documents), model)
    assert pages.file == "examples.html"
    assert pages.entries == (*wanted[0], wanted[1][0])
    assert pages.note.startswith("1 of 4 examples")
    assert not pages.cut
    assert "the boat slowly turned" not in (tmp_path / "examples.html").read_text()
    small = write_example_pages(tmp_path / "small.html", wanted, documents, model, largest=300)
    assert 0 < len(small.entries) < 3
    long = [Document("c", "the rabbit ran " * 200)]
    assert write_example_pages(tmp_path / "cut.html", wanted, long, model).cut == {"c"}
    assert write_example_pages(tmp_path / "none.html", [[]], documents, model) == ExamplePages()
    assert not (tmp_path / "none.html").exists()
    header = survey_report(survey_of(MEANS, NAMES), pages=pages).header
    assert [header["documents"][number] for number, *_ in header["links"]] == ["c", "a", "b"]
    assert [link[1:] for link in header["links"]] == [[1, 0, [0, 2]], [3, 1, [1]], [0, 2, [3]]]
