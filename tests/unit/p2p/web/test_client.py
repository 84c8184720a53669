"""The node's HTTP client: a connection whose task is cancelled is closed at once, during a TLS handshake too."""

from __future__ import annotations

import gc
import ssl
import warnings
from pathlib import Path

import certifi
import httpx
import pytest
import trio

from p2p.web.client import OpenedClient, machine_authorities, new_client
from worlds.eventually import PATIENCE


async def _cancelled_in_the_handshake(client: httpx.AsyncClient, url: str, listener: trio.SocketListener) -> bytes:
    """What the server reads after the client hello: nothing, once the connection is closed."""
    async with client, trio.open_nursery() as nursery:
        nursery.start_soon(client.get, url)
        stream = await listener.accept()
        assert await stream.receive_some(), "the client hello"
        nursery.cancel_scope.cancel()
    with trio.fail_after(PATIENCE):
        async with stream:
            return bytes(await stream.receive_some())


@pytest.mark.slow
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "through-a-proxy"])
async def test_a_handshake_that_is_left_leaves_no_socket(proxied: bool) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    proxy = {"proxy": f"https://127.0.0.1:{port}"} if proxied else {}
    url = "http://example.invalid/" if proxied else f"https://127.0.0.1:{port}/"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        async with listener:
            assert await _cancelled_in_the_handshake(new_client(timeout=None, **proxy), url, listener) == b""
        gc.collect()
    assert [str(each.message) for each in warned] == []


async def test_the_authorities_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first client of a process; by another one only where the environment names others since."""
    read: list[object] = []
    plain = ssl.SSLContext.load_verify_locations

    def counted(context: ssl.SSLContext, *given: object, **named: object) -> None:
        read.append(named or given)
        plain(context, *given, **named)  # type: ignore[arg-type]

    await new_client().aclose()
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    for _ in range(3):
        await new_client(headers={"a": "b"}).aclose()
    assert read == []
    monkeypatch.setenv("SSL_CERT_FILE", certifi.where())
    async with new_client() as client:
        context = client._transport._pool._ssl_context  # type: ignore[attr-defined]
    assert len(read) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_authorities_of_the_machine_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = machine_authorities()
    assert machine_authorities() is first
    assert first.verify_mode is ssl.CERT_REQUIRED
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    assert machine_authorities().get_ca_certs() == []


async def test_a_client_is_made_with_the_first_request_and_not_after_the_end() -> None:
    made: list[httpx.AsyncClient] = []

    def make() -> httpx.AsyncClient:
        made.append(new_client())
        return made[-1]

    async with OpenedClient(make) as unused:
        pass
    with pytest.raises(RuntimeError, match="after the end"):
        _ = unused.client
    assert not made
    async with OpenedClient(make) as opened:
        first = opened.client
        assert opened.client is first
        assert not first.is_closed
    assert made == [first]
    assert first.is_closed
