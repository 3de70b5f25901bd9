"""Figures for print, by matplotlib, which the extra `plots` brings.

results.py   of any Result, by its axes: what `.plot()` draws
training.py  of what `minibert train` logged: how the heads of a model form
sheet.py     the sheet they are drawn on, its style, its labels and its file
"""

from minibert.viz.plots.sheet import check_output
from minibert.viz.plots.training import training_scores

__all__ = ["check_output", "training_scores"]
