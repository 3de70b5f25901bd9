"""Pictures of attention: one self-contained HTML file, opened without a network, and figures.

viewing.py   `view` for traces and `attention_page` for tensors
drop_in.py   `head_view` and `model_view` as BertViz has them
neuron_view.py   `show` as BertViz has it, of any model
page.py      a page as a value that can be saved, and as a cell shows it
plots.py     figures for print (matplotlib)
survey_folder.py   the report of a survey and its examples, in its folder
example.py   one text in one model, as a page holds it
vectors.py   query, key and value, as precise as a page needs them
inputs.py    attention from outside, checked before work starts
payload.py   numbers as compact binary
document.py  the HTML of a page, from page.html and built/, written to a file
live.py      a page that runs a model; engine_edits.py, the edits that it asks for; serve/, a server
static/      the browser's side: core <- marks <- views, a folder for each view (see its README.md)
built/       the same, bundled and minified by `npm run build`: what a page is made of
"""

from minibert.viz.drop_in import head_view, model_view
from minibert.viz.page import Page
from minibert.viz.viewing import attention_page, view

__all__ = ["Page", "attention_page", "head_view", "model_view", "view"]
