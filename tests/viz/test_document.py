"""How a page is put together as one file: policy, escapes, parts, size."""

import base64
import hashlib
import re

import pytest
from attention_pages import HOSTILE, code_of, names, softmax, unpacked_text

from minibert.viz import attention_page
from minibert.viz.document import document, packed_text


def sha256(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class TestDocument:
    def test_hostile_tokens_stay_in_the_header(self) -> None:
        harmless = attention_page(softmax((1, 2, 10, 10)), ["a"] * 10, title="t").html
        hostile = attention_page(softmax((1, 2, 10, 10)), HOSTILE, title=HOSTILE[0]).html
        header = '<script type="application/octet-stream" id="header">'
        before, after = hostile.split(header)
        assert [before, after.split("</script>", 1)[1]] == [
            harmless.split(header)[0],
            harmless.split(header)[1].split("</script>", 1)[1],
        ]

    def test_policy_allows_this_script_and_this_style_and_nothing_else(self) -> None:
        html = attention_page(softmax((1, 2, 3, 3)), names(3)).html
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
        loader = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
        assert policy
        assert loader
        style, script = code_of(html)
        allowed = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
        assert allowed["default-src"] == "'none'"
        assert allowed["script-src"] == f"{sha256(loader[1])} {sha256(script)}"
        assert allowed["style-src"] == sha256(style)
        assert set(allowed) == {
            *("default-src", "script-src", "style-src", "img-src", "base-uri", "form-action")
        }

    def test_no_address_of_the_network_is_in_a_page(self) -> None:
        html = attention_page(softmax((1, 2, 3, 3)), names(3)).html
        # The name of SVG's elements, in the pictures that a page saves, is no address.
        code = "".join(code_of(html)).replace('xmlns="http://www.w3.org/2000/svg"', "")
        # What is packed means nothing until it is unpacked.
        markup = re.sub(r'(<script type="application/octet-stream"[^>]*>)[^<]*', r"\1", html)
        assert not re.search(r"https?:|\bsrc=|@import|url\(", code + markup)
        markup = re.sub(r"<script>.*?</script>", "", markup, flags=re.DOTALL)
        assert re.findall(r'href="([^"]*)"', markup) == ["data:,"]

    @pytest.mark.parametrize("n_characters", range(9))
    def test_packed_text_is_safe_anywhere_and_comes_back(self, n_characters: int) -> None:
        text = "½<&>\0\u2028`"[:n_characters] * 40
        packed = packed_text(text)
        assert not set(packed) & set("<>&`\"'\\ \n")
        assert unpacked_text(packed) == text

    def test_a_page_of_twelve_layers_and_sixteen_tokens_is_small(self) -> None:
        page = attention_page(softmax((12, 12, 16, 16)), names(16))
        assert page.size <= 120_000
        assert len(page._repr_mimebundle_()["text/html"]) <= 154_000

    def test_a_page_without_vectors_has_no_script_of_the_views_that_need_them(self) -> None:
        style, script = code_of(attention_page(softmax((1, 2, 3, 3)), names(3)).html)
        with_all = code_of("".join(document("{}", ())))
        for only in ("neuron-view", "sum-view", "layers-view"):
            assert only not in style
            assert only not in script
            assert only in with_all[0]
            assert only in with_all[1]
