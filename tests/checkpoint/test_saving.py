"""A saved model is what transformers and minibert load again, and a failed save harms nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from vocabularies import BERT_MARKS, TEXT, byte_level, word_piece

import minibert
from minibert.checkpoint.save import save, write_tensors
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from tests.families import (
    hf_model,
)

ROOT = str(Path(minibert.__file__).parents[1])


def random_model(family: str, tokenizer: Any) -> Model:
    config = Config(
        family=family,
        task="causal-lm" if family == "gpt2" else "masked-lm",
        vocab_size=tokenizer.vocab_size,
        n_positions=31,
        n_layers=1,
        n_heads=3,
        d_model=15,
        d_mlp=23,
        n_segments=0 if family == "gpt2" else 2,
        pad_id=tokenizer.pad_id,
    )
    return Model.from_config(config, tokenizer=tokenizer)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_tokenizer_is_saved_with_the_model(family: str, tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocabulary"
    vocabulary.mkdir()
    if family == "bert":
        word_piece(vocabulary)
    else:
        byte_level(vocabulary, ["<|endoftext|>"])
    model = random_model(family, minibert.Tokenizer.from_folder(vocabulary))
    folder = save(model, tmp_path / "model")
    ours, theirs = minibert.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXT[:4]:
        assert ours.tokenize(text).ids.tolist() == model.tokenize(text).ids.tolist()
        assert theirs(text)["input_ids"] == model.tokenize(text).ids[0].tolist()
    assert ours.tokenizer.mask_id == model.tokenizer.mask_id
    if family == "bert":
        assert theirs.mask_token_id == BERT_MARKS.index("[MASK]")
        pair = model.tokenize("quick fox", "lazy dog")
        assert ours.tokenize("quick fox", "lazy dog").segments.tolist() == pair.segments.tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_are_written_in_the_type_asked_for(dtype: torch.dtype, tmp_path: Path) -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    save(model, tmp_path, dtype=dtype)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    assert torch.equal(tensors["transformer.wte.weight"], model.body.word.weight.to(dtype))
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype="auto")
    assert again.dtype == dtype
    assert model.body.word.weight.dtype == torch.float32, "the model itself was converted"


def test_a_model_can_be_saved_where_it_was_loaded_from(tmp_path: Path) -> None:
    save(from_transformers(hf_model("bert", "BertForMaskedLM")), tmp_path)
    model = minibert.load(tmp_path)
    ids = torch.arange(7)[None]
    before = model(ids)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    changed = model(ids)
    save(model, tmp_path)
    assert torch.equal(model(ids), changed)
    assert torch.equal(minibert.load(tmp_path)(ids), changed)
    assert not torch.equal(changed, before)


def test_nothing_but_the_model_is_left_in_the_folder(tmp_path: Path) -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    for _ in range(2):
        save(model, tmp_path / "deep" / "inside")
    left = sorted(path.name for path in (tmp_path / "deep" / "inside").iterdir())
    assert left == ["config.json", "model.safetensors"]
    for name in left:
        assert (tmp_path / "deep" / "inside" / name).stat().st_mode & 0o444 == 0o444, "unreadable"


def test_a_place_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(minibert.CheckpointError, match=r"file.*could not be saved"):
            save(model, place)


FULL = """
import resource, sys, minibert
from minibert.checkpoint.save import save
from minibert.text.tokenizer import Tokenizer
model = minibert.load(sys.argv[1])
model.body.word.weight.zero_()
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    save(model, sys.argv[1])
except minibert.CheckpointError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit that stands for a full disk")
def test_a_full_disk_is_an_error_and_the_old_model_stays_whole(tmp_path: Path) -> None:
    model = from_transformers(hf_model("bert", "BertForMaskedLM"))
    save(model, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(before["model.safetensors"]) > 5000
    program = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "could not be saved" in done.stdout, done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_config_is_what_transformers_would_write(tmp_path: Path) -> None:
    theirs = hf_model("roberta", "RobertaForMaskedLM")
    save(from_transformers(theirs), tmp_path)
    ours = json.loads((tmp_path / "config.json").read_text())
    wanted = theirs.config.to_dict()
    assert ours["architectures"] == ["RobertaForMaskedLM"]
    assert ours["dtype"] == "float32"
    for name in set(ours) - {"architectures", "dtype", "id2label"}:
        assert ours[name] == wanted[name], name


def test_weights_too_large_for_the_type_are_not_saved(tmp_path: Path) -> None:
    model = Model.from_config(
        Config(
            family="gpt2",
            task="none",
            vocab_size=5,
            n_positions=7,
            n_layers=1,
            n_heads=1,
            d_model=3,
            d_mlp=2,
        )
    )
    model.body.word.weight[0, 0] = 1e6
    with pytest.raises(minibert.CheckpointError, match=r"wte\.weight.*float16"):
        save(model, tmp_path / "model", dtype=torch.float16)
    assert not (tmp_path / "model").exists()


def test_transformers_ends_a_text_where_the_tokenizer_ends_it(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path, ["<|endoftext|>"]))
    model = random_model("gpt2", tokenizer)
    assert tokenizer.eos_id is not None
    config = transformers.AutoConfig.from_pretrained(save(model, tmp_path / "model"))
    assert (config.bos_token_id, config.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id)


def test_numbers_of_several_dtypes_are_laid_out_as_safetensors_does(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3).half(),
        "é": torch.randn(2, 5).double(),
        "b": torch.randn(7, 0),
        "c": torch.randn(()).bfloat16(),
        "d": torch.randn(3, 2).t(),
    }
    shapes = {name: (tuple(one.shape), one.dtype) for name, one in tensors.items()}
    write_tensors(tmp_path / "ours", shapes, lambda name: tensors[name])
    save_file(
        {name: one.contiguous() for name, one in tensors.items()},
        tmp_path / "theirs",
        metadata={"format": "pt"},
    )
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_dtype_that_files_do_not_hold_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path, ["<|endoftext|>"]))
    model = random_model("gpt2", tokenizer)
    with pytest.raises(CheckpointError, match=r"torch\.int8 is not saved; expected dtype= one of"):
        save(model, tmp_path / "new", dtype=torch.int8)
    assert not (tmp_path / "new").exists()


def test_saving_holds_one_tensor_beside_the_model(tmp_path: Path) -> None:
    script = """
import resource, sys
from minibert.layers.config import Config
from minibert.model import Model
from minibert.checkpoint.save import save
from minibert.checkpoint.save import write_tensors
from minibert.checkpoint.weights import to_checkpoint
from minibert.errors import CheckpointError
import torch
config = Config(family="gpt2", task="causal-lm", vocab_size=997, n_positions=31, n_layers=24,
                n_heads=4, d_model=512, d_mlp=2048, n_segments=0)
model = Model.from_config(config)
torch.zeros(3).half().aminmax()
size = sum(one.nbytes for one in model.parameters())
largest = max(one.nbytes for one in model.parameters())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
save(model, sys.argv[1])
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
print(size, largest, grown)
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    size, largest, grown = map(int, run.stdout.split())
    assert size > 250 << 20
    # Query, key and value are one tensor there; 8 MiB for the rest of the process.
    assert grown <= 4 * largest + (8 << 20)
