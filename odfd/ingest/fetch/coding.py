"""Decodes HTTP content codings (RFC 9110, 8.4) that a server applied to a file.

None is requested, but some servers apply one nevertheless. Sans-IO, in pieces of bounded size for any input. The output
of each coding is limited by a ratio to the bytes received, even if a later coding discards it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from chain.errors import Refused, Remote
from chain.wording import plural
from engines.spark.ingest.unpack import FREE
from odfd.ingest.settings import CHUNK, Check, unstoppable

_GZIP: Final = frozenset({"gzip", "x-gzip"})
_DEFLATE: Final = "deflate"
_ANY_HEADER: Final = 32 + zlib.MAX_WBITS
"""zlib's window bits for "gzip or zlib, detect the header"."""
_CODINGS: Final = 3
"""Codings of one document that are decoded; a longer list is refused."""


_WINDOW: Final = 16 << 10
"""Bytes given to zlib at once: those after the end of a member are copied for the next one."""


class ContentDecoder:
    """Decodes the content codings of one document."""

    def __init__(self, header: str, shown: str, ratio: int, check: Check = unstoppable) -> None:
        """``header``: a ``Content-Encoding``. ``ratio``: how many times the received bytes any coding may output.

        ``check`` is called again and again, and may raise to stop the work. Raises Remote for an unknown coding.
        """
        self._codings = _codings(header, shown, check)
        self._shown = shown
        self._ratio = ratio
        self._received = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the decoded bytes, in pieces. Raises Remote for broken data, Refused beyond the ratio."""
        self._received += len(data)
        return self._through(data, self._codings)

    def _through(self, data: bytes, undoing: list[_Inflating]) -> Iterator[bytes]:
        if not undoing:
            yield data
            return
        first, *others = undoing
        for part in first.feed(data):
            if first.given > max(FREE, self._received * self._ratio):
                most = plural(self._ratio, "time")
                raise Refused(
                    f"{self._shown} unpacks to more than {most} the {self._received:,} bytes that came",
                    rule="unpack-ratio",
                    hint="is it a decompression bomb? Raise ingest.unpack-ratio of the settings if you know it is not",
                )
            yield from self._through(part, others)

    def finish(self) -> None:
        """Raises Remote if the data ended too early."""
        for coding in self._codings:
            coding.finish()


class _Inflating:
    """Decodes gzip of any number of members, zlib, and deflate without a header, which some call ``deflate``."""

    def __init__(self, shown: str, coding: str, check: Check) -> None:
        self._shown = shown
        self._coding = coding
        self._check = check
        self._inflate = zlib.decompressobj(_ANY_HEADER)
        self._begun = False
        self.given = 0
        """Bytes that were output so far."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _WINDOW):
            self._check()
            for part in self._inflate_parts(data[start : start + _WINDOW]):
                self.given += len(part)
                yield part

    def _inflate_parts(self, data: bytes) -> Iterator[bytes]:
        more = bool(data)
        while more:
            if self._inflate.eof:
                # The next member: a gzip file may be several (RFC 1952, section 2.2).
                self._inflate = zlib.decompressobj(_ANY_HEADER)
            try:
                part = self._inflate.decompress(data, CHUNK)
            except zlib.error as error:
                if self._begun or self._coding != _DEFLATE:
                    raise self._fault(str(error)) from error
                # Some servers call deflate what has no zlib header (RFC 9110, section 8.4.1.2).
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
                self._begun = True
                continue
            self._begun = True
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            # zlib gives at most CHUNK bytes at once, and may hold more though it has no input left.
            held = len(part) == CHUNK and not self._inflate.eof
            more = bool(data) or held
            if part:
                yield part

    def finish(self) -> None:
        if self._begun and not self._inflate.eof:
            raise self._fault("it ends too early")

    def _fault(self, what: str) -> Remote:
        return Remote(
            f"{self._shown}: what came is not whole {self._coding}, as its Content-Encoding says: {what}",
            rule="content-encoding",
            hint="try again later",
        )


def is_gzip(header: str) -> bool:
    """Whether a ``Content-Encoding`` names gzip."""
    return any(each in _GZIP for each in _parse_list(header))


def _codings(header: str, shown: str, check: Check) -> list[_Inflating]:
    """Returns decoders in the order in which the codings are undone. Raises Remote for an unknown coding."""
    listed = _parse_list(header)
    unknown = [each for each in listed if each not in _GZIP and each != _DEFLATE]
    if unknown or len(listed) > _CODINGS:
        raise Remote(
            f"{shown}: the server sends it as {header!r}, which was not requested",
            rule="content-encoding",
            hint="only gzip and deflate are supported; ask the server's operator, or download the file yourself",
        )
    return [_Inflating(shown, each, check) for each in reversed(listed)]


def _parse_list(header: str) -> list[str]:
    named = (each.strip().casefold() for each in header.split(","))
    return [each for each in named if each not in ("", "identity")]
