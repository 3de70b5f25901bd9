"""A trace by the names of TransformerLens: the cache of its `run_with_cache`, computed when read.

`trace.to_transformer_lens()` makes it; docs/transformer_lens.md has the table of names. Names, axes
and numbers are those of HookedTransformer (GPT-2, Pythia, Llama and other models whose norms do not
follow the sum with the stream) and HookedEncoder (BERT) with the processing of weights off.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.trace.lens_logits import LensLogits
from minibert.trace.lens_points import CachedTrace, Reader, readers
from minibert.trace.lens_shorthands import UnknownNameError, whole_name
from minibert.trace.run import TracedModel

__all__ = ["TransformerLensCache"]


class TransformerLensCache(LensLogits):
    """The quantities of a trace by TransformerLens' names, in the order of the data.

    Each quantity is computed when it is read, and is not stored. The methods that stack, decompose
    and attribute are TransformerLens' own.
    """

    def __init__(self, trace: CachedTrace, *, attn_result: bool = False) -> None:
        self.trace = trace
        self._readers: dict[str, Reader] = dict(readers(trace, attn_result))
        self._device: torch.device | None = None

    @property
    def _of(self) -> TracedModel:
        return self.trace.model

    @property
    def cache_dict(self) -> dict[str, Tensor]:
        """Every quantity, computed now: a dictionary of its own."""
        return dict(self.items())

    def compute_head_results(self) -> None:
        """From now on the cache has `attn.hook_result`: what each head adds to the stream."""
        self._readers = dict(readers(self.trace, attn_result=True))

    def remove_batch_dim(self) -> "TransformerLensCache":
        """This cache, whose quantities have no axis of sentences from now on.

        Raises TraceError for a batch of several sentences.
        """
        count = self.trace.inputs.ids.shape[0]
        if count != 1:
            raise TraceError(f"remove_batch_dim: there are {count} sentences; expected one.")
        self.has_batch_dim = False
        return self

    def to(self, device: torch.device | str) -> "TransformerLensCache":
        """This cache, which gives quantities on that device from now on."""
        self._device = torch.device(device)
        return self

    def toggle_autodiff(self, mode: bool = False) -> None:
        """`torch.set_grad_enabled(mode)`: for all of torch, as in TransformerLens."""
        torch.set_grad_enabled(mode)

    def __getitem__(self, name: Any) -> Tensor:
        """The quantity of that name, or of a shorthand: ("pattern", 1), ("scale", 0, "ln1"), "k3".

        Raises TraceError (a KeyError too) for an unknown name.
        """
        whole = self._whole(name)
        if whole not in self._readers:
            results = " attn.hook_result is there with attn_result=True."
            shown = f"{name!r:.80}" + ("" if whole in (name, None) else f" ({whole:.80})")
            raise UnknownNameError(
                f"{shown} is not a name of {self!r}; there are {', '.join(self._shown())}."
                + (results if whole is not None and whole.endswith("hook_result") else "")
            )
        found = self._readers[whole]().to(self._device)
        return found if self.has_batch_dim else found[0]

    def __contains__(self, name: object) -> bool:
        return self._whole(name) in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __repr__(self) -> str:
        return f"<{len(self)} quantities of {self.trace!r}, by TransformerLens' names>"

    def _whole(self, name: Any) -> str | None:
        return whole_name(name, self.trace.config.n_layers)

    def _shown(self) -> Iterable[str]:
        return [name for name in self if not name.startswith("blocks.") or ".0." in name]
