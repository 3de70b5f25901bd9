"""minibert: every number that attention is made of, to read, change, measure and look at.

>>> import minibert
>>> model = minibert.load()
>>> trace = model.trace("leaves fall in autumn")
>>> trace[1, 3].probs.shape[-1] == trace.tokens.lengths[0]
True

The names below are imported when they are first used, so that `import minibert` and
`minibert --help` do not wait for torch.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from minibert.doors import add_doors, attributes
from minibert.errors import (
    AttentionError,
    CheckpointError,
    EditError,
    MinibertError,
    TokenizationError,
    TraceError,
)

if TYPE_CHECKING:
    from minibert import features as features
    from minibert.attached.attach import attach
    from minibert.attached.measuring import measuring
    from minibert.kernels.api import attend, implementations, register
    from minibert.layers.config import Config
    from minibert.model import Model, load
    from minibert.text.tokenizer import Tokenizer
    from minibert.text.tokens import Tokens
    from minibert.text.words import Words
    from minibert.trace.read import Trace

if not Path(__file__).with_name("kernels").is_dir():
    # A checkout without symbolic links: kernels/ and viz/ are found where they are, beside us.
    __path__.append(str(Path(__file__).parents[1]))

__version__ = "1.0.0rc1"
__all__ = [
    "AttentionError",
    "CheckpointError",
    "Config",
    "EditError",
    "MinibertError",
    "Model",
    "TokenizationError",
    "Tokenizer",
    "Tokens",
    "Trace",
    "TraceError",
    "Words",
    "attach",
    "attend",
    "implementations",
    "load",
    "measuring",
    "register",
]

_HOME = {
    "Config": "layers.config",
    "Model": "model",
    "Tokenizer": "text.tokenizer",
    "Tokens": "text.tokens",
    "Trace": "trace.read",
    "Words": "text.words",
    "attach": "attached.attach",
    "attend": "kernels.api",
    "implementations": "kernels.api",
    "load": "model",
    "measuring": "attached.measuring",
    "register": "kernels.api",
}

add_doors("minibert.analysis.score_reasons", {"why": "why"})
add_doors("minibert.viz", {"view": "view"})
add_doors("minibert.viz.graph_page", {"graph": "graph_page"})
add_doors("minibert.viz.measured_page", {"measured": "measured_page"})
add_doors("minibert.viz.serve.server", {"live": "live_cell"})
add_doors("minibert.viz.plots", {"plot": "drawn"})


# Hidden from type checkers, which would take it for a promise of every name.
if not TYPE_CHECKING:
    _attribute = attributes(__name__, _HOME)

    def __getattr__(name: str) -> object:
        return import_module("minibert.features") if name == "features" else _attribute(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
