"""How well a model answers a prompt, printed."""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from minibert.transformer_lens.hooked_transformer import HookedTransformer
else:
    HookedTransformer = Any

__all__ = ["print_ranks"]


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
