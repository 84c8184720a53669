"""Keeps pushes to the endpoints of Sources until their datasets have taken them in.

A push is one file with a number, in the order of arrival; a dataset's chain records up to which number it has taken.
Without a buffer a push is on the disk before it is answered, and stays until every dataset that reads the Source has
it. With a buffer ``Memory`` the answer does not wait for the disk, and if too many records wait, pushes are refused or
the oldest are dropped. A push that comes again with its id gets the same answer.

Pushes that come at the same time write their files at the same time; the first that has the lock gives numbers to all
that wait, and makes their names and rows durable at once. Blocking; safe to use from any thread. Spec: RFC-018, Source,
``RestEndpoint``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Conflict, Environment, Fault, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store.database import Database
from chain.store.layout import sync_folder
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


@dataclass(slots=True, eq=False)
class _Push:
    """A push whose file is written, until it has its number."""

    source: str
    bytes: int
    records: int
    at: Instant
    buffer: Buffer | None
    id: str | None
    content: Multihash
    staged: Path = field(default_factory=Path)
    answer: Receipt | BaseException | None = None


class PushSpool:
    """Keeps the pushed bodies of all Sources of a node."""

    def __init__(self, database: Database, folder: Path, limit: Callable[[], int]) -> None:
        """``limit``: returns the bytes that may wait for one Source without a buffer."""
        self._database, self._folder, self._limit = database, folder, limit
        self._lock = threading.Lock()
        self._queue_lock = threading.Lock()
        self._queue: list[_Push] = []
        self._held: dict[str, Backlog] = {}
        """What is kept, by Source; of those alone whose pushes were counted since the last were freed."""
        self._holds = 0
        self._unneeded: list[Path] = []
        """Files that are not needed any more, but stay while a backup copies them."""

    def add(
        self, source: str, data: bytes, records: int, now: Instant, buffer: Buffer | None, push_id: str | None = None
    ) -> Receipt:
        """Keeps a push and returns its receipt. ``source``: the id of the Source.

        Raises Refused if too much waits, Conflict if the id was used for other content, Environment for disk errors.
        """
        push = _Push(source, len(data), records, now, buffer, push_id, Multihash.sha3_256(data))
        known = self._known(source, push_id, push.content)
        if known is not None:
            return known
        if buffer is None:
            # Before anything is written in vain; what is counted here without the lock is not kept.
            self._check_room(self._held.get(source) or self.waiting(source), len(data))
        push.staged = self._stage(source, data, is_durable=buffer is None)
        try:
            with self._queue_lock:
                self._queue.append(push)
            with self._lock:
                if push.answer is None:  # nobody who had the lock meanwhile kept it
                    self._keep_queued()
        finally:
            push.staged.unlink(missing_ok=True)
        if isinstance(push.answer, Receipt):
            return push.answer
        assert push.answer is not None
        raise push.answer

    def _keep_queued(self) -> None:
        """Keeps all pushes that wait in the queue; what makes them durable is done once for those without a buffer."""
        with self._queue_lock:
            queued, self._queue = self._queue, []
        try:
            for push in queued:
                if push.buffer is not None:
                    self._keep([push])
            self._keep([push for push in queued if push.buffer is None])
        except BaseException as error:
            for push in queued:
                push.answer = push.answer or error
            raise

    def _keep(self, pushes: Sequence[_Push]) -> None:
        """Gives files their numbers, then records them in one transaction. Sets the answers."""
        numbers: dict[str, int] = {}
        named: dict[tuple[str, str | None], _Push] = {}
        kept: list[tuple[_Push, int]] = []
        again: list[_Push] = []
        for push in pushes:
            try:
                first = named.get((push.source, push.id)) if push.id is not None else None
                if first is not None:
                    if first.content != push.content:
                        raise _other_content(push.id)
                    again.append(push)
                    continue
                push.answer = self._known(push.source, push.id, push.content)
                if push.answer is not None:
                    continue
                self._make_room(push)
                number = numbers.get(push.source) or self._next(push.source)
                with _writing():
                    push.staged.replace(self._path(push.source, number))
            except Fault as fault:
                push.answer = fault
                continue
            numbers[push.source] = number + 1
            named[push.source, push.id] = push
            kept.append((push, number))
            self._count(push)
        try:
            self._record(kept)
        except Fault as fault:
            for push, _ in kept:
                push.answer = fault
                self._held.pop(push.source, None)
        for push in again:
            answer = named[push.source, push.id].answer
            push.answer = msgspec.structs.replace(answer, repeated=True) if isinstance(answer, Receipt) else answer

    def _record(self, kept: Sequence[tuple[_Push, int]]) -> None:
        """Makes the names of files durable, then writes their rows, and sets the answers. Raises Environment."""
        if not kept:
            return
        with _writing():
            for source in {push.source for push, _ in kept if push.buffer is None}:
                sync_folder(self._folder / source)
        with self._database.write() as connection:
            for push, number in kept:
                connection.execute("INSERT OR REPLACE INTO spool_numbers VALUES (?, ?)", (push.source, number))
                connection.execute(
                    "INSERT INTO spooled (source, number, records, bytes, at, id, content)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (push.source, number, push.records, push.bytes, push.at, push.id, push.content),
                )
        for push, number in kept:
            push.answer = Receipt(number=number, records=push.records, bytes=push.bytes, durable=push.buffer is None)

    def _next(self, source: str) -> int:
        with self._database.read() as connection:
            last = connection.execute("SELECT number FROM spool_numbers WHERE source = ?", (source,)).fetchone()
        return 1 if last is None else int(last[0]) + 1

    def _held_of(self, source: str) -> Backlog:
        """Returns what is kept of a Source, which is counted once, and again after pushes were freed."""
        held = self._held.get(source)
        if held is None:
            held = self._held[source] = self.waiting(source)
        return held

    def _count(self, push: _Push) -> None:
        held = self._held_of(push.source)
        self._held[push.source] = msgspec.structs.replace(
            held, records=held.records + push.records, bytes=held.bytes + push.bytes, pushes=held.pushes + 1
        )

    def dropped(self, source: str) -> int:
        """Returns the number of records that a full buffer dropped, since the Source exists."""
        with self._database.read() as connection:
            row = connection.execute("SELECT records FROM spool_drops WHERE source = ?", (source,)).fetchone()
        return 0 if row is None else int(row[0])

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
            self._held.pop(source, None)
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
                gone, self._unneeded = ([], self._unneeded) if self._holds else (self._unneeded, [])
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
            raise _other_content(push_id)
        return Receipt(number=row[0], records=row[1], bytes=row[2], repeated=True)

    def _make_room(self, push: _Push) -> None:
        held, buffer, records = self._held_of(push.source), push.buffer, push.records
        if buffer is None:
            self._check_room(held, push.bytes)
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
        self._drop_oldest(push.source, over)

    def _check_room(self, held: Backlog, count: int) -> None:
        limit = self._limit()
        if held.bytes + count > limit:
            raise Refused(
                f"{plural(held.pushes, 'push', 'pushes')} of {size(held.bytes)} wait: {size(limit)} is the most",
                rule=_FULL,
                hint="have a dataset take them: odfctl pull NAME --source SOURCE; limits.spool-bytes sets the most",
            )

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
        self._held.pop(source, None)
        connection.executemany(
            "UPDATE spooled SET gone = 1 WHERE source = ? AND number = ?", ((source, each) for each in numbers)
        )

    def _unlink(self, source: str, numbers: Sequence[int]) -> None:
        for each in numbers:
            if self._holds:
                self._unneeded.append(self._path(source, each))
            else:
                self._path(source, each).unlink(missing_ok=True)

    def _path(self, source: str, number: int) -> Path:
        return self._folder / source / f"{number:012d}"

    def _stage(self, source: str, data: bytes, *, is_durable: bool) -> Path:
        """Writes a file under a name of its own, which no push has. Callers do so at the same time."""
        staged = self._folder / source / f"{secrets.token_hex(8)}.new"
        with _writing():
            staged.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with staged.open("wb") as file:
                file.write(data)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
        return staged


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Environment(f"cannot keep a push: {error.strerror}", rule="disk", hint="is the disk full?") from error


def _other_content(push_id: str | None) -> Conflict:
    hint = "give each push an id of its own"
    return Conflict(f"the push {(push_id or '')[:80]!r} came before with other content", rule="push-id", hint=hint)


def forget_reader(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Forgets a deleted dataset as a reader, so that it keeps no pushes waiting."""
    connection.execute("DELETE FROM spool_readers WHERE dataset = ?", (dataset,))


def skip_numbers(connection: sqlite3.Connection) -> None:
    """Skips numbers, after a restore from a backup, so that later pushes get none that was used before.

    Chains may record that they took pushes which came after the backup; new ones with the same numbers would be
    skipped.
    """
    connection.execute("UPDATE spool_numbers SET number = number + ?", (_RESTORED,))
