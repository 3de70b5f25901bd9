"""Figures for print, by matplotlib, which the extra `plots` brings.

trace.py     of a trace: one head, all heads, statistics by layer
training.py  of what `minibert train` logged (scores_log.py): how the heads of a model form
heat.py grid.py lens.py terms.py tokens.py   what the results of minibert.analysis draw themselves
             with, by `.plot()`
base.py figure.py labels.py style.py         what all of them share
"""

from minibert.viz.plots.trace import attention_grid, attention_map, by_layer, head_statistic
from minibert.viz.plots.training import check_output, training_scores

__all__ = [
    "attention_grid",
    "attention_map",
    "by_layer",
    "check_output",
    "head_statistic",
    "training_scores",
]
