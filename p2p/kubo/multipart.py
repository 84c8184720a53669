"""Streams files from disk as the body of one HTTP request (``multipart/form-data``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import trio

CHUNK: Final = 256 << 10
_BOUNDARY: Final = "odfd-5d1b0c6a9e7f4d3c"
FORM: Final = f"multipart/form-data; boundary={_BOUNDARY}"
"""The content type of a request whose body is a ``Form``."""


class AddedFile(NamedTuple):
    """A file to add: bytes, or the path of a file here."""

    name: str
    content: bytes | Path


class Form(httpx.AsyncByteStream):
    """The body of an HTTP request with files, read in parts: slices are larger than memory, and reads must not block.

    An iterator and not a generator: a daemon may answer before it has read everything, and then nobody would close a
    generator.
    """

    def __init__(self, files: Sequence[AddedFile]) -> None:
        self._pieces = _pieces(files)
        self._file: Any = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            if self._file is not None:
                part: bytes = await self._file.read(CHUNK)
                if part:
                    return part
                await self.aclose()
            piece = next(self._pieces, None)
            if piece is None:
                raise StopAsyncIteration
            if isinstance(piece, Path):
                self._file = await trio.open_file(piece, "rb")
            elif piece:
                return piece

    async def aclose(self) -> None:
        if self._file is not None:
            await self._file.aclose()
            self._file = None


def _pieces(files: Sequence[AddedFile]) -> Iterator[bytes | Path]:
    for file in files:
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{file.name}"\r\n'
        yield f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()
        yield file.content
        yield b"\r\n"
    yield f"--{_BOUNDARY}--\r\n".encode()
