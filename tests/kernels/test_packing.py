"""Sentences that lie one after the other in a batch of one, each alone with itself."""

import pytest
import torch
from attention_inputs import D, H, outputs

from minibert.errors import AttentionError
from minibert.kernels import registry
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import attend, compute, implementations, register
from minibert.kernels.call import Call

LENGTHS = (5, 1, 150, 7)
TOKENS = sum(LENGTHS)
WANT = (
    "row_max",
    "max_prob",
    "entropy",
    "argmax",
    "received",
    ("key_mass", (0, 6)),
    ("offset_mass", (-2, 0, 1)),
)


def vectors(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shape = (3, 1, H, sum(LENGTHS), D)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).unbind()


def sentence_alone(first: int, length: int, causal: bool) -> dict[str, torch.Tensor]:
    """What the reference gives for one of the sentences; a key that it does not have gets 0."""
    tokens = slice(first, first + length)
    keys = tuple(position for position in (0, 6) if position < length)
    alone = attend(
        *(one[:, :, tokens] for one in vectors()),
        causal=causal,
        want=(*WANT[:5], ("key_mass", keys), WANT[6]),
        impl="reference",
    )
    found = outputs(alone)
    missing = found["key_mass"].new_zeros(1, H, length, 2 - len(keys))
    return found | {"key_mass": torch.cat([found["key_mass"], missing], dim=-1)}


@pytest.fixture
def mine(monkeypatch):
    monkeypatch.setattr(registry, "_IMPLEMENTATIONS", dict(registry._IMPLEMENTATIONS))
    monkeypatch.setattr(registry, "_CHOICES", {})
    calls = []

    def counted(query, key, value, *, scale, lengths, mask, want):
        calls.append(tuple(query.shape))
        given = {"scale": scale, "mask": mask, "want": want | {"lse": ()}, "lengths": lengths}
        return implementations()["eager"].fn(Call.of(query, key, value, **given))

    wants = [one if isinstance(one, str) else one[0] for one in (*WANT, "profile")]
    register("mine", counted, wants=wants)
    return calls


@pytest.mark.parametrize("length", [64, 65, 78, 128, 129])
def test_no_length_of_a_causal_sentence_is_special(length):
    # Up to 128 tokens are one block of rows, above that it is several of 64.
    shape, generator = (3, 1, H, length, D), torch.Generator().manual_seed(length)
    one = torch.randn(shape, generator=generator, dtype=torch.float64).unbind()
    expected = attend(*one, causal=True, impl="reference").z
    for impl in ("eager", "sdpa", "chunked"):
        found = attend(*one, packed=(length,), causal=True, want=("entropy",), impl=impl).z
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_each_sentence_gets_what_it_gets_alone_by_a_function_that_knows_padding_alone(causal, mine):
    packed = outputs(attend(*vectors(), packed=LENGTHS, causal=causal, want=WANT, impl="mine"))
    first = 0
    for length in LENGTHS:
        expected = sentence_alone(first, length, causal)
        assert packed.keys() == expected.keys()
        for name, output in expected.items():
            found = packed[name][:, :, first : first + length]
            torch.testing.assert_close(found, output, rtol=1e-12, atol=1e-12, msg=name)
        first += length
    # All of them come in one padded batch.
    assert mine == [(len(LENGTHS), H, max(LENGTHS), D)]


def test_gradients_reach_packed_sentences():
    query, key, value = (one.requires_grad_() for one in vectors())
    found = attend(query, key, value, packed=LENGTHS, want=("entropy",))
    got = torch.autograd.grad(found.z.sum() + found.statistics.entropy.sum(), query)[0]
    parts = [one.split(LENGTHS, dim=2) for one in (query, key, value)]
    alone = [attend(*part, want=("entropy",)) for part in zip(*parts, strict=True)]
    loss = sum(one.z.sum() + one.statistics.entropy.sum() for one in alone)
    torch.testing.assert_close(got, torch.autograd.grad(loss, query)[0])


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"packed": (5, 1)}, r"packed=\(5, 1\) holds 6 tokens.*a batch of one"),
        ({"packed": (0, 163)}, r"packed is \(0, 163\); expected.*whole numbers from 1"),
        ({"packed": "five"}, "packed is 'five'; expected"),
        ({"packed": ()}, r"packed is \(\); expected"),
        ({"lengths": torch.tensor([3])}, "packed comes with lengths; expected it without"),
        ({"want": ("map",)}, "packed sentences: map wanted, but each sentence"),
        ({"want": ("scores", "probs")}, "packed sentences: probs, scores wanted"),
        ({"want": (("key_mass", (150,)),)}, r"positions \[150\] do not exist"),
        (
            {"want": (("pair_mass", torch.tensor([[[0, 5]]])),)},
            r"pair 0 is \[0, 5\].*same sentence",
        ),
        ({"want": (("key_sums", torch.ones(1, 1, 5, 2)),)}, r"key_sums.*shape \(1, 1, 5, 2\)"),
        ({"want": (("key_sums", (1, 2)),)}, r"'key_sums' \(1, 2\); expected a tensor"),
        (
            {"want": ("profile",), "impl": "mine"},
            'impl="mine" cannot do this: it pads packed sentences, where profile cannot be given; '
            'impl="chunked" can',
        ),
        ({"impl": "flash"}, 'impl="flash" cannot do this: it takes no packed; impl="sdpa" can'),
    ],
)
def test_what_packed_sentences_cannot_have_is_refused(wrong, message, mine):
    with pytest.raises(AttentionError, match=message):
        attend(*vectors(), **({"packed": LENGTHS} | wrong))


def test_queries_of_packed_sentences_cannot_be_chosen():
    allowed = AllowedKeys(1, sum(LENGTHS), torch.device("cpu"), packed=LENGTHS)
    with pytest.raises(AttentionError, match="queries of packed sentences were chosen"):
        allowed.at((0, 2))
    query, key, value = vectors()
    with pytest.raises(AttentionError, match="packed sentences: given with bias"):
        compute(Call(query, key, value, 1.0, allowed, bias=torch.zeros(1, 1, 1, 1)))
