"""The pages' code keeps its order, its own tests pass, and what is shipped is what it gives."""

import json
import posixpath
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
STATIC = REPOSITORY / "viz" / "static"
FIRST_NODE = 20

# Lowest first: a module imports from its own layer and from those before it. A view is a folder of
# views/ and imports no other view. What lies in static/ itself puts views together.
LAYERS = ("core", "marks", "engine", "views", "live")
# What a module takes from a package, which the build bundles: no other module may.
PACKAGES = {("engine/tokens.js", "@huggingface/tokenizers")}
_FROM = r"^\s*(?:import|export)\s[^\"'`;=()]*?\bfrom\s*"
_TYPES = r"^\s*/?\*+\s*@import\s[^\"'\n]*\bfrom\s*"
_STATIC = re.compile(
    rf"""(?:{_FROM}|{_TYPES}|^\s*import\s*|^@import\s+)["']([^"']+)["']""", re.MULTILINE
)
# Types in comments are written in this form too.
_DYNAMIC = re.compile(r"\bimport\s*\(\s*([^)]*?)\s*\)")


def imports(source: str) -> list[str]:
    """What a module or a style imports; import() of no constant as the expression that it is."""
    return _STATIC.findall(source) + [text.strip("\"'") for text in _DYNAMIC.findall(source)]


def layer_of(name: str) -> tuple[int, str]:
    """The place of a module in the order, and the view that it belongs to."""
    first, _, rest = name.partition("/")
    if not rest:
        return len(LAYERS), ""
    return LAYERS.index(first), rest.split("/")[0] if first == "views" else ""


def against_the_order(modules: dict[str, str]) -> list[str]:
    """The imports, of modules given as text by their path in static/, that may not be."""
    wrong = []
    for name, source in modules.items():
        layer, view = layer_of(name)
        for imported in imports(source):
            if (name, imported) in PACKAGES:
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))
            if target not in modules:
                wrong.append(f"{name} imports {imported!r}, which is not a file of static/")
                continue
            below, other = layer_of(target)
            if below > layer or (view and other and view != other):
                wrong.append(f"{name} imports {target}")
    return wrong


def sources() -> dict[str, str]:
    found = {path for kind in ("js", "css") for path in STATIC.rglob(f"*.{kind}")}
    return {p.relative_to(STATIC).as_posix(): p.read_text(encoding="utf-8") for p in sorted(found)}


def node() -> str:
    """The path of node; the test is skipped where there is none, or an older one."""
    found = shutil.which("node") or pytest.skip("there is no node")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if int(said.lstrip("v").split(".")[0]) < FIRST_NODE:
        pytest.skip(f"node is older than {FIRST_NODE}")
    return found


def read(name: str) -> dict[str, Any]:
    return dict(json.loads((REPOSITORY / "viz" / name).read_text(encoding="utf-8")))


def test_imports_go_from_views_to_marks_to_core():
    modules = sources()
    assert {name.split("/")[0] for name in modules if "/" in name} == set(LAYERS)
    assert not against_the_order(modules)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("core/draw/dom.js", 'const kind = await import("../../views/head/head.js");'),
        ("marks/rows.js", 'export { headKind } from "../views/head/head.js";'),
        ("marks/rows.js", 'import "../page.js";'),
        ("marks/rows.js", '/** @type {import("../views/head/lines.js").Look} */'),
        ("views/map/map.js", 'import { headKind } from "../head/head.js";'),
        ("views/map/map.js", "const kind = import(`../${name}/${name}.js`);"),
        ("views/map/map.css", '@import "../head/head.css";'),
    ],
)
def test_an_import_against_the_order_is_found(name, line):
    modules = sources()
    modules[name] += f"{line}\n"
    (found,) = against_the_order(modules)
    assert found.startswith(f"{name} imports")


def test_the_units_of_the_pages_pass_their_own_tests():
    files = sorted((REPOSITORY / "tests" / "front_end").glob("*.test.js"))
    assert files
    done = subprocess.run(
        [node(), "--test", *files],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_what_builds_the_pages_is_pinned_and_locked_by_hash_and_from_no_place():
    manifest = read("package.json")
    assert "dependencies" not in manifest
    versions = manifest["devDependencies"].values()
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    packages = {name: one for name, one in read("package-lock.json")["packages"].items() if name}
    assert all("integrity" in one and "resolved" not in one for one in packages.values())
