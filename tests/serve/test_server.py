"""A real server on a free port: the page, its websocket, and clients that do not behave."""

import random
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

import minibert
from minibert.viz.live import still_of
from minibert.viz.serve import connection, server
from minibert.viz.serve.engine import MOST_MESSAGE_BYTES
from minibert.viz.serve.server import PageServer, ServedPage
from tests.served import Client, page_socket, request, serving

TEXT = "the horse [MASK] away ."


@pytest.fixture(scope="module")
def served():
    with serving(minibert.load()) as running:
        yield running


@pytest.fixture
def client(served):
    made = Client(served)
    yield made
    made.close()


def get(served: PageServer, path: str, host: str | None = None, more: str = "") -> tuple[int, str]:
    """The status and the rest of an answer over HTTP."""
    host = f"127.0.0.1:{served.port}" if host is None else host
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        raw.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
    return int(answer.split()[1]), answer


def token(served: PageServer) -> str:
    return served.address.partition("?")[2]


def test_the_page_may_ask_its_own_server_and_nobody_else(served):
    status, answer = get(served, f"/?{token(served)}")
    assert status == 200
    head, _, page = answer.partition("\r\n\r\n")
    for line in (
        "cache-control: no-store",
        "referrer-policy: no-referrer",
        "x-frame-options: DENY",
    ):
        assert line.lower() in head.lower()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    here = f"127.0.0.1:{served.port}"
    assert f"connect-src ws://{here} wss://{here}" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert not re.search(r'(?:src|href)="(?!data:)', page)


def test_who_comes_without_the_token_or_from_elsewhere_gets_nothing(served):
    own = f"/?{token(served)}"
    for path, host, more in (
        ("/", None, ""), ("/?token=x", None, ""), (own, "evil.example", ""),
        (own, None, "Origin: http://evil.example\r\n"),
    ):  # fmt: skip
        status, answer = get(served, path, host, more)
        assert status == 403
        assert "<script" not in answer
        assert token(served).partition("=")[2] not in answer
    for origin, asked in (("http://evil.example", None), (None, None), ("", "wrong"), ("", "")):
        with pytest.raises(InvalidStatus) as refused:
            page_socket(served, origin=origin, token=asked)
        assert refused.value.response.status_code == 403


def test_connections_have_a_limit(monkeypatch):
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 2)
    with serving(minibert.load()) as running:
        there = ("127.0.0.1", running.port)
        assert get(running, f"/?{token(running)}")[0] == 200
        held = [socket.create_connection(there, timeout=20) for _ in range(2)]
        assert get(running, f"/?{token(running)}")[0] == 503
        for each in held:
            each.close()


def test_the_answers_are_those_of_the_engine(client):
    hostile = "</script><b>\u202e\x00 é 語"
    trace = minibert.load().trace(hostile)
    head, blocks = client.ask("trace", request=request([hostile]), blocks=["probs-3"])
    assert head["answer"]["header"]["texts"] == [hostile]
    assert head["answer"]["header"]["tokens"]["text"] == list(trace.tokens.strings[0])
    expected = trace[3].probs[0].numpy()
    codes = np.frombuffer(blocks["probs-3"], np.uint8).reshape(expected.shape)
    np.testing.assert_allclose((codes / 255.0) ** 2, expected, atol=4e-3)
    head, blocks = client.ask("read", request=request([hostile]), quantity="resid_mid", layer=2)
    values = np.frombuffer(blocks["values"], "<f4").reshape(head["answer"]["shape"])
    np.testing.assert_array_equal(values, trace[2].resid_mid[0].numpy())


def test_edits_and_the_characters_of_a_text_have_limits(client):
    edit = {"quantity": "z", "change": "zero", "layer": 0}
    most, above = 100 * minibert.load().config.n_positions, random.randrange(1, 99)
    for texts, edits, message in (
        ([TEXT], [edit] * 1000, None),
        ([TEXT], [edit] * (1000 + above), "edits (a list of at most 1000, "),
        ([f"horse{' ' * (most - 5)}"], [], None),
        (["x" * (most + above)], [], f"{most + above} characters"),
        ([TEXT, " " * (most + above)], [], f"{most + above} characters"),
    ):
        head, _ = client.ask("trace", request=request(texts, edits))
        assert ("answer" in head) if message is None else (message in head["error"]["message"])


def test_an_error_is_said_and_the_page_goes_on(client):
    edit = {"quantity": "z", "change": "zero", "layer": 9}
    head, _ = client.ask("trace", request=request([TEXT], [edit]))
    assert head["error"]["name"] == "Error"
    assert "Edit 1 (zero z): there is no layer 9" in head["error"]["message"]
    head, _ = client.ask("delete", request=request([TEXT]))
    assert "ask is 'delete'" in head["error"]["message"]
    assert "error" not in client.ask("about")[0]


@pytest.mark.parametrize(
    ("message", "code"),
    [("not JSON", 1007), ("{}", 1007), (b"\x00\x01", 1007), ("[" * 100_000, 1007),
     ("x" * (MOST_MESSAGE_BYTES + 1), 1009)],
)  # fmt: skip
def test_a_client_that_is_none_of_ours_is_let_go(client, served, message, code):
    client.socket.send(message)
    with pytest.raises(ConnectionClosed) as closed:
        client.answer(20)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code
    # Others are served as before.
    other = Client(served)
    assert "answer" in other.ask("about")[0]
    other.close()


def test_the_newest_of_a_kind_wins_and_others_take_turns(served, monkeypatch):
    page, other = Client(served), Client(served)
    asked = request(["the horse " * 60])
    question = {"position": 0, "id": 7}
    sweeps = [page.send("sweep", request=asked, question=question) for _ in range(3)]
    read = page.send("candidates", request=asked, position=0)
    # Between two layers of the sweep.
    assert "answer" in other.ask("about")[0]
    heads = [page.answer()[0] for _ in range(4)]
    aborted = {
        head["number"] for head in heads if head.get("error", {}).get("name") == "AbortError"
    }
    assert aborted == set(sweeps[:2])
    answered = [head["number"] for head in heads if "answer" in head]
    assert set(answered) == {sweeps[2], read}
    monkeypatch.setattr(connection, "MOST_WAITING", 1)
    page.send("sweep", request=asked, question=question)
    refused = page.send("candidates", request=asked, position=0)
    heads = [page.answer()[0] for _ in range(2)]
    [error] = [head["error"]["message"] for head in heads if head["number"] == refused]
    assert "1 requests of this page wait already" in error
    page.close()
    other.close()


def test_many_pages_at_once_each_get_their_own_answers(served):
    def use(number: int) -> None:
        page = Client(served)
        for turn in range(3):
            text = f"the horse {number} {turn}"
            head, blocks = page.ask("trace", request=request([text]), blocks=["probs-1"])
            assert head["answer"]["header"]["texts"] == [text]
            n_tokens = len(head["answer"]["header"]["tokens"]["text"])
            assert len(blocks["probs-1"]) == 4 * n_tokens**2
        page.close()

    with ThreadPoolExecutor(20) as pool:
        for done in [pool.submit(use, number) for number in range(20)]:
            done.result()
    end = time.monotonic() + 10
    while served._server.server_state.connections:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_page_in_a_notebook_is_a_frame_and_ends():
    model = minibert.load()
    page = ServedPage(PageServer(model, framed=True), still_of(model, "the horse"), height=400)
    try:
        assert page.address.startswith("http://127.0.0.1:")
        assert f'<object data="{page.address}"' in page._repr_html_()
        assert "height: 400px" in page._repr_html_()
        # A notebook is another page, and shows this one in a frame.
        assert "x-frame-options" not in get(page._server, f"/?{token(page._server)}")[1].lower()
    finally:
        page.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", page._server.port), timeout=5)
