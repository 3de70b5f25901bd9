"""examples/clark_figure_2.py with TransformerLens."""

import torch

from benchmarks.peers.given import pairs
from benchmarks.peers.hooked import load

model = load()
rows = {}
for pair in pairs():
    given = model.tokenizer(*pair, return_tensors="pt")
    _, cache = model.run_with_cache(given.input_ids, token_type_ids=given.token_type_ids)
    attention = torch.stack([cache["pattern", n][0] for n in range(model.cfg.n_layers)])
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
