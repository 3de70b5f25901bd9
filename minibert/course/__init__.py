"""The exercises of docs/course: a guess or a function goes in, and what is wrong with it comes out.

    answers.py    kinds of answers, and the replies to each
    texts.py      the sentences of the course
    lab.py        what the units compute alike: models, one pass, a divergence
    naming.py     judges a function that a student wrote, and names its slip
    attending.py  units 0 to 4; causes.py: 5 to 7; writing.py: 8
    check.py      check and exercises

Right answers are computed from the embedded models when they are asked for.
"""

from minibert.course.answers import Verdict
from minibert.course.check import check, exercises

__all__ = ["Verdict", "check", "exercises"]
