"""One file a family: its tensors' names, its config.json, its contract.

form.py says what a family is made of, rotary.py how positions turn; bert_like.py, llama_like.py
and qwen_like.py have what several families share.
"""

from collections.abc import Mapping

from minibert.checkpoint.families.albert import ALBERT
from minibert.checkpoint.families.bert import BERT
from minibert.checkpoint.families.distilbert import DISTILBERT
from minibert.checkpoint.families.electra import ELECTRA
from minibert.checkpoint.families.form import Family
from minibert.checkpoint.families.gemma import GEMMA
from minibert.checkpoint.families.gemma2 import GEMMA2
from minibert.checkpoint.families.gemma3 import GEMMA3
from minibert.checkpoint.families.gpt2 import GPT2
from minibert.checkpoint.families.gpt_neox import GPT_NEOX
from minibert.checkpoint.families.granite import GRANITE
from minibert.checkpoint.families.llama import LLAMA
from minibert.checkpoint.families.mistral import MISTRAL
from minibert.checkpoint.families.modernbert import MODERNBERT
from minibert.checkpoint.families.olmo2 import OLMO2
from minibert.checkpoint.families.phi3 import PHI3
from minibert.checkpoint.families.qwen2 import QWEN2
from minibert.checkpoint.families.qwen3 import QWEN3
from minibert.checkpoint.families.roberta import ROBERTA

FAMILIES: Mapping[str, Family] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "albert": ALBERT,
    "gpt2": GPT2,
    "gpt_neox": GPT_NEOX,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "granite": GRANITE,
    "phi3": PHI3,
    "olmo2": OLMO2,
    "modernbert": MODERNBERT,
}
