"""The model by the names of TransformerLens 4: TransformerBridge."""

import re
from typing import Any, TypeVar

from minibert.transformer_lens.config import INPUT_SWITCHES
from minibert.transformer_lens.hook_point import HookPoint
from minibert.transformer_lens.hooked_transformer import HookedTransformer
from minibert.transformer_lens.processing import Processing, processed

__all__ = ["TransformerBridge"]

Bridge = TypeVar("Bridge", bound="TransformerBridge")

# What 4 calls the input and output of a module, and HookedTransformer's point with the same tensor.
_SAME = {
    "hook_in": "hook_resid_pre",
    "hook_out": "hook_resid_post",
    "attn.hook_out": "hook_attn_out",
    "mlp.hook_out": "hook_mlp_out",
}


class TransformerBridge(HookedTransformer):
    """A hooked model that begins with the checkpoint's weights, as TransformerLens 4's does.

    Its hook points have the names of HookedTransformer from the start, with the numbers that they
    have there. Of the names that 4 adds around modules, hooks go on those of `_SAME` by name.
    """

    @classmethod
    def boot_transformers(cls: type[Bridge], model_name: Any, **options: Any) -> Bridge:
        """The model of that name with the weights as they are; options as `from_pretrained`."""
        return cls.from_pretrained_no_processing(model_name, **options)

    def enable_compatibility_mode(
        self, disable_warnings: bool = False, no_processing: bool = False, **processing: Any
    ) -> None:
        """Process the weights, as `HookedTransformer.from_pretrained` does, by the same flags.

        disable_warnings changes nothing: there are none. Hooks that were added before are gone.
        """
        wanted = Processing(**processing).checked(self.model.config)
        if no_processing or not wanted.any:
            return
        bos = self.cfg.default_prepend_bos
        switches = {name: getattr(self.cfg, name) for name in ("use_attn_result", *INPUT_SWITCHES)}
        made = type(self)(
            processed(self.model, wanted), folded=bool(wanted.fold_ln), default_prepend_bos=bos
        )
        self.__dict__ = made.__dict__
        for name, value in switches.items():
            setattr(self.cfg, name, value)

    def _points(self, name: Any) -> list[HookPoint]:
        if isinstance(name, str) and (found := re.fullmatch(r"(blocks\.\d+\.)(.*)", name)):
            name = found[1] + _SAME.get(found[2], found[2])
        return super()._points(name)
