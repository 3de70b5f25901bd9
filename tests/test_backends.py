"""The rule of the linear back ends: what it says of each processor, and who may overrule it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

import minibert
from minibert.layers import linear_backends as backends
from minibert.layers.packing import describe

ALL = frozenset({torch.float32, torch.bfloat16, torch.float16})
AMD = backends.Processor("AuthenticAMD", "AMD EPYC 9554", frozenset({"avx2", "avx512f"}), ALL)
INTEL = replace(AMD, vendor="GenuineIntel", name="Intel Xeon", features=AMD.features | {"amx_tile"})
OTHER = backends.Processor("", "aarch64", frozenset(), ALL)
OLD_AMD = replace(AMD, features=frozenset({"avx"}))
WIDTH = 320


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
    assert backends.backend_for(AMD, dtype, 512, 512).name == "onednn-packed"
    unpacked = "onednn" if dtype == torch.float32 else "torch"
    assert backends.backend_for(AMD, dtype, 512, 511).name == unpacked
    for processor in (INTEL, OTHER, OLD_AMD):
        assert backends.backend_for(processor, dtype, 512, 512).name == "torch"
        assert backends.backend_for(processor, dtype, 512, 512, rows=128).name == "torch"


def test_on_amd_small_calls_in_float32_stay_with_torch() -> None:
    def name(rows: int, d_in: int = 128, d_out: int = 128) -> str:
        return backends.backend_for(AMD, torch.float32, d_in, d_out, rows=rows).name

    assert [name(1), name(63), name(64), name(1024)] == ["torch", "torch", "onednn", "onednn"]
    assert name(1, 1024, 1024) == "onednn"


def test_on_intel_few_rows_are_multiplied_by_the_transposed_product() -> None:
    def name(rows: int | None, d_in: int, d_out: int, processor: backends.Processor = INTEL) -> str:
        return backends.backend_for(processor, torch.float32, d_in, d_out, rows=rows).name

    by_rows = [name(rows, 2048, 8192) for rows in (1, 6, 7, 15, 16, 48, 49, 512)]
    assert by_rows == ["torch"] * 2 + ["torch-transposed"] * 4 + ["torch"] * 2
    assert [name(rows, 1024, 1024) for rows in (15, 16)] == ["torch", "torch-transposed"]
    assert [name(16, d_in, 1024) for d_in in (768, 256)] == ["torch", "torch"]
    assert [name(16, 1024, d_out) for d_out in (511, 512)] == ["torch", "torch-transposed"]
    assert name(None, 2048, 8192) == "torch"
    assert name(16, 2048, 8192, replace(INTEL, features=frozenset({"avx2"}))) == "torch"
    for dtype in (torch.bfloat16, torch.float16):
        assert backends.backend_for(INTEL, dtype, 2048, 8192, rows=16).name == "torch"


@torch.no_grad()
def test_the_transposed_product_errs_at_most_twice_as_much_as_torch_where_it_is_chosen() -> None:
    if backends.chosen(torch.float32, 2048, 512, rows=7).name != "torch-transposed":
        pytest.skip("the rule chooses it on Intel processors with AVX-512 alone")
    torch.manual_seed(0)
    for rows, d_in, d_out in ((7, 2048, 512), (15, 4096, 512), (16, 1024, 768), (48, 3072, 768)):
        x, weight = torch.randn(rows, d_in), torch.randn(d_out, d_in) / d_in**0.5
        exact = x.double() @ weight.double().t()
        run = backends.unpacked_run(torch.float32, rows, d_in, d_out)
        theirs, ours = (
            (multiply(x, weight, None) - exact).square().mean().sqrt()
            for multiply in (backends.torch_linear, run)
        )
        assert ours <= 2 * theirs, (rows, d_in, d_out)


@pytest.mark.parametrize("name", backends.NAMES)
def test_float64_goes_through_torch_whatever_is_named(name: str) -> None:
    for rows in (None, 5):
        choice = backends.backend_for(AMD, torch.float64, 999, 999, rows=rows, name=name)
        assert choice == ("torch", "oneDNN does not multiply float64 here")


@pytest.mark.parametrize("name", backends.NAMES)
@pytest.mark.parametrize("by", ["use", "environment", "both"])
def test_what_is_named_overrules_the_processor(
    name: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, INTEL)
    if by != "use":
        monkeypatch.setenv("MINIBERT_LINEAR", name if by == "environment" else "onednn")
        backends.use(None)
    if by != "environment":
        backends.use(name)
    assert backends.chosen(torch.float32, 512, 512).name == name
    unpacked = name.removesuffix("-packed")
    assert backends.chosen(torch.float32, 512, 512, rows=1).name == unpacked
    monkeypatch.delenv("MINIBERT_LINEAR", raising=False)
    backends.use(None)
    assert backends.chosen(torch.float32, 512, 512).rule.startswith("Intel")


def test_an_unknown_name_is_an_error_that_lists_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        minibert.MinibertError, match=r"'mkl'.*torch, torch-transposed, onednn, onednn-packed"
    ):
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
        lambda x, weight, *rest: reached.append(weight.is_mkldnn) or run(x, weight, *rest),
    )
    model(ids)
    amd = processor is AMD
    assert model.is_packed == amd
    # query, key and value as one, up and down.
    assert sum(reached) == (3 if amd else 0)
    assert describe(model).startswith(
        f"{'onednn-packed' if amd else 'torch'} ({processor.name}; rule: "
    )
    model.unpack()
    assert not model.is_packed
    reached.clear()
    model(ids)
    assert not any(reached)


def test_a_weight_that_two_modules_hold_and_one_with_a_hook_are_not_packed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = minibert.load(folder)
    model.unpack()
    mlp = model.body.groups[0].mlp
    mlp.down.register_forward_hook(lambda *_: None)
    mlp.other = torch.nn.Linear(2, 2)
    mlp.other.weight = mlp.up.weight
    backends.use("onednn-packed")
    model.pack()
    assert mlp.up.one_matrix is None
    assert mlp.down.one_matrix is None
    assert model.is_packed == (torch.float32 in backends.processor().onednn_dtypes)


@torch.no_grad()
def test_what_could_not_be_packed_is_packed_later_and_no_weight_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "PACK_FROM", 1)
    backends.use("onednn-packed")
    model, ids = minibert.load(folder), torch.tensor([[5, 7, 11]])
    if not model.is_packed:
        pytest.skip("this torch has no oneDNN")
    attention = model.body.groups[0].attention
    assert attention._qkv.one_matrix.packed
    model.unpack()
    hook = attention.query.register_forward_hook(lambda *_: None)
    model.pack()
    hook.remove()
    model.pack()
    assert attention._qkv.one_matrix is None
    alone = [attention.query.one_matrix, attention.key.one_matrix, attention.value.one_matrix]
    assert all(one.packed for one in alone)
    before = model(ids)
    attention.key.weight.data.mul_(-2)
    changed = model(ids)
    model.unpack()
    assert not torch.allclose(changed, before, atol=1e-3)
    assert (changed - model(ids)).abs().max() <= 1e-5
