"""A saved model is what transformers and minibert load again, and a failed save harms nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from vocabularies import BERT_MARKS, TEXT, byte_level, word_piece

import minibert
from minibert.checkpoint.save import save
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from tests.families import hf_model

WHOLE = "model.safetensors"
ROOT = str(Path(minibert.__file__).parents[1])


def random_model(family: str, tokenizer: Tokenizer) -> Model:
    sizes = {"n_positions": 31, "n_layers": 1, "n_heads": 3, "d_model": 15, "d_mlp": 23}
    task, segments = ("causal-lm", 0) if family == "gpt2" else ("masked-lm", 2)
    more = {"n_segments": segments, "pad_id": tokenizer.pad_id}
    config = Config(family, task, tokenizer.vocab_size, **sizes, **more)
    return Model.from_config(config, tokenizer=tokenizer)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_tokenizer_is_saved_with_the_model(family, tmp_path):
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
        return
    config = transformers.AutoConfig.from_pretrained(folder)
    known = (model.tokenizer.bos_id, model.tokenizer.eos_id)
    assert None not in known
    # It ends a text where the tokenizer ends it.
    assert (config.bos_token_id, config.eos_token_id) == known


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_are_written_in_the_type_asked_for(dtype, tmp_path):
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    save(model, tmp_path, dtype=dtype)
    tensors = load_file(tmp_path / WHOLE)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    assert torch.equal(tensors["transformer.wte.weight"], model.body.word.weight.to(dtype))
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype="auto")
    assert again.dtype == dtype
    assert model.body.word.weight.dtype == torch.float32, "the model itself was converted"


def test_a_model_can_be_saved_where_it_was_loaded_from_and_nothing_else_is_left(tmp_path):
    folder = save(from_transformers(hf_model("bert", "BertForMaskedLM")), tmp_path / "a" / "b")
    model = minibert.load(folder)
    ids = torch.arange(7)[None]
    before = model(ids)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    changed = model(ids)
    save(model, folder)
    assert torch.equal(model(ids), changed)
    assert torch.equal(minibert.load(folder)(ids), changed)
    assert not torch.equal(changed, before)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", WHOLE]
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in folder.iterdir()), "unreadable"


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


def run(script: str, folder: Path) -> str:
    """What a Python of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the limit that stands for a full disk")
def test_a_full_disk_is_an_error_and_the_old_model_stays_whole(tmp_path):
    model = from_transformers(hf_model("bert", "BertForMaskedLM"))
    save(model, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(before[WHOLE]) > 5000
    assert "could not be saved" in run(FULL, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for place in (tmp_path / WHOLE, tmp_path / WHOLE / "below"):
        with pytest.raises(CheckpointError, match=rf"{WHOLE}.*could not be saved"):
            save(model, place)


def test_a_type_that_does_not_hold_the_weights_is_refused(tmp_path):
    model = from_transformers(hf_model("gpt2", "GPT2Model"))
    with pytest.raises(CheckpointError, match=r"torch\.int8 is not saved; expected dtype= one of"):
        save(model, tmp_path / "new", dtype=torch.int8)
    model.body.word.weight[0, 0] = 1e6
    with pytest.raises(CheckpointError, match=r"wte\.weight.*float16"):
        save(model, tmp_path / "new", dtype=torch.float16)
    assert not (tmp_path / "new").exists()
