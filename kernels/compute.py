"""`compute`: a call by any implementation. A model, which made the tensors, asks here."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.attended import Attended, Statistics
from minibert.kernels.call import Call
from minibert.kernels.folding import folded, keywords, padded_call, reads_packed
from minibert.kernels.implementation import Implementation
from minibert.kernels.operators import call_operator, has_operator
from minibert.kernels.outputs import named_outputs, outputs_of
from minibert.kernels.packing import unpadded
from minibert.kernels.registry import chosen_for
from minibert.kernels.requests import MATRICES

__all__ = ["compute"]

_STATISTICS = frozenset(field.name for field in fields(Statistics))


def compute(call: Call, impl: str = "auto") -> Attended:
    """z and what the call wants beside it, by any implementation; the inputs are not checked."""
    query, want = call.query, call.want
    gradient = torch.is_grad_enabled() and call.requires_grad
    device, largest = query.device.type, max(query.shape[3], call.value.shape[3])
    asked = call.asks
    chosen = chosen_for(impl, frozenset(want), asked, device, query.dtype, gradient, largest)
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            found = _outputs(chosen, call, asked)
    else:
        found = _outputs(chosen, call, asked)
    if not want:
        return Attended(found["z"])
    statistics = {name: found[name] for name in want if name in _STATISTICS}
    return Attended(
        z=found["z"],
        lse=found["lse"] if "lse" in want else None,
        statistics=Statistics(**statistics) if statistics else None,
        **{name: found[name] for name in MATRICES if name in want},
    )


def _outputs(chosen: Implementation, call: Call, asked: frozenset[str]) -> Mapping[str, Tensor]:
    """z and what is wanted, by name."""
    taken = chosen.options
    if call.allowed.ends is not None or not asked <= taken:
        packed = call.allowed.packed
        if packed is not None and not reads_packed(asked, taken):
            of_rows = padded_call(call)
            found = _outputs(chosen, of_rows, of_rows.asks)
            return unpadded(found, packed, call.allowed.packed_keys)
        call = folded(call, taken)
    # What a pass over z alone is made of torch.compile can look into.
    wanted = call.want or not chosen.second_pass
    if chosen.opaque and wanted and torch.compiler.is_compiling():
        if has_operator(chosen, call):
            return call_operator(chosen.name, call)
        if chosen.second_pass:
            return _apart(chosen, call)
    if chosen.of_call is not None:
        return chosen.of_call(call)
    arguments = keywords(call, taken)
    if not chosen.checked:
        return named_outputs(chosen.fn(call.query, call.key, call.value, **arguments), chosen.name)
    return _checked(chosen, call, arguments)


def _apart(chosen: Implementation, call: Call) -> dict[str, Tensor]:
    """z, into which torch.compile looks, and as one node of the graph what has no gradient.

    The node computes z again; where nothing of it is used, torch.compile leaves it out.
    """
    fixed: dict[str, Any] = {name: one.detach() for name, one in call.tensors.items()}
    beside = replace(call, **fixed)
    z = _outputs(chosen, replace(call, want={}), call.asks)["z"]
    return dict(_outputs(chosen, beside, call.asks)) | {"z": z}


def _checked(chosen: Implementation, call: Call, arguments: dict[str, Any]) -> dict[str, Tensor]:
    """What a user's implementation gives.

    Raises AttentionError when something is missing or has not the promised shape and dtype, and
    when torch has written into an input. Numbers are not looked at: that is what
    `check.parity.check` is for.
    """
    want = {name: parameters for name, parameters in call.want.items() if name != "lse"}
    if "want" in arguments:
        arguments["want"] = want
    before = _versions(call)
    result = chosen.fn(call.query, call.key, call.value, **arguments)
    if written := [name for name, version in _versions(call).items() if version != before[name]]:
        raise AttentionError(
            f'impl="{chosen.name}" wrote into {", ".join(written)}, or into memory shared with it; '
            "expected its inputs to stay as they are. Write into a copy: query.clone()."
        )
    found = outputs_of(result, chosen.name, call.query, call.key, call.value, want)
    if missing := [output for output in ("z", *call.want) if output not in found]:
        raise AttentionError(
            f'impl="{chosen.name}" gave {", ".join(found)} and not {", ".join(missing)}; expected '
            "z, lse and everything it was registered with as wants."
        )
    return {name: found[name] for name in ("z", *call.want)}


def _versions(call: Call) -> dict[str, int]:
    """How often torch has written into each input; it does not count for inference tensors."""
    if torch.compiler.is_compiling():
        return {}
    return {name: one._version for name, one in call.tensors.items() if not one.is_inference()}
