"""Trains a tokenizer on the texts, with the special tokens of its family.

Sources: WordPiece, Schuster and Nakajima 2012, as in Devlin et al. 2019; byte-level BPE, Sennrich
et al. 2016, as in Radford et al. 2019. The `tokenizers` library does the work.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from minibert.errors import TrainingError
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokenizer_files import WELL_KNOWN

END_OF_TEXT = "<|endoftext|>"
_BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_WORD_PIECE_FAMILIES = ("bert", "distilbert", "electra", "albert", "modernbert")
_PRIVATE = 0xF0000
# BPE's last merges, in 8 million characters and 6,000 tokens, join pairs that occur 50 to 70 times.
_OFTEN = 200
# Typographic characters, and how the cleaned texts write them.
_STRAIGHT = {"’": "'", "‘": "'", "“": '"', "”": '"', "—": "--"}


def train_tokenizer(
    texts: Iterable[str], *, family: str, size: int, whole: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer of at most `size` entries: WordPiece for families that use it, else byte-level.

    Each word of `whole` becomes one token. In byte-level BPE a word that starts with a space has
    that space in its token, as words inside a text have it; in WordPiece words have no spaces.

    Raises TrainingError for a size too small for the special tokens and all characters, and where a
    word does not become one token.
    """
    byte_level = family not in _WORD_PIECE_FAMILIES
    smallest = 300 if byte_level else 100
    if size < smallest:
        raise TrainingError(
            f"A vocabulary of {size} has no room for special tokens and single characters; "
            f"expected at least {smallest}."
        )
    learned_from = chain(texts, _often(whole))
    if byte_level:
        backend = _byte_level(family)
        backend.train_from_iterator(learned_from, _trainer(family, size))
    else:
        backend = _word_piece()
        _learn_word_pieces(backend, learned_from, size)
    found = backend.get_vocab_size()
    if found > size:
        raise TrainingError(
            f"The texts have so many different characters that a vocabulary of {size} cannot hold "
            f"them; expected at least {found}."
        )
    if torn := [word for word in whole if len(backend.encode(word).ids) != 1]:
        raise TrainingError(
            f"{', '.join(torn[:8])}: {len(torn)} of {len(whole)} words are no single token in a "
            f"vocabulary of {size}. Give fewer words or a larger vocabulary."
        )
    # After the training, because only then do the special tokens have ids.
    _wrap(backend, family)
    return Tokenizer(backend, {})


def tokenizer_settings(tokenizer: Tokenizer, *, family: str, n_positions: int) -> dict[str, object]:
    """The tokenizer_config.json that makes transformers use tokenizer.json unchanged.

    Without it transformers builds the family's usual tokenizer from the vocabulary, which would
    not turn curly quotes into straight ones.
    """
    ids = {role: getattr(tokenizer, f"{role}_id") for role in WELL_KNOWN}
    segments = ["token_type_ids"] if family in ("bert", "electra", "albert") else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": n_positions,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        **{f"{role}_token": tokenizer.raw(i) for role, i in ids.items() if i is not None},
    }


def _word_piece() -> Backend:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    straight = [normalizers.Replace(sign, plain) for sign, plain in _STRAIGHT.items()]
    backend.normalizer = normalizers.Sequence(
        [*straight, normalizers.BertNormalizer(lowercase=True)]
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _byte_level(family: str) -> Backend:
    backend = Backend(models.BPE(unk_token="<unk>" if family == "roberta" else None))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _trainer(family: str, size: int) -> trainers.Trainer:
    return trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=_ROBERTA_SPECIAL if family == "roberta" else [END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def _often(words: Sequence[str]) -> Iterator[str]:
    """Each word so often that BPE merges its letters before pairs that are rarer in the texts."""
    return (word for word in words for _ in range(_OFTEN))


def _learn_word_pieces(backend: Backend, texts: Iterable[str], size: int) -> None:
    """Learn the vocabulary of WordPieceTrainer, but the same one in each run.

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
        special_tokens=_BERT_SPECIAL,
        initial_alphabet=sorted({c for word in words for c in word}),
        show_progress=False,
    )
    coded = ((word[0] + word[1:].translate(signs) + " ") * n for word, n in words.items())
    learner.train_from_iterator(coded, trainer)
    letters = str.maketrans({sign: c for c, sign in inner.items()})
    vocabulary = {
        ("##" if ord(piece[0]) >= _PRIVATE else "") + piece.translate(letters): number
        for piece, number in learner.get_vocab().items()
    }
    backend.model = models.WordPiece(vocabulary, unk_token="[UNK]")
    backend.add_special_tokens(_BERT_SPECIAL)


def _wrap(backend: Backend, family: str) -> None:
    if family != "roberta" and family not in _WORD_PIECE_FAMILIES:
        return
    start, end = ("<s>", "</s>") if family == "roberta" else ("[CLS]", "[SEP]")
    # RoBERTa ends the first text twice and has one segment (Liu et al. 2019, section 4.2).
    between = f"{end} {end}" if family == "roberta" else end
    second = "" if family == "roberta" else ":1"
    backend.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {between} $B{second} {end}{second}",
        special_tokens=[(token, backend.token_to_id(token)) for token in (start, end)],
    )
