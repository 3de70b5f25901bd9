"""What is said of other tools: each claim with version and date, in one table."""

import re
from datetime import date

from packaging.version import Version

from tests.packages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "peers.md").read_text(encoding="utf-8")
TABLE = [line[2:-2].split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]
ROWS = {name: rest for name, *rest in TABLE}
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]


def test_every_claim_has_a_version_and_a_day() -> None:
    assert len(ROWS) > 10
    for version, read_on, package, said in ROWS.values():
        assert date.fromisoformat(read_on) <= date.today()
        assert package == "–" or Version(version)
        assert said.endswith(".")


def test_the_tools_of_readme_and_of_the_page_of_other_uses_are_in_the_table() -> None:
    heading = next(line for line in README.splitlines() if line.startswith("| | minibert |"))
    assert {cell.strip() for cell in heading.split("|")[3:-1]} <= set(ROWS)
    uses = (REPOSITORY / "docs" / "not_for.md").read_text(encoding="utf-8")
    for line in [line for line in uses.splitlines() if line.startswith("| ")][1:]:
        use = line[2:-2].split(" | ")[2]
        assert any(name.lower() in use.lower() for name in ROWS) or use.startswith("several"), use


def test_a_count_of_models_on_a_page_is_that_of_the_table() -> None:
    for page in PAGES:
        for count in re.findall(r"(\d+,000)\+? models|over (\d+,000)", page.read_text()):
            assert next(filter(None, count)) in ROWS["TransformerLens"][-1], page
