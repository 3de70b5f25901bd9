"""The model people hold: text in, logits out, or a trace of everything in between."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from minibert.answers.generate import generate
from minibert.answers.predict import predict
from minibert.checkpoint.load import (
    DEFAULT,
    Asked,
    Checkpoint,
    find,
    first_values,
    open_folder,
    open_live,
    save,
)
from minibert.doors import Page, ServedPage, opened
from minibert.errors import (
    CheckpointError,
    MinibertError,
    TokenizationError,
    TraceError,
    check_flag,
    check_index,
    within_memory,
)
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.call import Statistic
from minibert.kernels.registry import check_name
from minibert.layers.bodies import Body, StackedWeights, VocabularyHead, build_head
from minibert.layers.config import Config, Dropout, TaskName
from minibert.layers.dropout import dropping, of_layer
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer import Change
from minibert.layers.linear import Int8Weight, Linear, held, held_by_name, pack, unpack
from minibert.quantities import Hidden, Logits, Pooled, TokenIds, TokenMask
from minibert.text.inputs import Inputs, Named, as_inputs, by_name
from minibert.text.tokens import Tokens
from minibert.text.words import Words, is_text
from minibert.trace.edit import EditMapping, as_point
from minibert.trace.identity import Sources
from minibert.trace.plan import Plan
from minibert.trace.read import Trace
from minibert.trace.record import asked, check_grad, check_keep, record
from minibert.trace.run import embedded, logits_of, run_layers

if TYPE_CHECKING:
    from minibert.text.tokenizer import Tokenizer

    Name = str | Path | nn.Module
else:
    # Anything else is refused by `load` itself, which says what was expected.
    Name = object


Text = str | Words | Sequence[str | Words]
Ids = Tensor | np.ndarray | Sequence[int] | Sequence[Sequence[int]]
Input = Text | Tokens | Ids | Mapping[str, object]


class Model(nn.Module):
    """A model of one of the families with its tokenizer and task head.

    Make one with `minibert.load` or, with random weights, `Model.from_config`. Weights do not
    require gradients until you say so (`model.train()` or `model.requires_grad_()`).
    """

    fresh: tuple[str, ...] = ()
    """Parameters that no checkpoint gave: the head that `load(..., head_seed=0)` made."""

    # What is made in inference mode could not be differentiated through outside of it.
    @torch.inference_mode(False)
    def __init__(
        self, config: Config, *, tokenizer: "Tokenizer | None" = None, name: str = "a model"
    ) -> None:
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        self.name = name
        self.impl = "auto"
        self.body = Body(config)
        self.head = build_head(config)
        self.tie()
        self.eval()

    @classmethod
    def from_config(cls, config: Config, *, seed: int = 0, **options: Any) -> "Model":
        """A model of this shape with random weights: normal, standard deviation 0.02.

        Norms start as the identity and biases at 0, as in Devlin et al. 2019's code.
        """
        model = cls(config, **options)
        parameters = dict(model.named_parameters())
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        with torch.no_grad():
            norms = 0.0 if config.norm_plus_one else 1.0
            for name, values in first_values(shapes, seed, norms=norms):
                parameters[name].copy_(values)
        return model

    def tie(self) -> None:
        """Use the input embedding as the output embedding, if the config says so."""
        decoder = getattr(self.head, "decoder", None)
        if self.config.tied and decoder is not None:
            decoder.weight = self.body.word.weight

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the weights, and so of every quantity of a trace."""
        return self.body.dtype

    @property
    def dropout(self) -> Dropout:
        """The dropout rates of training, from the checkpoint's config.json; they can be set."""
        return self.__dict__.get("_dropout", Dropout())

    @dropout.setter
    def dropout(self, dropout: Dropout) -> None:
        if not isinstance(dropout, Dropout):
            raise CheckpointError(f"dropout={dropout!r:.80}: expected Dropout(head=0.1), say.")
        self.__dict__["_dropout"] = dropout
        self.body.dropout = dropout.embed
        if self.head is not None:
            self.head.dropout = dropout.head

    @property
    def W_E(self) -> Tensor:  # noqa: N802
        """The embedding of words, (vocab, d_embed), with the scale of a family that has one."""
        return self.body.W_E

    @property
    def W_pos(self) -> Tensor | None:  # noqa: N802
        """The embedding of positions, (position, d_embed); None without such a table."""
        return self.body.W_pos

    @property
    def W_U(self) -> Tensor | None:  # noqa: N802
        """The unembedding, (d_model, vocab): logits = hidden·W_U + b_U; None without one.

        It includes the number that a family divides logits by. Models that were not trained to
        continue texts have a layer and a norm between the hidden state and it.
        """
        return self.head.W_U if isinstance(self.head, VocabularyHead) else None

    @property
    def b_U(self) -> Tensor | None:  # noqa: N802
        """The bias of logits, (vocab); None without one."""
        return self.head.b_U if isinstance(self.head, VocabularyHead) else None

    def requires_grad_(self, requires_grad: bool = True) -> "Model":
        """As of any module. Raises CheckpointError for int8 weights, before anything is changed."""
        for one in held(self):
            if isinstance(one, Int8Weight):
                one.requires_grad_(requires_grad)
        return super().requires_grad_(requires_grad)

    def train(self, mode: bool = True) -> "Model":
        """The model, ready to be trained: its weights require gradients, and dropout is on.

        If some weights already require gradients, only those do, so freezing lasts:
        `model.head.requires_grad_()` before `model.train()` trains the head. `model.eval()` turns
        dropout off and leaves the gradients as they are. Dropout acts where logits are computed by
        `model(text)`; traces, explanations and generated texts never drop.
        """
        if mode and not any(one.requires_grad for one in self.parameters()):
            self.requires_grad_()
        return super().train(mode)

    # As for __init__.
    @torch.inference_mode(False)
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Model":
        return super()._apply(fn, recurse)

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> Path:
        """Save config.json, weights and tokenizer for minibert and transformers, in `folder`.

        `dtype` converts the weights on the way. Raises CheckpointError when the folder cannot be
        written or a value does not fit the dtype.
        """
        return save(
            folder,
            self.config,
            held_by_name(self),
            dropout=self.dropout,
            tokenizer=self.tokenizer,
            dtype=dtype,
        )

    def _layer_changes(self, layer: int) -> Mapping[str, Change]:
        """What dropout does to the quantities of a layer, in training."""
        return of_layer(self.dropout) if self.training else {}

    @property
    def weights(self) -> StackedWeights:
        """All layers' weights by name: `model.weights["W_Q"]`, (layer, head, d_model, d_head)."""
        return StackedWeights(self.body, self.head)

    def unpack(self) -> None:
        """Drop the packed copies that `minibert.load` made; the weights are as they were.

        A layer is unpacked by itself when its weight or bias is handed out, as by `parameters()`
        or `state_dict()`, so that no change of a weight goes unseen.
        """
        unpack(self)

    @property
    def is_packed(self) -> bool:
        """True when some linear layer multiplies by a packed copy of its weight."""
        return any(isinstance(one, Linear) and one.is_packed for one in self.modules())

    def tokenize(self, text: Text, pair: Text | None = None, *, truncate: bool = False) -> Tokens:
        """The tokens of a text, a pair of texts, or a batch of either, special tokens included.

        Raises TokenizationError for empty text, for text longer than the model's positions
        unless `truncate`, and for a model without a tokenizer.
        """
        check_flag("truncate", truncate, TokenizationError)
        if self.tokenizer is None:
            raise TokenizationError(
                f"{self.name} has no tokenizer (no tokenizer.json or vocab.txt beside its "
                "weights): save one there, as transformers' AutoTokenizer.from_pretrained(...)"
                ".save_pretrained(folder) does, or give ids in place of text, as "
                'model.trace(**tokenizer(text, return_tensors="pt")) does.'
            )
        return self.tokenizer(text, pair, truncate=truncate, max_positions=self.config.n_positions)

    def forward(
        self, text: Input | None = None, pair: Text | None = None, **named: Unpack[Named]
    ) -> Logits:
        """The logits of the task head, or the last hidden state of a model without one.

        Takes text, Tokens, ids, or what transformers takes, by its names: docs/inputs.md.
        """
        inputs = self.inputs(text, pair, **named)
        return self._logits(inputs, self.allowed(inputs.ids, inputs.mask))

    def _logits(self, inputs: Inputs, allowed: AllowedKeys) -> Logits:
        if not self.training:
            return self._computed(inputs, allowed)
        with dropping():
            return self._computed(inputs, allowed)

    def _computed(self, inputs: Inputs, allowed: AllowedKeys) -> Logits:
        embed = embedded(self.body, inputs, allowed)
        evaluation = Evaluation(allowed, self.impl)
        hidden = run_layers(self.body, embed, evaluation, edits=self._layer_changes)
        return logits_of(self, self.body.final(hidden), inputs, allowed)

    def packed(
        self, text: Input | None = None, pair: Text | None = None, **named: Unpack[Named]
    ) -> tuple[Tensor, ...]:
        """The logits of each sentence of a batch, computed without its padding.

        Each is (position, vocab), (position, label) or (label): the same as a padded batch gives
        for its real tokens, up to rounding; without a task head, the last hidden state.
        """
        inputs = self.inputs(text, pair, **named)
        allowed = inputs.packed(self.config)
        logits = self._logits(inputs, allowed)
        if as_point("logits", self.config).of_text:
            return tuple(logits)
        return tuple(logits[0].split(list(allowed.packed or ())))

    @within_memory
    def trace(
        self,
        text: Input | None = None,
        pair: Text | None = None,
        *,
        keep: Collection[str] = (),
        until: int | None = None,
        edit: EditMapping | None = None,
        grad: bool = False,
        packed: bool = False,
        statistics: Iterable[Statistic] = (),
        impl: str | None = None,
        **named: Unpack[Named],
    ) -> Trace:
        """Every quantity of one forward pass, read by name: `trace[layer, head].probs`.

        `keep=("scores", "probs")` stores these matrices during the pass instead of computing them
        when they are read. Use it to read all of them; it takes (head x query x key) memory a
        layer. `until=5` stops before layer 5's attention: the layers up to 5 can be read,
        nothing above and no logits, and only what is read of layer 5 is computed.

        `edit={("z", 9, 6): zero}` writes quantities instead of reading them.
        `trace.rerun(edit)` does the same later, without computing the layers below again. An edited
        layer runs without the hooks on the layer, attention or MLP as a whole.

        `grad=True` makes a trace that numbers can be differentiated in: compute one from it, call
        `trace.backward(number)`, and read `trace.grad[layer, head].probs`. The trace may be made
        under `torch.no_grad()`, the number may not; no weight gets a gradient. The pass holds
        O(position) memory, and (head x query x key) in layers with an edit of scores, probs or z.

        `packed=True` lays the sentences one after the other, so that no padding is computed; read
        them one by one with `trace.text(3)[layer, head].probs`.

        `statistics=("entropy", "received", ("offset_mass", (-1, 1)))` makes the kernel that
        computes attention return these numbers about its rows in the same pass, without matrices:
        `trace[layer].statistics.entropy`. Their names are those of `minibert.attend(want=...)`; the
        keys of key_mass are a sentence's own positions, -1 its last token.

        `impl` names the implementation of attention for this trace, in place of the model's.

        A trace made under `torch.autocast` computes with autocast wherever it is read, and a trace
        made outside it never casts.

        Raises TokenizationError, TraceError or EditError before anything is computed.
        """
        check_flag("packed", packed, TraceError)
        check_flag("grad", grad, TraceError)
        check_keep(keep, packed=packed)
        check_grad(grad, until, held(self))
        if until is not None:
            until = check_index("layer", until, self.config.n_layers)
        inputs = self.inputs(text, pair, **named)
        allowed = inputs.packed(self.config) if packed else self.allowed(inputs.ids, inputs.mask)
        evaluation = asked(statistics, allowed, self.impl if impl is None else impl)
        trace = Trace(self, inputs, evaluation, until=until, grad=grad)
        edits = {} if edit is None else edit
        plan = Plan.of(
            edits, self.config, allowed, dtype=self.dtype, until=until, sources=Sources(self)
        )
        record(trace, keep=keep, plan=plan)
        return trace

    predict = predict
    generate = generate

    def live(self, *, height: int = 720, features: object = None) -> Page | ServedPage:
        """A page that runs this model, for a cell of a notebook: type, and see attention follow.

        If the engine of a page can run the model and the cell stays small (at most 8 MB; 4.8 for an
        embedded model), the page is the output itself. It then needs no kernel and no network, also
        in a saved or exported notebook. Otherwise this process serves the page to a browser on this
        machine until `close()` (extra `serve`). Both contain a picture, which is shown where
        neither can run. `features` (`minibert.features.load`) lets the page split scores into
        features.
        """
        page: Page | ServedPage = opened("live")(self, height, features)
        return page

    def pool(self, hidden: Hidden) -> Pooled | None:
        """tanh(W·hidden[0] + b); None where the body has no pooler."""
        pooler = self.body.pooler
        return None if pooler is None else pooler(hidden[:, 0], activation="tanh")

    def inputs(
        self, text: Input | None, pair: Text | None = None, **named: Unpack[Named]
    ) -> Inputs:
        """The batch that a call describes, checked against the model's limits.

        Raises TokenizationError for what cannot be read: empty or too long input, ids outside
        the vocabulary, segments the model does not have.
        """
        given = by_name(text, pair, named, self.trace)
        if is_text(given):
            given = self.tokenize(given, pair)
        elif pair is not None:
            raise TokenizationError("A second text goes with a first text, not with ids or Tokens.")
        device = self.body.device
        if device.type == "meta":
            raise CheckpointError(
                f"The weights of {self.name} are on the meta device, where tensors have no values, "
                "so nothing can be computed. Load the model again with minibert.load."
            )
        return as_inputs(given, self.config, self.tokenizer, device, self.name)

    def allowed(self, ids: TokenIds, mask: TokenMask | None = None) -> AllowedKeys:
        """Which keys a query of these ids may attend to."""
        return AllowedKeys.of(mask, causal=self.config.causal, ids=ids)

    def task_logits(self, hidden: Hidden, inputs: Inputs, pooled: Pooled | None = None) -> Tensor:
        """The output of the task head for the last hidden state; the state itself without a head.

        `pooled` replaces the output of the pooler.
        """
        if self.head is None:
            return hidden
        if pooled is None:
            pooled = self.pool(hidden)
        return self.head(hidden, pooled, inputs.ids, inputs.mask)


# What is made in inference mode could not be differentiated through outside of it.
@torch.inference_mode(False)
def load(
    name: Name | None = None,
    *,
    task: TaskName | None = None,
    labels: Sequence[str] | None = None,
    head_seed: int | None = None,
    dtype: torch.dtype | Literal["auto"] | None = None,
    device: torch.device | str | None = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    allow_unexpected: bool = False,
    impl: str = "auto",
    weights: Literal["int8"] | None = None,
) -> Model:
    """The model of that name, ready to run.

    `name` is an embedded model (none given: tiny-bert), a folder with a Hugging Face checkpoint,
    a Hub id such as "bert-base-uncased", or a transformers model object, whose weights are
    shared and not copied. An embedded name wins over a folder of that name, which is "./name";
    a folder wins over a Hub id.

    task       a task head other than the one its config.json names; "none" for only the body
    labels     names of the classes, in place of those of its config.json
    head_seed  makes a fresh task head with random weights from this seed, for a checkpoint without
               one, or in place of its own: `model.fresh` names them. Train it before use
    dtype      float64, float32, bfloat16 or float16. When not given, a model of up to a billion
               weights is float32 (float64 where all its weights are), so that its numbers are
               exact; a larger one has the type of its file, as transformers gives every model:
               Llama-3-8B is bfloat16 and takes 16 GB. "auto" is bfloat16 where the file is and a
               rule says that it is faster (`minibert models --backends`), else float32
    device     the CPU when not given, or where the transformers object has its weights. Weights
               of a file go to another device one by one
    revision, cache_dir, offline: of the Hub; offline uses only the cache
    allow_unexpected: leave out tensors that belong to no known part of the family
    impl       the implementation of attention, one of `minibert.implementations()`; "auto" takes
               the fastest that gives what a call needs
    weights    "int8" rounds the matrices of attention, MLPs and unembedding to 8 bits, with a scale
               for each row, on a CPU that multiplies those faster (docs/speed.md#int8-weights);
               everything else, and every quantity, is float32. They cannot be trained or saved

    Weights of a file are packed where the rule of the linear back ends says so (`model.unpack()`
    undoes it). Weights that keep their type are mapped into memory, not read into it, so the system
    can take their pages back when it needs memory. While the model lives, replace the file (write
    another and rename it, as `save` does); never write into it or truncate it. Every weight is
    checked once for NaN and infinity.
    Raises CheckpointError when something cannot be found, fetched, read, or does not fit, and
    AttentionError for an unknown implementation; nothing is half loaded.
    """
    asked = Asked(task, labels, head_seed, dtype, allow_unexpected, weights)
    check_name(impl)
    check_flag("offline", offline, CheckpointError)
    chosen = None if device is None else device_of(device, CheckpointError)
    if isinstance(name, nn.Module):
        model = _build(open_live(name, asked))
        model.impl = impl
        moved = chosen is not None and any(p.device != chosen for p in model.parameters())
        return model.to(chosen) if moved else model
    if weights is not None and chosen is not None and chosen.type != "cpu":
        raise CheckpointError(
            f'weights="int8" with device={device!r}: they are multiplied on the CPU. Leave one of '
            "the two out."
        )
    folder = find(name, revision=revision, cache_dir=cache_dir, offline=offline)
    shown = DEFAULT if name is None else str(name)
    model = _build(open_folder(folder, asked, name=shown), chosen)
    model.impl = impl
    if weights is None:
        pack(model)
    return model


def from_transformers(model: Any, **options: Any) -> Model:
    """Make a model of minibert that shares the weights of a transformers model.

    `options` are those of `Asked`. Raises CheckpointError for a family or head minibert does not
    know.
    """
    return _build(open_live(model, Asked(**options)))


def _build(checkpoint: Checkpoint, device: torch.device | None = None) -> Model:
    # Without values: each parameter is put in as it is read, and never allocated twice.
    with torch.device("meta"):
        model = Model(checkpoint.config, tokenizer=checkpoint.tokenizer, name=checkpoint.name)
    checkpoint.fill(model, device)
    model.dropout = checkpoint.dropout
    model.fresh = tuple(checkpoint.fresh(dict(model.named_parameters())))
    return model


def device_of(device: Any, error: type[MinibertError]) -> torch.device:
    """The device, once a tensor could be put there. Raises `error` where none can."""
    try:
        return torch.empty(0, device=torch.device(device)).device
    # Each kind of device refuses in its own way, CUDA with an AssertionError.
    except Exception as wrong:
        reason = (str(wrong).splitlines() or [type(wrong).__name__])[0]
        raise error(
            f"device={device!r} cannot be used ({reason}); expected a device of this machine, "
            'such as "cpu" or "cuda:0".'
        ) from wrong
