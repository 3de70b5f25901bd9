"""A survey of made-up sentences with a small model, in a process that can be killed."""

from pathlib import Path

TEXT = "the horse ran away , and a boat turned slowly near the river . it was dark there"
WORDS = TEXT.split()
# Words of a long text: more than the embedded model has positions.
LONG = 300


def texts(count=60):
    """Sentences of different lengths, every seventh of them longer than the model has positions."""
    made = []
    for n in range(count):
        length = LONG if n % 7 == 3 else 3 + n % 11
        made.append(" ".join(WORDS[(n * 5 + i * i) % len(WORDS)] for i in range(length)))
    return made


def run(folder, documents=None, **options):
    """A survey of the embedded model into the folder, in windows of four documents."""
    import torch

    import minibert
    from minibert.survey import runs
    from minibert.survey.run import survey

    torch.set_num_threads(1)
    before, runs.DOCUMENTS = runs.DOCUMENTS, 4
    try:
        given = texts() if documents is None else documents
        return survey(minibert.load(), given, output=folder, batch_tokens=256, **options)
    finally:
        runs.DOCUMENTS = before


def contents(folder: Path):
    """Every file of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
