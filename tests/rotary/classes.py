"""The classes of transformers of the twelve rotary families."""

__all__ = ["ARCHITECTURES", "CAUSAL", "CLASSES", "FAMILIES", "LANGUAGE"]

_HEADS = ("ForCausalLM", "ForSequenceClassification", "ForTokenClassification")
_QUESTIONS = (*_HEADS, "ForQuestionAnswering")
CLASSES = {
    "gpt_neox": ["GPTNeoXModel", *("GPTNeoX" + head for head in _QUESTIONS)],
    "llama": ["LlamaModel", *("Llama" + head for head in _QUESTIONS)],
    "mistral": ["MistralModel", *("Mistral" + head for head in _QUESTIONS)],
    "qwen2": ["Qwen2Model", *("Qwen2" + head for head in _QUESTIONS)],
    "qwen3": ["Qwen3Model", *("Qwen3" + head for head in _QUESTIONS)],
    "gemma": ["GemmaModel", *("Gemma" + head for head in _HEADS)],
    "gemma2": ["Gemma2Model", *("Gemma2" + head for head in _HEADS)],
    "gemma3_text": ["Gemma3TextModel", "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"],
    "phi3": ["Phi3Model", *("Phi3" + head for head in _HEADS)],
    "olmo2": ["Olmo2Model", "Olmo2ForCausalLM", "Olmo2ForSequenceClassification"],
    "granite": ["GraniteModel", "GraniteForCausalLM"],
    "modernbert": [
        "ModernBertModel",
        "ModernBertForMaskedLM",
        *("ModernBert" + head for head in _QUESTIONS[1:]),
    ],
}
FAMILIES = list(CLASSES)
CAUSAL = FAMILIES[:-1]
ARCHITECTURES = [(family, name) for family, names in CLASSES.items() for name in names]
#: The class with an output embedding.
LANGUAGE = {family: names[1] for family, names in CLASSES.items()}
