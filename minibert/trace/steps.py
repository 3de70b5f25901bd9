"""One layer, point by point in the order of the data: where any quantity can be changed.

The layers' own `forward` does the same in fewer, fused operations. Here every quantity of
`minibert.quantities` passes through `visit`, which returns it as it is or another in its place.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.call import AllowedKeys
from minibert.kernels.eager import attention_probs, attention_scores, weighted_values
from minibert.kernels.sdpa import fused_attention
from minibert.quantities import Float, HeadVectors, Hidden

__all__ = ["Past", "Visit", "run_layer", "unaffected"]

Visit = Callable[[str, Tensor], Tensor]


class Past(NamedTuple):
    """key and value of the positions before those that a layer is computed for."""

    key: HeadVectors
    value: HeadVectors


_MATRICES = frozenset({"scores", "probs"})
_ATTENTION_SUMS = frozenset({"head_out", "attn_out"})
_MLP = frozenset({"mlp_pre", "mlp_post", "mlp_out"})
_FROM_MLP = _MLP | {"resid_mid", "resid_post"}
_FROM_Z = _FROM_MLP | _ATTENTION_SUMS | {"z"}
_FROM_SCORES = _FROM_Z | _MATRICES
_FROM_PROJECTIONS = _FROM_SCORES | {"query", "key", "value"}
_AFTER_Z = _FROM_Z - {"z"}
_FROM_QUERY = _FROM_SCORES | {"query"}


def run_layer(
    layer: Any,
    hidden: Hidden,
    allowed: AllowedKeys,
    visit: Visit,
    *,
    wanted: Collection[str],
    known: Mapping[str, Tensor] | None = None,
    past: Past | None = None,
    rows: list[int] | None = None,
) -> Float[Tensor, "batch row d_model"]:
    """resid_post of a layer whose quantities pass through `visit`.

    `wanted` names those that matter: what is not in it and can be left out (scores and probs,
    head_out, the inside of the MLP) is then computed as a whole, as in the layer's forward.
    `known` are quantities of the same layer and input from an earlier pass; those before the
    first of the wanted ones are taken from there. With a `past`, `hidden` and `known` are of the
    positions behind it alone. `rows` are the positions of `hidden` whose resid_post is returned:
    for the others nothing is computed that only they need.
    """
    names = frozenset(wanted)
    if known is not None and names <= _FROM_MLP:
        return _from_resid_mid(layer, known, visit, names, rows)
    resid_pre = visit("resid_pre", hidden)
    if known is not None and names <= _FROM_Z:
        z = known["z"]
    else:
        if known is not None and names <= _FROM_PROJECTIONS:
            projected = (known["query"], known["key"], known["value"])
        else:
            projected = layer.attention.query_key_value(layer.attention_input(resid_pre))
        query, key, value = (
            visit(name, part)
            for name, part in zip(("query", "key", "value"), projected, strict=True)
        )
        if rows is not None and names.isdisjoint(_FROM_QUERY):
            query, resid_pre = query[:, :, rows], resid_pre[:, rows]
            queries, rows = rows, None
        else:
            queries = list(range(query.shape[2]))
        z = _attend(layer.attention, query, key, value, allowed, visit, names, past, queries)
    z = visit("z", z)
    if rows is not None and names.isdisjoint(_AFTER_Z):
        z, resid_pre, rows = z[:, :, rows], resid_pre[:, rows], None
    resid_mid = visit("resid_mid", _after_attention(layer, resid_pre, z, visit, names))
    resid_post = visit("resid_post", _after_mlp(layer, resid_mid, visit, names))
    return resid_post if rows is None else resid_post[:, rows]


def _from_resid_mid(
    layer: Any,
    known: Mapping[str, Tensor],
    visit: Visit,
    wanted: frozenset[str],
    rows: list[int] | None,
) -> Hidden:
    resid_mid = visit("resid_mid", known["resid_mid"])
    if wanted == {"resid_post"}:
        resid_post = visit("resid_post", known["resid_post"])
    else:
        if rows is not None and wanted == {"resid_mid"}:
            resid_mid, rows = resid_mid[:, rows], None
        resid_post = visit("resid_post", _after_mlp(layer, resid_mid, visit, wanted))
    return resid_post if rows is None else resid_post[:, rows]


def unaffected(known: Mapping[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """Of the known quantities of a layer those that no change of the wanted ones reaches."""
    names = frozenset(wanted)
    before = ["query", "key", "value"] if names <= _FROM_SCORES else []
    before += ["z"] if names <= _FROM_MLP else []
    return {name: known[name] for name in before if name in known}


def _attend(
    attention: Any,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head new d_head"],
    value: Float[Tensor, "batch head new d_head"],
    allowed: AllowedKeys,
    visit: Visit,
    wanted: frozenset[str],
    past: Past | None,
    queries: list[int],
) -> Float[Tensor, "batch head query d_head"]:
    if past is not None:
        queries = [past.key.shape[2] + query for query in queries]
        key, value = torch.cat((past.key, key), dim=2), torch.cat((past.value, value), dim=2)
    if wanted.isdisjoint(_MATRICES):
        # Whole and without padding, a causal mask needs no tensor.
        whole = allowed.causal and allowed.tokens is None and len(queries) == allowed.position
        mask = None if whole else allowed.rows(queries)
        return fused_attention(query, key, value, mask=mask, causal=whole, scale=attention.scale)
    scores = attention_scores(query, key, scale=attention.scale)
    edited = visit("scores", scores)
    probs = attention_probs(edited, allowed.rows(queries))
    if edited is not scores and bool(probs.isnan().any()):
        raise EditError(
            "scores: an edit made NaN of them, or left a query without a key (all are −inf)."
        )
    return weighted_values(visit("probs", probs), value)


def _after_attention(
    layer: Any, resid_pre: Hidden, z: HeadVectors, visit: Visit, wanted: frozenset[str]
) -> Hidden:
    if wanted.isdisjoint(_ATTENTION_SUMS):
        return layer.after_attention(layer.attention.attn_out(z, residual=resid_pre))
    if "head_out" in wanted:
        head_out = visit("head_out", layer.attention.head_out(z))
        attn_out = layer.attention.sum_of_heads(head_out)
    else:
        attn_out = layer.attention.attn_out(z)
    return layer.mid(resid_pre, visit("attn_out", attn_out))


def _after_mlp(layer: Any, resid_mid: Hidden, visit: Visit, wanted: frozenset[str]) -> Hidden:
    x = layer.mlp_input(resid_mid)
    if wanted.isdisjoint(_MLP):
        return layer.after_mlp(layer.mlp(x, residual=resid_mid))
    post = visit("mlp_post", layer.mlp.post(visit("mlp_pre", layer.mlp.pre(x))))
    return layer.post(resid_mid, visit("mlp_out", layer.mlp.down(post)))
