"""Checkpoints as people keep them, what a loaded model shares with its file or live model, and what
is refused: names that lead nowhere, folders that are not checkpoints, weights that do not fit."""

import copy
import gc
import json
import pickle
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from vocabularies import word_piece

import minibert
from minibert.model import Model, from_transformers
from tests.checkpoint import small_families
from tests.checkpoint.test_round_trip import our_answer, their_answer
from tests.families import Sizes, as_tokens, batch, hf_model, run_transformers

Tensors = dict[str, torch.Tensor]
WHOLE = "model.safetensors"
pytestmark = pytest.mark.usefixtures("unchecked")


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Applies `change` to the tensors of the folder's weights."""
    save_file(change(load_file(folder / WHOLE)), folder / WHOLE)


def with_masks(tensors: Tensors) -> Tensors:
    """The triangles that GPT-2's files on the Hub have."""
    for layer in range(3):
        tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(31, 31).tril()[None, None]
        tensors[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return tensors


def without_prefix(tensors: Tensors) -> Tensors:
    return {k.removeprefix("transformer."): one for k, one in with_masks(tensors).items()}


def tensorflow(tensors: Tensors) -> Tensors:
    """The names of norms in the first checkpoints, which were TensorFlow's."""

    def old(name: str) -> str:
        if "norm" not in name.lower():
            return name
        return name.replace(".weight", ".gamma").replace(".bias", ".beta")

    return {old(name): tensor for name, tensor in tensors.items()}


def without_pooler(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if "pooler" not in name}


def with_buffers(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: torch.ones(1) for name in names}


NEOX = "gpt_neox.layers.1.attention."
CHANGES: list[tuple[str, str, Callable[[Tensors], Tensors]]] = [
    ("gpt2", "GPT2LMHeadModel", with_masks),
    ("gpt2", "GPT2LMHeadModel", without_prefix),
    ("bert", "BertForMaskedLM", tensorflow),
    ("albert", "AlbertForMaskedLM", tensorflow),
    ("electra", "ElectraForMaskedLM", tensorflow),
    *((name.lower(), f"{name}Model", without_pooler) for name in ("Bert", "Roberta", "Albert")),
    ("llama", "LlamaForCausalLM", with_buffers("model.layers.1.self_attn.rotary_emb.inv_freq")),
    (
        "gpt_neox",
        "GPTNeoXForCausalLM",
        with_buffers(NEOX + "bias", NEOX + "masked_bias", NEOX + "rotary_emb.inv_freq"),
    ),
]


@pytest.mark.parametrize(("family", "name", "change"), CHANGES)
def test_files_of_other_times_and_programs_give_the_same_logits(family, name, change, tmp_path):
    rotary = family in small_families.FAMILIES
    theirs = (small_families.hf_model if rotary else hf_model)(family, name)
    theirs.save_pretrained(tmp_path)
    whole = minibert.load(tmp_path)
    rewrite(tmp_path, change)
    model = minibert.load(tmp_path)
    assert model.name == str(tmp_path)
    assert (our_answer(model) - their_answer(theirs)).abs().max() <= 1e-5
    pooled = [hasattr(one.trace([[5, 7]]), "pooled") for one in (whole, model)]
    assert pooled == ([True, False] if change is without_pooler else [False, False])
    if change is tensorflow or change is without_pooler:
        return
    rewrite(tmp_path, with_buffers(NEOX + "other", "zebra.weight"))
    with pytest.raises(minibert.CheckpointError, match=r"(?s)unexpected  .*allow_unexpected=True"):
        minibert.load(tmp_path)
    model = minibert.load(tmp_path, allow_unexpected=True)
    assert (our_answer(model) - their_answer(theirs)).abs().max() <= 1e-5


def test_a_task_can_be_asked_for_and_heads_of_other_tasks_are_left_out(tmp_path):
    theirs = hf_model("bert", "BertForPreTraining")
    theirs.save_pretrained(tmp_path)
    inputs = batch("bert")
    output = run_transformers(theirs, inputs)
    expected = {
        "masked-lm": output.prediction_logits,
        "next-sentence": output.seq_relationship_logits,
        "none": output.hidden_states[-1],
    }
    for task, logits in expected.items():
        model = minibert.load(tmp_path, task=task)
        assert model.config.task == task
        assert (model(as_tokens(inputs)) - logits).abs().max() <= 1e-5
    bare = from_transformers(theirs, task="none").save(tmp_path / "bare")
    wanted = hf_model("bert", "BertModel").state_dict()
    assert set(load_file(bare / "model.safetensors")) == set(wanted)


def test_a_padded_vocabulary_is_read_and_its_padding_never_offered(tmp_path):
    """More rows than entries, as people pad to a multiple of 64."""
    word_piece(tmp_path)
    entries = len((tmp_path / "vocab.txt").read_text("utf-8").splitlines())
    sizes = {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3}
    config = transformers.BertConfig(vocab_size=entries + 13, intermediate_size=23, **sizes)
    theirs = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        theirs.cls.predictions.bias[entries:] = 50.0
    theirs.save_pretrained(tmp_path)
    model = minibert.load(tmp_path)
    assert model("the quick fox").shape[-1] == entries + 13
    (prediction,) = model.predict("the quick [MASK]", top=entries + 13)
    assert sorted(choice.id for choice in prediction.choices) == list(range(entries))
    torch.save(model, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), whole):
        assert torch.equal(again("the quick [MASK]"), model("the quick [MASK]"))
        assert again.predict("the quick [MASK]") == model.predict("the quick [MASK]")


def test_models_of_one_folder_share_nothing_and_a_live_model_everything(tmp_path):
    theirs = hf_model("bert", "BertForMaskedLM", Sizes(layers=1))
    theirs.save_pretrained(tmp_path)
    first, second = minibert.load(str(tmp_path)), minibert.load(tmp_path)
    ids = torch.arange(7)[None]
    expected = second(ids)
    first.body.word.weight.zero_()
    assert torch.equal(second(ids), expected), "two models share writable memory"
    assert not torch.equal(first(ids), expected)
    live, word = from_transformers(theirs), "bert.embeddings.word_embeddings.weight"
    assert live.body.word.weight.data_ptr() == theirs.state_dict()[word].data_ptr()
    assert live.head.decoder.weight is live.body.word.weight
    assert not any(one.requires_grad for one in live.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_type_stays_unless_another_is_asked_for(dtype):
    theirs = hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=1), dtype)
    for asked, found in (({}, dtype), ({"dtype": torch.float64}, torch.float64)):
        model = from_transformers(theirs, **asked)
        assert {value.dtype for value in model.parameters()} == {found}


def test_an_embedded_name_and_a_folder_need_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("a socket was opened"))
    minibert.load("tiny-gpt2").save(tmp_path / "here")
    minibert.load(tmp_path / "here").predict("one")


def test_what_is_no_model_is_an_error():
    wrong: Any
    for wrong in (torch.nn.Linear(2, 3), None, "bert"):
        with pytest.raises(minibert.CheckpointError, match="expected a transformers model"):
            from_transformers(wrong)


PROMPT = torch.tensor([[25, 19, 14]])


@pytest.fixture
def endless(tmp_path):
    """A random GPT-2 that never meets its end token by itself."""
    hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=1)).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    ends_with(tmp_path / "config.json", None)
    return tmp_path


def ends_with(path: Path, ends: Any) -> None:
    about = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(about | {"eos_token_id": ends}))


def written(folder: Path) -> tuple[list[int], str]:
    generated = minibert.load(folder).generate(PROMPT[0], max_new_tokens=9, temperature=0)
    return list(generated.new_ids), generated.stopped_by


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_the_end_token_of_each_file_ends_the_text_as_in_transformers(endless, file, as_list):
    whole, why = written(endless)
    assert (len(whole), why) == (9, "max_new_tokens")
    end = whole[4]
    if file != "config.json":
        ends_with(endless / "config.json", whole[0])
    ends_with(endless / file, [40, end] if as_list else end)
    found, why = written(endless)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(endless)
    mask = torch.ones_like(PROMPT)
    ids = theirs.generate(PROMPT, attention_mask=mask, max_new_tokens=9, do_sample=False)
    assert why == "end of text"
    assert found == whole[: whole.index(end) + 1] == ids[0, PROMPT.shape[1] :].tolist()
    again = minibert.load(minibert.load(endless).save(endless / "again"))
    assert again.config.end_ids == minibert.load(endless).config.end_ids
    for wrong in ("end", -1, 1.5, True, [1, None], {"a": 1}):
        ends_with(endless / file, wrong)
        with pytest.raises(minibert.CheckpointError, match=rf"{file}: eos_token_id is"):
            minibert.load(endless)


def with_token(source: Path, folder: Path, *, special: bool) -> Path:
    """The checkpoint with one more token in its tokenizer, behind the last row."""
    shutil.copytree(source, folder)
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    rows = json.loads((folder / "config.json").read_text("utf-8"))["vocab_size"]
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    token = {"id": rows, "content": "<image_soft_token>", "special": special, **shape}
    content["added_tokens"].append(token)
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    return folder


def test_a_special_token_without_a_row_is_refused_where_it_is_used(tmp_path):
    source = Path(minibert.__file__).parent / "embedded" / "tiny-gpt2"
    model = minibert.load(with_token(source, tmp_path / "special", special=True))
    assert model.tokenizer is not None
    assert model.tokenizer.vocab_size == model.config.vocab_size + 1
    assert model("Once upon a time").shape[-1] == model.config.vocab_size
    with pytest.raises(minibert.TokenizationError, match=str(model.config.vocab_size)):
        model("Once upon <image_soft_token>")
    with pytest.raises(minibert.CheckpointError, match="belongs to another model"):
        minibert.load(with_token(source, tmp_path / "plain", special=False))


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of 41 embeddings."""
    hf_model("bert", "BertForMaskedLM").save_pretrained(tmp_path)
    return tmp_path


def message(name: Any, **options: Any) -> str:
    with pytest.raises(minibert.CheckpointError) as raised:
        minibert.load(name, **options)
    text = str(raised.value)
    assert not (isinstance(name, Path) and name.is_dir()) or str(name) in text, "it says no place"
    return text


def damage(folder: Path, change: Callable[[Tensors], Any]) -> None:
    """Changes the tensors of the folder's weights in place."""
    rewrite(folder, lambda tensors: (change(tensors), tensors)[1])


def reconfigure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


NAMES = ["./missing", "../missing", "~/missing/x", Path("missing"), "a/b/c", "two words"]
NAMES += ["ünï/ç?", "\x00", "a" * 5000 + "/", "", "  ", 5, 1.5, b"bert", ["bert"], {"a": 1}]


@pytest.mark.parametrize("name", NAMES)
def test_what_leads_nowhere_is_an_error_that_says_what_could_be_named(name):
    text = message(name)
    assert re.search(r"is neither a folder nor a Hub id \(owner/name\).*tiny-bert", text)
    assert len(text) < 1000
    assert len(str(name)) > 200 or repr(str(name)) in text


def test_a_file_and_a_folder_without_config_or_weights_are_errors(folder):
    text = message(folder / WHOLE)
    assert f"{WHOLE} is a file; give the folder" in text
    (folder / WHOLE).rename(folder / "weights.bin")
    assert re.search(r"has no weights.*model\.safetensors.*pytorch_model\.bin", message(folder))
    for content in (b"", b"{", b"[1, 2]", b"5", b"\xff\xfe", b"<html>", b"null"):
        (folder / "config.json").write_bytes(content)
        text = message(folder)
        assert str(folder / "config.json") in text
        assert "JSON" in text or "expected an object" in text
    (folder / "config.json").unlink()
    assert f"{folder} has no config.json" in message(folder)


def models_alive() -> int:
    gc.collect()
    return sum(issubclass(type(found), Model) for found in gc.get_objects())


def test_no_model_is_left_behind_by_a_load_that_failed(folder):
    """Not even one whose last tensor alone is bad."""
    damage(folder, lambda tensors: tensors["cls.predictions.bias"][7:8].fill_(torch.nan))
    before = models_alive()
    assert "predictions" in message(folder)
    assert models_alive() <= before


DTYPES = [torch.bool, torch.int8, torch.complex64, torch.float8_e4m3fn, "float16", 5]
DEVICES = ["bogus", "cpu:x", 1.5, *([] if torch.cuda.is_available() else ["cuda"])]


def test_a_type_or_device_that_cannot_be_is_an_error_before_any_work():
    for dtype in DTYPES:
        for name in ("no/such/model", hf_model("bert", "BertModel")):
            text = message(name, dtype=dtype)
            assert repr(dtype) in text
            assert "torch.float64, torch.float32, torch.bfloat16, torch.float16" in text
    for device in DEVICES:
        text = message("no/such/model", device=device)
        assert f"device={device!r} cannot be used" in text
        assert '"cpu"' in text


def test_a_live_model_stays_where_it_is_unless_a_device_is_named(monkeypatch):
    theirs = hf_model("bert", "BertModel").to("meta")
    moved: list[Any] = []
    monkeypatch.setattr(Model, "to", lambda self, device: moved.append(device) or self)
    assert minibert.load(theirs).body.word.weight.is_meta
    assert minibert.load(theirs, device="meta").body.word.weight.is_meta
    assert moved == []
    minibert.load(theirs, device="cpu")
    assert moved == [torch.device("cpu")]


def test_everything_missing_unexpected_and_misshaped_is_listed_at_once_and_sorted(folder):
    def wrong(tensors: Tensors) -> None:
        del tensors["bert.encoder.layer.2.output.dense.weight"]
        del tensors["bert.embeddings.LayerNorm.bias"]
        tensors["bert.encoder.layer.9.output.dense.weight"] = torch.ones(2, 3)
        tensors["a_surprise"] = torch.ones(1)
        tensors[QUERY] = torch.ones(15, 17)

    damage(folder, wrong)
    lines = [line.strip() for line in message(folder).splitlines()]
    assert lines[1:-1] == [
        "mis-shaped  encoder.layer.1.attention.self.query.weight: "
        "shape (15, 17), expected (15, 15)",
        "missing     embeddings.LayerNorm.bias  (shape (15,))",
        "missing     encoder.layer.2.output.dense.weight  (shape (15, 23))",
        "unexpected  a_surprise",
        "unexpected  encoder.layer.9.output.dense.weight",
    ]
    assert "bert model with task 'masked-lm'" in lines[0]
    assert re.search('task="none".*allow_unexpected=True', lines[-1])
    # Leaving out what is unexpected does not make up for what is missing.
    assert "missing" in message(folder, allow_unexpected=True)


def test_a_tensor_of_three_parameters_is_listed_once(tmp_path):
    hf_model("gpt2", "GPT2LMHeadModel").save_pretrained(tmp_path)

    def wrong(tensors: Tensors) -> None:
        del tensors["transformer.h.0.attn.c_attn.weight"]
        tensors["transformer.h.1.attn.c_attn.weight"] = torch.ones(45, 15)

    damage(tmp_path, wrong)
    text = message(tmp_path)
    assert text.count("h.0.attn.c_attn.weight") == text.count("h.1.attn.c_attn.weight") == 1
    assert "shape (45, 15), expected (15, 45)" in text


def query(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({QUERY: change(tensors[QUERY])})


def cancelling(weight: torch.Tensor) -> torch.Tensor:
    weight[0, :2] = torch.tensor([torch.inf, -torch.inf])
    return weight


TWICE = rf"({QUERY} and {QUERY[5:]}|{QUERY[5:]} and {QUERY}) are two names of one tensor"
TENSORS: list[tuple[Callable[[Tensors], Any], str, str]] = [
    *(
        (query(lambda one, kind=kind: one.to(kind)), rf"self\.query\.weight.*{kind}.*quantised", "")
        for kind in (torch.int8, torch.uint8, torch.int64, torch.bool)
    ),
    # The file is whole.
    (query(lambda w: w.to(torch.float8_e4m3fn)), r"self\.query\.weight.*F8_E4M3", "download"),
    (query(cancelling), "2 values", ""),
    (lambda tensors: tensors.update({QUERY[5:]: tensors[QUERY] + 1}), TWICE, ""),
    (query(lambda w: torch.ones(15, 17)), "mis-shaped", "task head missing|allow_unexpected"),
]


@pytest.mark.parametrize(("change", "said", "unsaid"), TENSORS)
def test_a_tensor_that_is_no_weight_is_named_with_what_may_help(folder, change, said, unsaid):
    damage(folder, change)
    text = message(folder)
    assert re.search(f"(?s){said}", text)
    assert not unsaid or not re.search(unsaid, text)


def test_large_numbers_are_numbers_and_one_type_is_the_models(folder):
    damage(folder, query(lambda weight: torch.full_like(weight, 1e7)))
    model = minibert.load(folder)
    assert model.get_parameter("body.groups.1.attention.query.weight").max() == 1e7
    assert model(torch.arange(7)[None]).isfinite().all()
    damage(folder, lambda tensors: tensors[QUERY].fill_(0.1)[0, :2].fill_(70_000.0))
    text = message(folder, dtype=torch.float16)
    assert f"2 values of {QUERY[5:]} of {folder} are too large for torch.float16" in text
    assert "torch.float32, torch.bfloat16" in text
    minibert.load(folder, dtype=torch.bfloat16)

    def mix(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            small = tensor.clamp(-1, 1)
            tensors[name] = small.to(torch.float64 if "embeddings" in name else torch.float16)

    damage(folder, mix)
    model = minibert.load(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(torch.arange(7)[None]).isfinite().all()


ELSEWHERE: list[tuple[str, str, dict[str, Any], str]] = [
    ("bert", "BertForMaskedLM", {"hidden_size": 18},
     r"word_embeddings\.weight: shape \(41, 15\), expected \(41, 18\).*54 mis-shaped"),
    ("bert", "BertModel", {"type_vocab_size": 0},
     r"unexpected  embeddings\.token_type_embeddings\.weight"),
    ("electra", "ElectraModel", {"embedding_size": 15}, r"unexpected  embeddings_project\.weight"),
    ("bert", "BertModel", {"num_hidden_layers": 4}, "says 4 layers, and the weights hold 3"),
    ("bert", "BertModel", {"num_hidden_layers": 500}, "says 500 layers, and the weights hold 3"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "name", "changes", "said"), ELSEWHERE)
def test_a_config_of_another_model_is_an_error(family, name, changes, said, tmp_path, monkeypatch):
    hf_model(family, name).save_pretrained(tmp_path)
    reconfigure(tmp_path, **changes)
    if "num_hidden_layers" in changes:
        # They are counted before any is built.
        monkeypatch.setattr(minibert.model, "Model", None)
    assert re.search(f"(?s){said}", message(tmp_path))
