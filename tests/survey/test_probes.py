"""What attention knows of syntax and coreference: answers worked out by hand, loops, real texts."""

import math
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data import data_path

import minibert
from minibert.errors import SurveyError
from minibert.model import Model
from minibert.survey.conllu import read_sentences
from minibert.survey.probes import (
    PairProbe,
    Training,
    antecedent_scores,
    attachment,
    attachment_scores,
    coreference,
    count_antecedents,
    count_dependencies,
    cut_book,
    dependency,
    examples,
    read_book,
    read_gap,
    relation_scores,
    train_probe,
    with_distances,
    word_attention,
    word_traces,
)
from minibert.survey.probes.pair_probe import FARTHEST, Example, Projection, branching
from minibert.survey.probes.word_attention import check_readable, tokens_of_words

# [CLS] un ##real city: two words, the first of two pieces.
PIECES = (None, 0, 0, 1)
PROBS = torch.tensor(
    [
        [0.1, 0.2, 0.3, 0.4],
        [0.2, 0.1, 0.3, 0.4],
        [0.4, 0.2, 0.2, 0.2],
        [0.3, 0.3, 0.1, 0.3],
    ]
)


def test_what_is_attended_to_is_summed_over_pieces_and_what_attends_is_averaged():
    assert word_attention(PROBS, PIECES).numpy() == pytest.approx(
        np.array([[(0.4 + 0.4) / 2, (0.4 + 0.2) / 2], [0.4, 0.3]])
    )


def test_the_root_is_the_first_token_where_it_belongs_to_no_word():
    whole = word_attention(PROBS, PIECES, root=True)
    assert whole[0].tolist() == pytest.approx([0.1, 0.5, 0.4])
    assert whole[:, 0].tolist() == pytest.approx([0.1, 0.3, 0.3])
    torch.testing.assert_close(whole[1:, 1:], word_attention(PROBS, PIECES))
    torch.testing.assert_close(whole.sum(-1), torch.ones(3))
    without = word_attention(PROBS[1:, 1:], PIECES[1:], root=True)
    assert not without[0].any()
    assert not without[:, 0].any()


def test_each_head_is_its_own():
    heads = torch.stack([PROBS, PROBS.flip(-1)])
    torch.testing.assert_close(word_attention(heads, PIECES)[0], word_attention(PROBS, PIECES))


def test_a_word_without_a_token_is_refused():
    with pytest.raises(SurveyError, match="Word 1 has no token"):
        word_attention(PROBS, (None, 0, 0, 2))


def text(words, name="a"):
    return SimpleNamespace(id=name, words=tuple(words.split(" ")))


def numbered(pieces, words):
    """The word that each token belongs to, found by spelling the words out."""
    numbers = []
    left = list(words)
    for piece in pieces:
        if piece in ("[CLS]", "[SEP]"):
            numbers.append(None)
            continue
        letters = piece.removeprefix("##").removeprefix("Ġ")
        numbers.append(len(words) - len(left))
        assert left[0].startswith(letters)
        left[0] = left[0].removeprefix(letters)
        if not left[0]:
            left.pop(0)
    return numbers


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_every_text_comes_once_with_the_attention_it_has_alone(name):
    model = minibert.load(name)
    texts = [text("the horse ran unbelievably ."), text("stop !"), text("( it ( was ( here")]
    found = list(word_traces(model, iter(texts)))
    assert {one.words for one, _ in found} == {one.words for one in texts}
    for one, words in found:
        # GPT-2 has a space before the first word too, as before the others.
        alone = model.trace(" " * (name == "tiny-gpt2") + " ".join(one.words))
        numbers = numbered(alone.tokens.raw[0], one.words)
        for layer in range(model.config.n_layers):
            expected = word_attention(alone[layer].probs[0], numbers)
            torch.testing.assert_close(words.attention(layer), expected)
            assert expected.shape[-1] == len(one.words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a " * 600 + "b", "Text x has 60. tokens, more than the .* positions"),
        ("a \x01 b", r"Text x: word 1, '\\x01', becomes no token"),
    ],
)
def test_what_the_model_cannot_read_is_named_before_the_pass(words, message):
    with pytest.raises(SurveyError, match=message):
        check_readable(minibert.load(), [text("fine ."), text(words, "x")])


def tree(words, heads, relations):
    return SimpleNamespace(
        id="made up",
        words=tuple(words.split()),
        heads=tuple(int(head) - 1 for head in heads.split()),
        relations=tuple(relations.split()),
    )


DOG = tree(
    "the dog 's old tail fell .", "2 5 2 5 6 0 6", "det nmod:poss case amod nsubj root punct"
)


def attention(*answer):
    """A head that attends mostly to itself, and otherwise to these words."""
    n = len(answer)
    rows = torch.full((n, n), 0.01).fill_diagonal_(0.7)
    rows[torch.arange(n), torch.tensor(answer)] += 0.2
    return rows


def test_a_head_answers_with_another_word_than_itself_in_both_directions():
    found = dependency.answers(attention(1, 2, 0)[None])
    assert found[0, 0].tolist() == [1, 2, 0]
    assert found[1, 0].tolist() == [2, 0, 1]
    assert dependency.answers(torch.zeros(1, 2, 2))[0, 0].tolist() == [1, 0]


def test_counts_of_a_tree_are_those_worked_out_by_hand():
    # Right for the, old and the full stop; the possessor's head is found by its 's alone.
    right = dependency.answers(attention(1, 0, 4, 4, 3, 0, 5)[None])[:, None]
    counts = dependency.counted(DOG, right)
    hits = {name: int(number[0, 0, 0]) for name, number in counts.correct.items()}
    expected = {
        "det": 1,
        "nmod:poss": 1,
        "case": 0,
        "amod": 1,
        "nsubj": 0,
        "punct": 1,
        dependency.ALL: 3,
    }
    assert hits == expected
    assert counts.instances == dict.fromkeys(expected, 1) | {dependency.ALL: 5}
    plain = dependency.counted(DOG, right, possessive_marker=False)
    assert plain.correct["nmod:poss"][0, 0, 0] == 0
    # A marker that does not follow at once, or at all, changes nothing.
    last = tree("tail dog", "0 1", "root nmod:poss")
    assert (
        dependency.counted(last, dependency.answers(attention(1, 0)[None])[:, None]).correct[
            "nmod:poss"
        ][0]
        == 1
    )


def test_a_distance_stops_at_the_ends_of_the_sentence():
    counts = dependency.counted(DOG, torch.zeros(2, 1, 1, 7, dtype=torch.int64))
    by_offset = {
        name: dict(zip(dependency.OFFSETS, n, strict=True)) for name, n in counts.offsets.items()
    }
    assert [by_offset["det"][offset] for offset in (-1, 1, 2)] == [0, 1, 0]
    # "dog" comes second, so every distance beyond -1 ends at the first word.
    assert [by_offset["case"][offset] for offset in (-10, -1)] == [0, 1]
    assert by_offset[dependency.ALL][1] == 3


def test_parts_add_up_and_the_best_is_chosen_on_one_and_measured_on_the_other():
    # Head 0 is right on one part, head 1 on the other.
    right, wrong = (
        dependency.answers(attention(1, 0)[None]),
        torch.zeros(2, 1, 2, dtype=torch.int64),
    )
    home, away = tree("go home", "0 1", "root obj"), tree("home I go", "3 3 0", "obj nsubj root")
    one = dependency.counted(home, torch.cat([right, wrong + 1], dim=1)[:, None])
    other = dependency.counted(
        away, dependency.answers(torch.stack([attention(1, 0, 1), attention(2, 2, 0)]))[:, None]
    )
    both = one + other
    assert both.sentences == 2
    assert both.instances == {"obj": 2, dependency.ALL: 3, "nsubj": 1}
    assert both.correct["obj"][0, 0].tolist() == [1, 1]
    scores = {score.relation: score for score in relation_scores(one, other)}
    assert list(scores) == [dependency.ALL, "obj"]
    obj = scores["obj"]
    assert (obj.direction, obj.layer, obj.head) == ("dependent to head", 0, 0)
    assert (obj.accuracy_when_chosen, obj.accuracy, obj.instances) == (1.0, 0.0, 1)
    assert (obj.offset, obj.offset_accuracy) == (-10, 0.0)
    assert not relation_scores(one, other, least=2)


def test_a_sentence_without_a_tree_is_refused():
    with pytest.raises(SurveyError, match="Sentence made up has 2 words, 0 heads"):
        count_dependencies(minibert.load(), [tree("go home", "", "")])


def by_numpy(model, tokenizer, sentence):
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


def test_real_heads_on_a_real_treebank_find_what_transformers_and_numpy_find():
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
    found = counts.correct[dependency.ALL]
    assert (sure <= found).all()
    assert (found <= possible).all()
    # The bounds would hold nothing back if they were wide.
    assert (possible - sure).sum() <= 0.01 * possible.sum()
    assert found.max() > 0.3 * counts.instances[dependency.ALL]


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
def book_file(tmp_path):
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
def test_the_head_word_stands_before_what_belongs_to_it(words, head):
    assert words.split()[coreference.head_place(words.split())] == head


def test_features_come_from_pronouns_titles_and_endings():
    def features(words):
        found = coreference.features_of(words.split())
        return found.person, found.number, found.gender

    assert features("She") == (3, "singular", "feminine")
    assert features("Mr. Craven") == (3, "singular", "masculine")
    assert features("the king 's daughter") == (3, "singular", "feminine")
    assert features("the gardens") == (3, "plural", None)
    assert features("James") == (3, "singular", None)
    assert coreference.features_of(["they"]).agree(coreference.features_of(["the", "gardens"]))
    assert not coreference.features_of(["she"]).agree(coreference.features_of(["Mr.", "Craven"]))


def test_each_rule_chooses_the_nearest_that_fits():
    text = "Mrs. Hall saw Mr. Hall and the dog . Mr. Hall saw her and a cat"
    words = text.split()
    spans = [(0, 1), (3, 4), (6, 7), (9, 10), (12, 12), (14, 15)]
    wife, man, dog, again, her, cat = (coreference.Mention.of(words, *span, "x") for span in spans)
    assert [one.kind for one in (wife, dog, her)] == ["proper", "nominal", "pronoun"]
    assert coreference.baselines(again, [man, wife, dog]) == {
        "nearest": 2,
        "same head word": 1,
        "rules": 0,
    }
    assert coreference.baselines(her, [wife, man, again]) == {
        "nearest": 2,
        "same head word": None,
        "rules": 0,
    }
    assert coreference.baselines(cat, [her]) == {"nearest": 0, "same head word": None, "rules": 0}


def test_a_book_is_read_with_its_nested_mentions(book_file):
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


def test_passages_end_with_sentences_and_choose_among_what_came_before(book_file):
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


def test_counts_are_those_worked_out_by_hand():
    choice = coreference.Choice(
        "pronoun", 2, (0, 1), (False, True), {"nearest": 1, "same head word": None}
    )
    attention = torch.zeros(1, 2, 3, 3)
    attention[0, 0, 2] = torch.tensor([0.1, 0.3, 0.6])
    attention[0, 1, 2] = torch.tensor([0.3, 0.1, 0.6])
    counts = coreference.counted(coreference.Passage("a", ("x", "y", "z"), (choice,)), attention)
    twice = counts + counts
    assert twice.correct["pronoun"].tolist() == twice.correct[coreference.ALL].tolist() == [[2, 0]]
    assert twice.instances == {"pronoun": 2, coreference.ALL: 2}
    assert twice.baselines[coreference.ALL, "nearest"] == 2
    assert twice.baselines["pronoun", "same head word"] == 0


def test_the_head_is_chosen_on_one_part_and_measured_on_the_other():
    def counts(all_kinds, proper):
        correct = {coreference.ALL: np.array([all_kinds]), "proper": np.array([proper])}
        return coreference.CoreferenceCounts(
            correct, {(coreference.ALL, "nearest"): 5}, {coreference.ALL: 10, "proper": 4}, 1
        )

    first, second = counts([6, 2], [1, 2]), counts([3, 9], [4, 3])
    everyone, proper = antecedent_scores(first, second)
    assert (everyone.kind, everyone.head, everyone.accuracy_when_chosen) == (
        coreference.ALL,
        0,
        0.6,
    )
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
def test_a_file_that_is_no_book_is_refused(tmp_path, text, message):
    path = tmp_path / "a.conll"
    path.write_text(text)
    with pytest.raises(SurveyError, match=message):
        read_book(path)


def test_books_of_litbank_are_read_whole():
    folder = data_path("text", "litbank", "coref", "conll")
    books = [read_book(path) for path in sorted(folder.iterdir())]
    marks = [path.read_text().count("(") for path in sorted(folder.iterdir())]
    brackets = [book.words.count("(") for book in books]
    # One more bracket in each file's first line.
    assert [len(book.mentions) for book in books] == [
        n - bracket - 1 for n, bracket in zip(marks, brackets, strict=True)
    ]


GAP = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL".replace(" ", "\t")


def test_a_pronoun_of_gap_chooses_between_two_names(tmp_path):
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


def test_real_passages_go_through_a_model():
    passages = []
    for passage in read_gap(data_path("text", "gap", "gap-validation.tsv")):
        for choice in passage.choices:
            assert choice.word not in choice.candidates
        passages.append(passage)
    assert len(passages) == 454
    few = passages[:12]
    counts = count_antecedents(minibert.load(data_path("models", "all-MiniLM-L6-v2")), few)
    n_choices = sum(len(passage.choices) for passage in few)
    assert counts.instances[coreference.ALL] == n_choices
    assert (
        counts.instances[coreference.ALL]
        == counts.instances["masculine"] + counts.instances["feminine"]
    )
    assert counts.correct[coreference.ALL].max() > n_choices / 2


def toy(n_words, heads, generator, kinds):
    """Three heads of attention: 0 attends from head to word, 1 and 2 at random."""
    pairs = torch.rand(3, n_words + 1, n_words + 1, generator=generator)
    pairs[0] *= 0.5
    for word, head in enumerate(heads, start=1):
        pairs[0, head, word] += 0.5
    vectors = torch.zeros(n_words + 1, 4)
    vectors[range(1, n_words + 1), kinds] = 1
    return Example(
        (pairs / 5).half(), vectors, torch.tensor(heads), torch.ones(n_words, dtype=torch.bool)
    )


def treebank(count, seed, *, by_kind):
    """Trees of words that depend on one word, which attention shows or its kind does."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        n_words = int(torch.randint(3, 6, (), generator=generator))
        root = int(torch.randint(1, n_words + 1, (), generator=generator))
        heads = [0 if word == root else root for word in range(1, n_words + 1)]
        kinds = [3 if word == root and by_kind else 0 for word in range(1, n_words + 1)]
        one = toy(n_words, heads, generator, kinds)
        if by_kind:
            one.pairs[:] = torch.rand(one.pairs.shape, generator=generator).half()
        found.append(one)
    return found


def test_scores_are_the_sums_of_the_paper():
    torch.manual_seed(3)
    pairs, vectors = torch.rand(2, 3, 5, 5), torch.randn(2, 5, 7)
    sentences = [Example(pairs[0].half(), vectors[0], torch.zeros(4).long(), torch.ones(4).bool())]
    projection = Projection(sentences, 2)
    probe = PairProbe(3, projection)
    with torch.no_grad():
        probe.weight.normal_()
        found = probe(pairs, vectors)
        words = projection(vectors)
    w, u = probe.weight[:2].detach(), probe.weight[2:].detach()
    for batch in range(2):
        for i in range(5):
            for j in range(1, 5):
                if i == j:
                    assert found[batch, i, j - 1] == -math.inf
                    continue
                v = [
                    torch.cat(
                        [torch.tensor([float(p > 0), float(p == 0)]), (p > 0) * words[batch, p]]
                    )
                    for p in (i, j)
                ]
                score = 0.0
                for k in range(4):
                    onward = float(pairs[batch, k, i, j]) if k < 3 else float(i == 0)
                    back = float(pairs[batch, k, j, i]) if k < 3 else 0.0
                    score += onward * float(w[0, k] @ v[0] + w[1, k] @ v[1])
                    score += back * float(u[0, k] @ v[0] + u[1, k] @ v[1])
                assert float(found[batch, i, j - 1]) == pytest.approx(score, abs=1e-4)


def test_a_projection_keeps_the_principal_dimensions_with_variance_one():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(61, 5, generator=generator) * torch.tensor([9.0, 4.0, 1.0, 0.1, 0.1])
    one = Example(
        torch.zeros(1, 61, 61).half(), vectors, torch.ones(60).long(), torch.ones(60).bool()
    )
    projected = Projection([one], 2)(vectors[1:])
    torch.testing.assert_close(projected.T @ projected / 60, torch.eye(2), atol=1e-4, rtol=0)
    correlation = np.corrcoef(projected[:, 0].numpy(), vectors[1:, 0].numpy())[0, 1]
    assert abs(correlation) > 0.99


def test_a_probe_learns_the_head_that_shows_the_tree_and_no_other():
    train, test = treebank(40, 1, by_kind=False), treebank(30, 2, by_kind=False)
    probe = train_probe(train, training=Training(learning_rate=0.1))
    right, words = attachment(probe, test)
    assert right > 0.95 * words
    onward = (probe.weight[0, :, 0] + probe.weight[1, :, 0]).detach()
    assert onward[:3].argmax() == 0
    again = train_probe(train, training=Training(learning_rate=0.1))
    assert torch.equal(again.weight, probe.weight)


def test_words_tell_what_attention_does_not():
    train, test = treebank(40, 1, by_kind=True), treebank(30, 2, by_kind=True)
    [alone, with_words] = (
        train_probe(train, n_dimensions=n, training=Training(learning_rate=0.1)) for n in (0, 1)
    )
    right, words = attachment(alone, test)
    assert right < 0.7 * words
    right, words = attachment(with_words, test)
    assert right > 0.95 * words


def test_what_does_not_count_is_neither_learned_nor_measured():
    right = treebank(20, 1, by_kind=False)
    for one in right:
        one.counted[-1] = False
    wrong = [replace(one, heads=one.heads.clone()) for one in right]
    for one in wrong:
        one.heads[-1] = (one.heads[-1] + 1) % len(one.heads)
    short = Training(epochs=2)
    probe, other = (train_probe(part, training=short) for part in (right, wrong))
    assert torch.equal(probe.weight, other.weight)
    assert probe.weight.any()
    assert attachment(probe, wrong) == attachment(probe, right)
    assert attachment(probe, wrong)[1] == sum(len(one.heads) - 1 for one in wrong)


def test_too_few_sentences_are_refused():
    with pytest.raises(SurveyError, match="5 sentences are too few"):
        train_probe(treebank(5, 1, by_kind=False))


HORSE = tree("the horse ran away .", "2 3 0 3 3", "det nsubj root advmod punct")


def test_an_example_has_the_attention_of_every_head_and_the_words_embeddings():
    model = minibert.load()
    [one] = examples(model, [HORSE])
    trace = model.trace("the horse ran away .")
    whole = torch.cat([layer.probs[0] for layer in trace])[:, :-1, :-1]
    torch.testing.assert_close(one.pairs.float(), whole, atol=1e-3, rtol=0)
    embeddings = model.body.word.weight[trace.tokens.ids[0, 1:-1]]
    torch.testing.assert_close(one.vectors[1:], embeddings)
    assert not one.vectors[0].any()
    assert one.heads.tolist() == [2, 3, 0, 3, 3]
    assert one.counted.tolist() == [True, True, True, True, False]


def test_distances_have_one_channel_each():
    [one] = examples(minibert.load(), [tree("a " * 13, "2 " + "0 " * 12, "det " + "root " * 12)])
    [far] = with_distances([one])
    assert far.pairs.shape == (2 * FARTHEST, 14, 14)
    assert far.pairs[:, 1:, 1:].sum(0).tolist() == (1 - torch.eye(13)).tolist()
    assert far.pairs[FARTHEST - 1, 5, 4] == far.pairs[FARTHEST, 4, 5] == 1
    assert far.pairs[2 * FARTHEST - 1, 1, 12] == far.pairs[2 * FARTHEST - 1, 1, 13] == 1
    assert not far.pairs[:, 0].any()
    assert far.vectors is one.vectors


def test_branching_takes_a_neighbour_and_a_word_without_one_as_root():
    sentences = examples(minibert.load(), [HORSE])
    assert branching(sentences, 1) == (2, 4)
    assert branching(sentences, -1) == (1, 4)


def test_every_way_is_scored_and_the_untrained_model_gets_the_same_words():
    model = minibert.load()
    untrained = Model.from_config(model.config, tokenizer=model.tokenizer)
    short = Training(epochs=1)
    scores = attachment_scores(
        model, [HORSE] * 10, [HORSE], random_model=untrained, n_dimensions=2, training=short
    )
    assert [one.name for one in scores] == [
        "next word (right-branching)",
        "previous word (left-branching)",
        "distances",
        "distances and words",
        "attention of random weights",
        "attention of random weights and words",
        "attention",
        "attention and words",
    ]
    assert {one.words for one in scores} == {4}
    assert scores[0].score == 0.5
