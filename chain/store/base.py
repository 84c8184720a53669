"""Declares the interfaces of the store. Synchronous; asynchronous callers use a worker thread.

Durable order of a commit: objects are staged, fsynced and renamed first; then blocks, heads and any rows that must
appear with them go into one SQLite transaction that compares the old heads. A crash leaves the old or the new state,
never a head whose objects are missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from chain.errors import Environment
from chain.ids import DatasetId
from chain.model.block import Block, SealedBlock
from chain.multihash import Multihash

PAGE_BLOCKS: Final = 2048
PAGE_BYTES: Final = 4 << 20
BLOCK_DAMAGED: Final = "stored-block-damaged"
NAME_SIZE: Final = 34
"""Bytes of a block's name, a sha3-256 multihash."""
Step: TypeAlias = Callable[[str], None]
"""Called with a step's name when that step is durable, so that tests can stop or harm the process there."""


def no_step(_: str) -> None:
    """Progress callback that does nothing."""


class Head(msgspec.Struct, frozen=True):
    """Last block of a chain; the chain has ``sequence_number + 1`` blocks."""

    hash: Multihash
    sequence_number: int

    @property
    def size(self) -> int:
        return self.sequence_number + 1


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a chain at one moment, from one read."""

    head: Head
    history: tuple[int, int] = (0, 0)
    """Changes with every rewrite, repair and new creation. While it stays the same, so do the blocks up to ``head``."""


class BlockDamaged(Environment):
    """Raised for a stored block that is damaged or in the wrong place. No caller is given any of it."""

    def __init__(self, dataset: DatasetId, number: int, why: str) -> None:
        super().__init__(
            f"block #{number} is damaged on disk: {why}",
            rule=BLOCK_DAMAGED,
            hint="odfctl pull REF --repair fetches it again from a peer that has it",
            place=dataset.short,
        )
        self.dataset = dataset
        self.number = number


class UpperMove(msgspec.Struct, frozen=True):
    """A move of a chain's frontier, in whole milliseconds (``chain.store.shards``)."""

    expected: int
    new: int | None = None
    """The new frontier; ``None``: the present one is only compared."""


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """One chain's part of a commit: ``blocks`` follow ``expected`` (``None``: the chain does not exist yet)."""

    dataset: DatasetId
    expected: Head | None
    blocks: Sequence[Block | SealedBlock]
    objects: Sequence[Multihash] = ()
    """Objects that the blocks name and that the store must hold before the head moves."""
    upper: UpperMove | None = None
    """Frontier that is compared and set with the head. With a new one ``blocks`` may be empty: mere progress."""


class FormerEpochs(msgspec.Struct, frozen=True):
    """Keeps the blocks that a rewrite drops as ``epoch``, and the newest ``most`` former epochs; ``None``: all."""

    epoch: int
    most: int | None = None


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """Another history for a chain: its first ``keep`` blocks unchanged, and ``blocks`` in place of the rest.

    A rewrite must be declared by a new epoch, or mirrors take it for a lie: ``also`` does so, or it was done before.
    """

    dataset: DatasetId
    expected: Head
    keep: int
    """Number of blocks kept. At least one: with another Seed it would be another dataset."""
    blocks: Iterable[Block] = ()
    """The new blocks, read once as they are written; they need not fit into memory."""
    objects: Sequence[Multihash] = ()
    """Objects that ``blocks`` name and that the store must hold before the head moves."""
    apart: FormerEpochs | None = None
    """How to keep the blocks that are dropped; ``None``: they are deleted."""


class StoredBlock(msgspec.Struct, frozen=True):
    """A block as stored, unchecked."""

    sequence_number: int
    """Position of the block in the chain; the bytes may state another."""
    name: Multihash
    """The hash that the bytes should have."""
    raw: bytes | None
    """The bytes; ``None``: the chain needs the block and it is missing."""


class StoredPage(msgspec.Struct, frozen=True):
    """Consecutive blocks as stored, unchecked."""

    start: int
    """Position of the first block."""
    names: bytes
    """The hashes that the bytes should have: one multihash after the other, each of NAME_SIZE bytes."""
    raws: Sequence[bytes | None]
    kinds: Sequence[int] | None = None
    """Kind of each block in the store's index, numbered as in ``chain.store.schema``. ``None``: there is no index."""

    def name(self, row: int) -> Multihash:
        return Multihash(self.names[row * NAME_SIZE : (row + 1) * NAME_SIZE])

    def kind(self, row: int) -> int | None:
        return None if self.kinds is None else self.kinds[row]


class StoredChain(Protocol):
    """The interface for verification: unchecked bytes, so that all damage is reported and not only the first."""

    def snapshot(self) -> Snapshot | None:
        """Returns name and number of the last block, which may itself be missing or damaged; ``None`` if empty."""

    def stored_blocks(self, start: int = 0, stop: int | None = None) -> Iterator[StoredBlock]:
        """Yields blocks ``start <= n < stop`` (to the head), oldest first. Never raises for their content."""

    def stored_pages(self, start: int = 0, stop: int | None = None) -> Iterator[StoredPage]:
        """Yields the same blocks by pages of PAGE_BLOCKS, or little over PAGE_BYTES; gaps lie between pages."""


class ChainReader(Protocol):
    """The interface for reading one chain. Every call costs in proportion to its answer, not to the chain."""

    def head(self) -> Head | None: ...

    def block_at(self, sequence_number: int) -> Block:
        """Returns the block of a number. Raises NotFound."""

    def block_by_hash(self, block_hash: Multihash) -> Block:
        """Returns the block of a hash. Raises NotFound."""

    def raw_blocks(self, start: int, stop: int) -> Iterator[bytes]:
        """Yields the bytes of blocks ``start <= n < stop``, oldest first."""

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None:
        """Returns the newest block below ``before`` whose event is of ``kinds`` (class names such as ``"AddData"``)."""


class ChainStore(Protocol):
    """The interface of a store of many chains. ``commit`` is compare-and-append over one or several, all or nothing."""

    def datasets(self) -> Sequence[DatasetId]: ...

    def chain(self, dataset: DatasetId) -> ChainReader:
        """Returns a reader, also for a chain without blocks (its head is ``None``)."""

    def upper(self, dataset: DatasetId) -> int:
        """Returns the frontier in whole milliseconds: a block of an earlier time is refused. 0 without blocks."""

    def commit(self, appends: Sequence[Append], also: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """Appends blocks to chains, all or nothing.

        Raises Conflict when a head or frontier is not as expected, or a block is of a time that is complete; Invalid
        when a block does not follow or an object is missing. ``also`` writes rows of other tables in the same
        transaction (a signed head, a resource's event).
        """

    def rewrite(self, rewrite: Rewrite, also: Callable[[sqlite3.Connection], None] | None = None) -> Head:
        """Replaces a chain's history by one atomic change; returns the new head.

        Objects of the old history are freed by the next collection. Raises Conflict when the head is not as expected,
        Invalid when a block does not follow or an object is missing, when nothing would be kept or nothing would
        change, Refused while the history is held for a reader.
        """

    def drop(self, dataset: DatasetId, also: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """Deletes a chain; ``also`` as in ``commit``. Raises Refused as ``rewrite``.

        Its objects are freed by the next collection.
        """


class ObjectReader(Protocol):
    """The interface for reading a dataset's objects, as of an ObjectStore or a directory in the ODF layout."""

    def has(self, name: Multihash) -> bool: ...

    def size(self, name: Multihash) -> int:
        """Returns the object's size in bytes. Raises NotFound."""

    def path(self, name: Multihash) -> Path:
        """Returns the object's file. Raises NotFound."""

    def content(self, name: Multihash) -> Path | bytes:
        """Returns an object's file, or its bytes where it has none, unchecked. Raises NotFound, Environment."""


class ObjectStore(Protocol):
    """The interface of a store of immutable bytes by their sha3-256 multihash. Small ones may have no file."""

    def has(self, name: Multihash) -> bool: ...

    def missing(self, names: Iterable[Multihash]) -> list[Multihash]:
        """Lists the objects that are not here, in the given order; like ``has`` for many."""

    def size(self, name: Multihash) -> int:
        """Returns the object's size in bytes. Raises NotFound."""

    def add_file(self, staged: Path) -> Multihash:
        """Takes over a file of the staging directory: hash, fsync, rename, fsync of the folder. Idempotent."""

    def add_bytes(self, data: bytes) -> Multihash: ...

    def read(self, name: Multihash, offset: int = 0, length: int | None = None) -> bytes:
        """Returns ``length`` bytes from ``offset`` on. Raises NotFound."""

    def path(self, name: Multihash) -> Path:
        """Returns a readable file with exactly the object's bytes. Never write to it. Raises NotFound."""

    def content(self, name: Multihash) -> Path | bytes:
        """Returns an object as ObjectReader does."""

    def stage(self) -> Path:
        """Returns an unused path in the staging directory, on the same file system, to write for ``add_file``."""

    def remove(self, name: Multihash) -> None: ...


def leaves(chain: ChainReader, start: int, stop: int) -> list[bytes]:
    """Returns the leaf hashes of blocks ``start <= n < stop``, computed from their bytes. Raises as ``raw_blocks``."""
    return [Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(start, stop)]


def leaves_of(chains: ChainStore, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
    return leaves(chains.chain(dataset), start, stop)
