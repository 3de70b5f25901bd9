"""The rule of the linear back ends: what it says of each processor, and who may overrule it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

import minibert
from minibert.layers import linear_backends as backends
from minibert.layers.linear import describe

ALL = frozenset({torch.float32, torch.bfloat16, torch.float16})
AMD = backends.Processor("AuthenticAMD", "AMD EPYC 9554", frozenset({"avx2", "avx512f"}), ALL)
INTEL = replace(AMD, vendor="GenuineIntel", name="Intel Xeon", features=AMD.features | {"amx_tile"})
OTHER = backends.Processor("", "aarch64", frozenset(), ALL)
OLD_AMD = replace(AMD, features=frozenset({"avx"}))
WIDTH = 352


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("MINIBERT_LINEAR", raising=False)
    backends.use(None)
    yield
    monkeypatch.undo()
    backends.use(None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT whose smallest layer is too small to be packed alone, and query, key, value not."""
    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=13,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(tmp_path)
    return tmp_path


def pretend(monkeypatch: pytest.MonkeyPatch, processor: backends.Processor) -> None:
    """As if this machine had another processor; what its oneDNN can multiply stays true."""
    here = replace(processor, onednn_dtypes=backends.processor().onednn_dtypes)
    monkeypatch.setattr(backends, "processor", lambda: here)
    backends.use(None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_amd_packs_wide_weights_and_no_other_processor_does(dtype: torch.dtype) -> None:
    assert backends.backend_for(AMD, dtype, 512, 256).name == "onednn-packed"
    assert backends.backend_for(AMD, dtype, 512, 255).name == "torch"
    for processor in (INTEL, OTHER, OLD_AMD, replace(AMD, features=frozenset({"avx2"}))):
        assert backends.backend_for(processor, dtype, 2048, 2048).name == "torch"


@pytest.mark.parametrize("name", backends.NAMES)
def test_float64_goes_through_torch_whatever_is_named(name: str) -> None:
    choice = backends.backend_for(AMD, torch.float64, 999, 999, name=name)
    assert choice == ("torch", "oneDNN does not multiply float64 here")


@pytest.mark.parametrize("name", backends.NAMES)
@pytest.mark.parametrize("by", ["use", "environment", "both"])
def test_what_is_named_overrules_the_processor(
    name: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, INTEL)
    if by != "use":
        monkeypatch.setenv("MINIBERT_LINEAR", name if by == "environment" else "torch")
        backends.use(None)
    if by != "environment":
        backends.use(name)
    assert backends.chosen(torch.float32, 512, 512).name == name
    monkeypatch.delenv("MINIBERT_LINEAR", raising=False)
    backends.use(None)
    assert backends.chosen(torch.float32, 512, 512).rule.startswith("Intel")


def test_an_unknown_name_is_an_error_that_lists_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(minibert.MinibertError, match=r"'mkl'.*torch, onednn-packed"):
        backends.use("mkl")
    monkeypatch.setenv("MINIBERT_LINEAR", "mkl")
    backends.use(None)
    with pytest.raises(minibert.MinibertError, match=r"MINIBERT_LINEAR='mkl'.*onednn-packed"):
        backends.chosen(torch.float32, 512, 512)


def test_this_processor_is_read_as_the_system_tells_it() -> None:
    here = backends.processor()
    assert here.name
    assert torch.float64 not in here.onednn_dtypes
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        assert "avx2" in here.features


@pytest.mark.parametrize("processor", [AMD, INTEL, OTHER])
def test_a_file_is_packed_on_amd_and_not_elsewhere(
    processor: backends.Processor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, processor)
    if torch.float32 not in backends.processor().onednn_dtypes:
        pytest.skip("this torch has no oneDNN")
    model, ids = minibert.load(folder), torch.tensor([[5, 7, 11]])
    reached: list[bool] = []
    run = backends.onednn_linear
    monkeypatch.setattr(
        backends,
        "onednn_linear",
        lambda x, weight, *rest: reached.append(True) or run(x, weight, *rest),
    )
    model(ids)
    amd = processor is AMD
    assert model.is_packed == amd
    # query, key and value as one, up and down.
    assert len(reached) == (3 if amd else 0)
    assert describe(model).startswith(
        f"{'onednn-packed' if amd else 'torch'} ({processor.name}; rule: "
    )
    model.unpack()
    assert not model.is_packed
    reached.clear()
    model(ids)
    assert not reached
