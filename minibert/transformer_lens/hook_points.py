"""Hook points and modules of one's own that have them, by the name of TransformerLens' module."""

from minibert.transformer_lens.hook_point import HookPoint
from minibert.transformer_lens.root_module import HookedRootModule

__all__ = ["HookPoint", "HookedRootModule"]
