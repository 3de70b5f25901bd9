"""How the code of a page is made small, and what stays readable of it."""

import pytest
from attention_pages import code_of, names, softmax, unpacked_text

from minibert.viz import attention_page
from minibert.viz.bundle import document
from minibert.viz.compact import packed_text, squeezed_script, squeezed_style


class TestCompact:
    @pytest.mark.parametrize(
        ("line", "squeezed"),
        [
            ("const { a, b } = (c) => d + e / 2;", "const{a,b}=(c)=>d+e/2;"),
            ("a = b - -c + +d;", "a=b - -c + +d;"),
            ('call("a, b", `c ${ d } e`, f);', 'call("a, b",`c ${ d } e`,f);'),
            ("const r = /a , b/;", "const r = /a , b/;"),
            (r'const s = "a \" , b";', r'const s = "a \" , b";'),
        ],
    )
    def test_only_blanks_that_mean_nothing_are_left_out(self, line: str, squeezed: str) -> None:
        assert squeezed_script(f"  {line}\n\n") == squeezed

    @pytest.mark.parametrize(
        ("script", "squeezed"),
        [
            ("call(\n  a,\n  b,\n);\nlet c;\n", "call(a,b,);let c;"),
            ("if (a) {\n  b();\n}\nc = d\n+ e\n", "if(a){b();}\nc=d\n+ e"),
            ("a(); // why;\nb();\nc();", "a(); // why;\nb();c();"),
        ],
    )
    def test_lines_are_joined_where_no_statement_can_end(self, script: str, squeezed: str) -> None:
        assert squeezed_script(script) == squeezed

    def test_selectors_keep_their_blanks(self) -> None:
        style = "/* why */\n.a .b:not(.c) > .d,\n.e {\n  margin: 0 auto;\n}\n"
        assert squeezed_style(style) == ".a .b:not(.c) > .d,.e{margin:0 auto;}"

    @pytest.mark.parametrize("n_characters", range(9))
    def test_packed_text_is_safe_anywhere_and_comes_back(self, n_characters: int) -> None:
        text = "½<&>\0\u2028`"[:n_characters] * 40
        packed = packed_text(text)
        assert not set(packed) & set("<>&`\"'\\ \n")
        assert unpacked_text(packed) == text

    def test_a_page_of_twelve_layers_and_sixteen_tokens_is_small(self) -> None:
        page = attention_page(softmax((12, 12, 16, 16)), names(16))
        assert page.size <= 120_000
        assert len(page._repr_mimebundle_()["text/html"]) <= 170_000

    def test_a_page_without_vectors_has_no_script_of_the_views_that_need_them(self) -> None:
        style, script = code_of(attention_page(softmax((1, 2, 3, 3)), names(3)).html)
        with_all = code_of("".join(document("main.js", "{}", ())))
        for only in ("neuron-view", "sum-view", "lens-view"):
            assert only not in style
            assert only not in script
            assert only in with_all[0]
            assert only in with_all[1]
