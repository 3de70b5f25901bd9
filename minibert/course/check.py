"""`check` says whether an answer is right and, if not, which mistake was probably made."""

from minibert.course import attending, causes, writing
from minibert.course.answers import Exercise, Verdict
from minibert.errors import MinibertError, did_you_mean
from minibert.languages import strings, translated

EXERCISES: dict[str, Exercise] = {
    name: exercise
    for unit in (attending, causes, writing)
    for name, exercise in unit.EXERCISES.items()
}


def check(name: str, answer: object = ..., *, language: str = "en") -> Verdict:
    """Whether an answer is right; the verdict is true or false, and prints as a sentence.

    `name` is the exercise, as "2-weight"; `exercises()` lists them. The answer is a number, a list
    of numbers, one of the choices, heads as "0-1" or ["1-0", "1-2"], or in unit 8 a function of
    torch tensors. Without an answer (`...` or None) the question is given back. The right answer is
    computed from the embedded models. `language` is one of `minibert.languages.LANGUAGES`; German
    lacks only the slips of the functions of unit 8.

    Raises MinibertError for a name that is not an exercise and for what is not an answer of its
    kind.
    """
    if not isinstance(name, str) or name not in EXERCISES:
        raise MinibertError(
            f"{name!r:.80} is not an exercise of the course{did_you_mean(name, EXERCISES)}; "
            f"there are {', '.join(EXERCISES)}."
        )
    texts = strings(language, "course")
    exercise = EXERCISES[name]
    if answer is None or answer is ...:
        found = Verdict(False, f"{exercise.asks}\nNo guess yet: put one in place of the dots.")
    else:
        found = exercise.judge(answer)
    return Verdict(found.right, translated(found.said, texts))


def exercises() -> dict[str, str]:
    """The questions of all exercises by name, in the order of the units."""
    return {name: exercise.asks for name, exercise in EXERCISES.items()}
