"""One attention call of a live model: what it was given, what follows from that, whether it holds.

It keeps the tensors that the model uses, not copies; scores and probs are computed when they are
read. If a cache overwrites its keys later, reading them raises an error. Once for each form of call
the model's own z is compared with probs · value in some rows. A layer where they differ does
something unknown with its scores: query, key, value and z can be read there, not scores and probs.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from minibert.attached.block import OF_BLOCK, Run
from minibert.errors import TraceError
from minibert.quantities import Bool, Float, HeadVectors, Matrix
from minibert.trace.edit import Places
from minibert.trace.layer_view import AbsentError


@dataclass(frozen=True)
class Mask:
    """The mask of a call: the allowed keys, and what is added to the scores."""

    allowed: Bool[Tensor, "#batch #head #query #key"] | None = None
    """None: all of them."""
    bias: Float[Tensor, "#batch #head #query #key"] | None = None
    """Finite; None: nothing is added."""
    forbidden: float = -torch.inf
    """What the model adds to a forbidden score; finite numbers leave a row without keys uniform."""


def mask_of(
    mask: Tensor | None, query: Tensor, key: Tensor, *, causal: bool, rows: slice | Tensor
) -> Mask:
    """The mask of some query rows of a call; `causal` orders the keys where there is no mask."""
    n_keys = key.shape[-2]
    if mask is None:
        if not causal:
            return Mask()
        positions = torch.arange(query.shape[-2], device=query.device)[rows, None]
        return Mask(torch.arange(n_keys, device=query.device)[None, None, None] <= positions)
    mask = rows_of(mask, rows)[..., :n_keys]
    if mask.dtype == torch.bool:
        return Mask(mask)
    if not mask.is_floating_point():
        return Mask(mask != 0)
    least = torch.finfo(mask.dtype).min
    allowed = mask > least / 2
    bias = torch.where(allowed, mask, 0)
    if torch.compiler.is_compiling():
        # In a graph no number is looked at.
        return Mask(allowed, bias)
    forbidden = -torch.inf if bool((mask == -torch.inf).any()) else least
    return Mask(allowed, bias if bool(bias.any()) or bias.requires_grad else None, forbidden)


def rows_of(matrix: Tensor, rows: slice | Tensor) -> Tensor:
    """Some rows of a matrix whose row axis may be 1."""
    return matrix if matrix.shape[-2] == 1 else matrix[..., rows, :]


EVERY_ROW = slice(None)
Rows = slice | Tensor


@runtime_checkable
class Projected(Protocol):
    """What z goes through; see projection.py."""

    @property
    def module(self) -> nn.Module | None:
        """The output projection; None where it is not known."""

    def of_heads(self, z: Tensor, heads: slice, n_heads: int) -> Tensor:
        """z · W_O of some heads."""
        ...


class Call:
    """query, key and value of one call, its mask and options, and z once it is there.

    scores = scale · query · keyᵀ; s = cap · tanh(scores / cap) + position bias + mask; probs =
    softmax of s, beside a sink where the module has one; z = probs · value.
    """

    def __init__(
        self,
        module: nn.Module,
        implementation: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> None:
        self.module, self.implementation = module, implementation
        self.query, self.key, self.value = query, key, value
        self.mask, self.options = mask, options
        self.out: Any = None
        """(batch, position, head, d_head), as the model continues with it."""
        self.matrices: dict[str, Tensor] = {}
        """scores and probs where an edit made them."""
        self.untrue = ""
        """Why scores and probs are not known; "" where they are."""
        self.real_queries: Tensor | None = None
        self.real_keys: Tensor | None = None
        """True where a real token is, (batch, position); None: everywhere, or not known."""
        self.block: Run | str = "the pass is not over"
        """The run of the block around the module, or why it is not known."""
        self.again: Callable[[], Call] | None = None
        """The same call in another pass, which keeps more."""
        sinks = [options.get("s_aux"), options.get("sinks"), getattr(module, "sinks", None)]
        self._sinks = next((one for one in sinks if isinstance(one, Tensor)), None)
        self._versions: dict[str, int] = {}
        self._weight: Tensor | None = None
        self._projection: Projected | None = None

    def places(self, name: str) -> Places:
        """Where the positions of a quantity's sentences are, as far as the model was told."""
        if name in OF_BLOCK:
            return self._in_block(name).places(name)
        keys = name in ("key", "value")
        batch, _, position, _ = (self.key if keys else self.query).shape
        return Places.of_mask(self.real_keys if keys else self.real_queries, batch, position)

    def shape_of(self, name: str, heads: int | Sequence[int] | None) -> tuple[int, ...]:
        """The shape of a quantity, or of some of its heads; a single head has no head axis."""
        if name in OF_BLOCK:
            return tuple(self.read(name).shape)
        rest = (self.query.shape[-2], self.value.shape[-1])
        if name in ("scores", "probs"):
            rest = (self.query.shape[-2], self.key.shape[-2])
        elif name != "z":
            rest = tuple(getattr(self, name).shape[-2:])
        whole = getattr(self, name) if name in ("key", "value") else self.query
        count = whole.shape[1] if heads is None else len(heads) if not isinstance(heads, int) else 0
        return (len(whole), *((count,) if count else ()), *rest)

    def settle(self) -> None:
        """Note that query, key and value are what the model attends with."""
        if self.key.is_inference():
            # Nobody counts how often these are written to.
            self.key, self.value = self.key.clone(), self.value.clone()
        for name in ("query", "key", "value"):
            self._count(name, getattr(self, name))
        if (sinks := self.sinks) is not None:
            self._count("sinks", sinks)

    def seal(self) -> None:
        """Note that z is what the model continues with."""
        if isinstance(self.out, Tensor):
            self._count("z", self.out)

    def projected_by(self, projection: Projected) -> None:
        """Note what z goes through next, and that its weights are these."""
        self._projection = projection
        if projection.module is not None:
            # Held, so that its memory is not given to another weight.
            self._weight = cast(Tensor, projection.module.weight).detach()
            self._count("weight", self._weight)

    @property
    def projection(self) -> Projected | None:
        """What z goes through next; None before the pass is over."""
        return self._projection

    def head_out(self, heads: slice = EVERY_ROW) -> Tensor:
        """z · W_O of some heads, without the bias: (batch, head, position, d_model)."""
        if self._projection is None:
            raise TraceError("head_out is read when the pass is over.")
        if self._projection.module is not None:
            weight = cast(Tensor, self._projection.module.weight)
            assert self._weight is not None, "a projection is noted with its weight"
            written = self._versions.get("weight") not in (None, weight._version)
            if written or weight.data_ptr() != self._weight.data_ptr():
                raise TraceError(
                    "head_out: the weights of the output projection were changed after this pass. "
                    "Trace again."
                )
        return self._projection.of_heads(self.z[:, heads], heads, self.n_heads)

    def _count(self, name: str, tensor: Tensor) -> None:
        """Note how often the tensor has been written to."""
        if not tensor.is_inference():
            self._versions[name] = tensor._version

    def intact(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor. Raises TraceError where it was written to since."""
        if name in self._versions and tensor._version != self._versions[name]:
            raise TraceError(
                f"{name} is stale: it was overwritten, by a change of the model's weights "
                "or by a static cache, as it does at each step. Trace again; of a generation read "
                'it before the next step, or generate without cache_implementation="static".'
            )
        return tensor

    @property
    def n_heads(self) -> int:
        """Heads that look."""
        return self.query.shape[1]

    @property
    def z(self) -> HeadVectors:
        """probs · value, as the model computed it."""
        return self.intact("z", self.out).transpose(1, 2)

    @property
    def softens(self) -> bool:
        """True where no mask means causal order."""
        if self.implementation == "minibert" and self.mask is None:
            config = type(getattr(self.module, "config", None)).__name__
            if supports_sdpa(type(self.module).__module__, config) is False:
                # Such a model has all its masks in full: where there is none, nothing is hidden.
                return False
        causal = self.options.get("is_causal")
        causal = getattr(self.module, "is_causal", True) if causal is None else causal
        return self.implementation != "eager" and bool(causal) and self.query.shape[-2] > 1

    @property
    def scale(self) -> float | Tensor:
        """What the dot products are multiplied by."""
        given = self.options.get("scaling")
        if given is not None:
            return given
        # The families with a soft cap read their config; every other takes the width of a head.
        size = getattr(self.module, "head_dim", None) if "softcap" in self.options else None
        return (size or self.query.shape[-1]) ** -0.5

    @property
    def soft_cap(self) -> float | None:
        """Scores are squeezed into −soft_cap … soft_cap."""
        return self.options.get("softcap")

    @property
    def position_bias(self) -> Tensor | None:
        """What is added to the scores beside the mask."""
        return self.options.get("position_bias")

    @property
    def sinks(self) -> Tensor | None:
        """One more logit in the softmax of each row, (head) or (batch, head, query, 1)."""
        return None if self._sinks is None else self.intact("sinks", self._sinks)

    def mask_rows(self, rows: Rows = EVERY_ROW) -> Mask:
        """The mask of some rows."""
        found = mask_of(self.mask, self.query, self.key, causal=self.softens, rows=rows)
        for more in (self._chosen_keys, self._own_text):
            if more is not None:
                allowed = rows_of(more, rows)
                allowed = allowed if found.allowed is None else found.allowed & allowed
                found = replace(found, allowed=allowed)
        return found

    @property
    def _names_keys(self) -> bool:
        """Whether keys are chosen beside the mask, as only "minibert" and flash kernels look at."""
        named = any(self.options.get(name) is not None for name in ("indices", "cu_seq_lens_q"))
        return named and self.implementation == "minibert"

    @property
    def _chosen_keys(self) -> Bool[Tensor, "batch 1 query key"] | None:
        """True at the keys that a sparse layer chose for each query, `indices`."""
        chosen = self.options.get("indices")
        if chosen is None or not self._names_keys:
            return None
        shape = (*chosen.shape[:2], self.key.shape[-2])
        none = torch.zeros(shape, dtype=torch.bool, device=chosen.device)
        return none.scatter(-1, chosen.long(), True)[:, None]

    @property
    def _own_text(self) -> Bool[Tensor, "1 1 query key"] | None:
        """True where a key is of the query's own text, of texts packed one after the other."""
        ends = [self.options.get(f"cu_seq_lens_{side}") for side in "qk"]
        if ends[0] is None or not self._names_keys:
            return None
        texts = [
            torch.searchsorted(
                end.contiguous(), torch.arange(n, device=end.device, dtype=end.dtype), right=True
            )
            for end, n in zip((ends[0], ends[0] if ends[1] is None else ends[1]),
                              (self.query.shape[-2], self.key.shape[-2]), strict=True)
        ]  # fmt: skip
        return (texts[0][:, None] == texts[1])[None, None]

    def scores(self, rows: Rows = EVERY_ROW, heads: slice = EVERY_ROW) -> Matrix:
        """scale · query · keyᵀ of some rows and heads, before soft cap, bias and mask."""
        if "scores" in self.matrices:
            return self.matrices["scores"][:, heads, rows]
        query = self.intact("query", self.query)[:, heads, rows]
        key = repeated(self.intact("key", self.key), self.n_heads)[:, heads]
        scale = self.scale
        if isinstance(scale, Tensor) and scale.dim() > 1 and scale.shape[-3] > 1:
            scale = scale[..., heads, :, :]
        return query @ key.transpose(-1, -2) * scale

    def probs(self, rows: Rows = EVERY_ROW, heads: slice = EVERY_ROW) -> Matrix:
        """The softmax of the masked scores of some rows and heads."""
        if "probs" in self.matrices:
            return self.matrices["probs"][:, heads, rows]
        return self.softmax(self.scores(rows, heads), rows, heads)

    def softmax(self, scores: Matrix, rows: Rows = EVERY_ROW, heads: slice = EVERY_ROW) -> Matrix:
        """probs of these scores: soft cap, position bias, mask and sink applied."""
        shaped = self.shaped(scores, rows, heads)
        sinks = self.sinks
        if sinks is None:
            probs = shaped.softmax(-1, dtype=_wide(shaped))
        else:
            sink = sinks if sinks.dim() == 4 else sinks.reshape(1, -1, 1, 1)
            sink = _of_heads(sink, heads).to(shaped).expand(*shaped.shape[:-1], 1)
            probs = torch.cat([shaped, sink], -1).softmax(-1, dtype=_wide(shaped))[..., :-1]
        mask = self.mask_rows(rows)
        if mask.allowed is not None and mask.forbidden == -torch.inf and not self._adds_infinity:
            # A row without a key is 0 under sdpa; the smallest numbers would make it uniform.
            probs = probs.masked_fill(~_of_heads(mask.allowed, heads), 0)
        return probs.to(self.query.dtype)

    def shaped(self, scores: Matrix, rows: Rows, heads: slice = EVERY_ROW) -> Matrix:
        """What the softmax is taken of: scores with soft cap, position bias and mask."""
        cap, bias = self.soft_cap, self.position_bias
        shaped = scores if cap is None else torch.tanh(scores / cap) * cap
        if bias is not None:
            shaped = shaped + _of_heads(rows_of(bias, rows), heads)[..., : scores.shape[-1]]
        mask = self.mask_rows(rows)
        if mask.bias is not None:
            shaped = shaped + _of_heads(mask.bias, heads)
        if mask.allowed is not None:
            # Finite, as most masks of transformers are: a row without a key stays numbers.
            least = -torch.inf if self._adds_infinity else torch.finfo(shaped.dtype).min
            shaped = shaped.masked_fill(~_of_heads(mask.allowed, heads), least)
        return shaped

    @property
    def _adds_infinity(self) -> bool:
        """Whether forbidden scores are −inf, so that a row without a key is NaN."""
        added = self.mask is not None and self.mask.is_floating_point()
        return added and self.implementation == "eager" and self._forbids_by_infinity

    @cached_property
    def _forbids_by_infinity(self) -> bool:
        return self.mask_rows().forbidden == -torch.inf

    @property
    def is_plain_row(self) -> bool:
        """Whether `row` says all of a call with one query: a mask of its own, and no padding."""
        sinks = self.sinks
        return (
            (sinks is None or sinks.dim() == 1)
            and not self._names_keys
            and not isinstance(self.scale, Tensor)
            and self.real_queries is None
            and self.query.shape[0] == self.key.shape[0]
        )

    def row(self) -> tuple[Matrix, Matrix]:
        """probs and shaped scores, −inf where masked, of the only query, in the wide dtype.

        Of a row without a key probs are 0.
        """
        query, key, mask = self.intact("query", self.query), self.intact("key", self.key), self.mask
        batch, heads, _, width = query.shape
        grouped = query.reshape(batch, key.shape[1], -1, width)
        scores = (grouped @ key.mT).view(batch, heads, 1, -1)
        # Scaled after the product, as eager attention does: it rounds no more than that.
        scores = scores.to(_wide(scores)) * self.scale
        if (cap := self.soft_cap) is not None:
            scores = torch.tanh(scores / cap) * cap
        if (bias := self.position_bias) is not None:
            scores = scores + bias[..., : scores.shape[-1]]
        if mask is not None:
            mask = mask[..., : scores.shape[-1]]
            if mask.is_floating_point():
                scores, mask = scores + mask, mask > torch.finfo(mask.dtype).min / 2
            scores = scores.masked_fill(~mask.bool(), -torch.inf)
        if (sinks := self.sinks) is None:
            probs = scores.softmax(-1)
        else:
            sink = sinks.to(scores).view(1, -1, 1, 1).expand(batch, -1, 1, 1)
            probs = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        if mask is not None:
            probs = probs.masked_fill(scores.amax(-1, keepdim=True) == -torch.inf, 0)
        return probs, scores

    def weighted_row(self, probs: Matrix) -> HeadVectors:
        """probs · value of the only query; nothing is repeated for a group of heads."""
        value = self.intact("value", self.value)
        batch, heads, _, n_keys = probs.shape
        grouped = probs.to(value.dtype).view(batch, value.shape[1], -1, n_keys)
        return (grouped @ value).view(batch, heads, 1, -1)

    def weighted(self, probs: Matrix) -> HeadVectors:
        """probs · value."""
        return probs @ repeated(self.intact("value", self.value), self.n_heads)

    def described(self) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
        """query, key and value, and the keywords of `minibert.attend` that say the same.

        Raises TraceError for sinks of its own for each query, which no keyword says.
        """
        query, key, value = (self.intact(n, getattr(self, n)) for n in ("query", "key", "value"))
        # Causal order that is all of a mask is a word to a kernel, and no N x N tensor.
        masked = self.mask is not None or self._names_keys
        causal = self.softens and query.shape[-2] == key.shape[-2] and not masked
        scale, mask = self.scale, Mask() if causal else self.mask_rows()
        if isinstance(scale, Tensor):
            query, scale = query * scale, 1.0
        allowed, bias = _four(mask.allowed), _four(mask.bias)
        if (more := _four(self.position_bias)) is not None:
            more = more[..., : key.shape[-2]]
            bias = more if bias is None else bias + more
        sinks = self.sinks
        if sinks is not None and sinks.dim() == 4:
            if sinks.shape[0] * sinks.shape[2] > 1:
                raise TraceError(
                    f"{type(self.module).__name__} has a sink of its own for each query; expected "
                    'one for each head. Run this model with attn_implementation="eager".'
                )
            sinks = sinks[0, :, 0, 0]
        batch = max(query.shape[0], key.shape[0])
        query, key, value = (one.expand(batch, -1, -1, -1) for one in (query, key, value))
        return (query, key, value), {
            "causal": causal,
            "scale": float(scale),
            "soft_cap": self.soft_cap,
            "mask": allowed,
            "bias": None if bias is None else bias.to(query.dtype),
            "sinks": None if sinks is None else sinks.flatten().to(query),
        }

    def check_known(self, name: str) -> None:
        """Raise TraceError where the scores of this call are not known."""
        if self.untrue:
            raise TraceError(f"{name} of {type(self.module).__name__}: {self.untrue}")

    def _in_block(self, name: str) -> Run:
        """The run of the block. Raises AbsentError where it is not known."""
        if isinstance(self.block, str):
            raise AbsentError(f"{name}: {self.block}.")
        return self.block

    def read(self, name: str, heads: slice = EVERY_ROW, rows: Rows = EVERY_ROW) -> Tensor:
        """A quantity, its head axis still there; of key and value what these heads read."""
        if name in OF_BLOCK:
            block, attention = self._in_block(name), id(self.module)
            if self.again is not None and not block.has(name, attention):
                return self.again().read(name)
            return block.read(name, attention)
        if name in ("scores", "probs"):
            self.check_known(name)
            compute: Callable[..., Tensor] = self.scores if name == "scores" else self.probs
            return compute(rows, heads)
        if name == "z":
            return self.z[:, heads]
        if name == "head_out":
            return self.head_out(heads)
        tensor = self.intact(name, getattr(self, name))
        if name == "query" or heads == EVERY_ROW:
            return tensor[:, heads]
        group = self.n_heads // tensor.shape[1]
        read_by = [head // group for head in range(self.n_heads)[heads]]
        return tensor[:, read_by[0] : read_by[-1] + 1]


def repeated(vectors: Float[Tensor, "batch kv_head key d_head"], n_heads: int) -> HeadVectors:
    """The key or value that each head reads: head h reads h // (n_heads / kv_heads)."""
    group = n_heads // vectors.shape[1]
    return vectors if group == 1 else vectors.repeat_interleave(group, 1)


def _four(matrix: Tensor | None) -> Tensor | None:
    return None if matrix is None else matrix[(None,) * (4 - matrix.dim())]


def _of_heads(tensor: Tensor, heads: slice) -> Tensor:
    """Some heads of what has one head axis for all, or none of size above 1."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    return tensor if tensor.shape[1] == 1 else tensor[:, heads]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


#: Rows that are compared, spread over the queries: the cost stays small however long the text.
_ROWS = 32
# Of the largest value: rounding of a softmax, in float32 and below.
_LEAST_ERROR, _ROUNDINGS = 1e-4, 4
_UNCHANGING = ("dropout", "scaling", "output_attentions", "position_ids", "use_cache")


def form_of(call: Call) -> tuple[object, ...]:
    """The form of a call: all that decides how it is computed. One check holds for a form."""
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
    largest, most = float(off.max()), float(value.detach().abs().nan_to_num(0).max())
    bound = most * max(_LEAST_ERROR, _ROUNDINGS * torch.finfo(value.dtype).eps)
    if largest <= bound:
        return ""
    return (
        f"probs · value is {largest:.2g} off the model's own z, so that this module does something "
        "with its scores that minibert does not know. query, key, value and z can be read"
    )


@cache
def supports_sdpa(home: str, config: str) -> bool | None:
    """Whether models of a config take no mask as "sdpa" does: by is_causal of the module.

    Modules of those that do not support "sdpa" may say nothing of it, or something else. `home` is
    where the config or the attention is written. None where no model is found there.
    """
    module = sys.modules.get(home.replace("configuration_", "modeling_"))
    models = (
        [one for one in vars(module).values() if hasattr(one, "_supports_sdpa")] if module else []
    )
    named = {one: getattr(one, "config_class", None) for one in models}
    own = [one for one, of in named.items() if getattr(of, "__name__", "") == config] or models
    return all(one._supports_sdpa for one in own) if own else None


def attention_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that look like attention, by their class name, and have weights of their own.

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
