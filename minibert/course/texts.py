"""The sentences of the course."""

HORSE = "the horse quickly ran away"
TIRED = "the horses [MASK] very tired."
ORDER = "the small horse ran into the old house and the children were happy"
BOYS = "The boys [MASK] very tired."
FAR = "the men who saw the horse [MASK] very tired."
LEAVES = ("leaves fall in autumn", "autumn is marked by colorful foliage")
REVIEW = "I did not really enjoyed this movie. It was fantastic!"

_NOUNS = {
    "boy": "boys", "girl": "girls", "horse": "horses", "man": "men", "bird": "birds",
    "friend": "friends", "child": "children", "tree": "trees", "house": "houses",
    "woman": "women",
}  # fmt: skip
_ENDINGS = (
    "very tired.", "very happy.", "in the garden.", "very old.", "not there.", "near the river.",
)  # fmt: skip
PAIRS = tuple(
    (f"The {one} [MASK] {ending}", f"The {many} [MASK] {ending}")
    for one, many in _NOUNS.items()
    for ending in _ENDINGS
)
"""Sixty pairs of one subject and of many, the position of the subject being 2."""

_WORDS = (
    "red", "horse", "blue", "door", "green", "tree", "book", "water", "stone", "house", "child",
    "king", "fire", "road", "boat", "bird", "star", "ship", "hand", "wall",
)  # fmt: skip


def _drawn(number: int, length: int) -> list[list[str]]:
    """Lists of different words, by the generator of Park and Miller 1988 from seed 1."""
    state, found = 1, []
    for _ in range(number):
        words: list[str] = []
        while len(words) < length:
            state = state * 48271 % (2**31 - 1)
            word = _WORDS[state % len(_WORDS)]
            if word not in words:
                words.append(word)
        found.append(words)
    return found


def copying_text(words: list[str], again: int) -> str:
    """The words, and the first `again` of them once more."""
    return " ".join([*words, *words[:again]])


COPIED = tuple(_drawn(100, 7))
"""A hundred lists of seven words in no order."""

PRAISES = (
    "The food was delicious and the staff were friendly.",
    "I love this book.",
    "What a wonderful evening!",
    "The battery lasts long and the sound is great.",
    "This is the best film I have seen in years.",
    "Everything works perfectly and I am very happy with it.",
    "A beautiful story with excellent actors.",
    "We will come back, the service was fantastic.",
    "It is a pleasure to use and easy to learn.",
    "I highly recommend this place.",
    "Great quality for a good price.",
    "The music is lovely and the ending made me smile.",
)
COMPLAINTS = (
    "The food was awful and the staff were rude.",
    "I hate this book.",
    "What a terrible evening!",
    "The battery died after a day and the sound is poor.",
    "This is the worst film I have seen in years.",
    "Nothing works and I am very disappointed with it.",
    "A boring story with bad actors.",
    "We will never come back, the service was horrible.",
    "It broke at once and was a waste of money.",
    "I would avoid this place.",
    "Poor quality for a high price.",
    "The plot is dull and the ending made me angry.",
)

LISTED = " river window summer horse garden letter morning river window summer"
"""Seven words in no order, and the first three of them again; tiny-gpt2 continues with “ horse”."""
SEPARATED = "the horse quickly ran away from the old house"
"""A sentence in which most heads of the later layers of tiny-bert look at [SEP]."""
