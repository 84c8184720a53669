"""Reads files of datasets at nodes, with their tokens: a path is ``odf+https://HOST/NAME/…`` or ``REPOSITORY/NAME/…``.

An object that its node keeps elsewhere, such as in a bucket, is read there, by the request that the node named for it
(``ElsewherePlace``). Implements ``p2p.ports.Files``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio
from cachetools import LRUCache

from chain.errors import Invalid
from chain.instant import Instant, parse
from odfd.repositories.manifest import NODE
from odfd.smart.messages import VERSION, VERSION_HEADER, Header, TransferUrl
from p2p.ports import FilePart
from p2p.web.site import Web

MAX_PLACES: Final = 20_000
"""Objects whose places elsewhere are remembered, of all datasets; further ones are read from their node."""
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}\Z")
_OURS: Final = frozenset({
    "host", "content-length", "content-type", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect",
    "range", "cookie",
})  # fmt: skip
"""Headers that the other side may not set for us."""


class Access(NamedTuple):
    """The URL and headers for a file at a node."""

    url: str
    headers: Mapping[str, str]


class ElsewherePlace(NamedTuple):
    """The request for an object that its node keeps elsewhere."""

    url: str
    headers: Mapping[str, str]
    expires_at: Instant | None
    is_led: bool


class SmartFiles:
    """Reads files at nodes."""

    def __init__(self, web: Web, node: Callable[[str], tuple[str, str]], now: Callable[[], Instant]) -> None:
        """``node`` returns the URL and the token of a repository, by its name. Blocking."""
        self._web, self._node, self._now = web, node, now
        self._places: LRUCache[str, ElsewherePlace] = LRUCache(MAX_PLACES)

    async def access(self, content: str) -> Access:
        """Returns how to read a file. Raises NotFound, Invalid."""
        headers = {VERSION_HEADER: str(VERSION)}
        if content.startswith(NODE):
            return Access(content.removeprefix(NODE), headers)
        name, _, path = content.partition("/")
        root, token = await trio.to_thread.run_sync(self._node, name)
        return Access(f"{root}/{path}", headers | ({"Authorization": f"Bearer {token}"} if token else {}))

    def note(self, content: str, place: TransferUrl, *, is_led: bool) -> None:
        """Remembers where an object is kept. ``is_led``: it must be on the Internet. Raises Invalid."""
        expires = None if place.expires_at is None else parse(place.expires_at)
        self._places[content] = ElsewherePlace(place.url, headers_of(place.headers), expires, is_led)

    async def size_of(self, content: str) -> int | None:
        url, headers = await self.access(content)
        return await self._web.size_of(url, headers)

    async def cat(self, content: str, limit: int) -> bytes | None:
        url, headers = await self.access(content)
        return await self._web.cat(url, limit, headers)

    @asynccontextmanager
    async def open(self, content: str, offset: int = 0) -> AsyncIterator[AsyncIterator[FilePart]]:
        place = self._places.get(content)
        if place is not None and (place.expires_at is None or self._now() < place.expires_at):
            async with self._web.open(place.url, offset, place.headers, is_led=place.is_led) as parts:
                yield parts
            return
        url, headers = await self.access(content)
        async with self._web.open(url, offset, headers) as parts:
            yield parts


def headers_of(given: Iterable[Header]) -> Mapping[str, str]:
    """Returns the headers that the other side asks us to send. Raises Invalid for those that it may not set."""
    found: dict[str, str] = {}
    for name, value in ((each.name, each.value) for each in given):
        if not _NAME.match(name) or name.lower() in _OURS or not value.isprintable() or not value.isascii():
            text = f"the other side wants the header {name[:40]!r} sent, which it may not set"
            raise Invalid(text, rule="smart-header")
        found[name] = value
    return found
