"""The page is served once somebody asks for it, at its own address, until the node stops."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlparse

import pytest
import trio

from chain.errors import Environment
from config.check import cross
from config.model import Http, Settings
from odfd.page.server import PageServer
from odfd.runtime.supervision import Life
from worlds.eventually import PATIENCE
from worlds.node_world import Lines


async def api(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"6")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'"told"'})


def made(address: str = "") -> PageServer:
    numbers = iter(range(100))
    page = PageServer(address, lambda: f"secret-{next(numbers)}", Lines())
    page.api = api
    return page


def asked(url: str, headers: dict[str, str], data: bytes | None = None) -> Any:
    return urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE)


def looked(address: str) -> bytes:
    """As a browser does it: the files, the session, the API."""
    place, _, token = address.partition("/#token=")
    assert b"/main.js" in asked(place, {}).read()
    began = asked(f"{place}/session", {"origin": place}, json.dumps({"token": token}).encode())
    headers = {"cookie": began.headers["set-cookie"].partition(";")[0], "x-odfd-key": json.loads(began.read())["key"]}
    with pytest.raises(urllib.error.HTTPError):
        asked(f"{place}/v1/status", {})
    return bytes(asked(f"{place}/v1/status", headers).read())


async def test_it_is_served_once_somebody_asks_for_it() -> None:
    page, life = made(), Life()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(page.run, life)
            await life.wait_ready()
            assert not page.server.listeners, "nobody asked"
            first, second = (await page.open()).url, (await page.open()).url
            assert first.partition("#")[0] == second.partition("#")[0]
            assert urlparse(first).hostname == "127.0.0.1"
            for url in (first, second):
                assert await trio.to_thread.run_sync(looked, url) == b'"told"'
            life.stopping.set()
    with pytest.raises(OSError, match="failed"):
        await trio.open_tcp_stream("127.0.0.1", urlparse(first).port or 0)


async def test_one_that_nobody_asks_for_stops_too() -> None:
    life = Life()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made().run, life)
            await life.wait_ready()
            life.stopping.set()


async def test_settings_may_name_its_address() -> None:
    page, life = made("127.0.0.1:0"), Life()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(page.run, life)
            await life.wait_ready()
            assert page.server.listeners
            assert await trio.to_thread.run_sync(looked, (await page.open()).url) == b'"told"'
            life.stopping.set()


async def test_a_port_that_is_taken_is_told_with_its_setting() -> None:
    with trio.socket.socket() as other:
        await other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(Environment, match="cannot serve HTTP") as caught:
            await made(f"127.0.0.1:{other.getsockname()[1]}").open()
    assert "http.ui" in caught.value.hint


@pytest.mark.parametrize("address", ["0.0.0.0:7464", "[::]:7464", "192.0.2.1:7464", "localhost:7464", "7464"])
def test_only_this_machine_may_be_named(address: str) -> None:
    (problem,) = cross(Settings(http=Http(ui=address)), {})
    assert "not an address of this machine alone" in str(problem)
    assert not cross(Settings(http=Http(ui="127.0.0.1:7464")), {})
