"""Every relative link of every page leads somewhere: files, pictures, anchors.

Pages are the Markdown files of the repository. Error messages name pages too: what stands in the
code as docs/<page>.md#<anchor> has to exist as well.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import minibert
from tests.packages import REPOSITORY

SKIPPED = {"build", "dist", "node_modules"}
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`|<!--.*?-->", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
REFERENCE = re.compile(r"docs/[\w/]+\.md(?:#[\w-]+)?")
# What a picture's file begins with, by the end of its name.
BEGINS = {".png": b"\x89PNG", ".gif": b"GIF8", ".svg": b"<"}


def files_ending(*ends: str) -> list[Path]:
    """The files of the repository with these ends; what is hidden or built is left out."""
    return [
        path
        for end in ends
        for path in sorted(REPOSITORY.rglob(f"*{end}"))
        if not any(
            part in SKIPPED or part.startswith(".") for part in path.relative_to(REPOSITORY).parts
        )
    ]


PAGES = [page for page in files_ending(".md") if not page.is_symlink()]


def links_of(page: Path) -> Iterator[str]:
    """The relative links of a page; in its code there are none."""
    for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        target = match[1] or match[2]
        if not re.match(r"\w+:", target):
            yield target


def slug_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    found: dict[str, int] = {}
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        slug = slug_of(title)
        found[slug] = found.get(slug, -1) + 1
    return frozenset(
        slug if not number else f"{slug}-{number}"
        for slug, last in found.items()
        for number in range(last + 1)
    )


def problem(page: Path, target: str) -> str:
    """What is wrong with a link of a page; nothing where it leads somewhere."""
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        return "no such file"
    if anchor and anchor not in anchors_of(file):
        return f"no such heading; there are {', '.join(sorted(anchors_of(file)))}"
    begins = BEGINS.get(file.suffix, b"")
    return "" if file.is_dir() or file.read_bytes()[:9].startswith(begins) else "not a picture"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_page_leads_somewhere(page):
    wrong = {target: why for target in links_of(page) if (why := problem(page, target))}
    assert not wrong


def test_links_that_lead_nowhere_are_found(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "empty.png").touch()
    page.write_text(
        "# A `title`, twice\n# A title twice\n[a](none.md) [b](#a-title-twice-1) [c](#b)"
        "![d](empty.png) `[e](none)`\n```\n# No title\n[f](none)\n```\n[g](https://g.org)"
    )
    assert list(links_of(page)) == ["none.md", "#a-title-twice-1", "#b", "empty.png"]
    assert [bool(problem(page, target)) for target in links_of(page)] == [True, False, True, True]


def references() -> list[tuple[str, str]]:
    """The pages that strings in the library's code name, each with the file that does."""
    found = []
    for top in ("minibert", "kernels", "viz"):
        for path in (REPOSITORY / top).rglob("*.py"):
            if "node_modules" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    where = str(path.relative_to(REPOSITORY))
                    found += [(where, name) for name in REFERENCE.findall(node.value)]
    return found


def test_every_page_that_a_message_names_exists():
    found = references()
    assert len(found) >= 14
    wrong = {item: why for item in found if (why := problem(REPOSITORY / "README.md", item[1]))}
    assert not wrong


@pytest.mark.parametrize(
    "act",
    [
        lambda: minibert.load().trace("the horse")[0].nonsense,
        lambda: minibert.load(task="translation"),
        lambda: minibert.load().trace("a", edit={("z", 0, (0, 1)): 0.0, ("z", 0, (1, 2)): 0.0}),
    ],
)
def test_an_error_that_a_page_explains_ends_with_the_page(act):
    with pytest.raises(minibert.MinibertError, match=rf"See {REFERENCE.pattern}$"):
        act()


# "is no X" where English says "is not an X" ("there is no X" is right), and "Refused is X"; then
# words that are right one by one and that nobody would choose, each with an example below.
FOREIGN = re.compile(
    r"(?<!here )(?<!here\} )\b(?:is|are) no\b(?! longer| more than)"
    r"|\b(?:Refused|Said|Asked) (?:is|are)\b"
    r"|\bin the place of\b|(?<!\.)\banew\b|\bfrom \d+ on\b|\bto the last bit\b|\bgoes on\b"
    r"|\b(?:says|said) of\b|\bis said to\b|\b[Ww]hoever\b|\b(?:for|to|by|of|than) who\b"
    r"|\bmakes it that\b|\bas one likes\b|\bfor want of\b|\bweighed by\b"
    r"|\b(?:tokens?|keys?|norms?|layers?|sentences?|lengths?|softmax) behind\b"
    r"|\b(?:stands?|begins?|comes?|written) behind (?:the|an?|it|them|that|each)\b"
)
EXAMPLES = (
    "'prob' is no quantity",
    "Refused is a bias.",
    "a number from 1 on",
    "the same to the last bit",
    "what is said of another tool",
    "told to who is wrong",
    "the token behind it",
    "a norm stands behind the layers",
)
# A docstring begins with a verb or with the thing itself.
WITHOUT_SUBJECT = re.compile(
    r"(?:The same\b|Those\b|That of|Of |It(?:,| |s )|Inside\b|In here|Who |Whose )"
)


def test_what_people_read_is_plain_english():
    assert all(map(FOREIGN.search, EXAMPLES))
    source = [
        path
        for top in ("minibert", "kernels", "viz")
        for path in (REPOSITORY / top).rglob("*.py")
        if "node_modules" not in path.parts
    ]
    for path in (*PAGES, *source):
        found = FOREIGN.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found[0]!r}"
    for path in source:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = ast.get_docstring(node) or ""
                assert not WITHOUT_SUBJECT.match(text), f"{path}, {node.name}: {text:.40}"
