"""examples/clark_figure_2.py with nnsight."""

import nnsight
import torch
from nnsight import TransformersModel

from benchmarks.peers.given import model_folder, pairs

torch.set_grad_enabled(False)
options = {"dtype": torch.float32, "attn_implementation": "eager", "dispatch": True}
model = TransformersModel(model_folder(), task="feature-extraction", **options)
rows = {}
for pair in pairs():
    given = model.tokenizer(*pair, return_tensors="pt")
    with model.trace(given):
        layers = model.encoder.layer
        patterns = nnsight.save([layer.attention.self.output[1][0] for layer in layers])
    attention = torch.stack(patterns)
    strings = model.tokenizer.convert_ids_to_tokens(given.input_ids[0])
    cls, sep, period_comma = (
        torch.tensor([one in kind for one in strings])
        for kind in (["[CLS]"], ["[SEP]"], [".", ","])
    )
    to_sep = attention[..., sep].sum(-1)  # layer head query
    rows.setdefault("to_cls", []).append(attention[..., cls].sum(-1))
    rows.setdefault("to_sep", []).append(to_sep)
    rows.setdefault("to_period_comma", []).append(attention[..., period_comma].sum(-1))
    rows.setdefault("sep_to_sep", []).append(to_sep[..., sep])
    rows.setdefault("rest_to_sep", []).append(to_sep[..., ~sep])
for name, found in rows.items():
    table = torch.cat(found, -1).mean(-1)
    print(f"{name:16} layer means", *(f"{mean:.2f}" for mean in table.mean(1)), end="; most ")
    layer, head = divmod(int(table.argmax()), table.shape[1])
    print(f"{layer}-{head} {table[layer, head]:.2f}")
