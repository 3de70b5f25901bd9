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
stored.py    live pages of embedded models, without torch
saved_trace.py   a saved trace as a page reads it, without torch
live.py      a page that runs a model; engine_edits.py, the edits that it asks for; serve/, a server
static/      the browser's side: core <- marks <- views, a folder for each view (see its README.md)
built/       the same, bundled and minified by `npm run build`: what a page is made of
"""

from typing import TYPE_CHECKING

from minibert.doors import attributes

if TYPE_CHECKING:
    from minibert.viz.drop_in import head_view, model_view
    from minibert.viz.page import Page
    from minibert.viz.viewing import attention_page, view
else:
    # Live pages of embedded models are written without torch, so nothing is imported here.
    __getattr__ = attributes(
        __name__,
        {
            "Page": "page",
            "attention_page": "viewing",
            "head_view": "drop_in",
            "model_view": "drop_in",
            "view": "viewing",
        },
    )

__all__ = ["Page", "attention_page", "head_view", "model_view", "view"]
