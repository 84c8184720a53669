"""Writes a file that grows as bytes arrive, keeping all but the beginning of a large one out of the page cache.

A mirror of what is larger than memory would push all else out of that cache, and to copy bytes into it costs as much as
to open their seal, or four times that where its pages are fresh. So what comes after the first 8 MiB is put together in
one of two buffers, and a whole one is given to the disk (``O_DIRECT``) while the other fills; a file system that knows
no such thing gets it as any file. Made by ``PartialObject``, which uses it from one thread at a time, and dies with it.

All raise Environment when the disk fails. That may be for what was appended before: then only ``close`` is left, and
what is on the disk is the beginning of what was appended.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from mmap import PAGESIZE, mmap
from pathlib import Path
from typing import Any, Final

from chain.store.files import disk

CACHED: Final = 8 << 20
"""Bytes of a file that the kernel keeps: most slices are no larger, and are read again at once."""
STAGED: Final = 2 << 20
"""Bytes given to the disk at once; a large file that grows has two such buffers."""
_SPARE: Final = deque[tuple[memoryview, memoryview]](maxlen=4)
"""Buffers of files that are closed: fresh ones would cost as much as all that is saved on a file of 100 MiB."""
_READ: Final = 1 << 20
_NO_BUFFER: Final = memoryview(b"")
_HANDS: Final = ThreadPoolExecutor(1, "hand to the disk")
"""For all files: each has one thing waiting here at most."""


class Spool:
    """A file being written. What a file of that name has already is its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._filling = self._handed = _NO_BUFFER
        self._staged = 0
        """Bytes in the buffer that fills."""
        self._handing: Future[None] | None = None
        self._safe = 0
        """Bytes that are there whatever comes of what was handed on."""
        self._beside: int | None = None
        """The same file, for what goes beside the cache."""
        with disk(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._written = os.fstat(self._file).st_size
            if self._written > CACHED and self._written % PAGESIZE:
                self._cut(self._written - self._written % PAGESIZE)

    @property
    def size(self) -> int:
        """Bytes of it, those on their way to the disk included."""
        return self._written + self._staged

    def parts(self) -> Iterator[bytes]:
        """Its beginning, as it was found."""
        for offset in range(0, self._written, _READ):
            with disk(self._path):
                yield os.pread(self._file, min(_READ, self._written - offset), offset)

    def append(self, data: bytes | memoryview) -> None:
        """The bytes are copied, or on the disk, when this returns."""
        rest = memoryview(data)
        with disk(self._path):
            if self._written < CACHED:
                rest = self._keep(rest)
            while rest:
                rest = self._stage(rest)

    def _keep(self, data: memoryview) -> memoryview:
        """Writes the beginning through the page cache; returns the rest of the data."""
        head = data[: CACHED - self._written]
        _put(self._file, head, self._written)
        self._written += len(head)
        if self._written == CACHED:
            # The kernel begins to write now what it would keep until the end, when all waits for it.
            self._hand_on(os.posix_fadvise, self._file, 0, CACHED, os.POSIX_FADV_DONTNEED)
        return data[len(head) :]

    def _stage(self, data: memoryview) -> memoryview:
        """Into the buffer that fills; what it has no room for is left."""
        if self._filling is _NO_BUFFER:
            self._filling, self._handed = _buffers()
            with suppress(OSError):
                self._beside = os.open(self._path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        part = data[: STAGED - self._staged]
        self._filling[self._staged : self._staged + len(part)] = part
        self._staged += len(part)
        if self._staged == STAGED:
            self._filling, self._handed = self._handed, self._filling
            self._hand_on(self._give, self._handed, self._written)
            self._written, self._staged = self.size, 0
        return data[len(part) :]

    def _hand_on(self, work: Callable[..., None], *given: Any) -> None:
        self._settle()
        self._safe = self._written
        self._handing = _HANDS.submit(work, *given)

    def _give(self, buffer: memoryview, offset: int) -> None:
        """Beside the cache, and what is not taken there as any file."""
        count = 0
        if self._beside is not None:
            try:
                count = os.pwrite(self._beside, buffer, offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        _put(self._file, buffer[count:], offset + count)

    def _settle(self) -> None:
        """Wait for what was handed on. What fails takes with it all that came after."""
        handing, self._handing = self._handing, None
        if handing is None:
            return
        try:
            handing.result()
        except OSError:
            self._cut(self._safe)
            raise

    def _cut(self, size: int) -> None:
        self._written, self._staged = size, 0
        os.ftruncate(self._file, size)

    def clear(self) -> None:
        """Discards all that was written."""
        with disk(self._path):
            self._settle()
            self._cut(0)

    def close(self) -> None:
        """Writes out all that arrived, without a sync; idempotent."""
        if self._file < 0:
            return
        try:
            with disk(self._path):
                self._settle()
                _put(self._file, self._filling[: self._staged], self._written)
        finally:
            os.close(self._file)
            if self._beside is not None:
                os.close(self._beside)
            self._file, self._beside = -1, None
            if self._filling is not _NO_BUFFER:
                _SPARE.append((self._filling, self._handed))
            self._filling = self._handed = _NO_BUFFER


def _buffers() -> tuple[memoryview, memoryview]:
    """Two, that begin where a page does, as the disk wants it."""
    with suppress(IndexError):
        return _SPARE.pop()
    return memoryview(mmap(-1, STAGED)), memoryview(mmap(-1, STAGED))


def _put(file: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(file, data, offset)
        data, offset = data[count:], offset + count
