"""What MkDocs does not do by itself for our site (mkdocs.yml names this file as a hook).

- A name with a star in the navigation stands for every page that fits it and has no place of its
  own.
- A page may link to a file of the repository outside docs/: that file becomes a part of the site,
  under repository/, so that every link holds without a network. A folder becomes a list of its
  files.
- The live page and the story are made beside the pages of docs, in each language (story.de.html),
  and opened from there.
- A unit of the course links its notebook, slides and handout; where pyproject.toml has the address
  of the repository, also the notebook in Colab and in Binder.
- Each module named in `extra.reference` gets a page that mkdocstrings fills from docstrings.
- The colours are those of our pages, the search index is a script (a browser reads no other file
  for a page that was opened from one), and the links of 404.html are relative.
"""

import json
import os
import posixpath
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import minibert
from minibert.languages import LANGUAGES
from minibert.viz.document import colors
from minibert.viz.stored import stored_live, stored_story

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository/"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# "https://github.com/owner/name"; "" while there is none.
ADDRESS = PROJECT.get("urls", {}).get("Repository", "").rstrip("/")
LIVE, STORY = "**[Open the live page](live.html)**", "**[Open the story](story.html)**"
# What stands below a page's title on the site only: links that lead nowhere in the repository.
OPENED = {"index.md": f"{LIVE} · {STORY}", "pages.md": LIVE, "exercises.md": STORY}
# Code is skipped: what looks like a link there is none.
PIECES = re.compile(r"(^```.*?^```|`[^`\n]*`|<!--.*?-->)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
# Parts of code that the style does not tell apart: half of a page with much code.
PLAIN = re.compile(r'<span class="(?:n|nb|nn|o|p|w|fm|nd|bp)">([^<]*)</span>')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The configuration with every star of the navigation replaced by the pages it stands for."""
    pages = {path.relative_to(config.docs_dir).as_posix() for path in _pages(config.docs_dir)}
    pages |= {_reference(module) for module in config.extra["reference"]}
    config.nav = _filled(config.nav, pages, set(_named(config.nav)))
    config.extra["colors"] = dict(zip(("light", "dark"), colors(), strict=True))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, with those that pages link to outside docs/, and the reference."""
    for module in config.extra["reference"]:
        files.append(File.generated(config, _reference(module), content=_reference_text(module)))
    for language in LANGUAGES:
        end = "html" if language == "en" else f"{language}.html"
        made = {"live": stored_live("tiny-bert", language), "story": stored_story(language)}
        for name, page in made.items():
            files.append(File.generated(config, f"{name}.{end}", content=page.html))
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
    # The picture of the live page leads to it.
    markdown = re.sub(r"^!\[.*\]\(live\.png\)$", r"[\g<0>](live.html)", markdown, flags=re.M)
    if opened := OPENED.get(uri) or _of_unit(uri):
        markdown = markdown.replace("\n\n", f"\n\n{opened}\n\n", 1)
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


def on_page_content(html: str, **_: Any) -> str:
    """The page, in which what is wide scrolls, by keyboard too, and pictures wait to be seen."""
    html = PLAIN.sub(r"\1", html).replace("<table>", '<div class="table" tabindex="0"><table>')
    html = html.replace("</table>", "</table></div>").replace("<th></th>", "<td></td>")
    return html.replace("<pre>", '<pre tabindex="0">').replace("<img ", '<img loading="lazy" ')


def on_template_context(context: Any, *, template_name: str, config: MkDocsConfig) -> Any:
    """Links of 404.html that hold in whatever folder the site lies."""
    return context | {"base_url": "."} if template_name == "404.html" else context


def on_post_build(config: MkDocsConfig) -> None:
    """The search index of MkDocs as a script, without pages whose sections are in it too."""
    index = Path(config.site_dir, "search", "search_index.json")
    docs = json.loads(index.read_text(encoding="utf-8"))["docs"]
    titles = {doc["location"]: doc["title"] for doc in docs}
    for doc in docs:
        page = titles[doc["location"].partition("#")[0]]
        doc["title"] += f" · {page}" if doc["title"] != page else ""
    divided = {doc["location"].partition("#")[0] for doc in docs if "#" in doc["location"]}
    kept = json.dumps([doc for doc in docs if doc["location"] not in divided], ensure_ascii=False)
    index.with_name("index.js").write_text(f"window.searchIndex = {kept};\n", encoding="utf-8")
    index.unlink()


def _of_unit(uri: str) -> str:
    """Links to what is made of a unit of the course; "" for another page."""
    unit = re.fullmatch(r"course/(\d_\w+)\.md", uri)
    if not unit:
        return ""
    notebook = f"notebooks/{unit[1]}.ipynb"
    links = [f"[Notebook]({notebook})", f"[Slides](slides/{unit[1]}.html)"]
    links.append(f"[Handout](handouts/{unit[1]}.html)")
    if ADDRESS:
        place = f"docs/course/{notebook}"
        owned = ADDRESS.removeprefix("https://github.com/")
        colab = f"https://colab.research.google.com/github/{owned}/blob/main/{place}"
        binder = f"https://mybinder.org/v2/gh/{owned}/HEAD?labpath={place}"
        links += [f"[Open in Colab]({colab})", f"[Open in Binder]({binder})"]
    return " · ".join(links)


def _reference_text(module: str) -> str:
    """The page of a module; that of minibert begins with `load`."""
    options = ""
    if module == "minibert":
        # griffe does not reach what lies in kernels/, a link to a folder without __init__.py.
        found = (
            name
            for name in minibert.__all__
            if ".kernels." not in getattr(getattr(minibert, name), "__module__", "")
        )
        names = sorted(found, key=lambda name: (name != "load", name != "Model"))
        options = f"    options:\n      group_by_category: false\n      members: {names}\n"
    named = (f"\n::: {name}\n" for name in _named_like_modules(module))
    return f"---\ntitle: {module}\n---\n\n::: {module}\n{options}" + "".join(named)


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
