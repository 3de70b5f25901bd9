"""A page of the course as a sheet to print on A4: text, pictures, and exercises with room to write.

One HTML file without a network; a browser prints it. Solutions are a sheet of their own.
"""

import re
from pathlib import Path
from xml.etree.ElementTree import Element

import markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

from minibert.viz.document import theme

_STYLE = """
@page{size:A4;margin:18mm 17mm 20mm;@bottom-center{content:counter(page)}}
*{box-sizing:border-box}
body{max-width:176mm;margin:8mm auto;background:#fff;color:#111;font:11pt/1.45 var(--sans)}
h1{font-size:20pt;line-height:1.2}h2{font-size:15pt;margin:9mm 0 2mm}
h3{font-size:12pt;margin:6mm 0 1mm}
h1,h2,h3,h3+p{break-after:avoid}p,li{orphans:3;widows:3}
blockquote{margin:3mm 0;padding-left:4mm;border-left:1mm solid #bbb;break-inside:avoid}
pre{padding:2mm 3mm;border:.2mm solid #ccc;font-size:8.5pt;line-height:1.35;white-space:pre-wrap;
overflow-wrap:anywhere;break-inside:avoid-page}
code{font-size:.9em;overflow-wrap:anywhere}pre code{font-size:1em}
table{border-collapse:collapse;font-size:9pt}td,th{padding:1mm 3mm 1mm 0;text-align:left;
vertical-align:top;border-bottom:.2mm solid #ccc}tr{break-inside:avoid}
svg{display:block;max-width:100%;max-height:110mm;margin:4mm 0;break-inside:avoid}
.ask{margin:3mm 0 6mm;padding:3mm 4mm;border:.3mm solid #111;border-radius:2mm;break-inside:avoid}
.ask p{margin:0 0 2mm;font-weight:600}
.ask i{display:block;height:8mm;border-bottom:.3mm solid #999}
@media print{body{margin:0;max-width:none}}
"""
# Lines to write on: for a number or a choice, and for a function of unit 8.
_LINES, _CODE_LINES = 4, 9
_QUESTION = re.compile(
    r"(?:```python\n(?:(?!```)[\s\S])*?```\n\n)?```text\n((?:(?!```)[\s\S])*?)\n"
    r"(?:No guess yet|Noch kein Tipp)[^\n]*\n```"
)
_SOLUTION = re.compile(r"^\[[^]]+\]\(\S*solutions\.md#[\w-]+\)$\n*", re.MULTILINE)
_PICTURE = re.compile(r"^!\[.*\]\((\S*pictures/[\w.]+)\)$", re.MULTILINE)


class _Words(Treeprocessor):
    """Of a link to another page only its words are printed; of another one the address, too."""

    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            address = link.attrib.pop("href", "")
            link.tag = "span"
            if address.startswith("http"):
                link.tail = f" ({address}){link.tail or ''}"


class _Printed(Extension):
    def extendMarkdown(self, md: markdown.Markdown) -> None:  # noqa: N802
        md.treeprocessors.register(_Words(md), "words", 0)


def handout_of(page: str, folder: Path, language: str = "en") -> str:
    """The sheet of a page, as HTML; `folder` is the page's, where its pictures are."""
    title = page.partition("\n")[0].removeprefix("# ")

    def asked(match: re.Match[str]) -> str:
        words = markdown.markdown(match[1].replace("\n", " "))
        lines = _CODE_LINES if match[1].startswith("Write ") else _LINES
        return f'<div class="ask">{words}{"<i></i>" * lines}</div>'

    def picture(match: re.Match[str]) -> str:
        return re.sub(r"\n\s*", " ", (folder / match[1]).read_text(encoding="utf-8").strip())

    text = _SOLUTION.sub("", _PICTURE.sub(picture, _QUESTION.sub(asked, page)))
    body = markdown.markdown(text, extensions=["tables", "fenced_code", _Printed()])
    return (
        f'<!doctype html><html lang="{language}"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{theme()}{_STYLE}</style>\n{body}</html>\n"
    )
