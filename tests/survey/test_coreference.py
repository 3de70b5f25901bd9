"""Heads as antecedent selectors: rules and counts worked out by hand, and files as they are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from data import data_path

import minibert
from minibert.errors import SurveyError
from minibert.survey.probes.coreference import (
    ALL,
    Choice,
    CoreferenceCounts,
    Mention,
    Passage,
    antecedent_scores,
    baselines,
    count_antecedents,
    counted,
    cut_book,
    features_of,
    head_place,
    read_book,
    read_gap,
)
from minibert.survey.probes.word_attention import tokens_of_words

BOOK = """#begin document (a); part 0
a\t0\t0\tMary\t_\t(1
a\t0\t1\tLennox\t_\t1)
a\t0\t2\tmet\t_\t
a\t0\t3\ther\t_\t(2|(1)
a\t0\t4\tuncle\t_\t2)
a\t0\t5\t.\t_\t

a\t0\t0\tHe\t_\t(2)
a\t0\t1\tsaw\t_\t
a\t0\t2\ther\t_\t(1)
a\t0\t3\t.\t_\t

#end document
"""


@pytest.fixture
def book_file(tmp_path: Path) -> Path:
    path = tmp_path / "a.conll"
    path.write_text(BOOK)
    return path


@pytest.mark.parametrize(
    ("words", "head"),
    [
        ("Mary Lennox", "Lennox"),
        ("the old king of France", "king"),
        ("a boy who ran", "boy"),
        ("the king 's", "king"),
        ("of", "of"),
        ("Tom , the miller", "Tom"),
    ],
)
def test_the_head_word_stands_before_what_belongs_to_it(words: str, head: str) -> None:
    assert words.split()[head_place(words.split())] == head


def test_features_come_from_pronouns_titles_and_endings() -> None:
    def features(words: str) -> tuple[int | None, str | None, str | None]:
        found = features_of(words.split())
        return found.person, found.number, found.gender

    assert features("She") == (3, "singular", "feminine")
    assert features("Mr. Craven") == (3, "singular", "masculine")
    assert features("the king 's daughter") == (3, "singular", "feminine")
    assert features("the gardens") == (3, "plural", None)
    assert features("James") == (3, "singular", None)
    assert features_of(["they"]).agree(features_of(["the", "gardens"]))
    assert not features_of(["she"]).agree(features_of(["Mr.", "Craven"]))


def test_each_rule_chooses_the_nearest_that_fits() -> None:
    text = "Mrs. Hall saw Mr. Hall and the dog . Mr. Hall saw her and a cat"
    words = text.split()
    spans = [(0, 1), (3, 4), (6, 7), (9, 10), (12, 12), (14, 15)]
    wife, man, dog, again, her, cat = (Mention.of(words, *span, "x") for span in spans)
    assert [one.kind for one in (wife, dog, her)] == ["proper", "nominal", "pronoun"]
    assert baselines(again, [man, wife, dog]) == {"nearest": 2, "same head word": 1, "rules": 0}
    assert baselines(her, [wife, man, again]) == {
        "nearest": 2,
        "same head word": None,
        "rules": 0,
    }
    assert baselines(cat, [her]) == {"nearest": 0, "same head word": None, "rules": 0}


def test_a_book_is_read_with_its_nested_mentions(book_file: Path) -> None:
    book = read_book(book_file)
    assert " ".join(book.words) == "Mary Lennox met her uncle . He saw her ."
    assert book.sentences == (0, 6)
    found = [(one.first, one.last, one.entity, one.head, one.kind) for one in book.mentions]
    assert found == [
        (0, 1, "1", 1, "proper"),
        (3, 4, "2", 4, "nominal"),
        (3, 3, "1", 3, "pronoun"),
        (6, 6, "2", 6, "pronoun"),
        (8, 8, "1", 8, "pronoun"),
    ]


def test_passages_end_with_sentences_and_choose_among_what_came_before(book_file: Path) -> None:
    model, book = minibert.load(), read_book(book_file)
    [whole] = cut_book(model, book, 512)
    assert whole.words == book.words
    her, he, her_again = whole.choices
    assert (her.word, her.candidates, her.right) == (3, (1, 4), (True, False))
    assert (he.word, he.candidates, he.right) == (6, (1, 4, 3), (False, True, False))
    assert her_again.candidates == (1, 4, 3, 6)
    assert her_again.picks == {"nearest": 3, "same head word": 2, "rules": 2}
    # [CLS] and [SEP] take two of the tokens.
    sizes = tokens_of_words(model, book)
    parts = cut_book(model, book, sum(sizes[:7]) + 2)
    assert [part.words for part in parts] == [book.words[:6], book.words[6:]]
    assert [len(part.choices) for part in parts] == [1, 0]
    for longest in range(4, sum(sizes) + 2):
        cut = cut_book(model, book, longest)
        assert tuple(word for part in cut for word in part.words) == book.words
        for part in cut:
            assert sum(tokens_of_words(model, part)) + 2 <= longest or len(part.words) == 1


def test_counts_are_those_worked_out_by_hand() -> None:
    choice = Choice("pronoun", 2, (0, 1), (False, True), {"nearest": 1, "same head word": None})
    attention = torch.zeros(1, 2, 3, 3)
    attention[0, 0, 2] = torch.tensor([0.1, 0.3, 0.6])
    attention[0, 1, 2] = torch.tensor([0.3, 0.1, 0.6])
    counts = counted(Passage("a", ("x", "y", "z"), (choice,)), attention)
    twice = counts + counts
    assert twice.correct["pronoun"].tolist() == twice.correct[ALL].tolist() == [[2, 0]]
    assert twice.instances == {"pronoun": 2, ALL: 2}
    assert twice.baselines[ALL, "nearest"] == 2
    assert twice.baselines["pronoun", "same head word"] == 0


def test_the_head_is_chosen_on_one_part_and_measured_on_the_other() -> None:
    def counts(all_kinds: list[int], proper: list[int]) -> CoreferenceCounts:
        correct = {ALL: np.array([all_kinds]), "proper": np.array([proper])}
        return CoreferenceCounts(correct, {(ALL, "nearest"): 5}, {ALL: 10, "proper": 4}, 1)

    first, second = counts([6, 2], [1, 2]), counts([3, 9], [4, 3])
    everyone, proper = antecedent_scores(first, second)
    assert (everyone.kind, everyone.head, everyone.accuracy_when_chosen) == (ALL, 0, 0.6)
    assert (everyone.accuracy, everyone.baselines) == (0.3, {"nearest": 0.5})
    assert (proper.head, proper.accuracy, proper.accuracy_of_one) == (1, 0.75, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\t0\t0\tMary\t_\t(1\n", "the mention of entity 1 does not end"),
        ("a\t0\t0\tMary\t_\t1)\n", "line 1: a mention of entity 1 ends before it begins"),
        ("a\t0\t0\tMary\t_\tx\n", "line 1: 'x' is no mark"),
        ("Mary was here\n", "line 1: 1 columns"),
        ("", "there is no word"),
    ],
)
def test_a_file_that_is_no_book_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.conll"
    path.write_text(text)
    with pytest.raises(SurveyError, match=message):
        read_book(path)


def test_books_of_litbank_are_read_whole() -> None:
    folder = data_path("text", "litbank", "coref", "conll")
    books = [read_book(path) for path in sorted(folder.iterdir())]
    marks = [path.read_text().count("(") for path in sorted(folder.iterdir())]
    brackets = [book.words.count("(") for book in books]
    # One more bracket in each file's first line.
    assert [len(book.mentions) for book in books] == [
        n - bracket - 1 for n, bracket in zip(marks, brackets, strict=True)
    ]


GAP = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL".replace(" ", "\t")


def test_a_pronoun_of_gap_chooses_between_two_names(tmp_path: Path) -> None:
    path = tmp_path / "gap.tsv"
    text = "When Ann Lee met O'Hara (Bea), she ran."
    rows = ["x", text, "she", "31", "Ann Lee", "5", "TRUE", "O'Hara", "17", "FALSE", "url"]
    path.write_text(f"{GAP}\n" + "\t".join(rows) + "\n")
    [passage] = read_gap(path)
    [choice] = passage.choices
    assert passage.words[choice.word] == "she"
    assert [passage.words[place] for place in choice.candidates] == ["Lee", "Hara"]
    assert (choice.kind, choice.right) == ("feminine", (True, False))
    assert choice.picks == {"nearest": 1, "first": 0}
    path.write_text(f"{GAP}\n" + "\t".join([*rows[:6], "MAYBE", *rows[7:]]) + "\n")
    with pytest.raises(SurveyError, match="line 2: expected GAP's eleven columns"):
        list(read_gap(path))
    path.write_text("a\tb\n")
    with pytest.raises(SurveyError, match="expected GAP's columns"):
        list(read_gap(path))


def test_real_passages_go_through_a_model() -> None:
    passages = []
    for passage in read_gap(data_path("text", "gap", "gap-validation.tsv")):
        for choice in passage.choices:
            assert choice.word not in choice.candidates
        passages.append(passage)
    assert len(passages) == 454
    few = passages[:12]
    counts = count_antecedents(minibert.load(data_path("models", "all-MiniLM-L6-v2")), few)
    n_choices = sum(len(passage.choices) for passage in few)
    assert counts.instances[ALL] == n_choices
    assert counts.instances[ALL] == counts.instances["masculine"] + counts.instances["feminine"]
    assert counts.correct[ALL].max() > n_choices / 2
