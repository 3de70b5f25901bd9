"""Arguments and results of each calling convention that `signatures` lists."""

from collections.abc import Callable
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import MinibertError
from minibert.kernels.check.problem import Problem, unfolded

Function = Callable[..., Any]
Names = frozenset[str] | None
Run = Callable[[], Any]

#: What people call the options of a call in functions that take (q, k, v) and give z.
SYNONYMS = {
    "is_causal": "causal",
    "sm_scale": "scale",
    "softmax_scale": "scale",
    "scaling": "scale",
    "attn_mask": "mask",
    "softcap": "soft_cap",
}


def by_name(function: Function, problem: Problem, names: Names) -> Run:
    """Every option that it names, under the name that `attend` has for it."""
    known = problem.options()
    given = {"lengths": problem.lengths, "causal": problem.causal}
    if names is not None:
        fields = vars(problem) | known
        given = {name: fields[name] for name in fields if name in names and name not in _VECTORS}
    vectors = (problem.query, problem.key, problem.value)
    return lambda: function(*vectors, **given)


_VECTORS = ("query", "key", "value", "want", "z_gradient")


def by_synonym(function: Function, problem: Problem, names: Names) -> Run:
    """Every option that it names, under any of the usual names."""
    fields, given = vars(problem), {}
    for name in names or ():
        option = SYNONYMS.get(name, name)
        if option in fields and option not in _VECTORS:
            given[name] = fields[option]
    vectors = (problem.query, problem.key, problem.value)
    return lambda: function(*vectors, **given)


def flash(function: Function, problem: Problem, names: Names) -> Run:
    """flash-attn 2.8: (batch, position, head, d_head)."""
    vectors = [one.transpose(1, 2) for one in (problem.query, problem.key, problem.value)]
    given = _named(_flash_options(problem), names)
    return lambda: function(*vectors, **given)


def flash_varlen(function: Function, problem: Problem, names: Names) -> Run:
    """flash-attn 2.8: (token, head, d_head), and where each sentence starts."""
    vectors = [_tokens(one) for one in (problem.query, problem.key, problem.value)]
    queries, keys = _packed(problem)
    device = problem.query.device

    def starts(sizes: tuple[int, ...]) -> Tensor:
        return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device)

    where = (starts(queries), starts(keys), max(queries), max(keys))
    given = _named(_flash_options(problem), names)
    return lambda: function(*vectors, *where, **given)


def _flash_options(problem: Problem) -> dict[str, Any]:
    options: dict[str, Any] = {"softmax_scale": problem.scale, "causal": problem.causal}
    if problem.window is not None:
        before, after = problem.window
        after = 0 if problem.causal else after
        options["window_size"] = tuple(-1 if one is None else one for one in (before, after))
    if problem.soft_cap is not None:
        options["softcap"] = problem.soft_cap
    if problem.alibi_slopes is not None:
        options["alibi_slopes"] = problem.alibi_slopes
    return options


def flashinfer_prefill(function: Function, problem: Problem, names: Names) -> Run:
    """FlashInfer 0.2: one sentence a call, (position, head, d_head)."""
    given = _named(_infer_options(problem) | {"causal": problem.causal}, names)
    calls = _sentences(problem)
    return lambda: [function(*one, **given) for one in calls]


def flashinfer_decode(function: Function, problem: Problem, names: Names) -> Run:
    """FlashInfer 0.2: one query a call, (head, d_head), and its keys (position, head, d_head)."""
    given = _named(_infer_options(problem), names)
    calls = [(query[0], key, value) for query, key, value in _sentences(problem)]
    return lambda: [function(*one, **given) for one in calls]


def _infer_options(problem: Problem) -> dict[str, Any]:
    options: dict[str, Any] = {"sm_scale": problem.scale}
    if problem.window is not None and problem.window[0] is not None:
        options["window_left"] = problem.window[0]
    if problem.soft_cap is not None:
        options["logits_soft_cap"] = problem.soft_cap
    return options


def _sentences(problem: Problem) -> list[tuple[Tensor, Tensor, Tensor]]:
    queries, keys = _packed(problem)
    split = (
        _tokens(problem.query).split(queries),
        _tokens(problem.key).split(keys),
        _tokens(problem.value).split(keys),
    )
    return list(zip(*split, strict=True))


def flex(function: Function, problem: Problem, names: Names) -> Run:
    """torch's FlexAttention: scores changed by score_mod, keys chosen by block_mask."""
    from torch.nn.attention.flex_attention import create_block_mask

    B, H, Q, _ = problem.query.shape
    K, allowed = problem.n_keys, unfolded(problem).mask
    given: dict[str, Any] = {"scale": problem.scale}
    if allowed is not None:
        seen = allowed.expand(B, H, Q, K).contiguous()
        given["block_mask"] = create_block_mask(
            lambda b, h, q, k: seen[b, h, q, k], B, H, Q, K, device=problem.query.device.type
        )
    if score_mod := _score_mod(problem):
        given["score_mod"] = score_mod
    return _torch_call(function, problem, names, given)


def _score_mod(problem: Problem) -> Function | None:
    cap, bias = problem.soft_cap, _bias(problem)
    if cap is None and bias is None:
        return None

    # A lambda: FlexAttention traces it, and would trace what checks annotations as well.
    capped = (lambda s: s) if cap is None else (lambda s: cap * torch.tanh(s / cap))
    if bias is None:
        return lambda score, b, h, q, k: capped(score)
    return lambda score, b, h, q, k: capped(score) + bias[b, h, q, k]


def sdpa(function: Function, problem: Problem, names: Names) -> Run:
    """torch's scaled_dot_product_attention; is_causal, which is aligned to the start, for squares.

    Everything else is a mask, made before the clock starts.
    """
    plain = unfolded(problem)
    square = problem.causal and problem.query.shape[2] == problem.n_keys
    alone = not problem.options().keys() & {"window", "prefix"} and problem.lengths is None
    given: dict[str, Any] = {"scale": problem.scale}
    bias = _bias(problem)
    if square and alone and problem.mask is None and bias is None:
        given["is_causal"] = True
    elif bias is not None:
        mask = torch.ones_like(bias, dtype=torch.bool) if plain.mask is None else plain.mask
        given["attn_mask"] = bias.masked_fill(~mask, -torch.inf)
    elif plain.mask is not None:
        given["attn_mask"] = plain.mask
    return _torch_call(function, problem, names, given)


def _torch_call(function: Function, problem: Problem, names: Names, given: dict[str, Any]) -> Run:
    if problem.query.shape[1] != problem.key.shape[1]:
        given["enable_gqa"] = True
    given = _named(given, names)
    vectors = (problem.query, problem.key, problem.value)
    return lambda: function(*vectors, **given)


def _bias(problem: Problem) -> Tensor | None:
    """What is added to the scores, for every head, in the dtype of the inputs."""
    bias = unfolded(problem).bias
    if bias is None:
        return None
    (B, H, Q, _), dtype = problem.query.shape, problem.query.dtype
    return bias.to(dtype).expand(B, H, Q, problem.n_keys).contiguous()


def transformers(function: Function, problem: Problem, names: Names) -> Run:
    """The eager attention of transformers' models; masked keys get the lowest number."""
    plain, dtype = unfolded(problem), problem.query.dtype
    module = SimpleNamespace(
        num_key_value_groups=problem.query.shape[1] // problem.key.shape[1],
        training=False,
        sinks=problem.sinks,
    )
    mask = None
    if plain.mask is not None:
        lowest = torch.finfo(dtype).min
        mask = torch.where(plain.mask, 0.0, lowest).to(dtype)
    given: dict[str, Any] = {"dropout": 0.0}
    if problem.soft_cap is not None:
        given["softcap"] = problem.soft_cap
    if problem.sinks is not None:
        given["s_aux"] = problem.sinks
    given = _named(given, names)
    vectors = (problem.query, problem.key, problem.value)
    return lambda: function(module, *vectors, mask, problem.scale, **given)


def z_of_dictionary(result: Any, problem: Problem) -> Tensor:
    """Not asked: a dictionary is looked at name by name."""
    raise MinibertError(
        f'gave a {type(result).__name__}; expected a plain dictionary: return {{"z": z}}; or '
        "--signature plain, for a function that returns z"
    )


def first(result: Any, problem: Problem) -> Tensor:
    """z, alone or the first of a tuple."""
    found = result[0] if isinstance(result, tuple | list) and result else result
    if type(found) not in (Tensor, torch.nn.Parameter):
        raise MinibertError(f"gave a {type(found).__name__}; expected z, a plain tensor")
    return found


def by_position(result: Any, problem: Problem) -> Tensor:
    """z, which came as (batch, position, head, d_value)."""
    return _axes(first(result, problem), 4).transpose(1, 2)


def by_token(result: Any, problem: Problem) -> Tensor:
    """z, which came as (token, head, d_value)."""
    return _axes(first(result, problem), 3).transpose(0, 1)[None]


def sentences_of_tokens(result: Any, problem: Problem) -> Tensor:
    """z, which came sentence by sentence as (position, head, d_value)."""
    return by_token(torch.cat([_axes(first(one, problem), 3) for one in result]), problem)


def sentences_of_one_token(result: Any, problem: Problem) -> Tensor:
    """z, which came sentence by sentence as (head, d_value)."""
    return by_token(torch.stack([_axes(first(one, problem), 2) for one in result]), problem)


def _axes(z: Tensor, count: int) -> Tensor:
    if z.ndim != count:
        raise MinibertError(f"gave z of shape {tuple(z.shape)}; expected {count} axes")
    return z


def _tokens(vectors: Tensor) -> Tensor:
    """(1, head, token, size) as (token, head, size)."""
    return vectors[0].transpose(0, 1)


def _packed(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if problem.packed is None:
        raise MinibertError("packed sentences are expected by this signature")
    return problem.packed, problem.packed_keys or problem.packed


def _named(options: dict[str, Any], names: Names) -> dict[str, Any]:
    """Those that the function has a parameter for."""
    return {name: one for name, one in options.items() if names is None or name in names}
