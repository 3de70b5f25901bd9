"""Checkpoint folders with a vocabulary: small ones of each kind, trained here, and real ones."""

import json
import struct
from pathlib import Path
from typing import Any

from data import data_path
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AddedToken,
    GPT2TokenizerFast,
    PreTrainedTokenizerFast,
    RobertaTokenizerFast,
)

TEXT = [
    "The quick brown fox jumps over the lazy dog. The strawberries were fresh, weren't they?",
    "Le café était fermé; naïve Führer über Straße. Año nuevo, coração.",
    "Съешь же ещё этих мягких французских булок. שלום עולם مرحبا بالعالم",
    "我想在苹果公司工作 東京の天気 한국어 문장 🙂🚀 1314151 ½ \t\n",
] * 3
BERT_MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ALBERT_MARKS = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
# Of one that begins another the shorter is read; two characters of 6 bytes are read one by one.
WRITTEN = {
    **{"ﬁ": "fi", "½": "1/2", "①": "1", "か": "カ", "\u3000": " ", "\u200b": "", "é": "e\u0301"},
    **{"n": "n", "n\u0303": "x", "a\u0301": "á", "\u0939\u093f": "x", "👩": "woman"},
}
ROBERTA_MARKS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def word_piece(folder: Path, *, lowercase: bool = True) -> Path:
    """A folder with vocab.txt alone."""
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=BERT_MARKS, show_progress=False
    )
    trained.train_from_iterator(TEXT, trainer)
    entries = sorted(trained.get_vocab().items(), key=lambda entry: entry[1])
    (folder / "vocab.txt").write_text("".join(f"{name}\n" for name, _ in entries), "utf-8")
    return folder


def byte_level(folder: Path, marks: list[str]) -> Path:
    """A folder with vocab.json, merges.txt and the tokenizer.json of both by transformers."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=marks,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(TEXT, trainer)
    files = trained.model.save(str(folder))
    if marks == ROBERTA_MARKS:
        theirs = RobertaTokenizerFast(*files, mask_token=AddedToken("<mask>", lstrip=True))
    else:
        theirs = GPT2TokenizerFast(*files)
    theirs.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def sentence_piece(folder: Path) -> Path:
    """A folder with tokenizer.json alone, its spaces written as SentencePiece writes them."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=ROBERTA_MARKS, unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(TEXT, trainer)
    trained.save(str(folder / "tokenizer.json"))
    return folder


def charsmap(written: dict[str, str]) -> bytes:
    """What SentencePiece compiles of texts and what is written for them: a double array trie.

    Each node has a block of 256 units, so a unit's offset leads to the start of a block.
    """
    keys = {text.encode(): new.encode() + b"\0" for text, new in written.items()}
    prefixes = sorted({key[:size] for key in keys for size in range(len(key) + 1)})
    blocks = {prefix: 256 * (1 + i) for i, prefix in enumerate(prefixes)}
    units = [0] * (256 * (1 + len(blocks)))
    texts = b""
    for prefix, block in blocks.items():
        label = prefix[-1] if prefix else 0
        place = blocks[prefix[:-1]] + label if prefix else 0
        units[place] = (place ^ block) << 10 | (prefix in keys) << 8 | label
        if prefix in keys:
            units[block] = 1 << 31 | len(texts)
            texts += keys[prefix]
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts


def unigram(kind: type[PreTrainedTokenizerFast], marks: list[str], **options: Any) -> Tokenizer:
    """A tokenizer of transformers, ALBERT's or XLM-RoBERTa's, with pieces that are trained here."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", show_progress=False)
    trained.train_from_iterator([*TEXT, *map(str.lower, TEXT)], trainer)
    pieces = json.loads(trained.to_str())["model"]["vocab"]
    vocab = [(mark, 0.0) for mark in marks] + [(piece, score) for piece, score in pieces[1:]]
    given = kind(vocab=vocab, _spm_precompiled_charsmap=charsmap(WRITTEN), **options)
    return given.backend_tokenizer


def byte_fallback(*, prepended: bool) -> Tokenizer:
    """BPE of SentencePiece with all bytes: as Llama 2 has it, with a space in front, or Gemma."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    spaces = normalizers.Replace(" ", "\u2581")
    trained.normalizer = spaces
    trained.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    marks = ["<pad>", "</s>", "<s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=marks, show_progress=False)
    trained.train_from_iterator(TEXT, trainer)
    model = json.loads(trained.to_str())["model"]
    names = model["vocab"] | {f"<0x{n:02X}>": len(model["vocab"]) + n for n in range(256)}
    merges = [tuple(pair) for pair in model["merges"]]
    trained.model = models.BPE(names, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prepended:
        trained.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
        trained.pre_tokenizer = None  # type: ignore[assignment]
        parts.append(decoders.Strip(" ", 1, 0))
    else:
        trained.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trained.decoder = decoders.Sequence(parts)
    trained.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 2)]
    )
    return trained


def real(folder: Path, name: str, *files: str) -> Path:
    """A folder with only `files` of the real checkpoint `name`."""
    for file in files:
        (folder / file).symlink_to(data_path("models", name, file))
    return folder


def write(folder: Path, **contents: object) -> Path:
    """Puts JSON files into the folder: `write(folder, config={...})` is config.json."""
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return folder
