"""Who is let in: by token, Host and Origin."""

import pytest

from minibert.viz.serve.server import Gate

GATE = Gate(token="right", names=frozenset({"localhost", "lab-machine"}))
HERE = "127.0.0.1:8000"


def refusal(
    host: str | None = HERE,
    origin: str | None = f"http://{HERE}",
    query: str = "token=right",
    *,
    websocket: bool = True,
) -> str:
    headers = [(b"host", host)] if host is not None else []
    headers += [(b"origin", origin)] if origin is not None else []
    raw = [(name, value.encode("latin-1")) for name, value in headers]
    return GATE.refusal(query.encode(), raw, websocket=websocket)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "localhost:8000", "LOCALHOST:9", "[::1]:8000", "lab-machine", "10.0.0.7:1"],
)
def test_our_own_page_is_let_in(host):
    assert refusal(host, f"http://{host}") == ""
    assert refusal(host, f"https://{host}") == ""
    assert refusal(host, None, websocket=False) == ""


@pytest.mark.parametrize(
    "host",
    [
        None, "", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example:8000",
        "evil.example:8000@127.0.0.1", "127.0.0.1:8000, evil.example", "127.0.0.1:8000/x",
        "[::1", "localhost:", "localhost:8000:9", "local\xa0host", "a" * 300,
    ],
)  # fmt: skip
def test_a_name_that_could_be_somebody_elses_is_refused(host):
    assert "another name" in refusal(host, f"http://{host}")
    assert "another name" in refusal(host, None, websocket=False)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://127.0.0.1:8001", "http://localhost:8000",
     "ws://127.0.0.1:8000", f"http://{HERE}/", f"http://{HERE}.evil.example", "file://"],
)  # fmt: skip
@pytest.mark.parametrize("websocket", [True, False])
def test_another_origin_is_refused(origin, websocket):
    assert "another origin" in refusal(origin=origin, websocket=websocket)
    # Browsers send it with every websocket.
    assert "another origin" in refusal(origin=None)


@pytest.mark.parametrize(
    "query",
    ["", "token=", "token=wrong", "token=righ", "token=right%00", "token=right&token=right",
     "Token=right", "token=RIGHT", "&".join(f"a{i}" for i in range(50)) + "&token=right"],
)  # fmt: skip
def test_a_missing_or_wrong_token_is_refused(query):
    assert "token" in refusal(query=query)
    host = (b"host", HERE.encode())
    assert "token" in GATE.refusal(b"token=\xff", [host], websocket=False)
    assert "another name" in GATE.refusal(b"token=right", [host, host], websocket=False)
    tokens = {Gate().token for _ in range(20)}
    assert len(tokens) == 20
    assert min(map(len, tokens)) >= 32
