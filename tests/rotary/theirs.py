"""The transformers side: a model of a drawn configuration, a batch, and what the model gives."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import transformers
from torch import Tensor

from minibert.text.tokens import Tokens
from minibert.verification import wide
from tests.families import their_logits
from tests.rotary.drawn import VOCABULARY, Drawn

LENGTHS = (13, 7, 1)
# With weights like these no attention is near uniform, and no norm near the identity.
_DEVIATION = 0.4


def model_of(drawn: Drawn, name: str, dtype: torch.dtype = torch.float64) -> Any:
    """The model, in evaluation mode; that in float64 has the float32 one's weights exactly."""
    labels = {"num_labels": 2} if name.endswith("QuestionAnswering") else {}
    with wide() if dtype == torch.float64 else nullcontext():
        model = getattr(transformers, name)(drawn.config(**labels)).eval()
    assert all(parameter.dtype == dtype for parameter in model.parameters())
    generator = torch.Generator().manual_seed(drawn.seed)
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            # A vector that is not a bias is the weight of a norm; Gemma's are counted from 1.
            scale = parameter.dim() == 1 and label.endswith("weight")
            base = 1.0 if scale and "gemma" not in drawn.family else 0.0
            parameter.copy_(base + _DEVIATION * noise)
    return model


def batch(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> dict[str, Tensor]:
    """Sentences of these lengths: ids and mask, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(2, VOCABULARY, mask.shape, generator=generator)
    return {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}


def as_tokens(inputs: dict[str, Tensor]) -> Tokens:
    """The same batch for a model of ours."""
    return Tokens.from_ids(inputs["input_ids"], mask=inputs["attention_mask"].bool())


def run(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Everything transformers shows of a pass, by name; all in float64 where the model is."""
    options = {} if model.config.model_type == "modernbert" else {"use_cache": False}
    left: list[Tensor] = []
    (layers,) = [module.layers for module in model.modules() if hasattr(module, "layers")]
    # transformers shows what leaves the last layer only after the last norm.
    handle = layers[-1].register_forward_hook(lambda module, given, out: left.append(out))
    with torch.no_grad(), computing(model):
        forget(model)
        out = model(**inputs, output_attentions=True, output_hidden_states=True, **options)
    handle.remove()
    found = {f"stream {n}": value for n, value in enumerate(out.hidden_states[:-1])}
    found |= {f"stream {len(layers)}": left[0], "last": out.hidden_states[-1]}
    found |= {f"probs {n}": value for n, value in enumerate(out.attentions)}
    return found | {"logits": their_logits(out, type(model).__name__)}


def computing(model: Any) -> AbstractContextManager[None]:
    """Where a model runs: that in float64 without float32 on the way."""
    exact = next(model.parameters()).dtype == torch.float64
    return wide() if exact else nullcontext()


def forget(model: Any) -> None:
    """Make the model as it was before its first text.

    Dynamic rotary frequencies of a long text would stay for a shorter one after it.
    """
    for module in model.modules():
        if hasattr(module, "rotary_emb"):
            module.rotary_emb = type(module.rotary_emb)(module.config)
