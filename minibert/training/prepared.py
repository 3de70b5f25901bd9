"""What a run begins with: its tokenizer, its config, its texts as ids, and its device."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from minibert.errors import TrainingError
from minibert.layers.config import Config
from minibert.text.tokenizer import Tokenizer
from minibert.training.snapshot import Snapshot
from minibert.training.texts import Corpus, Document
from minibert.training.vocabulary import END_OF_TEXT, train_tokenizer

__all__ = ["corpus_of", "device_of", "tokenizer_of", "with_tokenizer"]


def tokenizer_of(
    texts: Sequence[Document], config: Config, whole: Sequence[str], snapshot: Snapshot | None
) -> Tokenizer:
    """The tokenizer of the snapshot, or a new one trained on the texts."""
    if snapshot is not None:
        return Tokenizer.from_json(snapshot.tokenizer)
    given = (document.text for document in texts)
    return train_tokenizer(given, family=config.family, size=config.vocab_size, whole=whole)


def with_tokenizer(config: Config, tokenizer: Tokenizer) -> Config:
    """The config with what the tokenizer decides: ids, and where positions begin."""
    if not config.causal and None in (tokenizer.mask_id, tokenizer.pad_id):
        raise TrainingError("A masked LM needs a tokenizer with a mask and a padding token.")
    pad_id = config.pad_id if tokenizer.pad_id is None else tokenizer.pad_id
    offset = config.position_offset
    if config.family == "roberta" and pad_id is not None:
        # RoBERTa counts positions from pad_id + 1, whatever the given config says.
        offset = pad_id + 1
    return replace(config, vocab_size=tokenizer.vocab_size, pad_id=pad_id, position_offset=offset)


def corpus_of(documents: Sequence[Document], tokenizer: Tokenizer) -> Corpus:
    """The documents as ids, one behind the other."""
    ids = tokenizer.encode(END_OF_TEXT)
    # Where the tokenizer has an end-of-text token, it ends each text; elsewhere nothing does.
    between = ids if len(ids) == 1 and ids[0] in tokenizer.special_ids else []
    return Corpus.of(documents, tokenizer, between=between)


def device_of(name: str) -> torch.device:
    """The device. Raises TrainingError where it cannot be trained on."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        # After the first line, CUDA's messages are advice for its own developers.
        reason = str(error).partition("\n")[0]
        raise TrainingError(f"The device {name!r} cannot be used: {reason}") from error
    if device.type not in ("cpu", "cuda"):
        raise TrainingError(f"The device {name!r} cannot be trained on; expected cpu or cuda.")
    return device
