"""A tokenizer of transformers as minibert's own, so that tokens know their words and texts.

A fast tokenizer of transformers is one of the library tokenizers, with settings beside it, as ours
is. It is copied; its own ids of every text are compared with those of the copy.
"""

from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from minibert.errors import TokenizationError
from minibert.text.tokenizer import Texts, Tokenizer
from minibert.text.tokenizer_files import WELL_KNOWN
from minibert.text.tokens import Tokens
from minibert.untrusted import guarded


class LiveTokenizer(Tokenizer):
    """What a fast tokenizer of transformers gives, with the words and texts of its tokens.

    Raises TokenizationError for one that is not fast; when called, for a text of which
    transformers' tokenizer makes other ids.
    """

    def __init__(self, live: Any) -> None:
        backend = getattr(live, "backend_tokenizer", None)
        if not isinstance(backend, Backend):
            raise TokenizationError(
                f"{type(live).__name__} is not a fast tokenizer of transformers: it does not say "
                "which characters a token stands for. Give AutoTokenizer.from_pretrained(name), "
                "where tokenizer.is_fast is True."
            )
        with guarded(type(live).__name__, TokenizationError, "cannot be copied"):
            copy = Backend.from_str(backend.to_str())
        written = {role: getattr(live, f"{role}_token", None) for role in WELL_KNOWN}
        declared = {
            role: AddedToken(str(token), normalized=False, special=True)
            for role, token in written.items()
            if token
        }
        super().__init__(copy, declared)
        self._live = live

    def __call__(
        self,
        text: Texts,
        pair: Texts | None = None,
        *,
        truncate: bool = False,
        max_positions: int | None = None,
    ) -> Tokens:
        """Tokenize as `Tokenizer` does. Truncated texts and Words are not compared."""
        tokens = super().__call__(text, pair, truncate=truncate, max_positions=max_positions)
        if isinstance(text, str) and isinstance(pair, str | None) and not truncate:
            ids = self._live(text, pair, verbose=False)["input_ids"]
            if tokens.ids[0].tolist() != ids:
                raise TokenizationError(
                    f"{type(self._live).__name__} makes {len(ids)} ids of the text, which are not "
                    f"the {tokens.lengths[0]} of its own tokenizer.json: something in it is done "
                    "beside that file, and which characters a token stands for is not known."
                )
        return tokens
