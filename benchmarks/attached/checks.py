"""What must hold for a small model.

probs are the model's own weights, writing what was read changes nothing, and one head's z zeroed is
a hook on the output projection.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import minibert
from minibert.attached.block import OF_BLOCK
from minibert.attached.layout import READABLE
from minibert.errors import MinibertError
from minibert.trace.edit import replace, zero

Found = dict[str, Any]
#: Of this check; the first one, which rows without a number are from, took a NaN for equal. The
#: third one looks at blocks too.
CHECK = 3
#: Of the largest number compared.
TOLERANCE = 1e-5
# Beyond this a type does not compute the same under sdpa and eager.
_SAME = 1e-4


def checked(model: nn.Module, inputs: Mapping[str, Tensor]) -> Found:
    """The row of a model that runs on these inputs: errors of each check, and `pass` or `fail`."""
    attached = minibert.attach(model)
    plain = _run(model, inputs)
    with own_weights() as weights:
        trace = _seeded(lambda: attached.trace(**inputs))
    calls = [call for stack in trace.stacks for _, call in trace.stack(stack).calls]
    own = {id(query): one for query, one in weights}
    row: Found = {
        "layers": {stack: len(trace.stack(stack)) for stack in trace.stacks},
        "heads": calls[0].n_heads,
        "kv_heads": calls[0].key.shape[1],
        "untouched": difference(plain, trace.output),
        "problems": [str(one) for one in attached.report.layers.values() if one.problem],
        "not_read": attached.report.silent,
    }
    row["probs"] = max(_off(call, own[id(call.query)]) for call in calls)
    row["write_back"] = _write_back(attached, trace, inputs)
    row["head"] = _one_head(model, attached, trace, inputs)
    row |= _under_sdpa(model, inputs, calls, plain)
    row["head_out"] = _heads_write(trace)
    row["block"] = block_of(model, inputs)
    errors = [row["untouched"], row["probs"], row["write_back"], row["head"], row["sdpa"]]
    holds = all(one is None or isinstance(one, str) or one <= TOLERANCE for one in errors)
    row["result"] = "pass" if holds and not row["problems"] else "fail"
    return row


def block_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Found]:
    """By stack what is read of its blocks, in float64, or why nothing is.

    sums         the largest error of resid_pre + attn_out + mlp_out = resid_post, of the largest
                 number; None where a norm of the sum follows
    states       the largest difference of resid_post from the model's own output_hidden_states
    write_back   what writing it all back changes in the output
    """
    model.set_attn_implementation("eager")
    # Experts in groups have no float64.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    model.double()
    wide = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
    attached = minibert.attach(model)
    try:
        with torch.no_grad():
            states = _states_of(_seeded(lambda: model(**wide, output_hidden_states=True)))
    except Exception:
        states = []
    try:
        trace = _seeded(lambda: attached.trace(**wide))
    except Exception as error:
        return {"": {"absent": f"no float64: {error!r:.120}"}}
    found: dict[str, Found] = {}
    for stack in trace.stacks:
        try:
            found[stack] = _of_stack(trace.stack(stack), states)
        except MinibertError as error:
            found[stack] = {"absent": str(error)[:150]}
    for stack, one in found.items():
        names = one.get("names", ())
        edit = {
            (*((stack,) if len(found) > 1 else ()), name, layer): replace(trace)
            for name in names
            for layer in range(len(trace.stack(stack)))
        }
        try:
            if edit:
                again = _seeded(lambda edit=edit: attached.trace(**wide, edit=edit))
                one["write_back"] = difference(trace.output, again.output)
        except MinibertError as error:
            one["write_back"] = str(error)[:150]
    return found


def _of_stack(stack: Any, states: list[tuple[Tensor, ...]]) -> Found:
    layers = list(stack)
    try:
        layers[0].quantity("resid_pre")
    except MinibertError as error:
        return {"absent": str(error)[:150]}
    names = [name for name in OF_BLOCK if all(hasattr(layer, name) for layer in layers)]
    off: list[float] = []
    sums = {"attn_out", "mlp_out"} <= set(names) and layers[0].adds
    for layer in layers if sums else ():
        total = layer.resid_pre + layer.as_added("attn_out") + layer.as_added("mlp_out")
        off.append(float((total - layer.resid_post).abs().max() / total.abs().max().clamp(min=1)))
    # The last state may be the norm of the last resid_post.
    posts = [layer.resid_post for layer in layers[:-1] if "resid_post" in names]
    same = []
    for of in states:
        # Between the layers of others (Mamba) there are more states than these.
        pairs = [*zip(of[1:], posts, strict=False)] if len(of) == len(layers) + 1 else []
        if pairs and all(one.numel() == other.numel() for one, other in pairs):
            same.append(max(difference(one, other.reshape(one.shape)) for one, other in pairs))
    return {"names": names, "sums": max(off, default=None), "states": min(same, default=None)}


def _states_of(output: Any) -> list[tuple[Tensor, ...]]:
    named = output.items() if isinstance(output, Mapping) else ()
    return [
        tuple(one for one in value if isinstance(one, Tensor))
        for name, value in named
        if name.endswith("hidden_states") and isinstance(value, tuple) and value
    ]


@contextmanager
def own_weights() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Inside, the weights that each model's own eager function returns, with the query it got."""
    from transformers.modeling_utils import AttentionInterface

    found: list[tuple[Tensor, Tensor]] = []
    original = AttentionInterface.get_interface

    def get_interface(self: Any, name: str, default: Any) -> Callable[..., Any]:
        function = original(self, name, default)

        def kept(module: nn.Module, query: Tensor, *more: Any, **options: Any) -> Any:
            out, weights, *rest = function(module, query, *more, **options)
            found.append((query, weights))
            return (out, weights, *rest)

        return kept

    AttentionInterface.get_interface = get_interface
    try:
        yield found
    finally:
        AttentionInterface.get_interface = original


def _off(call: Any, weights: Tensor | None) -> float:
    """How far probs are off the model's own weights, where a query has a key at all."""
    if weights is None:
        return 0.0
    probs, allowed = call.probs(), call.mask_rows().allowed
    # What some modules give out is what their weights were before the sink took its share.
    given = [probs] if call.sinks is None else [probs, probs / probs.sum(-1, keepdim=True)]
    found = []
    for one in given:
        off = (one - weights).abs()
        if allowed is not None:
            off = off.masked_fill(~allowed.any(-1, keepdim=True), 0)
        found.append(float(off.max()))
    return min(found)


def _write_back(attached: Any, trace: Any, inputs: Mapping[str, Tensor]) -> float:
    worst = 0.0
    for name in READABLE:
        edit = {
            (stack, name, layer): replace(trace)
            for stack in trace.stacks
            for layer in range(len(trace.stack(stack)))
        }
        again = _seeded(lambda edit=edit: attached.trace(**inputs, edit=edit))
        worst = max(worst, difference(trace.output, again.output))
    return worst


def _heads_write(trace: Any) -> dict[str, str]:
    """By stack why head_out of its last layer is refused; "" where it is given."""
    found = {}
    for stack in trace.stacks:
        try:
            found[stack] = "" if trace.stack(stack)[-1].head_out.isfinite().all() else "not finite"
        except MinibertError as error:
            found[stack] = str(error)[:200]
    return found


def _one_head(
    model: nn.Module, attached: Any, trace: Any, inputs: Mapping[str, Tensor]
) -> float | str:
    """A head's z zeroed, against the columns of the output projection zeroed by a hook.

    "gated" where no module gets z alone: something gates or normalises it first.
    """
    stack = trace.stacks[0]
    layer = len(trace.stack(stack)) - 1
    z = trace.stack(stack)[layer].z
    head, size = z.shape[1] - 1, z.shape[3]
    flat = z.transpose(1, 2).reshape(z.shape[0], z.shape[2], -1)
    # A module that several layers share is called several times: which call is it?
    found: list[tuple[nn.Module, int]] = []
    counts: dict[nn.Module, int] = {}

    def look(module: nn.Module, given: tuple[Any, ...]) -> None:
        counts[module] = counts.get(module, -1) + 1
        one = given[0] if given else None
        if not isinstance(one, Tensor) or one.numel() != flat.numel():
            return
        if one.shape[-1] == flat.shape[-1] and torch.equal(one.reshape(flat.shape), flat):
            found.append((module, counts[module]))

    def without(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        counts[module] = counts.get(module, -1) + 1
        if counts[module] != found[-1][1]:
            return None
        changed = given[0].clone()
        changed[..., head * size : (head + 1) * size] = 0
        return (changed, *given[1:])

    leaves = [one for one in model.modules() if any(p.dim() == 2 for p in one.parameters(False))]
    with _hooked(leaves, look):
        _run(model, inputs)
    if not found:
        return "gated"
    counts.clear()
    with _hooked([found[-1][0]], without):
        expected = _run(model, inputs)
    edit = {(stack, "z", layer, head): zero}
    return difference(expected, _seeded(lambda: attached.trace(**inputs, edit=edit)).output)


@contextmanager
def _hooked(modules: list[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _under_sdpa(
    model: Any, inputs: Mapping[str, Tensor], eager: list[Any], eager_output: Any
) -> Found:
    """probs under sdpa against those under eager; None for a type that refuses sdpa.

    Where the type itself gives another output under sdpa, z is checked alone, as attach does.
    """
    try:
        model.set_attn_implementation("sdpa")
        plain = _run(model, inputs)
    except Exception as refused:
        return {"sdpa": None, "sdpa_refused": str(refused).splitlines()[0][:120]}
    attached = minibert.attach(model)
    try:
        trace = _seeded(lambda: attached.trace(**inputs))
    except MinibertError as error:
        return {"sdpa": str(error)[:200]}
    calls = [call for stack in trace.stacks for _, call in trace.stack(stack).calls]
    off = [difference(plain, trace.output)]
    same = difference(plain, eager_output) <= _SAME
    for one, other in zip(calls, eager, strict=True):
        if one.untrue:
            return {"sdpa": 9.0, "sdpa_problem": one.untrue}
        if same:
            off.append(_off(one, other.probs()))
    off.append(_write_back(attached, trace, inputs))
    return {"sdpa": max(off), "sdpa_is_eager": same}


def _run(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    with torch.no_grad():
        return _seeded(lambda: model(**inputs))


def _seeded(run: Callable[[], Any]) -> Any:
    torch.manual_seed(11)
    return run()


def difference(one: Any, other: Any) -> float:
    """The largest difference of two outputs' numbers, of the largest number where that is > 1."""
    ours, theirs = list(_tensors(one)), list(_tensors(other))
    assert len(ours) == len(theirs)
    worst = 0.0
    for mine, its in zip(ours, theirs, strict=True):
        if mine.numel():
            scale = max(1.0, float(its.abs().nan_to_num(0, 0, 0).max()))
            same = (mine == its) | (mine.isnan() & its.isnan())
            gap = (mine - its).abs().masked_fill(same, 0).nan_to_num(torch.inf)
            worst = max(worst, float(gap.max()) / scale)
    return worst


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors of floats in an output, caches left out."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for name, one in output.items():
            if name != "past_key_values":
                yield from _tensors(one)
    elif isinstance(output, list | tuple):
        for one in output:
            yield from _tensors(one)
