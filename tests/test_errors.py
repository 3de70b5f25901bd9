"""Messages stay short and printable, whatever a file put into them."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import CheckpointError, MinibertError, printable


@given(st.text(), st.integers(1, 1500), st.sampled_from([0, 200, 2000]))
def test_a_message_is_shorter_than_2_kb_and_acts_on_no_terminal(
    text: str, times: int, more: int
) -> None:
    message = str(CheckpointError(text * times + "\x1b[31m" * more))
    assert len(message.encode()) <= 2000
    assert all(c.isprintable() or c == "\n" for c in message)
    assert printable(message) == message


def test_a_short_message_is_kept_and_what_cannot_be_printed_is_named() -> None:
    assert str(MinibertError("naïve 我\n\x1b[31m \u202e\ud800")) == (
        "naïve 我\n\\x1b[31m \\u202e\\ud800"
    )


def test_of_a_long_message_beginning_and_end_are_kept() -> None:
    message = str(MinibertError("config.json: " + "x" * 50_000_000 + "; take it out."))
    assert message.startswith("config.json: xxx")
    assert message.endswith("xxx; take it out.")
    assert "of 50000027 characters" in message


def test_an_error_survives_a_pickle() -> None:
    assert str(pickle.loads(pickle.dumps(CheckpointError("a", 3)))) == "('a', 3)"
