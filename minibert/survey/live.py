"""One stack of an attached model as a survey reads a model: its sizes, tokens, and what runs it.

A survey of an attached model gives the segments to the live model unchanged and looks at each
attention call of one stack. Segments of equal length go together, so there is no padding. One text
is run first to find which stacks have its tokens as queries and as keys.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minibert.attached.attach import Attached
from minibert.attached.call import Call
from minibert.attached.read import AttachedTrace, StackTrace
from minibert.attached.tokenizer import LiveTokenizer
from minibert.errors import SurveyError, TokenizationError
from minibert.model import Model
from minibert.quantities import TokenIds
from minibert.survey.sample_texts import SAMPLE_PAIRS
from minibert.text.inputs import Inputs, in_range
from minibert.text.tokens import Tokens
from minibert.trace.identity import weights_digest

Visit = Callable[[int, Call], None]
#: What models raise for inputs that they do not take.
FAILURES = (TypeError, ValueError, RuntimeError, AttributeError, LookupError)


@dataclass(frozen=True)
class StackSizes:
    """What a survey asks of a config."""

    n_layers: int
    n_heads: int
    n_positions: int
    causal: bool
    vocab_size: int
    pad_id: int | None


class AttachedStack:
    """A stack of a live model whose queries and keys are the tokens of the text.

    `stack` chooses among several; `longest` gives the tokens of a segment where the model does not
    say how many positions it has. Raises SurveyError where the model cannot run on a text alone, or
    has no such stack.
    """

    def __init__(self, attached: Attached, stack: str | None, longest: int | None) -> None:
        self.attached, self.name = attached, attached.name
        self.model: nn.Module = attached.model
        if any(module.training for module in self.model.modules()):
            raise SurveyError(
                f"{self.name} is in training mode, where dropout makes each pass different. Call "
                "hf_model.eval() first."
            )
        self.tokenizer = _tokenizer(attached)
        weight = next(self.model.parameters(), torch.empty(0))
        self.dtype, self.device = weight.dtype, weight.device
        ids = self._sample()
        trace = self._tried(ids)
        one = _chosen(trace, stack, ids.shape[1], self.name)
        self.stack, self.modules = one.name, tuple(name for name, _ in one.calls)
        self.decodes = one.calls[0][1].query.shape[2] < ids.shape[1]
        self.calls = tuple(call for _, call in one.calls)
        self.impl = self.calls[0].implementation
        self.config = StackSizes(
            len(one),
            self.calls[0].n_heads,
            _positions(attached, longest),
            _causal(self.calls),
            _vocabulary(self.model, self.tokenizer),
            getattr(getattr(self.model, "config", None), "pad_token_id", None),
        )
        self.body = self._body(ids)

    def run(self, ids: TokenIds, kinds: TokenIds, visit: Visit) -> None:
        """Run a batch of equal lengths; `visit(layer, call)` gets the call of each layer.

        Raises SurveyError where the stack does not read the tokens as they are.
        """
        ids, kinds = ids.to(self.device), kinds.to(self.device)

        def checked(layer: int, call: Call) -> None:
            batch_size, _, n_queries, _ = call.query.shape
            found = (batch_size, n_queries, call.key.shape[2])
            if call.untrue or layer >= self.config.n_layers or found != (*ids.shape, ids.shape[1]):
                raise SurveyError(
                    f"{self.name}, {self.stack} {layer}: for {tuple(ids.shape)} tokens there are "
                    f"(batch, query, key) {found}. {call.untrue}"
                )
            visit(layer, call)

        inputs = self._inputs(ids, kinds)
        count = self.attached.visit(self.stack, checked, lambda: self.body(**inputs))
        if count != self.config.n_layers:
            raise SurveyError(
                f"{self.name}: {self.stack} made {count} calls of attention for {tuple(ids.shape)} "
                f"tokens, and {self.config.n_layers} for the first text. Layers that are left out "
                "have no row in a table."
            )

    def inputs(self, given: Any) -> Inputs:
        """Tokens, or ids, which the model can read; TokenizationError where it cannot."""
        tokens = given
        if not isinstance(given, Tokens):
            tokens = Tokens.from_ids(given, tokenizer=self.tokenizer)
        limit, vocabulary = self.config.n_positions, f"the vocabulary of {self.name}"
        if tokens.ids.shape[1] > limit:
            raise TokenizationError(
                f"{tokens.ids.shape[1]} tokens are more than the {limit} positions of {self.name}; "
                "shorten the text."
            )
        in_range(tokens.ids, self.config.vocab_size, "Token id", vocabulary)
        return Inputs.of(tokens)

    def identity(self) -> dict[str, object]:
        """Name, stack, config, type and digest of the weights, ready for JSON."""
        config: Any = getattr(self.model, "config", None)
        told = {} if config is None else json.loads(config.to_json_string(use_diff=False))
        # Where the model lies on a machine is nobody else's business.
        told.pop("_name_or_path", None)
        stack = {"name": self.stack, "modules": list(self.modules)}
        if self.decodes:
            stack["decoder_input_ids"] = "the tokens of the text, which the encoder reads too"
        return {
            "name": self.name,
            "attached": f"{type(self.model).__module__}.{type(self.model).__qualname__}",
            "stack": stack,
            "problems": list(self.attached.report.problems),
            "config": asdict(self.config) | {"transformers": told},
            "dtype": str(self.dtype).removeprefix("torch."),
            "weights": weights_digest(self.model),
        }

    def _inputs(self, ids: Tensor, kinds: Tensor) -> dict[str, Tensor]:
        """What the model's own tokenizer gives it, and the same ids for a decoder."""
        names: Sequence[str] = self.attached.tokenizer.model_input_names
        optional = {"attention_mask": torch.ones_like(ids), "token_type_ids": kinds}
        inputs = {"input_ids": ids} | {n: one for n, one in optional.items() if n in names}
        both = getattr(getattr(self.model, "config", None), "is_encoder_decoder", False)
        return inputs | ({"decoder_input_ids": ids} if both else {})

    def _sample(self) -> Tensor:
        """The ids of one text, at least eight."""
        try:
            ids = self.tokenizer(" ".join(SAMPLE_PAIRS[1])).ids
        except TokenizationError as error:
            raise SurveyError(f"{self.name}: {error}") from error
        return ids.repeat(1, -(-8 // ids.shape[1]))[:, :16].to(self.device)

    def _tried(self, ids: Tensor) -> AttachedTrace:
        """A trace of one text; a decoder reads one token fewer, which tells the stacks apart."""
        inputs: dict[str, Any] = dict(self._inputs(ids, torch.zeros_like(ids)))
        if "decoder_input_ids" in inputs:
            inputs["decoder_input_ids"] = ids[:, :-1]
        try:
            return self.attached.trace(**inputs)
        except FAILURES as error:
            raise SurveyError(
                f"{self.name} cannot read a text alone ({type(error).__name__}: {error!s:.300}). A "
                "survey gives input_ids, and what else the tokenizer makes of a text. "
                + (_no_text(self.model) or "Attach to the part of the model that reads text.")
            ) from error

    def _body(self, ids: Tensor) -> nn.Module:
        """The model without its head, where that gives this stack the same z."""
        inputs = self._inputs(ids, torch.zeros_like(ids))

        def outputs(module: nn.Module) -> list[Tensor]:
            found: list[Tensor] = []

            def keep(_: int, call: Call) -> None:
                found.append(call.out)

            self.attached.visit(self.stack, keep, lambda: module(**inputs))
            return found

        body: nn.Module = getattr(self.model, "base_model", self.model)
        wanted = outputs(self.model)
        try:
            found = outputs(body)
        except FAILURES:
            # Some take other inputs than the whole.
            return self.model
        same = len(found) == len(wanted) and all(map(torch.equal, found, wanted))
        return body if same else self.model


def _tokenizer(attached: Attached) -> LiveTokenizer:
    if attached.tokenizer is None:
        if instead := _no_text(attached.model):
            raise SurveyError(f"{attached.name} cannot be surveyed. {instead}")
        raise SurveyError(
            f"{attached.name} was attached to without a tokenizer, which a survey of texts needs: "
            "minibert.attach(hf_model, tokenizer=AutoTokenizer.from_pretrained(...))."
        )
    try:
        return LiveTokenizer(attached.tokenizer)
    except TokenizationError as error:
        raise SurveyError(f"{attached.name}: {error}") from error


def _no_text(model: object) -> str:
    """What to do with a model of pictures or sounds; "" for one whose main input is a text."""
    reads = getattr(model, "main_input_name", "input_ids")
    if reads == "input_ids":
        return ""
    return (
        f"Its main input is {reads}, and patterns and measures are about the tokens of texts. Look "
        f"at one input at a time: attached.trace({reads}=...).view()."
    )


def _chosen(trace: AttachedTrace, stack: str | None, n_tokens: int, model: str) -> StackTrace:
    """The stack that is asked for, or the only one."""
    why = {name: _problem(trace.of_stack(name), n_tokens) for name in trace.stacks}
    told = "; ".join(
        f"{name!r}" + (f", which cannot be surveyed: {problem}" if problem else "")
        for name, problem in why.items()
    )
    if stack is None and len(why) > 1:
        raise SurveyError(f"{model} has several stacks; name one with stack=: {told}.")
    name = next(iter(why)) if stack is None else stack
    if name not in why:
        raise SurveyError(f"stack={name!r:.80}: {model} has {told}.")
    if why[name]:
        raise SurveyError(
            f"{model}, stack {name!r} cannot be surveyed: {why[name]}. Read it a text at a time: "
            f"attached.trace(...).stack({name!r})[layer].probs; minibert.viz.head_view("
            "cross_attention=...) draws cross-attention."
        )
    return trace.of_stack(name)


def _problem(one: StackTrace, n_tokens: int) -> str:
    """Why there are no tables of a stack; "" where there are."""
    calls = [call for _, call in one.calls]
    sizes = sorted({(call.query.shape[2], call.key.shape[2]) for call in calls})
    if sizes not in ([(n_tokens, n_tokens)], [(n_tokens - 1, n_tokens - 1)]):
        return (
            f"its queries and keys are {' and '.join(f'{q} x {k}' for q, k in sizes)} positions, "
            f"and not both the {n_tokens} tokens of a text"
        )
    if untrue := [f"layer {n}: {call.untrue}" for n, call in enumerate(calls) if call.untrue]:
        return "; ".join(untrue)
    heads = sorted({call.n_heads for call in calls})
    if len(heads) > 1:
        return f"its layers have {', '.join(map(str, heads))} heads, and a table has as many in all"
    return ""


def _causal(calls: Sequence[Call]) -> bool:
    """True where no query of any layer sees a key after it."""
    allowed = [call.mask_rows().allowed for call in calls]
    n = calls[0].query.shape[2]
    return all(
        one is not None and not bool(one.expand(*one.shape[:-2], n, n).triu(1).any())
        for one in allowed
    )


def _vocabulary(model: Any, tokenizer: LiveTokenizer) -> int:
    """The number of ids that the model knows; the tokenizer's where the model does not say."""
    try:
        return int(model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError):
        return tokenizer.vocab_size


def _positions(attached: Attached, longest: int | None) -> int:
    """The tokens that the model sees at once."""
    model: nn.Module = attached.model
    config = getattr(model, "config", None)
    of_text = getattr(config, "get_text_config", lambda: config)()
    limits = [getattr(of_text, "max_position_embeddings", None)]
    for name, module in model.named_modules():
        # RoBERTa's positions begin after that of padding.
        of_positions = isinstance(module, nn.Embedding) and "position" in name.split(".")[-1]
        if of_positions and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    known = [one for one in limits if isinstance(one, int) and one > 0]
    # Where a tokenizer has no limit, transformers writes a number of thirty digits.
    of_tokenizer = getattr(attached.tokenizer, "model_max_length", 10**30)
    limit = min(known) if known else of_tokenizer if of_tokenizer < 10**9 else longest
    if limit is None:
        raise SurveyError(
            f"{attached.name} does not say how many tokens it can read: give longest=, the "
            "tokens of a segment."
        )
    return int(limit)


#: What a survey reads: a loaded model, or one stack of a live one.
Surveyable = Model | AttachedStack
Given = Model | Attached | AttachedStack
