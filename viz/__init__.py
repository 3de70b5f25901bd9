"""Pictures of attention: one self-contained HTML file, opened without a network, and figures.

viewing.py   `view` for traces and `attention_page` for tensors
drop_in.py   `head_view` and `model_view` as BertViz has them; in_cell.py, shown in a cell at once
neuron_view.py   `show` and `get_attention` as BertViz has them
one_text.py   a text in a model, however model and tokenizer are called; output_trace.py, in one of
    BertViz' own models
page.py      a page as a value that can be saved; notebook.py, as a notebook shows it
plots/       figures for print (matplotlib)
survey_report.py   the report of a survey (survey_facts.py: how it was made); survey_pages.py, its
    examples; survey_folder.py, both in its folder
saving.py    a page or figure written to a file
example.py   one text in one model, as a page holds it
trace_example.py   the same, from a trace
lens.py      what each layer would predict, made small
inputs.py    attention from outside, checked before work starts
labels.py    what a page says about each token
payload.py   numbers as compact binary
document.py  the HTML of a page, from page.html and built/
static/      the browser's side: core <- marks <- views, a folder for each view (see its README.md)
built/       the same, bundled and minified by `npm run build`: what a page is made of
"""

from minibert.viz.drop_in import head_view, model_view
from minibert.viz.page import Page
from minibert.viz.viewing import attention_page, view

__all__ = ["Page", "attention_page", "head_view", "model_view", "view"]
