"""Trains a tokenizer on the texts: WordPiece for models that see both sides, else byte-level BPE.

Sources: WordPiece, Schuster and Nakajima 2012, as in Devlin et al. 2019; byte-level BPE, Sennrich
et al. 2016, as in Radford et al. 2019. The `tokenizers` library does the work.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from minibert.errors import TrainingError
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokenizer_files import WELL_KNOWN
from minibert.writing import replacing

END_OF_TEXT = "<|endoftext|>"
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_PRIVATE = 0xF0000
# Typographic characters, and how the cleaned texts write them.
_STRAIGHT = {"’": "'", "‘": "'", "“": '"', "”": '"', "—": "--"}


def train_tokenizer(texts: Iterable[str], *, size: int, byte_level: bool) -> Tokenizer:
    """A tokenizer of at most `size` entries: byte-level BPE, or WordPiece in lower case.

    The same texts give the same tokenizer. Raises TrainingError for a size too small for the
    special tokens and all characters.
    """
    smallest = 300 if byte_level else 100
    if size < smallest:
        raise TrainingError(
            f"A vocabulary of {size} has no room for special tokens and single characters; "
            f"expected at least {smallest}."
        )
    backend = _byte_level(texts, size) if byte_level else _word_piece(texts, size)
    found = backend.get_vocab_size()
    if found > size:
        raise TrainingError(
            f"The texts have so many different characters that a vocabulary of {size} cannot hold "
            f"them; expected at least {found}."
        )
    return Tokenizer(backend, {})


def write_tokenizer_settings(model: Model, folder: Path) -> None:
    """Write the tokenizer_config.json that makes transformers use tokenizer.json unchanged.

    Without it transformers builds the family's usual tokenizer from the vocabulary, which would
    not turn curly quotes into straight ones.
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = {role: getattr(tokenizer, f"{role}_id") for role in WELL_KNOWN}
    segments = ["token_type_ids"] if model.config.n_segments > 1 else []
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.n_positions,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        **{f"{role}_token": tokenizer.raw(i) for role, i in ids.items() if i is not None},
    }
    with replacing(folder / "tokenizer_config.json") as beside:
        beside.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _byte_level(texts: Iterable[str], size: int) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _word_piece(texts: Iterable[str], size: int) -> Backend:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    straight = [normalizers.Replace(sign, plain) for sign, plain in _STRAIGHT.items()]
    backend.normalizer = normalizers.Sequence(
        [*straight, normalizers.BertNormalizer(lowercase=True)]
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.model = models.WordPiece(_word_pieces(backend, texts, size), unk_token="[UNK]")
    backend.add_special_tokens(_SPECIAL)
    # After the training, because only then do the special tokens have ids.
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return backend


def _word_pieces(backend: Backend, texts: Iterable[str], size: int) -> dict[str, int]:
    """The vocabulary of WordPieceTrainer, but the same one in each run.

    That trainer numbers the characters inside words in the order of a hash table, which differs
    between runs, and breaks ties by these numbers. Here each such character is replaced by one from
    the private use area, which the normalizer removes from all texts. Plain BPE then learns the
    same pieces.
    """
    words = Counter(
        word
        for text in texts
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(
            backend.normalizer.normalize_str(text)
        )
    )
    inner = {c: chr(_PRIVATE + n) for n, c in enumerate(sorted({c for w in words for c in w[1:]}))}
    learner = Backend(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    signs = str.maketrans(inner)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=_SPECIAL,
        initial_alphabet=sorted({c for word in words for c in word}),
        show_progress=False,
    )
    coded = ((word[0] + word[1:].translate(signs) + " ") * n for word, n in words.items())
    learner.train_from_iterator(coded, trainer)
    letters = str.maketrans({sign: c for c, sign in inner.items()})
    return {
        ("##" if ord(piece[0]) >= _PRIVATE else "") + piece.translate(letters): number
        for piece, number in learner.get_vocab().items()
    }
