"""Heads as dependency classifiers: counts of trees whose answers are known, and a real slice."""

from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from data import data_path

import minibert
from minibert.errors import SurveyError
from minibert.survey.conllu import read_sentences
from minibert.survey.intervals import wilson
from minibert.survey.probes.dependency import (
    ALL,
    OFFSETS,
    answers,
    count_dependencies,
    counted,
    relation_scores,
)


def tree(words: str, heads: str, relations: str) -> Any:
    return SimpleNamespace(
        id="made up",
        words=tuple(words.split()),
        heads=tuple(int(head) - 1 for head in heads.split()),
        relations=tuple(relations.split()),
    )


DOG = tree(
    "the dog 's old tail fell .", "2 5 2 5 6 0 6", "det nmod:poss case amod nsubj root punct"
)


def attention(*answer: int) -> torch.Tensor:
    """A head that attends mostly to itself, and otherwise to these words."""
    n = len(answer)
    rows = torch.full((n, n), 0.01).fill_diagonal_(0.7)
    rows[torch.arange(n), torch.tensor(answer)] += 0.2
    return rows


def test_a_head_answers_with_another_word_than_itself_in_both_directions() -> None:
    found = answers(attention(1, 2, 0)[None])
    assert found[0, 0].tolist() == [1, 2, 0]
    assert found[1, 0].tolist() == [2, 0, 1]
    assert answers(torch.zeros(1, 2, 2))[0, 0].tolist() == [1, 0]


def test_counts_of_a_tree_are_those_worked_out_by_hand() -> None:
    # Right for the, old and the full stop; the possessor's head is found by its 's alone.
    right = answers(attention(1, 0, 4, 4, 3, 0, 5)[None])[:, None]
    counts = counted(DOG, right)
    hits = {name: int(number[0, 0, 0]) for name, number in counts.correct.items()}
    expected = {"det": 1, "nmod:poss": 1, "case": 0, "amod": 1, "nsubj": 0, "punct": 1, ALL: 3}
    assert hits == expected
    assert counts.instances == dict.fromkeys(expected, 1) | {ALL: 5}
    plain = counted(DOG, right, possessive_marker=False)
    assert plain.correct["nmod:poss"][0, 0, 0] == 0
    # A marker that does not follow at once, or at all, changes nothing.
    last = tree("tail dog", "0 1", "root nmod:poss")
    assert counted(last, answers(attention(1, 0)[None])[:, None]).correct["nmod:poss"][0] == 1


def test_a_distance_stops_at_the_ends_of_the_sentence() -> None:
    counts = counted(DOG, torch.zeros(2, 1, 1, 7, dtype=torch.int64))
    by_offset = {name: dict(zip(OFFSETS, n, strict=True)) for name, n in counts.offsets.items()}
    assert [by_offset["det"][offset] for offset in (-1, 1, 2)] == [0, 1, 0]
    # "dog" comes second, so every distance beyond -1 ends at the first word.
    assert [by_offset["case"][offset] for offset in (-10, -1)] == [0, 1]
    assert by_offset[ALL][1] == 3


def test_parts_add_up_and_the_best_is_chosen_on_one_and_measured_on_the_other() -> None:
    # Head 0 is right on one part, head 1 on the other.
    right, wrong = answers(attention(1, 0)[None]), torch.zeros(2, 1, 2, dtype=torch.int64)
    home, away = tree("go home", "0 1", "root obj"), tree("home I go", "3 3 0", "obj nsubj root")
    one = counted(home, torch.cat([right, wrong + 1], dim=1)[:, None])
    other = counted(away, answers(torch.stack([attention(1, 0, 1), attention(2, 2, 0)]))[:, None])
    both = one + other
    assert both.sentences == 2
    assert both.instances == {"obj": 2, ALL: 3, "nsubj": 1}
    assert both.correct["obj"][0, 0].tolist() == [1, 1]
    scores = {score.relation: score for score in relation_scores(one, other)}
    assert list(scores) == [ALL, "obj"]
    obj = scores["obj"]
    assert (obj.direction, obj.layer, obj.head) == ("dependent to head", 0, 0)
    assert (obj.accuracy_when_chosen, obj.accuracy, obj.instances) == (1.0, 0.0, 1)
    assert (obj.offset, obj.offset_accuracy) == (-10, 0.0)
    assert not relation_scores(one, other, least=2)


def test_wilson_gives_the_published_interval() -> None:
    # Agresti and Coull 1998, of 0 out of 10 and of 9 out of 10.
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert wilson(9, 10) == pytest.approx((0.596, 0.982), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_sentence_without_a_tree_is_refused() -> None:
    with pytest.raises(SurveyError, match="Sentence made up has 2 words, 0 heads"):
        count_dependencies(minibert.load(), [tree("go home", "", "")])


def by_numpy(model: Any, tokenizer: Any, sentence: Any) -> tuple[Any, Any]:
    """How often each head is right by more than rounding, and how often up to rounding.

    Clark et al. 2019, section 4.2, written down for one sentence with loops.
    """
    coded = tokenizer(list(sentence.words), is_split_into_words=True, return_tensors="pt")
    layers = model(**coded).attentions
    words = coded.word_ids()
    n = len(sentence.words)
    sure, possible = (np.zeros((2, len(layers), 12)) for _ in range(2))
    for layer, probs in enumerate(layers):
        for head, matrix in enumerate(probs[0].double().numpy()):
            whole = np.zeros((n, n))
            for i in range(n):
                rows = [t for t, word in enumerate(words) if word == i]
                for j in range(n):
                    columns = [t for t, word in enumerate(words) if word == j]
                    whole[i, j] = matrix[rows][:, columns].sum(1).mean()
            np.fill_diagonal(whole, 0)
            for direction, table in enumerate((whole, whole.T)):
                for word, answer in enumerate(sentence.heads):
                    if answer >= 0 and sentence.relations[word] != "punct":
                        others = np.delete(table[word], answer).max(initial=0)
                        sure[direction, layer, head] += table[word, answer] > others + 1e-5
                        possible[direction, layer, head] += table[word, answer] > others - 1e-5
    return sure, possible


def test_real_heads_on_a_real_treebank_find_what_transformers_and_numpy_find() -> None:
    import transformers

    folder = data_path("models", "all-MiniLM-L6-v2")
    path = data_path("text", "ud-english-ewt", "en_ewt-ud-dev.conllu")
    sentences = list(islice(read_sentences(path), 6))
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    model.config.output_attentions = True
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        bounds = [by_numpy(model, tokenizer, sentence) for sentence in sentences]
    sure, possible = (sum(each) for each in zip(*bounds, strict=True))
    counts = count_dependencies(minibert.load(folder), sentences, possessive_marker=False)
    found = counts.correct[ALL]
    assert (sure <= found).all()
    assert (found <= possible).all()
    # The bounds would hold nothing back if they were wide.
    assert (possible - sure).sum() <= 0.01 * possible.sum()
    assert found.max() > 0.3 * counts.instances[ALL]
