"""Pictures of attention: one self-contained HTML file, opened without a network.

page.py      the public functions; a page as a value that can be saved
saving.py    a page written to a file
inputs.py    attention from outside, checked before work starts
labels.py    what a page says about each token
payload.py   numbers as compact binary
bundle.py    template, style and ES modules as one file
static/      the browser's side, one picture a file
"""

from minibert.viz.page import Page, attention_page, head_page

__all__ = ["Page", "attention_page", "head_page"]
