"""Questions over HTTP: an answer comes whole, in time and under its limit, or there is none."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Remote
from p2p.web.client import HttpAnswer, Posts
from worlds.eventually import PATIENCE
from worlds.web_site import Site, plain


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
