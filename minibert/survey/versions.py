"""The versions that numbers over a corpus were made with."""

import platform
import sys
from importlib.metadata import version

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Of minibert, Python and the packages that numbers come from, by name."""
    packages = ("numpy", "tokenizers", "torch")
    return {
        # Not of the installed package: a checkout may run without being installed.
        "minibert": str(sys.modules["minibert"].__version__),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }
