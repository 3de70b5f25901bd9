"""A BERT of one layer, two heads and head width 64, by torch alone from named weights."""

import torch
from torch.nn import functional as F

WIDTH = 128
IDS = torch.tensor([[5, 7, 11, 13, 17], [2, 3, 19, 23, 29]])


def bert_by_hand(parameters: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """The last hidden state."""
    now = {name.removeprefix("body."): value for name, value in parameters.items()}

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (WIDTH,), now[f"{name}.weight"], now[f"{name}.bias"], 1e-12)

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, now[f"groups.0.{name}.weight"], now[f"groups.0.{name}.bias"])

    def split(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (2, -1)).transpose(1, 2)

    summed = now["word.weight"][ids] + now["position.weight"][: ids.shape[1]]
    x = norm("embed_norm", summed + now["segment.weight"][0])
    q, k, v = (split(linear(f"attention.{name}", x)) for name in ("query", "key", "value"))
    z = (q @ k.mT / 8).softmax(-1) @ v
    mid = norm(
        "groups.0.attention_norm", x + linear("attention.output", z.transpose(1, 2).flatten(2))
    )
    mlp = linear("mlp.down", F.gelu(linear("mlp.up", mid)))
    return norm("groups.0.mlp_norm", mid + mlp)
