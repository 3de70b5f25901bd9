"""What attention knows of syntax and coreference (Clark et al. 2019, sections 4 and 5).

word_attention.py     attention between words, and the pass over texts given as words
dependency.py         heads as dependency classifiers, relation by relation
coreference.py        heads as antecedent selectors, from LitBank's books and GAP's pronouns
pair_probe.py         a trained probe on pairs of words, and attachment scores

    from minibert.survey.conllu import read_sentences
    from minibert.survey.probes import count_dependencies, relation_scores

    dev, test = (count_dependencies(model, read_sentences(path)) for path in paths)
    scores = relation_scores(dev, test, least=20)
"""

from minibert.survey.probes.coreference import (
    AntecedentScore,
    CoreferenceCounts,
    antecedent_scores,
    count_antecedents,
    cut_book,
    read_book,
    read_gap,
)
from minibert.survey.probes.dependency import (
    DependencyCounts,
    RelationScore,
    count_dependencies,
    relation_scores,
)
from minibert.survey.probes.pair_probe import (
    AttachmentScore,
    PairProbe,
    Training,
    attachment,
    attachment_scores,
    examples,
    train_probe,
    with_distances,
)
from minibert.survey.probes.word_attention import word_attention, word_traces

__all__ = [
    "AntecedentScore",
    "AttachmentScore",
    "CoreferenceCounts",
    "DependencyCounts",
    "PairProbe",
    "RelationScore",
    "Training",
    "antecedent_scores",
    "attachment",
    "attachment_scores",
    "count_antecedents",
    "count_dependencies",
    "cut_book",
    "examples",
    "read_book",
    "read_gap",
    "relation_scores",
    "train_probe",
    "with_distances",
    "word_attention",
    "word_traces",
]
