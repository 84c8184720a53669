"""Copies a running node's state into a folder: a consistent snapshot, without the journals of its keys.

Each run adds a snapshot: a copy of the database as of one moment, keys, evidence, waiting pushes, and a list of the
objects beside it. Objects are immutable and shared by all snapshots: a later run copies only new ones. A snapshot is
complete or does not exist. Signing journals are left out on purpose (``docs/how-to/backup.md``). Blocking;
``odfd.services.maintenance.restore`` reads backups.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from chain import instant
from chain.errors import Environment, Invalid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store import durable
from odfd.runtime.tasks import Report
from odfd.store.crash_recovery import OBJECTS
from odfd.store.directory import DATABASE, SPOOL, StateDirectory

SNAPSHOTS: Final = "snapshots"
DESCRIPTION: Final = "snapshot.json"
LISTING: Final = "objects.txt"
MARK: Final = "odfd-backup.json"
LAST: Final = "last-backup.json"
"""File in the state directory with time and place of the last backup."""
FOLDERS: Final = ("keys", "evidence", SPOOL)
"""Folders of the state directory that are copied whole; all others can be made again, or hold partial data."""
NOT_COPIED: Final = (".journal", ".unborn", ".partial", ".new")
"""Parts of the names of files that are not copied: journals and unfinished files.

Such files of keys are valid in this state directory alone: the dataset of a key may have begun since the copy. Others
are pushes that are not complete yet.
"""
FORMAT: Final = 1
_PIECE: Final = 1 << 20


class SavedFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    size: int
    hash: str


class BackupSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of ``snapshot.json``."""

    format: int = FORMAT
    time: str
    node: str
    """Id of the node."""
    version: str
    files: tuple[SavedFile, ...]
    """Files of the snapshot, its list of objects included."""
    objects: int
    bytes: int
    """Bytes of the objects."""
    small: int = 0
    """Number of further objects, which are in the database; zero also in snapshots of older versions."""


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    time: str
    place: str


class BackupOutcome(msgspec.Struct, frozen=True, kw_only=True):
    snapshot: Path
    objects: int
    """Number of objects in the snapshot."""
    copied: int
    """Number of objects that the backup did not have yet."""
    bytes: int
    """Bytes that were written."""
    dropped: int = 0
    """Older snapshots that were removed."""
    small: int = 0
    """Number of further objects, which are in the database."""
    database: int = 0
    """Bytes of the copied database."""


class BackupFolder:
    """A folder of backups of one node."""

    def __init__(self, folder: Path, node: str) -> None:
        """Opens or claims a folder. Raises Invalid if it holds something else, Environment when it cannot be used."""
        self.folder = folder
        self._node = node
        with _writing(folder):
            self._claim()

    def _claim(self) -> None:
        folder, mark = self.folder, self.folder / MARK
        if mark.is_file():
            # Keeping the newest ``keep`` snapshots would otherwise delete those of another node.
            owner = msgspec.json.decode(mark.read_bytes()).get("node")
            if owner != self._node:
                raise Invalid(
                    f"{folder} holds backups of another node, {owner}", rule="backup-folder", hint="name another folder"
                )
            return
        if folder.exists() and any(folder.iterdir()):
            raise Invalid(
                f"{folder} is not empty, and holds no backups", rule="backup-folder", hint="name an empty or new folder"
            )
        durable.make_folder(folder, 0o700)
        folder.chmod(0o700)
        durable.write(mark, msgspec.json.encode({"format": FORMAT, "node": self._node}))

    def add(self, home: StateDirectory, now: Instant, version: str, keep: int, report: Report) -> BackupOutcome:
        """Adds a snapshot; then keeps only the newest ``keep``, and the objects that they list."""
        with _writing(self.folder):
            name = instant.render(now).replace(":", "")
            partial, whole = self.folder / SNAPSHOTS / f".{name}.partial", self.folder / SNAPSHOTS / name
            shutil.rmtree(partial, ignore_errors=True)
            for made in (self.folder / SNAPSHOTS, self.folder / OBJECTS):
                durable.make_folder(made, 0o700)
            partial.mkdir(mode=0o700)
            report.begin("copying the database", None, "pages")
            # A push that a pull takes meanwhile would lose its file, and the copied database names that.
            with home.spool.hold_files():
                home.database.copy_to(partial / DATABASE, lambda left, total: _show(report, total - left, total))
                (partial / DATABASE).chmod(0o600)
                for folder in FOLDERS:
                    _copy_folder(home.directory / folder, partial / folder)
            small, database = _small_objects(home), (partial / DATABASE).stat().st_size
            # Objects come after the database: each that its blocks name is there by then, since objects are written
            # first.
            report.begin("copying objects", None, "bytes")
            found, copied = self._copy_objects(home.directory / OBJECTS, report)
            durable.write(partial / LISTING, "".join(f"{path} {size}\n" for path, size in found).encode())
            description = BackupSnapshot(
                time=instant.render(now),
                node=self._node,
                version=version,
                files=tuple(_list_saved(partial)),
                objects=len(found),
                bytes=sum(size for _, size in found),
                small=small,
            )
            durable.write(partial / DESCRIPTION, msgspec.json.format(msgspec.json.encode(description)))
            durable.sync_tree(partial)
            # The name without ``.partial`` is what makes it a snapshot; a crash before leaves what no restore accepts.
            durable.rename(partial, whole)
            dropped = self._drop(keep)
            last = LastBackup(time=description.time, place=str(self.folder))
            durable.write(home.directory / LAST, msgspec.json.encode(last))
        sizes = sum(size for _, size in copied)
        return BackupOutcome(
            snapshot=whole,
            objects=len(found),
            copied=len(copied),
            bytes=sizes,
            dropped=dropped,
            small=small,
            database=database,
        )

    def _copy_objects(self, objects: Path, report: Report) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Copies new objects; returns path and size of all, and of those copied."""
        found, copied = [], []
        for file in _object_files(objects):
            place = str(file.relative_to(objects))
            target = self.folder / OBJECTS / place
            try:
                size = file.stat().st_size
                if not (target.is_file() and target.stat().st_size == size):
                    durable.make_folder(target.parent, 0o700)
                    with durable.writing(target) as copy:
                        _copy(file, copy, report)
                    copied.append((place, size))
            except FileNotFoundError:
                continue  # a mirror dropped it meanwhile; after a restore it is fetched again
            found.append((place, size))
        return found, copied

    def _drop(self, keep: int) -> int:
        snapshots = snapshots_in(self.folder)
        old = snapshots[: max(0, len(snapshots) - keep)]
        for snapshot in old:
            shutil.rmtree(snapshot)
        if old:
            listed = {place for snapshot in snapshots_in(self.folder) for place, _ in listing(snapshot)}
            for file in list(_object_files(self.folder / OBJECTS)):
                # Also removes what runs that were interrupted before their list was written have copied.
                if str(file.relative_to(self.folder / OBJECTS)) not in listed:
                    file.unlink()
        return len(old)


def _small_objects(home: StateDirectory) -> int:
    """Counts the objects that the database holds itself."""
    with home.database.read() as connection:
        count: int = connection.execute("SELECT count(*) FROM small_objects").fetchone()[0]
        return count


def snapshots_in(folder: Path) -> list[Path]:
    """Lists complete snapshots, oldest first."""
    found = (folder / SNAPSHOTS).glob("[0-9]*") if (folder / SNAPSHOTS).is_dir() else ()
    return sorted(each for each in found if (each / DESCRIPTION).is_file())


def listing(snapshot: Path) -> Iterator[tuple[str, int]]:
    """Yields path and size of each object. Raises ValueError for a damaged list."""
    with (snapshot / LISTING).open() as lines:
        for line in lines:
            place, size = line.split()
            yield place, int(size)


def last_backup(directory: Path) -> LastBackup | None:
    """Returns the last backup of a state directory; ``None`` if unknown."""
    try:
        return msgspec.json.decode((directory / LAST).read_bytes(), type=LastBackup)
    except (OSError, msgspec.MsgspecError):
        return None


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return str(Multihash.sha3_256_of(file))


def _object_files(folder: Path) -> Iterator[Path]:
    """Yields the files in the folders of two digits, in order; unfinished files are in other folders."""
    folders = sorted(path for path in folder.iterdir() if len(path.name) == 2) if folder.is_dir() else []
    for each in folders:
        yield from sorted(each.iterdir())


def _list_saved(snapshot: Path) -> Iterator[SavedFile]:
    for path in sorted(each for each in snapshot.rglob("*") if each.is_file()):
        yield SavedFile(path=str(path.relative_to(snapshot)), size=path.stat().st_size, hash=hash_of(path))


def _copy_folder(source: Path, target: Path) -> None:
    """Copies a folder; files that disappear meanwhile are left out."""
    target.mkdir(mode=0o700, exist_ok=True)
    if not source.is_dir():
        return
    for entry in sorted(source.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            _copy_folder(entry, target / entry.name)
        # No links: the backup would contain whatever file of the system they point to.
        elif entry.is_file() and not entry.is_symlink() and not any(kind in entry.name for kind in NOT_COPIED):
            try:
                with (target / entry.name).open("wb") as copy:
                    os.fchmod(copy.fileno(), 0o600)
                    _copy(entry, copy, Report())
            except FileNotFoundError:
                continue


def _copy(source: Path, target: BinaryIO, report: Report) -> None:
    with source.open("rb") as file:
        while piece := file.read(_PIECE):
            target.write(piece)
            report.advance(len(piece))


def _show(report: Report, done: int, total: int) -> None:
    report.done, report.total = done, total


_FULL: Final = "free space there, or name a folder on a larger disk"
_NOT_ALLOWED: Final = (
    "the daemon writes it, so its user must be allowed to; under systemd name the folder in ReadWritePaths= too"
    " (odfctl docs backup)"
)

_HINTS: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.ENOTDIR: "name a folder: a part of this path is a file",
    errno.EEXIST: "name a folder: there is a file of that name",
}


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns errors of the disk into faults."""
    try:
        yield
    except OSError as error:
        raise Environment(
            f"cannot write the backup to {folder}: {error.strerror}",
            rule="backup-write",
            hint=_HINTS.get(error.errno or 0, _NOT_ALLOWED),
        ) from error
