"""Helpers that notebooks written for TransformerLens import as `utils`, and the names of the cache.

`whole_name` and `taken` read names and positions as TransformerLens' cache takes them; points.py
says what a name stands for.
"""

import json
import operator
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import hf_hub_download
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from minibert.errors import TokenizationError, TraceError
from minibert.quantities import Float

# Shorthands and the names they stand for, and the part of a layer that each name belongs to.
_SHORT = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "key": "k",
    "query": "q",
    "value": "v",
    "mlp_pre": "pre",
    "mlp_post": "post",
}
_LAYER_TYPES = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}
_ATTENTION = ("q", "k", "v", "rot_q", "rot_k", "z", "attn_scores", "pattern", "result")
_PLACES = dict.fromkeys(_ATTENTION, "attn") | dict.fromkeys(("pre", "pre_linear", "post"), "mlp")


class UnknownNameError(TraceError, KeyError):
    """A name that is not in the cache; a KeyError too, because a mapping's `get` expects that."""

    # KeyError would print the message in quotes.
    __str__ = Exception.__str__


def whole_name(key: object, n_layers: int) -> str | None:
    """The full name of (name, layer, layer_type), or of a string like "k3" or "scale0ln1".

    None for anything else. It follows TransformerLens' `utils.get_act_name`. Negative layers count
    from the end, as in its ActivationCache.
    """
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 3:
        return None
    name, layer, layer_type = (*parts, None, None)[:3]
    if not isinstance(name, str) or not isinstance(layer_type, str | None):
        return None
    if layer is None and layer_type is None and ("." in name or name.startswith("hook_")):
        return name
    if written := re.match(r"([a-z]+)([0-9]+)(.*)", name):
        name, layer, layer_type = written[1], int(written[2]), written[3]
    if layer is not None:
        number = layer_number(layer)
        if number is None:
            return None
        layer = number + n_layers if number < 0 else number
    name = _SHORT.get(name, name)
    layer_type = _PLACES.get(name) or _LAYER_TYPES.get(layer_type, layer_type)
    before = "" if layer is None else f"blocks.{layer}."
    if layer is None and name in ("scale", "normalized"):
        before = "ln_final."
    return before + (f"{layer_type}." if layer_type else "") + f"hook_{name}"


def layer_number(value: Any) -> int | None:
    """The value as an int; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def taken(tensor: Tensor, given: object, axis: int) -> Tensor:
    """The tensor at some places of an axis.

    None takes all. An int takes one place and its axis goes. A tuple is (start, stop) or
    (start, stop, step). A list, an array or a tensor names the places.
    Raises TraceError for anything else.
    """
    place = slice(*given) if isinstance(given, tuple) and len(given) <= 3 else given
    if place is None:
        return tensor
    if isinstance(place, list):
        place = np.array(place, dtype=np.int64)
    if layer_number(place) is None and not isinstance(place, slice | np.ndarray | Tensor):
        raise TraceError(
            f"{given!r:.80} is not a slice; expected an int, a list of ints, (start, stop), a "
            "slice or None."
        )
    places: list[Any] = [slice(None)] * tensor.dim()
    places[axis] = place
    return tensor[tuple(places)]


__all__ = [
    "download_file_from_hf",
    "gelu_new",
    "get_act_name",
    "get_attention_mask",
    "get_corner",
    "get_device",
    "lm_cross_entropy_loss",
    "test_prompt",
    "to_numpy",
    "tokenize_and_concatenate",
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
            'such as ("k", 6), with a layer of at least 0.'
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


def gelu_new(input: Tensor) -> Tensor:
    """x/2·(1 + tanh(sqrt(2/π)·(x + 0.044715·x³))), GPT-2's (Hendrycks & Gimpel 2016)."""
    return F.gelu(input, approximate="tanh")


def get_attention_mask(
    tokenizer: Any, tokens: Tensor, prepend_bos: bool, padding_side: str | None = None
) -> Tensor:
    """1 where a real token is: padding is what stands at the padded side of each row alone.

    Without a tokenizer all are real. padding_side is by default that of the tokenizer.
    """
    if tokenizer is None:
        return torch.ones_like(tokens)
    real = (tokens != tokenizer.pad_token_id).long()
    if (padding_side or tokenizer.padding_side) == "right":
        return real.flip(-1).cummax(-1).values.flip(-1)
    found = real.cummax(-1).values
    if prepend_bos and tokenizer.bos_token_id == tokenizer.pad_token_id:
        # The last of the leading ones is the BOS token.
        places = (found == 0).sum(-1, keepdim=True) - 1
        found = found.scatter(-1, places % tokens.shape[-1], 1)
    return found


def tokenize_and_concatenate(
    dataset: Any,
    tokenizer: Any,
    streaming: bool = False,
    max_length: int = 1024,
    column_name: str = "text",
    add_bos_token: bool = True,
    num_proc: int | None = 10,
    set_format: bool = True,
) -> Any:
    """A dataset of the package `datasets`, as rows of max_length tokens in the column "tokens".

    The texts of a batch stand one after the other, an end-of-text token between them, and what
    does not fill a row is left out; a batch without a whole row is padded.

    tokenizer   a model's, or one of transformers
    streaming   of a dataset that is read as it comes: num_proc, processes at once, is not used
    """
    width = max_length - add_bos_token
    end = tokenizer.eos_token_id
    if end is None:
        raise TokenizationError("tokenize_and_concatenate needs a tokenizer with an end of text.")
    padding = end if tokenizer.pad_token is None else tokenizer.pad_token_id
    first = [tokenizer.bos_token_id] * add_bos_token

    def rows(examples: Any) -> dict[str, Any]:
        texts = examples[column_name]
        if not texts:
            return {"tokens": np.array([], dtype=np.int64)}
        encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
        ids = [token for text in encoded for token in (*text, end)][:-1]
        ids += [padding] * (width - len(ids))
        starts = range(0, len(ids) - width + 1, width)
        return {"tokens": np.array([[*first, *ids[at : at + width]] for at in starts])}

    options = {} if streaming else {"num_proc": num_proc}
    found = dataset.map(rows, batched=True, remove_columns=list(dataset.features), **options)
    if set_format:
        found.set_format(type="torch", columns=["tokens"])
    return found


def download_file_from_hf(
    repo_name: str, file_name: str, force_is_torch: bool = False, **options: Any
) -> Any:
    """A file of a repository of the Hub: tensors of .pth, the content of .json, else its path.

    Only tensors are unpickled. options are those of `hf_hub_download`, such as subfolder.
    """
    path = hf_hub_download(repo_name, file_name, **options)
    if file_name.endswith(".pth") or force_is_torch:
        return torch.load(path, map_location="cpu", weights_only=True)
    return json.loads(Path(path).read_text()) if file_name.endswith(".json") else path


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
