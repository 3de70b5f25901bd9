"""What is said of other tools: each claim with version and date, in one table."""

import re
from datetime import date

import pytest
from packaging.version import Version

from scripts import check_peers
from scripts.check_peers import Peer, peers, stale
from tests.packages import REPOSITORY

ROWS = {row.name: row for row in peers(check_peers.PAGE.read_text(encoding="utf-8"))}
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]


def test_every_claim_has_a_version_and_a_day():
    assert len(ROWS) > 10
    for row in ROWS.values():
        assert date.fromisoformat(row.read_on) <= date.today()
        assert not row.package or Version(row.version)
        assert row.said.endswith(".")


def test_a_row_is_stale_when_its_package_is_newer_and_not_before():
    row = Peer("Tool", "1.9.0", "2026-01-01", "tool", "It works.")
    assert stale([row], lambda package: "1.9.0") == []
    assert stale([row], lambda package: "1.8.9") == []
    (said,) = stale([row], lambda package: "1.10.0")
    assert re.search(r"Tool: 1\.10\.0 is out.*1\.9\.0 on 2026-01-01", said)
    assert "no tool" in stale([row], lambda package: "")[0]


@pytest.mark.parametrize(("answers", "status"), [({}, 0), ({"transformer-lens": "99.0"}, 1)])
def test_the_command_ends_with_1_only_where_the_index_answers(answers, status, monkeypatch):
    versions = {row.package: row.version for row in ROWS.values()} if answers else {}
    monkeypatch.setattr(check_peers, "newest", lambda name: (versions | answers).get(name, ""))
    assert check_peers.main() == status


def test_the_tools_of_readme_and_of_the_page_of_other_uses_are_in_the_table():
    heading = next(line for line in README.splitlines() if line.startswith("| | minibert |"))
    assert {cell.strip() for cell in heading.split("|")[3:-1]} <= set(ROWS)
    uses = (REPOSITORY / "docs" / "not_for.md").read_text(encoding="utf-8")
    for line in [line for line in uses.splitlines() if line.startswith("| ")][1:]:
        use = line[2:-2].split(" | ")[2]
        assert any(name.lower() in use.lower() for name in ROWS) or use.startswith("several"), use


def test_a_count_of_models_on_a_page_is_that_of_the_table():
    for page in PAGES:
        for count in re.findall(r"(\d+,000)\+? models|over (\d+,000)", page.read_text()):
            assert next(filter(None, count)) in ROWS["TransformerLens"].said, page
