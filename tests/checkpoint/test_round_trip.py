"""Every family and task head, from transformers to minibert and back: files, names and numbers.

The oracle is the transformers model itself.
"""

from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

import minibert
from minibert.checkpoint.save import save
from minibert.checkpoint.weights import sources
from minibert.loading import from_transformers
from minibert.model import Model
from tests import families
from tests.checkpoint import small_families
from tests.families import ARCHITECTURES, Sizes, as_tokens, batch, run_transformers, their_logits
from tests.rotary import classes

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
    assert_same_tensors(ours.to_state_dict(), theirs.state_dict(), unread)

    assert save(ours, tmp_path / "ours") == tmp_path / "ours"
    written, wanted = (load_file(tmp_path / of / "model.safetensors") for of in ("ours", "theirs"))
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
