"""Stores which data of mirrored datasets is held: from which block on, which objects, and their size on disk.

A mirror may hold only the newest part of its data. ``Extent`` says from which block on that is, and how much of it was
ever checked here; objects are counted one by one, so that needless ones can be found and the sum is exact at any time.
Synchronous, on the given connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.seals import Sealed
from chain.store.sqlite import stored_bytes

STEP: Final = """
CREATE TABLE held_extents (
    dataset BLOB PRIMARY KEY,
    first INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    keep TEXT NOT NULL,
    seal BLOB
) STRICT, WITHOUT ROWID;
CREATE TABLE held_objects (
    dataset BLOB NOT NULL,
    object BLOB NOT NULL,
    last INTEGER NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (dataset, object)
) STRICT, WITHOUT ROWID;
CREATE INDEX held_objects_last ON held_objects (dataset, last, size);
CREATE INDEX held_objects_object ON held_objects (object);
CREATE TABLE held_bytes (
    dataset BLOB PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER held_more AFTER INSERT ON held_objects BEGIN
    INSERT INTO held_bytes VALUES (NEW.dataset, NEW.size)
    ON CONFLICT DO UPDATE SET bytes = bytes + NEW.size;
END;
CREATE TRIGGER held_less AFTER DELETE ON held_objects BEGIN
    UPDATE held_bytes SET bytes = bytes - OLD.size WHERE dataset = OLD.dataset;
END;
"""
"""The tables: a step of the references' tables, since an object that is no longer named is no longer held."""
ALL_OF_IT: Final = """
-- Blocks of mirrors, and how many objects are held: what others can fill a disk with is more than the bytes of objects.
CREATE TABLE held_blocks (
    dataset BLOB PRIMARY KEY,
    blocks INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
ALTER TABLE held_bytes ADD COLUMN objects INTEGER NOT NULL DEFAULT 0;
UPDATE held_bytes
    SET objects = (SELECT count(*) FROM held_objects WHERE held_objects.dataset = held_bytes.dataset);
DROP TRIGGER held_more;
DROP TRIGGER held_less;
CREATE TRIGGER held_more AFTER INSERT ON held_objects BEGIN
    INSERT INTO held_bytes VALUES (NEW.dataset, NEW.size, 1)
    ON CONFLICT DO UPDATE SET bytes = bytes + NEW.size, objects = objects + 1;
END;
CREATE TRIGGER held_less AFTER DELETE ON held_objects BEGIN
    UPDATE held_bytes SET bytes = bytes - OLD.size, objects = objects - 1 WHERE dataset = OLD.dataset;
END;
"""
"""A later step of the same tables."""
PER_OBJECT: Final = 512
"""Bytes that an object takes in addition to its own: in tables and indexes, and by rounding up its file."""
PER_BLOCK: Final = 512
"""Bytes that a block takes in addition to its own: in two indexes, the hashes of its tree, and references."""
_EXTENTS: Final = Sealed("held_extents", ("dataset", "first", "seen", "keep"), "odfctl mirror add plans it again")
_UNPLANNED: Final = "?"
_UNKNOWN: Final = 1 << 62
"""A number later than any block."""


class Extent(msgspec.Struct, frozen=True):
    """The data that has to be here: from block ``first`` on; it was checked from block ``seen`` on, in order.

    The ledger says up to where it was checked (``Checked.data``). ``seen`` may be lower than ``first``, since data that
    was checked and then let go was true all the same.
    """

    first: int = 0
    seen: int = 0
    keep: str = ""
    """The bound (``keep``) under which this was planned; empty for all."""


class Holdings:
    """Reads and writes the extents, held objects and sizes of mirrors, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def extent(self, dataset: DatasetId) -> Extent:
        """Returns the extent: all data if nothing was planned, and nothing checked for a damaged row."""
        row, whole = _EXTENTS.look(self._db, "dataset = ?", (dataset,))
        if not whole:
            return Extent(0, _UNKNOWN, _UNPLANNED)
        return Extent(0, 0, _UNPLANNED) if row is None else Extent(row[1], row[2], row[3])

    def keep_extent(self, dataset: DatasetId, extent: Extent) -> None:
        _EXTENTS.put(self._db, dataset, extent.first, extent.seen, extent.keep)

    def replan(self, dataset: DatasetId) -> None:
        """Marks the extent to be planned again at a user's request, which also checks what was dropped for others."""
        extent = self.extent(dataset)
        if extent.first:
            self.keep_extent(dataset, Extent(extent.first, extent.seen, _UNPLANNED))

    def note(self, dataset: DatasetId, objects: Iterable[tuple[Multihash, int, int]]) -> None:
        """Records present objects: name, size, and the number of a block that brings each or links to it."""
        self._db.executemany(
            "INSERT INTO held_objects (dataset, object, size, last) VALUES (?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET last = max(last, excluded.last)",
            ((dataset, name, size, number) for name, size, number in objects),
        )

    def drop(self, dataset: DatasetId, names: Iterable[Multihash]) -> None:
        """Removes objects that are no longer here."""
        self._db.executemany(
            "DELETE FROM held_objects WHERE dataset = ? AND object = ?", ((dataset, name) for name in names)
        )

    def bytes(self, dataset: DatasetId) -> int:
        row = self._db.execute("SELECT bytes FROM held_bytes WHERE dataset = ?", (dataset,)).fetchone()
        return int(row[0]) if row else 0

    def objects(self, dataset: DatasetId) -> int:
        """Returns how many objects are held for a dataset."""
        row = self._db.execute("SELECT objects FROM held_bytes WHERE dataset = ?", (dataset,)).fetchone()
        return int(row[0]) if row else 0

    def bytes_taken(self) -> int:
        """Returns the bytes on disk that mirrors take: objects, blocks, and the tables about both."""
        (objects,) = self._db.execute(
            "SELECT coalesce(sum(bytes + ? * objects), 0) FROM held_bytes", (PER_OBJECT,)
        ).fetchone()
        (blocks,) = self._db.execute(
            "SELECT coalesce(sum(bytes + ? * blocks), 0) FROM held_blocks", (PER_BLOCK,)
        ).fetchone()
        return int(objects + blocks)

    def counts_blocks(self, dataset: DatasetId) -> bool:
        """Whether the blocks of a dataset are counted; a mirror's are from its first pass on."""
        row = self._db.execute("SELECT 1 FROM held_blocks WHERE dataset = ?", (dataset,)).fetchone()
        return row is not None

    def count_blocks(self, dataset: DatasetId) -> None:
        """Counts all blocks that are here one by one, after a change that is no append."""
        self._db.execute(
            "INSERT OR REPLACE INTO held_blocks VALUES (?, ?, ?)", (dataset, *stored_bytes(self._db, dataset))
        )

    def more_blocks(self, dataset: DatasetId, count: int, size: int) -> None:
        """Adds appended blocks and their bytes to the count."""
        self._db.execute(
            "UPDATE held_blocks SET blocks = blocks + ?, bytes = bytes + ? WHERE dataset = ?", (count, size, dataset)
        )

    def by_block(self, dataset: DatasetId, stop: int = _UNKNOWN) -> Generator[tuple[int, int], None, None]:
        """Yields numbers of blocks before ``stop``, oldest first, each with the bytes that no later block needs."""
        yield from self._db.execute(
            "SELECT last, sum(size) FROM held_objects WHERE dataset = ? AND last < ? GROUP BY last ORDER BY last",
            (dataset, stop),
        )

    def needless(self, dataset: DatasetId, first: int, limit: int) -> list[Multihash]:
        """Lists at most ``limit`` objects that only blocks before ``first`` need."""
        rows = self._db.execute(
            "SELECT object FROM held_objects WHERE dataset = ? AND last < ? LIMIT ?", (dataset, first, limit)
        )
        return [Multihash(row[0]) for row in rows]

    def holders(self, name: Multihash) -> set[DatasetId]:
        """Returns the datasets that an object is held for."""
        rows = self._db.execute("SELECT dataset FROM held_objects WHERE object = ?", (name,))
        return {DatasetId(row[0]) for row in rows}


def cut(connection: sqlite3.Connection, dataset: DatasetId, size: int) -> None:
    """Removes the objects that only later blocks need, when a chain is cut to ``size`` blocks."""
    connection.execute("DELETE FROM held_objects WHERE dataset = ? AND last >= ?", (dataset, size))
    holdings = Holdings(connection)
    if holdings.counts_blocks(dataset):
        holdings.count_blocks(dataset)
    extent = holdings.extent(dataset)
    if extent.first > size or extent.seen > size:
        holdings.keep_extent(dataset, Extent(min(extent.first, size), min(extent.seen, size), extent.keep))


def forget(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Deletes everything about a dataset."""
    for table in ("held_objects", "held_bytes", "held_extents", "held_blocks"):
        connection.execute(f"DELETE FROM {table} WHERE dataset = ?", (dataset,))  # noqa: S608
