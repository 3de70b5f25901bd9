"""What BertViz' tests, notebooks and README load by name, made small and random, without a network.

A model is of the class that the name stands for. Vocabularies of words are real ones where the
expected tokens need them: of bert-base-uncased (beside MiniLM) and of GPT-2, both test data.
"""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from data import data_path

N_LAYERS, N_HEADS, WIDTH = 12, 12, 48
BERT_NAMES = ("bert-base-uncased", "microsoft/xtremedistil-l12-h384-uncased")
DISTILBERT, BART, MARIAN = (
    "distilbert-base-uncased",
    "facebook/bart-large-cnn",
    "Helsinki-NLP/opus-mt-en-de",
)
# The pieces that its tests expect of xlnet-large-cased's vocabulary.
XLNET_PIECES = ["▁Bert", "▁is", "▁a", "▁yellow", "m", "up", "pet", "▁character"]
SENTENCES = ["She sees the small elephant.", "Sie sieht den kleinen Elefanten."]


def in_transformers(folder: Path) -> dict[str, Path]:
    """Folders with a model and a tokenizer of transformers, by the name that they stand for."""
    import transformers as t

    t.set_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": N_LAYERS, "num_attention_heads": N_HEADS}
    places = {name: folder / name.replace("/", "-") for name in BERT_NAMES}
    vocabulary = data_path("models", "all-MiniLM-L6-v2") / "vocab.txt"
    for place in places.values():
        t.BertModel(t.BertConfig(**sizes, intermediate_size=16)).save_pretrained(place)
        t.BertTokenizerFast(str(vocabulary)).save_pretrained(place)
    places[DISTILBERT] = folder / "distilbert"
    small = t.DistilBertConfig(dim=WIDTH, n_layers=N_LAYERS, n_heads=N_HEADS, hidden_dim=16)
    t.DistilBertModel(small).save_pretrained(places[DISTILBERT])
    t.DistilBertTokenizerFast(str(vocabulary)).save_pretrained(places[DISTILBERT])

    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder")
             for what, n in (("layers", 3), ("attention_heads", 4), ("ffn_dim", 16))}  # fmt: skip
    places[BART] = folder / "bart"
    tokenizer = t.BartTokenizerFast(*map(str, byte_level(folder)))
    tokenizer.save_pretrained(places[BART])
    t.BartModel(
        t.BartConfig(d_model=WIDTH, vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)
    ).save_pretrained(places[BART])
    places[MARIAN] = folder / "marian"
    translator = marian_tokenizer(folder)
    translator.save_pretrained(places[MARIAN])
    t.MarianModel(
        t.MarianConfig(
            d_model=WIDTH,
            vocab_size=len(translator),
            pad_token_id=translator.pad_token_id,
            max_position_embeddings=64,
            **sizes,
        )
    ).save_pretrained(places[MARIAN])
    return places


def byte_level(folder: Path) -> tuple[Path, Path]:
    """vocab.json and merges.txt of GPT-2 with the special tokens of RoBERTa and BART."""
    source = data_path("models", "gpt2-tokenizer")
    vocabulary = json.loads((source / "vocab.json").read_text(encoding="utf-8"))
    for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>"):
        vocabulary[token] = len(vocabulary)
    target = folder / "vocab.json"
    target.write_text(json.dumps(vocabulary), encoding="utf-8")
    return target, Path(shutil.copy(source / "merges.txt", folder))


def pieces(path: Path, **options: Any) -> Path:
    """A small SentencePiece model of the sentences, or skip."""
    sentencepiece = pytest.importorskip("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES, "Bert is a yellow muppet character"]),
        model_prefix=str(path.with_suffix("")), hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    return path


def marian_tokenizer(folder: Path) -> Any:
    import transformers as t

    model = pieces(folder / "marian.model", vocab_size=80)
    import sentencepiece

    known = sentencepiece.SentencePieceProcessor(str(model))
    words = {known.id_to_piece(i) for i in range(known.get_piece_size())}
    vocabulary = {word: i for i, word in enumerate(sorted(words | {"</s>", "<unk>", "<pad>"}))}
    (folder / "marian.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return t.MarianTokenizer(str(model), str(model), str(folder / "marian.json"))


@cache
def _sizes(name: str) -> dict[str, int]:
    """What the configuration of BertViz' copy of a class calls its sizes."""
    if name.startswith("GPT2"):
        return {"n_embd": WIDTH, "n_layer": 4, "n_head": 4}
    if name.startswith("XLNet"):
        return {"d_model": WIDTH, "n_layer": 4, "n_head": 4, "d_inner": 16}
    return {
        "hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 16,
    }  # fmt: skip


def own_model(cls: Any, *_: Any, **__: Any) -> Any:
    """For `from_pretrained` of the classes of bertviz.transformers_neuron_view."""
    vocabulary = {"GPT2": 50_257, "Roberta": 50_300, "XLNet": 300}
    size = next((n for start, n in vocabulary.items() if cls.__name__.startswith(start)), 30_522)
    return cls(cls.config_class(size, **_sizes(cls.__name__)))


def own_tokenizer(cls: Any, folder: Path, **options: Any) -> Any:
    """For `from_pretrained` of its tokenizers."""
    name = cls.__name__
    if name == "GPT2Tokenizer":
        source = data_path("models", "gpt2-tokenizer")
        return cls(source / "vocab.json", source / "merges.txt", **options)
    if name == "RobertaTokenizer":
        return cls(*byte_level(folder), **options)
    if name == "XLNetTokenizer":
        symbols = [*XLNET_PIECES, "<sep>", "<cls>"]
        model = pieces(folder / "xlnet.model", vocab_size=120, user_defined_symbols=symbols)
        return cls(str(model), **options)
    return cls(str(data_path("models", "all-MiniLM-L6-v2") / "vocab.txt"), **options)
