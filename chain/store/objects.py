"""Keeps immutable bytes by sha3-256: large ones as files ``objects/ab/f1620ab…``, small ones in the database.

A small object waits in memory until a commit (or the limit) writes it, so that a commit costs one fsync; a crash loses
only objects that no block names yet. A large one is fsynced and renamed before ``add_file`` returns. ``DiskObjects`` is
made once per process, under the state lock: it deletes leftovers of a crash from the staging folder. It never deletes
on its own, and never hashes a large file again on reading: verification does that.

Some objects are stored in volumes (``chain.store.volumes``). A local file is looked for first, so that volumes cost
local objects nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from chain.errors import NotFound
from chain.multihash import Multihash
from chain.store import bulk_rows, durable, schema
from chain.store.base import NAME_SIZE, ObjectReader, ObjectStore, Step, no_step
from chain.store.database import Database
from chain.store.files import ObjectDamaged, check_file, disk
from chain.store.holds import Holds
from chain.store.volumes import Opener, VolumeIndex, no_volumes

SMALL: Final = 64 << 10
"""Largest object in the database, in bytes: there a whole commit takes one fsync, instead of four for each file."""
_REMOVED: Final = 256
"""Objects that one transaction removes."""
_PENDING_LIMIT: Final = 8 << 20
"""Bytes of small objects that may wait for a commit."""
_ABSENT: Final = (
    "SELECT value FROM json_each(?3) WHERE NOT EXISTS"
    " (SELECT 1 FROM small_objects WHERE name = substr(?1, key * ?2 + 1, ?2))"
)
_INSERT: Final = (
    f"INSERT OR REPLACE INTO small_objects SELECT substr(?1, key * {NAME_SIZE} + 1, {NAME_SIZE}),"  # noqa: S608
    f" {bulk_rows.each('?2')} FROM json_each(?3)"
)


class DiskObjects:
    """The ObjectStore of a node. Safe to use from any thread."""

    def __init__(self, directory: Path, database: Database, step: Step = no_step) -> None:
        """Opens the store, and makes ``directory`` if it does not exist. Raises Environment."""
        self._directory = directory
        self._staging = directory / ".staging"
        self._cache = directory / ".small"
        self._database = database
        self._step = step
        self._lock = threading.Lock()
        self.holds = Holds()
        self._pending: dict[Multihash, bytes] = {}
        self._pending_size = 0
        self._names = itertools.count()
        database.migrate(schema.ROOM, schema.STEPS)
        self.volumes = VolumeIndex(database)
        self.open_volume: Opener = no_volumes
        """Opens objects in volumes; set by the module that opens volumes."""
        with disk(directory):
            for folder in (self._staging, self._cache):
                shutil.rmtree(folder, ignore_errors=True)
                durable.make_folder(folder)

    def stage(self) -> Path:
        return self._staging / f"{next(self._names)}"

    def has(self, name: Multihash) -> bool:
        self.holds.lend(name)
        if name in self._pending or self._file(name).is_file() or self._row_size(name) is not None:
            return True
        return self.volumes.find(name) is not None

    def missing(self, names: Iterable[Multihash]) -> list[Multihash]:
        """Lists missing objects as in the interface; asks the database first, as a missing file costs more to find."""
        written = []
        for name in names:
            self.holds.lend(name)
            # Checked before the snapshot: an object that no longer waits is in the database by then.
            if name not in self._pending:
                written.append(name)
        with self._database.read() as connection:
            absent = sorted(
                place
                for width, joined, numbers in bulk_rows.by_width(written, range(len(written)))
                for (place,) in connection.execute(_ABSENT, (joined, width, numbers)).fetchall()
            )
        names = [written[place] for place in absent if not os.path.isfile(self._place(written[place]))]  # noqa: PTH113
        return self.volumes.absent(names)

    def size(self, name: Multihash) -> int:
        if (data := self._pending.get(name)) is not None:
            return len(data)
        with contextlib.suppress(FileNotFoundError):
            return self._file(name).stat().st_size
        if (size := self._row_size(name)) is not None:
            return size
        if (entry := self.volumes.find(name)) is not None:
            return entry.size
        raise _unknown(name)

    def add_bytes(self, data: bytes) -> Multihash:
        name = Multihash.sha3_256(data)
        self.holds.added(name)
        if len(data) <= SMALL:
            self._add_small(name, data)
            return name
        with staged_in(self) as staged:
            with disk(staged):
                staged.write_bytes(data)
                self._step("object-written")
            return self.add_file(staged)

    def adopt_bytes(self, data: bytes, name: Multihash) -> None:
        """Takes over up to SMALL bytes that are not here yet, and that the caller has hashed to ``name``."""
        self.holds.added(name)
        self._wait(name, data)

    def add_file(self, staged: Path) -> Multihash:
        with disk(staged), staged.open("rb") as file:
            self._step("object-staged")
            name = Multihash.sha3_256_of(file)
        self.adopt(staged, name)
        return name

    def adopt(self, staged: Path, name: Multihash) -> None:
        """Takes over a file on this file system whose bytes the caller has hashed to ``name``."""
        self.holds.added(name)
        with disk(staged), staged.open("rb") as file:
            if os.fstat(file.fileno()).st_size <= SMALL:
                self._add_small(name, file.read())
                staged.unlink()
                return
            self._step("object-hashed")
            os.fchmod(file.fileno(), 0o444)
            durable.sync(file.fileno())
            self._step("object-synced")
            target = self._file(name)
            if not target.parent.is_dir():
                target.parent.mkdir(exist_ok=True)
                self._step("object-folder-made")
                durable.sync_folder(self._directory)
                self._step("object-folder-kept")
            # Renaming over a file of the same name is harmless, and repairs one that was damaged.
            staged.rename(target)
            self._step("object-renamed")
            durable.sync_folder(target.parent)
            self._step("object-folder-synced")

    def read(self, name: Multihash, offset: int = 0, length: int | None = None) -> bytes:
        """Returns ``length`` bytes from ``offset``, fewer at the end. Raises NotFound, Environment."""
        data = self._pending.get(name)
        if data is None:
            data = self._read_file(name, offset, length)
            if data is not None:
                return data
            if (file := self._in_volume(name)) is not None:
                return _part(file, offset, length)
            data = self._row(name)
        return data[offset : None if length is None else offset + length]

    def content(self, name: Multihash) -> Path | bytes:
        """Returns an object as in the interface, without a file for a small one."""
        self.holds.lend(name, path=True)
        self._step("object-lent")
        if (data := self._pending.get(name)) is not None or (data := self._stored_row(name)) is not None:
            return data
        file = self._file(name)
        if file.is_file():
            return file
        if (file_there := self._in_volume(name)) is not None:
            return file_there
        raise _unknown(name)

    def path(self, name: Multihash) -> Path:
        """Returns an object's path, valid until the collection after next; longer readers hold it (``holds``).

        Raises Environment with rule DAMAGED for a small object whose bytes do not have its hash.
        """
        self.holds.lend(name, path=True)
        self._step("object-lent")
        file = self._file(name)
        if file.is_file():
            return file
        data = self._pending.get(name)
        if data is None and (file_there := self._in_volume(name)) is not None:
            return file_there
        if data is None:
            data = self._row(name)
        copy = self._cache / str(name)
        with disk(copy):
            if not copy.is_file() or copy.read_bytes() != data:
                with staged_in(self) as staged:
                    staged.write_bytes(data)
                    staged.chmod(0o444)
                    staged.rename(copy)
        return copy

    def remove(self, name: Multihash) -> None:
        """Removes the object from the files or the database; no effect when it is absent."""
        self.remove_all((name,))

    def remove_all(self, names: Sequence[Multihash]) -> None:
        """Removes several objects, some hundreds in one transaction, since each transaction costs the disk the same."""
        for start in range(0, len(names), _REMOVED):
            self._remove(names[start : start + _REMOVED])

    def _remove(self, names: Sequence[Multihash]) -> None:
        with self._lock:
            for name in names:
                self._pending_size -= len(self._pending.pop(name, b""))
        with self._database.write() as connection:
            connection.executemany("DELETE FROM small_objects WHERE name = ?", ((name,) for name in names))
            self.volumes.leave_in(connection, names)
        self._step("object-row-removed")
        with disk(self._directory):
            for name in names:
                for file in (self._file(name), self._cache / str(name)):
                    file.unlink(missing_ok=True)
        self._step("object-removed")

    def names(self) -> Iterator[Multihash]:
        """Yields every durable object, in no order; for collection and repair."""
        for folder in self._directory.iterdir():
            if len(folder.name) == 2:
                for file in folder.iterdir():
                    yield Multihash.parse(file.name)
        for name in self.volumes.names():
            if not self._file(name).is_file():
                yield name
        with self._database.read() as connection:
            rows = connection.execute("SELECT name FROM small_objects").fetchall()
        yield from (Multihash.from_bytes(row[0]) for row in rows)

    def local_file(self, name: Multihash) -> Path | None:
        """Returns the file of a large object in the state directory, to move it: it does not count as lent."""
        file = self._file(name)
        return file if file.is_file() else None

    def drop_local(self, name: Multihash) -> bool:
        """Deletes the local file of an object in a volume, unless it may be in use; returns whether it did."""
        with self.holds.unless_open(name) as free, disk(self._directory):
            if free:
                self._file(name).unlink(missing_ok=True)
                self._step("object-moved")
        return free

    def flush(self) -> None:
        """Makes waiting objects durable now, for a caller that names them outside of chains."""
        with self.flushing() as flush, self._database.write() as connection:
            flush(connection)
            self._step("flush-objects")
        self._step("flush-durable")

    @contextlib.contextmanager
    def flushing(self) -> Iterator[Callable[[sqlite3.Connection], None]]:
        """Wraps a transaction. Yields a function that writes the waiting objects; if all succeeds they wait no more."""
        written: list[Multihash] = []

        def flush(connection: sqlite3.Connection) -> None:
            with self._lock:
                waiting = list(self._pending.items())
            names, parts = [name for name, _ in waiting], [data for _, data in waiting]
            connection.execute(_INSERT, (b"".join(names), b"".join(parts), bulk_rows.places(parts, bytes(len(parts)))))
            written.extend(name for name, _ in waiting)

        yield flush
        with self._lock:
            for name in written:
                self._pending_size -= len(self._pending.pop(name, b""))

    def _add_small(self, name: Multihash, data: bytes) -> None:
        if name in self._pending or self._stored_row(name) != data:
            self._wait(name, data)

    def _wait(self, name: Multihash, data: bytes) -> None:
        with self._lock:
            if name not in self._pending:
                self._pending[name] = data
                self._pending_size += len(data)
            full = self._pending_size > _PENDING_LIMIT
        if full:
            self.flush()

    def _file(self, name: Multihash) -> Path:
        return Path(self._place(name))

    def _place(self, name: Multihash) -> str:
        """Returns the path of an object's file as text: for thousands of names Paths cost more than the lookups."""
        return f"{self._directory}/{name.digest[0]:02x}/{name}"

    def _read_file(self, name: Multihash, offset: int, length: int | None) -> bytes | None:
        try:
            return _part(self._file(name), offset, length)
        except NotFound:
            return None

    def _in_volume(self, name: Multihash) -> Path | None:
        entry = self.volumes.find(name)
        return None if entry is None else self.open_volume(entry, name)

    def _row_size(self, name: Multihash) -> int | None:
        with self._database.read() as connection:
            row = connection.execute("SELECT length(data) FROM small_objects WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def _row(self, name: Multihash) -> bytes:
        data = self._stored_row(name)
        if data is None:
            raise _unknown(name)
        if Multihash.sha3_256(data) != name:
            raise ObjectDamaged(name)
        return data

    def _stored_row(self, name: Multihash) -> bytes | None:
        with self._database.read() as connection:
            row = connection.execute("SELECT data FROM small_objects WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])


def sound_path(objects: ObjectReader, name: Multihash) -> Path:
    """Returns the object's file, hashed by this call, to make new files from. Raises NotFound, ObjectDamaged."""
    path = objects.path(name)
    check_file(path, name)
    return path


@contextlib.contextmanager
def staged_in(objects: ObjectStore) -> Iterator[Path]:
    """Yields a path to stage a file under; it is deleted at the end, unless ``add_file`` took it over."""
    staged = objects.stage()
    try:
        yield staged
    finally:
        staged.unlink(missing_ok=True)


def _part(path: Path, offset: int, length: int | None) -> bytes:
    with disk(path), path.open("rb") as file:
        file.seek(offset)
        return file.read(-1 if length is None else length)


def _unknown(name: Multihash) -> NotFound:
    return NotFound(f"no object {name.short}", rule="object-unknown", hint="fetch it from a peer that has it")
