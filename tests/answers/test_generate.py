"""Generated text: what the cache, sampling, pieces of text and edits have to give."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from vocabularies import byte_level

import minibert
from minibert.answers.generate import Generated, Sampling, TextStream, draw
from minibert.errors import MinibertError, TokenizationError
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model, from_transformers
from minibert.text.tokens import Tokens
from minibert.trace.edit import Edit, as_edit, hide, noise, replace, zero
from minibert.trace.read import Trace
from tests.families import POSITIONS, VOCABULARY, hf_model
from tests.rotary import theirs
from tests.rotary.classes import CAUSAL, LANGUAGE
from tests.rotary.drawn import drawn

PROMPT = "The quick brown fox"
DRAWN = {"temperature": 1.5, "top_k": 7}


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


def test_a_ragged_batch_gives_what_its_texts_give_one_by_one() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", dtype=torch.float64))
    rows = [random_ids(length, length) for length in (3, 17, 1, 17, 11)]
    longest = max(map(len, rows))
    # Padded with an id that means something, so that a look at it would show.
    ids = torch.tensor([row + [5] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    tokens = Tokens.from_ids(ids, mask=mask.bool())
    together, logits = steps_of(model, tokens, max_new_tokens=13, seed=19, **DRAWN)
    for i, row in enumerate(rows):
        alone, expected = steps_of(model, row, max_new_tokens=13, seed=19 + i, **DRAWN)
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


def test_what_comes_back_is_the_text_with_its_tokens_and_its_seed_alone_decides(
    model: Model,
) -> None:
    before = torch.get_rng_state()
    generated = model.generate(PROMPT, max_new_tokens=11)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.tokenizer is not None
    assert str(generated) == generated.text == PROMPT + generated.new_text
    assert generated.new_text == model.tokenizer.decode(generated.new_ids)
    assert list(generated.ids[: generated.n_prompt]) == model.tokenizer.encode(PROMPT)
    assert generated.tokens.ids[0].tolist() == list(generated.ids)
    assert (len(generated.new_ids), generated.stopped_by) == (11, "max_new_tokens")
    assert model.generate([PROMPT], max_new_tokens=11) == [generated]
    assert len({one.ids for one in model.generate([PROMPT] * 3)}) == 3


def test_a_text_that_fills_the_positions_ends_there_and_its_trace_has_each_steps_logits(
    model: Model,
) -> None:
    pieces: list[str] = []
    generated, logits = steps_of(model, PROMPT, max_new_tokens=300, stream=pieces.append)
    assert generated.stopped_by == "positions"
    assert len(generated.ids) == model.config.n_positions
    assert "".join(pieces) == generated.new_text
    trace = model.trace(generated.tokens)
    assert (trace.logits[0, generated.n_prompt - 1 : -1] - logits[:, 0]).abs().max() <= 1e-5


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


def test_a_stop_string_ends_the_text_before_it_and_pieces_add_up(model: Model) -> None:
    whole = model.generate(PROMPT, seed=5)
    stop = whole.new_text[7:12]
    assert whole.new_text.index(stop) == 7
    pieces: list[str] = []
    generated = model.generate(PROMPT, seed=5, stop=["never written", stop], stream=pieces.append)
    assert generated.stopped_by == "stop string"
    assert generated.new_text == whole.new_text[:7] == "".join(pieces)
    assert generated == model.generate(PROMPT, seed=5, stop=stop)
    for seed in range(3):
        pieces = []
        generated = model.generate("東京の", seed=seed, temperature=2.0, stream=pieces.append)
        assert "".join(pieces) == generated.new_text == model.tokenizer.decode(generated.new_ids)
        assert all(pieces)


def test_entries_that_the_vocabulary_does_not_have_are_never_drawn(model: Model) -> None:
    known = model.tokenizer.vocab_size
    padded = Model.from_config(
        dataclasses.replace(model.config, vocab_size=known * 10), tokenizer=model.tokenizer
    )
    assert max(padded.generate(PROMPT, temperature=9.0).ids) < known


def test_a_hook_on_a_layer_runs_at_every_step() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    handle = model.body.groups[1].register_forward_hook(lambda module, given, out: -out)
    found, ids = model.generate([5, 7], max_new_tokens=5, temperature=0), [5, 7]
    for _ in range(5):
        ids.append(int(model([ids])[0, -1].argmax()))
    assert list(found.ids) == ids
    handle.remove()


# Settings and prompts of a model with 67 positions, and what the error says.
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    *((PROMPT, {"max_new_tokens": wrong}, "max_new_tokens=") for wrong in (0, -1, torch.ones(2))),
    *((PROMPT, {"seed": wrong}, "seed=") for wrong in (-1, 2**63, np.ones((2, 3)))),
    *((PROMPT, {"stop": wrong}, "stop has ''") for wrong in ("", ["a", ""])),
    (PROMPT, {"stop": [3]}, "stop has 3"),
    (PROMPT, {"stop": 3}, "stop=3: expected a string, or several"),
    (PROMPT, {"stop": torch.tensor(1)}, r"stop=tensor\(1\)"),
    (PROMPT, {"stream": 3}, "stream=3: expected a function"),
    ([PROMPT], {"stream": print}, "one by one"),
    *((empty, {}, r"empty|no token") for empty in ("", [], ["The", ""])),
    (torch.empty(1, 0, dtype=torch.int64), {}, r"empty|no token"),
    ([PROMPT, PROMPT * 30], {}, r"prompt 1 of the batch .* 67 positions"),
    (PROMPT * 30, {}, r"the prompt has .* at most the last 66 tokens"),
    ([5] * 67, {}, r"67 tokens.*67 positions"),
]


def test_a_wrong_setting_or_prompt_is_an_error_before_work_starts(
    model: Model, unchecked: None
) -> None:
    ran: list[object] = []
    handle = model.head.register_forward_hook(lambda *given: ran.append(given))
    for prompt, options, message in WRONG:
        with pytest.raises(MinibertError, match=message):
            model.generate(prompt, **options)
    assert not ran
    handle.remove()
    for family, name in (("bert", "BertLMHeadModel"), ("gpt2", "GPT2Model")):
        with pytest.raises(MinibertError, match="does not write text"):
            from_transformers(hf_model(family, name)).generate([5, 7, 11])


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy")
def test_one_row_of_ids_is_one_text_and_two_are_a_batch_whatever_holds_them(
    unchecked: None,
) -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    expected = model.generate([3, 4], max_new_tokens=2)
    assert expected.text == "".join(f"{token_id} " for token_id in expected.ids)
    assert model.generate([3, 4], max_new_tokens=2, stop=None) == expected
    with pytest.raises(TokenizationError, match="no tokenizer"):
        model.generate("text")
    for make in (list, tuple, torch.tensor, np.array):
        one = model.generate(make([3, 4]), max_new_tokens=2)
        assert isinstance(one, Generated)
        assert one == expected
        batch = model.generate(make([[3, 4], [5, 7]]), max_new_tokens=2)
        assert [text.ids[:2] for text in batch] == [(3, 4), (5, 7)]
        assert batch[0] == one
    batch = model.generate([np.array([3, 4]), np.array([5, 7])], max_new_tokens=2)
    assert [text.ids[:2] for text in batch] == [(3, 4), (5, 7)]
    last = model.generate(random_ids(POSITIONS - 1))
    assert (len(last.new_ids), last.stopped_by) == (1, "positions")


PROMPTS = [list(range(3, 10)), list(range(20, 25)), list(range(5, 14))]
NEW = 8


@pytest.fixture(scope="module")
def grouped() -> Model:
    """Grouped heads, rotation, and a window that the texts outgrow in one layer."""
    sizes: dict[str, Any] = {"n_positions": 64, "n_layers": 3, "n_heads": 4, "d_model": 32}
    choices: dict[str, Any] = {"n_kv_heads": 2, "rotary": Rotary(8), "windows": (0, 4, 0)}
    config = Config("llama", "causal-lm", 97, d_mlp=48, causal=True, **sizes, **choices)
    model = Model.from_config(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.normal_(0, 0.4, generator=generator)
    return model.double()


def reached(edit: Edit, prompt: int, length: int, last: str) -> Edit | None:
    """The edit of a whole pass over a text: of what it was made to, token after token."""
    if edit.positions is None:
        return edit
    chosen, found = edit.positions, set[int]()
    for end in range(length if last == "text" else prompt, length + 1):
        # The prompt is computed at once, and then each token when it is the last one.
        computed = range(end) if last == "text" or end == prompt else range(end - 1, end)
        at = range(end)[chosen] if isinstance(chosen, slice) else [c % end for c in chosen]
        found |= {position for position in at if position in computed}
    return edit.at(positions=sorted(found)) if found else None


def written(model: Model, prompt: list[int], edits: dict[Any, Any], last: str) -> list[Trace]:
    """The trace of every step, each a pass of its own over the text so far."""
    ids, steps = list(prompt), []
    for _ in range(NEW):
        made = {k: reached(as_edit(one), len(prompt), len(ids), last) for k, one in edits.items()}
        steps.append(model.trace([ids], edit={k: one for k, one in made.items() if one}))
        ids.append(int(steps[-1].logits[0, -1].argmax()))
    return steps


def changed(x: torch.Tensor) -> torch.Tensor:
    return 1.5 * x.roll(1, -1)


@pytest.mark.parametrize("family", ["gpt2", *CAUSAL])
@settings(max_examples=4, phases=[Phase.generate])
@given(data=st.data())
def test_every_step_of_a_text_is_a_trace_of_the_text_so_far(
    family: str, data: st.DataObject
) -> None:
    if family == "gpt2":
        model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", dtype=torch.float64))
    else:
        chosen = data.draw(drawn(family))
        # What is kept of earlier tokens was turned by how long their text was then.
        assume("dynamic" not in str(chosen.options))
        model = minibert.load(theirs.model_of(chosen, LANGUAGE[family]))
    lengths = data.draw(st.lists(st.integers(2, 11), min_size=1, max_size=3))
    prompts = [[(7 * i + 3 * n) % 37 + 2 for i in range(n)] for n in lengths]
    places = st.sampled_from(
        [None, [-1], [0, -1], [-2], slice(-2, None), slice(1, -1), slice(3, 9)]
    )
    name = data.draw(st.sampled_from(["embed", "resid_post", "z", "value", "mlp_out", "logits"]))
    positions, last = data.draw(places), data.draw(st.sampled_from(["text", "newest"]))
    key = name if name in ("embed", "logits") else (name, model.config.n_layers - 1)
    edit = {key: as_edit(changed).at(positions=positions)}
    of_all = data.draw(st.booleans())
    edited = range(len(prompts)) if of_all else [data.draw(st.integers(0, len(prompts) - 1))]
    of_batch = {key: edit[key].at(sentences=None if of_all else edited)}
    ids = [prompt + [0] * (max(lengths) - len(prompt)) for prompt in prompts]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    found = model.generate(
        Tokens.from_ids(ids, mask=mask), edit=of_batch, last=last, max_new_tokens=NEW, temperature=0
    )
    for number, (prompt, one) in enumerate(zip(prompts, found, strict=True)):
        steps = written(model, prompt, edit if number in edited else {}, last)
        assert one.last == last
        assert list(one.new_ids) == [int(step.logits[0, -1].argmax()) for step in steps]
        for step, expected in enumerate(steps):
            trace = one.trace(model, step)
            assert torch.equal(trace.tokens.ids, expected.tokens.ids)
            assert torch.equal(trace.logits, expected.logits)
            assert torch.equal(trace[-1].resid_post, expected[-1].resid_post)


def test_what_cannot_be_done_token_by_token_is_refused(grouped: Model) -> None:
    other = grouped.trace([PROMPTS[0]])
    refused: list[tuple[dict[Any, Any], str]] = [
        ({("probs", 0): zero}, "one row of probs at a time"),
        ({("scores", 0): hide(2)}, "one row of scores at a time"),
        ({("z", 0): noise(0)}, "noise is drawn"),
        ({("z", 0): other}, "tokens that are not written yet"),
        ({("z", 0): replace(other, positions=-1)}, "tokens that are not written yet"),
        ({("z", 7): zero}, "layer"),
        ({("z", 0): torch.zeros(3, 3, dtype=torch.float64)}, "does not fit"),
    ]
    for edits, message in refused:
        with pytest.raises(minibert.EditError, match=message):
            grouped.generate(PROMPTS[0], edit=edits)


def test_each_text_reads_its_own_sentence_of_another_trace(grouped: Model) -> None:
    other = grouped.trace([PROMPTS[0][::-1], [n + 40 for n in PROMPTS[0]]])

    def written_with(prompts: Any, source: Trace) -> Any:
        edit = {("z", 1): replace(source, positions=[0, 3])}
        return grouped.generate(prompts, edit=edit, max_new_tokens=3, temperature=0)

    for number, one in enumerate(written_with([PROMPTS[0]] * 2, other)):
        alone = written_with(PROMPTS[0], other.text(number))
        assert one.new_ids == alone.new_ids
        assert torch.equal(one.trace(grouped, -1).logits, alone.trace(grouped, -1).logits)


BATCH = 3


def logits(seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(BATCH, VOCABULARY, generator=generator, dtype=torch.float64)


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@given(
    seed=st.integers(0, 999),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.3, 3.0]),
    k=st.none() | st.integers(1, 50),
    p=st.none() | st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9]) | st.floats(0.01, 0.99),
    spread=st.sampled_from([0.0, 0.3, 3.0, 20.0]),
    decimals=st.sampled_from([0, 1, 9]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_what_can_be_drawn_and_how_often_is_what_transformers_says(
    seed, temperature, k, p, spread, decimals, dtype
) -> None:
    # Rounded, so that some are equal.
    row = logits(seed, spread).round(decimals=decimals).to(dtype)
    # transformers' generate makes float32 of all logits before its processors.
    wide = row if dtype == torch.float64 else row.float()
    scores = TemperatureLogitsWarper(temperature)(None, wide)
    scores = scores if k is None else TopKLogitsWarper(k)(None, scores)
    scores = scores if p is None else TopPLogitsWarper(p)(None, scores)
    probs = Sampling(temperature, k, p).probs(row)
    expected = scores.double().softmax(-1)
    assert (probs[~scores.isfinite()] == 0).all()
    # The smallest probabilities of a wide row are 0 in float64 too.
    assert (probs[expected > 1e-300] > 0).all()
    assert (probs - expected).abs().max() <= 1e-12
    assert torch.equal(row, logits(seed, spread).round(decimals=decimals).to(dtype))


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-4])
def test_at_low_temperature_only_the_largest_is_left(temperature: float) -> None:
    sampling, best = Sampling(temperature), logits().argmax(-1)
    probs = sampling.probs(logits())
    assert torch.equal(probs.argmax(-1), best)
    assert probs.amax(-1).tolist() == [1.0] * BATCH
    assert sampling.choose(logits(), generators(0, 1, 2)) == best.tolist()


@pytest.mark.parametrize("temperature", [10**30, 1e300])
def test_at_a_temperature_without_end_all_tokens_are_equal(temperature: float | int) -> None:
    probs = Sampling(temperature).probs(logits())
    assert torch.equal(probs, torch.full_like(probs, 1 / VOCABULARY))


def test_draws_come_as_often_as_their_probability_says() -> None:
    probs = torch.tensor([[0.0, 0.2, 0.0, 0.5, 0.3, 0.0]], dtype=torch.float64)
    (generator,) = generators(7)
    drawn = [int(draw(probs, [generator])) for _ in range(5000)]
    counts = torch.bincount(torch.tensor(drawn), minlength=6)
    assert counts[probs[0] == 0].sum() == 0
    # Six standard deviations of a binomial.
    spread = 6 * (5000 * probs[0] * (1 - probs[0])).sqrt()
    assert ((counts - 5000 * probs[0]).abs() <= spread).all()


NO_NUMBERS = (torch.ones(2), torch.tensor(0.5), np.ones((2, 3)), "1", 1j, math.nan)
OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "temperature": (*NO_NUMBERS, 10**400, -0.1, math.inf),
    "top_k": (*NO_NUMBERS, 0, -3, True),
    "top_p": (*NO_NUMBERS, 0.0, 1.1),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_setting_out_of_range_is_an_error(name: str, unchecked: None) -> None:
    for value in OUT_OF_RANGE[name]:
        with pytest.raises(MinibertError, match=rf"(?s){name}=.*: expected"):
            Sampling(**{name: value})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_logits_are_an_error(broken: float, temperature: float) -> None:
    row = logits()
    row[1, 5] = broken
    with pytest.raises(MinibertError, match="NaN or infinity"):
        Sampling(temperature).choose(row, generators(0, 1, 2))


def from_bytes(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


def pieces_of(ids: list[int], *stop: str, prompt: tuple[int, ...] = ()) -> tuple[list[str], bool]:
    stream = TextStream(from_bytes, prompt, stop=stop)
    pieces = []
    for one in ids:
        pieces.append(stream.add(one))
        if stream.stopped:
            break
    pieces.append(stream.close())
    assert "".join(pieces) == stream.text
    return pieces, stream.stopped


@given(text=st.text(), ids=st.lists(st.integers(0, 255)))
def test_every_piece_is_whole_characters_and_they_add_up(text: str, ids: list[int]) -> None:
    pieces, stopped = pieces_of(list(text.encode()), prompt=(0x41,))
    assert "".join(pieces) == text
    assert not stopped
    assert all(piece in text for piece in pieces)
    assert "".join(pieces_of(ids)[0]) == from_bytes(ids)


@given(
    text=st.text("abé", min_size=1, max_size=30),
    others=st.lists(st.text("abé", min_size=1), max_size=2),
    places=st.lists(st.tuples(st.integers(0, 29), st.integers(1, 5)), max_size=2),
)
def test_the_text_ends_before_the_first_stop_string(text, others, places) -> None:
    # Some stand in the text, and some do not.
    stops = [*others, *(text[start % len(text) :][:size] for start, size in places)]
    pieces, stopped = pieces_of(list(text.encode()), *stops)
    # The stop string that is complete first ends the text; of two, the one that starts first.
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    first = min((end for end, _ in ends), default=0)
    start = min((start for end, start in ends if end == first), default=len(text))
    assert stopped == bool(ends)
    assert "".join(pieces) == text[:start]


def test_the_first_piece_keeps_the_space_behind_the_prompt() -> None:
    words = ["once", "upon", "a", "time"]
    stream = TextStream(lambda ids: " ".join(words[i] for i in ids), [0, 1])
    assert [stream.add(2), stream.add(3), stream.close()] == [" a", " time", ""]
