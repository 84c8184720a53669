"""Keeps pushes to the endpoints of Sources until their datasets have taken them in.

A push has a number, in the order of arrival; a dataset's chain records up to which number it has taken. Without a
buffer a push is on the disk before it is answered, and stays until every dataset that reads the Source has it. With a
buffer ``Memory`` the answer does not wait for the disk, and if too many records wait, pushes are refused or the oldest
are dropped. A push that comes again with its id gets the same answer.

Small bodies are rows of the database, and become files when a dataset takes them; large ones are files from the start.
Pushes that come at the same time, in one call or from several threads, get their numbers, and are made durable, in one
transaction. Blocking; safe to use from any thread. Spec: RFC-018, Source, ``RestEndpoint``.
"""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from chain.errors import Conflict, Environment, Fault, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store import durable
from chain.store.database import Database
from chain.store.seals import ROW_DAMAGED
from chain.wording import plural, size

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
    """
    CREATE TABLE spool_bodies (
        source TEXT NOT NULL,
        number INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (source, number)
    ) STRICT, WITHOUT ROWID;
    """,
)
"""The steps that make the tables; steps are added at the end and never changed."""
TABLES: Final = ("spooled", "spool_readers", "spool_numbers", "spool_drops", "spool_bodies")
PUSH_DAMAGED: Final = (
    "restore the node from a backup; or delete the Source, make it again, and push again what is not in"
)
_BODIES: Final = "SELECT source, number, body, content FROM spool_bodies JOIN spooled USING (source, number)"
_RESTORED: Final = 10**9
SMALL: Final = 16 << 10
"""Most bytes of a body that is kept in the database: the disk then does one thing for many pushes, where each file has
to be made durable by itself."""
_MADE: Final = ".made"
"""Suffix of a file that was made of a body in the database; it can be made again."""
RECEIPTS: Final = 10_000
"""Pushes of a Source that are remembered after they were taken in, so that they count once."""
_FULL: Final = "endpoint-full"


class OverflowPolicy(Enum):
    """The way of a full buffer to treat new records."""

    REJECT = "Reject"
    DROP_OLDEST = "DropOldest"


class Buffer(NamedTuple):
    """The terms of a buffer: how many records may wait, and how it treats further ones."""

    most: int
    overflow: OverflowPolicy


class Spooled(msgspec.Struct, frozen=True, kw_only=True):
    """One push that waits to be taken in."""

    number: int
    path: Path
    bytes: int
    at: Instant


class Pushed(NamedTuple):
    """A body that was pushed to a Source, and its number of records."""

    source: str
    """The id of the Source."""
    data: bytes
    records: int
    buffer: Buffer | None = None
    id: str | None = None


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
    """A push until it has its answer."""

    pushed: Pushed
    at: Instant
    content: Multihash
    staged: Path | None = None
    """The file of a large body; ``None``: the body is small."""
    answer: Receipt | Exception | None = None

    @property
    def source(self) -> str:
        return self.pushed.source

    @property
    def id(self) -> str | None:
        return self.pushed.id

    @property
    def bytes(self) -> int:
        return len(self.pushed.data)


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
        (answer,) = self.add_all([Pushed(source, data, records, buffer, push_id)], now)
        if isinstance(answer, Receipt):
            return answer
        raise answer

    def add_all(self, pushed: Sequence[Pushed], now: Instant) -> list[Receipt | Exception]:
        """Keeps pushes together; returns for each its receipt, or what ``add`` would raise."""
        pushes = [_Push(each, now, Multihash.sha3_256(each.data)) for each in pushed]
        try:
            self._prepare(pushes)
            waiting = [push for push in pushes if push.answer is None]
            with self._queue_lock:
                self._queue.extend(waiting)
            if waiting:
                with self._lock:
                    if any(push.answer is None for push in waiting):  # else somebody who had the lock kept them
                        self._keep_queued()
        finally:
            for push in pushes:
                if push.staged is not None:
                    push.staged.unlink(missing_ok=True)
        return [push.answer for push in pushes if push.answer is not None]

    def _prepare(self, pushes: Sequence[_Push]) -> None:
        """Answers pushes that came before or have no room, and writes files of the large bodies."""
        with ExitStack() as opened:
            connection = opened.enter_context(self._database.read()) if any(push.id for push in pushes) else None
            for push in pushes:
                try:
                    if connection is not None:
                        push.answer = self._find_known(connection, push)
                    if push.answer is None and push.pushed.buffer is None:
                        # Before anything is written in vain; what is counted here without the lock is not kept.
                        self._check_room(self._held.get(push.source) or self.waiting(push.source), push.bytes)
                    if push.answer is None and push.bytes > SMALL:
                        push.staged = self._stage(push)
                except Fault as fault:
                    push.answer = fault

    def _keep_queued(self) -> None:
        """Keeps all pushes that wait in the queue; what makes them durable is done once for those without a buffer."""
        with self._queue_lock:
            queued, self._queue = self._queue, []
        try:
            for push in queued:
                if push.pushed.buffer is not None:
                    self._keep([push])
            self._keep([push for push in queued if push.pushed.buffer is None])
        except Exception as error:
            for push in queued:
                push.answer = push.answer or error
            raise

    def _keep(self, pushes: Sequence[_Push]) -> None:
        """Gives pushes their numbers, then records them in one transaction. Sets the answers."""
        named: dict[tuple[str, str | None], _Push] = {}
        again = {
            push: None for push in pushes if push.id and named.setdefault((push.source, push.id), push) is not push
        }
        kept: list[tuple[_Push, int]] = []
        for push, number in self._number(push for push in pushes if push not in again):
            try:
                if push.staged is not None:
                    with _writing():
                        # Before its row: the file of a push that a crash keeps from its row is swept at the next start.
                        push.staged.replace(self._path(push.source, number))
            except Fault as fault:
                push.answer = fault
                self._held.pop(push.source, None)
                continue
            kept.append((push, number))
        try:
            self._record(kept)
        except Fault as fault:
            for push, _ in kept:
                push.answer = fault
                self._held.pop(push.source, None)
        for push in again:
            self._keep([push])  # the database knows the first by now, or why not

    def _number(self, pushes: Iterable[_Push]) -> list[tuple[_Push, int]]:
        """Returns the pushes that are new and have room, with their numbers; sets the answers of the others."""
        numbers: dict[str, int] = {}
        found: list[tuple[_Push, int]] = []
        for push in pushes:
            try:
                # Each in a read of its own: room may be made in a write.
                with self._database.read() as connection:
                    push.answer = self._find_known(connection, push)
                    last = numbers.get(push.source) or self._last(connection, push.source)
                if push.answer is not None:
                    continue
                self._make_room(push)
            except Fault as fault:
                push.answer = fault
                continue
            numbers[push.source] = last + 1
            found.append((push, last + 1))
            self._count(push)
        return found

    def _record(self, kept: Sequence[tuple[_Push, int]]) -> None:
        """Makes the names of files durable, then writes all rows, and sets the answers. Raises Environment."""
        if not kept:
            return
        with _writing():
            folders = {push.source for push, _ in kept if push.staged is not None and push.pushed.buffer is None}
            for source in folders:
                durable.sync_folder(self._folder / source)
        with self._database.write() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO spool_numbers VALUES (?, ?)",
                {push.source: number for push, number in kept}.items(),
            )
            connection.executemany(
                "INSERT INTO spooled (source, number, records, bytes, at, id, content) VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (push.source, number, push.pushed.records, push.bytes, push.at, push.id, push.content)
                    for push, number in kept
                ],
            )
            connection.executemany(
                "INSERT INTO spool_bodies VALUES (?, ?, ?)",
                [(push.source, number, push.pushed.data) for push, number in kept if push.staged is None],
            )
        for push, number in kept:
            pushed = push.pushed
            push.answer = Receipt(
                number=number, records=pushed.records, bytes=push.bytes, durable=pushed.buffer is None
            )

    def _last(self, connection: sqlite3.Connection, source: str) -> int:
        row = connection.execute("SELECT number FROM spool_numbers WHERE source = ?", (source,)).fetchone()
        return 0 if row is None else int(row[0])

    def _held_of(self, source: str) -> Backlog:
        """Returns what is kept of a Source, which is counted once, and again after pushes were freed."""
        held = self._held.get(source)
        if held is None:
            held = self._held[source] = self.waiting(source)
        return held

    def _count(self, push: _Push) -> None:
        held = self._held_of(push.source)
        self._held[push.source] = msgspec.structs.replace(
            held, records=held.records + push.pushed.records, bytes=held.bytes + push.bytes, pushes=held.pushes + 1
        )

    def count_dropped(self, source: str) -> int:
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
        return self._with_files(source, found), len(found) < len(rows)

    def _with_files(self, source: str, found: Sequence[Spooled]) -> list[Spooled]:
        """Returns the pushes with files of all; makes those of bodies in the database. Raises Environment."""
        if not found:
            return []
        with self._database.read() as connection:
            bodies = bodies_between(connection, source, found[0].number, found[-1].number)
        made = []
        with _writing():
            (self._folder / source).mkdir(mode=0o700, parents=True, exist_ok=True)
            for each in found:
                body = bodies.get(each.number)
                path = each.path if body is None else each.path.with_suffix(_MADE)
                if body is not None and not _has(path, len(body)):
                    own = path.with_suffix(f".{secrets.token_hex(8)}{_MADE}")  # another dataset may make it too
                    own.write_bytes(body)
                    own.replace(path)
                made.append(msgspec.structs.replace(each, path=path))
        return made

    def reads(self, source: str, dataset: DatasetId, number: int) -> None:
        """Records that a dataset has taken all pushes up to a number, and frees those that all datasets have."""
        with self._lock, self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO spool_readers VALUES (?, ?, ?)", (source, dataset, number))
            gone = self._free(connection, source)
        # After the commit: a crash in between leaves files that the next start sweeps, and never a row without its
        # file.
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
    def hold_files(self) -> Iterator[None]:
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
            left = [path for path in self._folder.glob("*/*") if path not in named]
            for each in left:
                each.unlink(missing_ok=True)
        return sum(each.suffix != _MADE for each in left)

    def _find_known(self, connection: sqlite3.Connection, push: _Push) -> Receipt | None:
        if push.id is None:
            return None
        row = connection.execute(
            "SELECT number, records, bytes, content FROM spooled WHERE source = ? AND id = ?", (push.source, push.id)
        ).fetchone()
        if row is None:
            return None
        if row[3] != push.content:
            raise other_content(push.id)
        return Receipt(number=row[0], records=row[1], bytes=row[2], repeated=True)

    def _make_room(self, push: _Push) -> None:
        held, buffer, records = self._held_of(push.source), push.pushed.buffer, push.pushed.records
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
        # NULL while no dataset reads the Source; no number is at most NULL, so nothing is freed.
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
            "UPDATE spooled SET gone = 1 WHERE source = ? AND number = ?", ((source, number) for number in numbers)
        )
        connection.executemany(
            "DELETE FROM spool_bodies WHERE source = ? AND number = ?", ((source, number) for number in numbers)
        )

    def _unlink(self, source: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            path = self._path(source, number)
            path.with_suffix(_MADE).unlink(missing_ok=True)
            if self._holds:
                self._unneeded.append(path)
            else:
                path.unlink(missing_ok=True)

    def _path(self, source: str, number: int) -> Path:
        return self._folder / source / f"{number:012d}"

    def _stage(self, push: _Push) -> Path:
        """Writes a file under a name of its own, which no push has. Callers do so at the same time."""
        staged = self._folder / push.source / f"{secrets.token_hex(8)}.new"
        with _writing():
            durable.make_folder(staged.parent, 0o700)
            with staged.open("wb") as file:
                file.write(push.pushed.data)
                if push.pushed.buffer is None:
                    file.flush()
                    durable.sync(file.fileno())
        return staged


def _has(path: Path, count: int) -> bool:
    return path.exists() and path.stat().st_size == count


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Environment(
            f"cannot keep a push: {error.strerror}", rule="disk", hint="check that the disk is not full"
        ) from error


def forget_reader(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Forgets a deleted dataset as a reader, so that it keeps no pushes waiting."""
    connection.execute("DELETE FROM spool_readers WHERE dataset = ?", (dataset,))


def skip_numbers(connection: sqlite3.Connection) -> None:
    """Skips numbers, after a restore from a backup, so that later pushes get none that was used before.

    Chains may record that they took pushes which came after the backup; new ones with the same numbers would be
    skipped.
    """
    connection.execute("UPDATE spool_numbers SET number = number + ?", (_RESTORED,))


def other_content(push_id: str | None) -> Conflict:
    """Makes the fault of an id that was used for another body."""
    hint = "give each push an id of its own"
    return Conflict(
        f"the push {(push_id or '')[:80]!r} was received before with other content", rule="push-id", hint=hint
    )


def bodies_between(connection: sqlite3.Connection, source: str, first: int, last: int) -> dict[int, bytes]:
    """Returns the bodies in the database of some pushes, by number. Raises Environment for one that is damaged."""
    rows = connection.execute(f"{_BODIES} WHERE source = ? AND number BETWEEN ? AND ?", (source, first, last))
    bodies = {}
    for _, number, body, content in rows:
        if Multihash.sha3_256(body) != content:
            raise Environment(f"{_name_of(source, number)} is damaged on disk", rule=ROW_DAMAGED, hint=PUSH_DAMAGED)
        bodies[number] = body
    return bodies


def damaged_bodies(connection: sqlite3.Connection) -> Iterator[str]:
    """Yields the names of pushes whose bodies in the database are not what was pushed."""
    for source, number, body, content in connection.execute(_BODIES):
        if Multihash.sha3_256(body) != content:
            yield f"{_name_of(source, number)} of spool_bodies"


def _name_of(source: str, number: int) -> str:
    return f"push {number:,} to {source}"
