"""Mentions of people and things in a text, and what rules say about which earlier one is meant.

The rules are those that Clark et al. 2019, section 4.3, compare heads with, after Lee et al. 2011.
Neither LitBank nor GAP has parses, so a mention's head word and kind come from the words alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PRONOUNS", "Features", "Mention", "baselines", "features_of", "head_place"]


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
