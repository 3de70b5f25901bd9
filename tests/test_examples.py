"""The scripts in examples/: each runs, is short, names its source, and prints what must be so.

What must be so holds for any model that copies lists: nothing here is a number of our own output.
"""

import re
import runpy
import sys
from pathlib import Path

import pytest
from data import data_path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
NUMBER = re.compile(r"[+-]?\d+\.\d+")


def numbers(line: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(line)]


@pytest.fixture
def run(capsys, monkeypatch):
    def script(name: str, *options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *options])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return script


def line_with(lines: list[str], start: str) -> str:
    [found] = [line for line in lines if line.startswith(start)]
    return found


def test_there_are_fifteen_and_each_is_short_and_names_its_source():
    assert len(SCRIPTS) == 15
    readme = (EXAMPLES / "README.md").read_text()
    for name in SCRIPTS:
        text = (EXAMPLES / f"{name}.py").read_text()
        assert len(text.splitlines()) <= 40, name
        assert re.search(r"\b(19|20)\d\d\b", text.split('"""')[1]), f"{name} names no paper"
        assert f"[{name}.py]({name}.py)" in readme


def test_without_induction_heads_the_second_half_cannot_be_copied(run):
    lines = run("induction")
    whole, without, others = (numbers(line)[-1] for line in lines[1:4])
    assert numbers(lines[0])[0] > 0.5
    assert whole < 1
    assert without > whole + 3
    assert without > others + 1


def test_the_patched_heads_and_paths_carry_the_answer(run):
    lines = run("indirect_object")
    clean, corrupt = numbers(lines[0])
    assert clean > 5 > -5 > corrupt
    # Every change is toward the corrupt answer, and none by far larger than the whole way.
    assert all(2 * (corrupt - clean) < change < -1 for change in numbers(lines[1]))
    assert numbers(lines[2])[-1] < -1
    # A list that began again: what the receiver looks up is in keys or values, not in its query.
    query, key, value = (abs(numbers(line)[-1]) for line in lines[3:6])
    assert max(key, value) > 10 * query
    # Ten edges of 479 keep most of the difference, and all others without them keep nothing.
    circuit, _, _, complement, _, _ = (numbers(line)[-1] for line in lines[6:])
    assert circuit > 0.8
    assert abs(complement) < 0.1


def test_a_restored_state_brings_the_answer_back_at_the_subject_and_then_at_the_end(run, tmp_path):
    lines = run("causal_tracing", "--plot", str(tmp_path / "trace.svg"))
    clean, corrupt = numbers(lines[0])
    assert clean > 0.5 > 0.1 > corrupt
    subject, *_ = (numbers(line) for line in lines if "last subject token" in line)
    end, *_ = (numbers(line) for line in lines if line.strip().startswith("last token"))
    assert subject[0] > 0.5
    assert abs(subject[-1]) < 0.01
    # All that the noise took is back with the last state: printed with two digits.
    assert end[-1] == pytest.approx(clean - corrupt, abs=0.006)
    assert (tmp_path / "trace.svg").stat().st_size > 1000


def test_the_answer_is_lost_without_a_look_at_the_subject(run, tmp_path):
    lines = run("knockout", "--plot", str(tmp_path / "knockout.svg"))
    shares = {
        name: [int(share) for share in re.findall(r"([+-]\d+)%", line_with(lines, name))]
        for name in ("subject", "last token", "all others")
    }
    assert min(shares["subject"]) < -80
    assert min(shares["all others"]) > -50
    assert all(share >= -100 for row in shares.values() for share in row)
    assert (tmp_path / "knockout.svg").stat().st_size > 1000


def test_the_terms_of_a_logit_sum_to_it(run):
    lines = run("direct_logit_attribution")
    measured, total = numbers(lines[0])
    assert total == pytest.approx(measured, abs=0.002)
    assert measured > 5


def test_estimates_follow_patches(run):
    lines = run("attribution_patching", "--pairs", "2")
    correlation = numbers(line_with(lines, "all layers"))[0]
    assert 0.5 < correlation <= 1


def test_every_layer_knows_parts_of_speech_better_than_a_guess(run):
    lines = run("part_of_speech", "--data", str(data_path("text", "ud-english-ewt")))
    guess, *layers = (numbers(line)[0] for line in lines)
    assert len(layers) >= 3
    assert all(guess + 0.3 < layer < 1 for layer in layers)


def test_without_the_treebank_the_probe_says_where_it_is(run, tmp_path):
    with pytest.raises(SystemExit, match=r"--data.*universaldependencies\.org"):
        run("part_of_speech", "--data", str(tmp_path))


def test_a_dictionary_explains_the_activations_with_fewer_features(run, tmp_path):
    lines = run("sae_data", "--output", str(tmp_path))
    (before, many), *_, (after, few) = (numbers(line)[-2:] for line in lines[1:])
    assert after > 0.8 > before
    assert few < many / 2
    assert (tmp_path / "mlp_out-1.npy").exists()


def test_steering_turns_the_text_and_a_factor_of_0_does_not(run):
    import minibert

    lines = run("steering")
    prompt = " river window summer horse garden letter morning river window summer"
    plain = minibert.load("tiny-gpt2").generate(prompt, max_new_tokens=4, temperature=0).new_text
    assert lines[0] == f"0.0:{plain!r}"
    assert lines[-1].partition(":")[2] != lines[0].partition(":")[2]


def test_the_fine_tuned_classifier_is_right_on_new_sentences_and_loads_again(run):
    lines = run("fine_tuning")
    right, of = map(int, re.findall(r"(\d+) of (\d+)", lines[0])[0])
    assert right >= 0.9 * of
    adjectives = "bad|cold|dark|good|warm|great"
    assert re.match(rf"(negative|positive) because of ({adjectives}) ", lines[1])
    assert lines[2].endswith("True")


def test_two_checkpoints_differ_and_one_does_not_differ_from_itself(run):
    lines = run("two_checkpoints")
    assert numbers(lines[0])[-1] > 0
    assert all(0 <= value <= 1 for value in numbers(lines[1]))
    same = run("two_checkpoints", "--second", "tiny-bert")
    assert set(numbers(same[1])) == {0.0}


def test_figure_2_has_shares_of_attention(run, tmp_path):
    pytest.importorskip("matplotlib")
    lines = run("clark_figure_2", "--plot", str(tmp_path / "figure.png"))
    tables = {line.split()[0]: numbers(line) for line in lines}
    assert all(0 <= value <= 1 for table in tables.values() for value in table)
    # tiny-bert was trained with a head on [SEP].
    assert tables["to_sep"][-1] > 0.5
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_the_first_keys_have_the_weight_that_eager_matrices_give_them(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import minibert

    lines = run("attention_sinks", "--new", "9")
    folder = Path(minibert.__file__).parent / "embedded" / "tiny-gpt2"
    options = {"attn_implementation": "eager", "dtype": "float32"}
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    ids = AutoTokenizer.from_pretrained(folder)("the sun rises in the", return_tensors="pt")
    whole = model.generate(**ids, max_new_tokens=9, do_sample=False, eos_token_id=None)
    probs = model(whole[:, :-1], output_attentions=True).attentions
    start = ids.input_ids.shape[1]
    for layer, one in enumerate(probs):
        shares = one[0, :, start:, :4].sum(-1).mean(-1)
        told = numbers(line_with(lines, f"layer {layer}"))
        assert all(abs(a - 100 * b) < 0.06 for a, b in zip(told, shares.tolist(), strict=False))


def test_the_passage_that_is_read_is_the_one_that_the_answer_needs(run):
    rows = [numbers(line) for line in run("retrieved_passage")]
    assert rows[1][2] > 2
    assert all(row[1] < rows[1][1] and abs(row[2]) < 0.5 for row in (rows[0], rows[2]))


def test_a_learning_rate_that_is_too_high_takes_the_entropy_away(run):
    pytest.importorskip("accelerate")
    calm, steep = (
        numbers(line_with(run("entropy_collapse", "--steps", "100", "--rate", rate), "step 100"))
        for rate in ("0.001", "0.3")
    )
    assert min(steep) < 0.1 < 2 < min(calm)
