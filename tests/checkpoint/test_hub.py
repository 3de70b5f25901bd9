"""hub.py: what is fetched, in which order, and what the cache saves; on 127.0.0.1 alone."""

import json
import subprocess
import sys

import pytest
from hub_client import (  # noqa: F401, the fixtures
    NAME,
    REPOSITORY,
    TOKENIZER,
    WANTED,
    Client,
    environment,
    holds,
    one_client,
    one_repository,
    served_folder,
)
from vocabularies import word_piece, write


def test_the_files_needed_are_fetched_and_no_others_config_first_and_weights_last(
    hub, client, tmp_path
):
    folder = client.fetch(cache_dir=str(tmp_path))
    assert hub.asked_for() == WANTED
    assert holds(folder, hub, *WANTED)
    assert client.stderr.read_text() == "", "a progress bar, and nobody at a terminal to see it"


def test_what_the_cache_holds_is_not_fetched_again(hub, client, tmp_path):
    first = client.fetch(cache_dir=str(tmp_path))
    hub.log.clear()
    assert client.fetch(cache_dir=str(tmp_path)) == first
    assert hub.log == [f"GET /api/models/{NAME}/revision/main"]
    hub.log.clear()
    assert client.fetch(cache_dir=str(tmp_path), offline=True) == first
    assert client.fetch(cache_dir=str(tmp_path), revision=first.name) == first
    assert hub.log == []


def test_the_cache_and_the_switches_of_the_environment_are_used(hub, tmp_path):
    with Client(hub.url, tmp_path) as online:
        folder = online.fetch()
    assert folder.is_relative_to(tmp_path / "hub")
    hub.log.clear()
    with Client(hub.url, tmp_path, HF_HUB_OFFLINE="1") as offline:
        assert offline.fetch() == folder
        assert "it has no whole copy of it" in offline.fail("owner/other")
    assert hub.log == []


def test_a_hub_out_of_reach_is_an_error_and_with_a_whole_cache_a_warning(hub, client, tmp_path):
    folder = client.fetch(cache_dir=str(tmp_path))
    with Client("http://127.0.0.1:9", tmp_path / "home") as away:
        assert "no connection to http://127.0.0.1:9" in away.fail()
        answer = away(cache_dir=str(tmp_path))
    assert answer["folder"] == str(folder)
    assert "no connection" in answer["warnings"][0]


def test_a_new_commit_is_fetched_and_only_what_changed_in_it(hub, client, tmp_path):
    old = client.fetch(cache_dir=str(tmp_path))
    (hub.folder / NAME / "tokenizer.json").write_text("{}")
    hub.log.clear()
    new = client.fetch(cache_dir=str(tmp_path))
    assert new != old
    assert holds(new, hub, *WANTED)
    # Of the others the client asks for the digest, and finds the bytes in its cache.
    assert hub.asked_for() == ["tokenizer.json"]
    assert client.fetch(cache_dir=str(tmp_path), offline=True) == new
    assert client.fetch(cache_dir=str(tmp_path), offline=True, revision=old.name) == old


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_several_files_are_fetched_by_their_index(hub, client, tmp_path, kind):
    root = hub.folder / NAME
    (root / "model.safetensors").unlink()
    stem, _, ending = kind.partition(".")
    shards = [f"{stem}-0000{i}-of-00002.{ending}" for i in (1, 2)]
    for shard in shards:
        (root / shard).write_text(shard)
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}
    (root / f"{kind}.index.json").write_text(json.dumps(index))
    if kind == "pytorch_model.bin":
        (root / kind).unlink()
    folder = client.fetch(cache_dir=str(tmp_path))
    assert holds(folder, hub, *WANTED[:-1], f"{kind}.index.json", *shards)
    (folder / shards[1]).unlink()
    assert f"it lacks {shards[1]}" in client.fail(cache_dir=str(tmp_path), offline=True)


def test_a_pickle_is_fetched_only_where_there_is_nothing_else(hub, client, tmp_path):
    (hub.folder / NAME / "model.safetensors").unlink()
    folder = client.fetch(cache_dir=str(tmp_path))
    assert holds(folder, hub, *WANTED[:-1], "pytorch_model.bin")


@pytest.mark.parametrize(
    ("absent", "expected"),
    [
        (["tokenizer.json"], ["vocab.txt"]),
        (["tokenizer.json", "vocab.txt"], ["vocab.json", "merges.txt"]),
        (["tokenizer.json", "vocab.txt", "merges.txt"], []),
    ],
)
def test_the_vocabulary_is_the_first_kind_there_is(hub, client, tmp_path, absent, expected):
    write(hub.folder / NAME, vocab={"a": 0}, added_tokens={})
    for name in absent:
        (hub.folder / NAME / name).unlink()
    folder = client.fetch(cache_dir=str(tmp_path))
    settings = [*TOKENIZER[1:], "added_tokens.json"]
    assert holds(folder, hub, "config.json", *expected, *settings, "model.safetensors")


LOAD = """
import sys, torch, minibert
model = minibert.load(sys.argv[1])
tokens = model.tokenize(["The quick brown fox.", "Lazy dogs"])
torch.save({"ids": tokens.ids, "mask": tokens.mask, "logits": model(tokens)}, sys.argv[2])
"""


def test_a_model_loaded_by_its_name_gives_the_logits_of_transformers(hub, tmp_path):
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForMaskedLM

    root = hub.folder / "owner" / "masked"
    root.mkdir()
    vocabulary = word_piece(root) / "vocab.txt"
    tokenizer = BertWordPieceTokenizer(str(vocabulary))
    tokenizer.save(str(root / "tokenizer.json"))
    sizes = {"hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 3}
    vocab_size = tokenizer.get_vocab_size()
    config = BertConfig(vocab_size=vocab_size, intermediate_size=29, **sizes)
    BertForMaskedLM(config).save_pretrained(root)

    command = [sys.executable, "-c", LOAD, "owner/masked", str(tmp_path / "ours")]
    subprocess.run(command, check=True, env=environment(hub.url, tmp_path), cwd=REPOSITORY)
    ours = torch.load(tmp_path / "ours", weights_only=True)
    texts = tokenizer.encode_batch(["The quick brown fox.", "Lazy dogs"])
    for row, text in enumerate(texts):
        assert ours["ids"][row][ours["mask"][row]].tolist() == text.ids
    theirs = BertForMaskedLM.from_pretrained(root, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = theirs(ours["ids"], attention_mask=ours["mask"].long()).logits
    kept = ours["mask"]
    torch.testing.assert_close(ours["logits"][kept], expected[kept], rtol=0, atol=1e-5)
