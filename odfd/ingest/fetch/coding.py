"""Decodes HTTP content codings (RFC 9110, 8.4) that a server applied to a file.

We ask for none, and some servers send one nevertheless. Sans-IO, in pieces of bounded size, whatever the sender packed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

from chain.errors import Remote
from odfd.ingest.settings import CHUNK

_GZIP: Final = frozenset({"gzip", "x-gzip"})
_DEFLATE: Final = "deflate"
_ANY_HEADER: Final = 32 + zlib.MAX_WBITS
"""zlib's way to say: gzip or zlib, as it comes."""
_CODINGS: Final = 3
"""Codings of one document that are undone; a longer list is no file."""


class Coding(Protocol):
    """One coding being undone."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...
    def finish(self) -> None: ...


class _Inflating:
    """gzip of any number of members, zlib, and deflate without a header, which some call ``deflate``."""

    def __init__(self, shown: str, coding: str) -> None:
        self._shown = shown
        self._coding = coding
        self._inflate = zlib.decompressobj(_ANY_HEADER)
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        more = bool(data)
        while more:
            if self._inflate.eof:
                self._inflate = zlib.decompressobj(_ANY_HEADER)
            try:
                part = self._inflate.decompress(data, CHUNK)
            except zlib.error as error:
                if self._begun or self._coding != _DEFLATE:
                    raise self._broken(str(error)) from error
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
                self._begun = True
                continue
            self._begun = True
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            held = len(part) == CHUNK and not self._inflate.eof
            more = bool(data) or held
            if part:
                yield part

    def finish(self) -> None:
        """Raises Remote when the end has not come."""
        if self._begun and not self._inflate.eof:
            raise self._broken("it ends too early")

    def _broken(self, what: str) -> Remote:
        return Remote(
            f"{self._shown}: what came is not whole {self._coding}, as its Content-Encoding says: {what}",
            rule="content-encoding",
            hint="try again later",
        )


def is_gzip(header: str) -> bool:
    """Whether a ``Content-Encoding`` packs with gzip."""
    return any(each in _GZIP for each in _listed(header))


def codings(header: str, shown: str) -> list[Coding]:
    """What undoes a ``Content-Encoding``, in the order of undoing. Raises Remote for a coding that is not known."""
    listed = _listed(header)
    unknown = [each for each in listed if each not in _GZIP and each != _DEFLATE]
    if unknown or len(listed) > _CODINGS:
        raise Remote(
            f"{shown}: the server sends it as {header!r}, which nobody asked for",
            rule="content-encoding",
            hint="gzip and deflate are undone; ask whoever runs the server, or fetch with a tool of your own",
        )
    return [_Inflating(shown, each) for each in reversed(listed)]


def _listed(header: str) -> list[str]:
    named = (each.strip().casefold() for each in header.split(","))
    return [each for each in named if each not in ("", "identity")]


def undone(data: bytes, undoing: list[Coding]) -> Iterator[bytes]:
    """``data`` through all codings, in pieces."""
    if not undoing:
        yield data
        return
    for part in undoing[0].feed(data):
        yield from undone(part, undoing[1:])
