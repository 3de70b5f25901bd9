"""What must hold for a small model under attn_implementation="minibert".

Its outputs are the model's own within twice the rounding of that, `measuring` counts what its
eager matrices say, and it writes the same 64 tokens with each cache.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import minibert
import minibert.transformers_attention
from benchmarks.attached.checks import Found, difference, own_weights
from minibert.attached.call import Call
from minibert.errors import MinibertError

#: Of the largest number compared.
TOLERANCE = 1e-5
_WANT = ("entropy", "max_prob", "received", ("offset_mass", (-1,)), ("top_probs", 3))
_NEW = 64
# Two logits this close may change places by rounding.
_TIE = 1e-4
CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "quantized": {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
    "left padding": {},
    "measured": {},
}
OWN = "transformers: "
"""What begins the reason where the model's own attention does not take a cache."""


def checked(model: Any, inputs: Mapping[str, Tensor]) -> Found:
    """The row of a model that runs on these inputs: errors of each check, and `pass` or `fail`."""
    attached = minibert.attach(model)
    with own_weights() as weights:
        trace = _run(lambda: attached.trace(**inputs))
    matrices = {id(query): one for query, one in weights}
    expected = {
        stack: [_statistics(call, matrices.get(id(call.query))) for _, call in calls]
        for stack in trace.stacks
        for calls in (trace.stack(stack).calls,)
    }
    own, right = _run(lambda: model(**inputs)), _in_float64(model, inputs)
    way, same_as_eager = "eager", True
    try:
        model.set_attn_implementation("sdpa")
        eager, own, way = own, _run(lambda: model(**inputs)), "sdpa"
        same_as_eager = difference(own, eager) <= _TIE
    except (ValueError, ImportError, RuntimeError):
        pass
    row: Found = {"own": way, "layers": {stack: len(of) for stack, of in expected.items()}}
    try:
        model.set_attn_implementation("minibert")
        found = _run(lambda: model(**inputs))
        row["logits"] = difference(own, found)
        if row["logits"] > TOLERANCE and right is not None:
            row["of_float64"] = [difference(right, one) for one in (own, found)]
        with minibert.measuring(attached, want=_WANT) as seen:
            for _ in range(2):
                _run(lambda: model(**inputs))
        # Some types compute something else under sdpa, of which there are no matrices.
        row["statistics"] = same_as_eager and max(
            _gap(layer, numbers)
            for stack, layers in seen.runs[-1].items()
            for layer, numbers in zip(layers, expected[stack], strict=True)
        )
        row |= _generations(model, way, inputs)
    except MinibertError as refused:
        return row | {"result": "refused", "note": str(refused)[:300]}
    ours = row.get("of_float64", [0.0, 0.0])
    same = row["logits"] <= TOLERANCE or ("of_float64" in row and ours[1] <= 2 * ours[0])
    caches = row.get("caches", {}).values()
    written = all(said in ("equal", "tie") or said.startswith(OWN) for said in caches)
    holds = same and row["statistics"] <= TOLERANCE and written
    return row | {"result": "pass" if holds else "fail"}


def _run(run: Any) -> Any:
    torch.manual_seed(11)
    with torch.no_grad():
        found = run()
    if not isinstance(found, Mapping):
        return found
    # Under "sdpa" there are no weights, and some models hand them out without being asked.
    return {name: one for name, one in found.items() if not name.endswith("attentions")}


def _in_float64(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """The outputs in float64; None where the model's own code runs in float32 alone."""
    wide = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
    try:
        return _run(lambda: copy.deepcopy(model).double()(**wide))
    except Exception:
        return None


def _statistics(call: Call, weights: Tensor | None) -> Iterator[dict[str, Tensor]]:
    """The statistics of the model's own weights, and of these with the share of a sink taken."""
    given = [call.probs() if weights is None else weights]
    if call.sinks is not None:
        given.append(call.probs())
    allowed = call.mask_rows().allowed
    for probs in given:
        if allowed is not None:
            probs = probs * allowed.any(-1, keepdim=True)
        before = torch.nn.functional.pad(probs, (1, 0))[..., : probs.shape[2], : probs.shape[3]]
        # Queries stand at the end of the keys.
        later = probs.shape[3] - probs.shape[2]
        best = probs.topk(min(3, probs.shape[-1]), -1).values
        yield {
            "entropy": torch.special.entr(probs).sum(-1),
            "max_prob": probs.amax(-1),
            "received": probs.sum(2),
            "offset_mass": before.diagonal(later, 2, 3)[..., None] if later >= 0 else None,
            "top_probs": best,
        }  # type: ignore[misc]


def _gap(layer: Any, given: Iterator[dict[str, Tensor]]) -> float:
    """How far a layer is from what it should be: from the nearest of several."""
    return min(
        max(
            float((layer.read(name)[..., : one.shape[-1]] - one).abs().max())
            for name, one in numbers.items()
            if one is not None
        )
        for numbers in given
    )


def _generations(model: Any, way: str, inputs: Mapping[str, Tensor]) -> Found:
    """By cache whether the same ids are written, or why transformers itself does not take it."""
    ids = inputs.get("input_ids")
    if ids is None or not getattr(model, "can_generate", bool)():
        return {}
    found: dict[str, str] = {}
    slides = False
    plain = None
    for cache, options in CACHES.items():
        written = []
        mask, start = torch.ones_like(ids), {}
        if getattr(model.config, "is_encoder_decoder", False):
            start = {"decoder_start_token_id": 1}
        if cache == "left padding":
            mask[0, :2] = 0
        options = {
            "attention_mask": mask,
            "max_new_tokens": _NEW,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
            "return_dict_in_generate": True,
            "output_logits": True,
            **start,
            **options,
        }
        for implementation in (way, "minibert"):
            model.set_attn_implementation(implementation)
            measures = cache == "measured"
            if implementation == way and measures and plain is not None:
                written.append(plain)
                continue
            try:
                with minibert.measuring(model, want=_WANT) if measures else nullcontext():
                    written.append(model.generate(ids, **copy.deepcopy(options)))
            except MinibertError:
                raise
            except Exception as error:
                found[cache] = f"{'' if written else OWN}{error!r:.200}"
                break
        if len(written) == 2:
            plain = written[0] if cache == "dynamic" else plain
            found[cache] = _same(*written)
            kept = written[0].past_key_values
            kept = getattr(kept, "self_attention_cache", kept)
            layers = getattr(kept, "layers", ())
            slides |= any(getattr(layer, "is_sliding", False) for layer in layers)
    return {"caches": found, "slides": slides} if found else {}


def _same(own: Any, ours: Any) -> str:
    """ "equal", "tie" where rounding chose between two tokens, or where they differ first."""
    for step, (one, other) in enumerate(zip(own.logits, ours.logits, strict=True)):
        if not torch.equal(one.argmax(-1), other.argmax(-1)):
            best = one.topk(2, -1).values
            rows = one.argmax(-1) != other.argmax(-1)
            gap = float((best[..., 0] - best[..., 1])[rows].max())
            return "tie" if gap < _TIE else f"differs at token {step}, {gap:.2g} apart"
    return "equal"
