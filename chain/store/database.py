"""Opens the node's one SQLite file, shared by all data that must commit together: chains, ledger, resources, events.

A ``Database`` is opened once per process and closed at the end. One writing connection stands behind a lock; reading
connections come from a small pool, see a snapshot, and never wait for the writer (WAL). Other modules ("rooms") create
their own tables through ``migrate``; the only table of this module records the versions of theirs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from chain.errors import Environment

_READERS: Final = 8
"""Idle reading connections kept; a burst opens more and closes them again."""
_BUSY_MS: Final = 5_000
_CACHE_KIB: Final = 16_384
"""Cache of the writing connection in KiB; further pages of a large transaction go to the log early."""
_LARGE_CACHE_KIB: Final = 65_536
"""The same during a transaction that touches most pages of large indexes, to avoid rereading them from the log."""
_READER_CACHE_KIB: Final = 2_048
"""The same for each reading connection. Caches only grow with the file; the kernel caches it too."""
_WAL_LIMIT: Final = 64 << 20
"""Bytes to which the write-ahead log is cut back after a large transaction."""
_LOG_PAGES: Final = 16
"""Place in the index of the log (``-shm``, mxFrame of SQLite's WAL-index format) of the number of its valid pages."""
_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS versions (room TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID
"""
_WAY_OUT: Final = (
    "stop the node and restore the file from a backup; without one move it away, start, and mirror or import again:"
    " keys and large objects stay, names and intents are lost"
)
_SCHEMA: Final = "SELECT name, type, sql FROM sqlite_master"
_EVERYTHING: Final = "NULL"
_EVENTS: Final = (("INSERT", ("NEW",)), ("UPDATE", ("NEW", "OLD")), ("DELETE", ("OLD",)))
"""The kinds of writes, and the rows that a trigger sees for each."""
_FULL: Final = ("disk-full", "free some space; what was committed is safe")
_HINTS: Final = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,  # no room for the index of the log
    sqlite3.SQLITE_READONLY: ("disk-read-only", "make the state directory writable for this user"),
    sqlite3.SQLITE_PERM: ("disk-permission", "make the state directory writable for this user"),
    sqlite3.SQLITE_CANTOPEN: (
        "disk-permission",
        "check that the state directory exists, and that this user may write to it",
    ),
    sqlite3.SQLITE_IOERR: ("disk-failure", "look at the kernel's log; the disk may be failing"),
    sqlite3.SQLITE_CORRUPT: ("database-corrupt", _WAY_OUT),
    sqlite3.SQLITE_NOTADB: (
        "database-corrupt",
        "it is no database of a node, or its beginning is damaged: name another state directory, or restore a backup "
        "(odfctl restore)",
    ),
    sqlite3.SQLITE_BUSY: ("database-busy", "another program holds the database: close it"),
    sqlite3.SQLITE_LOCKED: ("database-busy", "another program holds the database: close it"),
}


Step: TypeAlias = str | Callable[[sqlite3.Connection], Sequence[str]]
"""A step of a migration: an SQL script, or a function that converts rows and returns a line for each thing changed."""
BeforeCommit: TypeAlias = Callable[[sqlite3.Connection, Collection[bytes | None]], None]
"""Called before a commit with the connection and the touched keys; ``None`` among them stands for everything."""


RECENT_WRITES: Final = 1024
"""Writes whose keys are remembered for ``changed_since``."""
MAX_KEYS: Final = 1000
"""Keys of one write that are remembered; one with more counts as a change of everything."""
_COPIED: Final = 2048
"""Pages copied at a time."""


class Database:
    """One SQLite file: a writer behind a lock, and a pool of readers. Safe to use from any thread."""

    def __init__(self, path: Path, written: Callable[[], None] | None = None) -> None:
        """``written``: called after each transaction that touched something, by the thread that wrote, unlocked."""
        self.path = path
        self._lock = threading.Lock()
        self.writes = 0
        """Number of transactions written since it was opened: while it stays the same, reads give the same."""
        self._touched: set[bytes | None] = set()
        self._changed: dict[bytes | None, int] = {}
        """Number of the last write that touched each key; ``None`` stands for everything."""
        self._recent: deque[tuple[int, frozenset[bytes | None]]] = deque(maxlen=RECENT_WRITES)
        """Numbers of the last writes, with the keys that each touched."""
        self._forgotten = 0
        """Number of the last write that ``_recent`` no longer has."""
        self._noting = threading.Lock()
        self._before_commit: BeforeCommit | None = None
        self._written = written
        self._migrated: dict[str, tuple[Step, ...]] = {}
        self.brought_forward: list[tuple[str, int, int]] = []
        """Tables that were migrated: room, version before, version now."""
        self.converted: list[str] = []
        """What the functions among the steps changed, a line each."""
        self._idle: deque[sqlite3.Connection] = deque()
        self._is_closed = False
        self.is_full = False
        """Whether the disk was full when it was opened."""
        with self._faults(), contextlib.ExitStack() as refused:
            self._writer = refused.enter_context(contextlib.closing(self._connect(_CACHE_KIB)))
            self._writer.execute("PRAGMA journal_mode = WAL")
            self.recovered: int = self._recover()
            """Pages that the log of a killed process gave back; ``wal.pages_promised`` says how many it should."""
            self._writer.execute("PRAGMA synchronous = FULL")
            # Sealed secrets are replaced and deleted; not every build of SQLite overwrites the pages that held them.
            self._writer.execute("PRAGMA secure_delete = ON")
            self._writer.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
            self._writer.execute(_VERSIONS)
            self._check_schema(self._writer, [("first", (_VERSIONS,))])
            refused.pop_all()

    def _recover(self) -> int:
        """Merges the log, unless the disk is full, which stops no reader; returns the pages in it."""
        try:
            _, pages, _ = self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            self.is_full = True
            with self.path.with_name(f"{self.path.name}-shm").open("rb") as index:
                index.seek(_LOG_PAGES)
                pages = int.from_bytes(index.read(4), sys.byteorder)
        return max(0, int(pages))

    def _connect(self, cache_kib: int) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        # Bytes with a flipped bit may not be UTF-8: they are decoded to some other text, which seals and links reveal.
        connection.text_factory = _text
        connection.execute(f"PRAGMA cache_size = -{cache_kib}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    @contextlib.contextmanager
    def write(self, *, is_large: bool = False) -> Iterator[sqlite3.Connection]:
        """Opens a write transaction, the only one at a time: committed when the block ends, undone when it raises.

        ``is_large``: tens of thousands of rows; it may take more memory. Raises Environment when disk or database fail.
        """
        with self._lock, self._faults(), self._room() if is_large else contextlib.nullcontext():
            self._writer.execute("BEGIN IMMEDIATE")
            self._touched.clear()
            try:
                yield self._writer
                if self._touched and self._before_commit is not None:
                    self._before_commit(self._writer, self._touched)
                self._writer.execute("COMMIT")
                self._note_touched()
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            has_touched = bool(self._touched)
        if has_touched and self._written is not None:
            self._written()

    def _note_touched(self) -> None:
        number = self.writes + 1
        self._changed.update(dict.fromkeys(self._touched, number))
        if self._touched:
            keys = frozenset(self._touched) if len(self._touched) <= MAX_KEYS else frozenset((None,))
            with self._noting:
                if len(self._recent) == RECENT_WRITES:
                    self._forgotten = self._recent[0][0]
                self._recent.append((number, keys))
        self.writes = number

    def watch(self, keys: Mapping[str, str], unwatched: Collection[str], before_commit: BeforeCommit) -> None:
        """Starts to record what writes touch: for tables with ``keys`` the key of each row, for all others everything.

        ``keys``: by table an SQL expression over ``{row}``, a blob, or NULL for everything. ``unwatched``: tables not
        to record. ``before_commit`` writes to these, in each transaction that touched something. To be called after all
        migrations; costs nothing on disk.
        """
        with self._lock, self._faults():
            self._writer.create_function("touched", 1, self._touched.add)
            self._before_commit = before_commit
            named = [name for name, kind, _ in self._writer.execute(_SCHEMA) if kind == "table"]
            tables = {name for name in named if not name.startswith("sqlite_")}.difference(unwatched)
            triggers = [
                f"CREATE TEMP TRIGGER touched_{table}_{event} AFTER {event} ON main.{table} BEGIN"
                f" {' '.join(f'SELECT touched({keys.get(table, _EVERYTHING).format(row=row)});' for row in rows)} END;"
                for table in tables
                for event, rows in _EVENTS
            ]
            self._writer.executescript("\n".join(["BEGIN;", *triggers, "COMMIT;"]))

    def has_changed(self, what: bytes | None, since: int) -> bool:
        """Whether a write after the first ``since`` touched the key ``what``, or everything."""
        return max(self._changed.get(what, 0), self._changed.get(None, 0)) > since

    def changed_since(self, since: int) -> frozenset[bytes] | None:
        """Returns the keys that writes after the first ``since`` touched; ``None`` if it may be any key.

        Costs in proportion to these writes. Reaches back over ``RECENT_WRITES``.
        """
        if self.writes == since:
            return frozenset()
        with self._noting:
            if since < self._forgotten:
                return None
            recent = list(itertools.takewhile(lambda entry: entry[0] > since, reversed(self._recent)))
        touched = frozenset[bytes | None]().union(*(keys for _, keys in recent))
        return None if None in touched else frozenset(key for key in touched if key is not None)

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        self._writer.execute(f"PRAGMA cache_size = -{_LARGE_CACHE_KIB}")
        try:
            yield
        finally:
            self._writer.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._writer.execute("PRAGMA shrink_memory")

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Opens a snapshot to read from, briefly: the log cannot shrink below the oldest. Raises Environment."""
        if self._is_closed:  # a new connection would read a file that its owner gave up, and may have deleted
            raise sqlite3.ProgrammingError(f"{self.path} was closed")
        with self._faults():
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect(_READER_CACHE_KIB)
                connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")
                if len(self._idle) < _READERS and not self._is_closed:
                    self._idle.append(connection)
                else:
                    connection.close()

    def migrate(self, room: str, steps: Sequence[Step]) -> None:
        self.migrate_all([(room, steps)])

    def migrate_all(self, rooms: Iterable[tuple[str, Sequence[Step]]]) -> None:
        """Brings the tables of rooms to their newest version, all or nothing; writes nothing if they have it already.

        Step *n* leads from version *n* to *n + 1*: an SQL script, or a function for what SQL cannot convert. Steps are
        only ever added at the end. Raises Environment when the file was written by a newer program, and what functions
        raise.
        """
        wanted = [(room, tuple(steps)) for room, steps in rooms if self._migrated.get(room) != tuple(steps)]
        if not wanted:
            return
        with self.write() as connection:
            before = dict(connection.execute("SELECT room, version FROM versions"))
            for room, steps in wanted:
                self._migrate(connection, room, steps)
            self._check_schema(connection, wanted)
        self._migrated.update(wanted)
        moved = [(room, before.get(room, 0), len(steps)) for room, steps in wanted] if before else []
        self.brought_forward += [each for each in moved if each[1] != each[2]]

    def _migrate(self, connection: sqlite3.Connection, room: str, steps: Sequence[Step]) -> None:
        row = connection.execute("SELECT version FROM versions WHERE room = ?", (room,)).fetchone()
        version = row[0] if row else 0
        if version > len(steps):
            raise Environment(
                f"{self.path} was written by a newer odfd: its {room} tables have version {version}",
                rule="database-version",
                hint=f"this program knows version {len(steps)}: use the newer program",
            )
        for step in steps[version:]:
            if isinstance(step, str) or row is not None:  # in a new file there is nothing to convert
                self._run(connection, room, step)
        if row is None or version < len(steps):
            connection.execute("INSERT OR REPLACE INTO versions VALUES (?, ?)", (room, len(steps)))

    def _check_schema(self, connection: sqlite3.Connection, rooms: Iterable[tuple[str, tuple[Step, ...]]]) -> None:
        """Compares the stored definitions of tables with ours: SQLite does not notice a column's flipped name."""
        wanted = [(room, _made_by(steps)) for room, steps in rooms]
        names = {name for _, made in wanted for name, *_ in made}
        # Of these only: all others would be decoded too, each by a call of ours.
        there = set(connection.execute(f"{_SCHEMA} WHERE name IN ({', '.join('?' * len(names))})", (*names,)))
        for room, made in wanted:
            if changed := sorted(name for name, *_ in made - there):
                raise self.corrupt(f"the definition of {', '.join(changed)} is not that of the {room} tables any more")

    def _run(self, connection: sqlite3.Connection, room: str, step: Step) -> None:
        try:
            if not isinstance(step, str):
                self.converted += step(connection)
                return
            for statement in _statements(step):
                connection.execute(statement)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            raise Environment(
                f"the {room} tables of {self.path} are not those that its version says: {error}",
                rule="database-schema",
                hint=f"the file is damaged: {_WAY_OUT}",
            ) from error

    def copy_to(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """Copies the current state during writes. ``progress`` gets pages left and pages in all. Raises Environment."""
        with self.read() as connection, contextlib.closing(sqlite3.connect(target)) as copy:
            connection.execute("SELECT 1 FROM versions LIMIT 1").fetchone()  # from here on the snapshot is fixed
            connection.backup(copy, pages=_COPIED, progress=lambda _status, left, total: progress(left, total))
            copy.execute("PRAGMA journal_mode = DELETE")  # makes it a single file; opening it sets the mode again

    def damage(self) -> list[str]:
        """Lists damage that SQLite finds in the file's structure and indexes, by table; reads all of it.

        Bytes of a page that nothing uses are not looked at. Raises Environment if the schema cannot be read.
        """
        # Not by a reader of the pool: its cache may hold a page as it was before the disk lost it.
        with self._faults(), contextlib.closing(self._connect(_READER_CACHE_KIB)) as connection:
            names = [name for name, kind, _ in connection.execute(_SCHEMA) if kind == "table"]
            whole = _problems(connection, "10")
            by_table = (
                [f"{name}: {problem}" for name in names for problem in _problems(connection, f'"{name}"')]
                if whole
                else []
            )
        return by_table or whole

    def reindex(self) -> None:
        """Rebuilds all indexes from their tables. Raises Environment."""
        with self.write() as connection:
            connection.execute("REINDEX")

    def corrupt(self, problem: str) -> Environment:
        """Returns the fault to raise for a problem that ``damage`` found."""
        rule, hint = _HINTS[sqlite3.SQLITE_CORRUPT]
        return Environment(f"the database {self.path} is damaged: {problem}", rule=rule, hint=hint)

    def close(self) -> None:
        """Closes the file after merging the write-ahead log. Nothing may be reading or writing; nothing can later."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
        with self._lock:
            self._writer.close()

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", None)
            known = None if code is None else _HINTS.get(code) or _HINTS.get(code & 0xFF)
            if known is None and code == sqlite3.SQLITE_ERROR and self._is_damaged():
                known = _HINTS[sqlite3.SQLITE_CORRUPT]
            if known is None:
                raise
            rule, hint = known
            raise Environment(f"the database {self.path} failed: {error}", rule=rule, hint=hint) from error
        except UnicodeDecodeError as error:
            # SQLite's own message, which quotes a damaged schema.
            raise self.corrupt("its schema is not text any more") from error

    def _is_damaged(self) -> bool:
        """Whether the file is damaged, so that SQL which always worked fails because the stored schema has changed."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            try:
                return connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]
            except (sqlite3.DatabaseError, UnicodeDecodeError):
                return True


def _problems(connection: sqlite3.Connection, what: str) -> list[str]:
    """Returns what an integrity check finds: of a table, or so many problems of the whole file."""
    try:
        rows = [row[0] for row in connection.execute(f"PRAGMA integrity_check({what})")]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        return [str(error)]
    return [] if rows == ["ok"] else rows


def open_database(path: Path) -> Database:
    """Opens the file, or creates it. Raises Environment."""
    return Database(path)


@functools.cache
def _made_by(steps: tuple[Step, ...]) -> frozenset[tuple[str, str, str | None]]:
    """Returns tables and indexes as these steps define them; functions define none."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for script in steps:
            if isinstance(script, str):
                connection.executescript(script)
        return frozenset(connection.execute(_SCHEMA))


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _statements(script: str) -> Iterator[str]:
    """Yields the statements of a script, to run inside of our transaction (``executescript`` commits first)."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending
