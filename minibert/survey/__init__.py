"""What the heads of a model do over a corpus.

What is read
    documents.py   a corpus as documents, streamed (formats.py: the kinds of files)
    conllu.py      dependency trees
What is measured
    run.py         `survey`: windows.py of documents, cut by segments.py, kept in parts.py
                   (output_folder.py); ray_workers.py for many processes or machines
    rows.py        what rows spend by kind of key (token_kinds.py): from the pass
                   (pass_masses.py), or from matrices
    loss_gradients.py  how much the loss (objective.py) changes with them, by a second pass
    measures.py    the measures, each declared once; sums.py over documents; tables.py: the result
What is written
    collecting.py  the values of chosen points for every token (packed_pass.py, growing.py,
                   array_files.py); collected.py reads them back
What is made of a survey
    differences.py what changed between two surveys, head by head (assignment.py)
    findings.py    the patterns and the distances of heads, for its report
What heads do
    document_rows.py   rows of attention, of a loaded model or a live one, that these read
    patterns.py    heads named by ten patterns (pattern_table.py); head_patterns.py: the result
    distances.py   Jensen-Shannon divergences between heads; head_map.py: points and clusters
    query_key_dimensions.py  how many dimensions carry a head's query·key
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
