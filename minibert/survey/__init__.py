"""What the heads of a model do over a corpus.

What is read
    documents.py   a corpus as documents, streamed, from text, JSON lines and Parquet
    runs.py        documents in windows, the steps of a run that may be interrupted, and its folder
    segments.py    documents as parts that fit the model, and what is known of their tokens
    live.py        one stack of a live model of transformers, read as a loaded model is
What is measured
    run.py         `survey` and its options
    rows.py        what rows of attention spend by kind of key, from the pass
    measures.py    the measures, each declared once
    sums.py        sums over documents; tables.py: the result, and how sure it is
What is written
    collecting.py  the values of chosen points for every token, and how they are read back
What heads do
    document_rows.py   whole rows of attention, of a loaded model or a live one
    patterns.py        the heads that follow the patterns of analysis/patterns.py
    reasons.py         who feeds the queries, keys and values of heads
"""

from minibert.survey.collecting import Collected, collect
from minibert.survey.documents import Document, Documents, read_documents
from minibert.survey.run import survey
from minibert.survey.sample_texts import SAMPLE_PAIRS
from minibert.survey.tables import Survey

__all__ = [
    "SAMPLE_PAIRS",
    "Collected",
    "Document",
    "Documents",
    "Survey",
    "collect",
    "read_documents",
    "survey",
]
