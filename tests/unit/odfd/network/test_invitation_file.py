"""Invitations that are files on the web: which address is asked, what is read of it, and what is refused."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Invalid, NotFound, Remote
from odfd.network.invitation import MAX_FILE, PATIENCE, WELL_KNOWN, fetch_invitation, invitation_url
from p2p.web.site import Web
from worlds.web_site import Site

HERE = "https://example.org"


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (HERE, HERE + WELL_KNOWN),
        (f" {HERE}/ ", HERE + WELL_KNOWN),
        (f"{HERE}:8443#x", f"{HERE}:8443{WELL_KNOWN}"),
        (f"{HERE}/village.txt", f"{HERE}/village.txt"),
        (f"{HERE}/?name=village", f"{HERE}/?name=village"),
        ("http://127.0.0.1:8080/village", "http://127.0.0.1:8080/village"),
        ("http://[::1]:8080", "http://[::1]:8080" + WELL_KNOWN),
    ],
)
def test_a_server_alone_is_asked_under_the_well_known_path(text: str, asked: str) -> None:
    assert invitation_url(text) == asked


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://example.org", "begin it with https"),
        ("file:///etc/passwd", "begin it with https"),
        ("http://127.0.0.1.example.org/village", "begin it with https"),
        ("http://192.168.1.7/village", "begin it with https"),
        ("https://", "no server"),
        ("https://me:secret@example.org", "password"),
        ("https://example.org:99999", "Port"),
        ("https://exämple.org", "ASCII"),
        ("https://example.org/a b", "ASCII"),
        ("https://example.org/" + "a" * 3000, "2,048"),
    ],
)
def test_other_addresses_are_refused(text: str, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        invitation_url(text)
    assert refused.value.rule == "invitation-url"
    assert why in f"{refused.value.message} {refused.value.hint}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "www"
    folder.mkdir()
    with Site(folder).open() as opened:
        yield opened


async def test_a_file_is_read_under_limits(site: Site) -> None:
    async with Web(PATIENCE) as web:
        for name, content in (("good", b"\n odf:abc\n"), ("bytes", b"odf:\xff"), ("long", b"o" * (MAX_FILE + 1))):
            (site.folder / name).write_bytes(content)
        assert await fetch_invitation(f"{site.url}/good", web) == "odf:abc"
        with pytest.raises(Invalid, match="no invitation"):
            await fetch_invitation(f"{site.url}/bytes", web)
        with pytest.raises(Remote, match="more than"):
            await fetch_invitation(f"{site.url}/long", web)
        with pytest.raises(NotFound, match="no invitation at"):
            await fetch_invitation(f"{site.url}/none", web)


@pytest.mark.slow
async def test_a_server_that_drips_is_left(site: Site) -> None:
    def drip(request: Any) -> bool:
        request.send_response(200)
        request.send_header("Content-Length", "9000")
        request.end_headers()
        with contextlib.suppress(OSError):
            while True:
                request.wfile.write(b"o")
                request.wfile.flush()
                time.sleep(0.02)

    site.answer = drip
    quick = PATIENCE._replace(total=0.3)
    async with Web(quick) as web:
        with pytest.raises(Remote) as left:
            await fetch_invitation(f"{site.url}/x", web)
    assert left.value.rule == "web-slow"


async def test_a_server_that_is_not_there_is_told_with_what_a_person_can_do() -> None:
    class Away:
        async def cat(self, url: str, limit: int) -> bytes | None:
            raise Remote(f"{url} cannot be had", rule="web-failed", hint="a mirror asks again by itself")

    web: Any = Away()
    with pytest.raises(Remote) as refused:
        await fetch_invitation("https://example.org/i", web)
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("ask who invites")
