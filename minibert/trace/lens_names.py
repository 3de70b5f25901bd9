"""A trace by the names of TransformerLens: the cache of its `run_with_cache`, computed when read.

`trace.to_transformer_lens()` makes it; docs/transformer_lens.md has the table of names. Names, axes
and numbers are those of HookedTransformer (GPT-2, Pythia, Llama and other models whose norms do not
follow the sum with the stream) and HookedEncoder (BERT) with the processing of weights off.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.trace.lens_points import CachedTrace, Reader, readers
from minibert.trace.lens_shorthands import layer_number, whole_name

__all__ = ["TransformerLensCache"]


if TYPE_CHECKING:
    Base = Mapping[str, Tensor]
    Whole = int
else:
    # Without type arguments: a run-time type checker would read an item to check it, and so
    # compute it.
    Base = Mapping
    # `layer_number` checks it, with an error that says what was expected.
    Whole = object


class UnknownNameError(TraceError, KeyError):
    """A name that is not in the cache; a KeyError too, because a mapping's `get` expects that."""

    # KeyError would print the message in quotes.
    __str__ = Exception.__str__


class TransformerLensCache(Base):
    """The quantities of a trace by TransformerLens' names, in the order of the data.

    Each quantity is computed when it is read, and is not stored.
    """

    def __init__(self, trace: CachedTrace, *, attn_result: bool = False) -> None:
        self.trace = trace
        self._readers: dict[str, Reader] = dict(readers(trace, attn_result))

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
        return self._readers[whole]()

    def __contains__(self, name: object) -> bool:
        return self._whole(name) in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __repr__(self) -> str:
        return f"<{len(self)} quantities of {self.trace!r}, by TransformerLens' names>"

    def stack_activation(
        self, name: str, layer: Whole | None = -1, sublayer_type: str | None = None
    ) -> Float[Tensor, "layer batch *rest"]:
        """One quantity of all layers before `layer`, stacked; -1 or None means all layers.

        Raises TraceError (a KeyError too) for a name that no layer has and a layer beyond the end.
        """
        n_layers = len(self.trace)
        count = -1 if layer is None else layer_number(layer)
        count = n_layers if count == -1 else count
        if count is None or not 1 <= count <= n_layers:
            raise UnknownNameError(
                f"layer={layer!r:.80}: stack_activation stacks the layers before it; expected 1 to "
                f"{n_layers}, or -1 for all."
            )
        return torch.stack([self[name, number, sublayer_type] for number in range(count)])

    def _whole(self, name: Any) -> str | None:
        return whole_name(name, self.trace.config.n_layers)

    def _shown(self) -> Iterable[str]:
        return [name for name in self if not name.startswith("blocks.") or ".0." in name]
