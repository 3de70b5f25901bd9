"""Template, style and ES modules put together as one HTML file.

Modules inside one file cannot import one another, so each becomes a function that returns
what it exports, in the order of its imports; names of one module stay out of the others:

    const draw$colors_js = (() => { ...; return { headColor }; })();
    const { headColor } = draw$colors_js;

Only the forms of import and export that `static/` uses are understood; any other is an error.
"""

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from importlib.resources import files

from minibert.errors import MinibertError

__all__ = ["bundle", "cell", "document", "static_text"]

_STYLES = (
    "frame/theme.css",
    "frame/layout.css",
    "frame/toolbar.css",
    "head/head.css",
    "head/details.css",
    "model/model.css",
    "map/map.css",
    "neuron/neuron.css",
    "arithmetic/arithmetic.css",
    "shaded/shaded.css",
    "lens/lens.css",
    "frame/search.css",
    "export/export.css",
)
_IMPORT = re.compile(r'^import \{([^{}]*)\} from "(\.[a-z_./]*/[a-z_]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async function|function|const|class) (\w+))", re.MULTILINE)
_LEFT_OVER = re.compile(r"^[ \t]*(?:import|export)\b.*$|\bimport\s*[(.].*$", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/)[\s\S])*\*/|//[^\n]*)[ \t]*\n", re.MULTILINE)
_CAST = re.compile(r"/\*\* @\w+ (?:(?!\*/).)*\*/ ?")
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
# Widths and heights of the window, which in a cell of a notebook are those of the cell.
_WINDOW_WIDTH = re.compile(r"@media (?=\((?:min|max)-width:)")
_WINDOW_HEIGHT = re.compile(r"(?<=\d)vh\b")
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def static_text(name: str) -> str:
    """The text of one file of `static/`, named by its path in there."""
    return (files("minibert.viz") / "static" / name).read_text(encoding="utf-8")


def bundle(entry: str, read: Callable[[str], str] = static_text) -> str:
    """One classic script that does what the ES module `entry` does.

    Raises MinibertError for an import or export of another form, a circle of imports, a name
    that the imported module does not export, or text that would end a script element.
    """
    parts: dict[str, str] = {}
    exports: dict[str, list[str]] = {}
    _add(entry, read, parts, exports, ())
    script = '(() => {\n"use strict";\n' + _INDENT.sub("", "".join(parts.values())) + "})();\n"
    if re.search(r"</|<!--", script):
        raise MinibertError(f"{entry}: '</' and '<!--' may not occur in a script of a page")
    return script


def _add(
    name: str,
    read: Callable[[str], str],
    parts: dict[str, str],
    exports: dict[str, list[str]],
    path: tuple[str, ...],
) -> None:
    """Appends `name`, after all it imports, to `parts`."""
    if name in path:
        raise MinibertError(f"circular import: {' -> '.join((*path, name))}")
    if name in parts:
        return
    source = _CAST.sub("", _COMMENT.sub("", read(name)))
    if any(line.count("`") % 2 for line in source.splitlines()):
        raise MinibertError(f"{name}: a text in backticks may not run over a line's end")
    for match in _IMPORT.finditer(source):
        imported = _path(name, match[2])
        _add(imported, read, parts, exports, (*path, name))
        for wanted in _names(match[1]):
            if wanted not in exports[imported]:
                raise MinibertError(f"{name}: {imported} does not export {wanted!r}")
    exports[name] = [match[2] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub(r"\1", _IMPORT.sub(partial(_as_constant, name), source))
    left_over = _LEFT_OVER.search(body)
    if left_over:
        raise MinibertError(
            f"{name}: {left_over[0].strip()!r} is not understood; write"
            " 'import { name } from \"./file.js\";' or 'export function name'"
        )
    returned = f"return {{ {', '.join(exports[name])} }};\n" if exports[name] else ""
    parts[name] = f"const {_constant(name)} = (() => {{\n{body}{returned}}})();\n"


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _constant(name: str) -> str:
    return name.replace("/", "$").replace(".js", "_js")


def _path(importer: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), relative))


def _as_constant(importer: str, match: re.Match[str]) -> str:
    imported = _constant(_path(importer, match[2]))
    return f"const {{ {', '.join(_names(match[1]))} }} = {imported};"


def _hash(text: str) -> str:
    """The text's hash as a Content-Security-Policy names it."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def _style() -> str:
    return _INDENT.sub("", "".join(static_text(name) for name in _STYLES))


@lru_cache(maxsize=8)
def _shell(entry: str) -> tuple[tuple[str, str], ...]:
    """What is the same in every page that starts with `entry`: policy, style, script."""
    style, script = _style(), bundle(entry)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return (("policy", policy), ("script", script), ("style", style))


def document(entry: str, header: str, blocks: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The HTML file, a part at a time: the script `entry`, the header's JSON, and the blocks.

    Blocks are (name, base64). Header and blocks are put in as they are; `payload.header_json`
    makes a header safe.
    """
    values = {**dict(_shell(entry)), "header": header}
    # Split once: text that was put in is never searched for places again.
    for i, part in enumerate(_PLACE.split(static_text("page.html"))):
        if i % 2 == 0:
            yield part
        elif part != "blocks":
            yield values[part]
        else:
            for name, data in blocks:
                yield f'<script type="application/octet-stream" id="{name}">'
                yield data
                yield "</script>\n"


@lru_cache(maxsize=1)
def _cell_parts() -> tuple[str, str]:
    """Style and script of a page in a cell; the script's last function is still open."""
    # A cell is narrower than a window, and has no room for a card below the picture.
    style = _style().replace("@media (max-width: 900px)", "@container (max-width: 700px)")
    style = _WINDOW_HEIGHT.sub("cqh", _WINDOW_WIDTH.sub("@container ", style))
    script = bundle("cell.js")
    return style + static_text("cell.css"), script.removesuffix("})();\n")


def cell(
    identity: str, header: str, blocks: Iterable[tuple[str, str]], *, height: int
) -> Iterator[str]:
    """A classic script that shows a page in the element `data-minibert="identity"`, in parts.

    Header and blocks are as in `document`; `height` is in CSS pixels.
    """
    style, script = _cell_parts()
    yield script
    yield f'cell_js.mountCell({{id: "{identity}", height: {height}, style: '
    yield json.dumps(style).replace("<", "\\u003c")
    yield f",\nheader: {header},\nblocks: {{"
    for name, data in blocks:
        yield f'"{name}": "{data}",\n'
    yield "}}, document.currentScript);\n})();\n"
