"""Helpers that notebooks written for TransformerLens import as `utils`."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.transformer_lens.names import whole_name

__all__ = [
    "get_act_name",
    "get_corner",
    "get_device",
    "lm_cross_entropy_loss",
    "test_prompt",
    "to_numpy",
]


def get_act_name(name: str, layer: int | str | None = None, layer_type: str | None = None) -> str:
    """The full name of a hook point: get_act_name("k", 6) is "blocks.6.attn.hook_k".

    Raises TraceError for what is not a shorthand, and for a negative layer.
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


def lm_cross_entropy_loss(
    logits: Float[Tensor, "*batch position vocab"],
    tokens: Tensor,
    attention_mask: Tensor | None = None,
    per_token: bool = False,
) -> Tensor:
    """The mean of −ln p of each next token in nats; with per_token (batch, position − 1).

    With a mask, which is 1 where a real token is, pairs of two real tokens alone count; the others
    are 0 in what per_token gives.
    """
    targets = tokens[..., 1:, None].to(logits.device)
    losses = -F.log_softmax(logits, -1)[..., :-1, :].gather(-1, targets)[..., 0]
    if attention_mask is None:
        return losses if per_token else losses.mean()
    real = torch.as_tensor(attention_mask, device=logits.device).bool()
    both = real[..., :-1] & real[..., 1:]
    losses = losses * both
    return losses if per_token else losses.sum() / both.sum()


def to_numpy(tensor: object) -> NDArray[Any]:
    """A tensor, list or number as an array; bfloat16, which NumPy does not have, as float32."""
    if isinstance(tensor, Tensor):
        values = tensor.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(tensor)


def get_device() -> str:
    """ "cuda" where there is one, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def get_corner(tensor: Any, n: int = 3) -> Any:
    """The first n of every axis, of a FactoredMatrix too."""
    return tensor[tuple(slice(n) for _ in range(tensor.ndim))]


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"minibert.transformer_lens.utils has no {name}; it has {', '.join(__all__)}."
    )


@torch.no_grad()
def print_ranks(
    prompt: str,
    answer: str | list[str],
    model: Any,
    prepend_space_to_answer: bool = True,
    print_details: bool = True,
    prepend_bos: bool | None = None,
    top_k: int = 10,
) -> None:
    """Print the rank, logit and probability of each token of each answer, and the top_k tokens.

    Of several answers each is looked at by itself. Ranks begin at 0.
    """
    ranks = []
    for one in [answer] if isinstance(answer, str) else answer:
        text = f" {one}" if prepend_space_to_answer and not one.startswith(" ") else one
        before = model.to_tokens(prompt, prepend_bos)
        wanted = model.to_tokens(text, prepend_bos=False)
        if print_details:
            print("Tokenized prompt:", model.to_str_tokens(prompt, prepend_bos))
            print("Tokenized answer:", model.to_str_tokens(text, prepend_bos=False))
        logits = model(torch.cat([before, wanted], 1))[0, before.shape[1] - 1 :]
        for row, token in zip(logits, wanted[0].tolist(), strict=False):
            shares, places = row.softmax(-1), row.argsort(descending=True).tolist()
            rank = places.index(token)
            ranks.append((model.to_single_str_token(token), rank))
            shown = [(f"Answer, rank {rank}", token)]
            shown += [(f"Top {n}", place) for n, place in enumerate(places[:top_k])]
            for name, each in shown if print_details else ():
                print(
                    f"{name:<16} logit {row[each].item():6.2f}  probability "
                    f"{shares[each].item():7.2%}  token |{model.to_single_str_token(each)}|"
                )
    print(f"Ranks of the answer tokens: {ranks}")


# Under its own name a linter takes the function for a test.
test_prompt = print_ranks
