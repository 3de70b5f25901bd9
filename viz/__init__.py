"""Pictures of attention: one self-contained HTML file, opened without a network, and figures.

page.py      the public functions; a page as a value that can be saved
plots.py     figures for print (matplotlib): the heads of a model forming, and the names of
             plots_trace.py      a head, every head, statistics by layer
             plots_heat.py       tables in colour
             plots_tokens.py     tokens: matrices and bars; plots_grid.py, many heads
             plots_terms.py      the terms of a sum, singular values and eigenvalues
             plots_lens.py       the logit lens as a table
             plots_labels.py     tokens as labels that fit
             plots_base.py       a sheet to draw on; plots_figure.py, what comes out
             plots_style.py      matplotlib, if it is there, and one style
scores_log.py   what training logged, read for plots.py
saving.py    a page or figure written to a file
inputs.py    attention from outside, checked before work starts
labels.py    what a page says about each token
payload.py   numbers as compact binary
bundle.py    template, style and ES modules as one file
static/      the browser's side, one picture a file
"""

from minibert.viz.page import Page, attention_page, head_page

__all__ = ["Page", "attention_page", "head_page"]
