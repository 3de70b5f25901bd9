"""Notebooks written for TransformerLens, on minibert's models: change the import, keep the rest.

    from minibert.transformer_lens import HookedTransformer, utils

Names, arguments, axes and numbers are those of TransformerLens 3.9; docs/transformer_lens.md says
what is not offered. Nothing here imports TransformerLens; `import minibert` does not import this.
"""

from minibert.transformer_lens import components, hook_points, patching, utils
from minibert.transformer_lens.cache import ActivationCache
from minibert.transformer_lens.components import FactoredMatrix
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.hook_points import HookedRootModule, HookPoint
from minibert.transformer_lens.model import HookedTransformer, TransformerBridge

__all__ = [
    "ActivationCache",
    "FactoredMatrix",
    "HookPoint",
    "HookedRootModule",
    "HookedTransformer",
    "HookedTransformerConfig",
    "TransformerBridge",
    "components",
    "hook_points",
    "patching",
    "utils",
]
