"""Slides of a page of the course: headings, key sentences, pictures, formulas and questions.

One HTML file without a network. A section of the page is a slide where it has something to show.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from minibert.viz.document import theme

_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:clamp(18px,2.4vw,32px)/1.4 var(--sans)}
section{display:none;height:100vh;padding:5vh 6vw 9vh;max-width:60em;margin:auto}
.full{font-size:.8em}
section.here{display:flex;flex-direction:column;justify-content:center;gap:.8em}
h1,h2{line-height:1.15;margin:0}p,ul{margin:0}ul{padding-left:1.1em}
.key{border-left:.2em solid var(--soft);padding-left:.6em}
.ask{font-style:italic}pre{margin:0;white-space:pre-wrap;font-size:.8em}
svg{width:100%;max-width:92vh;flex:0 1 62vh;min-height:0}
a{color:inherit}
nav{position:fixed;bottom:0;right:0;padding:.4em .8em;font-size:18px;display:flex;gap:.6em;
align-items:center;background:var(--paper)}
nav span{color:var(--soft)}
button{font:inherit;color:inherit;background:none;border:1px solid var(--soft);
border-radius:.3em;min-width:2em}
@media print{nav{display:none}
section{display:flex;flex-direction:column;justify-content:center;page-break-after:always}}
"""
_SCRIPT = """
const slides=[...document.querySelectorAll("section")],count=document.querySelector("nav span");
let at=0;
function go(to){at=Math.min(Math.max(to,0),slides.length-1);
slides.forEach((one,i)=>one.classList.toggle("here",i===at));
count.textContent=`${at+1} of ${slides.length}`;
history.replaceState(null,"",`#${at+1}`);scrollTo(0,0)}
addEventListener("keydown",e=>{
if(e.target.closest("button")&&[" ","Enter"].includes(e.key))return;
if(["ArrowRight","PageDown"," "].includes(e.key)){e.preventDefault();go(at+1)}
if(["ArrowLeft","PageUp"].includes(e.key)){e.preventDefault();go(at-1)}
if(e.key==="Home")go(0);if(e.key==="End")go(slides.length-1)});
document.querySelector("#back").onclick=()=>go(at-1);
document.querySelector("#on").onclick=()=>go(at+1);
addEventListener("hashchange",()=>go(parseInt(location.hash.slice(1))-1||0));
go(parseInt(location.hash.slice(1))-1||0);
"""
# Letters of a slide from which on they are smaller, so that nothing is cut off at 1280 x 720.
_FULL = 420
_QUESTION = re.compile(r"```text\n(.*?)\nNo guess yet", re.DOTALL)
_PICTURE = re.compile(r"^!\[(.*)\]\((pictures/[\w.]+)\)$")


def slides_of(page: str, folder: Path) -> str:
    """The slides of a page, as HTML; `folder` is the page's, where its pictures are."""
    title = page.splitlines()[0].removeprefix("# ")
    slides = []
    for heading, body in _sections(page):
        shown = _body(body, folder, first=heading.startswith("# "))
        if shown:
            level = 1 if heading.startswith("# ") else 2
            head = f"<h{level}>{_inline(heading.lstrip('# '))}</h{level}>"
            letters = re.sub(r"<svg.*?</svg>|<[^>]*>", "", shown, flags=re.DOTALL)
            full = ' class="full"' if len(letters) > _FULL else ""
            slides.append(f"<section{full}>{head}{shown}</section>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{theme()}{_STYLE}</style>\n"
        + "\n".join(slides)
        + '\n<nav><button id="back" aria-label="Back">←</button><span></span>'
        f'<button id="on" aria-label="Next">→</button></nav><script>{_SCRIPT}</script></html>\n'
    )


def _sections(page: str) -> Iterator[tuple[str, str]]:
    """The sections, by heading; what follows an exercise belongs to the section around it."""
    around = ""
    parts = re.split(r"^(#+ .*)$", page, flags=re.MULTILINE)[1:]
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        question, _, after = body.partition("[Solution]")
        yield heading, question
        if not heading.startswith("###"):
            around = heading
        yield around, after


def _body(body: str, folder: Path, *, first: bool) -> str:
    """What a slide shows of a section."""
    found = []
    question = _QUESTION.search(body)
    plain = re.sub(r"^```.*?^```$", "", body, flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\n+", plain):
        picture = _PICTURE.match(block.strip())
        if picture:
            found.append(_picture(folder / picture[2], picture[1]))
        elif block.startswith("> "):
            found.append(f'<p class="key">{_inline(block[2:])}</p>')
        elif block.startswith("- "):
            items = "".join(f"<li>{_inline(one[2:])}</li>" for one in block.strip().split("\n"))
            found.append(f"<ul>{items}</ul>")
        elif block.startswith("    "):
            found.append(f"<pre>{html.escape(block.strip())}</pre>")
        elif first and block.strip():
            found.append(f"<p>{_inline(block.strip())}</p>")
    if question:
        found.append(f'<p class="ask">{_inline(question[1])}</p>')
    return "".join(found)


def _picture(path: Path, said: str) -> str:
    """The SVG itself, under a name; its classes are its own."""
    text = path.read_text(encoding="utf-8").strip()
    return re.sub(r"<svg ", f'<svg aria-label="{html.escape(said)}" ', text, count=1)


def _inline(text: str) -> str:
    """A line of Markdown as HTML; of a link to another page its words, as slides stand alone."""
    text = html.escape(text.replace("\n", " "), quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"(?<!\w)\*([^*]+)\*(?!\w)", r"<i>\1</i>", text)
    text = re.sub(r"\[([^]]+)\]\((https?://[^)]+)\)", r'<a href="\2">\1</a>', text)
    return re.sub(r"\[([^]]+)\]\(([^)]+)\)", r"\1", text)
