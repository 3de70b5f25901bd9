"""What attention knows of syntax and coreference (Clark et al. 2019, sections 4 and 5).

word_attention.py     attention between words, and the pass over texts given as words
dependency.py         heads as dependency classifiers, relation by relation
coreference.py        heads as antecedent selectors; coreference_files.py reads LitBank and GAP,
                      mentions.py has head words, kinds and the rules heads are compared with
pair_probe.py         a trained probe on pairs of words; pair_features.py is what it sees
parser.py             attachment scores of probes and baselines
counts.py             sums of counts, shares and their confidence intervals
"""
