"""Pieces of text: whole characters, nothing behind a stop string, together the text."""

from hypothesis import given
from hypothesis import strategies as st

from minibert.answers.generate import TextStream


def from_bytes(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


def pieces_of(ids: list[int], *stop: str, prompt: tuple[int, ...] = ()) -> tuple[list[str], bool]:
    stream = TextStream(from_bytes, prompt, stop=stop)
    pieces = []
    for one in ids:
        pieces.append(stream.add(one))
        if stream.stopped:
            break
    pieces.append(stream.close())
    assert "".join(pieces) == stream.text
    return pieces, stream.stopped


@given(text=st.text())
def test_every_piece_is_whole_characters_and_they_add_up(text: str) -> None:
    pieces, stopped = pieces_of(list(text.encode()), prompt=(0x41,))
    assert "".join(pieces) == text
    assert not stopped
    assert all(piece in text for piece in pieces)


@given(ids=st.lists(st.integers(0, 255)))
def test_bytes_that_are_no_text_give_what_the_decoder_gives(ids: list[int]) -> None:
    pieces, _ = pieces_of(ids)
    assert "".join(pieces) == from_bytes(ids)


@given(text=st.text(alphabet="abé", max_size=30), stops=st.lists(st.text("abé", min_size=1)))
def test_the_text_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    pieces, stopped = pieces_of(list(text.encode()), *stops)
    # The stop string that is complete first ends the text; of two, the one that starts first.
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    first = min((end for end, _ in ends), default=0)
    start = min((start for end, start in ends if end == first), default=len(text))
    assert stopped == bool(ends)
    assert "".join(pieces) == text[:start]


def test_a_piece_waits_while_it_may_be_the_start_of_a_stop_string() -> None:
    assert pieces_of(list(b"1\n\n2"), "\n\n") == (["1", "", "", ""], True)
    assert pieces_of(list(b"1\n2"), "\n\n") == (["1", "", "\n2", ""], False)
    assert pieces_of(list(b"1\n"), "\n\n") == (["1", "", "\n"], False)


def test_the_space_of_the_first_word_behind_the_prompt_stays() -> None:
    words = ["once", "upon", "a", "time"]
    stream = TextStream(lambda ids: " ".join(words[i] for i in ids), [0, 1])
    assert [stream.add(2), stream.add(3), stream.close()] == [" a", " time", ""]
