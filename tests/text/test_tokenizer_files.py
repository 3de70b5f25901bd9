"""tokenizer_files.py: each kind of file, its settings and special tokens, and broken ones."""

import base64
import json
import struct
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from data import data_path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import BertTokenizerFast
from vocabularies import BERT_MARKS, ROBERTA_MARKS, byte_level, word_piece, write

import minibert
from minibert.errors import TokenizationError
from minibert.text import tokenizer_files
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokenizer_files import is_plain

# Said of every vocab.txt below that has no settings; the tests of it stand at the end.
pytestmark = pytest.mark.filterwarnings("ignore:.*which is a guess")

ROLES = ("mask_id", "pad_id", "cls_id", "sep_id", "unk_id", "bos_id", "eos_id")


def roles(tokenizer):
    return {role: getattr(tokenizer, role) for role in ROLES}


def test_truncation_and_padding_of_the_file_are_switched_off():
    folder = data_path("models", "all-MiniLM-L6-v2")
    settings = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    assert settings["truncation"]["max_length"] == settings["padding"]["strategy"]["Fixed"] == 128
    assert Tokenizer.from_folder(folder)(["word " * 300, "a"]).lengths == (302, 3)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False},
    ],
)
def test_word_piece_honours_the_settings_as_transformers_does(tmp_path, settings):
    write(word_piece(tmp_path, lowercase=False), tokenizer_config=settings)
    theirs = BertTokenizerFast(str(tmp_path / "vocab.txt"), **settings)
    ours = Tokenizer.from_folder(tmp_path)
    text = "The CAFÉ était fermé 我想在苹果 Führer"
    assert ours(text).ids[0].tolist() == theirs(text)["input_ids"]


def test_a_vocabulary_may_end_without_a_newline_and_have_windows_line_ends(tmp_path):
    names = [*BERT_MARKS, "a", "\u2028", "b"]
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(names).encode())
    ours = Tokenizer.from_folder(tmp_path)
    assert [ours.raw(i) for i in range(ours.vocab_size)] == names


@pytest.mark.parametrize(
    ("make", "found", "special"),
    [
        (word_piece, {"mask": 4, "pad": 0, "cls": 2, "sep": 3, "unk": 1}, range(5)),
        (
            lambda folder: byte_level(folder, ROBERTA_MARKS),
            {"mask": 4, "pad": 1, "cls": 0, "sep": 2, "unk": 3, "bos": 0, "eos": 2},
            range(5),
        ),
    ],
)
def test_special_tokens_are_found_by_name(tmp_path, make, found, special):
    ours = Tokenizer.from_folder(make(tmp_path))
    assert roles(ours) == dict.fromkeys(ROLES) | {f"{role}_id": i for role, i in found.items()}
    assert ours.special_ids == set(special)


@pytest.mark.parametrize("file", ["special_tokens_map", "tokenizer_config"])
@pytest.mark.parametrize("as_object", [False, True])
def test_special_tokens_may_have_names_of_their_own(tmp_path, file, as_object):
    names = ["<blank>", "<odd>", "<begin>", "<end>", "<hole>", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(names), "utf-8")
    wanted = dict(zip(("pad", "unk", "cls", "sep", "mask"), names, strict=False))
    write(
        tmp_path,
        **{
            file: {
                f"{role}_token": {"content": name, "lstrip": False} if as_object else name
                for role, name in wanted.items()
            }
        },
    )
    ours = Tokenizer.from_folder(tmp_path)
    assert ours("a <hole> b").raw == (("<begin>", "a", "<hole>", "<odd>", "<end>"),)
    assert (ours.pad_id, ours.mask_id) == (0, 4)


def test_tokens_added_later_are_refused_with_the_way_out(tmp_path):
    size = Tokenizer.from_folder(word_piece(tmp_path)).vocab_size
    usual = {"added_tokens_decoder": {"4": {"content": "[MASK]", "special": True}}}
    write(tmp_path, tokenizer_config=usual)
    assert Tokenizer.from_folder(tmp_path)("a [MASK]").raw == (("[CLS]", "a", "[MASK]", "[SEP]"),)
    for name, content in (
        ("added_tokens", {"[E1]": size}),
        ("tokenizer_config", {"added_tokens_decoder": {str(size): {"content": "[E1]"}}}),
    ):
        write(tmp_path, **{name: content})
        with pytest.raises(TokenizationError, match=r"added.*\[E1\].*Save a tokenizer\.json"):
            Tokenizer.from_folder(tmp_path)
        write(tmp_path, **{name: {}})


def test_a_folder_without_the_files_is_an_error_that_says_what_was_looked_for(tmp_path):
    with pytest.raises(TokenizationError) as caught:
        Tokenizer.from_folder(tmp_path)
    for name in ("tokenizer.json", "vocab.txt", "found neither", "Save a tokenizer.json"):
        assert name in str(caught.value)
    for name in ("spiece.model", "vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes(b"\x0a")
        with pytest.raises(TokenizationError, match=rf"{name}.*Save a tokenizer\.json"):
            Tokenizer.from_folder(tmp_path)
    with pytest.raises(TokenizationError, match="not a folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "Word'),
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "Other"}}'),
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n"),
        ("tokenizer.json", b"\xff\xfe\x00"),
        ("vocab.txt", b"\xff\xfe\x00"),
        ("vocab.txt", b"only\nwords\n"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b'{"mask_token": 5}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": [1]}'),
        ("tokenizer_config.json", b'{"do_lower_case": "yes"}'),
        ("special_tokens_map.json", b"\xff"),
        ("added_tokens.json", b'["[E1]", 5]'),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path, name, content):
    (word_piece(tmp_path) / name).write_bytes(content)
    with pytest.raises(TokenizationError, match=r"tokenizer|vocab|token"):
        Tokenizer.from_folder(tmp_path)


SMILES = [*BERT_MARKS, "C", "c", "(", ")", "S", "s", "=", "1"]


def test_a_guess_about_a_vocabulary_is_said_with_what_speaks_against_it(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SMILES), "utf-8")
    with pytest.warns(UserWarning, match=r"lower-casing WordPiece, which is a guess") as caught:
        Tokenizer.from_folder(tmp_path)
    text = str(caught[0].message)
    assert "2 entries have capitals (C, S)" in text
    assert "Put do_lower_case into" in text


@pytest.mark.filterwarnings("error")
def test_settings_end_the_guessing(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SMILES), "utf-8")
    settled = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    write(tmp_path, tokenizer_config=settled)
    ours = Tokenizer.from_folder(tmp_path)
    assert [ours.raw(i) for i in ours.encode("C ( C ) S")] == ["C", "(", "C", ")", "S"]


@pytest.mark.filterwarnings("error")
def test_a_lower_case_vocabulary_of_word_piece_is_no_guess(tmp_path):
    Tokenizer.from_folder(word_piece(tmp_path))


@pytest.mark.parametrize("kind", ["SmilesTokenizer", "BertJapaneseTokenizer", "EsmTokenizer", 3])
def test_another_class_of_tokenizer_is_refused_with_the_way_out(tmp_path, kind):
    write(word_piece(tmp_path), tokenizer_config={"tokenizer_class": kind})
    with pytest.raises(TokenizationError, match=rf"{kind}.*Save a tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def drawn_charsmap(random: Random) -> str:
    """A table of SentencePiece's normalizer: a size, a tree of 4-byte units, and texts."""
    size, far = random.choice((0, 1, 256, 512)), random.choice((0, 0, 0, 2, 21))
    # A label is often that of its place, as in an honest tree; offsets lead near or anywhere.
    units = [
        random.choice((i & 0xFF, random.randrange(256)))
        | random.choice((0, 0x100))
        | random.randrange(2**far) << 10
        for i in range(size)
    ]
    told = random.choice((4 * size, 4 * size, 4 * size, 2**32 - 1, 2**31, 4 * size + 4))
    table = struct.pack(f"<I{size}I", told, *units) + random.choice(
        (b"", b"a\0b", "\u00e9".encode())
    )
    return base64.b64encode(table).decode()


def test_a_file_that_the_library_fails_on_is_refused_without_a_word_on_standard_error(capfd):
    model = {"type": "WordLevel", "vocab": {"a": 0, "u": 1}, "unk_token": "u"}
    plain = {"version": "1.0", "model": model}
    read = 0
    for seed in range(15):
        random = Random(seed)
        part = {"type": "Precompiled", "precompiled_charsmap": drawn_charsmap(random)}
        # A part may go without its name, and a name may be written in another way.
        part = random.choice((part, part, {"type": "Sequence", "normalizers": [part]}))
        content = json.dumps(plain | {"normalizer": part})
        content = random.choice((content, content.replace("Precompiled", "P\\u0072ecompiled")))
        with suppress(TokenizationError):
            tokenizer = Tokenizer.from_json(content)
            read += 1
            for text in ("a", "Two \u00bd", "e\u0301\u0302 \u6211", "\U0001f642\u0327"):
                with suppress(TokenizationError):
                    tokenizer.encode(text)
    assert 0 < read < 15
    assert capfd.readouterr().err == ""


def test_a_file_that_would_end_the_process_is_refused_by_name(tmp_path):
    part = {"precompiled_charsmap": "/////w=="}
    for known in ({"type": "Precompiled"}, {}):
        model = {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"}
        write(tmp_path, tokenizer={"version": "1.0", "model": model, "normalizer": part | known})
        with pytest.raises(TokenizationError, match=r"tokenizer\.json: "):
            Tokenizer.from_folder(tmp_path)


def test_a_file_with_parts_that_are_not_plain_is_tried_out_first(tmp_path, monkeypatch):
    # What newer versions of the library survive, older ones do not.
    monkeypatch.setattr(tokenizer_files, "tried_out", lambda *_, **__: "ended with status -6")
    content = json.loads(Tokenizer.from_folder(word_piece(tmp_path)).to_json())
    Tokenizer.from_json(json.dumps(content))
    for part in ({"type": "Precompiled", "precompiled_charsmap": ""}, {"type": "Nmt"}):
        write(tmp_path, tokenizer=content | {"normalizer": part})
        with pytest.raises(TokenizationError, match=r"tokenizer\.json: .* ended with status -6"):
            Tokenizer.from_folder(tmp_path)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    bomb=st.sampled_from(("(W+)+$", "(?:W|WW)+$", "(?=(W{1,9})+$)", "^((W*)*)*$")),
    word=st.text("abk0\u6211", min_size=1, max_size=2),
    kind=st.sampled_from(("Split", "Replace")),
)
def test_a_pattern_that_takes_for_ever_is_refused_without_a_word_on_standard_error(
    bomb, word, kind, capfd
):
    pattern = {"Regex": bomb.replace("W", f"(?:{word})")}
    model = {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"}
    options = {"behavior": "Isolated", "invert": False} if kind == "Split" else {"content": "u"}
    place = "pre_tokenizer" if kind == "Split" else "normalizer"
    part = {"type": kind, "pattern": pattern} | options
    content = {"version": "1.0", "model": model, place: part}
    with pytest.raises(TokenizationError):
        Tokenizer.from_json(json.dumps(content)).encode(f"{word * 200}!")
    assert capfd.readouterr().err == ""


# Of GPT-2 and of Llama 3.
PUBLISHED = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def test_published_patterns_are_plain():
    for pattern in PUBLISHED:
        assert is_plain(json.dumps({"type": "Split", "pattern": {"Regex": pattern}}))


def test_the_files_of_the_embedded_models_start_no_process(monkeypatch):
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a process was started"))
    folders = [
        path.parent for path in Path(minibert.__file__).parent.glob("embedded/*/tokenizer.json")
    ]
    assert len(folders) > 3
    for folder in folders:
        Tokenizer.from_folder(folder)("as it is")


def test_a_text_that_the_library_fails_on_is_refused_without_a_word_on_standard_error(capfd):
    units = [0] * 256
    units[ord("b")] = ord("b") | 2**20 << 10
    table = base64.b64encode(struct.pack("<257I", 1024, *units) + b"\0").decode()
    content = {
        "version": "1.0",
        "model": {"type": "WordLevel", "vocab": {"b": 0, "u": 1}, "unk_token": "u"},
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": table},
    }
    tokenizer = Tokenizer.from_json(json.dumps(content))
    assert tokenizer.encode("b") == [0]
    with pytest.raises(TokenizationError, match="out of bounds"):
        tokenizer.encode("b\u0301")
    assert capfd.readouterr().err == ""
