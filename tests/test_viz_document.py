"""How a page is put together as one file: policy, escapes, modules, saving; and its colours."""

import base64
import hashlib
import itertools
import os
import re
import resource
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from attention_pages import HOSTILE, code_of, names, softmax

from minibert.errors import MinibertError
from minibert.viz import attention_page
from minibert.viz.bundle import bundle, static_text
from minibert.viz.saving import write_page

# Machado, Oliveira, Fernandes 2009, table 1 at severity 1.0, on linear RGB.
MACHADO_2009 = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def oklab(linear: np.ndarray) -> np.ndarray:
    """Ottosson 2020: a space in which distance is difference to the eye."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    opponents = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.cbrt(linear @ cones.T) @ opponents.T


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

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_heads_can_be_told_apart_by_the_colour_blind(self, theme: str) -> None:
        listed = re.search(rf"{theme}: \[(.*?)\]", static_text("draw/colors.js"), re.DOTALL)
        assert listed
        palette = re.findall(r"#[0-9a-f]{6}", listed[1])
        assert len(palette) == 12
        linear = (
            np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in palette]) ** 2.2
        )
        for vision in MACHADO_2009.values():
            seen = oklab(np.clip(linear @ np.array(vision).T, 0, 1))
            nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))
            # 0.02 is a just noticeable difference.
            assert nearest >= 0.08


class TestBundle:
    def make(self, **files: str) -> str:
        return bundle("main.js", lambda name: files[name.removesuffix(".js")])

    def test_a_module_comes_after_what_it_imports_and_only_once(self) -> None:
        script = self.make(
            main='import { a } from "./a.js";\nimport { b } from "./b.js";\nuse(a, b);\n',
            a='import { b } from "./b.js";\nexport const a = b;\n',
            b="export const b = 1;\n",
        )
        order = [script.index(text) for text in ("const b = 1;", "const a = b;", "use(a, b);")]
        assert order == sorted(order)
        assert script.count("const b = 1;") == 1

    def test_names_that_are_not_exported_stay_inside(self) -> None:
        script = self.make(
            main='import { a } from "./a.js";\nconst own = 2;\n',
            a="const own = 1;\nexport function a() { return own; }\n",
        )
        assert "return { a };" in script
        assert "{ own }" not in script

    def test_a_name_that_two_modules_export_is_the_one_that_was_imported(self) -> None:
        both = self.make(
            main='import { b } from "./b.js";\nimport { c } from "./c.js";\nuse(b, c);\n',
            a="export const same = 1;\n",
            b='import { same } from "./a.js";\nexport const b = same;\n',
            c='import { same } from "./d.js";\nexport const c = same;\n',
            d="export const same = 3;\n",
        )
        assert both.index("const { same } = a_js;") < both.index("const b = same;")
        assert both.index("const { same } = d_js;") < both.index("const c = same;")

    def test_comments_do_not_travel(self) -> None:
        script = self.make(main="/**\n * A secret.\n */\n// Another.\ncall('/* kept */');\n")
        assert "secret" not in script
        assert "Another" not in script
        assert "/* kept */" in script

    def test_casts_of_types_do_not_travel(self) -> None:
        script = self.make(main='const a = /** @type {import("./a.js").A} */ (b);\n')
        assert "const a = (b);" in script

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ('import a from "./a.js";\n', "import a from"),
            ('import * as a from "./a.js";\n', "is not understood"),
            ('const a = await import("./a.js");\n', "is not understood"),
            ("export default 1;\n", "export default 1"),
            ("export { own };\n", "is not understood"),
            ("export let own = 1;\n", "is not understood"),
            ('import { missing } from "./a.js";\n', "a.js does not export 'missing'"),
            ('import { b } from "./b.js";\n', "circular import: main.js -> b.js -> main.js"),
            ("call('</script>');\n", "may not occur"),
            ("call(`two\nlines`);\n", "may not run over"),
        ],
    )
    def test_what_it_does_not_understand_is_an_error(self, source: str, message: str) -> None:
        with pytest.raises(MinibertError, match=message):
            self.make(
                main=source,
                a="export const a = 1;\n",
                b='import { m } from "./main.js";\nexport const b = m;\n',
            )


class TestSave:
    def test_writes_the_page_and_returns_its_path(self, tmp_path: Path) -> None:
        path = write_page(["<p>½</p>"], str(tmp_path / "page.html"))
        assert path.read_bytes() == "<p>½</p>".encode()
        assert os.listdir(tmp_path) == ["page.html"]

    def test_a_page_is_saved_as_its_text(self, tmp_path: Path) -> None:
        page = attention_page(softmax((1, 2, 3, 3)), names(3))
        assert page.save(tmp_path / "page.html").read_text(encoding="utf-8") == page.html

    def test_a_piece_that_cannot_be_made_leaves_the_old_page(self, tmp_path: Path) -> None:
        path = write_page(["old"], tmp_path / "page.html")

        def pieces() -> Iterator[str]:
            yield "new"
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_page(pieces(), path)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["page.html"]

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MinibertError, match=r"page\.html: there is no folder .*absent"):
            write_page([""], tmp_path / "absent" / "page.html")

    def test_a_folder_is_no_page(self, tmp_path: Path) -> None:
        with pytest.raises(MinibertError, match="it is a folder"):
            write_page([""], tmp_path)

    def test_a_full_disk_leaves_the_old_page_and_nothing_else(self, tmp_path: Path) -> None:
        path = write_page(["old"], tmp_path / "page.html")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(MinibertError, match=r"cannot save .*page\.html: File too large"):
                write_page(["new" * 4096], path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["page.html"]

    def test_a_link_stays_a_link_and_its_target_gets_the_page(self, tmp_path: Path) -> None:
        target, link = tmp_path / "target.html", tmp_path / "link.html"
        target.write_text("old")
        link.symlink_to(target.name)
        assert write_page(["new"], link) == link
        assert link.is_symlink()
        assert target.read_text() == "new"

    @pytest.mark.parametrize("mode", [0o600, 0o640])
    def test_a_file_keeps_its_permissions(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "page.html"
        path.touch()
        path.chmod(mode)
        write_page(["new"], path)
        assert path.stat().st_mode & 0o777 == mode
        assert path.read_text() == "new"

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
    def test_a_pipe_is_written_to_and_stays_a_pipe(self, tmp_path: Path) -> None:
        path = tmp_path / "pipe"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            write_page(["<p>½</p>"], path)
            assert os.read(reader, 64) == "<p>½</p>".encode()
        finally:
            os.close(reader)
        assert path.is_fifo()
        assert os.listdir(tmp_path) == ["pipe"]

    def test_a_descriptor_of_a_pipe_is_written_to(self) -> None:
        reader, writer = os.pipe()
        if not Path(f"/dev/fd/{writer}").exists():
            pytest.skip("the system has no /dev/fd")
        try:
            write_page(["page"], f"/dev/fd/{writer}")
            assert os.read(reader, 64) == b"page"
        finally:
            os.close(reader)
            os.close(writer)


class TestNotebook:
    def test_the_frame_holds_the_page_and_nothing_of_it_outside_its_attribute(self) -> None:
        page = attention_page(softmax((1, 2, 10, 10)), HOSTILE)
        frames: list[dict[str, str | None]] = []

        class Reader(HTMLParser):
            def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
                frames.append({"tag": tag, **dict(attrs)})

        Reader().feed(page._repr_html_())
        (frame,) = frames
        assert frame["tag"] == "iframe"
        assert frame["srcdoc"] == page.html
        assert frame["sandbox"] == "allow-scripts allow-downloads"
        assert frame["title"] == "Attention"
        assert "height: " in str(frame["style"])

    def test_elsewhere_a_page_is_one_short_line(self) -> None:
        page = attention_page(softmax((1, 2, 3, 3)), ["½", "a", "b"], title="½")
        size = len(page.html.encode())
        assert page.size == size
        assert repr(page) == (
            f"<Page of {size / 1000:.0f} kB; save('attention.html') writes it to a file>"
        )
