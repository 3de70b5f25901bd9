"""What is measured while a model generates is what its own matrices say of the whole text."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BartForConditionalGeneration,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    TrainerState,
)

import minibert
import minibert.transformers_attention
from minibert import EditError, TraceError
from minibert.attached import measured_files
from minibert.trace.edit import zero
from minibert.transformers_callback import EntropyCallback
from tests.attached.live_models import VOCABULARY, bart, gpt2, ids, llama, made

SIZES: dict[str, Any] = {
    "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 8, "num_key_value_heads": 2,
    "hidden_size": 48, "intermediate_size": 40, "initializer_range": 0.3,
    "max_position_embeddings": 64, "sliding_window": 5,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.1}
WANT = (
    "entropy", "max_prob", "argmax", "received", ("key_mass", (9, 0)), ("offset_mass", (-1, 2)),
    ("top_keys", 3), ("top_probs", 3),
)  # fmt: skip
N_PROMPT, N_NEW = 7, 5


MODELS = {
    "llama": llama,
    "gpt2": gpt2,
    "mistral": lambda: made(MistralForCausalLM, MistralConfig, SIZES, {}),
    "gemma2": lambda: made(Gemma2ForCausalLM, Gemma2Config, SIZES, {}),
    "gpt_oss": lambda: made(GptOssForCausalLM, GptOssConfig, SIZES, EXPERTS),
}
WAYS = [(name, way) for name in MODELS for way in ("eager", "minibert")]
WAYS += [(name, "sdpa") for name in ("llama", "gpt2", "mistral")]


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
        "top_probs": probs.topk(3).values,
    }
    for name, numbers in expected.items():
        # transformers takes its softmax in float32, also of a model in float64.
        assert (getattr(found, name) - numbers).abs().max() < 1e-5, name
    assert ((found.argmax == probs.argmax(-1)) | ~real).all()
    at_keys = probs.gather(-1, found.top_keys.clamp_min(0)) * (found.top_keys >= 0)
    assert ((at_keys - probs.topk(3).values).abs() * real[..., None]).max() < 1e-5


def shifted(probs: Tensor, offset: int) -> Tensor:
    """The weight at an offset of each query, 0 where there is no such key."""
    diagonal = probs.diagonal(offset, 2, 3)
    return torch.nn.functional.pad(diagonal, (max(0, -offset), max(0, offset)))


@pytest.mark.parametrize("use_cache", [True, False])
def test_an_encoder_and_a_decoder_generate(use_cache: bool) -> None:
    model = bart(BartForConditionalGeneration, forced_eos_token_id=None).double()
    options: dict[str, Any] = {"max_new_tokens": N_NEW, "do_sample": False, "eos_token_id": None}
    options |= {"use_cache": use_cache}
    plain = [model.generate(ids(n, N_PROMPT), **options) for n in (1, 2)]
    with minibert.measuring(model) as seen:
        for n, text in enumerate(plain, 1):
            assert torch.equal(model.generate(ids(n, N_PROMPT), **options), text)
        passed = model(ids(2, N_PROMPT), decoder_input_ids=plain[1][:, :-1])
    # A pass without a cache is a run.
    assert len(seen.runs) == 1 + (2 if use_cache else 2 * N_NEW)
    assert passed.logits.requires_grad
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(ids(2, N_PROMPT), decoder_input_ids=plain[1][:, :-1], output_attentions=True)
    said = {"decoder.self": own.decoder_attentions, "decoder.cross": own.cross_attentions}
    said |= {"encoder": own.encoder_attentions}
    # Without a cache every token is a run, and each has the encoder that its decoder looks at.
    for run in seen.runs[-2:]:
        for stack, layers in said.items():
            for found, probs in zip(run[stack], layers, strict=True):
                assert (found.received - probs.sum(2)).abs().max() < 1e-5
                assert (found.entropy - torch.special.entr(probs).sum(-1)).abs().max() < 1e-5
    with pytest.raises(TraceError, match=r"choose one of 'encoder', 'decoder\.self'"):
        seen[0]


def test_each_cache_has_its_run_and_an_error_leaves_nothing_behind() -> None:
    model = llama()
    first = DynamicCache()
    with torch.no_grad(), minibert.measuring(model, want=("entropy",)) as seen:
        model(ids(2, 4), past_key_values=first)
        made = model(ids(1, 5), use_cache=True, return_dict=False)
        with pytest.raises(IndexError):
            model(torch.tensor([[VOCABULARY]]))
        model(ids(2, 3), past_key_values=first)
        model(ids(1, 1), past_key_values=made[1], use_cache=True)
        end = model(ids(1, 2), use_cache=True)
        model(ids(1, 1), past_key_values=end.past_key_values)
    whole = torch.cat([ids(2, 4), ids(2, 3)], 1)
    with torch.no_grad(), minibert.measuring(model, want=("entropy",)) as alone:
        model(whole)
    assert [run["layers"][0].n_queries for run in seen.runs] == [7, 6, 3]
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
    with pytest.raises(TraceError, match="was not called"), minibert.measuring(model):
        pass


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_a_backward_pass_computes_again_are_not_a_second_run(reentrant: bool) -> None:
    model = llama(use_cache=False)
    with minibert.measuring(model, want=("entropy",)) as plain:
        model(ids())
    model.train().gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": reentrant}
    )
    with minibert.measuring(model, want=("entropy",)) as seen:
        model(ids(), labels=ids()).loss.backward()
    attached = minibert.attach(model)
    with attached.recording() as passes:
        model(ids(), labels=ids()).loss.backward()
    assert (len(seen.runs), len(passes)) == (1, 1)
    for layer in range(len(passes[0])):
        assert torch.equal(seen[layer].entropy, plain[layer].entropy)
    edit = {("z", 1, 0): zero}
    with attached.recording(edit=edit):
        loss = model(ids(), labels=ids()).loss
        with pytest.raises(EditError, match="gradient_checkpointing_disable"):
            loss.backward()


def test_sinks_are_keys_with_the_mean_weight_of_a_head() -> None:
    model, mask = gpt2(), torch.ones_like(ids())
    mask[1, :4] = 0
    block = minibert.measuring(model)
    for _ in range(2):
        with block as seen:
            model(ids(), attention_mask=mask)
        assert len(seen.runs) == 1
    model.set_attn_implementation("eager")
    probs = torch.stack(model(ids(), attention_mask=mask, output_attentions=True).attentions)
    # transformers' rows of padding hold numbers; they are no queries.
    mean = (probs * mask[None, :, None, :, None]).sum(3) / mask.sum(1)[None, :, None, None]
    rows = seen.sinks(share=0.2)
    with pytest.raises(TraceError, match="from 0 to 1"):
        seen.sinks(float("nan"))
    assert len(rows) == int((mean >= 0.2).sum()) > 0
    for row in rows:
        assert abs(row.share - float(mean[row[:-1]])) < 1e-5


def test_a_run_is_read_while_it_goes_on_and_no_token_before_it_is_whole(tmp_path: Path) -> None:
    model, cache = llama(), DynamicCache()
    assert not measured_files.read(tmp_path).runs
    with minibert.measuring(model, folder=tmp_path) as seen:
        assert not measured_files.read(tmp_path).runs
        for n_tokens in (7, 70):
            model(ids()[:, :7].repeat(1, n_tokens // 7), past_key_values=cache)
            found = measured_files.read(tmp_path)
            assert torch.equal(found[2].received, seen[2].received)
            # A row after those that are counted is not there yet.
            with (tmp_path / "0" / "layers" / "2" / "entropy").open("ab") as file:
                file.write(b"half a row")
            assert torch.equal(measured_files.read(tmp_path)[2].entropy, seen[2].entropy)
    for wrong, told in ((tmp_path / "none", "not a folder"), (tmp_path / "b", "damaged")):
        if told == "damaged":
            wrong.mkdir()
            (wrong / "a.parquet").write_bytes(b"PAR1")
        with pytest.raises(TraceError, match=told):
            measured_files.read(wrong)


def test_tables_pages_and_files_have_the_numbers_of_the_run(tmp_path: Path) -> None:
    model, mask = llama(), torch.ones_like(ids())
    mask[1, :4] = 0
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 70, "pad_token_id": 0}
    options |= {"do_sample": False, "eos_token_id": None}
    with minibert.measuring(model, want=WANT) as seen:
        model.generate(ids(), **options)
    with minibert.measuring(model, want=WANT, folder=tmp_path / "run") as filed:
        model.generate(ids(), **options)
        whole = measured_files.read(tmp_path / "run")
    with (
        pytest.raises(TraceError, match="another run"),
        minibert.measuring(model, folder=filed.folder),
    ):
        pass
    measured_files.write_parquet(tmp_path / "a.parquet", seen, "a")
    for other in (filed, whole, measured_files.read(tmp_path), measured_files.read(tmp_path, "a")):
        assert [row["sink"] for row in other.table()] == [row["sink"] for row in seen.table()]
        for layer in range(3):
            for name in ("entropy", "received", "top_keys", "offset_mass"):
                assert torch.equal(seen[layer].read(name), other[layer].read(name))
    rows = seen.table()
    assert [(row["layer"], row["batch"], row["head"]) for row in rows[:8]] == [
        *((0, 0, head) for head in range(6)), (0, 1, 0), (0, 1, 1),
    ]  # fmt: skip
    real = [76, 72]
    for row in rows:
        layer, batch, head = seen[int(row["layer"])], int(row["batch"]), int(row["head"])
        entropy = layer.entropy[batch, head, 76 - real[batch] :].mean()
        assert abs(row["entropy"] - float(entropy)) < 1e-5
        found = layer.offset_mass[batch, head, 76 - real[batch] :, 1].mean()
        assert abs(row["offset_mass 2"] - float(found)) < 1e-6
        assert row["sink"] == int(layer.received[batch, head].argmax())
    page = seen.page().save(tmp_path / "page.html").read_text()
    assert f'title="layer 2 head 5: {rows[-1]["entropy"]:.6g}"' in page
    assert "<script" not in page


def test_a_trainer_gets_the_entropy_of_real_tokens_and_keeps_its_mode() -> None:
    model, mask, state = llama().train(), torch.ones_like(ids()), TrainerState(log_history=[])
    mask[1, :4] = 0
    watch = EntropyCallback({"input_ids": ids(), "attention_mask": mask}, every=2)
    for state.global_step in (1, 2, 3, 4):
        watch.on_step_end(None, state, None, model=model)
    assert model.training
    assert state.log_history == watch.history
    assert [entry["step"] for entry in watch.history] == [2, 4]
    model.eval().set_attn_implementation("eager")
    probs = torch.stack(model(ids(), attention_mask=mask, output_attentions=True).attentions)
    sums = (torch.special.entr(probs).sum(-1) * mask[:, None]).sum(-1)  # layer, batch, head
    means = (sums / mask.sum(-1)[:, None]).mean(1)
    assert (means - torch.tensor(watch.history[0]["entropy"])).abs().max() < 1e-5
    with pytest.raises(ValueError, match="1 or more"):
        EntropyCallback({}, every=0)
