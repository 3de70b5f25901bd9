"""Hook points and modules of one's own that have them, by the name of TransformerLens' module."""

from minibert.transformer_lens.hooks import HookedRootModule, HookPoint

__all__ = ["HookPoint", "HookedRootModule"]
