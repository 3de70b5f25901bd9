"""A saved trace is read again bit for bit, in parts, and never as another model's.

A file that is not a whole trace is an error, and a save that fails leaves the old file.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import minibert
from minibert.layers import linear as backends
from minibert.layers.config import Config
from minibert.model import Model, from_transformers
from minibert.trace.container import read_container, write_container
from minibert.trace.identity import weights_digest
from minibert.trace.read import Trace
from tests.families import LAYER_NAMES, Sizes, as_tokens, batch, hf_model


def random_model(family: str = "bert", name: str = "BertForMaskedLM", **changes: Any) -> Model:
    dtype = changes.pop("dtype", torch.float32)
    return from_transformers(hf_model(family, name, Sizes(**changes), dtype))


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
    loaded = Trace.load(tmp_path / "a.trace", model)
    same_kept(loaded, trace)
    assert loaded.model_name == trace.model_name
    assert loaded.config == trace.config
    assert loaded.backends == trace.backends
    assert len(loaded) == len(trace)
    for layer in range(len(trace)):
        for quantity in LAYER_NAMES:
            got, wanted = (getattr(t[layer, -1], quantity) for t in (loaded, trace))
            # The file lays the heads out one after another, which may change the rounding.
            assert torch.allclose(got, wanted, atol=8 * torch.finfo(dtype).eps, rtol=1e-2), quantity


def test_a_trace_that_stopped_early_stays_one(tmp_path: Path) -> None:
    until = 1
    model = random_model("gpt2", "GPT2LMHeadModel", layers=3)
    trace = model.trace(as_tokens(batch("gpt2")), until=until)
    trace.save(tmp_path / "a.trace")
    whole = Trace.load(tmp_path / "a.trace", model)
    same_kept(whole, trace)
    assert len(whole) == until + 1
    assert torch.equal(whole[until].resid_pre, trace[until].resid_pre)
    assert torch.allclose(whole[until].probs, trace[until].probs, atol=1e-6)
    with pytest.raises(minibert.TraceError, match=f"until={until}"):
        _ = whole.logits
    with pytest.raises(minibert.TraceError, match=f"Layer {until + 1} was not computed"):
        whole[until + 1]


def test_a_text_with_a_pair_is_there_in_every_script_and_can_be_viewed(tmp_path: Path) -> None:
    model = minibert.load()
    trace = model.trace(["Füße 🙂 \u2028 weren't", "leaves fall"], ["東京 <b>", "autumn"])
    trace.save(tmp_path / "a.trace")
    loaded = Trace.load(tmp_path / "a.trace", model)
    same_kept(loaded, trace)
    assert loaded.view(sentences=[1], lens=False).html == trace.view(sentences=[1], lens=False).html


def test_a_loaded_trace_can_be_saved_again_over_its_own_file(tmp_path: Path) -> None:
    model = random_model()
    trace = model.trace(as_tokens(batch("bert")))
    trace.save(tmp_path / "a.trace")
    first = (tmp_path / "a.trace").read_bytes()
    loaded = Trace.load(tmp_path / "a.trace", model)
    loaded.save(tmp_path / "a.trace")
    same_kept(loaded, trace)
    assert (tmp_path / "a.trace").read_bytes() == first
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
    loaded = Trace.load(tmp_path / "a.trace", model)
    assert resident(tmp_path / "a.trace") < size / 20
    assert torch.equal(loaded[2, 9].query, trace[2, 9].query)
    # The kernel maps up to 2 MiB around what is touched.
    assert 0 < resident(tmp_path / "a.trace") <= 4 * 2**20 < size / 10


def one_weight_changed() -> Model:
    model = random_model()
    model.body.layers[1].attention.output.weight[3, 2] += 1e-6
    return model


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "other seed": (lambda: random_model(seed=1), "weights differ"),
    "one weight": (one_weight_changed, "weights differ"),
    "deeper": (lambda: random_model(layers=5), "n_layers 3 and 5"),
    "other task": (lambda: random_model(name="BertModel"), "task 'masked-lm' and 'none'"),
    "double": (lambda: random_model(dtype=torch.float64), r"float32, the model in float64.*dtype="),
    "other family": (lambda: random_model("gpt2", "GPT2LMHeadModel"), "family 'bert' and 'gpt2'"),
    "not ours": (lambda: hf_model("bert", "BertForMaskedLM"), "expected the model of the trace"),
    "a name": (lambda: "bert-base-uncased", "expected the model of the trace"),
}


def test_another_model_is_an_error_that_says_what_differs(tmp_path: Path, unchecked: None) -> None:
    random_model().trace(torch.arange(5)[None]).save(tmp_path / "a.trace")
    for make, said in OTHERS.values():
        with pytest.raises(minibert.TraceError, match=said):
            Trace.load(tmp_path / "a.trace", make())
    assert Trace.load(tmp_path / "a.trace", random_model())[0].mlp_out.shape == (1, 5, 15)


def test_the_digest_is_of_values_and_not_of_how_they_lie_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More rows than are turned at a time.
    theirs = hf_model("gpt2", "GPT2LMHeadModel", Sizes(d_mlp=131))
    theirs.save_pretrained(tmp_path)
    shared, mapped = from_transformers(theirs), minibert.load(tmp_path)
    assert not shared.body.layers[0].attention.query.weight.is_contiguous()
    copied = Model(shared.config)
    copied.load_state_dict(shared.state_dict())
    assert weights_digest(shared) == weights_digest(mapped) == weights_digest(copied)
    monkeypatch.setenv("MINIBERT_LINEAR", "onednn-packed")
    monkeypatch.setattr(backends, "PACK_FROM", 1)
    mapped = minibert.load(tmp_path)
    packed = mapped.is_packed
    assert weights_digest(mapped) == weights_digest(shared)
    assert mapped.is_packed == packed, "a packed copy was dropped"


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    about, tensors = read_container(path)
    return {name: tensor.clone() for name, tensor in tensors.items()}, about


def described_as(text: str) -> Callable[[Path], None]:
    return lambda path: save_file(load_file(path), path, metadata={"minibert.trace": text})


NO_TRACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no entry": (lambda path: save_file(load_file(path), path), r"not a trace.*minibert\.load"),
    "earlier": (described_as('{"version": 2}'), r"version 2.*reads version 5"),
    "no digest": (described_as('{"version": 5, "sha256": "0"}'), "no digest"),
    "no JSON": (described_as("{"), "damaged"),
    "a list": (described_as("[3]"), "damaged"),
    "deep": (described_as("[" * 10**5), "damaged"),
    "a header of 64 MB": (described_as(" " * 2**26), "a header of"),
    "20,000 tensors": (
        lambda path: save_file({str(i): torch.ones(0) for i in range(20_000)}, path),
        "20000 tensors",
    ),
}


def test_a_file_that_is_no_trace_is_an_error(tmp_path: Path) -> None:
    trace = (model := random_model(layers=1)).trace(torch.arange(5)[None])
    for change, said in NO_TRACES.values():
        path = trace.save(tmp_path / "a.trace")
        change(path)
        with pytest.raises(minibert.TraceError, match=rf"(?s)a\.trace.*{said}"):
            Trace.load(path, model)


def swapped(tensors: dict[str, Tensor], _: Any) -> None:
    query, key = "layers.0.query", "layers.0.key"
    tensors[query], tensors[key] = tensors[key], tensors[query]


def relabelled(tensors: dict[str, Tensor], _: Any) -> None:
    tensors["embed"] = tensors["embed"].view(torch.int32).view(torch.float32).view(torch.int32)


def spans(value: Any) -> Callable[[Any, dict[str, Any]], None]:
    return lambda _, about: about["tokens"]["spans"][0].__setitem__(1, value)


# With the right digest: of somebody who writes such files, or of another program.
DAMAGED: dict[str, tuple[Callable[[dict[str, Tensor], dict[str, Any]], Any], str]] = {
    "no config": (lambda _, a: a["model"].pop("config"), "damaged"),
    "odd config": (lambda _, a: a["model"]["config"].update(n_heads=0), "n_heads 0"),
    "more layers": (lambda _, a: a["model"]["config"].update(n_layers=4), "n_layers 4"),
    "no weights": (lambda _, a: a["model"].update(weights=["x"]), "weights differ"),
    "no words": (lambda _, a: a["tokens"].pop("words"), "damaged"),
    "short words": (lambda _, a: a["tokens"].update(words=[]), "damaged"),
    "a surrogate": (lambda _, a: a["tokens"].update(texts=[["\ud800"]] * 3), "damaged"),
    "a text that is a number": (lambda _, a: a["tokens"].update(texts=[[5]] * 3), "damaged"),
    "a word that is none": (lambda _, a: a["tokens"]["words"][0].__setitem__(1, "5"), "damaged"),
    "a span of three": (spans([0, 1, 2]), "damaged"),
    "a span behind the text": (spans([0, 10**6]), "damaged"),
    "a span that is a word": (spans("ab"), "damaged"),
    "odd until": (lambda _, a: a.update(until="x"), "damaged"),
    "until behind the end": (lambda _, a: a.update(until=7), "damaged"),
    "no back ends": (lambda _, a: a.update(backends={}), "damaged"),
    "no ids": (lambda t, _: t.pop("tokens.ids"), "damaged"),
    "ids outside": (lambda t, _: t["tokens.ids"].fill_(10**6), "damaged|outside"),
    "no embed": (lambda t, _: t.pop("embed"), "damaged"),
    "no stream": (lambda t, _: t.pop("layers.0.resid_post"), "no layers.0.resid_post"),
    "other batch": (lambda t, _: t.update(embed=t["embed"][:1].clone()), "embed has shape"),
    "whole numbers": (relabelled, "embed holds torch.int32"),
    "strange": (lambda t, _: t.update(strange=t["embed"].clone()), "damaged"),
}


def test_a_trace_whose_contents_do_not_fit_each_other_is_an_error(tmp_path: Path) -> None:
    trace = (model := random_model()).trace(as_tokens(batch("bert")))
    for change, said in DAMAGED.values():
        tensors, about = contents(trace.save(tmp_path / "a.trace"))
        change(tensors, about)
        write_container(tmp_path / "a.trace", tensors, about)
        with pytest.raises(minibert.TraceError, match=rf"(?s)a\.trace.*{said}"):
            Trace.load(tmp_path / "a.trace", model)


def test_what_was_changed_or_cut_after_it_was_saved_is_refused_wherever_it_was(
    tmp_path: Path,
) -> None:
    path = (model := random_model(layers=1)).trace(torch.arange(5)[None]).save(tmp_path / "a.trace")
    whole = path.read_bytes()
    for place in (*range(8), *range(8, len(whole), 97), len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(minibert.TraceError):
            Trace.load(path, model)
    for length in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(minibert.TraceError, match=r"a\.trace.*not a complete trace file"):
            Trace.load(path, model)
    path.write_bytes(whole)
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
    tensors = load_file(path)
    swapped(tensors, None)
    save_file(tensors, path, metadata=told)
    with pytest.raises(minibert.TraceError, match=r"do not fit its digest"):
        Trace.load(path, model)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    trace = random_model().trace(torch.arange(5)[None])
    for path, said in ((tmp_path, "is a folder"), (tmp_path / "no" / "a", "there is no folder")):
        with pytest.raises(minibert.TraceError, match=said):
            trace.save(path)


def test_a_full_disk_is_an_error_and_the_old_file_stays_whole(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = random_model().trace(torch.arange(5)[None]).save(tmp_path / "a.trace")
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(minibert.TraceError, match="could not be saved"):
            minibert.load().trace("leaves fall in autumn").save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [left.name for left in tmp_path.iterdir()] == ["a.trace"]
