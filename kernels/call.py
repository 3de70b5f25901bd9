"""One attention call, as the model, every implementation, the checker and the bench describe it.

An implementation is a function of a `Call` that returns `Outputs`. A new option is a field here,
with its name in `OPTIONS`, a check in `checks.py`, the formula in `reference.py` and `eager.py`,
and code in each kernel that takes it.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from minibert.errors import AttentionError, did_you_mean
from minibert.kernels.allowed_keys import AllowedKeys, Window
from minibert.quantities import Bool, Float, Int

#: What an implementation gives: "z", "lse" and whatever the call wants, by name; it may be more.
Outputs = dict[str, Tensor]
#: The options of a call, as keywords of `attend` and of functions that users register. Those in
#: front a function that takes `**rest` gets, the others only one that names them.
COMMON = ("lengths", "mask", "causal", "scale", "bias", "want")
OPTIONS = (
    *COMMON,
    "packed",
    "packed_keys",
    "window",
    "prefix",
    "soft_cap",
    "alibi_slopes",
    "sinks",
    "pages",
)
#: Shapes that not every implementation takes: fewer key heads than query heads, and values whose
#: size is not that of the keys.
SHAPES = ("groups", "value_size")
#: What an implementation receives: name -> whole numbers, or a tensor for `TENSORS`; a name without
#: parameters maps to ().
Want = dict[str, Any]

MATRICES = ("scores", "probs")
WantName = Literal[
    "scores", "probs", "row_max", "max_prob", "entropy", "argmax", "received", "key_mass",
    "offset_mass", "map", "key_sums", "pair_mass", "profile", "top_keys", "top_probs",
]  # fmt: skip
WANTS: tuple[str, ...] = get_args(WantName)
if TYPE_CHECKING:
    #: A name, or a name and its parameter.
    Statistic = WantName | tuple[WantName, object]
else:
    # Checked with an error that lists the names; a run-time type checker must not come before it.
    Statistic = object
#: Those whose parameter is a tensor, by what it holds.
TENSORS = {
    "key_sums": "(batch, head, key, column) of floating numbers, batch and head may be 1",
    "pair_mass": "(batch, pair, 2) of query and key, whole numbers, batch may be 1",
}
#: Those of the largest weights of a row, and how many there may be.
RANKED, MOST_RANKS = ("top_keys", "top_probs"), 32
_DEFAULTS: dict[str, tuple[int, ...]] = {"offset_mass": (-1, 0, 1), "map": (64,)}
_DEFAULTS |= dict.fromkeys(RANKED, (8,))
#: Far beyond any text, and small enough to be added to a position in int64.
_LARGEST = 2**31 - 1
#: Those that take one number, and those that take several.
_ONE_NUMBER = ("map", *RANKED)
_PARAMETRISED = ("key_mass", "offset_mass", *_ONE_NUMBER)


def parse_want(want: Iterable[object], *, n_keys: int | None) -> Want:
    """The wanted outputs by name, with defaults filled in: ("map",) becomes {"map": (64,)}.

    Raises AttentionError for an unknown name, a missing parameter or one out of range. With n_keys
    None the caller checks that such keys exist.
    """
    if isinstance(want, str):
        raise AttentionError(f"{want!r} is one text; expected a tuple of names, as ({want!r},).")
    if not isinstance(want, Iterable):
        raise AttentionError(
            f"want is {want!r}; expected a tuple of names, () for z and lse alone, "
            'for instance want=("entropy",).'
        )
    parsed: Want = {}
    for item in want:
        name, parameters = _name_and_parameters(item)
        if name in parsed and (name in TENSORS or parsed[name] != parameters):
            raise AttentionError(
                f"want asks for {name!r} twice, with {parsed[name]!s:.99} and {parameters!s:.99}. "
                + ("Name it once." if name in _ONE_NUMBER else "Put all of them in one entry.")
            )
        if name not in TENSORS:
            _check_range(name, parameters, n_keys)
        parsed[name] = parameters
    return parsed


def _name_and_parameters(item: object) -> tuple[str, Any]:
    name, given = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
    if not isinstance(name, str) or name not in WANTS:
        raise AttentionError(
            f"want holds {item!r:.200}, which is not known{did_you_mean(name, WANTS)}; known are "
            f"{', '.join(WANTS)}; "
            'with parameters ("key_mass", positions), ("offset_mass", offsets), ("map", blocks), '
            '("key_sums", columns), ("pair_mass", pairs), ("top_keys", k), ("top_probs", k).'
        )
    if name in TENSORS:
        return name, _tensor(name, given)
    if given is None:
        if name == "key_mass":
            raise AttentionError(
                'want holds "key_mass" without key positions; '
                'say which, for instance ("key_mass", (0,)) for the first token.'
            )
        return name, _DEFAULTS.get(name, ())
    if name not in _PARAMETRISED:
        raise AttentionError(f"want gives {name!r} the parameter {given!r}; it takes none.")
    try:
        numbers = tuple(given)
    except TypeError:
        numbers = (given,)
    others = any(isinstance(n, bool) or not isinstance(n, int) for n in numbers)
    if not numbers or others or (name in _ONE_NUMBER and len(numbers) > 1):
        raise AttentionError(
            f"want gives {name!r} the parameter {given!r}; expected whole numbers, "
            f"for instance ({name!r}, {_DEFAULTS[name][0] if name in _ONE_NUMBER else (0, 1)})."
        )
    return name, numbers


def _tensor(name: str, given: object) -> Tensor:
    axes = 4 if name == "key_sums" else 3
    if isinstance(given, Tensor) and given.ndim == axes:
        kind = given.dtype
        if kind.is_floating_point if name == "key_sums" else kind == torch.int64:
            return given
    told = f"{given.dtype}, {tuple(given.shape)}" if isinstance(given, Tensor) else f"{given!r:.80}"
    raise AttentionError(f"want gives {name!r} {told}; expected a tensor {TENSORS[name]}.")


def _check_range(name: str, parameters: tuple[int, ...], n_keys: int | None) -> None:
    if any(abs(number) > _LARGEST for number in parameters):
        raise AttentionError(f"({name!r}, {parameters}): expected at most ±{_LARGEST}.")
    if name == "map" and parameters[0] < 1:
        raise AttentionError(f'("map", {parameters[0]}): expected at least one block.')
    if name in RANKED and not 1 <= parameters[0] <= MOST_RANKS:
        raise AttentionError(f'("{name}", {parameters[0]}): expected 1 to {MOST_RANKS}.')
    if name == "key_mass" and n_keys is not None:
        outside = [position for position in parameters if not 0 <= position < n_keys]
        if outside:
            raise AttentionError(
                f'("key_mass", {parameters}): positions {outside} do not exist; '
                f"there are {n_keys} keys, counted from 0 to {n_keys - 1}."
            )


def most_ranks(want: Want) -> int:
    """The number of largest weights asked for in each row; 0: none."""
    return max((want[name][0] for name in RANKED if name in want), default=0)


def ranked(want: Want, keys: Tensor, probs: Tensor) -> Outputs:
    """The wanted outputs among the keys with the largest weights and these weights, (..., rank)."""
    found = dict(zip(RANKED, (keys, probs), strict=True))
    return {name: one[..., : want[name][0]] for name, one in found.items() if name in want}


@dataclass(frozen=True, eq=False)
class Call:
    """query, key and value of one layer, which keys may be seen, and what is wanted beside z.

    scores = scale · query · keyᵀ; s = soft_cap · tanh(scores / soft_cap) + bias − alibi_slope ·
    |distance|, each where it is given; probs = softmax of s over the allowed keys, with a sink
    beside them where there are sinks; z = probs · value.

    query is (batch, head, query, d_head), key (batch, kv_head, key, d_head) and value (batch,
    kv_head, key, d_value). Query head h reads key head h // (heads / kv_heads) (Ainslie et al.
    2023). Packed sentences are a batch of one: (1, head, token, d_head). With pages, (batch, n),
    key and value are (page, kv_head, slot, ...), and sentence b has the keys of pages[b], one page
    after the other, as many as its length says (Kwon et al. 2023, section 4).
    """

    query: Float[Tensor, "batch head query d_head"]
    key: Float[Tensor, "some_batch kv_head slot d_head"]
    value: Float[Tensor, "some_batch kv_head slot d_value"]
    scale: float
    allowed: AllowedKeys
    bias: Float[Tensor, "#batch #head #query #key"] | None = None
    want: Want = field(default_factory=dict)
    """By name, "lse" among them; with the parameters of those that have some."""
    soft_cap: float | None = None
    """Scores are squeezed into −soft_cap … soft_cap (Gemma Team 2024, section 2)."""
    alibi_slopes: Float[Tensor, "*#batch head"] | None = None
    """What a score loses for each position between query and key (Press et al. 2022)."""
    sinks: Float[Tensor, " head"] | None = None
    """One more logit in each row's softmax, of no key and no value (Xiao et al. 2024)."""
    pages: Int[Tensor, "batch page"] | None = None

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        window: Window | None = None,
        prefix: Tensor | None = None,
        packed: tuple[int, ...] | None = None,
        packed_keys: tuple[int, ...] | None = None,
        pages: Tensor | None = None,
        want: Want | None = None,
        **scores: object,
    ) -> "Call":
        """The call that these keywords of `attend` describe; nothing is checked.

        `scores` are bias, soft_cap, alibi_slopes and sinks.
        """
        allowed = AllowedKeys(
            batch=query.shape[0],
            position=key.shape[2] * (1 if pages is None else pages.shape[1]),
            device=query.device,
            causal=causal,
            packed=packed,
            given=mask,
            window=window,
            prefix=prefix,
            packed_keys=packed_keys,
            ends=None if pages is None else lengths,
            on_device=lengths,
        )
        scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
        told: dict[str, Any] = {"want": {} if want is None else want, "pages": pages} | scores
        return cls(query, key, value, scale, allowed, **told)

    @property
    def lengths(self) -> Int[Tensor, " batch"] | None:
        """The number of real keys of each sentence; None: all are."""
        return self.allowed.length_tensor

    @property
    def causal(self) -> bool:
        """True where a query sees only the keys up to its own position, aligned to the end."""
        return self.allowed.in_order

    @property
    def window(self) -> Window | None:
        """Keys before and after its own position that a query sees, aligned to the end."""
        return self.allowed.window if self.allowed.aligned else None

    @property
    def prefix(self) -> Int[Tensor, " sentence"] | None:
        """The first keys of each sentence that are seen in spite of causal order."""
        return self.allowed.prefix if self.allowed.aligned else None

    @property
    def packed(self) -> tuple[int, ...] | None:
        """The queries of each packed sentence."""
        return self.allowed.packed

    @property
    def packed_keys(self) -> tuple[int, ...] | None:
        """The keys of each packed sentence, where their numbers differ from the queries'."""
        return self.allowed.packed_keys

    @property
    def mask(self) -> Bool[Tensor, "#batch #head #query #key"] | None:
        """True where the given mask allows attention; lengths, causal, window, prefix excluded."""
        return self.allowed.mask(self.query.shape[2], lengths=False, order=False, window=False)

    @property
    def seen(self) -> Bool[Tensor, "#batch #head #query #key"] | None:
        """True where all options together allow attention; None: everywhere."""
        return self.allowed.mask(self.query.shape[2])

    @property
    def biases(self) -> Float[Tensor, "#batch #head #query #key"] | None:
        """The bias and −slope · |position of the query − position of the key| (Press et al. 2022).

        In the dtype of the call.
        """
        if self.alibi_slopes is None:
            return self.bias
        query, ends = self.query, self.allowed.ends
        (Q, K), device = (query.shape[2], self.key.shape[2]), query.device
        positions = torch.arange(K - Q, K, device=device)[:, None]
        if ends is not None:
            positions = positions + (ends - K)[:, None, None, None]
        distance = (positions - torch.arange(K, device=device)).abs()
        slopes = self.alibi_slopes if self.alibi_slopes.ndim == 2 else self.alibi_slopes[None]
        added = (-slopes.to(wide(query.dtype))[..., None, None] * distance).to(query.dtype)
        return added if self.bias is None else added + self.bias

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that gradients may flow to, by name."""
        names = ("query", "key", "value", "bias", "alibi_slopes", "sinks")
        given = {name: getattr(self, name) for name in names}
        return {name: one for name, one in given.items() if one is not None}

    @property
    def requires_grad(self) -> bool:
        """True where gradients may flow to one of its tensors."""
        # A loop, and no generator, which would be as many calls of Python in each layer.
        for one in (self.query, self.key, self.value, self.bias, self.alibi_slopes, self.sinks):
            if one is not None and one.requires_grad:
                return True
        return False

    @property
    def asks(self) -> frozenset[str]:
        """The options and shapes that an implementation must take."""
        query, found = self.query, set(self.allowed.options)
        for name in ("bias", "soft_cap", "alibi_slopes", "sinks", "pages"):
            if getattr(self, name) is not None:
                found.add(name)
        if query.shape[1] != self.key.shape[1]:
            found.add("groups")
        if query.shape[3] != self.value.shape[3]:
            found.add("value_size")
        # An implementation without a scale takes that of Vaswani et al.
        if abs(self.scale * self.scale * query.shape[3] - 1) > 1e-12 or self.scale < 0:
            found.add("scale")
        return frozenset(found)

    def keywords(self, names: Collection[str]) -> dict[str, Any]:
        """The options of these names, for a function that takes them as keywords."""
        return {name: getattr(self, name) for name in OPTIONS if name in names}

    def positively_scaled(self) -> "Call":
        """A call with a scale above 0 that gives the same scores.

        torch's kernels mask before they scale: −inf times a scale of 0 or below is not a mask.
        """
        if self.scale > 0:
            return self
        if self.scale < 0:
            return replace(self, query=-self.query, scale=-self.scale)
        return replace(self, query=self.query * 0, scale=1.0)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of lse and statistics: float64 for float64, float32 for everything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32
