"""What the heads of a model do over a corpus.

What is read
    documents.py   a corpus as documents, streamed, from text, JSON lines, Parquet and CoNLL-U
    conllu.py      dependency trees
    live.py        one stack of a live model of transformers, read as a loaded model is
What is measured
    run.py         `survey` and its options; ray_workers.py for many processes or machines
    segments.py    documents as tokens that fit the model, and what is known of these
    rows.py        what rows spend by kind of key: from the pass, or from matrices
    loss_gradients.py  how much the loss changes with them, by a second pass
    measures.py    the measures, each declared once
    windows.py     windows of documents, and sums over documents; tables.py: the result
What is written
    collecting.py  the values of chosen points for every token; collected.py reads them back
What is made of a survey
    differences.py what changed between two surveys, head by head
    findings.py    the patterns and the distances of heads, for its report
What heads do
    document_rows.py   rows of attention, of a loaded model or a live one, that these read
    pattern_table.py   ten patterns; patterns.py: the heads that follow them
    distances.py   Jensen-Shannon divergences between heads; head_map.py: points in a plane
    query_key_dimensions.py  how many dimensions carry a head's query·key
    intervals.py   confidence intervals of means and shares
"""

from minibert.survey.collected import Collected
from minibert.survey.collecting import collect
from minibert.survey.conllu import Sentence, read_sentences
from minibert.survey.differences import SurveyDiff, diff
from minibert.survey.documents import Document, Documents, corpus_hash, read_documents
from minibert.survey.run import survey
from minibert.survey.tables import Survey

__all__ = [
    "Collected",
    "Document",
    "Documents",
    "Sentence",
    "Survey",
    "SurveyDiff",
    "collect",
    "corpus_hash",
    "diff",
    "read_documents",
    "read_sentences",
    "survey",
]
