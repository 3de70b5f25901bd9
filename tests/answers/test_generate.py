"""Generation: the cache changes nothing, transformers writes the same, and what ends a text."""

from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from vocabularies import byte_level

import minibert
from minibert.answers.generate import Generated
from minibert.errors import MinibertError, TokenizationError
from minibert.layers.config import Config
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.text.tokens import Tokens
from tests.families import POSITIONS, VOCABULARY, Sizes, hf_model, sizes

PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A GPT-2 of random weights with a byte-level vocabulary trained on a few lines."""
    folder = byte_level(tmp_path_factory.mktemp("gpt2"), ["<|endoftext|>"])
    tokenizer = minibert.Tokenizer.from_folder(folder)
    shape = {"n_positions": 67, "n_layers": 2, "n_heads": 3, "d_model": 33, "d_mlp": 23}
    config = Config("gpt2", "causal-lm", tokenizer.vocab_size, **shape, causal=True)
    return Model.from_config(config, tokenizer=tokenizer, name="a small GPT-2")


def random_ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()


def steps_of(model: Model, *arguments: Any, **options: Any) -> tuple[Any, torch.Tensor]:
    """What was generated, and the logits of each step: (step, batch, vocab)."""
    steps: list[torch.Tensor] = []
    handle = model.head.register_forward_hook(lambda module, given, out: steps.append(out[:, 0]))
    try:
        return model.generate(*arguments, **options), torch.stack(steps)
    finally:
        handle.remove()


def recomputed(model: Model, prompt: list[int], new: int) -> tuple[list[int], torch.Tensor]:
    """Greedy generation with a whole forward pass for each token, and its logits."""
    ids, steps = list(prompt), []
    for _ in range(new):
        steps.append(model(torch.tensor([ids]))[0, -1])
        ids.append(int(steps[-1].argmax()))
    return ids, torch.stack(steps)


@settings(max_examples=5)
@given(chosen=sizes)
def test_the_cache_gives_what_recomputation_gives(chosen: Sizes) -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", chosen, torch.float64))
    prompt = random_ids(7, chosen.seed)
    generated, logits = steps_of(model, prompt, max_new_tokens=13, temperature=0)
    ids, expected = recomputed(model, prompt, 13)
    assert list(generated.ids) == ids
    assert (logits[:, 0] - expected).abs().max() <= 1e-10


@settings(max_examples=5)
@given(chosen=sizes)
def test_transformers_generates_the_same_tokens(chosen: Sizes) -> None:
    theirs = hf_model("gpt2", "GPT2LMHeadModel", chosen, torch.float64)
    model = from_transformers(theirs)
    prompt = torch.tensor([random_ids(11, chosen.seed + i) for i in range(2)])
    expected = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=17,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    generated = model.generate(prompt, max_new_tokens=17, temperature=0)
    assert [list(one.ids) for one in generated] == expected.tolist()


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.5, "top_k": 7}])
def test_a_ragged_batch_gives_what_its_texts_give_one_by_one(options: dict[str, Any]) -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", dtype=torch.float64))
    rows = [random_ids(length, length) for length in (3, 17, 1, 17, 11)]
    longest = max(map(len, rows))
    # Padded with an id that means something, so that a look at it would show.
    ids = torch.tensor([row + [5] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    tokens = Tokens.from_ids(ids, mask=mask.bool())
    together, logits = steps_of(model, tokens, max_new_tokens=13, seed=19, **options)
    for i, row in enumerate(rows):
        alone, expected = steps_of(model, row, max_new_tokens=13, seed=19 + i, **options)
        assert alone == together[i]
        assert (logits[:, i] - expected[:, 0]).abs().max() <= 1e-10


def test_texts_that_end_early_leave_the_others_alone(model: Model) -> None:
    texts = ["The", "Le café était fermé; naïve", "Съешь же", PROMPT]
    alone = [model.generate(text, max_new_tokens=23, seed=i) for i, text in enumerate(texts)]
    stop = alone[1].new_text[4:6]
    together = model.generate(texts, max_new_tokens=23, stop=stop)
    assert together == [
        model.generate(text, max_new_tokens=23, seed=i, stop=stop) for i, text in enumerate(texts)
    ]
    assert together[1].stopped_by == "stop string"
    assert len({len(one.new_ids) for one in together}) > 1


def test_a_seed_gives_the_same_text_and_another_seed_another(model: Model) -> None:
    first = model.generate(PROMPT, seed=3)
    assert model.generate(PROMPT, seed=3) == first
    assert model.generate(PROMPT, seed=4).ids != first.ids
    assert len({one.ids for one in model.generate([PROMPT] * 3)}) == 3


def test_sampling_does_not_touch_the_global_generator(model: Model) -> None:
    before = torch.get_rng_state()
    model.generate(PROMPT, max_new_tokens=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_comes_back_is_the_text_with_its_tokens(model: Model) -> None:
    generated = model.generate(PROMPT, max_new_tokens=11)
    assert model.tokenizer is not None
    assert str(generated) == generated.text == PROMPT + generated.new_text
    assert generated.new_text == model.tokenizer.decode(generated.new_ids)
    assert list(generated.ids[: generated.n_prompt]) == model.tokenizer.encode(PROMPT)
    assert generated.tokens.ids[0].tolist() == list(generated.ids)
    assert (len(generated.new_ids), generated.stopped_by) == (11, "max_new_tokens")
    assert model.generate([PROMPT], max_new_tokens=11) == [generated]


def test_the_trace_of_a_generated_text_has_the_logits_of_each_step(model: Model) -> None:
    generated, logits = steps_of(model, PROMPT, max_new_tokens=300)
    assert generated.stopped_by == "positions"
    trace = model.trace(generated.tokens)
    assert (trace.logits[0, generated.n_prompt - 1 : -1] - logits[:, 0]).abs().max() <= 1e-5


def test_a_text_ends_when_the_positions_run_out(model: Model) -> None:
    pieces: list[str] = []
    generated = model.generate(PROMPT, max_new_tokens=300, stream=pieces.append)
    assert generated.stopped_by == "positions"
    assert len(generated.ids) == model.config.n_positions
    assert "".join(pieces) == generated.new_text


def test_the_end_of_text_token_ends_the_text(model: Model) -> None:
    ended = Model.from_config(model.config, tokenizer=model.tokenizer)
    with torch.no_grad():
        # The final norm's bias alone decides, for the token that lies along it.
        ended.body.final_norm.weight.zero_()
        ended.body.final_norm.bias.copy_(ended.body.word.weight[model.tokenizer.eos_id])
    generated = ended.generate(PROMPT, temperature=0)
    assert generated.stopped_by == "end of text"
    assert generated.new_ids == (model.tokenizer.eos_id,)
    assert generated.text == PROMPT


def test_a_stop_string_ends_the_text_before_it(model: Model) -> None:
    whole = model.generate(PROMPT, seed=5)
    stop = whole.new_text[7:12]
    assert whole.new_text.index(stop) == 7
    pieces: list[str] = []
    generated = model.generate(PROMPT, seed=5, stop=["never written", stop], stream=pieces.append)
    assert generated.stopped_by == "stop string"
    assert generated.new_text == whole.new_text[:7] == "".join(pieces)
    assert whole.ids[: len(generated.ids)] == generated.ids
    assert generated == model.generate(PROMPT, seed=5, stop=stop)


def test_streamed_pieces_are_the_new_text(model: Model) -> None:
    for seed in range(3):
        pieces: list[str] = []
        generated = model.generate("東京の", seed=seed, temperature=2.0, stream=pieces.append)
        assert "".join(pieces) == generated.new_text == model.tokenizer.decode(generated.new_ids)
        assert all(pieces)


def test_entries_that_the_vocabulary_does_not_have_are_never_drawn(model: Model) -> None:
    known = model.tokenizer.vocab_size
    shape = {"n_positions": 67, "n_layers": 1, "n_heads": 3, "d_model": 33, "d_mlp": 23}
    config = Config("gpt2", "causal-lm", known * 10, **shape, causal=True)
    padded = Model.from_config(config, tokenizer=model.tokenizer)
    assert max(padded.generate(PROMPT, temperature=9.0).ids) < known


def test_a_model_without_a_tokenizer_continues_ids() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    generated = model.generate([5, 7, 11], max_new_tokens=3)
    assert generated.text == "".join(f"{token_id} " for token_id in generated.ids)
    assert model.generate(torch.tensor([5, 7, 11]), max_new_tokens=3) == generated
    with pytest.raises(TokenizationError, match="no tokenizer"):
        model.generate("text")


def test_a_hook_on_a_layer_runs_at_every_step() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    handle = model.body.groups[1].register_forward_hook(lambda module, given, out: -out)
    try:
        assert (
            list(model.generate([5, 7], max_new_tokens=5, temperature=0).ids)
            == (recomputed(model, [5, 7], 5)[0])
        )
    finally:
        handle.remove()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": 0}, "max_new_tokens=0"),
    ({"max_new_tokens": -1}, "max_new_tokens=-1"),
    ({"temperature": -1.0}, "temperature=-1.0"),
    ({"top_p": 0.0}, "top_p=0.0"),
    ({"top_p": 1.5}, "top_p=1.5"),
    ({"top_k": 0}, "top_k=0"),
    ({"seed": -1}, "seed=-1"),
    ({"seed": 2**63}, "seed="),
    ({"stop": ""}, "stop has ''"),
    ({"stop": ["a", ""]}, "stop has ''"),
    ({"stop": 3}, "stop=3: expected a string, or several"),
    ({"stop": [3]}, "stop has 3"),
    ({"stop": torch.tensor(1)}, r"stop=tensor\(1\)"),
    ({"stream": 3}, "stream=3: expected a function"),
    ({"seed": np.ones((2, 3))}, "seed="),
    ({"max_new_tokens": torch.ones(2)}, "max_new_tokens=tensor"),
]


def test_a_wrong_setting_is_an_error_before_work_starts(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As people run it: without the checks of annotations that only tests have.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

    def never(module: Any, given: Any, out: Any) -> None:
        raise AssertionError("the model ran")

    handle = model.head.register_forward_hook(never)
    try:
        for options, message in WRONG:
            with pytest.raises(MinibertError, match=message):
                model.generate(PROMPT, **options)
    finally:
        handle.remove()


def test_an_empty_text_is_an_error(model: Model) -> None:
    for empty in ("", [], ["The", ""], torch.empty(1, 0, dtype=torch.int64)):
        with pytest.raises(TokenizationError, match=r"empty|no token"):
            model.generate(empty)


def test_a_prompt_that_fills_the_positions_is_an_error_that_names_the_limit() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    with pytest.raises(TokenizationError, match=f"{POSITIONS} tokens.*{POSITIONS} positions"):
        model.generate(random_ids(POSITIONS))
    last = model.generate(random_ids(POSITIONS - 1))
    assert (len(last.new_ids), last.stopped_by) == (1, "positions")


def test_a_text_over_the_positions_is_an_error_that_names_the_limit(model: Model) -> None:
    with pytest.raises(TokenizationError, match=r"prompt 1 of the batch .* 67 positions"):
        model.generate([PROMPT, PROMPT * 30])
    with pytest.raises(TokenizationError, match=r"the prompt has .* at most the last 66 tokens"):
        model.generate(PROMPT * 30)


def test_pieces_of_a_batch_are_an_error(model: Model) -> None:
    with pytest.raises(MinibertError, match="one by one"):
        model.generate([PROMPT], stream=print)


def test_a_model_that_writes_no_text_is_an_error() -> None:
    for family, name in (("bert", "BertLMHeadModel"), ("gpt2", "GPT2Model")):
        model = from_transformers(hf_model(family, name))
        with pytest.raises(MinibertError, match="does not write text"):
            model.generate([5, 7, 11])


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy")
def test_one_row_of_ids_is_one_text_and_two_are_a_batch_whatever_holds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    expected = model.generate([3, 4], max_new_tokens=2)
    assert model.generate([3, 4], max_new_tokens=2, stop=None) == expected
    for make in (list, tuple, torch.tensor, np.array):
        one = model.generate(make([3, 4]), max_new_tokens=2)
        assert isinstance(one, Generated)
        assert one == expected
        batch = model.generate(make([[3, 4], [5, 7]]), max_new_tokens=2)
        assert [text.ids[:2] for text in batch] == [(3, 4), (5, 7)]
        assert batch[0] == one
    batch = model.generate([np.array([3, 4]), np.array([5, 7])], max_new_tokens=2)
    assert [text.ids[:2] for text in batch] == [(3, 4), (5, 7)]
