"""Path patching: a head's effect by way of chosen receivers, against passes written by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.analysis import logit_difference, path_patching
from minibert.errors import EditError, TraceError
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import replace, zero
from minibert.trace.read import Trace

HEADS, D_HEAD, LENGTH, VOCABULARY = 3, 5, 7, 41
WIDTH = HEADS * D_HEAD
METRIC = logit_difference(5, 11)
Place = tuple[Any, ...]


def random_model(family: str = "gpt2", layers: int = 2, **options: Any) -> Model:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "n_positions": LENGTH,
        "n_layers": layers,
        "n_heads": HEADS,
        "d_model": WIDTH,
        "d_mlp": 13,
        "causal": True,
    }
    model = Model.from_config(Config(family, "causal-lm", **(sizes | options)), seed=1)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.normal_(0, 0.4, generator=generator)
    return model.double()


def pair(model: Model) -> tuple[Trace, Trace]:
    """A clean and a corrupt batch of a sentence and a shorter one."""
    ids = torch.randint(VOCABULARY, (2, 2, LENGTH), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 2]])
    clean, corrupt = (model.trace(Tokens.from_ids(each, mask=mask)) for each in ids)
    return clean, corrupt


class ByHand:
    """GPT-2 written out for one sentence: `run` gives logits and notes values; `write` sets them.

    The names are (name, layer, head) and (name, layer); a written value replaces what is computed.
    """

    def __init__(self, model: Model) -> None:
        self.weights = dict(model.named_parameters())
        self.layers, self.eps = model.config.n_layers, model.config.norm_eps

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = (self.weights[f"{name}.{part}"] for part in ("weight", "bias"))
        return F.layer_norm(x, (WIDTH,), weight, bias, self.eps)

    def run(
        self, ids: Tensor, write: dict[Place, Tensor] | None = None
    ) -> tuple[Tensor, dict[Place, Tensor]]:
        given, found = write or {}, {}

        def note(place: Place, value: Tensor) -> Tensor:
            found[place] = given.get(place, value)
            return found[place]

        x = self.weights["body.word.weight"][ids]
        x = x + self.weights["body.position.weight"][: len(ids)]
        causal = torch.ones(len(ids), len(ids)).tril().bool()
        for n in range(self.layers):
            part = f"body.groups.{n}"
            read = self.norm(x, f"{part}.attention_norm")
            whole = {
                name: self.linear(read, f"{part}.attention.{name}").split(D_HEAD, -1)
                for name in ("query", "key", "value")
            }
            z = []
            for h in range(HEADS):
                q, k, v = (note((name, n, h), whole[name][h]) for name in whole)
                scores = (q @ k.T / D_HEAD**0.5).masked_fill(~causal, -torch.inf)
                z.append(note(("z", n, h), scores.softmax(-1) @ v))
            x = x + self.linear(torch.cat(z, -1), f"{part}.attention.output")
            inner = self.linear(self.norm(x, f"{part}.mlp_norm"), f"{part}.mlp.up")
            inner = F.gelu(note(("mlp_pre", n), inner))
            x = x + note(("mlp_out", n), self.linear(inner, f"{part}.mlp.down"))
        final = self.norm(x, "body.final_norm")
        return final @ self.weights["body.word.weight"].T, found

    def path_patched(
        self, clean: Tensor, corrupt: Tensor, sender: Place, receivers: list[Place], frozen: bool
    ) -> Tensor:
        """Appendix B of Wang et al. 2022, step by step; every head but the sender is frozen."""
        before, after = self.run(clean)[1], self.run(corrupt)[1]
        names = ("z", "mlp_out") if frozen else ("z",)
        write = {place: value for place, value in before.items() if place[0] in names}
        _, sent = self.run(clean, write | {sender: after[sender]})
        logits, _ = self.run(clean, {place: sent[place] for place in receivers})
        return logits[-1, 5] - logits[-1, 11]


RECEIVERS: list[list[Place]] = [
    [("query", 2, 1)],
    [("key", 1, 0), ("value", 2, 2)],
    [(name, 2, head) for name in ("query", "key", "value") for head in range(HEADS)],
    [("mlp_pre", 1), ("value", 2, 0)],
]


@pytest.mark.parametrize("receivers", RECEIVERS, ids=str)
@pytest.mark.parametrize("freeze_mlps", [False, True])
def test_it_is_the_three_passes_written_by_hand(receivers: list[Place], freeze_mlps: bool) -> None:
    model = random_model(layers=3)
    clean, corrupt = pair(model)
    senders: list[Place] = [("z", 0, 2), ("z", 1, 1), ("mlp_out", 0)]
    found = path_patching(
        clean, corrupt, METRIC, senders=senders, receivers=receivers, freeze_mlps=freeze_mlps
    )
    hand = ByHand(model)
    for row, length in ((0, LENGTH), (1, LENGTH - 2)):
        texts = [trace.tokens.ids[row, :length] for trace in (clean, corrupt)]
        expected = [
            hand.path_patched(texts[0], texts[1], sender, receivers, freeze_mlps)
            for sender in senders
        ]
        sent = found.values[[0, 1, 0], row, [2, 1, -1]]
        assert torch.allclose(sent, torch.stack(expected), atol=1e-10)
    assert found.at(head="MLP").isnan().tolist() == [[False] * 2, [True] * 2, [True] * 2]
    # Far above the tolerance.
    assert found.change[0, :, 2].abs().min() > 1e-7


def test_mlps_that_follow_and_frozen_ones_differ() -> None:
    clean, corrupt = pair(random_model(layers=3))
    receivers = [("query", 2, 1)]
    both = [
        path_patching(clean, corrupt, METRIC, receivers=receivers, freeze_mlps=frozen).change[
            0, :, 0
        ]
        for frozen in (False, True)
    ]
    assert (both[0] - both[1]).abs().max() > 1e-6


def test_all_receivers_of_the_next_layer_and_a_frozen_rest_are_activation_patching() -> None:
    """In two layers without MLPs to speak of, a head of layer 0 acts by these paths alone."""
    model = random_model()
    for layer in model.body.layers:
        layer.mlp.down.weight.zero_()
    clean, corrupt = pair(model)
    sender = ("z", 0, 1)
    indirect = [(name, 1, head) for name in ("query", "key", "value") for head in range(HEADS)]
    sent = path_patching(clean, corrupt, METRIC, senders=[sender], receivers=["logits"])
    edits = {sender: replace(corrupt), ("z", 1): replace(clean)}
    assert torch.allclose(sent.values[0, :, 1], METRIC(clean.rerun(edits)), atol=1e-12)
    # The heads of layer 1 see in both cases what the whole patch shows them.
    patched = clean.rerun({sender: replace(corrupt)})
    by_heads = path_patching(clean, corrupt, METRIC, senders=[sender], receivers=indirect)
    only_heads = clean.rerun({("z", 1): replace(patched)})
    assert torch.allclose(by_heads.values[0, :, 1], METRIC(only_heads), atol=1e-12)


def test_a_sender_that_is_the_same_or_behind_every_receiver_changes_nothing() -> None:
    model = random_model(layers=3)
    clean, corrupt = pair(model)
    receivers: list[Place] = [("query", 1, 0), ("value", 1, 2)]
    same = path_patching(clean, clean, METRIC, receivers=receivers)
    assert same.change.abs().max() < 1e-12
    table = path_patching(clean, corrupt, METRIC, receivers=receivers).change
    assert table.shape == (3, 2, HEADS)
    assert table[1:].abs().max() < 1e-12
    assert table[0].abs().min() > 1e-6


def test_keys_and_values_are_those_of_key_value_heads() -> None:
    model = random_model(
        "llama", n_heads=4, n_kv_heads=2, d_head=4, d_model=12, rotary=Rotary(4), activation="silu"
    )
    clean, corrupt = pair(model)
    each = [
        path_patching(clean, corrupt, METRIC, senders=[("z", 0, 1)], receivers=[("key", 1, head)])
        for head in range(2)
    ]
    whole = path_patching(clean, corrupt, METRIC, senders=[("z", 0, 1)], receivers=[("key", 1)])
    sent = clean.rerun({("z", 0, 1): replace(corrupt)})[1].key
    for head, found in enumerate(each):
        key = clean[1].key.clone()
        key[:, head] = sent[:, head]
        expected = METRIC(clean.rerun({("key", 1): key}))
        assert torch.allclose(found.values[0, :, 1], expected, atol=1e-12)
    assert torch.allclose(
        whole.values[0, :, 1], METRIC(clean.rerun({("key", 1): sent})), atol=1e-12
    )
    with pytest.raises(EditError, match="kv_head 2"):
        path_patching(clean, corrupt, METRIC, receivers=[("key", 1, 2)])


def test_what_does_not_fit_is_an_error() -> None:
    model = random_model()
    clean, corrupt = pair(model)
    receivers: list[Place] = [("query", 1, 0)]
    with pytest.raises(EditError, match="single head"):
        path_patching(clean, corrupt, METRIC, receivers=receivers, senders=[("z", 0)])
    with pytest.raises(EditError, match=r"receivers: .*none of them"):
        path_patching(clean, corrupt, METRIC, receivers=[("probs", 1, 0)])
    with pytest.raises(EditError, match="at least one point"):
        path_patching(clean, corrupt, METRIC, receivers=[])
    with pytest.raises(EditError, match="same length"):
        path_patching(clean, model.trace([1, 2]), METRIC, receivers=receivers)
    with pytest.raises(TraceError, match="edits"):
        path_patching(clean.rerun({("z", 0): zero}), corrupt, METRIC, receivers=receivers)
