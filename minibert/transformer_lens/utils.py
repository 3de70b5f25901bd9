"""Helpers that notebooks written for TransformerLens import as `utils`."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.errors import TraceError
from minibert.transformer_lens.names import Slice, whole_name
from minibert.transformer_lens.reading import (
    USE_DEFAULT_VALUE,
    lm_accuracy,
    lm_cross_entropy_loss,
    sample_logits,
)
from minibert.transformer_lens.weights import composition_scores

if TYPE_CHECKING:
    from minibert.transformer_lens.model import HookedTransformer
else:
    # A model imports this file's neighbours; a run-time type checker must not ask for it.
    HookedTransformer = Any

__all__ = [
    "USE_DEFAULT_VALUE",
    "Slice",
    "composition_scores",
    "get_act_name",
    "get_corner",
    "get_cumsum_along_dim",
    "get_device",
    "is_lower_triangular",
    "is_square",
    "lm_accuracy",
    "lm_cross_entropy_loss",
    "remove_batch_dim",
    "repeat_along_head_dimension",
    "sample_logits",
    "test_prompt",
    "to_numpy",
    "transpose",
]


def get_act_name(name: str, layer: int | str | None = None, layer_type: str | None = None) -> str:
    """The full name of a hook point: get_act_name("k", 6) is "blocks.6.attn.hook_k".

    Raises TraceError for what is no shorthand, and for a negative layer.
    """
    number = int(layer) if isinstance(layer, str) and layer.isdigit() else layer
    # Without a model there is no last layer to count back from.
    found = whole_name((name, number, layer_type), 0)
    if found is None or (isinstance(number, int) and number < 0):
        raise TraceError(
            f"get_act_name({name!r:.80}, {layer!r:.80}, {layer_type!r:.80}): expected a shorthand "
            'such as ("k", 6), with a layer from 0 on.'
        )
    return found


def to_numpy(tensor: Any) -> NDArray[Any]:
    """A tensor, list or number as an array; bfloat16, which NumPy does not have, as float32."""
    if isinstance(tensor, Tensor):
        values = tensor.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(tensor)


def get_device() -> str:
    """ "cuda" where there is one, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def get_corner(tensor: Tensor, n: int = 3) -> Tensor:
    """The first n of every axis."""
    return tensor[tuple(slice(n) for _ in range(tensor.ndim))]


def remove_batch_dim(tensor: Tensor) -> Tensor:
    """Without the first axis, where it has size 1; else the tensor."""
    return tensor[0] if tensor.shape[0] == 1 else tensor


def transpose(tensor: Tensor) -> Tensor:
    """With the last two axes swapped."""
    return tensor.mT


def is_square(x: Tensor) -> bool:
    """Whether it is a matrix with as many rows as columns."""
    return x.ndim == 2 and x.shape[0] == x.shape[1]


def is_lower_triangular(x: Tensor) -> bool:
    """Whether it is a square matrix with 0 above the diagonal."""
    return is_square(x) and x.equal(x.tril())


def get_cumsum_along_dim(tensor: Tensor, dim: int, reverse: bool = False) -> Tensor:
    """The running sum along an axis, from its end where `reverse`."""
    if reverse:
        return tensor.flip(dim).cumsum(dim).flip(dim)
    return tensor.cumsum(dim)


def repeat_along_head_dimension(tensor: Tensor, n_heads: int, clone_tensor: bool = True) -> Tensor:
    """(batch, position, d_model) as (batch, position, head, d_model), the same for each head."""
    repeated = tensor[:, :, None].expand(-1, -1, n_heads, -1)
    return repeated.clone() if clone_tensor else repeated


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"minibert.transformer_lens.utils has no {name}; it has {', '.join(__all__)}."
    )


@torch.no_grad()
def print_ranks(
    prompt: str,
    answer: str | list[str],
    model: HookedTransformer,
    prepend_space_to_answer: bool = True,
    print_details: bool = True,
    prepend_bos: bool | None = None,
    top_k: int = 10,
) -> None:
    """Print the rank, logit and probability of each token of each answer, and the top_k tokens.

    Of several answers each is looked at by itself. Ranks begin at 0.
    """
    answers = [answer] if isinstance(answer, str) else answer
    ranks = []
    for one in answers:
        text = f" {one}" if prepend_space_to_answer and not one.startswith(" ") else one
        before = model.to_tokens(prompt, prepend_bos)
        wanted = model.to_tokens(text, prepend_bos=False)
        logits = model(torch.cat([before, wanted], 1))[0]
        if print_details:
            print("Tokenized prompt:", model.to_str_tokens(prompt, prepend_bos))
            print("Tokenized answer:", model.to_str_tokens(text, prepend_bos=False))
        for number, token in enumerate(wanted[0].tolist()):
            ranks.append(
                _rank(model, logits[before.shape[1] - 1 + number], token, print_details, top_k)
            )
    print(f"Ranks of the answer tokens: {ranks}")


def _rank(
    model: HookedTransformer, logits: torch.Tensor, token: int, details: bool, top_k: int
) -> tuple[str, int]:
    """A token as a string, and how many have larger logits."""
    shares, (_values, places) = logits.softmax(-1), logits.sort(descending=True)
    rank = int((places == token).nonzero())
    if details:
        rows = [
            (f"Answer, rank {rank}", token),
            *((f"Top {n}", int(places[n])) for n in range(top_k)),
        ]
        for name, each in rows:
            print(
                f"{name:<16} logit {logits[each].item():6.2f}  "
                f"probability {shares[each].item():7.2%}  token |{model.to_single_str_token(each)}|"
            )
    return model.to_single_str_token(token), rank


# Under its own name a linter takes the function for a test.
test_prompt = print_ranks
