"""What is measured while a model generates is what its own matrices say of the whole text."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import minibert
from minibert import TraceError
from tests.attached.live_models import VOCABULARY, bart, gpt2, ids, llama

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 8,
    "num_key_value_heads": 2, "hidden_size": 48, "intermediate_size": 40, "initializer_range": 0.3,
    "max_position_embeddings": 64, "sliding_window": 5,
}  # fmt: skip
WANT = ("entropy", "max_prob", "argmax", "received", ("key_mass", (9, 0)), ("offset_mass", (-1, 2)))
N_PROMPT, N_NEW = 7, 9


def of_class(kind: Any, config: Any, **more: float) -> Any:
    torch.manual_seed(0)
    return kind(config(**(SIZES | more))).eval()


MODELS = {
    "llama": llama,
    "gpt2": gpt2,
    "mistral": lambda: of_class(MistralForCausalLM, MistralConfig),
    "gemma2": lambda: of_class(Gemma2ForCausalLM, Gemma2Config),
    "gpt_oss": lambda: of_class(
        GptOssForCausalLM,
        GptOssConfig,
        num_local_experts=4,
        num_experts_per_tok=2,
        initializer_range=0.1,
    ),
}
WAYS = [(name, "eager") for name in MODELS] + [(n, "sdpa") for n in ("llama", "gpt2", "mistral")]


@pytest.mark.parametrize("cache", ["dynamic", "static", "left padding"])
@pytest.mark.parametrize(("name", "way"), WAYS)
def test_a_generation_is_measured_as_its_matrices_say(name: str, way: str, cache: str) -> None:
    # In float64 transformers gives NaN beside padding, and no experts of GPT-OSS.
    narrow = name == "gpt_oss" or cache == "left padding"
    model = MODELS[name]().to(torch.float32 if narrow else torch.float64)
    model.set_attn_implementation(way)
    mask = torch.ones(2, N_PROMPT, dtype=torch.long)
    options: dict[str, Any] = {"max_new_tokens": N_NEW, "do_sample": False, "eos_token_id": None}
    options |= {"pad_token_id": 0, "input_ids": ids(2, N_PROMPT), "attention_mask": mask}
    if cache == "left padding":
        mask[0, :3] = 0
    elif cache == "static":
        options["cache_implementation"] = "static"
    plain = model.generate(**options)
    with minibert.measuring(model, want=WANT) as seen:
        assert torch.equal(model.generate(**options), plain)
    text = plain[:, :-1]
    real = torch.cat([mask, torch.ones(2, N_NEW - 1, dtype=torch.long)], 1)
    positions = (real.cumsum(-1) - 1).clamp_min(0)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        said = model(
            text, attention_mask=real, position_ids=positions, output_attentions=True
        ).attentions
    for layer, probs in enumerate(said):
        rows = real.bool()[:, None]
        agrees(seen[layer], torch.where(rows[..., None], probs, 0), rows)


def agrees(found: Any, probs: Tensor, real: Tensor) -> None:
    """The statistics of a layer are those of its matrices; padding rows have none."""
    expected = {
        "entropy": torch.special.entr(probs).sum(-1),
        "max_prob": probs.amax(-1),
        "received": probs.sum(2),
        "key_mass": probs[..., [9, 0]],
        "offset_mass": torch.stack([shifted(probs, -1), shifted(probs, 2)], -1),
    }
    for name, numbers in expected.items():
        # transformers takes its softmax in float32, also of a model in float64.
        assert (getattr(found, name) - numbers).abs().max() < 1e-5, name
    assert ((found.argmax == probs.argmax(-1)) | ~real).all()


def shifted(probs: Tensor, offset: int) -> Tensor:
    """The weight at an offset of each query, 0 where there is no such key."""
    diagonal = probs.diagonal(offset, 2, 3)
    return torch.nn.functional.pad(diagonal, (max(0, -offset), max(0, offset)))


def test_stacks_runs_and_gradients() -> None:
    model = bart().double()
    with minibert.measuring(model) as seen:
        out = model(input_ids=ids(2, 7), decoder_input_ids=ids(2, 5))
        model(input_ids=ids(1, 6), decoder_input_ids=ids(1, 4))
    assert len(seen.runs) == 2
    assert out.last_hidden_state.requires_grad
    model.set_attn_implementation("eager")
    for run, inputs in zip(
        seen.runs, [(ids(2, 7), ids(2, 5)), (ids(1, 6), ids(1, 4))], strict=True
    ):
        with torch.no_grad():
            own = model(input_ids=inputs[0], decoder_input_ids=inputs[1], output_attentions=True)
        assert (run["encoder"][1].received - own.encoder_attentions[1].sum(2)).abs().max() < 1e-5
        crossed = own.cross_attentions[2].sum(2)
        assert (run["decoder.cross"][2].received - crossed).abs().max() < 1e-5
    with pytest.raises(TraceError, match=r"choose one of 'encoder', 'decoder\.self'"):
        seen[0]


@pytest.mark.parametrize("use_cache", [True, False])
def test_an_encoder_and_a_decoder_generate(use_cache: bool) -> None:
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=VOCABULARY, d_model=48, encoder_layers=2, decoder_layers=2, init_std=0.3,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=40,
        decoder_ffn_dim=40, max_position_embeddings=64, forced_eos_token_id=None,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).eval().double()
    options: dict[str, Any] = {"max_new_tokens": N_NEW, "do_sample": False, "eos_token_id": None}
    options |= {"input_ids": ids(2, N_PROMPT), "use_cache": use_cache}
    plain = model.generate(**options)
    with minibert.measuring(model) as seen:
        for _ in range(2):
            assert torch.equal(model.generate(**options), plain)
    assert len(seen.runs) == (2 if use_cache else 2 * N_NEW)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(ids(2, N_PROMPT), decoder_input_ids=plain[:, :-1], output_attentions=True)
    said = {"decoder.self": own.decoder_attentions, "decoder.cross": own.cross_attentions}
    said |= {"encoder": own.encoder_attentions} if use_cache else {}
    for stack, layers in said.items():
        for found, probs in zip(seen[stack], layers, strict=True):
            assert (found.received - probs.sum(2)).abs().max() < 1e-5
            assert (found.entropy - torch.special.entr(probs).sum(-1)).abs().max() < 1e-5


def test_each_cache_has_its_run_and_an_error_leaves_nothing_behind() -> None:
    model = llama()
    first, second = DynamicCache(), DynamicCache()
    with torch.no_grad(), minibert.measuring(model, want=("entropy",)) as seen:
        model(ids(2, 4), past_key_values=first)
        model(ids(1, 5), past_key_values=second)
        with pytest.raises(IndexError):
            model(torch.tensor([[VOCABULARY]]))
        model(ids(2, 3), past_key_values=first)
    whole = torch.cat([ids(2, 4), ids(2, 3)], 1)
    with torch.no_grad(), minibert.measuring(model, want=("entropy",)) as alone:
        model(whole)
    assert [run["layers"][0].n_queries for run in seen.runs] == [7, 5]
    assert torch.allclose(seen.runs[0]["layers"][2].entropy, alone[2].entropy, atol=1e-5)
    with pytest.raises(TraceError, match="7 tokens that were not"), minibert.measuring(model):
        model(ids(2, 1), past_key_values=first)


def test_what_is_not_measured_is_said() -> None:
    model = gpt2()
    with minibert.measuring(model, want=("entropy",)) as seen:
        model(ids())
    with pytest.raises(
        TraceError, match=r"'entropi' was not measured \(did you mean 'entropy'\?\)"
    ):
        seen[0].entropi  # noqa: B018
    with pytest.raises(TraceError, match="There is no layer 9"):
        seen[9]
    wants: dict[Any, str] = {("probs",): "'probs' is not measured", (): "want is empty"}
    wants[("key_mass", (-1,)),] = "key_mass of"
    for want, message in wants.items():
        with pytest.raises(TraceError, match=message), minibert.measuring(model, want=want):
            pass
    dropping = gpt2(attn_pdrop=0.5).train()
    with pytest.raises(TraceError, match="drops attention"), minibert.measuring(dropping):
        dropping(ids())
    with pytest.raises(TraceError, match="No attention of"), minibert.measuring(model):
        pass


def test_sinks_are_keys_with_the_mean_weight_of_a_head() -> None:
    model, mask = gpt2(), torch.ones_like(ids())
    mask[1, :4] = 0
    with minibert.measuring(model) as seen:
        model(ids(), attention_mask=mask)
    model.set_attn_implementation("eager")
    probs = torch.stack(model(ids(), attention_mask=mask, output_attentions=True).attentions)
    # transformers' rows of padding hold numbers; they are no queries.
    mean = (probs * mask[None, :, None, :, None]).sum(3) / mask.sum(1)[None, :, None, None]
    rows = seen.sinks(share=0.2)
    assert len(rows) == int((mean >= 0.2).sum()) > 0
    for row in rows:
        assert abs(row.share - float(mean[row[:-1]])) < 1e-5
