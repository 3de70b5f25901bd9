"""Heads as antecedent selectors: whom does the head word of a mention attend to?

Clark et al. 2019, section 4.3. Of the mentions before it, a mention's head word attends to the head
word of one the most; that is right where both stand for the same person or thing. The rules that
heads are compared with are the paper's, after Lee et al. 2011. Neither LitBank nor GAP has parses,
so a mention's head word and kind come from the words alone.

LitBank: Bamman et al. 2020, https://arxiv.org/abs/1912.01140. GAP: Webster et al. 2018,
https://arxiv.org/abs/1810.05201.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minibert.errors import SurveyError
from minibert.model import Model
from minibert.quantities import Float
from minibert.survey.intervals import Counts, added, share, wilson
from minibert.survey.probes.word_attention import tokens_of_words, word_traces
from minibert.untrusted import lines_of, open_regular


@dataclass(frozen=True)
class Features:
    """What two mentions of one thing agree in; None where the words do not say."""

    person: int | None = 3
    number: str | None = None
    gender: str | None = None

    def agree(self, other: "Features") -> bool:
        """Whether nothing that both say differs."""
        pairs = (
            (self.person, other.person),
            (self.number, other.number),
            (self.gender, other.gender),
        )
        return all(one is None or two is None or one == two for one, two in pairs)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _table(lines: Sequence[tuple[str, Features]]) -> dict[str, Features]:
    return {word: features for words, features in lines for word in words.split()}


PRONOUNS = _table(
    [
        ("he him his himself", Features(3, "singular", "masculine")),
        ("she her hers herself", Features(3, "singular", "feminine")),
        ("it its itself", Features(3, "singular", "neuter")),
        ("they them their theirs themselves", Features(3, "plural")),
        ("i me my mine myself", Features(1, "singular")),
        ("we us our ours ourselves", Features(1, "plural")),
        ("you your yours yourself yourselves ye thou thee thy thine thyself", Features(2)),
        ("who whom whose which that", Features(None)),
    ]
)
_GENDERS = {
    word: gender
    for gender, words in {
        "masculine": "mr mr. sir lord king prince duke count baron master man gentleman boy lad "
        "fellow father papa dad son brother uncle nephew husband grandfather grandson widower men "
        "gentlemen boys brothers sons fathers fellows",
        "feminine": "mrs mrs. miss ms ms. lady queen princess duchess countess mistress madam "
        "madame woman girl lass maid mother mamma mama daughter sister aunt niece wife grandmother "
        "granddaughter widow women ladies girls sisters daughters mothers",
    }.items()
    for word in words.split()
}
_PLURALS = _set("people men women children folk folks gentlemen police")
# What comes behind a noun and is no part of its name.
_AFTER_A_HEAD = _set(
    "of in on at for with from to by about among between near under over who whom which that whose "
    "where when and or , ; : ( -- - \u2014 called named"
)
_POSSESSIVES = {"'s", "'", "’s", "’"}


@dataclass(frozen=True)
class Mention:
    """Some words of a text that stand for something: words[first] to words[last].

    entity   the same for mentions of the same person or thing
    head     the place of its head word
    kind     pronoun, proper (the head word has a capital) or nominal
    """

    first: int
    last: int
    entity: str
    head: int
    kind: str
    text: str
    head_text: str
    features: Features

    @classmethod
    def of(cls, words: Sequence[str], first: int, last: int, entity: str) -> "Mention":
        """The mention that these words of a text are."""
        inside = words[first : last + 1]
        head = first + head_place(inside)
        return cls(
            first=first,
            last=last,
            entity=entity,
            head=head,
            kind=_kind(inside, words[head]),
            text=" ".join(inside).lower(),
            head_text=words[head].lower(),
            features=features_of(inside),
        )


def head_place(words: Sequence[str]) -> int:
    """The place of a mention's head word: the last before "of", "who", a comma, or the like.

    A possessive 's at the end is left out.
    """
    ends = (n for n, word in enumerate(words) if n and word.lower() in _AFTER_A_HEAD)
    end = next(ends, len(words))
    while end > 1 and words[end - 1] in _POSSESSIVES:
        end -= 1
    return end - 1


def _kind(words: Sequence[str], head: str) -> str:
    if len(words) == 1 and head.lower() in PRONOUNS:
        return "pronoun"
    return "proper" if head[:1].isupper() else "nominal"


def features_of(words: Sequence[str]) -> Features:
    """Person, number and gender of a mention, as far as its words say."""
    lowered = [word.lower() for word in words]
    if len(words) == 1 and lowered[0] in PRONOUNS:
        return PRONOUNS[lowered[0]]
    place = head_place(words)
    # "the king's daughter": the head's own gender comes before that of words around it.
    near = [lowered[place], *lowered[:place]]
    gender = next((_GENDERS[word] for word in near if word in _GENDERS), None)
    return Features(3, _number(words, lowered, place), gender)


def _number(words: Sequence[str], lowered: Sequence[str], place: int) -> str:
    head = lowered[place]
    proper = words[place][:1].isupper()
    several = head.endswith("s") and not head.endswith("ss") and not proper
    if "and" in lowered or head in _PLURALS or several:
        return "plural"
    return "singular"


def baselines(mention: Mention, earlier: Sequence[Mention]) -> dict[str, int | None]:
    """The place in `earlier` that each rule chooses, None where it chooses nothing.

    nearest         the mention before
    same head word  the nearest with the same head word
    rules           the nearest with the same words; else with the same head word; else that
                    agrees in person, number and gender; else the nearest
    """

    def last(found: Sequence[int]) -> int | None:
        return found[-1] if found else None

    same_text = last([n for n, one in enumerate(earlier) if one.text == mention.text])
    same_head = last([n for n, one in enumerate(earlier) if one.head_text == mention.head_text])
    agreeing = last([n for n, one in enumerate(earlier) if one.features.agree(mention.features)])
    nearest = len(earlier) - 1 if earlier else None
    sieves = (same_text, same_head, agreeing, nearest)
    return {
        "nearest": nearest,
        "same head word": same_head,
        "rules": next((found for found in sieves if found is not None), None),
    }


#: The name of all kinds of mention together.
ALL = "all"


@dataclass(frozen=True)
class Choice:
    """One mention that has to find what it stands for among candidates.

    kind        of mention, for the table
    word        the place of the mention's head word in its passage
    candidates  the places of theirs
    right       of each candidate, whether it is the same person or thing
    picks       of each baseline by its name, the number of the candidate it chooses, or None
    """

    kind: str
    word: int
    candidates: tuple[int, ...]
    right: tuple[bool, ...]
    picks: Mapping[str, int | None]


@dataclass(frozen=True)
class Passage:
    """Words that a model reads at once, and the choices in them."""

    id: str
    words: tuple[str, ...]
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class CoreferenceCounts:
    """How often each head, and each baseline, chose rightly.

    correct    of each kind of mention (layer, head)
    baselines  of each kind and name of a baseline
    instances  of each kind
    """

    correct: Mapping[str, Counts]
    baselines: Mapping[tuple[str, str], int]
    instances: Mapping[str, int]
    passages: int

    def __add__(self, other: "CoreferenceCounts") -> "CoreferenceCounts":
        """The counts of both parts together."""
        return CoreferenceCounts(
            correct=added(self.correct, other.correct),
            baselines=added(self.baselines, other.baselines),
            instances=added(self.instances, other.instances),
            passages=self.passages + other.passages,
        )


@dataclass(frozen=True)
class AntecedentScore:
    """The best head for a kind of mention, chosen on one part of the texts, measured on another.

    Accuracies are shares, 0 to 1; `low` and `high` are the 95 % interval of `accuracy`.
    `accuracy_of_one` is that of the head that is best for all kinds together; `baselines` are
    measured on the same mentions.
    """

    kind: str
    instances: int
    layer: int
    head: int
    accuracy_when_chosen: float
    accuracy: float
    low: float
    high: float
    accuracy_of_one: float
    baselines: Mapping[str, float]


def chosen_by_attention(attention: Float[Tensor, "layer head word word"], choice: Choice) -> Counts:
    """The number of the candidate that each head (layer, head) chooses; the first of equals."""
    row = attention[:, :, choice.word, list(choice.candidates)]
    return row.argmax(-1).numpy(force=True)


def count_antecedents(model: Model, passages: Iterable[Passage]) -> CoreferenceCounts:
    """How often each head of a model chooses rightly, and each baseline.

    Passages without a choice are left out. Raises SurveyError for a passage that the model cannot
    read; see `word_traces`.
    """
    total = CoreferenceCounts({}, {}, {}, 0)
    for passage, words in word_traces(model, [one for one in passages if one.choices]):
        attention = torch.stack([words.attention(n) for n in range(model.config.n_layers)])
        total += counted(passage, attention)
    return total


def counted(
    passage: Passage, attention: Float[Tensor, "layer head word word"]
) -> CoreferenceCounts:
    """The counts of one passage."""
    correct: dict[str, Counts] = {}
    picked: dict[tuple[str, str], int] = {}
    instances: dict[str, int] = {}
    for choice in passage.choices:
        hits = np.array(choice.right)[chosen_by_attention(attention, choice)].astype(np.int64)
        picks = {
            name: int(pick is not None and choice.right[pick])
            for name, pick in choice.picks.items()
        }
        for kind in (choice.kind, ALL):
            correct = added(correct, {kind: hits})
            picked = added(picked, {(kind, name): hit for name, hit in picks.items()})
            instances = added(instances, {kind: 1})
    return CoreferenceCounts(correct, picked, instances, 1)


def antecedent_scores(
    chosen_on: CoreferenceCounts, measured_on: CoreferenceCounts
) -> list[AntecedentScore]:
    """The best head for each kind of mention, all together first.

    Heads are chosen on one part of the texts and measured on another. Of equals the first is
    chosen. Kinds that one of the parts lacks are left out.
    """
    kinds = [kind for kind in chosen_on.instances if kind in measured_on.instances]
    return [
        _score(kind, chosen_on, measured_on)
        for kind in sorted(kinds, key=lambda kind: (kind != ALL, -measured_on.instances[kind]))
    ]


def _score(
    kind: str, chosen_on: CoreferenceCounts, measured_on: CoreferenceCounts
) -> AntecedentScore:
    correct, total = chosen_on.correct[kind], chosen_on.instances[kind]
    layer, head = _best(correct)
    measured = measured_on.instances[kind]
    hits = int(measured_on.correct[kind][layer, head])
    low, high = wilson(hits, measured)
    of_one = int(measured_on.correct[kind][_best(chosen_on.correct[ALL])])
    names: Sequence[str] = [name for other, name in measured_on.baselines if other == kind]
    return AntecedentScore(
        kind=kind,
        instances=measured,
        layer=layer,
        head=head,
        accuracy_when_chosen=share(int(correct[layer, head]), total),
        accuracy=share(hits, measured),
        low=low,
        high=high,
        accuracy_of_one=share(of_one, measured),
        baselines={name: share(measured_on.baselines[kind, name], measured) for name in names},
    )


def _best(correct: Counts) -> tuple[int, int]:
    layer, head = np.unravel_index(int(correct.argmax()), correct.shape)
    return int(layer), int(head)


_LONGEST_LINE = 2**20
_MARK = re.compile(r"(\()?(\d+)(\))?")
_WORD = re.compile(r"\w+|[^\w\s]")
_GAP_COLUMNS = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL"


@dataclass(frozen=True)
class Book:
    """A text with its gold mentions, in order; of those that begin together the longest first.

    sentences   the place of the first word of each
    """

    id: str
    words: tuple[str, ...]
    sentences: tuple[int, ...]
    mentions: tuple[Mention, ...]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The number and text of each line; SurveyError for what is no line of UTF-8 text."""
    with open_regular(path, SurveyError) as file:
        for number, line in enumerate(lines_of(file, _LONGEST_LINE), start=1):
            if len(line) > _LONGEST_LINE:
                raise SurveyError(f"{path}, line {number}: more than {_LONGEST_LINE} bytes.")
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                raise SurveyError(
                    f"{path}, line {number}: byte {error.start} is not UTF-8; convert the file."
                ) from None


def read_book(path: str | Path) -> Book:
    """A book of LitBank's folder coref/conll.

    Raises SurveyError, with the line's number, for another form of file and for a mention that
    does not end.
    """
    path = Path(path)
    words: list[str] = []
    sentences = [0]
    open_marks: dict[str, list[int]] = {}
    spans: list[tuple[int, int, str]] = []
    for number, line in _lines(path):
        if line.startswith("#"):
            continue
        if not line.strip():
            if sentences[-1] < len(words):
                sentences.append(len(words))
            continue
        columns = line.split("\t")
        if len(columns) < 5:
            raise SurveyError(
                f"{path}, line {number}: {len(columns)} columns; expected those of CoNLL-2012, "
                "with tabs between them, the word in the fourth and coreference in the last."
            )
        spans += _ended(columns[-1].strip(), len(words), open_marks, f"{path}, line {number}")
        words.append(columns[3])
    left = [entity for entity, places in open_marks.items() if places]
    if left or not words:
        what = f"the mention of entity {left[0]} does not end" if left else "there is no word"
        raise SurveyError(f"{path}: {what}; expected a whole file of LitBank's coref/conll.")
    spans.sort(key=lambda span: (span[0], -span[1]))
    mentions = tuple(Mention.of(words, *span) for span in spans)
    starts = sentences if sentences[-1] < len(words) else sentences[:-1]
    return Book(path.stem, tuple(words), tuple(starts), mentions)


def _ended(
    marks: str, place: int, open_marks: dict[str, list[int]], where: str
) -> list[tuple[int, int, str]]:
    """The mentions that end at a word: first place, last place, entity."""
    spans = []
    for mark in marks.split("|") if marks not in ("", "_", "-", "*") else ():
        match = _MARK.fullmatch(mark)
        if match is None or not (match[1] or match[3]):
            raise SurveyError(f"{where}: {mark!r:.80} is no mark of a mention such as (3 or 3).")
        entity = match[2]
        if match[1]:
            open_marks.setdefault(entity, []).append(place)
        if match[3]:
            if not open_marks.get(entity):
                raise SurveyError(f"{where}: a mention of entity {entity} ends before it begins.")
            spans.append((open_marks[entity].pop(), place, entity))
    return spans


def cut_book(model: Model, book: Book, longest: int) -> list[Passage]:
    """The book in passages of at most `longest` tokens, cut between sentences where possible.

    The choices are the mentions that stand for something mentioned before in their passage; the
    candidates are the mentions before, but for those with the same head word's place.
    """
    n_special = len(model.tokenizer("a").ids[0]) - 1 if model.tokenizer is not None else 0
    sizes = tokens_of_words(model, book)
    ends, used = [0], n_special
    for place, size in enumerate(sizes):
        while used + size > longest and place > ends[-1]:
            near = [start for start in book.sentences if ends[-1] < start <= place]
            ends.append(near[-1] if near else place)
            used = n_special + sum(sizes[ends[-1] : place])
        used += size
    ends.append(len(book.words))
    return [_passage(book, first, end) for first, end in pairwise(ends)]


def _passage(book: Book, first: int, end: int) -> Passage:
    mentions = [one for one in book.mentions if first <= one.first and one.last < end]
    choices = []
    for number, mention in enumerate(mentions):
        earlier = [one for one in mentions[:number] if one.head != mention.head]
        right = tuple(one.entity == mention.entity for one in earlier)
        if any(right):
            choices.append(
                Choice(
                    kind=mention.kind,
                    word=mention.head - first,
                    candidates=tuple(one.head - first for one in earlier),
                    right=right,
                    picks=baselines(mention, earlier),
                )
            )
    return Passage(f"{book.id}, words {first} to {end - 1}", book.words[first:end], tuple(choices))


def read_gap(path: str | Path) -> Iterator[Passage]:
    """The passages of a GAP file, each with one choice between the names A and B.

    The kind is the pronoun's gender. Passages where neither name is right have no choice.
    Raises SurveyError, with the line's number, for another form of file.
    """
    path = Path(path)
    for number, line in _lines(path):
        columns = line.split("\t")
        if number == 1:
            if columns != _GAP_COLUMNS.split():
                raise SurveyError(f"{path}: expected GAP's columns, {_GAP_COLUMNS}.")
            continue
        try:
            yield _gap_passage(columns)
        except (ValueError, IndexError) as error:
            raise SurveyError(
                f"{path}, line {number}: expected GAP's eleven columns, with each name at its "
                f"place in the text ({error})."
            ) from None


def _gap_passage(columns: Sequence[str]) -> Passage:
    name, text, pronoun, at, *rest, _ = columns
    names = [(rest[0], int(rest[1]), rest[2]), (rest[3], int(rest[4]), rest[5])]
    found = list(_WORD.finditer(text))
    word, _ = _place(found, pronoun, int(at))
    spans = [_place(found, one, start) for one, start, _ in names]
    words = tuple(match[0] for match in found)
    candidates = tuple(first + head_place(words[first : last + 1]) for first, last in spans)
    if any(answer.upper() not in ("TRUE", "FALSE") for _, _, answer in names):
        raise ValueError("whether a name is right is neither TRUE nor FALSE")
    right = tuple(answer.upper() == "TRUE" for _, _, answer in names)
    nearest = min(range(2), key=lambda one: abs(candidates[one] - word))
    earlier = min(range(2), key=lambda one: candidates[one])
    gender = PRONOUNS[pronoun.lower()].gender if pronoun.lower() in PRONOUNS else None
    choice = Choice(
        kind=gender or "other",
        word=word,
        candidates=candidates,
        right=right,
        picks={"nearest": nearest, "first": earlier},
    )
    return Passage(name, words, (choice,) if any(right) else ())


def _place(words: Sequence[re.Match[str]], name: str, start: int) -> tuple[int, int]:
    """The places of the first and last word of a name that stands at this character."""
    inside = [
        place
        for place, match in enumerate(words)
        if match.start() < start + len(name) and match.end() > start
    ]
    return inside[0], inside[-1]
