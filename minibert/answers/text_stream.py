"""Text from token ids that come one at a time, as generation makes them.

A token may be only a part of a character, and a stop string may span several tokens. Text that
may still change is held back.
"""

from collections.abc import Callable, Sequence

__all__ = ["TextStream"]

_HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text after a prompt, in pieces that are final.

    `decode` gives the text of a list of ids. `text` is all pieces together. `stopped` is True when
    one of the `stop` strings was found; the text then ends before it.

    >>> pieces = TextStream(lambda ids: bytes(ids).decode(errors="replace"), [65], stop=("!",))
    >>> [pieces.add(byte) for byte in (0x42, 0xC3, 0xA9, 0x21)], pieces.text, pieces.stopped
    (['B', '', 'é', ''], 'Bé', True)
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int], *, stop: Sequence[str] = ()
    ) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        # Some decoders drop the space before the first word, so the last token of the prompt is
        # decoded too.
        self._ids = list(prompt[-1:])
        self._known = len(self._ids)
        self._held = ""
        self.text = ""
        self.stopped = False

    def add(self, token_id: int) -> str:
        """The text that becomes final with this token; "" if there is none."""
        self._ids.append(token_id)
        return self._release(self._characters(), last=False)

    def close(self) -> str:
        """The text held back, when no more tokens come; "" if a stop string was found."""
        return self._release(self._characters(last=True), last=True)

    def _characters(self, *, last: bool = False) -> str:
        """The whole characters of the tokens whose text was not returned yet."""
        before, now = self._decode(self._ids[: self._known]), self._decode(self._ids)
        if now.endswith(_HALF_A_CHARACTER) and not last:
            return ""
        self._ids = self._ids[self._known :] or self._ids
        self._known = len(self._ids)
        return now[len(before) :]

    def _release(self, new: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [text.index(stop) for stop in self._stop if stop in text]
        self.stopped = bool(found)
        if found:
            end = min(found)
        else:
            end = len(text) if last else len(text) - self._start_of_a_stop(text)
        piece, self._held = text[:end], text[end:]
        self.text += piece
        return piece

    def _start_of_a_stop(self, text: str) -> int:
        """How many characters at the end of the text may be the start of a stop string."""
        longest = max(map(len, self._stop), default=0)
        for size in range(min(len(text), longest - 1), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop if len(stop) > size):
                return size
        return 0
