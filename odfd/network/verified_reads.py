"""Reads objects for peers and hashes every byte before it is sent, so that damage on disk is never passed on.

A small object is read whole and hashed against its name. A large one is hashed whole on its first request, and a digest
of every MiB is kept; later requests hash only the MiBs that they read and compare them, so that an answer costs in
proportion to its length. Called from worker threads; memory is bounded.
"""

from __future__ import annotations

import hashlib
import threading
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec
from cachetools import LRUCache
from zlib_ng import zlib_ng

from chain.multihash import SHA3_256, Multihash
from chain.store.base import ObjectStore
from chain.store.files import ObjectDamaged, disk
from chain.store.objects import SMALL

PART: Final = 1 << 20
"""Bytes under one digest; peers request as many at once."""
DIGEST: Final = 4
"""Bytes of a digest. It detects bit rot, not an adversary, and is never sent: a CRC costs a hundredth of a hash."""
MAX_PARTS: Final = 4 << 20
"""Digests kept at most, 16 MiB for 4 TiB of objects; the objects requested least recently make room."""


class _Whole(msgspec.Struct, frozen=True):
    """A large object that was intact when it was hashed."""

    path: Path
    size: int
    digests: bytes

    @property
    def parts(self) -> int:
        return len(self.digests) // DIGEST


class VerifiedReads:
    """Verified reads from one object store."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._whole: LRUCache[Multihash, _Whole] = LRUCache(MAX_PARTS, lambda whole: min(whole.parts, MAX_PARTS))
        self._lock = threading.Lock()

    def size(self, name: Multihash) -> int:
        """Returns the size of an object last seen whole. Raises NotFound, ObjectDamaged, Environment."""
        size = self._objects.size(name)
        if size <= SMALL:
            return len(self.small(name))
        return self._look_up(name).size

    def read(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        """Fills ``into`` from ``offset`` on; returns the object's size and the bytes read. Raises as ``size`` does."""
        if name not in self._whole and self._objects.size(name) <= SMALL:
            data = self.small(name)
            part = data[offset : offset + len(into)]
            into[: len(part)] = part
            return len(data), len(part)
        whole = self._look_up(name)
        stop, at = min(offset + len(into), whole.size), offset
        with disk(whole.path), FileIO(whole.path) as file:
            while at < stop:
                number, skip = divmod(at, PART)
                count = min(PART - skip, stop - at)
                room = into[at - offset :][:count]
                self._part(name, file, whole, number, room, skip)
                at += count
        return whole.size, max(0, stop - offset)

    def small(self, name: Multihash) -> bytes:
        """Returns a whole object of at most SMALL bytes. Raises as ``size`` does."""
        data = self._objects.read(name)
        if Multihash.sha3_256(data) != name:
            raise ObjectDamaged(name)
        return data

    def _part(self, name: Multihash, file: FileIO, whole: _Whole, number: int, into: memoryview, skip: int) -> None:
        """Fills ``into`` from byte ``skip`` of a MiB on; the whole MiB is read and compared."""
        size = min(PART, whole.size - number * PART)
        part = into if len(into) == size else memoryview(bytearray(size))
        file.seek(number * PART)
        count = file.readinto(part)
        if count != size or _digest(part) != whole.digests[number * DIGEST : (number + 1) * DIGEST]:
            self._forget(name)
            raise ObjectDamaged(name)
        if part is not into:
            into[:] = part[skip : skip + len(into)]

    def _look_up(self, name: Multihash) -> _Whole:
        with self._lock:
            if (known := self._whole.get(name)) is not None:
                return known
        found = self._verify(name)
        with self._lock:
            self._whole[name] = found
        return found

    def _verify(self, name: Multihash) -> _Whole:
        path = self._objects.path(name)
        whole, digests, size = hashlib.sha3_256(), bytearray(), 0
        with disk(path), path.open("rb") as file:
            while part := file.read(PART):
                whole.update(part)
                digests += _digest(part)
                size += len(part)
        if Multihash.from_digest(SHA3_256, whole.digest()) != name:
            raise ObjectDamaged(name)
        return _Whole(path, size, bytes(digests))

    def _forget(self, name: Multihash) -> None:
        with self._lock:
            self._whole.pop(name, None)


def _digest(part: bytes | memoryview) -> bytes:
    return zlib_ng.crc32(part).to_bytes(DIGEST, "big")
