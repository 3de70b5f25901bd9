"""Every family and task head, from transformers to minibert and back: files, names and numbers.

The oracle is the transformers model itself. A failed save harms nothing.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from vocabularies import byte_level

import minibert
from minibert.checkpoint.names import sources
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.model import Model, from_transformers
from minibert.text.tokenizer import Tokenizer
from tests import families
from tests.checkpoint import small_families
from tests.families import ARCHITECTURES, Sizes, as_tokens, batch, run_transformers, their_logits
from tests.rotary import classes

WHOLE = "model.safetensors"
# transformers keeps two biases where the decoder is not tied and reads the other one.
DECODED = ("LM", "LMHeadModel", "ForPreTraining")
UNREAD = ("cls.predictions.bias", "lm_head.bias", "predictions.bias")
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((family, name, {"tied": True}) for family, name in ARCHITECTURES),
    *((family, name, {"tied": False}) for family, name in ARCHITECTURES if name.endswith(DECODED)),
    *small_families.CASES,
]


def hf_model(family: str, name: str, options: dict[str, Any]) -> Any:
    if family in small_families.FAMILIES:
        return small_families.hf_model(family, name, **options)
    return families.hf_model(family, name, Sizes(layer_groups=2, scale_by_layer=True, **options))


def their_answer(model: Any) -> Tensor:
    """The logits, or the hidden states of a bare body."""
    family = model.config.model_type
    inputs = batch(family)
    if family in small_families.FAMILIES:
        inputs.pop("token_type_ids")
        with torch.no_grad():
            return real(their_logits(model(**inputs), type(model).__name__))
    return real(their_logits(run_transformers(model, inputs), type(model).__name__))


def our_answer(model: Model) -> Tensor:
    return real(model(as_tokens(batch(model.config.model_type))))


def real(answer: Tensor) -> Tensor:
    """What is said of texts, or of their tokens without padding."""
    mask = batch("bert")["attention_mask"].bool()
    return answer[mask] if answer.shape[:2] == mask.shape else answer


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def assert_same_tensors(found: dict[str, Tensor], wanted: dict[str, Tensor], unread: Any) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor) or name in unread, name


@pytest.mark.parametrize(("family", "name", "options"), CASES)
def test_a_checkpoint_comes_and_goes_without_a_change(family, name, options, tmp_path):
    theirs = hf_model(family, name, options)
    expected = their_answer(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = minibert.load(tmp_path / "theirs")
    assert our_answer(loaded).shape == expected.shape
    assert (our_answer(loaded) - expected).abs().max() <= 1e-5

    ours = from_transformers(theirs)
    theirs_memory = {memory(parameter) for parameter in theirs.parameters()}
    for parameter, source in sources(ours.config).items():
        if parameter in dict(ours.named_parameters()):
            assert (memory(ours.get_parameter(parameter)) in theirs_memory) == source.is_view
            assert source.is_view or family == "gpt_neox"
    unread = () if options.get("tied", True) else UNREAD

    assert ours.save(tmp_path / "ours") == tmp_path / "ours"
    written, wanted = (load_file(tmp_path / of / WHOLE) for of in ("ours", "theirs"))
    assert_same_tensors(written, wanted, unread)

    again, about = type(theirs).from_pretrained(
        tmp_path / "ours", attn_implementation="eager", output_loading_info=True
    )
    assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (their_answer(again.eval()) - expected).abs().max() <= 1e-6
    assert type(transformers.AutoConfig.from_pretrained(tmp_path / "ours")) is type(theirs.config)
    reloaded = minibert.load(tmp_path / "ours")
    assert reloaded.config == ours.config
    assert_same_tensors(dict(reloaded.named_parameters()), dict(ours.named_parameters()), ())


DECODERS = ("bert", "roberta", "distilbert", "electra", "albert", "gpt2", "llama", "modernbert")


@pytest.mark.parametrize("family", DECODERS)
def test_an_output_embedding_of_its_own_counts_even_where_the_config_says_tied(family, tmp_path):
    """As transformers 5 decides, which warns; earlier versions took the input embedding."""
    names = (families.CLASSES | classes.CLASSES)[family]
    ends = ("ForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM")
    name = next(name for name in names if name.endswith(ends))
    untied = {"tie_word_embeddings" if family in small_families.FAMILIES else "tied": False}
    theirs = hf_model(family, name, untied)
    theirs.config.tie_word_embeddings = True
    theirs.save_pretrained(
        tmp_path, state_dict={k: v.clone() for k, v in theirs.state_dict().items()}
    )
    again = type(theirs).from_pretrained(tmp_path, attn_implementation="eager").eval()
    model = minibert.load(tmp_path)
    assert (our_answer(model) - their_answer(again)).abs().max() <= 1e-5
    assert not model.config.tied


def test_a_saved_model_ends_a_text_where_its_tokenizer_does(tmp_path):
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path, ["<|endoftext|>"]))
    sizes = {"n_positions": 31, "n_layers": 1, "n_heads": 3, "d_model": 15, "d_mlp": 23}
    config = Config("gpt2", "causal-lm", tokenizer.vocab_size, **sizes)
    folder = Model.from_config(config, tokenizer=tokenizer).save(tmp_path / "model")
    about, marks = (
        transformers.AutoConfig.from_pretrained(folder),
        (tokenizer.bos_id, tokenizer.eos_id),
    )
    assert None not in marks
    assert (about.bos_token_id, about.eos_token_id) == marks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_are_written_in_the_type_asked_for(dtype, tmp_path):
    model = from_transformers(families.hf_model("gpt2", "GPT2LMHeadModel"))
    model.save(tmp_path, dtype=dtype)
    tensors = load_file(tmp_path / WHOLE)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    assert torch.equal(tensors["transformer.wte.weight"], model.body.word.weight.to(dtype))
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype="auto")
    assert again.dtype == dtype
    assert model.body.word.weight.dtype == torch.float32, "the model itself was converted"


def test_a_model_can_be_saved_where_it_was_loaded_from_and_nothing_else_is_left(tmp_path):
    theirs = families.hf_model("bert", "BertForMaskedLM")
    folder = from_transformers(theirs).save(tmp_path / "a" / "b")
    model = minibert.load(folder)
    ids = torch.arange(7)[None]
    before = model(ids)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    changed = model(ids)
    model.save(folder)
    assert torch.equal(model(ids), changed)
    assert torch.equal(minibert.load(folder)(ids), changed)
    assert not torch.equal(changed, before)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", WHOLE]
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in folder.iterdir()), "unreadable"


FULL = """
import resource, sys, minibert
model = minibert.load(sys.argv[1])
model.body.word.weight.zero_()
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    model.save(sys.argv[1])
except minibert.CheckpointError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit that stands for a full disk")
def test_a_full_disk_is_an_error_and_the_old_model_stays_whole(tmp_path):
    model = from_transformers(families.hf_model("bert", "BertForMaskedLM"))
    model.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(before[WHOLE]) > 5000
    # Of a Python of its own.
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(minibert.__file__).parents[1]
    )
    assert "could not be saved" in done.stdout, done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for place in (tmp_path / WHOLE, tmp_path / WHOLE / "below"):
        with pytest.raises(CheckpointError, match=rf"{WHOLE}.*could not be saved"):
            model.save(place)
    for nothing in (None, "", " ", 3, "a\0b", "\ud800"):
        with pytest.raises(CheckpointError, match="expected the path of a file or folder"):
            model.save(nothing)


def test_a_type_that_does_not_hold_the_weights_is_refused(tmp_path):
    model = from_transformers(families.hf_model("gpt2", "GPT2Model"))
    with pytest.raises(CheckpointError, match=r"dtype=torch\.int8; expected torch"):
        model.save(tmp_path / "new", dtype=torch.int8)
    model.body.word.weight[0, 0] = 1e6
    with pytest.raises(CheckpointError, match=r"wte\.weight.*float16"):
        model.save(tmp_path / "new", dtype=torch.float16)
    assert not (tmp_path / "new").exists()
