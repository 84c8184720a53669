"""What we give to others: blocks and objects within the reach of the purpose ``serve``, and never damaged ones.

Implements ``p2p.ports.Library``; called from worker threads. Reach is asked at most once a moment for each dataset, and
a file is hashed again whenever it is not the very file that was hashed before.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

from chain.errors import Environment, NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.multihash import SHA3_256, Multihash
from chain.store.base import ChainStore, Head, ObjectStore
from chain.store.database import Database
from odfd.datasets.references import references_to
from odfd.network.proving import Prover

SMALL: Final = 64 << 10
"""Bytes up to which an object is hashed each time it is asked for."""
REACH_AGE: Final = SECOND // 2
"""How old a computed reach may be."""
MAX_REMEMBERED: Final = 65_536
"""Files remembered as whole."""
Fingerprint: TypeAlias = tuple[int, int, int]


class ServingLibrary:
    """See the module."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        objects: ObjectStore,
        reach: Callable[[DatasetId], int],
        clock: Callable[[], Instant],
    ) -> None:
        self._database = database
        self._chains = chains
        self._objects = objects
        self._reach = reach
        self._clock = clock
        self._reaches: dict[DatasetId, tuple[Instant, Head | None, int]] = {}
        """When it was computed, of which head, and the blocks within it."""
        self._whole: dict[Multihash, Fingerprint] = {}
        self._prover = Prover(database)
        self._lock = threading.Lock()

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        return list(islice((one for one in self._chains.datasets() if self.size(one)), limit))

    def size(self, dataset: DatasetId) -> int:
        head = self._chains.chain(dataset).head()
        if head is None:
            # Not remembered: strangers may ask for anything.
            return 0
        now = self._clock()
        with self._lock:
            at, of, blocks = self._reaches.get(dataset, (Instant(0), None, 0))
        if of != head or not 0 <= now - at < REACH_AGE:
            blocks = self._reach(dataset)
            with self._lock:
                self._reaches[dataset] = (now, head, blocks)
        return blocks

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        given: list[bytes] = []
        room = max_bytes
        for raw in self._chains.chain(dataset).raw_blocks(start, self.size(dataset)):
            if given and len(raw) > room:
                break
            given.append(raw)
            room -= len(raw)
        return given

    def prove(self, dataset: DatasetId, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
        if size > self.size(dataset):
            raise NotFound(f"{size} blocks of {dataset.short} are not served here", rule="chain-not-served")
        return self._prover.prove(dataset, size, old=old, index=index)

    def object_size(self, name: Multihash) -> int | None:
        if not self._objects.has(name) or not self._may_pass(name) or not self._is_whole(name):
            return None
        return self._objects.size(name)

    def read_object(self, name: Multihash, offset: int, length: int) -> bytes:
        if self.object_size(name) is None:
            raise NotFound(f"object {name.short} is not served here", rule="object-not-served")
        return self._objects.read(name, offset, length)

    def _may_pass(self, name: Multihash) -> bool:
        with self._database.read() as connection:
            named = references_to(connection, name)
        return any(sequence < self.size(dataset) for dataset, sequence in named)

    def _is_whole(self, name: Multihash) -> bool:
        """A damaged object is never served on."""
        if self._objects.size(name) <= SMALL:
            # Read and hashed in a moment, and not always a file.
            try:
                return Multihash.sha3_256(self._objects.read(name)) == name
            except Environment:
                return False
        path = self._objects.path(name)
        seen = _fingerprint(path)
        with self._lock:
            if self._whole.get(name) == seen:
                return True
        with path.open("rb") as file:
            actual = Multihash.from_digest(SHA3_256, hashlib.file_digest(file, "sha3_256").digest())
        if actual != name:
            return False
        with self._lock:
            if len(self._whole) >= MAX_REMEMBERED:
                self._whole.clear()
            self._whole[name] = seen
        return True


def _fingerprint(path: Path) -> Fingerprint:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
