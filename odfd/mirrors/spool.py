"""Writes a file that grows as bytes arrive, keeping all but the beginning of a large one out of the page cache.

A mirror of a dataset larger than memory would displace everything else from the page cache; and copying bytes into it
costs as much as decrypting them, or four times that into fresh pages. So the bytes after the first 8 MiB are collected
in one of two buffers, and a full one is written to the disk (``O_DIRECT``) while the other fills; on a file system
without ``O_DIRECT`` it is written normally. Made by ``PartialObject``, which uses it from one thread at a time.

All methods raise Environment if the disk fails, perhaps for data appended earlier. After that only ``close`` may be
called, and the file on disk is a beginning of the appended data.
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
"""Bytes of a file that are cached by the kernel: most slices are no larger, and are read again at once."""
STAGED: Final = 2 << 20
"""Bytes written to the disk at once; a large file has two buffers of this size."""
_SPARE: Final = deque[tuple[memoryview, memoryview]](maxlen=4)
"""Buffers of closed files for reuse; making new ones would cost as much as is saved on a file of 100 MiB."""
_READ: Final = 1 << 20
_NO_BUFFER: Final = memoryview(b"")
_HANDS: Final = ThreadPoolExecutor(1, "hand to the disk")
"""The thread that writes the buffers of all files; each file has at most one waiting."""


class Spool:
    """A file being written; an existing file of that name is continued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._filling = self._handed = _NO_BUFFER
        self._staged = 0
        """Bytes in the buffer that is being filled."""
        self._handing: Future[None] | None = None
        self._safe = 0
        """Bytes that are on the disk even if the pending write fails."""
        self._beside: int | None = None
        """The same file opened for writes that bypass the cache; ``None``: not possible or not open."""
        with disk(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._written = os.fstat(self._file).st_size
            # O_DIRECT writes only from a multiple of a page on.
            if self._written > CACHED and self._written % PAGESIZE:
                self._cut(self._written - self._written % PAGESIZE)

    @property
    def size(self) -> int:
        """Size of the file in bytes, including bytes not written yet."""
        return self._written + self._staged

    def parts(self) -> Iterator[bytes]:
        """Yields the bytes that the file already had when it was opened."""
        for offset in range(0, self._written, _READ):
            with disk(self._path):
                yield os.pread(self._file, min(_READ, self._written - offset), offset)

    def append(self, data: bytes | memoryview) -> None:
        """Appends data; it has been copied, or is on the disk, when this returns."""
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
            # Makes the kernel begin to write now; otherwise it would write all at the end, while others wait.
            self._hand_on(os.posix_fadvise, self._file, 0, CACHED, os.POSIX_FADV_DONTNEED)
        return data[len(head) :]

    def _stage(self, data: memoryview) -> memoryview:
        """Copies data into the buffer that is being filled; returns the rest that does not fit."""
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
        """Writes a buffer past the cache; the part that the file system refuses is written normally."""
        count = 0
        if self._beside is not None:
            try:
                count = os.pwrite(self._beside, buffer, offset)
            except OSError as error:
                # Some file systems open a file with O_DIRECT and refuse to write so.
                if error.errno != errno.EINVAL:
                    raise
        _put(self._file, buffer[count:], offset + count)

    def _settle(self) -> None:
        """Waits for the pending write. If it failed, cuts the file back to what is safe."""
        handing, self._handing = self._handing, None
        if handing is None:
            return
        try:
            handing.result()
        except OSError:
            # A hole may lie before what was written later (test_after_a_full_disk_it_goes_on_from_what_is_there).
            self._cut(self._safe)
            raise

    def _cut(self, size: int) -> None:
        self._written, self._staged = size, 0
        os.ftruncate(self._file, size)

    def clear(self) -> None:
        """Discards everything that was written."""
        with disk(self._path):
            self._settle()
            self._cut(0)

    def close(self) -> None:
        """Writes out all appended data, without a sync; may be called again."""
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
    """Returns two page-aligned buffers, as ``O_DIRECT`` requires."""
    with suppress(IndexError):
        return _SPARE.pop()
    return memoryview(mmap(-1, STAGED)), memoryview(mmap(-1, STAGED))


def _put(file: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(file, data, offset)
        data, offset = data[count:], offset + count
