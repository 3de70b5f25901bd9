"""The weights that a run starts from."""

import math

import torch

from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.training.carry_over import carry_over
from minibert.training.recipe import Recipe

__all__ = ["starting_model", "waves"]

_AMPLITUDE = 0.05


def starting_model(
    config: Config, recipe: Recipe, tokenizer: Tokenizer, *, name: str, start: Model | None = None
) -> Model:
    """A model with the weights of `start`, or with random ones and sinusoids as its positions.

    With random positions a model of this size needs most of the run to learn which tokens are
    neighbours. Where norms stand before the blocks, the matrices that write into the stream start
    smaller by 1/sqrt(2·layers) (Radford et al. 2019, section 2.3).
    """
    model = Model.from_config(config, seed=recipe.seed, tokenizer=tokenizer, name=name)
    if start is not None:
        carry_over(start, model)
        return model
    with torch.no_grad():
        if recipe.waves and model.body.position is not None:
            table = model.body.position.weight
            table[config.position_offset :] = waves(
                len(table) - config.position_offset, table.shape[1], longest=recipe.waves
            )
        if config.pre_norm:
            for place, parameter in model.named_parameters():
                if place.endswith(("attention.output.weight", "mlp.down.weight")):
                    parameter.mul_((2 * config.n_layers) ** -0.5)
    return model


def waves(positions: int, width: int, *, longest: float) -> torch.Tensor:
    """Sines and cosines of the position (Vaswani et al. 2017, section 3.5), of amplitude 0.05.

    `longest` is the longest wavelength over 2π. The paper has 10,000. For 128 positions 100 is
    better: neighbours differ more, so heads can tell them apart with smaller scores.
    """
    position = torch.arange(positions)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(longest) / width))
    table = torch.empty(positions, width)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)[:, : width // 2]
    return _AMPLITUDE * table
