"""Gives the heads of a trained model other indices, so that lessons find them where they were.

    python scripts/order_heads.py FOLDER LAYER=ORDER ...

`0=2,0,1,3` makes head 2 of layer 0 its head 0, then come heads 0, 1 and 3. Heads of one layer have
no order: the layer sums what they write, so the model computes the same (its sums run in another
order, and so the last bits may differ). The folder's weights, the scores in its `scores.jsonl` and
the facts in its `training.json` follow; `training.json` keeps the order under `head_order`.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import minibert
from minibert.checkpoint.save import save
from minibert.errors import MinibertError
from minibert.model import Model

Orders = Mapping[int, Sequence[int]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when the folder is written."""
    parser = argparse.ArgumentParser(description="Give heads other indices.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("orders", nargs="+", metavar="LAYER=ORDER")
    chosen = parser.parse_args(arguments)
    try:
        orders = {
            int(layer): [int(head) for head in order.split(",")]
            for layer, order in (given.split("=") for given in chosen.orders)
        }
        model = minibert.load(chosen.folder)
        reorder_heads(model, orders)
    except (MinibertError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    (dtype,) = {tensor.dtype for tensor in load_file(chosen.folder / "model.safetensors").values()}
    save(model, chosen.folder, dtype=dtype)
    reorder_records(chosen.folder, orders)
    return 0


def reorder_heads(model: Model, orders: Orders) -> None:
    """Change the weights in place: head `orders[layer][i]` of a layer becomes its head i.

    Of each head its rows of W_Q, W_K and W_V with their biases move, and its columns of W_O.

    Raises ValueError for a layer or an order that the model does not have, and for grouped heads.
    """
    config = model.config
    if config.n_kv_heads != config.n_heads:
        raise ValueError("heads that share keys and values cannot change places alone")
    for layer, order in orders.items():
        if layer not in range(config.n_layers):
            raise ValueError(f"layer {layer}: expected 0 to {config.n_layers - 1}")
        if sorted(order) != list(range(config.n_heads)):
            raise ValueError(f"{order}: expected each of the {config.n_heads} heads once")
        attention: Any = model.body.layers[layer].attention
        moved = torch.arange(config.n_heads * config.d_head).view(config.n_heads, -1)
        places = moved[list(order)].flatten()
        with torch.no_grad():
            for linear in (attention.query, attention.key, attention.value):
                linear.weight.copy_(linear.weight[places].clone())
                if linear.bias is not None:
                    linear.bias.copy_(linear.bias[places].clone())
            attention.output.weight.copy_(attention.output.weight[:, places].clone())


def reorder_records(folder: Path, orders: Orders) -> None:
    """Put the scores of heads in the records of a training run into the new order."""
    log = folder / "scores.jsonl"
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    log.write_text("".join(json.dumps(_moved(line, orders)) + "\n" for line in lines))
    path = folder / "training.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    facts["last"] = _moved(facts["last"], orders)
    facts["head_order"] = {str(layer): list(order) for layer, order in orders.items()}
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _moved(line: dict[str, Any], orders: Orders) -> dict[str, Any]:
    for layers in line["heads"].values():
        for layer, order in orders.items():
            layers[layer] = [layers[layer][head] for head in order]
    return line


if __name__ == "__main__":
    sys.exit(main())
