"""What MkDocs does not do by itself for our site (mkdocs.yml names this file as a hook).

- A name with a star in the navigation stands for every page that fits it and has no place of its
  own.
- A page may link to a file of the repository outside docs/: that file becomes a part of the site,
  under repository/, so that every link holds without a network. A folder becomes a list of its
  files.
- The story is made beside its page of docs, and opened from there.
- Each module named in `extra.reference` gets a page that mkdocstrings fills from docstrings.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import minibert
from minibert.viz.live import story_page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository/"
STORY = "story.html"
# Code is skipped: what looks like a link there is none.
PIECES = re.compile(r"(^```.*?^```|`[^`\n]*`|<!--.*?-->)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The configuration with every star of the navigation replaced by the pages it stands for."""
    pages = {path.relative_to(config.docs_dir).as_posix() for path in _pages(config.docs_dir)}
    pages |= {_reference(module) for module in config.extra["reference"]}
    config.nav = _filled(config.nav, pages, set(_named(config.nav)))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, with those that pages link to outside docs/, and the reference."""
    for module in config.extra["reference"]:
        named = (module, *_named_like_modules(module))
        text = f"---\ntitle: {module}\n---\n" + "".join(f"\n::: {name}\n" for name in named)
        files.append(File.generated(config, _reference(module), content=text))
    story = story_page(minibert.load("tiny-bert"), minibert.load("tiny-gpt2"))
    files.append(File.generated(config, STORY, content=story.html))
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    waiting = [name for name in waiting if not name.startswith("docs/reference/")]
    while waiting:
        name = waiting.pop()
        for target in _outside_links(name):
            if files.get_file_from_path(_place(target)) is None:
                files.append(_file(target, config))
                if target.endswith(".md"):
                    waiting.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text of a page with each link that leaves docs/ led to its place in the site."""
    uri = page.file.src_uri
    if uri.startswith("reference/"):
        return markdown
    if uri == "exercises.md":
        # After the title; a link in the file itself would lead nowhere outside of the site.
        markdown = markdown.replace("\n\n", f"\n\n**[Open the story]({STORY})**\n\n", 1)
    source = uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else f"docs/{uri}"

    def led(link: re.Match[str]) -> str:
        target = _target(source, link[2])
        if target is None:
            return link[0]
        place = posixpath.relpath(_place(target), posixpath.dirname(uri) or ".")
        _, mark, anchor = link[2].partition("#")
        return f"{link[1]}{place}{mark}{anchor}{link[3]}"

    pieces = PIECES.split(markdown)
    return "".join(LINK.sub(led, one) if n % 2 == 0 else one for n, one in enumerate(pieces))


def _pages(folder: str) -> Iterator[Path]:
    return (path for path in Path(folder).rglob("*.md") if path.is_file())


def _reference(module: str) -> str:
    return f"reference/{module}.md"


def _named_like_modules(module: str) -> Iterator[str]:
    """Public functions of a package that griffe takes for the modules of the same names."""
    folder = ROOT.joinpath(*module.split("."))
    names = re.search(r"^__all__ = \[(.*?)\]", _read(folder / "__init__.py"), re.DOTALL | re.M)
    for path in sorted(folder.glob("[a-z]*.py")):
        if names and f'"{path.stem}"' in names[1]:
            yield f"{module}.{path.stem}.{path.stem}"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _named(nav: Any) -> Iterator[str]:
    """Every page that the navigation names itself."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(item)


def _filled(nav: Any, pages: set[str], taken: set[str]) -> Any:
    """The navigation without stars; a section that nothing fits is left out."""
    if isinstance(nav, dict):
        filled = {title: _filled(item, pages, taken) for title, item in nav.items()}
        return {title: item for title, item in filled.items() if item}
    if isinstance(nav, list):
        items = []
        for item in nav:
            found = _filled(item, pages, taken)
            items += found if isinstance(item, str) and "*" in item else [found] * bool(found)
        return items
    if "*" not in nav:
        return nav
    depth = nav.count("/")
    fit = (page for page in pages - taken if fnmatchcase(page, nav) and page.count("/") == depth)
    # A folder's README first; minibert before minibert.analysis.
    return sorted(fit, key=lambda page: ("README.md" not in page, page.removesuffix(".md")))


def _target(source: str, link: str) -> str | None:
    """The path in the repository that a link of `source` leads to; None for an address."""
    name = link.partition("#")[0]
    if not name or re.match(r"[\w+.-]+:", name):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), name))


def _outside_links(source: str) -> Iterator[str]:
    """The paths outside docs/ that a page links to."""
    text = PIECES.sub("", (ROOT / source).read_text(encoding="utf-8"))
    for link in LINK.finditer(text):
        target = _target(source, link[2])
        if target is not None and not target.startswith("docs/") and (ROOT / target).exists():
            yield target


def _place(target: str) -> str:
    """Where a file of the repository lies in the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"{OUTSIDE}{target}/index.md" if (ROOT / target).is_dir() else f"{OUTSIDE}{target}"


def _file(target: str, config: MkDocsConfig) -> File:
    path = ROOT / target
    if not path.is_dir():
        return File.generated(config, _place(target), abs_src_path=os.fspath(path))
    names = sorted(one.name for one in path.iterdir() if one.is_file())
    text = "\n".join([f"# {target}", "", *(f"- `{name}`" for name in names), ""])
    return File.generated(config, _place(target), content=text)
