"""The norms and projections of transformers' models by our names, and hooks that rewrite them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import minibert
from minibert.loading import from_transformers
from minibert.model import Model
from tests.families import as_tokens as as_kinds
from tests.families import batch as batch_of_encoder
from tests.families import run_transformers, their_logits
from tests.rotary.classes import FAMILIES as ROTARY
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain
from tests.rotary.theirs import as_tokens, batch, computing, forget, model_of
from tests.trace.editing import FAMILIES as CLASSES
from tests.trace.editing import theirs_of

LAYER = 1
FAMILIES = [*CLASSES, *ROTARY]
_BERT = {"attention_norm": "attention.output.LayerNorm", "mlp_norm": "output.LayerNorm"}
_LLAMA = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_OUTPUT = {
    "attention_output_norm": "post_attention_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}
_GEMMA2 = _OUTPUT | {"attention_norm": "input_layernorm", "mlp_norm": "pre_feedforward_layernorm"}
#: The norms of a layer; each family is listed with where its layers are.
NORMS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), ("encoder.layer", _BERT)),
    "electra": ("electra.encoder.layer", _BERT),
    "distilbert": (
        "distilbert.transformer.layer",
        {"attention_norm": "sa_layer_norm", "mlp_norm": "output_layer_norm"},
    ),
    "gpt2": ("transformer.h", {"attention_norm": "ln_1", "mlp_norm": "ln_2"}),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma"), ("layers", _LLAMA)),
    **dict.fromkeys(("phi3", "gpt_neox"), ("layers", _LLAMA)),
    **dict.fromkeys(("gemma2", "gemma3_text"), ("layers", _GEMMA2)),
    "olmo2": ("layers", _OUTPUT),
    "modernbert": ("layers", {"attention_norm": "attn_norm", "mlp_norm": "mlp_norm"}),
}
FINAL = {"gpt2": "ln_f", "gpt_neox": "final_layer_norm", "modernbert": "final_norm"}
FINAL |= {name: "norm" for name in ROTARY if name not in FINAL}
PROJECTIONS = {
    **dict.fromkeys(("bert", "roberta", "electra"), "attention.self.{}"),
    **dict.fromkeys(("llama", "qwen3", "gemma2", "olmo2", "mistral"), "self_attn.{}_proj"),
}
_SHORT = {"query": "q", "key": "k", "value": "v"}

Rewrite = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Pair:
    """A family's model of transformers in float64, the same of ours, and a batch for both."""

    def __init__(self, family: str) -> None:
        self.family = family
        rotary = family in ROTARY
        self.theirs: Any = (
            model_of(plain(family), LANGUAGE[family])
            if rotary
            else theirs_of(family, torch.float64)
        )
        self.inputs = batch((7, 3)) if rotary else batch_of_encoder(family)
        self.tokens: minibert.Tokens = (as_tokens if rotary else as_kinds)(self.inputs)
        self.ours: Model = from_transformers(self.theirs)

    def logits(self) -> Tensor:
        """What transformers gives, hooks included."""
        if self.family in ROTARY:
            with torch.no_grad(), computing(self.theirs):
                forget(self.theirs)
                return self.theirs(**self.inputs).logits
        output = run_transformers(self.theirs, self.inputs)
        return their_logits(output, type(self.theirs).__name__)

    def module(self, path: str, layer: int | None = LAYER) -> nn.Module:
        """The one module of a layer, or of the body, whose name ends with this path."""
        if layer is not None:
            path = f"{NORMS[self.family][0]}.{layer}.{path}"
        named = self.theirs.named_modules()
        (found,) = [one for name, one in named if name == path or name.endswith(f".{path}")]
        return found

    def projection(self, name: str) -> nn.Linear:
        """W_Q, W_K or W_V of the layer."""
        short = name if "self." in PROJECTIONS[self.family] else _SHORT[name]
        found = self.module(PROJECTIONS[self.family].format(short))
        assert isinstance(found, nn.Linear)
        return found


@contextmanager
def rewritten(*places: tuple[nn.Module, Rewrite]) -> Iterator[None]:
    """While this lasts, each module gives what its function makes of its input and output."""
    with ExitStack() as stack:
        for module, rewrite in places:

            def hook(
                module: nn.Module, given: tuple[Any, ...], out: Tensor, rewrite: Rewrite = rewrite
            ) -> Tensor:
                return rewrite(module, given[0], out)

            stack.callback(module.register_forward_hook(hook).remove)
        yield


def scale_by_hand(module: nn.Module, x: Tensor) -> Tensor:
    """What a norm of transformers divides by, from its formula: (batch, position, 1)."""
    eps = next(getattr(module, n) for n in ("eps", "variance_epsilon") if hasattr(module, n))
    if isinstance(module, nn.LayerNorm):
        return (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    return (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def divided_by(scale: Callable[[Tensor], Tensor]) -> Rewrite:
    """The norm's output had it divided by another scale, a function of its own one."""

    def rewrite(module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        own = scale_by_hand(module, x)
        bias = getattr(module, "bias", None)
        bias = 0 if bias is None else bias
        return (out - bias) * own / scale(own) + bias

    return rewrite
