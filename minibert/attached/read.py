"""Reading the attention of one forward pass of a live model, by minibert's names.

`AttachedTrace` has stacks of layers (`StackTrace`), these have layers and heads. A page shows
square matrices with the vectors that give them: a stack that attends to itself has one
(`PageTrace`: padding left out, tokens in words), cross-attention and single steps of a generation
have none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from minibert.attached.block import OF_BLOCK, NormOf
from minibert.attached.call import EVERY_ROW, Call, repeated
from minibert.attached.layout import READABLE
from minibert.attached.unembedding import Unembedding
from minibert.doors import Page, PageSizes, Window, opened
from minibert.errors import (
    EditError,
    TokenizationError,
    TraceError,
    check_index,
    did_you_mean,
    whole_number,
)
from minibert.kernels.api import Attended, Statistics, attend
from minibert.layers.finite import check_computed
from minibert.quantities import Float, Quantity
from minibert.text.tokens import Tokens
from minibert.trace.edit import Places, Point, in_layers
from minibert.trace.identity import Unchanged
from minibert.trace.layer_view import AbsentError, LayerView, place_in

#: All that is read of a layer.
OF_LAYER = (*READABLE, "head_out", *OF_BLOCK)
NAMES = ("lse", *(each.name for each in fields(Statistics)))


class LazyStatistics:
    """The statistics of a layer or a head, each computed when it is read.

    `statistics.entropy` is one of them; `statistics(("entropy", ("key_mass", (0,))))` computes
    several in one pass and takes parameters, as `minibert.attend(want=...)` does.
    `minibert.kernels.api.Statistics` defines each of them; those of one head have no head axis.
    `lse` is there too.

    Rows of padding, where the model was given an attention_mask, count as rows without a key.
    Raises TraceError where an edit changed scores or probs: read `probs` there.
    """

    def __init__(self, call: Call, head: int | None) -> None:
        self._call, self._head = call, head

    def __call__(self, want: Iterable[Any]) -> Statistics:
        """The statistics that `want` names."""
        found = attended(self._call, want).statistics or Statistics()
        numbers = {each.name: getattr(found, each.name) for each in fields(found)}
        return Statistics(**{name: self._of_head(one) for name, one in numbers.items()})

    def __getattr__(self, name: str) -> Tensor:
        if name == "lse":
            return self._of_head(attended(self._call, ()).lse)
        if name not in NAMES:
            guess = did_you_mean(name, NAMES)
            raise AbsentError(f"{name!r} is not a statistic{guess}; there are {', '.join(NAMES)}.")
        return self._of_head(getattr(attended(self._call, (name,)).statistics, name))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *NAMES]

    def _of_head(self, numbers: Any) -> Any:
        return numbers if numbers is None or self._head is None else numbers[:, self._head]


def attended(call: Call, want: Iterable[Any]) -> Attended:
    """The result of `minibert.attend` for a call of a live model."""
    if call.matrices:
        raise TraceError(
            f"{' and '.join(call.matrices)} were edited here, and statistics are those of query "
            "and key. Compute what you need from .probs."
        )
    call.check_known("statistics")
    vectors, options = call.described()
    if call.real_queries is not None:
        real, allowed = call.real_queries[:, None, :, None], options["mask"]
        options["mask"] = real if allowed is None else allowed & real
    # The matrix of one row is a row, and the blocks of longer ones cost more than it.
    impl = "eager" if call.query.shape[2] == 1 else "auto"
    with torch.no_grad():
        return attend(*vectors, want=want, impl=impl, **options)


class AttachedLayer(LayerView):
    """The quantities of one layer of a live model, or of one head (then the head axis is gone).

    query, key, value, scores, probs, z and head_out, each computed when it is read. `key` and
    `value` of a layer have its key-value heads; of a head they are those that it reads. Of the
    block around the attention resid_pre, attn_out, resid_mid, mlp_gate, mlp_pre, mlp_post, mlp_out
    and resid_post, (batch, position, width), as the model computed them.
    """

    trace: "StackTrace"

    @property
    def module(self) -> str:
        """The name of the attention module."""
        return self.trace.calls[self.layer][0]

    @property
    def statistics(self) -> LazyStatistics:
        """Numbers about the rows of probs, without the matrix: `statistics.entropy`."""
        return LazyStatistics(self.trace.calls[self.layer][1], self.head)

    @property
    def problem(self) -> str:
        """Why scores and probs cannot be read here; "" where they can."""
        return self.trace.calls[self.layer][1].untrue

    @property
    def has_bias(self) -> bool:
        """True where the output projection adds a bias to what its heads write."""
        found = self.trace.calls[self.layer][1].projection
        return found is not None and getattr(found.module, "bias", None) is not None

    @property
    def adds(self) -> bool:
        """True where resid_post is the sum of resid_pre and what this attention and the MLP add.

        It is not where a norm follows the sum (BERT), and where another attention adds to it.
        """
        run = self.trace.calls[self.layer][1].block
        if isinstance(run, str):
            return False
        steps = run.block.steps
        return len(steps) <= 2 and all(one.total is one.stream for one in steps)

    def way_of(self, name: str) -> tuple[float, NormOf | None, NormOf | None]:
        """How attn_out or mlp_out gets into the stream: factor, its own norm, that of the sum."""
        self.quantity(name)
        call = self.trace.calls[self.layer][1]
        assert not isinstance(call.block, str), "a quantity was read of it"
        return call.block.way_of(name, id(call.module))

    def as_added(self, name: str) -> Tensor:
        """A quantity of the block; attn_out and mlp_out as they are added to the stream."""
        value, call = self.quantity(name), self.trace.calls[self.layer][1]
        assert not isinstance(call.block, str), "a quantity was read of it"
        return call.block.as_added(name, id(call.module), value)

    def read_quantity(self, quantity: Quantity[Tensor]) -> Tensor:
        """The quantity, read from the calls; the stack raises the error for one that is missing."""
        found = self.trace.read(quantity.name, self.layer, self._heads)
        return self._drop_head(quantity, found)

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *OF_LAYER]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.module}>"


@dataclass(frozen=True)
class StackTrace:
    """The layers of one stack in one pass: `stack[2].probs`, `stack[2, 5].z`."""

    name: str
    calls: Sequence[tuple[str, Call]]
    """Each with the name of its module."""
    model_name: str
    model: nn.Module | None = None
    ids: Tensor | None = None
    """(batch, position), where they are known."""
    texts: tuple[str, ...] = ()
    tokenizer: Any = None

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[AttachedLayer]:
        return (self[layer] for layer in range(len(self)))

    def __getitem__(self, where: int | tuple[int, int]) -> AttachedLayer:
        """The quantities of a layer, or of one head of a layer. Negative numbers count back."""
        place = place_in(where, len(self), lambda layer: self.calls[layer][1].n_heads)
        return AttachedLayer(self, *place)

    def read(
        self, name: str, layer: int, heads: slice = EVERY_ROW, queries: slice = EVERY_ROW
    ) -> Tensor:
        """A quantity of one layer, its head axis still there, cut to the chosen heads and rows.

        Raises AbsentError for an unknown name, and TraceError, with the reason, where the quantity
        cannot be read.
        """
        if name not in OF_LAYER:
            raise AbsentError(
                f"{name!r:.80} cannot be read from an attached model; there are "
                f"{', '.join(OF_LAYER)} and statistics."
            )
        call = self.calls[layer][1]
        value = call.read(name, heads, queries)
        if name == "probs" and queries == EVERY_ROW:
            real = call.real_queries
            rows = value if real is None else value.transpose(1, 2)[real]
            check_computed(rows, f"probs of layer {layer}")
        return value

    def __repr__(self) -> str:
        query = self.calls[0][1].query
        return (
            f"{self.name} of {self.model_name}: {len(self)} layers x {query.shape[1]} heads, "
            f"batch {query.shape[0]}, {query.shape[2]} positions"
        )

    def stack(self, name: str) -> Float[Tensor, "layer batch *rest"]:
        """One quantity of all layers, the layer axis in front."""
        return torch.stack([layer.quantity(name) for layer in self])

    @property
    def places(self) -> Places:
        """Where the positions of its sentences are, as far as the model was told."""
        return self.calls[0][1].places("query")

    @property
    def tokens(self) -> Tokens:
        """The tokens without padding: words where ids and tokenizer are known, else numbers."""
        call = self.calls[0][1]
        device = call.query.device
        real = tuple(torch.tensor([*at], device=device) for at in self.places.at)
        return _tokens(self, call.query.shape[2], real)

    def heads_of(self, name: str) -> int:
        """How many heads of a quantity each layer has. Raises TraceError where layers differ."""
        of_keys = name in ("key", "value")
        calls = [call for _, call in self.calls]
        counts = {(call.key if of_keys else call.query).shape[1] for call in calls}
        if len(counts) > 1:
            raise TraceError(f"{self!r}: its layers have different numbers of heads.")
        return counts.pop()

    def ends_in(self, block: nn.Module) -> bool:
        """True where the last block of the stack is this module."""
        last = self.calls[-1][1].block
        return not isinstance(last, str) and last.block.module is block

    def token_name(self, token: int) -> str:
        """The token as a person reads it; its id where there is no tokenizer."""
        return str(token) if self.tokenizer is None else _Words(self.tokenizer).string(token)

    def token_id(self, token: int | str, size: int) -> int:
        """The id of a token, given as its id below `size` or as text that is one token.

        Raises TokenizationError for anything else.
        """
        if isinstance(token, str):
            made = self.tokenizer
            found = [] if made is None else made(token, add_special_tokens=False).input_ids
            if len(found) != 1:
                raise TokenizationError(
                    f"{token!r:.80} is not one token of {self.model_name}'s tokenizer; expected a "
                    "text that is, or an id."
                )
            token = found[0]
        return whole_number("token", token, TokenizationError, least=0, most=size - 1)

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """probs of each layer, (batch, head, query, key): what BertViz' functions take."""
        return tuple(layer.probs.detach() for layer in self)

    def value_at(self, point: Point) -> Tensor:
        """The quantity at a point of an edit; a head of keys is a key-value head."""
        return in_layers(self, point)

    def shape_at(self, point: Point) -> tuple[int, ...]:
        """The shape of the quantity. Raises EditError where this trace has no such layer."""
        if point.layer is None or point.layer >= len(self):
            raise EditError(f"{point}: the trace to read from has {len(self)} layers.")
        return self.calls[point.layer][1].shape_of(point.name, point.heads)

    def places_at(self, point: Point) -> Places:
        """Which of its positions are tokens."""
        return self.calls[point.layer or 0][1].places(point.name)


@dataclass(frozen=True)
class PageLayer:
    """One layer; real tokens stand in front. Keys and values have their own heads.

    probs is (batch, head, query, key); query, key, value and z (batch, head, position, d_head).
    """

    call: Call
    real: tuple[Tensor, ...]
    n_kv_heads: int

    def __getattr__(self, name: str) -> Tensor:
        if name not in READABLE:
            raise AttributeError(name)
        found = self.call.read(name).detach()
        if name in ("scores", "probs"):
            return self._front(self._front(found).mT).mT
        if name in ("key", "value"):
            found = repeated(found, self.n_kv_heads)
        return self._front(found)

    def _front(self, value: Tensor) -> Tensor:
        """The positions of real tokens first, then zeros, along axis 2."""
        found = torch.zeros_like(value)
        for sentence, real in enumerate(self.real):
            found[sentence, :, : len(real)] = value[sentence].index_select(1, real)
        return found


@dataclass(frozen=True)
class PageTrace:
    """The part of a trace that `minibert.viz.view` reads: `trace[layer].probs` and so on."""

    model_name: str
    tokens: Tokens
    config: PageSizes
    layers: tuple[PageLayer, ...]

    def __len__(self) -> int:
        """Layers that can be read."""
        return len(self.layers)

    def __getitem__(self, layer: int) -> PageLayer:
        """One layer."""
        return self.layers[layer]


def page_trace(one: StackTrace) -> PageTrace:
    """A stack as a page reads it, with the ids of its positions, where they are known, in words.

    Raises TraceError where there is no page of it: queries that are not the keys, or layers with
    different numbers of heads.
    """
    calls = [call for _, call in one.calls]
    first = calls[0]
    batch, heads, n, width = first.query.shape
    shapes = {(call.query.shape, call.key.shape[2]) for call in calls}
    if shapes != {(first.query.shape, n)}:
        raise TraceError(
            f"There is no page of {one!r}: it shows as many queries as keys, and heads of one "
            "width, the same in every layer. Pages of cross-attention, of single steps of a "
            "generation and of layers with windows of their own are not drawn; read "
            "trace.stack(name)[layer].probs, and draw cross-attention with "
            "minibert.viz.head_view(cross_attention=...)."
        )
    mask = first.real_queries
    real = tuple(
        torch.arange(n, device=first.query.device) if mask is None else mask[row].nonzero()[:, 0]
        for row in range(batch)
    )
    allowed = [_allowed(call, real) for call in calls]
    shared = {vectors.shape[1] for call in calls for vectors in (call.key, call.value)}
    # Layers that share keys in different ways show what each head reads.
    n_kv_heads = shared.pop() if len(shared) == 1 else heads
    sizes = PageSizes(
        len(calls), heads, n_kv_heads, width,
        causal=not any(bool(each.triu(1).any()) for of in allowed for each in of),
        scales=tuple(float(torch.as_tensor(call.scale).flatten()[0]) for call in calls),
        windows=tuple(map(_window, allowed)),
        attention_soft_cap=first.soft_cap,
        apart=_apart(calls),
    )  # fmt: skip
    layers = tuple(PageLayer(call, real, n_kv_heads) for call in calls)
    return PageTrace(one.model_name, _tokens(one, n, real), sizes, layers)


def _allowed(call: Call, real: tuple[Tensor, ...]) -> list[Tensor]:
    """The allowed keys of each sentence, (query, key) of its own tokens: True where allowed."""
    n, allowed = call.query.shape[2], call.mask_rows().allowed
    if allowed is None:
        return [torch.ones(len(rows), len(rows), dtype=torch.bool) for rows in real]
    whole = allowed.expand(len(real), *allowed.shape[1:])[:, 0].expand(-1, n, -1).cpu()
    return [one[rows.cpu()][:, rows.cpu()] for one, rows in zip(whole, real, strict=True)]


def _window(allowed: list[Tensor]) -> Window:
    """How far a layer's queries look, before and after them; None where there is no limit."""
    offsets = [torch.arange(len(one))[None] - torch.arange(len(one))[:, None] for one in allowed]
    before, behind = (
        max((int((sign * by)[one].max()) for one, by in zip(allowed, offsets, strict=True)
             if bool(one.any())), default=0)
        for sign in (-1, 1)
    )  # fmt: skip
    longest = max(map(len, allowed)) - 1
    if before >= longest:
        # A causal layer without a window is not a layer with one.
        return None
    return max(before, 0), max(behind, 0)


def _apart(calls: list[Call]) -> str:
    """What decides the weights besides query, key, scale, soft cap and window, in words."""
    if any(call.matrices for call in calls):
        return ""
    found = {
        "a position bias": any(
            call.position_bias is not None or call.mask_rows().bias is not None for call in calls
        ),
        "sinks": any(call.sinks is not None for call in calls),
        "a scale of their own for each head or query": any(
            isinstance(call.scale, Tensor) and call.scale.numel() > 1 for call in calls
        ),
        "soft caps that differ by layer": len({call.soft_cap for call in calls}) > 1,
    }
    names = [name for name, there in found.items() if there] or ["a mask of their own"]
    return f"The weights of this model have {' and '.join(names)} beside query and key."


def _tokens(one: StackTrace, n_positions: int, real: tuple[Tensor, ...]) -> Tokens:
    """The tokens of the positions: words where they are known, else numbers."""
    ids = one.ids
    longest = max(map(len, real))
    known = ids is not None and ids.shape == (len(real), n_positions)
    table = torch.zeros(len(real), longest, dtype=torch.long)
    mask = torch.zeros(len(real), longest, dtype=torch.bool)
    for sentence, rows in enumerate(real):
        given = ids[sentence, rows] if known and ids is not None else torch.arange(len(rows))
        table[sentence, : len(rows)] = given.cpu()
        mask[sentence, : len(rows)] = True
    words = _Words(one.tokenizer) if known and one.tokenizer is not None else None
    tokens = Tokens.from_ids(table, mask=mask, tokenizer=words)
    return replace(tokens, texts=tuple((text,) for text in one.texts)) if one.texts else tokens


class _Words:
    """A tokenizer of transformers as `Tokens` asks for it."""

    def __init__(self, tokenizer: Any) -> None:
        words = {tokenizer.mask_token_id, tokenizer.unk_token_id} - {tokenizer.eos_token_id}
        self.structural_ids = frozenset(set(tokenizer.all_special_ids) - words)
        self._convert: Callable[[int], str] = tokenizer.convert_ids_to_tokens

    def raw(self, token_id: int) -> str:
        """The vocabulary's own string."""
        return str(self._convert(token_id))

    def string(self, token_id: int) -> str:
        """The string without the marks of pieces and spaces."""
        raw = self.raw(token_id)
        if raw.startswith("##") and len(raw) > 2:
            return raw[2:]
        return " " + raw[1:] if raw[:1] in ("Ġ", "▁") else raw


class AttachedTrace:
    """The attention of one forward pass of a live model.

    `trace[3, 5].probs` where the model has one stack of layers, else
    `trace.stack("decoder.cross")[3, 5].probs`. `trace.output` is what the model returned.
    """

    def __init__(
        self,
        stacks: Mapping[str, StackTrace],
        output: object,
        model_name: str,
        again: "Callable[[Mapping[Any, object]], AttachedTrace] | None",
        unembedding: Unembedding | str,
        unchanged: Unchanged,
        *,
        edited: bool,
        of_text: "Callable[[int], AttachedTrace] | None" = None,
    ) -> None:
        self._stacks, self.output, self.model_name = dict(stacks), output, model_name
        self._again, self._unembedding, self.edited = again, unembedding, edited
        self._unchanged, self._of_text = unchanged, of_text

    def unchanged_model(self) -> nn.Module:
        """The live model. Raises TraceError where its weights were changed after this pass."""
        self._unchanged.check()
        assert self.model is not None, "a pass without attention has no trace"
        return self.model

    def text(self, index: int) -> "AttachedTrace":
        """The trace of one sentence of the batch, without its neighbours: it runs again.

        Padding stays where it was: some models count it, and have other positions without.

        Raises TraceError for a recorded pass, and for inputs that are more than texts.
        """
        n_texts = len(self.places.at)
        index = check_index("text", index, n_texts)
        if n_texts == 1:
            return self
        if self._of_text is None:
            raise TraceError("A recorded pass has no texts to run; call attached.trace(...).")
        self._unchanged.check()
        return self._of_text(index)

    @property
    def model(self) -> nn.Module | None:
        """The live model; None where no attention ran in this pass."""
        return next((stack.model for stack in self._stacks.values()), None)

    @property
    def places(self) -> Places:
        """Where the positions of the only stack's sentences are."""
        return self.only().places

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the stacks of layers, in the order in which they ran."""
        return tuple(self._stacks)

    def of_stack(self, name: str) -> StackTrace:
        """The layers of one stack."""
        if name not in self._stacks:
            raise TraceError(f"There is no stack {name!r:.80}; there are {self._names}.")
        return self._stacks[name]

    def stack(self, name: str) -> Any:
        """The stack of that name; of the only one, a quantity of all layers: `stack("probs")`."""
        if name in OF_LAYER and name not in self._stacks:
            return self.only().stack(name)
        return self.of_stack(name)

    @property
    def _names(self) -> str:
        return ", ".join(map(repr, self._stacks)) or "none: no attention ran in this pass"

    def only(self) -> StackTrace:
        """The stack of a model that has one."""
        if len(self._stacks) != 1:
            raise TraceError(
                f"This pass has several stacks, {self._names}: read trace.stack(name)[layer, head]."
                if self._stacks
                else "No attention ran in this pass."
            )
        return next(iter(self._stacks.values()))

    def __getitem__(self, where: int | tuple[int, int]) -> AttachedLayer:
        """The quantities of a layer, or of one head of it, of a model with one stack."""
        return self.only()[where]

    def __len__(self) -> int:
        return len(self.only())

    def __iter__(self) -> Iterator[AttachedLayer]:
        return iter(self.only())

    def _at(self, point: Point) -> StackTrace:
        """The stack of a point of an edit."""
        if point.stack and point.stack not in self._stacks:
            raise EditError(
                f"{point}: the trace to read from has no stack {point.stack!r}; it has "
                f"{self._names}."
            )
        return self._stacks[point.stack] if point.stack else self.only()

    def value_at(self, point: Point) -> Tensor:
        """The quantity at a point of an edit; a head of keys is a key-value head."""
        return self._at(point).value_at(point)

    def shape_at(self, point: Point) -> tuple[int, ...]:
        """The shape of the quantity. Raises EditError where this trace lacks the stack or layer."""
        return self._at(point).shape_at(point)

    def places_at(self, point: Point) -> Places:
        """Which of its positions are tokens."""
        return self._at(point).places_at(point)

    @property
    def hidden(self) -> Tensor:
        """The last stream after the final norm, if there is one; what the head reads."""
        stack, found = self.unembedding()
        last = stack[-1].resid_post
        return last if found.norm is None else found.norm(last)

    @property
    def logits(self) -> Tensor:
        """The model's logits, as it returned them."""
        logits = getattr(self.output, "logits", None)
        if logits is None:
            raise AbsentError(
                f"{self.model_name} returned no logits, but {type(self.output).__name__}: read "
                "trace.output."
            )
        return logits

    def unembedding(self) -> tuple[StackTrace, Unembedding]:
        """The stack whose last stream gives the logits, and how it does.

        Raises TraceError with the reason where that was not found in the first run, and where the
        model's weights were changed after this pass.
        """
        self._unchanged.check()
        found = self._unembedding
        if isinstance(found, str):
            raise TraceError(f"{self.model_name}: {found}.")
        for stack in self._stacks.values():
            if stack.ends_in(found.block):
                return stack, found
        raise TraceError(f"{self.model_name}: the stack that gives the logits did not run.")

    def rerun(self, edit: Mapping[Any, object]) -> "AttachedTrace":
        """The trace of the same inputs with these edits; the whole model runs again."""
        if self._again is None:
            raise TraceError(
                "A recorded pass cannot run again; call attached.trace(..., edit=...)."
            )
        return self._again(edit)

    def view(self, *, stack: str | None = None, **options: object) -> Page:
        """The page of a stack, the only one by default; `options` are those of `minibert.viz.view`.

        Raises TraceError where a stack has no page: one whose queries are not its keys.
        """
        shown: Page = opened("view")(self.paged(stack), **options)
        return shown

    def paged(self, stack: str | None = None) -> PageTrace:
        """A stack, the only one by default, as pages read a trace: padding left out."""
        return page_trace(self.only() if stack is None else self.of_stack(stack))

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """probs of each layer of the only stack, with the padding that the model was given."""
        return self.only().attentions

    @property
    def tokens(self) -> Tokens:
        """The tokens of the only stack: words where ids and tokenizer are known, else numbers."""
        return self.only().tokens

    def __repr__(self) -> str:
        return f"AttachedTrace({'; '.join(map(repr, self._stacks.values()))})"
