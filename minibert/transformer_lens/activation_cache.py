"""What passed through the hook points of a pass, with all that TransformerLens' cache does."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.trace.lens_logits import LensLogits
from minibert.trace.lens_shorthands import UnknownNameError, whole_name
from minibert.trace.lens_slice import as_slice
from minibert.trace.run import TracedModel
from minibert.transformer_lens.config import HookedTransformerConfig

__all__ = ["ActivationCache"]


@runtime_checkable
class CachedModel(Protocol):
    """What a cache reads of the hooked model it comes from."""

    @property
    def model(self) -> TracedModel:
        """minibert's model."""

    @property
    def cfg(self) -> HookedTransformerConfig:
        """The facts about it."""


class ActivationCache(LensLogits):
    """A mapping from the names of hook points, or shorthands of them, to tensors.

    cache_dict      the tensors by full name
    model           the HookedTransformer that they come from
    has_batch_dim   whether they have an axis of sentences

    `attn.hook_result` need not be kept: it is computed from hook_z where it is read.
    """

    def __init__(
        self, cache_dict: dict[str, Tensor], model: CachedModel, has_batch_dim: bool = True
    ) -> None:
        self.cache_dict = cache_dict
        self.model = model
        self.has_batch_dim = has_batch_dim

    @property
    def _of(self) -> TracedModel:
        return self.model.model

    @property
    def has_embed(self) -> bool:
        """Whether the embeddings of words are kept."""
        return "hook_embed" in self.cache_dict

    @property
    def has_pos_embed(self) -> bool:
        """Whether the embeddings of positions are kept."""
        return "hook_pos_embed" in self.cache_dict

    def __getitem__(self, key: Any) -> Tensor:
        """The tensor of that name, or of a shorthand: ("pattern", 1), ("scale", 0, "ln1"), "k3".

        Raises TraceError (a KeyError too) for what is not kept.
        """
        name = self._whole(key)
        if name in self.cache_dict:
            return self.cache_dict[name]
        if self._has_z_of(name):
            layer = int(str(name).split(".")[1])
            return self._head_results(self["z", layer], layer)
        raise UnknownNameError(
            f"{key!r:.80} ({name!s:.80}) is not in this cache of {len(self)} names. Either it is "
            "no hook point (`model.hook_dict` has them), or names_filter or stop_at_layer took it "
            "out."
        )

    def __contains__(self, key: object) -> bool:
        name = self._whole(key)
        return name in self.cache_dict or self._has_z_of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.cache_dict)

    def __len__(self) -> int:
        return len(self.cache_dict)

    def __repr__(self) -> str:
        return f"ActivationCache with keys {list(self.cache_dict)}"

    def compute_head_results(self) -> None:
        """Keep `attn.hook_result` of every layer: what each head adds to the stream."""
        for layer in range(self.model.cfg.n_layers):
            name = f"blocks.{layer}.attn.hook_result"
            self.cache_dict[name] = self[name]

    def remove_batch_dim(self) -> "ActivationCache":
        """This cache, without the axis of sentences.

        Raises TraceError for several sentences.
        """
        if self.has_batch_dim:
            several = {len(x) for x in self.cache_dict.values() if x.dim()} - {1}
            if several:
                raise TraceError(f"remove_batch_dim: there are {several} sentences; expected one.")
            for name, value in self.cache_dict.items():
                self.cache_dict[name] = value[0] if value.dim() else value
            self.has_batch_dim = False
        return self

    def apply_slice_to_batch_dim(self, batch_slice: Any) -> "ActivationCache":
        """Another cache with some of the sentences; an int leaves no axis of them."""
        if not self.has_batch_dim:
            raise TraceError("This cache has no axis of sentences to slice.")
        chosen = as_slice(batch_slice)
        cut = {name: chosen.apply(value) for name, value in self.cache_dict.items()}
        return ActivationCache(cut, self.model, has_batch_dim=chosen.mode != "int")

    def to(self, device: torch.device | str) -> "ActivationCache":
        """This cache, its tensors on that device."""
        self.cache_dict = {name: value.to(device) for name, value in self.cache_dict.items()}
        return self

    def toggle_autodiff(self, mode: bool = False) -> None:
        """`torch.set_grad_enabled(mode)`: for all of torch, as in TransformerLens."""
        torch.set_grad_enabled(mode)

    def _whole(self, key: object) -> str | None:
        if isinstance(key, str) and key in self.cache_dict:
            return key
        return whole_name(key, self.model.cfg.n_layers)

    def _has_z_of(self, name: str | None) -> bool:
        if name is None or not name.endswith(".attn.hook_result"):
            return False
        return name.removesuffix("result") + "z" in self.cache_dict
