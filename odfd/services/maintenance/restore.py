"""Makes a state directory from a snapshot of a backup, and verifies it before a node can start on it.

Every file and object is hashed while it is copied; then the directory is opened and examined, and finally renamed to
its place. A backup that fails these checks leaves nothing behind. Blocking, with no daemon.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Environment, Invalid, NotFound
from chain.store import durable
from odfd.runtime.tasks import Report
from odfd.services.maintenance.backup import (
    DESCRIPTION,
    FORMAT,
    LISTING,
    MARK,
    BackupSnapshot,
    SavedFile,
    hash_of,
    listing,
    snapshots_in,
)
from odfd.store import access_tokens, spool
from odfd.store.crash_recovery import OBJECTS
from odfd.store.directory import StateDirectory, open_state_directory

SHOWN: Final = 5
Examine = Callable[[StateDirectory], Sequence[str]]
"""Lists what is wrong with a state directory, apart from the missing journals."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    snapshot: BackupSnapshot
    directory: Path
    damaged: tuple[str, ...] = ()
    """Names of objects that were left out, since their bytes do not have their hash."""
    keys: int = 0
    """Number of keys that sign nothing until peers were asked what they have signed."""


def choose(backup: Path, name: str | None) -> Path:
    """Returns the snapshot of this name, or the newest. Raises NotFound."""
    found = snapshots_in(backup)
    if not (backup / MARK).is_file() or not found:
        raise NotFound(f"{backup} holds no backup", rule="backup", hint="name the folder that odfctl backup wrote to")
    if name is None:
        return found[-1]
    chosen = next((each for each in found if each.name == name), None)
    if chosen is None:
        names = ", ".join(each.name for each in found[-SHOWN:])
        raise NotFound(f"{backup} has no snapshot {name}", rule="backup", hint=f"the newest are {names}")
    return chosen


def restore(
    snapshot: Path, directory: Path, examine: Examine, report: Report, *, skip_damaged: bool = False
) -> Restored:
    """Restores to ``directory``, empty or absent. Raises Invalid for a damaged backup, Environment.

    ``skip_damaged``: continues without damaged objects; peers that have them may provide them again.
    """
    if directory.exists() and any(directory.iterdir()):
        raise Invalid(
            f"{directory} is not empty", rule="restore-target", hint="restore to a new folder, and start the node on it"
        )
    description = read_description(snapshot)
    partial = unfinished_folder(directory)
    with _reading(snapshot), _scratch(partial):
        report.begin("checking what was saved", None, "bytes")
        for file in description.files:
            _take(snapshot, partial, file, report)
        damaged = _take_objects(snapshot, partial, report)
        if damaged and not skip_damaged:
            shown = ", ".join(damaged[:SHOWN]) + (f" and {len(damaged) - SHOWN} more" if len(damaged) > SHOWN else "")
            raise Invalid(
                f"{len(damaged)} of {description.objects} objects of the backup are damaged or gone: {shown}",
                rule="backup-damaged",
                hint="restore an older snapshot (--snapshot), or continue without them (--skip-damaged): odfctl pull "
                "REF --repair fetches from peers what they have",
            )
        report.begin("looking through what was restored", None, "")
        keys = _examine(partial, examine)
        if directory.exists():
            directory.rmdir()
        durable.sync_tree(partial)
        durable.rename(partial, directory)
    return Restored(snapshot=description, directory=directory, damaged=tuple(damaged), keys=keys)


def unfinished_folder(directory: Path) -> Path:
    """Returns where a restore to this directory has its files until all are checked; one that is killed leaves them."""
    return directory.with_name(f".{directory.name}.restoring")


def read_description(snapshot: Path) -> BackupSnapshot:
    try:
        description = msgspec.json.decode((snapshot / DESCRIPTION).read_bytes(), type=BackupSnapshot)
    except (OSError, msgspec.MsgspecError) as error:
        raise Invalid(f"{snapshot / DESCRIPTION} cannot be read: {error}", rule="backup-damaged") from error
    if description.format != FORMAT:
        raise Invalid(
            f"the backup has format {description.format}, and this odfd reads {FORMAT}",
            rule="backup-format",
            hint=f"restore it with the version of odfd that wrote it, {description.version}",
        )
    return description


def _examine(directory: Path, examine: Examine) -> int:
    with open_state_directory(directory) as home:
        wrong = examine(home)
        access_tokens.forget_all(home.database)  # some may have been revoked since the backup
        with home.database.write() as connection:
            # A chain may record pushes of after the backup; new ones with their numbers would be taken for them.
            spool.skip_numbers(connection)
        keys = len(home.keys.list_lost())
    if wrong:
        raise Invalid(
            f"the restored state is not valid: {'; '.join(wrong)}",
            rule="backup-damaged",
            hint="restore an older snapshot: --snapshot",
        )
    return keys


def _take(snapshot: Path, target: Path, file: SavedFile, report: Report) -> None:
    source = snapshot / _inside(file.path)
    if not source.is_file() or source.stat().st_size != file.size or hash_of(source) != file.hash:
        raise Invalid(
            f"{source} is not as it was saved", rule="backup-damaged", hint="restore an older snapshot: --snapshot"
        )
    report.advance(file.size)
    if file.path != LISTING:
        _place(source, target / file.path)


def _take_objects(snapshot: Path, target: Path, report: Report) -> list[str]:
    """Copies the objects; returns the names of damaged ones, which are left out."""
    objects, damaged = snapshot.parent.parent / OBJECTS, []
    for place, size in listing(snapshot):
        name, source = Path(place).name, objects / _inside(place)
        # The name of an object is its hash, so the list of objects need not be trusted.
        if not source.is_file() or source.stat().st_size != size or hash_of(source) != name:
            damaged.append(name)
            continue
        _place(source, target / OBJECTS / place, mode=0o444)
        report.advance(size)
    return damaged


def _inside(place: str) -> str:
    """Returns the place of a file in a backup, which whoever wrote the backup chose. Raises Invalid if it leads out."""
    # The lists of a backup are text that anybody with write access to its folder can change.
    if ".." in Path(place).parts or Path(place).is_absolute():
        raise Invalid(
            f"the backup names a file outside of itself: {place}",
            rule="backup-outside",
            hint="odfctl backup wrote none such: do not use this folder",
        )
    return place


def _place(source: Path, target: Path, mode: int = 0o600) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


@contextmanager
def _scratch(folder: Path) -> Iterator[None]:
    """Makes an empty folder, which is deleted at the end unless it was renamed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _reading(snapshot: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Environment(f"cannot restore {snapshot}: {error.strerror}: {error.filename}", rule="restore") from error
