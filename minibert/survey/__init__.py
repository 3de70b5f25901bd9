"""What the heads of a model do over a corpus.

What is read
    documents.py   a corpus as documents, streamed (formats.py: the kinds of files)
    conllu.py      dependency trees
What is written
    collecting.py  the values of chosen points for every token (packed_pass.py, growing.py,
                   array_files.py); collected.py reads them back
What is made of a survey
    differences.py what changed between two surveys, head by head (assignment.py)
    findings.py    the patterns and the distances of heads, for its report
"""

from minibert.survey.collected import Collected
from minibert.survey.collecting import collect
from minibert.survey.conllu import Sentence, read_sentences
from minibert.survey.differences import SurveyDiff, diff
from minibert.survey.documents import Document, Documents, corpus_hash, read_documents

__all__ = [
    "Collected",
    "Document",
    "Documents",
    "Sentence",
    "SurveyDiff",
    "collect",
    "corpus_hash",
    "diff",
    "read_documents",
    "read_sentences",
]
