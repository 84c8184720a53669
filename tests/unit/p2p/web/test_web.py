"""The web of a node: what it serves, and what it takes from others."""

from __future__ import annotations

import contextlib
import gc
import socket
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
import trio.lowlevel

from chain.errors import Invalid, Remote
from p2p.pace import BURST, Pace
from p2p.ports import FileMissing
from p2p.web import site as site_module
from p2p.web.client import (
    HttpAnswer,
    OpenedClient,
    Patience,
    Posts,
    keeps_scheme,
    machine_authorities,
    new_client,
    pace_parts,
)
from p2p.web.folder_url import name_in, place_of
from p2p.web.site import Web
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.internet import Internet
from worlds.web_site import Site, plain

# What we ask of web servers.


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
    """Attack T-SOURCE-04: a server that accepts connections and never finishes a TLS handshake, to hold our sockets.

    Defence: the connection is closed with the task that gave up.
    """
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
def asked_site(tmp_path: Path) -> Iterator[Site]:
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


async def test_what_a_server_says_is_handed_on_whatever_it_is(asked_site: Site, posts: Posts) -> None:
    sent: list[bytes] = []

    def echo(request: Any) -> bool:
        sent.append(request.sent)
        plain(request, 409, b"7\n", Content_Type="text/x.tlog.size")
        return True

    asked_site.answer = echo
    assert await posts.post(f"{asked_site.url}/a/add-checkpoint", b"old 0\n", 100) == HttpAnswer(409, b"7\n")
    assert (sent, asked_site.asked) == ([b"old 0\n"], ["POST /a/add-checkpoint"])
    gives(asked_site, 200, b"x" * 100)
    assert await posts.post(asked_site.url, b"", 100) == HttpAnswer(200, b"x" * 100)


async def test_a_redirect_is_not_followed(asked_site: Site, posts: Posts) -> None:
    gives(asked_site, 307, Location=f"{asked_site.url}/elsewhere")
    assert (await posts.post(f"{asked_site.url}/here", b"question", 100)).status == 307
    assert asked_site.asked == ["POST /here"]


async def test_a_huge_answer_is_left(asked_site: Site, posts: Posts) -> None:
    gives(asked_site, 200, b"x" * 1_000_000)
    with breaks("web-answer", Remote):
        await posts.post(asked_site.url, b"", 1000)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["silent", "dripping"])
async def test_a_slow_answer_is_left(asked_site: Site, how: str) -> None:
    """Attack T-HEAD-06: a public witness that sends slowly, or redirects.

    Defence: 30 s in all, 64 KiB, no redirects.
    """
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

    asked_site.answer = answer
    try:
        async with Posts(patience=0.3) as posts:
            with pytest.raises(Remote) as caught:
                await posts.post(asked_site.url, b"", 10**9)
        assert caught.value.rule == "web-slow"
    finally:
        gone.set()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1", "http://nowhere.invalid"])
async def test_nobody_there_is_told(posts: Posts, url: str) -> None:
    with pytest.raises(Remote):
        await posts.post(url, b"", 100)


async def test_an_answer_cut_short_is_none(asked_site: Site, posts: Posts) -> None:
    def answer(request: Any) -> bool:
        request.send_response(200)
        request.send_header("Content-Length", "10")
        request.end_headers()
        request.wfile.write(b"123")
        request.close_connection = True
        return True

    asked_site.answer = answer
    with breaks("web-failed", Remote):
        await posts.post(asked_site.url, b"", 100)


# Files over HTTP: what is read of servers of every kind, and what is said of those that do it wrong.


CONTENT = bytes(range(256)) * 1000
QUICK = Patience(connect=5, silence=0.3, span=0.2, least=1000)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(CONTENT)
    with Site(tmp_path).open() as opened:
        yield opened


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as opened:
        yield opened


class Counting(Pace):
    """No cap, and what was taken of it."""

    taken = 0

    def take(self, amount: int, now: float) -> float:
        self.taken += amount
        return super().take(amount, now)


async def test_what_a_site_gives_is_taken_of_the_line(site: Site) -> None:
    async with Web(pace=(pace := Counting())) as web:
        assert await web.cat(f"{site.url}/data/x", len(CONTENT)) == CONTENT
    assert pace.taken == len(CONTENT)


async def test_parts_wait_until_the_line_is_free(autojump_clock: Any) -> None:
    async def given() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield bytes(1000)

    began = trio.current_time()
    assert [len(part) async for part in pace_parts(given(), Pace(1000))] == [1000] * 11
    assert trio.current_time() - began == pytest.approx(10 - BURST)


async def whole(content: Any) -> bytes:
    async with content as parts:
        return b"".join([part async for part in parts])


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("head", [True, False])
async def test_files_are_read_from_any_server(site: Site, web: Web, ranges: bool, head: bool) -> None:
    site.knows_ranges, site.knows_head = ranges, head
    x, nothing = f"{site.url}/data/x", f"{site.url}/data/y"
    assert await web.size_of(x) == len(CONTENT)
    assert await web.cat(x, len(CONTENT)) == CONTENT
    assert await whole(web.open(x)) == CONTENT
    assert await whole(web.open(x, 70_001)) == CONTENT[70_001:]
    assert await web.size_of(nothing) is None
    assert await web.cat(nothing, 10) is None
    with pytest.raises(FileMissing):
        await whole(web.open(nothing))


async def test_no_more_than_allowed_is_taken(site: Site, web: Web) -> None:
    with pytest.raises(Remote, match="more than 100 bytes"):
        await web.cat(f"{site.url}/data/x", 100)


async def test_a_body_that_breaks_off_is_told(site: Site, web: Web) -> None:
    site.breaks_off["/data/x"] = 1000
    with breaks("web-failed", Remote, match="is not available"):
        await whole(web.open(f"{site.url}/data/x"))
    assert await whole(web.open(f"{site.url}/data/x")) == CONTENT


@pytest.mark.slow
async def test_an_answer_a_byte_at_a_time_is_left(site: Site) -> None:
    """Attack T-SOURCE-04: a web server that answers slowly, not at all, or without end.

    Defence: bodies have a minimum rate, headers a time limit, all answers a size limit.
    """
    ended = threading.Event()

    def drip(request: Any) -> bool:
        plain(request, 200, b"", Content_Length="100000")
        while not ended.wait(0.02):
            request.wfile.write(b"x")
        return True

    site.answer = drip
    async with Web(QUICK) as web:
        with pytest.raises(Remote, match="bytes in") as told:
            await whole(web.open(f"{site.url}/data/x"))
    ended.set()
    assert told.value.rule == "web-slow"


@pytest.mark.slow
async def test_a_server_that_says_nothing_is_left(site: Site) -> None:
    ended = threading.Event()
    site.answer = lambda _request: ended.wait(PATIENCE)
    async with Web(QUICK) as web:
        with pytest.raises(Remote) as told:
            await web.cat(f"{site.url}/data/x", 10)
    ended.set()
    assert told.value.rule == "web-slow"


@pytest.mark.slow
async def test_headers_without_end_are_left() -> None:
    """By a server that speaks no HTTP worth the name."""

    async def endless(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n")
        while True:
            await stream.send_all(b"X-More: and more\r\n")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, Web() as web:
        listeners = await nursery.start(trio.serve_tcp, _contained(endless), 0)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(Remote, match="is not available"):
            await web.cat(f"http://127.0.0.1:{port}/", 10)
        nursery.cancel_scope.cancel()


def _contained(handler: Any) -> Any:
    async def handle(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await handler(stream)

    return handle


@pytest.mark.parametrize("raw", [b"", b"SSH-2.0-OpenSSH\r\n", b"\x00" * 100, b"HTTP/1.1 999999 x\r\n\r\n"])
async def test_what_is_no_answer_is_told(raw: bytes) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(raw)
        await stream.aclose()

    async with trio.open_nursery() as nursery, Web() as web:
        listeners = await nursery.start(trio.serve_tcp, _contained(answer), 0)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(Remote, match="is not available"):
            await web.cat(f"http://127.0.0.1:{port}/", 10)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "status, headers, rule",
    [
        (500, {}, "web-failed"),
        (204, {}, "web-failed"),
        (403, {}, "web-refused"),
        (416, {}, "web-failed"),
        (200, {"Content_Encoding": "gzip"}, "web-answer"),
        (206, {}, "web-answer"),
        (206, {"Content_Range": "bytes 7-9/10"}, "web-answer"),
        (206, {"Content_Range": "lines 5-9/10"}, "web-answer"),
        (302, {"Location": "ftp://127.0.0.1/x"}, "web-redirect"),
        (302, {"Location": "http://[:::1/x"}, "web-failed"),
    ],
)
async def test_answers_that_are_none(site: Site, web: Web, status: int, headers: dict[str, str], rule: str) -> None:
    def say(request: Any) -> bool:
        plain(request, status, b"", **headers)
        return True

    site.answer = say
    with breaks(rule, Remote):
        await whole(web.open(f"{site.url}/data/x", 5))


async def test_a_server_that_is_not_there_is_told(web: Web) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(Remote, match="is not available"):
            await web.size_of(f"http://127.0.0.1:{port}/x")


async def test_redirects_are_followed_a_few_times(site: Site, web: Web) -> None:
    def lead(request: Any) -> bool:
        if "/data/" in request.path:
            return False
        left = int(request.path.strip("/"))
        plain(request, 302, Location="/data/x" if left == 1 else f"/{left - 1}")
        return True

    site.answer = lead
    assert await whole(web.open(f"{site.url}/{site_module.REDIRECTS}", 100)) == CONTENT[100:]
    with pytest.raises(Remote, match="redirects"):
        await web.cat(f"{site.url}/{site_module.REDIRECTS + 1}", 10)


def leads(site: Site, there: str) -> None:
    def lead(request: Any) -> bool:
        if request.path != "/leads":
            return False
        plain(request, 302, Location=there)
        return True

    site.answer = lead


async def test_a_site_cannot_make_us_give_up_tls() -> None:
    assert not keeps_scheme(httpx.URL("https://203.0.113.7/x"), httpx.URL("http://203.0.113.7/x"))
    assert keeps_scheme(httpx.URL("http://203.0.113.7/x"), httpx.URL("https://203.0.113.7/x"))


HOUSE = (
    "127.0.0.1",
    "169.254.169.254",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[2002:7f00:1::]",
    "[64:ff9b::7f00:1]",
)


@pytest.mark.parametrize("there", HOUSE)
async def test_a_site_cannot_lead_into_our_own_house(site: Site, there: str) -> None:
    """Attack T-SOURCE-05: a web server that redirects into our own network.

    Defence: redirects from the Internet are followed on the Internet only, over a new connection; from TLS to plain
    HTTP none is followed.

    The way that the node reads sites: the port is one that answers.
    """
    port = int(site.url.rpartition(":")[2])
    internet = Internet()
    internet(port, site_example=[["93.184.216.34"]])
    leads(site, f"http://{there}:{port}/data/x")
    with internet.open():
        async with Web() as web:
            with pytest.raises(Remote, match="into this network") as caught:
                await web.cat("http://site.example/leads", 100)
    assert caught.value.rule == "web-redirect"
    assert internet.dialled == ["93.184.216.34"]


@pytest.mark.parametrize("name", ["site.example", "other.example"])
async def test_a_name_that_is_resolved_otherwise_the_second_time_leads_nowhere(site: Site, name: str) -> None:
    """Attack T-SOURCE-05: a redirect to a name that resolves to the Internet when it is checked, and to this machine
    when it is dialled.

    Defence: resolved once, also for the same name.

    To each name belong two answers, of the Internet first; none of this machine is dialled, its own or another.
    """
    port = int(site.url.rpartition(":")[2])
    internet = Internet()
    twice = [["93.184.216.34"], ["127.0.0.1"]]
    internet(port, site_example=twice, other_example=twice)
    leads(site, f"http://{name}:{port}/data/x")
    with internet.open():
        async with Web() as web:
            with contextlib.suppress(Remote):
                await web.cat("http://site.example/leads", 100)
    assert set(internet.dialled) == {"93.184.216.34"}


async def test_what_is_judged_is_what_is_dialled(site: Site) -> None:
    """A redirect inside the Internet is followed, and its name asked for once."""
    port = int(site.url.rpartition(":")[2])
    internet = Internet()
    internet(port, "93.184.216.34", site_example=[["93.184.216.34"]])
    internet(port, "1.1.1.1", other_example=[["127.0.0.1", "1.1.1.1"], ["127.0.0.1"]])
    leads(site, "http://other.example/data/x")
    with internet.open():
        async with Web() as web:
            assert await web.cat("http://site.example/leads", len(CONTENT)) == CONTENT
    assert internet.dialled == ["93.184.216.34", "1.1.1.1"]
    assert internet.asked == {"site.example": 1, "other.example": 1}


async def test_a_house_may_lead_within_itself(site: Site, web: Web) -> None:
    """A person named a place of this machine, and that leads on to another."""
    leads(site, site.url.replace("127.0.0.1", "localhost") + "/data/x")
    assert await web.cat(f"{site.url}/leads", len(CONTENT)) == CONTENT


@pytest.mark.parametrize("text", ["did:odf:fed01", "/some/folder", "ipfs://bafy", "file:///x", "httpx://a"])
def test_what_is_no_place_on_the_web(text: str) -> None:
    assert place_of(text) is None


@pytest.mark.parametrize(
    "text",
    ["http://", "https:///x", "https://u:p@a.example/x", "https://a.example/x?y", "http://a/#b", "http://[::1/x",
     "http://a:99999999/x", "https://a.example/" + "x" * 2048, "http://a\n.example/"],
)  # fmt: skip
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(Invalid):
        place_of(text)


@pytest.mark.parametrize(
    "text, place, name",
    [
        ("HTTPS://A.example:443/nyc.flights/", "https://a.example/nyc.flights", "nyc.flights"),
        ("http://127.0.0.1:8080/ipfs/bafy123", "http://127.0.0.1:8080/ipfs/bafy123", ""),
        ("https://a.example", "https://a.example", ""),
    ],
)
def test_places_on_the_web(text: str, place: str, name: str) -> None:
    assert place_of(text) == place
    assert name_in(place) == name


async def test_a_reader_that_has_ended_asks_for_nothing_more() -> None:
    async with Web() as ended:
        pass
    with pytest.raises(Remote, match="the node is stopping"):
        await ended.cat("http://127.0.0.1:9/a", 1)
