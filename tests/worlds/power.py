"""A disk that loses, reorders and tears what was not synced, below a folder of the real one.

``PowerDisk`` watches ``fsync``, ``syncfs`` and what SQLite syncs, and remembers what each file and folder held when it
was last synced. ``image`` makes the folder as it may be found after the power failed now: what was synced is there; of
all else each file and each name is there or not, in any order, and a file's new bytes are kept by sectors. A rename is
kept or not as one. The folder's own name counts as synced, and so does what was in it at the beginning.
"""

from __future__ import annotations

import ctypes
import os
import random
import sqlite3
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from chain.store import durable

SECTOR: Final = 512
Inode: TypeAlias = tuple[int, int]
Names: TypeAlias = dict[str, Inode]
Change: TypeAlias = frozenset[tuple[Inode, str]]
"""Names in folders that became others at once, as by a rename."""


class PowerDisk:
    """What is on the disk of a folder; see the module. Single-threaded."""

    def __init__(self, root: Path, synced: Callable[[], None] = lambda: None) -> None:
        """``synced``: called before each sync, when the power may fail too."""
        self._synced = synced
        self._open: dict[Inode, int] = {}
        """Descriptors of all that was ever seen: they keep the numbers of inodes from being used again."""
        self._data: dict[Inode, bytes] = {}
        self._names: dict[Inode, Names] = {}
        self.syncs = 0
        self._root = self._see(root)
        self.keep_all()

    def keep_all(self) -> None:
        """Syncs everything, as ``syncfs`` does."""
        folders = [self._root]
        while folders:
            here = folders.pop()
            self._names[here] = self._now(here)
            for each in self._names[here].values():
                if self._is_folder(each):
                    folders.append(each)
                else:
                    self._data[each] = self._bytes(each)

    def sync(self, file: int) -> None:
        """Keeps what an open file or folder has now."""
        self._synced()
        self.syncs += 1
        here = self._pin(os.open(f"/proc/self/fd/{file}", os.O_RDONLY))  # the file may be open to write alone
        if self._is_folder(here):
            self._names[here] = self._now(here)
        else:
            self._data[here] = self._bytes(here)

    def sync_path(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            opened = os.open(path, os.O_RDONLY)
            self.sync(opened)
            os.close(opened)

    @contextmanager
    def watching(self) -> Iterator[PowerDisk]:
        """Sees every sync of this process while the block runs."""

        def hear(what: int | Path | None) -> None:
            match what:
                case int():
                    self.sync(what)
                case Path():
                    self.sync_path(what)
                case None:
                    self._synced()
                    self.syncs += 1
                    self.keep_all()

        with each_sync(hear):
            yield self

    def image(self, target: Path, lot: random.Random | None = None, *, alone: Change = frozenset()) -> Path:
        """Makes ``target`` the folder after the power failed now. ``lot`` None: what was not synced is lost.

        ``alone``: one of ``changes``, which is there although it was not synced.
        """
        taken = self._taken(lot) if lot else alone
        target.mkdir()
        self._build(self._root, target, taken, lot)
        return target

    def changes(self) -> list[Change]:
        """Returns the changes of names, not synced yet, that a power failure may keep without any other."""
        there, folders = {self._root}, [self._root]
        while folders:
            below = {each for each in self._names.get(folders.pop(), {}).values() if self._is_folder(each)} - there
            there |= below
            folders += below
        return [each for each in self._changes() if any(folder in there for folder, _ in each)]

    def _taken(self, lot: random.Random) -> Change:
        """Chooses the changed names that are as they are now."""
        chance = lot.choice((0.2, 0.5, 0.8, 1.0))
        return frozenset().union(*(found for found in self._changes() if lot.random() < chance))

    def _changes(self) -> list[Change]:
        """Returns the names that are not as they were synced; those that share a file or folder go together."""
        changed: list[tuple[Inode, str, set[Inode | None]]] = []
        seen, folders = {self._root}, [self._root]
        while folders:
            here = folders.pop()
            kept, now = self._names.get(here, {}), self._now(here)
            changed += [(here, name, {*(kept.get(name),), *(now.get(name),)} - {None})
                        for name in sorted(kept.keys() | now.keys()) if kept.get(name) != now.get(name)]  # fmt: skip
            for each in {*kept.values(), *now.values()} - seen:
                if self._is_folder(each):
                    seen.add(each)
                    folders.append(each)
        group: dict[Any, Any] = {}

        def head(item: Any) -> Any:
            while group.setdefault(item, item) != item:
                item = group[item]
            return item

        for here, name, inodes in changed:
            for inode in inodes:
                group[head((here, name))] = head(inode)
        members = defaultdict(list)
        for here, name, _ in changed:
            members[head((here, name))].append((here, name))
        return [frozenset(found) for found in members.values()]

    def _build(self, here: Inode, target: Path, taken: Change, lot: random.Random | None) -> None:
        kept, now = self._names.get(here, {}), self._now(here)
        for name in sorted(kept.keys() | now.keys()):
            each = (now if (here, name) in taken else kept).get(name)
            if each is None:
                continue
            path, mode = target / name, stat.S_IMODE(os.fstat(self._open[each]).st_mode)
            if self._is_folder(each):
                path.mkdir()
                self._build(each, path, taken, lot)
            else:
                path.write_bytes(self._content(each, lot))
            path.chmod(mode)

    def _content(self, file: Inode, lot: random.Random | None) -> bytes:
        kept = self._data.get(file, b"")
        if lot is None or (now := self._bytes(file)) == kept:
            return kept
        way = lot.random()
        if way < 0.5:
            return kept if way < 0.25 else now
        size = lot.choice((len(kept), len(now), lot.randint(*sorted((len(kept), len(now))))))
        parts = [(now if lot.random() < 0.5 else kept)[at : at + SECTOR].ljust(SECTOR, b"\0")
                 for at in range(0, size, SECTOR)]  # fmt: skip
        return b"".join(parts)[:size]

    def _now(self, folder: Inode) -> Names:
        found: Names = {}
        with suppress(FileNotFoundError):  # a folder that was deleted
            for name in os.listdir(self._open[folder]):  # noqa: PTH208  # by a descriptor
                mode = os.lstat(name, dir_fd=self._open[folder]).st_mode
                if stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and not name.endswith("-shm")):
                    found[name] = self._pin(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._open[folder]))
        return found

    def _see(self, path: Path) -> Inode:
        return self._pin(os.open(path, os.O_RDONLY))

    def _pin(self, opened: int) -> Inode:
        found = os.fstat(opened)
        inode = found.st_dev, found.st_ino
        if self._open.setdefault(inode, opened) != opened:
            os.close(opened)
        return inode

    def _is_folder(self, inode: Inode) -> bool:
        return stat.S_ISDIR(os.fstat(self._open[inode]).st_mode)

    def _bytes(self, file: Inode) -> bytes:
        return os.pread(self._open[file], os.fstat(self._open[file]).st_size, 0)

    def close(self) -> None:
        for each in self._open.values():
            os.close(each)


@contextmanager
def each_sync(tell: Callable[[int | Path | None], None]) -> Iterator[None]:
    """Tells of every sync of this process: of an open file, of a file of SQLite; ``None``: of a whole file system."""
    real_fsync, real_syncfs = os.fsync, durable.sync_filesystem

    def fsync(file: int) -> None:
        tell(file)
        real_fsync(file)

    def sync_filesystem(folder: Path) -> None:
        tell(None)
        real_syncfs(folder)

    os.fsync, durable.sync_filesystem = fsync, sync_filesystem  # type: ignore[assignment]
    try:
        with _sqlite_syncs(tell):
            yield
    finally:
        os.fsync, durable.sync_filesystem = real_fsync, real_syncfs


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("max_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
    )


_OPEN: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_DELETE: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_SYNC: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_METHODS: Final = 8 + 18 * ctypes.sizeof(ctypes.c_void_p)
"""Bytes of SQLite's ``sqlite3_io_methods`` (version 3): its version, and pointers."""
_SYNC_AT: Final = 8 + 4 * ctypes.sizeof(ctypes.c_void_p)
_KEPT: Final[list[Any]] = []
"""What SQLite has pointers to: files that are opened while one watches may be closed later."""
_CREATED: Final = 0x4
_LOGS: Final = 0x800 | 0x80000
"""Flags of a rollback journal and of a write-ahead log: if new, their first sync is one of their folder as well."""


@contextmanager
def _sqlite_syncs(tell: Callable[[Path], None]) -> Iterator[None]:
    """Tells of each sync that SQLite makes: an opened file gets a copy of its table of methods, with our sync."""
    library = ctypes.CDLL(_library_of_sqlite())
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = library.sqlite3_vfs_find(None).contents
    before, before_delete = vfs.open, vfs.delete
    real_open, real_delete = _OPEN(before), _DELETE(before_delete)
    paths: dict[int, Path] = {}
    fresh: set[int] = set()
    tables: dict[int, int] = {}

    def table_of(methods: int) -> int:
        """Returns our copy of a table of methods."""
        if methods not in tables:
            copy = ctypes.create_string_buffer(ctypes.string_at(methods, _METHODS), _METHODS)
            place = ctypes.cast(ctypes.addressof(copy) + _SYNC_AT, ctypes.POINTER(ctypes.c_void_p))
            real = _SYNC(place[0])

            def sync(file: int, flags: int) -> int:
                code = int(real(file, flags))
                if code == 0 and file in paths:
                    tell(paths[file])
                    if file in fresh:
                        fresh.discard(file)
                        tell(paths[file].parent)
                return code

            ours = _SYNC(sync)
            place[0] = ctypes.cast(ours, ctypes.c_void_p).value
            _KEPT.extend((copy, real, ours))
            tables[methods] = ctypes.addressof(copy)
        return tables[methods]

    def open_(vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        # SQLite keeps the pointer to the name, so that it is passed on as it is.
        path = None if name is None else Path(os.fsdecode(ctypes.string_at(name)))
        is_new = path is not None and not path.exists()
        code = int(real_open(vfs, name, file, flags, out))
        methods = ctypes.cast(file, ctypes.POINTER(ctypes.c_void_p))
        if code == 0 and path is not None and methods[0]:
            paths[file] = path
            fresh.discard(file)
            if is_new and flags & _CREATED and flags & _LOGS:
                fresh.add(file)
            methods[0] = table_of(methods[0])
        return code

    def delete(vfs: int, name: bytes, is_synced: int) -> int:
        code = int(real_delete(vfs, name, is_synced))
        if code == 0 and is_synced:
            tell(Path(os.fsdecode(name)).parent)
        return code

    ours, ours_delete = _OPEN(open_), _DELETE(delete)
    _KEPT.extend((ours, ours_delete))
    vfs.open, vfs.delete = (ctypes.cast(each, ctypes.c_void_p).value for each in (ours, ours_delete))
    try:
        yield
    finally:
        vfs.open, vfs.delete = before, before_delete
        paths.clear()


def _library_of_sqlite() -> str | None:
    """Returns the path of the SQLite that this process uses; ``None``: it is part of the program."""
    sqlite3.connect(":memory:").close()
    maps = Path("/proc/self/maps").read_text().split()
    return next((each for each in maps if "/libsqlite3.so" in each), None)
