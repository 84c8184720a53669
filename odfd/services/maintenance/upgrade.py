"""Lists the tables that a start of this program would migrate, and tries the migration on a copy of the database.

Reads beside a running node and writes nothing of its state. Blocking; for ``odfctl upgrade check``.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chain.errors import Environment, NotFound
from chain.store.database import open_database
from odfd.store.directory import DATABASE, ROOMS


class TableChange(NamedTuple):
    """Tables of one part of the program, in different versions in the directory and the program."""

    room: str
    here: int
    """Version in the directory; 0: none yet."""
    known: int
    """Version in this program."""

    @property
    def is_newer(self) -> bool:
        """Whether a newer program wrote the tables, so that this one cannot start."""
        return self.here > self.known


def table_changes(directory: Path) -> list[TableChange]:
    """Lists table changes in the order of a start. Raises NotFound, Environment."""
    with _reading(directory) as connection:
        here = dict(connection.execute("SELECT room, version FROM versions"))
    changes = [TableChange(room.ROOM, here.get(room.ROOM, 0), len(room.STEPS)) for room in ROOMS]
    return [change for change in changes if change.here != change.known]


def has_room_for_copy(directory: Path) -> bool:
    """Whether there is disk space for the copy and its migration, which may write as much again."""
    size = sum(
        (directory / name).stat().st_size for name in (DATABASE, f"{DATABASE}-wal") if (directory / name).exists()
    )
    return shutil.disk_usage(directory).free > 2 * size


def try_on_copy(directory: Path) -> None:
    """Migrates a copy of the database. Raises NotFound, Environment, as a start would."""
    with tempfile.TemporaryDirectory(prefix=".upgrade-", dir=directory) as place:
        copy = Path(place) / DATABASE
        with _reading(directory) as connection, contextlib.closing(sqlite3.connect(copy)) as target:
            connection.backup(target)
        with contextlib.closing(open_database(copy)) as database:
            database.migrate_all((room.ROOM, room.STEPS) for room in ROOMS)


@contextlib.contextmanager
def _reading(directory: Path) -> Iterator[sqlite3.Connection]:
    path = directory / DATABASE
    if not path.is_file():
        raise NotFound(
            f"{directory} is no state directory: there is no {DATABASE} in it",
            rule="state-directory",
            hint="name the folder that odfd run --state was given; odfctl status shows it",
        )
    # A reader of a database with a log leaves files beside it; without a log nobody has it open, and none are made.
    how = "mode=ro" if path.with_name(f"{DATABASE}-wal").exists() else "immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise Environment(
            f"cannot read {path}: {error}", rule="database", hint="odfctl doctor --deep, or restore a backup"
        ) from error
