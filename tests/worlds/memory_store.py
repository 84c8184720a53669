"""Implements the store's ports in memory: for simulations and tests, and for checking a chain before it is kept.

Nothing is durable. ``also`` of a commit gets a private in-memory SQLite connection, so that rooms which keep tables
beside the chains run unchanged. Not safe for several threads at once.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from chain.codec.blocks import decode_block
from chain.errors import NotFound
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.model.block import Block, SealedBlock
from chain.multihash import Multihash
from chain.store import append as rules
from chain.store.base import PAGE_BLOCKS, Append, Head, ObjectStore, Rewrite, Snapshot, StoredBlock, StoredPage
from chain.store.files import disk
from chain.store.schema import kind_name


class MemoryChains:
    """A ChainStore."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._chains: dict[DatasetId, list[Block]] = {}
        self.connection = sqlite3.connect(":memory:", isolation_level=None)

    def datasets(self) -> Sequence[DatasetId]:
        return list(self._chains)

    def chain(self, dataset: DatasetId) -> MemoryChain:
        return MemoryChain(self._chains, dataset)

    def commit(self, appends: Sequence[Append], also: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """As in the port."""
        rules.check_distinct(appends)
        for append in appends:
            rules.check_append(append, self._objects)
        for append in appends:
            rules.check_expected(append, self.chain(append.dataset).head())
            assert append.upper is None, "frontiers are the SQLite store's"
        self._together(also)
        for append in appends:
            self._chains.setdefault(append.dataset, []).extend(map(_decoded, append.blocks))

    def upper(self, dataset: DatasetId) -> int:
        """As in the port, without promises."""
        blocks = self._chains.get(dataset)
        return to_millis(blocks[-1].system_time) if blocks else 0

    def rewrite(self, rewrite: Rewrite, also: Callable[[sqlite3.Connection], None] | None = None) -> Head:
        """As in the port; nothing is kept apart."""
        rules.check_rewrite(rewrite, self._objects)
        rules.check_expected(rewrite, self.chain(rewrite.dataset).head())
        made = self._chains[rewrite.dataset][: rewrite.keep]
        base = Head(made[-1].hash, made[-1].sequence_number)
        made += rules.following(base, rewrite.blocks, rewrite.dataset.short)
        head = Head(made[-1].hash, made[-1].sequence_number)
        rules.check_changed(rewrite, head)
        self._together(also)
        self._chains[rewrite.dataset] = made
        return head

    def _together(self, also: Callable[[sqlite3.Connection], None] | None) -> None:
        self.connection.execute("BEGIN")
        try:
            if also is not None:
                also(self.connection)
            self.connection.execute("COMMIT")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise

    def drop(self, dataset: DatasetId, also: Callable[[sqlite3.Connection], None] | None = None) -> None:
        self._together(also)
        self._chains.pop(dataset, None)


def _decoded(block: Block | SealedBlock) -> Block:
    return decode_block(block.raw) if isinstance(block, SealedBlock) else block


class MemoryChain:
    """A ChainReader."""

    def __init__(self, chains: dict[DatasetId, list[Block]], dataset: DatasetId) -> None:
        self._chains = chains
        self._dataset = dataset

    @property
    def _blocks(self) -> list[Block]:
        return self._chains.get(self._dataset, [])

    def head(self) -> Head | None:
        blocks = self._blocks
        return Head(blocks[-1].hash, blocks[-1].sequence_number) if blocks else None

    def block_at(self, sequence_number: int) -> Block:
        if not 0 <= sequence_number < len(self._blocks):
            raise rules.no_block(f"#{sequence_number} in {self._dataset.short}")
        return self._blocks[sequence_number]

    def block_by_hash(self, block_hash: Multihash) -> Block:
        for block in self._blocks:
            if block.hash == block_hash:
                return block
        raise rules.no_block(f"{block_hash.short} in {self._dataset.short}")

    def raw_blocks(self, start: int, stop: int) -> Iterator[bytes]:
        for block in itertools.islice(self._blocks, max(start, 0), max(stop, 0)):
            yield block.raw

    def snapshot(self) -> Snapshot | None:
        head = self.head()
        return None if head is None else Snapshot(head)

    def stored_blocks(self, start: int = 0, stop: int | None = None) -> Iterator[StoredBlock]:
        for block in itertools.islice(self._blocks, max(start, 0), stop):
            yield StoredBlock(block.sequence_number, block.hash, block.raw)

    def stored_pages(self, start: int = 0, stop: int | None = None) -> Iterator[StoredPage]:
        for first in range(max(start, 0), len(self._blocks) if stop is None else stop, PAGE_BLOCKS):
            last = first + PAGE_BLOCKS if stop is None else min(stop, first + PAGE_BLOCKS)
            if page := list(self.stored_blocks(first, last)):
                yield StoredPage(first, b"".join(one.name for one in page), [one.raw for one in page])

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None:
        wanted = set(kinds)
        blocks = self._blocks if before is None else self._blocks[: max(before, 0)]
        return next((block for block in reversed(blocks) if kind_name(block.event) in wanted), None)


class MemoryObjects:
    """An ObjectStore; ``directory`` holds only what ``stage`` and ``path`` need as files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data: dict[Multihash, bytes] = {}
        self._names = itertools.count()

    def has(self, name: Multihash) -> bool:
        return name in self._data

    def missing(self, names: Iterable[Multihash]) -> list[Multihash]:
        return [name for name in names if name not in self._data]

    def size(self, name: Multihash) -> int:
        return len(self.read(name))

    def add_bytes(self, data: bytes) -> Multihash:
        name = Multihash.sha3_256(data)
        self._data[name] = data
        return name

    def add_file(self, staged: Path) -> Multihash:
        with disk(staged):
            name = self.add_bytes(staged.read_bytes())
            staged.unlink()
        return name

    def read(self, name: Multihash, offset: int = 0, length: int | None = None) -> bytes:
        data = self._data.get(name)
        if data is None:
            raise NotFound(f"no object {name.short}", rule="object-unknown")
        return data[offset : None if length is None else offset + length]

    def content(self, name: Multihash) -> bytes:
        return self.read(name)

    def path(self, name: Multihash) -> Path:
        data, file = self.read(name), self._directory / str(name)
        if not file.is_file():
            with disk(file):
                file.write_bytes(data)
        return file

    def stage(self) -> Path:
        return self._directory / f".{next(self._names)}"

    def remove(self, name: Multihash) -> None:
        self._data.pop(name, None)
        with disk(self._directory):
            (self._directory / str(name)).unlink(missing_ok=True)
