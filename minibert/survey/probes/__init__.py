"""What attention knows of syntax and coreference (Clark et al. 2019, sections 4 and 5).

word_attention.py    attention between words, and the pass over texts given as words
dependency.py        heads as dependency classifiers, relation by relation
counts.py            shares and their confidence intervals
"""
