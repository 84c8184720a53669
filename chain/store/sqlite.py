"""Keeps chains in SQLite: blocks as BLOBs by (dataset, sequence), indexed by hash and by kind of event.

A ``SqliteChains`` lives as long as its Database. A commit is one transaction over any number of chains, the small
objects they name and the rows of other rooms; its durable order is that of ``chain.store.base``. Blocks read are hashed
again before they are trusted, so a damaged page causes a fault and never a wrong answer.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from chain.codec.blocks import decode_block
from chain.errors import Conflict, Invalid
from chain.ids import DatasetId
from chain.model.block import Block, SealedBlock
from chain.multihash import SHA3_256, Multihash
from chain.store import append as rules
from chain.store import bulk_rows, former_epochs, schema, uppers
from chain.store.base import (
    NAME_SIZE,
    PAGE_BLOCKS,
    PAGE_BYTES,
    Append,
    BlockDamaged,
    Head,
    Rewrite,
    Snapshot,
    Step,
    StoredBlock,
    StoredPage,
    no_step,
)
from chain.store.database import Database
from chain.store.objects import DiskObjects

_HANDFUL: Final = 256
"""Rows fetched from SQLite at once."""
_BOUND_BLOCKS: Final = 16_384
_BOUND_BYTES: Final = 8 << 20
"""Bytes of blocks in one statement when writing: after each one the interpreter's lock has to be taken again."""
_LARGE: Final = 20_000
"""Blocks of a commit that touches most pages of the indexes by hash, even where those are of a million."""
HeadRow: TypeAlias = tuple[bytes, bytes, int]
"""The row of a chain's head: the chain's stored name, the head's hash, its sequence number."""
_Page: TypeAlias = tuple[list[int], list[bytes], list[bytes], list[int]]
"""Sequence numbers, names, bytes and kinds of blocks."""
Mark: TypeAlias = tuple[int, int, int]
"""History and last number of a chain, which change with every write to it."""
_INSERT: Final = (
    f"INSERT INTO blocks SELECT ?1, ?2 + key, {bulk_rows.TAG}, substr(?3, key * {NAME_SIZE} + 1, {NAME_SIZE}),"  # noqa: S608
    f" {bulk_rows.each('?4')} FROM json_each(?5)"
)
_THIS: Final = "dataset = (SELECT number FROM datasets WHERE id = ?)"


class SqliteChains:
    """The ChainStore of a node. Safe to use from any thread."""

    def __init__(
        self,
        database: Database,
        objects: DiskObjects,
        step: Step = no_step,
        guard: Callable[[sqlite3.Connection, DatasetId], None] = lambda *_: None,
    ) -> None:
        """Opens the store. ``guard`` is called in each transaction that drops history, and raises if it must stay."""
        self._database = database
        self._objects = objects
        self._step = step
        self._guard = guard
        database.migrate(schema.ROOM, schema.STEPS)

    def datasets(self) -> Sequence[DatasetId]:
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT id FROM datasets WHERE length(id) != ? ORDER BY number", (former_epochs.NAME_SIZE,)
            ).fetchall()
        return [self._id(row[0]) for row in rows]

    def heads(self) -> dict[DatasetId, Head | None]:
        """Returns the heads of all chains by one query, in the order of their creation; ``None`` for a damaged one."""
        return {dataset: head for (dataset, epoch), head in self.all_heads().items() if epoch is None}

    def all_heads(self) -> dict[tuple[DatasetId, int | None], Head | None]:
        """Returns the heads of all chains and of kept former epochs."""
        return dict(map(self.head_of, self.head_rows()))

    def head_rows(self) -> list[HeadRow]:
        """Returns the raw head rows of all chains and kept former epochs, which are cheap to compare."""
        with self._database.read() as connection:
            return connection.execute("SELECT id, head_hash, head_sequence FROM datasets ORDER BY number").fetchall()

    def head_of(self, row: HeadRow) -> tuple[tuple[DatasetId, int | None], Head | None]:
        """Decodes a head row: its dataset (and former epoch), and its head unless that is damaged."""
        name, head, number = row
        return self._history(name), _as_head(head, number)

    def _history(self, name: bytes) -> tuple[DatasetId, int | None]:
        epoch = int.from_bytes(name[-8:], "big") if len(name) == former_epochs.NAME_SIZE else None
        return self._id(name if epoch is None else name[:-8]), epoch

    def histories_having(self, kind: str) -> Sequence[tuple[DatasetId, int | None]]:
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT id FROM datasets WHERE EXISTS (SELECT 1 FROM blocks INDEXED BY blocks_by_kind"
                " WHERE dataset = datasets.number AND kind = ?) ORDER BY number",
                (schema.KINDS[kind],),
            ).fetchall()
        return [self._history(row[0]) for row in rows]

    def having(self, kind: str) -> Sequence[DatasetId]:
        """Lists datasets whose chain has an event of this kind, by one query with an index lookup for each."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT id FROM datasets WHERE length(id) != ? AND EXISTS (SELECT 1 FROM blocks"
                " INDEXED BY blocks_by_kind WHERE dataset = datasets.number AND kind = ?) ORDER BY number",
                (former_epochs.NAME_SIZE, schema.KINDS[kind]),
            ).fetchall()
        return [self._id(row[0]) for row in rows]

    def _id(self, name: bytes) -> DatasetId:
        try:
            return DatasetId.from_bytes(name)
        except Invalid as error:
            # Raised, not skipped: a collection would otherwise free the dataset's objects.
            raise self._database.corrupt(f"a chain is stored under an invalid dataset id: {error.message}") from error

    def chain(self, dataset: DatasetId) -> SqliteChain:
        return SqliteChain(self._database, dataset)

    def upper(self, dataset: DatasetId) -> int:
        """Returns the frontier in whole milliseconds: earlier times are complete. One row and the last block."""
        with self._database.read() as connection:
            return uppers.upper_of(connection, dataset)

    def former_epochs(self, dataset: DatasetId) -> Sequence[int]:
        """Lists the former epochs of which blocks are kept, oldest first."""
        with self._database.read() as connection:
            return former_epochs.epochs_of(connection, dataset)

    def former(self, dataset: DatasetId, epoch: int) -> SqliteChain:
        """Returns the dropped blocks of an epoch: the end of its chain, from where the next epoch parted from it."""
        return SqliteChain(self._database, dataset, former_epochs.name_of(dataset, epoch))

    def raw_of(self, name: Multihash) -> bytes | None:
        """Returns the bytes of a block by its hash, from any chain; ``None`` also when it is damaged."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT raw FROM blocks INDEXED BY blocks_by_hash"
                " WHERE substr(hash, 3, 8) = substr(?1, 3, 8) AND hash = ?1 LIMIT 1",
                (name,),
            ).fetchone()
        return row[0] if row is not None and Multihash.sha3_256(row[0]) == name else None

    def commit(self, appends: Sequence[Append], also: Callable[[sqlite3.Connection], None] | None = None) -> None:
        rules.check_distinct(appends)
        heads = [rules.check_append(append, self._objects) for append in appends]
        is_large = sum(len(append.blocks) for append in appends) >= _LARGE
        with self._objects.flushing() as flush, self._database.write(is_large=is_large) as connection:
            self._step("commit-begun")
            for append in appends:
                rules.check_expected(append, _head(connection, append.dataset))
                uppers.check(connection, append)
            flush(connection)
            self._step("commit-objects")
            for append, head in zip(appends, heads, strict=True):
                _insert(connection, append.dataset, append.blocks, head)
                uppers.move(connection, append)
            self._step("commit-blocks")
            if also is not None:
                also(connection)
            self._step("commit-also")
        self._step("commit-durable")
        self._objects.holds.named(name for append in appends for name in append.objects)

    def rewrite(self, rewrite: Rewrite, also: Callable[[sqlite3.Connection], None] | None = None) -> Head:
        rules.check_rewrite(rewrite, self._objects)
        with self._objects.flushing() as flush, self._database.write() as connection:
            self._step("rewrite-begun")
            self._guard(connection, rewrite.dataset)
            rules.check_expected(rewrite, _head(connection, rewrite.dataset))
            flush(connection)
            if rewrite.apart is not None:
                former_epochs.keep_epoch(connection, rewrite.dataset, rewrite.keep, rewrite.apart)
            head = _cut(connection, rewrite.dataset, rewrite.keep)
            _begin_history(connection, rewrite.dataset)
            self._step("rewrite-cut")
            blocks = rules.following(head, rewrite.blocks, rewrite.dataset.short)
            while some := list(itertools.islice(blocks, PAGE_BLOCKS)):
                head = Head(some[-1].hash, some[-1].sequence_number)
                _insert(connection, rewrite.dataset, some, head)
            rules.check_changed(rewrite, head)
            self._step("rewrite-blocks")
            if also is not None:
                also(connection)
            self._step("rewrite-also")
        self._step("rewrite-durable")
        self._objects.holds.named(rewrite.objects)
        return head

    def mark(self, dataset: DatasetId) -> Mark | None:
        """Returns the mark of a chain whose head may be damaged; ``None`` if there is no chain."""
        with self._database.read() as connection:
            return _mark(connection, dataset)

    def mend(self, dataset: DatasetId, expected: Mark | None, head: Head, blocks: Sequence[Block]) -> None:
        """Replaces damaged blocks by ``blocks`` and the head by ``head``; deletes misplaced rows.

        The caller has shown that the chain is unchanged (``chain.store.repair``) since its mark was ``expected``.
        Raises Conflict when the mark is another by now.
        """
        with self._database.write() as connection:
            if _mark(connection, dataset) != expected:
                raise Conflict(
                    "the chain changed during the repair",
                    rule="compare-and-append",
                    hint="repeat the command",
                    place=dataset.short,
                )
            connection.execute(
                f"DELETE FROM blocks WHERE {_THIS} AND (sequence < 0 OR sequence >= ?)",  # noqa: S608
                (dataset, head.size),
            )
            for block in blocks:
                connection.execute(
                    f"DELETE FROM blocks WHERE {_THIS} AND sequence = ?",  # noqa: S608
                    (dataset, block.sequence_number),
                )
            _insert(connection, dataset, blocks, head)
            _begin_history(connection, dataset)
            self._step("mend-blocks")
        self._step("mend-durable")

    def drop(
        self, dataset: DatasetId, also: Callable[[sqlite3.Connection], None] | None = None, *, keep: bool = False
    ) -> None:
        """Deletes a chain. ``keep``: sets it aside with its objects; only ``former`` reads it, by ``SET_ASIDE``."""
        with self._database.write() as connection:
            self.drop_in(connection, dataset, keep=keep)
            self._step("drop-blocks")
            if also is not None:
                also(connection)
            self._step("drop-also")
        self._step("drop-durable")

    def drop_in(self, connection: sqlite3.Connection, dataset: DatasetId, *, keep: bool = False) -> None:
        """Deletes a chain as ``drop``, in the transaction of others."""
        self._guard(connection, dataset)
        if keep:
            former_epochs.set_aside(connection, dataset)
            return
        former_epochs.drop(connection, dataset)
        connection.execute("DELETE FROM datasets WHERE id = ?", (dataset,))


class SqliteChain:
    """Reads of one chain, each from a snapshot of its own."""

    def __init__(self, database: Database, dataset: DatasetId, name: bytes | None = None) -> None:
        """Opens a reader. ``name``: the key under which its blocks are stored, if that is not the dataset's id."""
        self._database = database
        self._dataset = dataset
        self._name = dataset if name is None else name

    def head(self) -> Head | None:
        with self._database.read() as connection:
            return _head(connection, self._dataset, self._name)

    def first(self) -> int:
        """Returns the number of the oldest stored block: 0, except in a former epoch."""
        with self._database.read() as connection:
            (found,) = connection.execute(
                f"SELECT MIN(sequence) FROM blocks WHERE {_THIS}",  # noqa: S608
                (self._name,),
            ).fetchone()
        return int(found or 0)

    def block_at(self, sequence_number: int) -> Block:
        with self._database.read() as connection:
            row = connection.execute(
                f"SELECT hash, raw FROM blocks WHERE {_THIS} AND sequence = ?",  # noqa: S608
                (self._name, sequence_number),
            ).fetchone()
        if row is None:
            raise rules.no_block(f"#{sequence_number} in {self._dataset.short}")
        block = decode_block(self._whole(sequence_number, *row))
        if block.sequence_number != sequence_number:
            raise BlockDamaged(self._dataset, sequence_number, f"#{block.sequence_number} is stored at its position")
        return block

    def block_by_hash(self, block_hash: Multihash) -> Block:
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT sequence, hash, raw FROM blocks INDEXED BY blocks_by_hash"  # noqa: S608
                f" WHERE substr(hash, 3, 8) = substr(:hash, 3, 8) AND hash = :hash AND {_THIS.replace('?', ':id')}",
                {"hash": block_hash, "id": self._name},
            ).fetchone()
        if row is None:
            raise rules.no_block(f"{block_hash.short} in {self._dataset.short}")
        return decode_block(self._whole(*row))

    def raw_blocks(self, start: int, stop: int) -> Iterator[bytes]:
        due = max(start, 0)
        for sequence, block_hash, raw in self._rows(start, stop):
            if sequence != due:
                raise BlockDamaged(self._dataset, due, "it is not at its position")
            due += 1
            yield self._whole(sequence, block_hash, raw)

    def snapshot(self) -> Snapshot | None:
        with self._database.read() as connection:
            return snapshot_of(connection, self._dataset, self._name)

    def stored_blocks(self, start: int = 0, stop: int | None = None) -> Iterator[StoredBlock]:
        for sequence, block_hash, raw in self._rows(start, 1 << 62 if stop is None else stop):
            yield StoredBlock(sequence, _name(block_hash), raw)

    def stored_pages(self, start: int = 0, stop: int | None = None) -> Iterator[StoredPage]:
        following, end = max(start, 0), 1 << 62 if stop is None else stop
        while following < end and (page := self._page(following, min(end, following + PAGE_BLOCKS))):
            sequences, names, raws, kinds = page
            following = sequences[-1] + 1
            if following - sequences[0] == len(raws) and set(map(len, names)) == {NAME_SIZE}:
                yield StoredPage(sequences[0], b"".join(names), raws, kinds)
            else:
                for sequence, name, raw, kind in zip(*page, strict=True):
                    yield StoredPage(sequence, _name(name), (raw,), (kind,))

    def strays(self, size: int) -> Iterator[bytes]:
        """Yields stored blocks at places outside a chain of ``size`` blocks, for repair."""
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT raw FROM blocks WHERE {_THIS} AND (sequence < 0 OR sequence >= ?) LIMIT ?",  # noqa: S608
                (self._name, size, PAGE_BLOCKS),
            ).fetchall()
        return (row[0] for row in rows)

    def _rows(self, start: int, stop: int) -> Iterator[tuple[int, bytes, bytes]]:
        following = max(start, 0)
        while following < stop and (page := self._page(following, min(stop, following + PAGE_BLOCKS))):
            yield from zip(*page[:3], strict=True)
            following = page[0][-1] + 1

    def _page(self, start: int, stop: int) -> _Page | None:
        """Returns columns of the next rows, from one snapshot; between pages no snapshot is held."""
        sequences: list[int] = []
        names: list[bytes] = []
        raws: list[bytes] = []
        kinds: list[int] = []
        size = 0
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT sequence, hash, raw, kind FROM blocks WHERE {_THIS} AND sequence >= ? AND sequence < ?"  # noqa: S608
                " ORDER BY sequence",
                (self._name, start, stop),
            )
            # In small handfuls: thousands of rows alive as tuples would cost the collector more than the reading.
            while size < PAGE_BYTES and (some := rows.fetchmany(_HANDFUL)):
                more = [row[2] for row in some]
                sequences += [row[0] for row in some]
                names += [row[1] for row in some]
                raws += more
                kinds += [row[3] for row in some]
                size += sum(map(len, more))
            rows.close()
        return (sequences, names, raws, kinds) if raws else None

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None:
        limit = (1 << 62) if before is None else before
        wanted = set(kinds)
        newest: tuple[int, bytes, bytes] | None = None
        with self._database.read() as connection:
            for kind in wanted:
                # All numbers beyond ours are unknown events; a later version finds them by their own.
                number, compare = (len(schema.KINDS), ">") if kind == "UnknownEvent" else (schema.KINDS[kind], "=")
                row = connection.execute(
                    f"SELECT sequence, hash, raw FROM blocks INDEXED BY blocks_by_kind WHERE {_THIS}"  # noqa: S608
                    f" AND kind {compare} ? AND sequence < ? ORDER BY sequence DESC LIMIT 1",
                    (self._name, number, limit),
                ).fetchone()
                if row is not None and (newest is None or row[0] > newest[0]):
                    newest = row
        if newest is None:
            return None
        block = decode_block(self._whole(*newest))
        if type(block.event).__name__ not in wanted or block.sequence_number != newest[0]:
            raise BlockDamaged(self._dataset, newest[0], "the index takes another event for it")
        return block

    def _whole(self, sequence: int, block_hash: bytes, raw: bytes) -> bytes:
        actual = Multihash.sha3_256(raw)
        if actual != block_hash:
            raise BlockDamaged(self._dataset, sequence, f"its bytes hash to {actual.short}")
        return raw


def _mark(connection: sqlite3.Connection, dataset: DatasetId) -> Mark | None:
    row = connection.execute("SELECT number, history, head_sequence FROM datasets WHERE id = ?", (dataset,)).fetchone()
    return None if row is None else (row[0], row[1], row[2])


def _name(stored: bytes) -> Multihash:
    """Returns a block's stored name; if that is damaged, one that no bytes hash to."""
    return Multihash(stored) if len(stored) == NAME_SIZE else Multihash.from_digest(SHA3_256, bytes(32))


def snapshot_of(connection: sqlite3.Connection, dataset: DatasetId, name: bytes | None = None) -> Snapshot | None:
    """Reads the snapshot within a connection's transaction, consistent with its other reads. Raises BlockDamaged."""
    row = connection.execute(
        "SELECT head_hash, head_sequence, number, history FROM datasets WHERE id = ?", (name or dataset,)
    ).fetchone()
    if row is None:
        return None
    head = _as_head(row[0], row[1])
    if head is None:
        raise BlockDamaged(dataset, row[1], "as the last of its chain it is named by what is no hash")
    return Snapshot(head, (row[2], row[3]))


def stored_bytes(connection: sqlite3.Connection, dataset: DatasetId) -> tuple[int, int]:
    """Returns number and bytes of the stored blocks of a dataset and its former epochs; reads each block."""
    (count, total) = connection.execute(
        "SELECT count(*), coalesce(sum(length(raw)), 0) FROM blocks"
        " WHERE dataset IN (SELECT number FROM datasets WHERE id >= ?1 AND id <= ?2)",
        (dataset, bytes(dataset) + former_epochs.LAST),
    ).fetchone()
    return int(count), int(total)


def _as_head(name: bytes, number: int) -> Head | None:
    try:
        return Head(Multihash.from_bytes(name), number)
    except Invalid:
        return None


def _head(connection: sqlite3.Connection, dataset: DatasetId, name: bytes | None = None) -> Head | None:
    snapshot = snapshot_of(connection, dataset, name)
    return None if snapshot is None else snapshot.head


def _begin_history(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    connection.execute("UPDATE datasets SET history = history + 1 WHERE id = ?", (dataset,))


def _cut(connection: sqlite3.Connection, dataset: DatasetId, keep: int) -> Head:
    """Deletes the blocks from ``keep`` (at least 1) on; returns the new head, which is the block before."""
    (number,) = connection.execute("SELECT number FROM datasets WHERE id = ?", (dataset,)).fetchone()
    connection.execute("DELETE FROM blocks WHERE dataset = ? AND sequence >= ?", (number, keep))
    (name,) = connection.execute(
        "SELECT hash FROM blocks WHERE dataset = ? AND sequence = ?", (number, keep - 1)
    ).fetchone()
    head = Head(Multihash.from_bytes(name), keep - 1)
    _insert(connection, dataset, (), head)
    return head


def _insert(
    connection: sqlite3.Connection, dataset: DatasetId, blocks: Sequence[Block | SealedBlock], head: Head
) -> None:
    (number,) = connection.execute(
        "INSERT INTO datasets (id, head_sequence, head_hash) VALUES (?1, ?2, ?3)"
        " ON CONFLICT (id) DO UPDATE SET head_sequence = ?2, head_hash = ?3 RETURNING number",
        (dataset, head.sequence_number, head.hash),
    ).fetchone()
    for page in _pages(blocks):
        raws = [one.raw for one in page]
        where = bulk_rows.places(raws, [schema.kind_of(one) for one in page])
        names = b"".join([one.hash for one in page])
        connection.execute(_INSERT, (number, page[0].sequence_number, names, b"".join(raws), where))


def _pages(blocks: Sequence[Block | SealedBlock]) -> Iterator[Sequence[Block | SealedBlock]]:
    """Yields blocks in runs, each small enough to bind to one statement."""
    start = size = 0
    for place, one in enumerate(blocks):
        is_next = place == start or one.sequence_number == blocks[place - 1].sequence_number + 1
        if not is_next or place - start == _BOUND_BLOCKS or (place > start and size + len(one.raw) > _BOUND_BYTES):
            yield blocks[start:place]
            start, size = place, 0
        size += len(one.raw)
    if start < len(blocks):
        yield blocks[start:]
