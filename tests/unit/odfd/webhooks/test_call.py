"""Calls to receivers that do not answer."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from chain.errors import Remote
from odfd.webhooks import call
from p2p.ip import anywhere


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def endless(stream: trio.SocketStream) -> None:
    """Headers that never end."""
    await stream.send_all(b"HTTP/1.1 200 OK\r\n")
    while True:
        await stream.send_all(b"X: y\r\n")
        await trio.sleep(0.01)


@pytest.mark.parametrize("serve", [silent, endless])
async def test_a_receiver_that_does_not_answer_is_left(serve: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "CALL_SECONDS", 0.1)
    async with trio.open_nursery() as nursery:
        listen = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(listen)
        port = listener.socket.getsockname()[1]
        with pytest.raises(Remote, match="no answer in"):
            await call.call(f"http://127.0.0.1:{port}/", {}, b"{}", anywhere)
        nursery.cancel_scope.cancel()
