"""What we ask of web servers."""

from __future__ import annotations

import gc
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import certifi
import httpx
import pytest
import trio

from chain.errors import Remote
from p2p.web.client import HttpAnswer, OpenedClient, Posts, machine_authorities, new_client
from worlds.eventually import PATIENCE
from worlds.web_site import Site, plain

# The node's HTTP client: a connection whose task is cancelled is closed at once, during a TLS handshake too.


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


# Questions over HTTP: an answer comes whole, in time and under its limit, or there is none.


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path).open() as opened:
        yield opened


@pytest.fixture
async def posts() -> AsyncIterator[Posts]:
    async with Posts(PATIENCE) as opened:
        yield opened


def gives(site: Site, status: int, body: bytes = b"", **headers: str) -> None:
    def answer(request: Any) -> bool:
        plain(request, status, body, **headers)
        return True

    site.answer = answer


async def test_what_a_server_says_is_handed_on_whatever_it_is(site: Site, posts: Posts) -> None:
    sent: list[bytes] = []

    def echo(request: Any) -> bool:
        sent.append(request.sent)
        plain(request, 409, b"7\n", Content_Type="text/x.tlog.size")
        return True

    site.answer = echo
    assert await posts.post(f"{site.url}/a/add-checkpoint", b"old 0\n", 100) == HttpAnswer(409, b"7\n")
    assert (sent, site.asked) == ([b"old 0\n"], ["POST /a/add-checkpoint"])
    gives(site, 200, b"x" * 100)
    assert await posts.post(site.url, b"", 100) == HttpAnswer(200, b"x" * 100)


async def test_a_redirect_is_not_followed(site: Site, posts: Posts) -> None:
    gives(site, 307, Location=f"{site.url}/elsewhere")
    assert (await posts.post(f"{site.url}/here", b"question", 100)).status == 307
    assert site.asked == ["POST /here"]


async def test_a_huge_answer_is_left(site: Site, posts: Posts) -> None:
    gives(site, 200, b"x" * 1_000_000)
    with pytest.raises(Remote) as caught:
        await posts.post(site.url, b"", 1000)
    assert caught.value.rule == "web-answer"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["silent", "dripping"])
async def test_a_slow_answer_is_left(site: Site, how: str) -> None:
    gone = threading.Event()

    def answer(request: Any) -> bool:
        if how == "dripping":
            request.send_response(200)
            request.send_header("Content-Length", "1000000")
            request.end_headers()
            while not gone.wait(0.02):
                request.wfile.write(b"x")
        gone.wait()
        request.close_connection = True
        return True

    site.answer = answer
    try:
        async with Posts(patience=0.3) as posts:
            with pytest.raises(Remote) as caught:
                await posts.post(site.url, b"", 10**9)
        assert caught.value.rule == "web-slow"
    finally:
        gone.set()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1", "http://nowhere.invalid"])
async def test_nobody_there_is_told(posts: Posts, url: str) -> None:
    with pytest.raises(Remote):
        await posts.post(url, b"", 100)


async def test_an_answer_cut_short_is_none(site: Site, posts: Posts) -> None:
    def answer(request: Any) -> bool:
        request.send_response(200)
        request.send_header("Content-Length", "10")
        request.end_headers()
        request.wfile.write(b"123")
        request.close_connection = True
        return True

    site.answer = answer
    with pytest.raises(Remote) as caught:
        await posts.post(site.url, b"", 100)
    assert caught.value.rule == "web-failed"
