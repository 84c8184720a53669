"""Where an engine may listen, and where it says that it cannot."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Invalid
from engines.listen_address import check_free, parse_address


@pytest.mark.parametrize(
    ("text", "said", "local"),
    [
        (":2884", "127.0.0.1:2884", True),
        ("127.0.0.1:0", "127.0.0.1:0", True),
        ("127.9.9.9:1", "127.9.9.9:1", True),
        ("localhost:5", "localhost:5", True),
        ("[::1]:5", "[::1]:5", True),
        ("0.0.0.0:5", "0.0.0.0:5", False),
        ("[::]:5", "[::]:5", False),
        ("example.org:5", "example.org:5", False),
        ("unix:/run/x", "unix:/run/x", True),
    ],
)
def test_addresses(text: str, said: str, local: bool) -> None:
    address = parse_address(text)
    assert (str(address), address.is_local) == (said, local)


@pytest.mark.slow
@given(st.text(max_size=20))
def test_any_text_is_an_address_or_told_how_to_write_one(text: str) -> None:
    hint = ""
    try:
        address = parse_address(text)
    except Invalid as fault:
        hint = fault.hint
    assert "unix:PATH" in hint or parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", "5544", "host:", "host:99999", "unix:", "a b:5", "::1:5"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(Invalid, match="no place to listen"):
        parse_address(text)


def test_a_place_is_free_or_says_why_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Environment, match=f"127.0.0.1:{port}: .*in use"):
            check_free(parse_address(f":{port}"))
    check_free(parse_address(f":{port}"))
    with pytest.raises(Environment, match="no directory"):
        check_free(parse_address(f"unix:{tmp_path}/none/s"))
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(str(path))
        here.listen()
        with pytest.raises(Environment, match="in use"):
            check_free(parse_address(f"unix:{path}"))
    check_free(parse_address(f"unix:{path}"))  # nobody listens there any more
    path.unlink()
    path.touch()
    with pytest.raises(Environment, match="something else"):
        check_free(parse_address(f"unix:{path}"))
