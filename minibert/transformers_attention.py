"""attn_implementation="minibert": models of transformers on the kernels of `minibert.attend`.

    import minibert.transformers_attention  # once; it makes the name known
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="minibert")

It runs every model whose attention goes through transformers' attention interface, with what its
own code gives the function: masks as "sdpa" gets them, a scale, a soft cap, sinks, a position bias,
packed texts (cu_seq_lens_q). Anything else that would change the result is refused by its name.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask

from minibert.attached.call import Call, supports_sdpa
from minibert.errors import AttentionError
from minibert.kernels.api import Attended, compute
from minibert.kernels.call import Call as Described
from minibert.kernels.call import Want

__all__ = ["NAME", "attention"]

NAME = "minibert"
#: What a call is computed from.
_USED = (
    "scaling", "dropout", "is_causal", "softcap", "s_aux", "sinks", "position_bias", "indices",
    "cu_seq_lens_q", "cu_seq_lens_k", "output_attentions",
)  # fmt: skip
#: What models hand on and what changes nothing here: a window is in the mask.
_UNUSED = (
    "sliding_window", "position_ids", "cache_position", "position_embeddings", "use_cache",
    "max_length_q", "max_length_k", "output_hidden_states", "output_router_logits", "return_dict",
    "num_items_in_batch", "seq_idx", "deterministic", "layer_idx", "logits_to_keep",
)  # fmt: skip


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """z as (batch, query, head, d_value), and probs where `output_attentions` asks for them.

    query is (batch, head, query, d_head), key and value (batch, kv_head, key, ...). Gradients reach
    all tensors. A query that sees no key gets z = 0.

    Raises AttentionError for dropout, for a mask that is not a tensor, for packed texts whose ends
    do not fit the tokens, for numbers of several types without autocast, and for a keyword that is
    not known.
    """
    _check(module, attention_mask, options)
    _check_packed(module, query, options)
    query, key, value = _of_one_type(module, query, key, value)
    n_queries, n_keys = query.shape[2], key.shape[2]
    call = Call(module, NAME, query, key, value, attention_mask, options)
    if attention_mask is None and n_keys > n_queries and call.softens:
        # A static cache that is empty: what comes after the queries was not written yet.
        call.key, call.value = key[:, :, :n_queries], value[:, :, :n_queries]
    found = _computed(call, {"probs": ()} if options.get("output_attentions") else {})
    return found.z.transpose(1, 2).contiguous(), found.probs


def _computed(call: Call, want: Want) -> Attended:
    vectors, options = call.described()
    impl = "auto"
    if torch.compiler.is_compiling():
        # The two that torch can look into; the first is one of torch's own operators.
        plain = options["soft_cap"] is None and options["sinks"] is None and not want
        impl = "sdpa" if plain else "eager"
    return compute(Described.of(*vectors, **options, want=want), impl)


def _check(module: nn.Module, mask: object, options: dict[str, Any]) -> None:
    kind = type(module).__name__
    if dropout := options.get("dropout"):
        raise AttentionError(
            f"{kind} drops attention weights, dropout={dropout}; attn_implementation={NAME!r} "
            "gives the same result each time. Set the dropout of attention to 0 in the config (its "
            "name is often attention_dropout), or call model.eval()."
        )
    if mask is not None and not isinstance(mask, Tensor):
        raise AttentionError(
            f"{kind} gives a mask that is {type(mask).__name__}; attn_implementation={NAME!r} "
            "takes a tensor of booleans or of numbers to add, (batch, head, query, key). Give the "
            "model such a mask, or run it with flex_attention."
        )
    for name, given in options.items():
        if name not in _USED and name not in _UNUSED and given is not None and given is not False:
            raise AttentionError(
                f"{kind} gives its attention {name}={type(given).__name__}, which "
                f"attn_implementation={NAME!r} does not know: the result could be another one. Run "
                'this model with attn_implementation="sdpa" or "eager".'
            )


def mask(*, config: Any, **options: Any) -> Tensor | None:
    """The mask of a pass as "sdpa" gets it; None only where the model reads that as "sdpa" does.

    Models that do not support "sdpa" get the numbers that "eager" adds, in full: some of their
    attention does not go through the interface, and adds them itself.
    """
    kind = type(config)
    plain = supports_sdpa(kind.__module__, kind.__name__)
    if torch.compiler.is_compiling() or not plain:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    found: Tensor | None = (sdpa_mask if plain else eager_mask)(config=config, **options)
    return found


def _check_packed(module: nn.Module, query: Tensor, options: dict[str, Any]) -> None:
    """Raise AttentionError for ends of packed texts that are not those of these tokens."""
    ends = options.get("cu_seq_lens_q")
    if ends is None or torch.compiler.is_compiling():
        # In a graph no number is looked at.
        return
    at, n = ends.tolist(), query.shape[2]
    rising = at[:1] == [0] and all(a <= b for a, b in pairwise(at)) and at[-1] <= n
    if len(query) != 1 or not rising:
        raise AttentionError(
            f"{type(module).__name__} gives cu_seq_lens_q={at!s:.80} for {len(query)} rows of {n} "
            f"tokens; expected one row, and rising numbers from 0 to at most {n}."
        )


def _of_one_type(module: nn.Module, *vectors: Tensor) -> tuple[Tensor, ...]:
    """query, key and value in the type of autocast where theirs differ, as matrix products are."""
    types, device = {one.dtype for one in vectors}, vectors[0].device.type
    if len(types) == 1:
        return vectors
    if not torch.is_autocast_enabled(device):
        raise AttentionError(
            f"{type(module).__name__} gives query, key and value as "
            f"{', '.join(str(one.dtype) for one in vectors)}; expected one type."
        )
    return tuple(one.to(torch.get_autocast_dtype(device)) for one in vectors)


# A graph takes the answer as it is: the classes of a module do not change.
torch.compiler.assume_constant_result(supports_sdpa.__wrapped__)
AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
