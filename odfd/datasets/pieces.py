"""Holds pieces of large objects: files that fill in any order, and lists of the hashes of pieces (ADR 65).

A piece counts if it matches the list, and is hashed again when it is passed on. A file that is closed before it is
whole is cut to its consecutive pieces from the beginning, with which a fetch in order goes on. Safe to use from any
thread.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cachetools import LRUCache

from chain.errors import Invalid
from chain.multihash import SHA3_256, Multihash
from chain.statements.keys import SigningKey
from chain.store.files import disk
from chain.store.objects import DiskObjects
from p2p.wire.swarm import PieceList, piece_size, sign_list

MAX_HASHES: Final = 1 << 18
"""Most hashes of pieces that are remembered; they take 8 MiB."""
_READ: Final = 1 << 20


class PieceFile:
    """The file of one large object that is being fetched in pieces."""

    def __init__(self, path: Path, made: PieceList) -> None:
        """Opens the file; pieces that it has already count if they match the list."""
        self.list = made
        self.have = 0
        """A bit field: bit ``i`` is set if piece ``i`` is here."""
        self._path = path
        self._lock = threading.Lock()
        self._adopted = False
        with disk(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            size = os.fstat(self._file).st_size
            if size > made.size:  # what follows the object would become a part of it
                os.ftruncate(self._file, made.size)
        for number in range(made.count):
            start, stop = made.span(number)
            if start >= size:
                break
            with disk(path):
                data = os.pread(self._file, stop - start, start)
            if made.fits(number, data):
                self.have |= 1 << number

    @property
    def is_whole(self) -> bool:
        return self.have == (1 << self.list.count) - 1

    def put(self, number: int, data: bytes | bytearray) -> None:
        """Writes a piece. Raises Invalid if it does not match the list."""
        if not self.list.fits(number, data):
            text = f"piece {number} of object {self.list.name.short} does not fit the list of its publisher"
            raise Invalid(text, rule="piece-hash")
        with self._lock, disk(self._path):
            view, at = memoryview(data), self.list.span(number)[0]
            while view:
                count = os.pwrite(self._file, view, at)
                view, at = view[count:], at + count
            self.have |= 1 << number

    def read(self, offset: int, into: memoryview) -> int | None:
        """Fills ``into`` from ``offset`` on and returns the number of bytes; ``None`` if some of them are not here."""
        size, piece, at = self.list.size, piece_size(self.list.size), offset
        stop = min(offset + len(into), size)
        while at < stop:
            number = at // piece
            start, end = self.list.span(number)
            with self._lock:
                if self._file < 0 or not self.have >> number & 1:
                    return None
                with disk(self._path):
                    data = os.pread(self._file, end - start, start)
            if not self.list.fits(number, data):
                with self._lock:
                    self.have &= ~(1 << number)
                return None
            count = min(end, stop) - at
            into[at - offset : at - offset + count] = data[at - start : at - start + count]
            at += count
        return max(0, stop - offset)

    def finish(self, objects: DiskObjects) -> None:
        """Hands the whole file to the store; it stays readable until closed. Raises Invalid if the list is false."""
        whole = hashlib.sha3_256()
        with disk(self._path):
            for at in range(0, self.list.size, _READ):
                whole.update(os.pread(self._file, _READ, at))
        if Multihash.from_digest(SHA3_256, whole.digest()) != self.list.name:
            self.have = 0
            self.close()
            text = f"object {self.list.name.short} is not what the list of its pieces says"
            raise Invalid(text, rule="piece-list")
        with disk(self._path):
            objects.adopt(self._path, self.list.name)
        self._adopted = True

    def close(self) -> None:
        """Closes the file and keeps its beginning for the next attempt; idempotent."""
        with self._lock, disk(self._path):
            if self._file >= 0 and not self._adopted:
                missing = ~self.have
                first = (missing & -missing).bit_length() - 1
                beginning = self.list.span(first)[0] if first < self.list.count else self.list.size
                os.ftruncate(self._file, beginning)
            if self._file >= 0:
                os.close(self._file)
            self._file, self.have = -1, 0


class PieceSink:
    """Receives one piece. Implements ``p2p.ports.ObjectSink``."""

    def __init__(self, file: PieceFile, number: int) -> None:
        self._file = file
        self._number = number
        self._start, self._stop = file.list.span(number)
        self._data = bytearray()

    @property
    def received(self) -> int:
        return self._start + len(self._data)

    @property
    def stop(self) -> int | None:
        return self._stop

    def write(self, data: bytes | memoryview) -> None:
        self._data += data

    def finish(self) -> None:
        """Writes the received piece. Raises Invalid if it does not match the list."""
        data, self._data = self._data, bytearray()
        self._file.put(self._number, data)

    def abandon(self) -> None:
        self._data.clear()


class PieceLists:
    """The lists of pieces that a node knows: signed by publishers, or made from objects that it has."""

    def __init__(self) -> None:
        self._lists: LRUCache[Multihash, PieceList] = LRUCache(MAX_HASHES, lambda made: min(made.count, MAX_HASHES))
        self._making = threading.Lock()
        self._lock = threading.Lock()

    def keep(self, made: PieceList) -> None:
        with self._lock:
            self._lists[made.name] = made

    def get(self, name: Multihash) -> PieceList | None:
        with self._lock:
            return self._lists.get(name)

    def forget(self, name: Multihash) -> None:
        with self._lock:
            self._lists.pop(name, None)

    def of(self, name: Multihash, size: int, opened: Callable[[], Path]) -> PieceList:
        """Returns the list of an object that is here, and makes it at the first call; one object is read at a time."""
        with self._making:
            known = self.get(name)
            if known is None:
                with disk(path := opened()), path.open("rb") as file:
                    hashes = b"".join(
                        hashlib.sha3_256(file.read(piece_size(size))).digest() for _ in range(0, size, piece_size(size))
                    )
                self.keep(known := PieceList(name, size, hashes))
            return known

    def sign(self, made: PieceList, key: SigningKey) -> PieceList:
        """Returns the list signed with a key, and remembers it."""
        signed = sign_list(made.name, made.size, made.hashes, key)
        self.keep(signed)
        return signed
