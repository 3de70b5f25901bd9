"""The description that package indexes show: README.md with links that hold outside the repository.

Everything else about the package is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?://|#)([^)\s]+)\)")


def described(readme: str, home: str | None) -> str:
    """The text with every relative link as an address under `home`.

    Without a `home`, a link becomes its words, and a picture is left out.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        if home is None:
            return "" if picture else words
        return f"{picture}[{words}]({home.rstrip('/')}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(absolute, readme)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=described(
            (HERE / "README.md").read_text(encoding="utf-8"),
            project.get("urls", {}).get("Repository"),
        ),
        long_description_content_type="text/markdown",
    )
