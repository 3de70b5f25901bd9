"""Does what is read of a call hold, and did every attention module of a model make one?

The model's own z is compared with probs · value for some rows of each form of call, once. A layer
where they differ does something with its scores that is not known here: query, key, value and z
can be read there, scores and probs not.
"""

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor, nn

from minibert.attached.call import Call

__all__ = ["attention_modules", "form_of", "misfit", "silent"]

#: Rows that are compared, spread over the queries: the cost stays small however long the text.
_ROWS = 32
# Of the largest value: rounding of a softmax, in float32 and below.
_LEAST_ERROR, _ROUNDINGS = 1e-4, 4
_UNCHANGING = ("dropout", "scaling", "output_attentions", "position_ids", "use_cache")


def form_of(call: Call) -> tuple[object, ...]:
    """What decides how a call is computed, so that one check holds for all calls of a form."""
    mask = call.mask
    told = frozenset(
        name
        for name, value in call.options.items()
        if value is not None and value is not False and name not in _UNCHANGING
    )
    kind = None if mask is None else (mask.dtype, mask.dim(), mask.shape[1:-1])
    return (id(call.module), call.implementation, kind, call.query.shape[-2] > 1, told)


def misfit(call: Call) -> str:
    """How the model's z differs from probs · value; "" where it does not."""
    query, key, value, out = call.query, call.key, call.value, call.out
    if not isinstance(out, Tensor) or {one.dim() for one in (query, key, value, out)} != {4}:
        return "the call's tensors have no (batch, head, position, d_head) axes"
    heads = query.shape[1]
    if heads % key.shape[1] or heads % value.shape[1] or query.shape[-1] != key.shape[-1]:
        return f"query {tuple(query.shape)} and key {tuple(key.shape)} have no scores"
    if out.shape[1:] != (query.shape[2], heads, value.shape[-1]):
        return f"z is {tuple(out.shape)}, not (batch, position, head, d_head)"
    n = query.shape[-2]
    rows = torch.linspace(0, n - 1, min(n, _ROWS), device=query.device).long().unique()
    try:
        with torch.no_grad():
            found = call.weighted(call.probs(rows))
            own = out.transpose(1, 2)[..., rows, :]
            # Rows without a key are NaN in some models; then they have to be here too.
            same = found.isnan() & own.isnan()
            off = (found - own).abs().masked_fill(same, 0).nan_to_num(torch.inf).amax(-1)
            allowed = call.mask_rows(rows).allowed
    except (RuntimeError, TypeError, AttributeError) as error:
        return f"probs cannot be computed here ({str(error).splitlines()[0]:.120})"
    if allowed is not None:
        off = off.masked_fill(~allowed.any(-1), 0)
    if call.real_queries is not None:
        off = off.masked_fill(~call.real_queries[:, None, rows], 0)
    largest, most = float(off.max()), float(value.abs().nan_to_num(0).max())
    bound = most * max(_LEAST_ERROR, _ROUNDINGS * torch.finfo(value.dtype).eps)
    if largest <= bound:
        return ""
    return (
        f"probs · value is {largest:.2g} off the model's own z, so that this module does something "
        "with its scores that minibert does not know. query, key, value and z can be read"
    )


def attention_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that look like attention: by the name of their class, with weights of their own.

    One inside another is left out.
    """
    inside: list[str] = []
    for name, module in model.named_modules():
        named = "attention" in type(module).__name__.lower()
        matrices = sum(one.dim() >= 2 for one in module.parameters())
        if named and matrices >= 2 and not any(name.startswith(f"{one}.") for one in inside):
            yield name, module
            inside.append(name)


def silent(ran: Iterable[str], called: Collection[str]) -> list[str]:
    """Attention modules that ran, and neither they nor anything in or around them made a call."""
    return [
        name
        for name in ran
        if not any(
            name == one or one.startswith(f"{name}.") or name.startswith(f"{one}.")
            for one in called
        )
    ]
