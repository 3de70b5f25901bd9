"""How a page is put together as one file, and that it is written whole or not at all."""

import base64
import hashlib
import os
import re
from pathlib import Path

import pytest
from attention_pages import code_of, names, softmax, unpacked_text

from minibert.errors import MinibertError
from minibert.viz import Page, attention_page
from minibert.viz.document import document, packed_text, write_page


def sha256(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_of(n: int = 3) -> Page:
    return attention_page(softmax((1, 2, n, n)), names(n))


def test_policy_allows_this_script_and_this_style_and_nothing_else():
    html = page_of().html
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    loader = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert policy
    assert loader
    style, script = code_of(html)
    allowed = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    assert allowed["default-src"] == "'none'"
    assert allowed["script-src"] == f"{sha256(loader[1])} {sha256(script)}"
    assert allowed["style-src"] == sha256(style)
    others = {"img-src", "base-uri", "form-action"}
    assert set(allowed) == {"default-src", "script-src", "style-src"} | others


def test_no_address_of_the_network_is_in_a_page():
    html = page_of().html
    # The name of SVG's elements, in the pictures that a page saves, is not an address.
    code = "".join(code_of(html)).replace('xmlns="http://www.w3.org/2000/svg"', "")
    # What is packed means nothing until it is unpacked.
    markup = re.sub(r'(<script type="application/octet-stream"[^>]*>)[^<]*', r"\1", html)
    assert not re.search(r"https?:|\bsrc=|@import|url\(", code + markup)
    markup = re.sub(r"<script>.*?</script>", "", markup, flags=re.DOTALL)
    assert re.findall(r'href="([^"]*)"', markup) == ["data:,"]


def test_packed_text_is_safe_anywhere_and_comes_back():
    for n_characters in range(9):
        text = "½<&>\0\u2028`"[:n_characters] * 40
        packed = packed_text(text)
        assert not set(packed) & set("<>&`\"'\\ \n")
        assert unpacked_text(packed) == text


def test_a_page_is_small_and_has_no_script_of_views_that_it_lacks():
    page = attention_page(softmax((12, 12, 16, 16)), names(16))
    assert page.size <= 120_000
    assert len(page._repr_html_()) <= 155_000
    (_, own), (_, every) = code_of(page.html), code_of("".join(document("{}", ())))
    for only in ("neuron-view", "sum-view", "layers-view"):
        assert [only in script for script in (own, every)] == [False, True]


def test_a_page_is_saved_as_its_text_and_what_cannot_be_is_told(tmp_path):
    page = page_of()
    path = page.save(str(tmp_path / "page.html"))
    assert path.read_text(encoding="utf-8") == page.html
    with pytest.raises(MinibertError, match=r"page\.html: there is no folder .*absent"):
        write_page([""], tmp_path / "absent" / "page.html")
    with pytest.raises(MinibertError, match="it is a folder"):
        write_page([""], tmp_path)
    with pytest.raises(MinibertError, match="it is a pipe or a device"):
        write_page([""], Path(os.devnull))
    assert os.listdir(tmp_path) == ["page.html"]
