"""Shows the examples of docstrings as code in the reference: an extension of griffe (mkdocs.yml).

In Markdown a line that begins with >>> is a quotation.
"""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^(?:>>> .*\n?)(?:.+\n?)*", re.MULTILINE)


class DoctestBlocks(Extension):
    """Every example, up to the next empty line, as a block of code."""

    def on_package(self, *, pkg: Object, **_: Any) -> None:
        """Change the docstrings of everything in a package."""
        waiting = [pkg]
        while waiting:
            one = waiting.pop()
            if one.docstring is not None:
                one.docstring.value = EXAMPLE.sub(
                    lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", one.docstring.value
                )
            waiting += [member for member in one.members.values() if not member.is_alias]
