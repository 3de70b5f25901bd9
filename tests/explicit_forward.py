"""A forward pass spelled out from the weights, every quantity a node of autograd's graph.

Small exact models, and what the tests of gradients do with them, stand below it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import minibert
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.trace.edit import zero
from minibert.trace.read import Trace
from tests.families import LAYER_NAMES, Sizes, as_tokens, batch, hf_model
from tests.trace import editing

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


class Explicit:
    """The quantities of `trace.model` on the input of `trace`; `self[layer, name]` reads one.

    `embed` stands in the place of the embeddings.
    """

    def __init__(self, trace: Any, *, embed: Tensor | None = None) -> None:
        self.config = trace.config
        self.found: dict[tuple[int, str], Tensor] = {}
        self.blocked = ~trace.mask
        start = trace.embed if embed is None else embed
        self.embed = hidden = start.detach().clone().requires_grad_()
        self.layers = trace.model.body.layers
        for index, layer in enumerate(self.layers):
            hidden = self.run(index, layer, hidden)
        self.last = hidden
        self.logits = trace.model.task_logits(trace.model.body.final(hidden), trace.inputs)

    def __getitem__(self, place: tuple[int, str]) -> Tensor:
        return self.found[place]

    def note(self, layer: int, name: str, value: Tensor) -> Tensor:
        # A node of its own, even where it equals another; resid_pre is what came from below.
        value = self.found[layer, name] = value if name == "resid_pre" else value * 1
        return value

    def run(self, index: int, layer: Any, hidden: Tensor) -> Tensor:
        config, attention = self.config, layer.attention
        pre = self.note(index, "resid_pre", hidden)
        x = self.norm(index, "attention_norm", pre) if config.pre_norm else pre
        query, key, value = (self.project(index, name, x) for name in ("query", "key", "value"))
        divisor = config.d_head**0.5 * (index + 1 if config.scale_by_layer else 1)
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / divisor
        scores = self.note(index, "scores", scores)
        weights = scores.masked_fill(self.blocked, -torch.inf).exp()
        probs = self.note(index, "probs", weights / weights.sum(-1, keepdim=True))
        z = self.note(index, "z", torch.einsum("bhqk,bhkd->bhqd", probs, value))
        matrix = attention.output.weight.view(config.d_model, config.n_heads, config.d_head)
        head_out = self.note(index, "head_out", torch.einsum("bhqd,mhd->bhqm", z, matrix))
        out = self.note(index, "attn_out", head_out.sum(1) + attention.output.bias)
        mid = pre + out if config.pre_norm else self.norm(index, "attention_norm", pre + out)
        mid = self.note(index, "resid_mid", mid)
        x = self.norm(index, "mlp_norm", mid) if config.pre_norm else mid
        mlp = self.note(index, "mlp_pre", linear(x, layer.mlp.up))
        mlp = self.note(index, "mlp_post", ACTIVATIONS[config.activation](mlp))
        mlp = self.note(index, "mlp_out", linear(mlp, layer.mlp.down))
        post = mid + mlp if config.pre_norm else self.norm(index, "mlp_norm", mid + mlp)
        return self.note(index, "resid_post", post)

    def project(self, layer: int, name: str, x: Tensor) -> Tensor:
        """query, key or value, each head from a copy of x that is its own."""
        heads, weights = self.config.n_heads, getattr(self.layers[layer].attention, name)
        inputs = self.note(layer, f"{name}_input", x.unsqueeze(1).repeat(1, heads, 1, 1))
        matrix = weights.weight.view(heads, self.config.d_head, self.config.d_model)
        bias = weights.bias.view(heads, 1, self.config.d_head)
        return self.note(layer, name, torch.einsum("bhpm,hdm->bhpd", inputs, matrix) + bias)

    def norm(self, layer: int, name: str, x: Tensor) -> Tensor:
        weights = getattr(self.layers[layer], name)
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + weights.eps).sqrt()
        scale = self.note(layer, f"{name}_scale", scale)
        return centred / scale * weights.weight + weights.bias

    def gradients(self, scalar: Tensor) -> dict[tuple[int, str] | str, Tensor]:
        """The gradient of every quantity, 0 where the scalar does not depend on it."""
        places: dict[Any, Tensor] = {"embed": self.embed, "logits": self.logits, **self.found}
        found = torch.autograd.grad(scalar, [*places.values()], allow_unused=True)
        return {
            place: torch.zeros_like(value) if gradient is None else gradient
            for (place, value), gradient in zip(places.items(), found, strict=True)
        }


class Edited(Explicit):
    """The explicit pass with an edit; what is read at the edit is the value after it.

    Keys are (name, layer) and (name, layer, head), whole layers first. Values are functions,
    tensors and `zero`.
    """

    def __init__(self, trace: Any, edit: dict[Any, Any]) -> None:
        self.edit = edit
        super().__init__(trace)

    def note(self, layer: int, name: str, value: Tensor) -> Tensor:
        for (edited, at, *heads), change in self.edit.items():
            if (edited, at) == (name, layer):
                value = value.clone()
                part = (slice(None), *heads)
                chosen = value[part].clone()
                if isinstance(change, Tensor):
                    value[part] = change
                else:
                    value[part] = torch.zeros_like(chosen) if change is zero else change(chosen)
        return super().note(layer, name, value)


def linear(x: Tensor, weights: Any) -> Tensor:
    return torch.einsum("bpi,oi->bpo", x, weights.weight) + weights.bias


TOLERANCE = 1e-9
MODELS = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForSequenceClassification",
    "distilbert": "DistilBertForTokenClassification",
    "electra": "ElectraForPreTraining",
    "albert": "AlbertForPreTraining",
    "gpt2": "GPT2LMHeadModel",
}
DEFAULT = Sizes()


def exact(family: str, name: str, chosen: Sizes = DEFAULT) -> Model:
    return from_transformers(hf_model(family, name, chosen, torch.float64))


def padded(family: str) -> minibert.Tokens:
    return as_tokens(batch(family))


def weighted(logits: torch.Tensor) -> torch.Tensor:
    """A number that depends on every logit, each by another factor."""
    factors = torch.arange(logits.numel(), dtype=logits.dtype).view(logits.shape)
    return (logits * torch.cos(factors)).sum()


def close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    return editing.close(ours, expected, tolerance)


def assert_all(trace: Trace, scalar_of: Callable[[Any], torch.Tensor]) -> None:
    """Every gradient of trace.grad is that of the explicit pass."""
    explicit = Explicit(trace)
    expected = explicit.gradients(scalar_of(explicit))
    assert close(trace.grad.embed, expected["embed"])
    assert close(trace.grad.logits, expected["logits"])
    for layer, at in enumerate(trace.grad):
        for name in LAYER_NAMES:
            assert close(getattr(at, name), expected[layer, name]), (layer, name)
