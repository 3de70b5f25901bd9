"""Template, style and ES modules put together as one HTML file.

Modules inside one file cannot import one another, so each becomes a function that returns
what it exports to those that come after it; what it does not export stays in the function:

    const { headColor } = (() => { ...; return { headColor }; })();

Only the forms of import and export that `static/` uses are understood; any other is an error.
"""

import base64
import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from minibert.errors import MinibertError
from minibert.viz.compact import packed_text, squeezed_script, squeezed_style

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
    "neuron/neuron_narrow.css",
    "arithmetic/arithmetic.css",
    "arithmetic/arithmetic_tables.css",
    "shaded/shaded.css",
    "lens/lens.css",
    "frame/search.css",
    "export/export.css",
)
_VIEWS = "frame/views.js"
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
    parts: dict[str, _Part] = {}
    _add(entry, read, parts, ())
    script = '(() => {\n"use strict";\n' + _INDENT.sub("", "".join(_wrapped(parts))) + "})();\n"
    if re.search(r"</|<!--", script):
        raise MinibertError(f"{entry}: '</' and '<!--' may not occur in a script of a page")
    return script


@dataclass(frozen=True)
class _Part:
    """A module on its way into a script."""

    imports: list[tuple[str, list[str]]]
    body: str
    exports: list[str]


def _add(
    name: str, read: Callable[[str], str], parts: dict[str, _Part], path: tuple[str, ...]
) -> None:
    """Appends `name`, after all it imports, to `parts`."""
    if name in path:
        raise MinibertError(f"circular import: {' -> '.join((*path, name))}")
    if name in parts:
        return
    source = _CAST.sub("", _COMMENT.sub("", read(name)))
    if any(line.count("`") % 2 for line in source.splitlines()):
        raise MinibertError(f"{name}: a text in backticks may not run over a line's end")
    imports = [(_path(name, match[2]), _names(match[1])) for match in _IMPORT.finditer(source)]
    for imported, names in imports:
        _add(imported, read, parts, (*path, name))
        for wanted in names:
            if wanted not in parts[imported].exports:
                raise MinibertError(f"{name}: {imported} does not export {wanted!r}")
    exports = [match[2] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub(r"\1", _IMPORT.sub("", source))
    left_over = _LEFT_OVER.search(body)
    if left_over:
        raise MinibertError(
            f"{name}: {left_over[0].strip()!r} is not understood; write"
            " 'import { name } from \"./file.js\";' or 'export function name'"
        )
    parts[name] = _Part(imports, body, exports)


def _wrapped(parts: dict[str, _Part]) -> Iterator[str]:
    """The modules as functions; what they export is known to all that come after them.

    Unless two export the same name: what these export is imported by name.
    """
    times = Counter(name for part in parts.values() for name in part.exports)
    apart = {name for name, part in parts.items() if any(times[one] > 1 for one in part.exports)}
    for name, part in parts.items():
        shared = f"{{ {', '.join(part.exports)} }}"
        if part.exports:
            yield f"const {_constant(name) if name in apart else shared} = "
        yield "(() => {\n"
        for imported, names in part.imports:
            if imported in apart:
                yield f"const {{ {', '.join(names)} }} = {_constant(imported)};\n"
        yield part.body
        yield f"return {shared};\n}})();\n" if part.exports else "})();\n"


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _constant(name: str) -> str:
    return name.replace("/", "$").replace(".js", "_js")


def _path(importer: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), relative))


def _hash(text: str) -> str:
    """The text's hash as a Content-Security-Policy names it."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def _reader(without: frozenset[str]) -> Callable[[str], str]:
    """`static_text`, but for the pictures in these folders, which no page is then given."""

    def read(name: str) -> str:
        text = static_text(name)
        for folder in sorted(without) if name == _VIEWS else ():
            (kind,) = re.findall(rf'^import \{{ (\w+) \}} from "\.\./{folder}/.*$', text, re.M)
            text = re.sub(rf"^(?:import \{{ {kind} \}}.*|  {kind},)\n", "", text, flags=re.M)
        return text

    return read


def _style(without: frozenset[str]) -> str:
    return "".join(static_text(name) for name in _STYLES if name.split("/")[0] not in without)


@lru_cache(maxsize=8)
def _shell(entry: str, without: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """What is the same in every page that starts with `entry`: policy, loader, style and script."""
    style = squeezed_style(_style(without))
    script = squeezed_script(bundle(entry, _reader(without)))
    loader = squeezed_script(bundle("loader.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(loader)} {_hash(script)}; "
        f"style-src {_hash(style)}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    code = packed_text(f"{style}\0{script}")
    return (("policy", policy), ("loader", loader), ("code", code))


def document(
    entry: str,
    header: str,
    blocks: Iterable[tuple[str, str]],
    *,
    without: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """The HTML file, a part at a time: the script `entry`, the header's JSON, and the blocks.

    Blocks are (name, base64) and put in as they are; the header is packed. `without` names folders
    of pictures that the page has no numbers for.
    """
    values = {**dict(_shell(entry, without)), "header": packed_text(header)}
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


@lru_cache(maxsize=8)
def _cell_parts(without: frozenset[str]) -> tuple[str, str]:
    """Loader of a page in a cell, its last function still open; and packed style and script."""
    # A cell is narrower than a window, and has no room for a card below the picture.
    style = _style(without).replace("@media (max-width: 900px)", "@container (max-width: 700px)")
    style = _WINDOW_HEIGHT.sub("cqh", _WINDOW_WIDTH.sub("@container ", style))
    style = squeezed_style(style + static_text("cell.css"))
    script = squeezed_script(bundle("cell.js", _reader(without)))
    loader = squeezed_script(bundle("cell_loader.js"))
    return loader.removesuffix("})();"), packed_text(f"{style}\0{script}")


def cell(
    identity: str,
    header: str,
    blocks: Iterable[tuple[str, str]],
    *,
    height: int,
    without: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """A classic script that shows a page in the element `data-minibert="identity"`, in parts.

    Blocks and `without` are as in `document`; the header is put in as it is, and
    `payload.header_json` makes it safe. `height` is in CSS pixels.
    """
    loader, code = _cell_parts(without)
    yield loader
    yield f'loadCell({{id: "{identity}", height: {height}, code: "{code}"'
    yield f",\nheader: {header},\nblocks: {{"
    for name, data in blocks:
        yield f'"{name}": "{data}",\n'
    yield "}}, document.currentScript);\n})();\n"
