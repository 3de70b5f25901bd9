"""load.py: weights are what the file says, and no more memory is held than they take."""

import json
import math
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import minibert
from minibert.checkpoint import load
from minibert.checkpoint.files import Entry, MappedRegion
from minibert.checkpoint.load import Asked, empty_like, open_folder
from minibert.checkpoint.names import Source
from minibert.checkpoint.weights import to_checkpoint
from minibert.errors import CheckpointError
from minibert.layers.linear import Processor
from minibert.model import Model

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 31,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
MODELS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
    "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**GROUPED)),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**SIZES, rotary_pct=0.5)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
}


def saved(folder: Path, family: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """What the files of a small model hold; they are three or more."""
    torch.manual_seed(0)
    model = MODELS[family]().to(dtype)
    model.save_pretrained(folder, max_shard_size="30KB" if dtype.itemsize == 2 else "60KB")
    assert len(list(folder.glob("*.safetensors"))) >= 3
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for path in files for name, tensor in load_file(path).items()}


class Allocations(TorchDispatchMode):
    """Notes the bytes of all memory that operations below it take on the processor."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Tensor, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {memory(one) for one in tensors((args, kwargs))}
        for one in tensors(found):
            if one.device.type == "cpu" and memory(one) not in given:
                self.made.append((one, one.untyped_storage().nbytes()))
        return found

    def bytes_of(self, model: Model, *, own: bool) -> list[int]:
        """The bytes taken for parameters of the model, or for all else."""
        held = {memory(parameter) for parameter in model.parameters()}
        return [size for one, size in self.made if (memory(one) in held) == own]

    def beside(self, model: Model) -> int:
        """The most bytes of a tensor that is not a parameter of the model."""
        return max(self.bytes_of(model, own=False), default=0)

    def for_parameters(self, model: Model) -> int:
        """Bytes that were taken for the parameters of the model."""
        return sum(self.bytes_of(model, own=True))


def tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]


def memory(one: Tensor) -> int:
    return one.untyped_storage()._cdata


def filled(
    folder: Path, dtype: torch.dtype | None, device: torch.device | None = None
) -> tuple[Model, Allocations]:
    """A model with the weights of a folder, and what was allocated for them."""
    checkpoint = open_folder(folder, Asked(dtype=dtype), name="small")
    with torch.device("meta"):
        model = Model(checkpoint.config)
    with Allocations() as allocations:
        checkpoint.fill(model, device)
    return model, allocations


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.float64),
    ],
)
@pytest.mark.parametrize("family", MODELS)
def test_converted_weights_are_those_of_the_file_rounded_once(family, stored, asked, tmp_path):
    expected = saved(tmp_path, family, stored)
    model = minibert.load(tmp_path, dtype=asked)
    assert {parameter.dtype for parameter in model.parameters()} == {asked}
    found = to_checkpoint(model.config, dict(model.named_parameters()))
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor.to(asked)), name


@pytest.mark.parametrize("family", MODELS)
def test_weights_that_keep_their_type_are_views_of_their_files(family, tmp_path):
    saved(tmp_path, family, torch.bfloat16)
    model, allocations = filled(tmp_path, torch.bfloat16)
    copied = [one for one in model.parameters() if not hasattr(one, "mapped")]
    # GPT-NeoX stores query, key and value head by head: 3 weights and biases in each layer.
    assert len(copied) == (6 * SIZES["num_hidden_layers"] if family == "gpt_neox" else 0)
    assert allocations.for_parameters(model) == sum(one.nbytes for one in copied)
    assert family == "gpt_neox" or allocations.beside(model) <= 16
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("asked", [torch.float32, torch.float16])
@pytest.mark.parametrize("family", ["llama", "phi3", "gpt2", "bert"])
def test_a_converted_weight_is_held_once(family, asked, tmp_path):
    saved(tmp_path, family, torch.bfloat16)
    model, allocations = filled(tmp_path, asked)
    held = sum(parameter.nbytes for parameter in model.parameters())
    assert allocations.for_parameters(model) == held
    assert allocations.beside(model) <= 16


def test_what_goes_to_a_device_is_never_whole_on_the_processor(tmp_path, monkeypatch):
    saved(tmp_path, "llama", torch.bfloat16)
    released = []
    release = MappedRegion.release
    monkeypatch.setattr(
        MappedRegion, "release", lambda self: (released.append(self), release(self))[1]
    )
    model, allocations = filled(tmp_path, torch.float32, torch.device("meta"))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert allocations.beside(model) <= 16
    assert len({id(region) for region in released}) == len(list(model.parameters()))
    loaded = minibert.load(tmp_path, device="meta")
    assert {parameter.device.type for parameter in loaded.parameters()} == {"meta"}


@pytest.mark.parametrize("written_twice", [False, True])
def test_a_tied_output_embedding_in_another_file_is_held_once(written_twice, tmp_path):
    config = transformers.LlamaConfig(**GROUPED, tie_word_embeddings=True)
    theirs = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="30KB")
    if written_twice:
        save_file({"lm_head.weight": theirs.lm_head.weight.clone()}, tmp_path / "head.safetensors")
        path = tmp_path / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"]["lm_head.weight"] = "head.safetensors"
        path.write_text(json.dumps(index))
    model, allocations = filled(tmp_path, torch.float32)
    assert model.head.decoder.weight is model.body.word.weight
    held = sum(parameter.nbytes for parameter in model.parameters())
    assert allocations.for_parameters(model) == held
    ids = torch.arange(7)[None]
    expected = theirs.float()(ids).logits
    assert (model(ids) - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("asked", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_last_value_of_a_tensor_is_looked_at(value, asked, tmp_path):
    saved(tmp_path, "llama", torch.bfloat16)
    name = "model.layers.1.mlp.down_proj.weight"
    path = next(path for path in tmp_path.glob("*.safetensors") if name in load_file(path))
    found = load_file(path)
    found[name][-1, -1] = value
    found[name][0, 0] = value
    save_file(found, path)
    with pytest.raises(
        CheckpointError, match=r"mlp\.down_proj\.weight of .* holds 2 values that are"
    ):
        minibert.load(tmp_path, dtype=asked)


def entries(**counts: int) -> Mapping[str, tuple[Source, Entry]]:
    def unread() -> Tensor:
        raise AssertionError("the type is chosen before anything is read")

    return {
        name: (Source((name,)), Entry((count,), getattr(torch, name), unread))
        for name, count in counts.items()
    }


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"bfloat16": 10**9}, torch.float32),
        ({"bfloat16": 10**9 + 1}, torch.bfloat16),
        ({"float16": 2 * 10**9, "float32": 10**6}, torch.float16),
        ({"float32": 2 * 10**9, "bfloat16": 10**6}, torch.float32),
        ({"float64": 2 * 10**9}, torch.float64),
        ({"float64": 7}, torch.float64),
        ({"float64": 7, "float16": 8}, torch.float32),
        # Which is refused when it is read, by name.
        ({"int8": 8 * 10**9, "bfloat16": 10**6}, torch.bfloat16),
        ({"int8": 8 * 10**9}, torch.float32),
    ],
)
def test_a_small_model_is_float32_and_a_large_one_as_it_is_stored(stored, expected):
    assert load.default_dtype(entries(**stored)) == expected


def test_a_large_model_has_the_type_that_transformers_gives_it(tmp_path, monkeypatch):
    saved(tmp_path, "llama", torch.bfloat16)
    assert minibert.load(tmp_path).dtype == torch.float32
    monkeypatch.setattr(load, "MOST_IN_FLOAT32", 1000)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert minibert.load(tmp_path).dtype == theirs.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("features", "wide_enough", "stored", "expected"),
    [
        ({"avx512f", "amx_bf16"}, 8, torch.bfloat16, torch.bfloat16),
        ({"avx512_bf16"}, 8, torch.bfloat16, torch.bfloat16),
        ({"avx512f"}, 8, torch.bfloat16, torch.float32),
        ({"amx_bf16"}, 10**6, torch.bfloat16, torch.float32),
        # It would lose digits.
        ({"amx_bf16"}, 8, torch.float32, torch.float32),
        ({"amx_bf16"}, 8, torch.float16, torch.float32),
    ],
)
def test_auto_is_bfloat16_where_the_processor_the_width_and_the_file_say_so(
    tmp_path, monkeypatch, features, wide_enough, stored, expected
):
    saved(tmp_path, "llama", stored)
    monkeypatch.setattr(load, "processor", lambda: Processor("", "", frozenset(features)))
    monkeypatch.setattr(load, "WIDE_ENOUGH", wide_enough)
    assert minibert.load(tmp_path, dtype="auto").dtype == expected
    assert load.bfloat16_by(None, 1) == "a GPU"


def test_weights_for_which_there_is_no_room_are_an_error(tmp_path, monkeypatch):
    saved(tmp_path, "llama", torch.bfloat16)

    def full(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(torch, "empty_like", full)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight of .*: no room on cpu for"):
        minibert.load(tmp_path, dtype=torch.float32)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without huge pages")
@pytest.mark.parametrize(("rows", "asked"), [(2048, True), (64, False)])
def test_the_kernel_is_asked_for_huge_pages_of_large_tensors(rows, asked):
    made = empty_like(torch.empty(rows, 1537), torch.float32)
    middle = made.data_ptr() + made.nbytes // 2
    assert made.data_ptr() % (2**21 if asked else 64) == 0
    assert ("hg" in flags(middle)) == asked


def flags(address: int) -> list[str]:
    """Linux's flags of the memory at an address."""
    found: list[str] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            found = line.split()[1:]
    return found
