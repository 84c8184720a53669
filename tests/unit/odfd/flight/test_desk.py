"""The desk of Flight and the relay before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import trio

from chain.errors import Environment
from odfd.control.tokens import Tokens
from odfd.flight import relay
from odfd.flight.backend import FlightBackend
from odfd.flight.relay import Relay
from worlds.eventually import PATIENCE

# What the desk of Flight tells whoever gave no token.

TOKEN = "a-token-of-the-owner"


class _Broken:
    """The store cannot be read."""

    async def answer(self, *_: Any, owner: bool) -> None:
        raise Environment("cannot read /home/alice/odfd/objects/x", rule="object-read")

    def states(self, *, owner: bool) -> list[Any]:
        raise Environment("cannot read /home/alice/odfd/objects/x", rule="object-read")


@pytest.mark.parametrize("path", ["/query", "/datasets"])
async def test_others_are_told_nothing_of_this_machine(path: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"alice {TOKEN}\n")
    file.chmod(0o600)
    desk = FlightBackend(_Broken(), Tokens(file, "flight.tokens", required=False), structlog.get_logger())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(desk), base_url="http://desk") as client:

        async def told(token: str) -> str:
            said = await client.post(path, json={"token": token, "request": {"sql": "select 1"}})
            assert said.status_code == 503
            return said.text

        assert "/home/alice" in await told(TOKEN)
        assert "/home/alice" not in await told("")
        file.chmod(0o644)
        assert str(tmp_path) not in await told(TOKEN), "who they are is not known yet"


# Clients of Flight that say nothing keep none out that speaks.


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **_: object) -> None:
        self.said.append(event)


async def echo(stream: trio.SocketStream) -> None:
    async for piece in stream:
        await stream.send_all(piece)


@asynccontextmanager
async def relayed(folder: Path, most: int) -> AsyncIterator[tuple[int, Lines]]:
    """A port that leads to an echo, for so many clients."""
    inside, logger = trio.socket.socket(trio.socket.AF_UNIX), Lines()
    await inside.bind(str(folder / "s"))
    inside.listen()
    made: Any = Relay(folder / "s", most, None, logger)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, echo, [trio.SocketListener(inside)])
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(made.serve, listeners)
        with trio.fail_after(PATIENCE):
            yield listeners[0].socket.getsockname()[1], logger
        nursery.cancel_scope.cancel()


async def test_silent_clients_of_flight_make_room(tmp_path: Path) -> None:
    async with relayed(tmp_path, 4) as (port, _), AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port)) for _ in range(10)]
        speaks = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
        for words in (b"first", b"second"):
            await speaks.send_all(words)
            assert await speaks.receive_some() == words
        assert await silent[0].receive_some() == b"", "closed for a newcomer"


async def test_a_client_of_flight_that_says_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HANDSHAKE_SECONDS", 0.05)
    async with relayed(tmp_path, 4) as (port, logger), await trio.open_tcp_stream("127.0.0.1", port) as silent:
        assert await silent.receive_some() == b""
        assert logger.said == ["a client of Flight is left: it said nothing"]
