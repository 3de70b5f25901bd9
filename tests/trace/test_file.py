"""A saved trace is read again bit for bit, in parts, and never as another model's."""

import sys
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

import minibert
from minibert.layers.config import Config
from minibert.model import Model
from minibert.trace.read import Trace
from tests.families import LAYER_NAMES, Sizes, as_tokens, batch, hf_model

WITHOUT_WEIGHTS = ("resid_pre", "query", "key", "value", "scores", "probs", "z")
WITHOUT_WEIGHTS += ("resid_mid", "resid_post")
WITH_WEIGHTS = tuple(name for name in LAYER_NAMES if name not in WITHOUT_WEIGHTS)
FAMILIES = [("bert", "BertForPreTraining"), ("albert", "AlbertModel"), ("gpt2", "GPT2LMHeadModel")]


def random_model(family: str = "bert", name: str = "BertForMaskedLM", **changes: Any) -> Model:
    dtype = changes.pop("dtype", torch.float32)
    return Model.from_transformers(hf_model(family, name, Sizes(**changes), dtype))


def same_kept(ours: Trace, saved: Trace) -> None:
    """Everything the pass kept, bit for bit, and what is computed from it up to rounding."""
    assert set(ours.kept) == set(saved.kept)
    for name, value in saved.kept.items():
        assert torch.equal(ours.kept[name], value)
    assert len(ours.records) == len(saved.records)
    for mine, theirs in zip(ours.records, saved.records, strict=True):
        assert set(mine) == set(theirs)
        for name, value in theirs.items():
            assert mine[name].dtype == value.dtype
            assert torch.equal(mine[name], value), name
    assert torch.equal(ours.mask, saved.mask)
    for name in ("ids", "mask", "segments"):
        assert torch.equal(getattr(ours.tokens, name), getattr(saved.tokens, name))
    for name in ("raw", "strings", "spans", "words", "special", "texts"):
        assert getattr(ours.tokens, name) == getattr(saved.tokens, name)


@pytest.mark.parametrize(
    ("family", "name", "dtype"),
    [
        ("bert", "BertForPreTraining", torch.float64),
        ("roberta", "RobertaForSequenceClassification", torch.float32),
        ("albert", "AlbertForMaskedLM", torch.bfloat16),
        ("electra", "ElectraForPreTraining", torch.float32),
        ("gpt2", "GPT2LMHeadModel", torch.float16),
    ],
)
def test_a_padded_batch_comes_back_bit_for_bit(
    family: str, name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = random_model(family, name, layer_groups=2, scale_by_layer=True, dtype=dtype)
    trace = model.trace(as_tokens(batch(family)))
    assert trace.save(tmp_path / "a.trace") == tmp_path / "a.trace"
    for loaded in (Trace.load(tmp_path / "a.trace"), Trace.load(tmp_path / "a.trace", model)):
        same_kept(loaded, trace)
        assert loaded.model_name == trace.model_name
        assert loaded.config == trace.config
        assert len(loaded) == len(trace)
        for layer in range(len(trace)):
            for quantity in WITHOUT_WEIGHTS:
                got, wanted = (getattr(t[layer, -1], quantity) for t in (loaded, trace))
                # The file lays the heads out one after another, which may change the rounding.
                tolerance = 0 if quantity not in ("scores", "probs") else torch.finfo(dtype).eps
                assert torch.allclose(got, wanted, atol=4 * tolerance, rtol=tolerance)


@pytest.mark.parametrize(("family", "name"), FAMILIES)
def test_with_its_model_everything_can_be_read(family: str, name: str, tmp_path: Path) -> None:
    model = random_model(family, name, layer_groups=2)
    trace = model.trace(as_tokens(batch(family)))
    trace.save(tmp_path / "a.trace")
    loaded = Trace.load(tmp_path / "a.trace", model=model)
    for quantity in WITH_WEIGHTS:
        assert torch.allclose(loaded.stack(quantity), trace.stack(quantity), atol=1e-6)
    assert torch.equal(loaded.hidden, trace.hidden)
    if model.config.pooler:
        assert torch.allclose(loaded.pooled, trace.pooled, atol=1e-6)
    if name == "BertForPreTraining":
        found, expected = loaded.next_sentence_logits, trace.next_sentence_logits
        assert torch.allclose(found, expected, atol=1e-6)
    again = model.trace(loaded.tokens)
    assert torch.equal(again.logits, loaded.logits)


@pytest.mark.parametrize(("family", "name"), FAMILIES)
def test_without_its_model_what_needs_weights_is_an_error_that_says_so(
    family: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(family, name)
    model.trace(as_tokens(batch(family))).save(tmp_path / "a.trace")
    loaded = Trace.load(tmp_path / "a.trace")
    for quantity in WITH_WEIGHTS:
        for place in (loaded[1], loaded[1, 2]):
            with pytest.raises(minibert.TraceError, match=r"a\.trace.*without its model.*model="):
                getattr(place, quantity)
            assert not hasattr(place, quantity)
    for attribute in ("pooled", "next_sentence_logits"):
        with pytest.raises(minibert.TraceError):
            getattr(loaded, attribute)
    # Without the checks of annotations that only tests have.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(minibert.TraceError, match="without its model"):
        loaded.rerun({("z", 0): 0.0})
    assert len(loaded.attentions) == len(loaded)
    if family == "gpt2":
        with pytest.raises(minibert.TraceError, match="without its model"):
            _ = loaded.hidden
    else:
        assert torch.equal(loaded.hidden_states[-1], loaded[-1].resid_post)
    assert torch.equal(loaded[1, 2].product(3), loaded[1, 2].query[:, 3, None] * loaded[1, 2].key)
    window = loaded[1].window("probs", queries=slice(2, 5), keys=slice(1, 3))
    assert torch.allclose(window, loaded[1].probs[:, :, 2:5, 1:3], atol=1e-6)


def test_a_trace_that_stopped_early_stays_one(tmp_path: Path) -> None:
    until = 1
    model = random_model("gpt2", "GPT2LMHeadModel", layers=3)
    trace = model.trace(as_tokens(batch("gpt2")), until=until)
    trace.save(tmp_path / "a.trace")
    alone, whole = Trace.load(tmp_path / "a.trace"), Trace.load(tmp_path / "a.trace", model)
    same_kept(alone, trace)
    assert len(alone) == until + 1
    assert torch.equal(alone[until].resid_pre, trace[until].resid_pre)
    with pytest.raises(minibert.TraceError, match="without its model"):
        _ = alone[until].query
    assert torch.allclose(whole[until].probs, trace[until].probs, atol=1e-6)
    with pytest.raises(minibert.TraceError, match=f"until={until}"):
        _ = whole.logits
    with pytest.raises(minibert.TraceError, match=f"Layer {until + 1} was not computed"):
        whole[until + 1]


def test_matrices_that_were_kept_and_edits_are_in_the_file(tmp_path: Path) -> None:
    model = random_model()
    ids = torch.arange(7)[None]
    trace = model.trace(ids, keep=("scores", "probs"), edit={("mlp_out", 1): torch.ones(1, 7, 15)})
    trace.save(tmp_path / "a.trace")
    loaded = Trace.load(tmp_path / "a.trace")
    same_kept(loaded, trace)
    assert {"scores", "probs"} <= set(loaded.records[0])
    assert torch.equal(loaded[1].mlp_out, torch.ones(1, 7, 15))


def test_ids_without_a_tokenizer_keep_what_they_were_shown_as(tmp_path: Path) -> None:
    trace = random_model().trace(torch.tensor([[3, 1, 4], [1, 5, 9]]))
    trace.save(tmp_path / "a.trace")
    loaded = Trace.load(tmp_path / "a.trace")
    assert loaded.tokens.strings == (("3", "1", "4"), ("1", "5", "9"))
    assert loaded.words == ((None,) * 3,) * 2
    assert repr(loaded) == repr(trace)


def test_a_text_with_a_pair_is_there_in_every_script_and_can_be_viewed(tmp_path: Path) -> None:
    model = minibert.load()
    trace = model.trace(["Füße 🙂 \u2028 weren't", "leaves fall"], ["東京 <b>", "autumn"])
    trace.save(tmp_path / "a.trace")
    loaded = Trace.load(tmp_path / "a.trace")
    same_kept(loaded, trace)
    assert loaded.view(sentences=[1], lens=False).html == trace.view(sentences=[1], lens=False).html
    names = trace.to_transformer_lens()
    assert torch.equal(
        loaded.to_transformer_lens()["blocks.1.attn.hook_z"], names["blocks.1.attn.hook_z"]
    )


def test_a_trace_with_gradients_is_saved_without_them(tmp_path: Path) -> None:
    trace = random_model().trace(torch.arange(5)[None], grad=True)
    trace.save(tmp_path / "a.trace")
    loaded = Trace.load(tmp_path / "a.trace")
    same_kept(loaded, trace)
    assert not loaded[0].query.requires_grad


def test_a_loaded_trace_can_be_saved_again_over_its_own_file(tmp_path: Path) -> None:
    model = random_model()
    trace = model.trace(as_tokens(batch("bert")))
    trace.save(tmp_path / "a.trace")
    first = (tmp_path / "a.trace").read_bytes()
    loaded = Trace.load(tmp_path / "a.trace")
    loaded.save(tmp_path / "a.trace")
    same_kept(loaded, trace)
    assert (tmp_path / "a.trace").read_bytes() == first
    same_kept(Trace.load(tmp_path / "a.trace", model), trace)
    assert [path.name for path in tmp_path.iterdir()] == ["a.trace"]


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in memory."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel what is in memory")
def test_reading_one_head_loads_that_part_of_the_file_alone(tmp_path: Path) -> None:
    sizes = {"n_layers": 4, "n_heads": 16, "d_model": 256, "d_mlp": 8}
    config = Config(
        family="gpt2", task="none", vocab_size=5, n_positions=2048, causal=True, **sizes
    )
    model = Model.from_config(config)
    trace = model.trace(torch.zeros(1, 2048, dtype=torch.int64))
    size = trace.save(tmp_path / "a.trace").stat().st_size
    loaded = Trace.load(tmp_path / "a.trace")
    assert resident(tmp_path / "a.trace") < size / 20
    assert torch.equal(loaded[2, 9].query, trace[2, 9].query)
    # The kernel maps up to 2 MiB around what is touched.
    assert 0 < resident(tmp_path / "a.trace") <= 4 * 2**20 < size / 10
