"""The node's HTTP client: a connection whose task is cancelled is closed at once, during a TLS handshake too."""

from __future__ import annotations

import gc
import warnings

import httpx
import pytest
import trio

from p2p.web.client import new_client


async def _cancelled_in_the_handshake(client: httpx.AsyncClient, url: str, listener: trio.SocketListener) -> bytes:
    """What the server reads after the client hello: nothing, once the connection is closed."""
    async with client, trio.open_nursery() as nursery:
        nursery.start_soon(client.get, url)
        stream = await listener.accept()
        assert await stream.receive_some(), "the client hello"
        nursery.cancel_scope.cancel()
    with trio.fail_after(10):
        async with stream:
            return bytes(await stream.receive_some())


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
