"""Keeps pushes to the endpoints of Sources until their datasets have taken them in.

A push is one file with a number, in the order of arrival; a dataset's chain records up to which number it has taken.
Without a buffer a push is on the disk before it is answered, and stays until every dataset that reads the Source has
it. With a buffer ``Memory`` the answer does not wait for the disk, and if too many records wait, pushes are refused or
the oldest are dropped. A push that comes again with its id gets the same answer. Blocking; safe to use from any thread.
Spec: RFC-018, Source, ``RestEndpoint``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Conflict, Environment, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store.database import Database
from chain.wording import plural, size
from odfd.ingest.endpoint import Buffer, OverflowPolicy, Spooled

ROOM: Final = "spool"
STEPS: Final = (
    """
    CREATE TABLE spooled (
        source TEXT NOT NULL,
        number INTEGER NOT NULL,
        records INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        at INTEGER NOT NULL,
        id TEXT,
        content BLOB NOT NULL,
        gone INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (source, number)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX spooled_id ON spooled (source, id) WHERE id IS NOT NULL;
    CREATE INDEX spooled_here ON spooled (source, number) WHERE NOT gone;
    CREATE TABLE spool_readers (
        source TEXT NOT NULL,
        dataset BLOB NOT NULL,
        number INTEGER NOT NULL,
        PRIMARY KEY (source, dataset)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE spool_numbers (source TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE spool_drops (source TEXT PRIMARY KEY, records INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    """,
)
"""The steps that make the tables; steps are added at the end and never changed."""
TABLES: Final = ("spooled", "spool_readers", "spool_numbers", "spool_drops")
_RESTORED: Final = 10**9
RECEIPTS: Final = 10_000
"""Pushes of a Source that are remembered after they were taken in, so that they count once."""
_FULL: Final = "endpoint-full"


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a push."""

    number: int
    """Number of the push: pushes of a Source are numbered from 1, in the order of arrival."""
    records: int
    bytes: int
    repeated: bool = False
    """Whether a push with this id came before."""
    durable: bool = True


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The pushes that wait for a dataset, or all that are kept."""

    records: int = 0
    bytes: int = 0
    pushes: int = 0
    oldest: Instant | None = None
    first: int = 0
    last: int = 0
    dropped: int = 0
    """Records that a full buffer dropped before any dataset took them, since the Source exists."""


class PushSpool:
    """Keeps the pushed bodies of all Sources of a node."""

    def __init__(self, database: Database, folder: Path, limit: Callable[[], int]) -> None:
        """``limit``: returns the bytes that may wait for one Source without a buffer."""
        self._database, self._folder, self._limit = database, folder, limit
        self._lock = threading.Lock()
        self._holds = 0
        self._held: list[Path] = []
        """Files that are not needed any more, but stay while a backup copies them."""

    def add(
        self, source: str, data: bytes, records: int, now: Instant, buffer: Buffer | None, push_id: str | None = None
    ) -> Receipt:
        """Keeps a push and returns its receipt. ``source``: the id of the Source.

        Raises Refused if too much waits, Conflict if the id was used for other content, Environment for disk errors.
        """
        content = Multihash.sha3_256(data)
        with self._lock:
            known = self._known(source, push_id, content)
            if known is not None:
                return known
            self._make_room(source, len(data), records, buffer)
            with self._database.read() as connection:
                last = connection.execute("SELECT number FROM spool_numbers WHERE source = ?", (source,)).fetchone()
            number = 1 if last is None else last[0] + 1
            self._write(self._path(source, number), data, is_durable=buffer is None)
            with self._database.write() as connection:
                connection.execute("INSERT OR REPLACE INTO spool_numbers VALUES (?, ?)", (source, number))
                connection.execute(
                    "INSERT INTO spooled (source, number, records, bytes, at, id, content)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (source, number, records, len(data), now, push_id, content),
                )
        return Receipt(number=number, records=records, bytes=len(data), durable=buffer is None)

    def after(self, source: str, number: int, most: int, most_bytes: int) -> tuple[Sequence[Spooled], bool]:
        """Lists pushes after a number, in order, and whether there are more; at least one if there is any."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT number, bytes, at FROM spooled WHERE source = ? AND NOT gone AND number > ? ORDER BY number"
                " LIMIT ?",
                (source, number, most + 1),
            ).fetchall()
        found: list[Spooled] = []
        total = 0
        for each, count, at in rows[:most]:
            total += count
            if found and total > most_bytes:
                break
            found.append(Spooled(number=each, path=self._path(source, each), bytes=count, at=Instant(at)))
        return found, len(found) < len(rows)

    def reads(self, source: str, dataset: DatasetId, number: int) -> None:
        """Records that a dataset has taken all pushes up to a number, and frees those that all datasets have."""
        with self._lock, self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO spool_readers VALUES (?, ?, ?)", (source, dataset, number))
            gone = self._free(connection, source)
        self._unlink(source, gone)

    def waiting(self, source: str, dataset: DatasetId | None = None) -> Backlog:
        """Counts the pushes that wait for a dataset; without one, all that are kept."""
        with self._database.read() as connection:
            after = -1
            if dataset is not None:
                row = connection.execute(
                    "SELECT number FROM spool_readers WHERE source = ? AND dataset = ?", (source, dataset)
                ).fetchone()
                after = -1 if row is None else row[0]
            records, total, pushes, oldest, first, last = connection.execute(
                "SELECT coalesce(sum(records), 0), coalesce(sum(bytes), 0), count(*), min(at), min(number), max(number)"
                " FROM spooled WHERE source = ? AND NOT gone AND number > ?",
                (source, after),
            ).fetchone()
            drops = connection.execute("SELECT records FROM spool_drops WHERE source = ?", (source,)).fetchone()
        return Backlog(
            records=records, bytes=total, pushes=pushes, oldest=None if oldest is None else Instant(oldest),
            first=first or 0, last=last or 0, dropped=0 if drops is None else drops[0],
        )  # fmt: skip

    def drop(self, source: str, number: int) -> int:
        """Drops one push that waits, as no dataset can take it. Returns its number of records. Raises NotFound."""
        with self._lock:
            with self._database.write() as connection:
                row = connection.execute(
                    "SELECT records FROM spooled WHERE source = ? AND number = ? AND NOT gone", (source, number)
                ).fetchone()
                if row is None:
                    raise NotFound(
                        f"no push #{number} waits", rule="endpoint-push", hint="odfctl source show NAME lists them"
                    )
                self._count_drops(connection, source, row[0])
                self._mark(connection, source, [number])
            self._unlink(source, [number])
        return int(row[0])

    def drop_all(self, source: str) -> int:
        """Drops all pushes that wait. Returns their number of records."""
        with self._lock:
            with self._database.write() as connection:
                rows = connection.execute(
                    "SELECT number, records FROM spooled WHERE source = ? AND NOT gone", (source,)
                ).fetchall()
                self._count_drops(connection, source, sum(row[1] for row in rows))
                self._mark(connection, source, [row[0] for row in rows])
            self._unlink(source, [row[0] for row in rows])
        return sum(row[1] for row in rows)

    def remove(self, source: str) -> None:
        """Deletes all pushes and records of a removed Source."""
        with self._lock:
            with self._database.write() as connection:
                for table in TABLES:
                    connection.execute(f"DELETE FROM {table} WHERE source = ?", (source,))  # noqa: S608
            shutil.rmtree(self._folder / source, ignore_errors=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps each file that the database names now, while the block runs: a backup copies the database first."""
        with self._lock:
            self._holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1
                gone, self._held = ([], self._held) if self._holds else (self._held, [])
                for each in gone:
                    each.unlink(missing_ok=True)

    def sweep(self) -> int:
        """Removes files that a killed node left; returns their number. The cost grows with the waiting pushes."""
        with self._lock, self._database.read() as connection:
            rows = connection.execute("SELECT source, number FROM spooled WHERE NOT gone")
            named = {self._path(source, number) for source, number in rows}
            left = [each for each in self._folder.glob("*/*") if each not in named]
            for each in left:
                each.unlink(missing_ok=True)
        return len(left)

    def _known(self, source: str, push_id: str | None, content: Multihash) -> Receipt | None:
        if push_id is None:
            return None
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT number, records, bytes, content FROM spooled WHERE source = ? AND id = ?", (source, push_id)
            ).fetchone()
        if row is None:
            return None
        if row[3] != content:
            hint = "give each push an id of its own"
            raise Conflict(f"the push {push_id[:80]!r} came before with other content", rule="push-id", hint=hint)
        return Receipt(number=row[0], records=row[1], bytes=row[2], repeated=True)

    def _make_room(self, source: str, count: int, records: int, buffer: Buffer | None) -> None:
        held = self.waiting(source)
        if buffer is None:
            limit = self._limit()
            if held.bytes + count > limit:
                raise Refused(
                    f"{plural(held.pushes, 'push', 'pushes')} of {size(held.bytes)} wait: {size(limit)} is the most",
                    rule=_FULL,
                    hint="have a dataset take them: odfctl pull NAME --source SOURCE; limits.spool-bytes sets the most",
                )
            return
        over = held.records + records - buffer.most
        if over <= 0:
            return
        if buffer.overflow is OverflowPolicy.REJECT or records > buffer.most:
            raise Refused(
                f"{plural(held.records, 'record')} wait, and the buffer holds {buffer.most:,}",
                rule=_FULL,
                hint="push again later; overflowPolicy: DropOldest drops the oldest instead",
            )
        self._drop_oldest(source, over)

    def _drop_oldest(self, source: str, records: int) -> None:
        with self._database.write() as connection:
            rows = connection.execute(
                "SELECT number, records FROM spooled WHERE source = ? AND NOT gone ORDER BY number", (source,)
            )
            numbers, total = [], 0
            for number, count in rows:
                if total >= records:
                    break
                numbers.append(number)
                total += count
            self._count_drops(connection, source, total)
            self._mark(connection, source, numbers)
        self._unlink(source, numbers)

    def _count_drops(self, connection: sqlite3.Connection, source: str, records: int) -> None:
        connection.execute(
            "INSERT INTO spool_drops VALUES (?, ?) ON CONFLICT DO UPDATE SET records = records + excluded.records",
            (source, records),
        )

    def _free(self, connection: sqlite3.Connection, source: str) -> list[int]:
        """Marks the pushes that all readers have taken, and deletes old receipts. Returns the marked numbers."""
        (least,) = connection.execute("SELECT min(number) FROM spool_readers WHERE source = ?", (source,)).fetchone()
        rows = connection.execute(
            "SELECT number FROM spooled WHERE source = ? AND NOT gone AND number <= ?", (source, least)
        )
        numbers = [row[0] for row in rows]
        self._mark(connection, source, numbers)
        connection.execute(
            "DELETE FROM spooled WHERE source = ?1 AND gone"
            " AND number <= (SELECT number FROM spool_numbers WHERE source = ?1) - ?2",
            (source, RECEIPTS),
        )
        return numbers

    def _mark(self, connection: sqlite3.Connection, source: str, numbers: Sequence[int]) -> None:
        connection.executemany(
            "UPDATE spooled SET gone = 1 WHERE source = ? AND number = ?", ((source, each) for each in numbers)
        )

    def _unlink(self, source: str, numbers: Sequence[int]) -> None:
        for each in numbers:
            if self._holds:
                self._held.append(self._path(source, each))
            else:
                self._path(source, each).unlink(missing_ok=True)

    def _path(self, source: str, number: int) -> Path:
        return self._folder / source / f"{number:012d}"

    def _write(self, path: Path, data: bytes, *, is_durable: bool) -> None:
        """Writes a file so that it is whole under its name or absent; overwrites a number that no row has."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            waiting = path.with_suffix(".new")
            with waiting.open("wb") as file:
                file.write(data)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            waiting.replace(path)
            if is_durable:
                folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            raise Environment(f"cannot keep a push: {error.strerror}", rule="disk", hint="is the disk full?") from error


def forget_reader(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Forgets a deleted dataset as a reader, so that it keeps no pushes waiting."""
    connection.execute("DELETE FROM spool_readers WHERE dataset = ?", (dataset,))


def skip_numbers(connection: sqlite3.Connection) -> None:
    """Skips numbers, after a restore from a backup, so that later pushes get none that was used before.

    Chains may record that they took pushes which came after the backup; new ones with the same numbers would be
    skipped.
    """
    connection.execute("UPDATE spool_numbers SET number = number + ?", (_RESTORED,))
