"""One frozen description of a model: its family, its sizes and its choices."""

from dataclasses import dataclass

from minibert.errors import CheckpointError

__all__ = ["ACTIVATIONS", "LARGEST_LABELS", "TASKS", "Config", "check_task"]

ACTIVATIONS = ("gelu", "gelu_tanh", "gelu_fast", "quick_gelu", "relu", "silu", "tanh")
TASKS = (
    "none",
    "masked-lm",
    "next-sentence",
    "pre-training",
    "causal-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
)
_FAMILY_TASKS = {
    "bert": TASKS,
    "roberta": ("none", "masked-lm", "causal-lm", *TASKS[5:]),
    "distilbert": ("none", "masked-lm", *TASKS[5:]),
    "electra": ("none", "masked-lm", "pre-training", "causal-lm", *TASKS[5:]),
    "albert": ("none", "masked-lm", "pre-training", *TASKS[5:]),
    "gpt2": ("none", "causal-lm", *TASKS[5:]),
}
# Far above any model, and low enough that no shape made of two of them overflows.
_LARGEST = {"n_layers": 2**9}
_LARGEST_SIZE = 2**28
LARGEST_LABELS = 2**20


@dataclass(frozen=True)
class Config:
    """The sizes and choices of one model. All counts are positive."""

    family: str
    task: str
    vocab_size: int
    n_positions: int
    """The longest input in tokens (RoBERTa's two reserved rows are not counted)."""
    n_layers: int
    n_heads: int
    d_model: int
    d_mlp: int
    model_type: str = ""
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
    causal: bool = False
    tied: bool = True
    """The output embedding is the input embedding."""
    pooler: bool = False
    labels: tuple[str, ...] = ()
    problem_type: str = ""
    """What a classification head answers: single_label_classification ("" means this one),
    multi_label_classification or regression."""
    scale_by_width: bool = True
    """Scores are divided by sqrt(d_head), as in Vaswani et al. 2017, section 3.2.1."""
    scale_by_layer: bool = False
    """Scores are divided by layer + 1 as well (GPT-2's scale_attn_by_inverse_layer_idx)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_type", self.model_type or self.family)
        object.__setattr__(self, "d_embed", self.d_embed or self.d_model)
        object.__setattr__(self, "n_layer_groups", self.n_layer_groups or self.n_layers)
        # JSON has no tuples.
        for field in ("labels", "end_ids"):
            if isinstance(getattr(self, field), list):
                object.__setattr__(self, field, tuple(getattr(self, field)))
        _check(self)

    @property
    def d_head(self) -> int:
        """The width of one head: d_model / n_heads."""
        return self.d_model // self.n_heads

    @property
    def pre_norm(self) -> bool:
        """True where LayerNorm comes before a block (GPT-2), False where after (BERT)."""
        return self.family == "gpt2"

    @property
    def n_labels(self) -> int:
        """Classes that a classification head chooses from."""
        return len(self.labels)

    def attention_scale(self, layer: int) -> float:
        """The factor on query·key in this layer: 1/sqrt(d_head), unless the config differs."""
        scale = self.d_head**-0.5 if self.scale_by_width else 1.0
        return scale / (layer + 1) if self.scale_by_layer else scale


def check_task(family: str, task: str) -> None:
    """Raise CheckpointError for an unknown family, and when it has no such task head."""
    if not isinstance(family, str) or family not in _FAMILY_TASKS:
        raise CheckpointError(
            f"config: family is {family!r:.200}; expected one of {', '.join(_FAMILY_TASKS)}."
        )
    if not isinstance(task, str) or task not in _FAMILY_TASKS[family]:
        raise CheckpointError(
            f"{family} has no task head {task!r:.200}; it has {', '.join(_FAMILY_TASKS[family])}."
        )


def _check(config: Config) -> None:
    check_task(config.family, config.task)
    _check_sizes(config)
    _check_choices(config)


def _check_sizes(config: Config) -> None:
    positive = ("vocab_size", "n_positions", "n_layers", "n_heads", "d_model", "d_mlp", "d_embed")
    for field in (*positive, "n_layer_groups", "n_segments", "position_offset"):
        value, most = getattr(config, field), _LARGEST.get(field, _LARGEST_SIZE)
        least = 0 if field in ("n_segments", "position_offset") else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            kind = "a positive whole number" if least else "a whole number from 0 on"
            raise CheckpointError(f"config: {field} is {value!r:.200}; expected {kind}.")
        if value > most:
            raise CheckpointError(f"config: {field} is {value!r:.200}; expected at most {most}.")
    if config.d_model % config.n_heads:
        raise CheckpointError(
            f"config: {config.n_heads} heads do not divide a width of {config.d_model}; "
            "d_model must be a multiple of n_heads."
        )
    if config.n_layer_groups > config.n_layers:
        raise CheckpointError(
            f"config: {config.n_layer_groups} layer groups for {config.n_layers} layers; "
            "expected at most one group a layer."
        )


def _check_choices(config: Config) -> None:
    for field in ("causal", "tied", "pooler", "scale_by_width", "scale_by_layer"):
        if not isinstance(getattr(config, field), bool):
            raise CheckpointError(
                f"config: {field} is {getattr(config, field)!r:.200}; expected True or False."
            )
    if config.activation not in ACTIVATIONS:
        raise CheckpointError(
            f"config: activation is {config.activation!r:.200}; expected one of "
            f"{', '.join(ACTIVATIONS)}."
        )
    eps = config.norm_eps
    if not isinstance(eps, float | int) or isinstance(eps, bool) or not 0 <= eps <= 1:
        raise CheckpointError(f"config: norm_eps is {eps!r:.200}; expected a number from 0 to 1.")
    if config.causal and config.family in ("albert", "distilbert"):
        raise CheckpointError(f"config: {config.family} has no causal form; causal must be False.")
