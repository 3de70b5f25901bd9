"""One frozen description of a model: its family, its sizes and its choices.

What sets a family apart is its task heads, and its choices among those of `Config`. A choice that
is missing in its entry is Config's own default. A config.json may change it where the family allows
that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from dataclasses import field as declared
from typing import TYPE_CHECKING, Any, Literal, get_args

from minibert.errors import CheckpointError, did_you_mean
from minibert.layers.rotary import Rotary

Task = Literal[
    "none", "masked-lm", "next-sentence", "pre-training", "causal-lm", "sequence-classification",
    "token-classification", "question-answering",
]  # fmt: skip
TASKS: tuple[str, ...] = get_args(Task)
if TYPE_CHECKING:
    TaskName = Task
else:
    # Checked with an error that lists them; a run-time type checker must not come before it.
    TaskName = str
_CLASSES = TASKS[5:]
_DECODER = ("none", "causal-lm", *_CLASSES)


@dataclass(frozen=True)
class FamilyChoices:
    """The task heads that a family has, how they are made, what it fixes, whether it may be causal.

    narrow_head          the vocabulary head is as wide as the embeddings, not as the stream
    head_activation      that of the vocabulary head, whatever the config says; None: the config's
    first_activation     that of the layer between the first token and the classes of a text; None:
                         there is no such layer, or a pooler in its place
    classifier_layer     a layer and a norm stand in front of every classifier
    discriminates        pre-training tells whether each token was replaced
    orders_sentences     the second head of pre-training has as many outputs as there are labels
    plain_head           the vocabulary head is the output embedding alone, with its bias
    """

    tasks: tuple[str, ...]
    choices: Mapping[str, object] = declared(default_factory=dict)
    causal: bool | None = None
    """True: always; False: never; None: as its config says."""
    narrow_head: bool = False
    head_activation: str | None = None
    first_activation: str | None = None
    classifier_layer: bool = False
    discriminates: bool = False
    orders_sentences: bool = False
    plain_head: bool = False


_EMBED_NORM = {"norm_place": "after", "embed_norm": True}
_NO_BIAS = {"query_bias": False, "output_bias": False, "mlp_bias": False, "norm_bias": False}
_LLAMA = {
    "norm": "rms",
    "norm_place": "before",
    "final_norm": True,
    "positions": "rotary",
    "gated": True,
    **_NO_BIAS,
}
_GEMMA = _LLAMA | {"norm_plus_one": True, "embed_scaled": True}
_GEMMA_2 = _GEMMA | {"norm_place": "both"}

FAMILIES: dict[str, FamilyChoices] = {
    "minibert": FamilyChoices(
        ("none", "masked-lm", "causal-lm", "token-classification"),
        {"norm_place": "before", "final_norm": True},
        plain_head=True,
    ),
    "bert": FamilyChoices(TASKS, _EMBED_NORM),
    "roberta": FamilyChoices(
        ("none", "masked-lm", "causal-lm", *_CLASSES),
        _EMBED_NORM,
        head_activation="gelu",
        first_activation="tanh",
    ),
    "distilbert": FamilyChoices(
        ("none", "masked-lm", *_CLASSES), _EMBED_NORM, causal=False, first_activation="relu"
    ),
    "electra": FamilyChoices(
        ("none", "masked-lm", "pre-training", "causal-lm", *_CLASSES),
        _EMBED_NORM,
        narrow_head=True,
        head_activation="gelu",
        first_activation="gelu",
        discriminates=True,
    ),
    "albert": FamilyChoices(
        ("none", "masked-lm", "pre-training", *_CLASSES),
        _EMBED_NORM,
        causal=False,
        narrow_head=True,
        orders_sentences=True,
    ),
    "gpt2": FamilyChoices(_DECODER, {"norm_place": "before", "final_norm": True}, causal=True),
    "gpt_neox": FamilyChoices(
        _DECODER,
        {"norm_place": "before", "final_norm": True, "positions": "rotary", "parallel": True},
        causal=True,
    ),
    "llama": FamilyChoices(_DECODER, _LLAMA, causal=True),
    "mistral": FamilyChoices(_DECODER, _LLAMA, causal=True),
    "qwen2": FamilyChoices(_DECODER, _LLAMA | {"query_bias": True}, causal=True),
    "qwen3": FamilyChoices(_DECODER, _LLAMA | {"query_key_norm": "head"}, causal=True),
    "gemma": FamilyChoices(_DECODER[:-1], _GEMMA, causal=True),
    "gemma2": FamilyChoices(_DECODER[:-1], _GEMMA_2, causal=True),
    "gemma3": FamilyChoices(
        ("none", "causal-lm", "sequence-classification"),
        _GEMMA_2 | {"query_key_norm": "head"},
        causal=True,
    ),
    "granite": FamilyChoices(("none", "causal-lm"), _LLAMA, causal=True),
    "phi3": FamilyChoices(_DECODER[:-1], _LLAMA, causal=True),
    "olmo2": FamilyChoices(
        ("none", "causal-lm", "sequence-classification"),
        _LLAMA | {"norm_place": "output", "query_key_norm": "width"},
        causal=True,
    ),
    "modernbert": FamilyChoices(
        ("none", "masked-lm", *_CLASSES),
        {
            "norm_place": "before",
            "embed_norm": True,
            "final_norm": True,
            "first_norm": False,
            "positions": "rotary",
            "gated": True,
            **_NO_BIAS,
        },
        causal=False,
        classifier_layer=True,
    ),
}


def discriminates(family: str, task: str) -> bool:
    """True where the head tells whether each token was replaced (ELECTRA's pre-training)."""
    return task == "pre-training" and FAMILIES[family].discriminates


def predicts_tokens(family: str, task: str) -> bool:
    """True where the head has one logit a vocabulary entry at each position."""
    return task in ("masked-lm", "causal-lm", "pre-training") and not discriminates(family, task)


def check_task(family: str, task: str) -> None:
    """Raise CheckpointError for an unknown family, and when it has no such task head."""
    if not isinstance(family, str) or family not in FAMILIES:
        guess = did_you_mean(family, FAMILIES)
        raise _unlike("family", family, f"one of {', '.join(FAMILIES)}{guess}")
    tasks = FAMILIES[family].tasks
    if not isinstance(task, str) or task not in tasks:
        raise CheckpointError(
            f"{family} has no task head {task!r:.200}{did_you_mean(task, tasks)}; it has "
            f"{', '.join(tasks)}. See docs/families.md#the-families"
        )


ACTIVATIONS = ("gelu", "gelu_tanh", "gelu_fast", "quick_gelu", "relu", "silu", "tanh")
# Far above any model, and low enough that no shape made of two of them overflows.
_LARGEST = {"n_layers": 2**9}
_LARGEST_SIZE = 2**28
LARGEST_LABELS = 2**20
# The default of a choice that families.py makes.
OF_FAMILY: Any = None
_CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("layer", "rms"),
    "norm_place": ("after", "before", "output", "both", "none"),
    "positions": ("learned", "rotary", "shortformer", "none"),
    "query_key_norm": ("none", "head", "width"),
    "pooling": ("first", "mean"),
}
CHOICES_BY_DEFAULT: dict[str, object] = {
    "norm": "layer",
    "norm_place": "after",
    "norm_bias": True,
    "norm_plus_one": False,
    "embed_norm": False,
    "embed_scaled": False,
    "first_norm": True,
    "final_norm": False,
    "parallel": False,
    "positions": "learned",
    "query_key_norm": "none",
    "gated": False,
    "query_bias": True,
    "output_bias": True,
    "mlp_bias": True,
    "decoder_bias": True,
}


@dataclass(frozen=True)
class Config:
    """The sizes and choices of one model. All counts are positive; d_mlp is 0 without MLPs.

    A choice that is not given is that of the family. In the family "minibert" all of them are free,
    as in `Config("minibert", "causal-lm", vocab_size=50, n_positions=32, n_layers=2, n_heads=4,
    d_model=64, d_mlp=0, norm_place="none", final_norm=False)`; the others are those of published
    models.

    Raises CheckpointError for sizes and choices that do not go together.
    """

    family: str
    task: str
    vocab_size: int
    n_positions: int
    """The longest input in tokens (RoBERTa's two reserved rows are not counted)."""
    n_layers: int
    n_heads: int
    d_model: int
    d_mlp: int
    """The width inside the MLPs; 0: the layers have attention alone."""
    model_type: str = ""
    n_kv_heads: int = 0
    """Heads that keys and values have; each is read by n_heads / n_kv_heads heads (Ainslie et al.
    2023). 0 means n_heads."""
    d_head: int = 0
    """The width of one head. 0 means d_model / n_heads."""
    d_embed: int = 0
    """Width of the embeddings; differs from d_model in ELECTRA and ALBERT. 0 means d_model."""
    n_segments: int = 0
    n_layer_groups: int = 0
    """Sets of weights that the layers share (ALBERT). 0 means one a layer."""
    position_offset: int = 0
    """RoBERTa counts positions from padding_idx + 1."""
    pad_id: int | None = None
    end_ids: tuple[int, ...] = ()
    """The tokens that end a generated text."""
    norm_eps: float = 1e-12
    activation: str = "gelu"
    causal: bool = OF_FAMILY
    """Not given: as the family always is; of a family that may be both, True for causal-lm."""
    tied: bool = True
    """The output embedding is the input embedding."""
    d_vocab_out: int = 0
    """Logits of each position, in the family "minibert"; 0: one a vocabulary entry."""
    pooler: bool = False
    labels: tuple[str, ...] = ()
    problem_type: str = ""
    """What a classification head answers: single_label_classification ("" means this one),
    multi_label_classification or regression."""
    scale_by_layer: bool = False
    """Scores are divided by layer + 1 as well (GPT-2's scale_attn_by_inverse_layer_idx)."""
    query_scalar: float | None = None
    """Scores are divided by its square root; None means d_head (Vaswani et al. 2017, section
    3.2.1)."""
    score_multiplier: float | None = None
    """Scores are query·key times this, in place of 1/sqrt(d_head) (Granite)."""
    embed_multiplier: float = 1.0
    """The embeddings are multiplied by it (Granite)."""
    residual_multiplier: float = 1.0
    """What attention and MLP add to the stream is multiplied by it (Granite)."""
    logits_divisor: float = 1.0
    """The logits of a vocabulary head are divided by it (Granite)."""
    attention_soft_cap: float | None = None
    """Scores are squeezed into −cap … cap (Gemma Team 2024, section 2)."""
    logit_soft_cap: float | None = None
    """The logits of a vocabulary head likewise."""
    windows: tuple[int, ...] = ()
    """One a layer: how many positions a token sees at most, its own included; to both sides of a
    model that is not causal, that many − 1 in all. 0 means all. () means all in every layer."""
    rotary: Rotary | None = None
    local_rotary: Rotary | None = None
    """Of layers with a window. None means `rotary`."""
    norm: str = OF_FAMILY
    """layer (LayerNorm) | rms (RMSNorm)."""
    norm_place: str = OF_FAMILY
    """Where the norms of attention and MLP stand: after the sum with the stream (BERT) | before
    the block (GPT-2) | at the block's output, before the sum (OLMo 2) | both (Gemma 2) | none."""
    norm_bias: bool = OF_FAMILY
    norm_plus_one: bool = OF_FAMILY
    """The norm scales by 1 + weight (Gemma)."""
    embed_norm: bool = OF_FAMILY
    """The embeddings go through a norm."""
    embed_scaled: bool = OF_FAMILY
    """The embeddings are multiplied by sqrt(d_model) (Gemma)."""
    first_norm: bool = OF_FAMILY
    """The first layer has a norm before attention (not so in ModernBERT)."""
    final_norm: bool = OF_FAMILY
    """What leaves the last layer goes through a norm."""
    parallel: bool = OF_FAMILY
    """MLP and attention read the same stream and are added to it together (GPT-NeoX)."""
    positions: str = OF_FAMILY
    """learned (a table, added to the embeddings) | rotary | shortformer (the table is added to what
    queries and keys read alone; Press et al. 2021, section 4) | none."""
    query_key_norm: str = OF_FAMILY
    """Queries and keys go through a norm: none | head (of each head) | width (of all heads)."""
    gated: bool = OF_FAMILY
    """The MLP is (activation(x·W_gate) * x·W_in)·W_out (Shazeer 2020)."""
    query_bias: bool = OF_FAMILY
    """query, key and value have biases."""
    output_bias: bool = OF_FAMILY
    """W_O has a bias."""
    mlp_bias: bool = OF_FAMILY
    decoder_bias: bool = OF_FAMILY
    """The output embedding has a bias, where the family's has one."""
    head_activation: str = ""
    """Of the layer in front of ModernBERT's task heads. "" means the activation."""
    head_bias: bool = True
    """That layer has a bias."""
    pooling: str = "first"
    """Which hidden state ModernBERT's sequence classification reads: first | mean."""

    def __post_init__(self) -> None:
        check_task(self.family, self.task)
        family = FAMILIES[self.family]
        for field, default in (CHOICES_BY_DEFAULT | dict(family.choices)).items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, default)
        if self.causal is None:
            usual = self.task == "causal-lm" if family.causal is None else family.causal
            object.__setattr__(self, "causal", usual)
        _check_sizes(self)
        object.__setattr__(self, "model_type", self.model_type or self.family)
        object.__setattr__(self, "d_embed", self.d_embed or self.d_model)
        object.__setattr__(self, "head_activation", self.head_activation or self.activation)
        object.__setattr__(self, "d_head", self.d_head or self.d_model // self.n_heads)
        object.__setattr__(self, "n_kv_heads", self.n_kv_heads or self.n_heads)
        object.__setattr__(self, "n_layer_groups", self.n_layer_groups or self.n_layers)
        for field in ("labels", "end_ids", "windows"):
            if not isinstance(listed := getattr(self, field), list | tuple):
                raise _unlike(field, listed, "a list")
            object.__setattr__(self, field, tuple(listed))
        for field in ("rotary", "local_rotary"):
            if not isinstance(rotary := getattr(self, field), Rotary | None):
                raise _unlike(field, rotary, "a Rotary, or None")
        _check_shapes(self)
        _check_choices(self)

    @property
    def pre_norm(self) -> bool:
        """True where blocks add to the stream as it is (GPT-2); BERT norms the sum."""
        return self.norm_place != "after"

    @property
    def decodes(self) -> bool:
        """True for a family that was trained to continue texts."""
        family = FAMILIES[self.family]
        return (self.pre_norm or family.plain_head) and "causal-lm" in family.tasks

    @property
    def generates(self) -> bool:
        """True for a model that was trained to continue texts, with its output embedding."""
        return self.decodes and self.task == "causal-lm" and self.n_logits == self.vocab_size

    @property
    def n_logits(self) -> int:
        """Logits of each position that a vocabulary head gives."""
        return self.d_vocab_out or self.vocab_size

    @property
    def n_labels(self) -> int:
        """Classes that a classification head chooses from."""
        return len(self.labels)

    @property
    def turns(self) -> bool:
        """True where queries and keys are changed by where they stand: turned, or added to."""
        return self.positions in ("rotary", "shortformer")

    @property
    def absent_quantities(self) -> frozenset[str]:
        """The quantities that this model does not have, in no layer."""
        has_mlp, place = self.d_mlp > 0, self.norm_place
        in_front, behind = place not in ("output", "none"), place in ("output", "both")
        there = {
            ("query_unrotated", "key_unrotated"): self.turns,
            ("mlp_gate",): self.gated and has_mlp,
            ("mlp_pre", "mlp_post", "mlp_out"): has_mlp,
            ("attention_norm_scale",): in_front and self.first_norm + self.n_layers > 1,
            ("mlp_norm_scale",): in_front and has_mlp,
            ("attention_output_norm_scale",): behind,
            ("mlp_output_norm_scale",): behind and has_mlp,
            ("final_norm_scale",): self.final_norm,
            ("pooled",): self.pooler,
        }
        return frozenset(name for names, present in there.items() if not present for name in names)

    def absent_in(self, layer: int) -> frozenset[str]:
        """The quantities that a layer of this model does not have."""
        first = layer == 0 and not self.first_norm
        return self.absent_quantities | ({"attention_norm_scale"} if first else set())

    def attention_scale(self, layer: int) -> float:
        """The factor on query·key in this layer: 1/sqrt(d_head), unless the config differs."""
        if self.score_multiplier is not None:
            return self.score_multiplier
        scale = float(self.d_head if self.query_scalar is None else self.query_scalar) ** -0.5
        return scale / (layer + 1) if self.scale_by_layer else scale

    def attend_options(self, layer: int) -> dict[str, Any]:
        """The options of `minibert.attend` for this layer, besides its tensors and lengths."""
        return {
            "scale": self.attention_scale(layer),
            "causal": self.causal,
            "window": self.window(layer),
            "soft_cap": self.attention_soft_cap,
        }

    def window(self, layer: int) -> tuple[int, int] | None:
        """How many keys before and after its own position a query of this layer sees; None: all."""
        size = self.windows[layer] if self.windows else 0
        if not size:
            return None
        return (size - 1, 0) if self.causal else ((size - 1) // 2, (size - 1) // 2)

    def layers_by_window(self, length: int) -> dict[tuple[int, int] | None, list[int]]:
        """The layers by the window that cuts a text of so many tokens; None: those without one."""
        found: dict[tuple[int, int] | None, list[int]] = {}
        for layer, window in enumerate(map(self.window, range(self.n_layers))):
            cuts = window is not None and window[0] < length - 1
            found.setdefault(window if cuts else None, []).append(layer)
        return found

    def rotary_of(self, layer: int) -> Rotary | None:
        """How queries and keys of this layer are rotated."""
        local = self.local_rotary is not None and self.window(layer) is not None
        return self.local_rotary if local else self.rotary


@dataclass(frozen=True)
class Dropout:
    """The share of the numbers of each quantity that become 0 in training; the others grow.

    embed       what enters layer 0, before a projection
    probs       attention weights
    attn_out    before it is added to the stream; mlp_out likewise
    mlp_post    between the two matrices of the MLP
    head        what the classifier of a task head reads

    Raises CheckpointError for what is not a share from 0 to 1, 1 excluded.
    """

    embed: float = 0.0
    probs: float = 0.0
    attn_out: float = 0.0
    mlp_post: float = 0.0
    mlp_out: float = 0.0
    head: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            rate = getattr(self, field.name)
            number = isinstance(rate, int | float) and not isinstance(rate, bool)
            if not number or not 0 <= rate < 1:
                raise CheckpointError(
                    f"dropout: {field.name} is {rate!r:.80}; expected a share from 0 to below 1."
                )


def _unlike(field: str, value: object, expected: str) -> CheckpointError:
    return CheckpointError(f"config: {field} is {value!r:.200}; expected {expected}.")


def _check_sizes(config: Config) -> None:
    positive = ("vocab_size", "n_positions", "n_layers", "n_heads", "d_model")
    optional = (
        "d_mlp",
        "d_vocab_out",
        "n_kv_heads",
        "d_head",
        "d_embed",
        "n_layer_groups",
        "n_segments",
    )
    for field in (*positive, *optional, "position_offset"):
        value, most = getattr(config, field), _LARGEST.get(field, _LARGEST_SIZE)
        least = 1 if field in positive else 0
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise _unlike(
                field, value, "a positive whole number" if least else "a whole number of at least 0"
            )
        if value > most:
            raise _unlike(field, value, f"at most {most}")
    if not config.d_head and config.d_model % config.n_heads:
        raise CheckpointError(
            f"config: {config.n_heads} heads do not divide a width of {config.d_model}; "
            "d_model must be a multiple of n_heads, or d_head must be given."
        )


def _check_shapes(config: Config) -> None:
    """Raise CheckpointError for sizes that do not go with one another."""
    own = config.family == "minibert"
    if config.n_logits != config.vocab_size and (not own or config.tied):
        raise CheckpointError(
            f"config: d_vocab_out is {config.d_vocab_out} and vocab_size {config.vocab_size}; "
            'expected the same, or family="minibert" with tied=False.'
        )
    if own and config.tied and config.d_embed != config.d_model:
        raise CheckpointError(
            f"config: embeddings of {config.d_embed} numbers cannot be the output embeddings of a "
            f"stream of {config.d_model}; expected tied=False, or d_embed = d_model."
        )
    if own and config.position_offset:
        raise CheckpointError(
            f"config: position_offset is {config.position_offset}; expected 0, as RoBERTa alone "
            "has rows of positions in reserve."
        )
    if own and config.task == "token-classification" and not config.labels:
        raise CheckpointError('config: labels is empty; expected names, as ("no", "yes").')
    if config.positions == "shortformer" and (
        config.d_embed != config.d_model or config.query_key_norm != "none"
    ):
        raise CheckpointError(
            "config: positions are shortformer, which are added to what queries and keys read; "
            'expected d_embed = d_model and query_key_norm="none".'
        )
    if config.n_heads % config.n_kv_heads:
        raise CheckpointError(
            f"config: {config.n_heads} heads cannot share {config.n_kv_heads} key-value heads "
            "evenly; n_heads must be a multiple of n_kv_heads."
        )
    if config.n_layer_groups > config.n_layers:
        raise CheckpointError(
            f"config: {config.n_layer_groups} layer groups for {config.n_layers} layers; "
            "expected at most one group a layer."
        )
    if config.windows and len(config.windows) != config.n_layers:
        raise CheckpointError(
            f"config: {len(config.windows)} windows for {config.n_layers} layers; expected one a "
            "layer, or none."
        )
    for size in config.windows:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _LARGEST_SIZE:
            raise CheckpointError(f"config: windows has {size!r:.80}; expected whole numbers ≥ 0.")
    if (config.positions == "rotary") != (config.rotary is not None):
        raise CheckpointError(
            f"config: positions is {config.positions!r} and rotary is {config.rotary}; expected "
            'positions="rotary" together with a Rotary.'
        )
    for rotary in (config.rotary, config.local_rotary):
        if rotary is not None and rotary.dims > config.d_head:
            raise CheckpointError(
                f"config: rotary turns {rotary.dims} dimensions of heads of {config.d_head}; "
                "expected at most as many."
            )


def _check_choices(config: Config) -> None:
    switches = [name for name, default in CHOICES_BY_DEFAULT.items() if isinstance(default, bool)]
    for field in ("causal", "tied", "pooler", "scale_by_layer", "head_bias", *switches):
        if not isinstance(getattr(config, field), bool):
            raise _unlike(field, getattr(config, field), "True or False")
    for field, values in (
        _CHOICES | {"activation": ACTIVATIONS, "head_activation": ACTIVATIONS}
    ).items():
        if getattr(config, field) not in values:
            raise _unlike(field, getattr(config, field), f"one of {', '.join(values)}")
    eps = config.norm_eps
    if not isinstance(eps, float | int) or isinstance(eps, bool) or not 0 <= eps <= 1:
        raise _unlike("norm_eps", eps, "a number from 0 to 1")
    optional = ("query_scalar", "score_multiplier", "attention_soft_cap", "logit_soft_cap")
    for field in (*optional, "embed_multiplier", "residual_multiplier", "logits_divisor"):
        value = getattr(config, field)
        number = isinstance(value, float | int) and not isinstance(value, bool)
        absent = value is None and field in optional
        if not absent and (not number or not 0 < value < float("inf")):
            raise _unlike(field, value, "a positive number" + ", or None" * (field in optional))
    if config.family == "minibert" and config.task == "causal-lm" and not config.causal:
        raise CheckpointError(
            "config: the task causal-lm needs causal=True; a model that sees later tokens and has "
            "logits at each position is a masked-lm."
        )
    allowed = FAMILIES[config.family].causal
    if allowed is not None and config.causal is not allowed:
        kind = "causal form" if config.causal else "form that is not causal"
        raise CheckpointError(f"config: {config.family} has no {kind}; causal must be {allowed}.")
