"""Figures for print, by matplotlib, which the extra `plots` brings.

results.py   of any Result, by its axes: what `.plot()` draws
trace.py     of a trace: one head, all heads, statistics by layer
training.py  of what `minibert train` logged: how the heads of a model form
bench.py     of what `minibert bench` measured
panels.py    heat maps, small maps of many heads, bars and spectra
sheet.py     the sheet they are drawn on, its style, its labels and its file
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
