"""The page is served once somebody asks for it, at its own address, until the node stops."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import trio

from chain.errors import Environment
from config.check import cross
from config.model import Http, Settings
from odfd.page.server import LIMITS, PageServer
from odfd.runtime.http_server import HANDSHAKE_SECONDS, ConnectionHandler, HttpServer
from odfd.runtime.supervision import Life
from odfd.runtime.tls import tls_context
from worlds.certificates import certified
from worlds.eventually import PATIENCE
from worlds.node_world import Lines


async def api(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"6")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'"told"'})


def made(address: str = "", **more: str) -> PageServer:
    numbers = iter(range(100))
    return PageServer(Http(ui=address, **more), lambda: f"secret-{next(numbers)}", Lines(), lambda: api)


def asked(url: str, headers: dict[str, str], data: bytes | None = None) -> Any:
    return urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE)


def looked(address: str) -> bytes:
    """As a browser does it: the files, the session, the API."""
    place, _, token = address.partition("/#token=")
    assert b"/main.js" in asked(place, {}).read()
    began = asked(f"{place}/session", {"origin": place}, json.dumps({"token": token}).encode())
    headers = {"cookie": began.headers["set-cookie"].partition(";")[0], "x-odfd-key": json.loads(began.read())["key"]}
    with pytest.raises(urllib.error.HTTPError):
        asked(f"{place}/node/v1alpha1/status", {})
    return bytes(asked(f"{place}/node/v1alpha1/status", headers).read())


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


@pytest.mark.parametrize("address", ["0.0.0.0:7464", "[::]:7464", "192.0.2.1:7464"])
def test_beyond_this_machine_it_needs_tls_and_tokens(address: str) -> None:
    tls = {"ui_certificate": "c", "ui_key": "k"}
    for said in ({}, tls, {"ui_tokens": "t"}):
        (problem,) = cross(Settings(http=Http(ui=address, **said)), {})
        assert "not an address of this machine alone" in str(problem)
    assert not cross(Settings(http=Http(ui=address, ui_tokens="t", **tls)), {})
    assert not cross(Settings(http=Http(ui="127.0.0.1:7464")), {})
    (problem,) = cross(Settings(http=Http(ui_certificate="c")), {})
    assert "its key" in str(problem)


@pytest.mark.parametrize("address", ["localhost:7464", "7464"])
def test_its_address_is_an_ip_address_and_a_port(address: str) -> None:
    (problem,) = cross(Settings(http=Http(ui=address)), {})
    assert "not an IP address and a port" in str(problem)


TOKEN = "t0123456789abcdef"


def secured(folder: Path, *names: str) -> dict[str, str]:
    certificate, key = certified(folder, *names)
    tokens = folder / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"anna {TOKEN}\n")
    return {"ui_certificate": str(certificate), "ui_key": str(key), "ui_tokens": str(tokens)}


def over_tls(page: PageServer, certificate: str, ask: Any) -> Any:
    """What a client makes of a page that is served over TLS: ``ask(place, opened)``."""

    async def run() -> Any:
        life, context = Life(), ssl.create_default_context(cafile=certificate)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(page.run, life)
                await life.wait_ready()
                place = (await page.open()).url.partition("/#")[0]

                def opened(path: str, headers: dict[str, str], data: bytes | None = None) -> Any:
                    request = urllib.request.Request(place + path, data, headers)
                    return urllib.request.urlopen(request, timeout=PATIENCE, context=context)

                answer = await trio.to_thread.run_sync(ask, place, opened)
                life.stopping.set()
                return answer

    return trio.run(run)


def refused(opened: Any, *words: Any) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        opened(*words)
    return str(json.loads(caught.value.read())["rule"])


def test_over_tls_a_token_of_the_file_opens_a_session(tmp_path: Path) -> None:
    said = secured(tmp_path)

    def ask(place: str, opened: Any) -> None:
        assert place.startswith("https://localhost:")
        body = json.dumps({"token": TOKEN}).encode()
        for _ in range(2):
            began = opened("/session", {"origin": place}, body)
            cookie = began.headers["set-cookie"]
            assert cookie.startswith("__Host-odfd-page-")
            assert cookie.endswith("; Secure")
            headers = {"cookie": cookie.partition(";")[0], "x-odfd-key": json.loads(began.read())["key"]}
            assert opened("/node/v1alpha1/status", headers).read() == b'"told"'
        assert refused(opened, "/node/v1alpha1/status", {}) == "page-session"
        assert refused(opened, "/session", {"origin": place}, b'{"token": "0123456789abcdef"}') == "http-ui-tokens"

    over_tls(made("127.0.0.1:0", **said), said["ui_certificate"], ask)


def test_over_tls_only_names_of_the_certificate_are_answered(tmp_path: Path) -> None:
    """Another page, by a name of its own for this address, or in the clear, opens nothing."""
    said = secured(tmp_path)

    def ask(place: str, opened: Any) -> None:
        port = place.rpartition(":")[2]
        body = json.dumps({"token": TOKEN}).encode()
        for headers in ({"host": f"evil.example:{port}", "origin": place}, {"host": f"127.0.0.1:{port}"}):
            assert refused(opened, "/session", headers, body) == "page-host"
        for origin in ("https://evil.example", place.replace("https", "http")):
            assert refused(opened, "/session", {"origin": origin}, body) == "page-origin"
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            asked(place.replace("https", "http"), {})

    over_tls(made("127.0.0.1:0", **said), said["ui_certificate"], ask)


def test_tokens_that_others_may_read_open_nothing(tmp_path: Path) -> None:
    said = secured(tmp_path)
    Path(said["ui_tokens"]).chmod(0o644)

    def ask(place: str, opened: Any) -> None:
        body = json.dumps({"token": TOKEN}).encode()
        assert refused(opened, "/session", {"origin": place}, body) == "http-ui-tokens"

    over_tls(made("127.0.0.1:0", **said), said["ui_certificate"], ask)


async def test_a_certificate_that_names_no_host_is_told(tmp_path: Path) -> None:
    for names, more in ((("*.example",), {}), ((), {"ui_key": "/nowhere"})):
        said = {**secured(tmp_path, *names), **more}
        with pytest.raises(Environment, match=r"http\.ui-certificate cannot be used"):
            await made("127.0.0.1:0", **said).open()


async def test_who_does_not_speak_tls_keeps_nobody_out(tmp_path: Path, autojump_clock: Any) -> None:
    """A handshake has its time; of many that say nothing the oldest make room before."""
    server = HttpServer("page", [], lambda _: nullcontext(ConnectionHandler(api)), Lines(), LIMITS)
    certificate, key = certified(tmp_path)
    server.tls = tls_context(str(certificate), str(key), "http.ui-certificate", ("http/1.1",))
    ours, theirs = trio.socket.socketpair()
    await server._slots.acquire()
    with theirs:
        began = trio.current_time()
        await server._serve(trio.SocketStream(ours))
        assert trio.current_time() - began == HANDSHAKE_SECONDS
    assert server.connections == 0
