"""The families: their tensors' names, their config.json, their contract.

form.py says what a family is made of, rotary.py how positions turn.
"""

from collections.abc import Mapping

from minibert.checkpoint.families import bert_like, llama_like
from minibert.checkpoint.families.form import Family
from minibert.checkpoint.families.gpt import GPT2, GPT_NEOX
from minibert.checkpoint.families.own import OWN

FAMILIES: Mapping[str, Family] = {
    "minibert": OWN,
    "bert": bert_like.BERT,
    "roberta": bert_like.ROBERTA,
    "distilbert": bert_like.DISTILBERT,
    "electra": bert_like.ELECTRA,
    "albert": bert_like.ALBERT,
    "gpt2": GPT2,
    "gpt_neox": GPT_NEOX,
    "llama": llama_like.LLAMA,
    "mistral": llama_like.MISTRAL,
    "qwen2": llama_like.QWEN2,
    "qwen3": llama_like.QWEN3,
    "gemma": llama_like.GEMMA,
    "gemma2": llama_like.GEMMA2,
    "gemma3": llama_like.GEMMA3,
    "granite": llama_like.GRANITE,
    "phi3": llama_like.PHI3,
    "olmo2": llama_like.OLMO2,
    "modernbert": bert_like.MODERNBERT,
}
