"""The texts that a page with a model shows a head over, beside the reader's own."""

from minibert.survey.sample_texts import SAMPLE_PAIRS

__all__ = ["samples"]


def samples(*, pairs: bool) -> list[list[str]]:
    """Two texts each for a model that takes pairs, else the two as one text."""
    return [list(pair) if pairs else [" ".join(pair)] for pair in SAMPLE_PAIRS]
