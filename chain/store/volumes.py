"""Records which objects lie in volumes, outside of the state directory, and which copies there are to be deleted.

An object is moved in steps, each of which leaves one whole copy wherever a crash ends it. The copy that will be made is
first noted as one to be deleted (``begin``); when it is written and checked, one transaction makes it the object's
place (``switch``), and only then the local file goes. The way back is ``leave``, after the local file is durable: the
copy becomes one to be deleted in the transaction in which it ceases to be the object's place. What a crash leaves in a
volume therefore always has a row, and is deleted later.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from chain.errors import Environment
from chain.multihash import Multihash
from chain.store import bulk_rows
from chain.store.database import Database

AWAY: Final = "volume-away"
"""The rule of what a volume holds that cannot be asked now."""
_ABSENT: Final = (
    "SELECT value FROM json_each(?3) WHERE NOT EXISTS"
    " (SELECT 1 FROM volume_objects WHERE name = substr(?1, key * ?2 + 1, ?2))"
)


class VolumeEntry(NamedTuple):
    """The place of an object."""

    volume: str
    """The id of its resource."""
    size: int


class VolumeUsage(NamedTuple):
    """The contents of a volume, counted."""

    objects: int
    bytes: int
    remains: int
    """Copies that are to be deleted."""


Opener: TypeAlias = Callable[[VolumeEntry, Multihash], Path]
"""Gives a readable file of an object in a volume. Raises Environment, NotFound."""


def no_volumes(entry: VolumeEntry, name: Multihash) -> Path:
    """Replaces the volumes in a process that opens none."""
    raise Environment(
        f"object {name.short} lies in the volume {entry.volume}, which this process does not read",
        rule=AWAY,
        hint="ask the running node",
    )


class VolumeIndex:
    """The rows about volumes of one database. Costs nothing where no object ever lay in one."""

    def __init__(self, database: Database) -> None:
        """The tables are there (``chain.store.schema``)."""
        self._database = database
        with database.read() as connection:
            self._used = connection.execute("SELECT 1 FROM volume_objects LIMIT 1").fetchone() is not None

    def find(self, name: Multihash) -> VolumeEntry | None:
        if not self._used:
            return None
        with self._database.read() as connection:
            row = connection.execute("SELECT volume, size FROM volume_objects WHERE name = ?", (name,)).fetchone()
        return None if row is None else VolumeEntry(*row)

    def absent(self, names: Sequence[Multihash]) -> list[Multihash]:
        """Lists those that lie in no volume, in their order."""
        if not self._used or not names:
            return list(names)
        with self._database.read() as connection:
            places = sorted(
                place
                for width, joined, numbers in bulk_rows.by_width(names, range(len(names)))
                for (place,) in connection.execute(_ABSENT, (joined, width, numbers)).fetchall()
            )
        return [names[place] for place in places]

    def names(self) -> list[Multihash]:
        """Lists all objects in volumes."""
        return self._names("SELECT name FROM volume_objects") if self._used else []

    def usage(self, volume: str) -> VolumeUsage:
        with self._database.read() as connection:
            count, size = connection.execute(
                "SELECT count(*), coalesce(sum(size), 0) FROM volume_objects WHERE volume = ?", (volume,)
            ).fetchone()
            (remains,) = connection.execute(
                "SELECT count(*) FROM volume_remains WHERE volume = ?", (volume,)
            ).fetchone()
        return VolumeUsage(count, size, remains)

    def datasets(self, volume: str) -> list[bytes]:
        """Lists the datasets for which objects were moved to a volume."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT DISTINCT dataset FROM volume_objects WHERE volume = ?", (volume,))
            return [row[0] for row in rows.fetchall()]

    def of(self, volume: str, dataset: bytes) -> list[Multihash]:
        """Lists the objects that were moved to a volume for a dataset."""
        return self._names("SELECT name FROM volume_objects WHERE volume = ? AND dataset = ?", volume, dataset)

    def remains(self, volume: str) -> list[Multihash]:
        """Lists the copies in a volume that are to be deleted."""
        return self._names("SELECT name FROM volume_remains WHERE volume = ?", volume)

    def is_claimed(self, volume: str, place: str) -> bool:
        """Whether a volume was marked there before, or has objects or copies."""
        with self._database.read() as connection:
            row = connection.execute("SELECT place FROM volume_claims WHERE volume = ?", (volume,)).fetchone()
        usage = self.usage(volume)
        return bool(usage.objects or usage.remains) or (row is not None and row[0] == place)

    def claim(self, volume: str, place: str) -> None:
        """Notes that a volume is marked there."""
        with self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO volume_claims (volume, place) VALUES (?, ?)", (volume, place))

    def unclaim(self, volume: str) -> None:
        """Forgets where a volume was marked: it is deleted."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM volume_claims WHERE volume = ?", (volume,))

    def begin(self, name: Multihash, volume: str) -> None:
        """Notes that a copy will be written."""
        with self._database.write() as connection:
            connection.execute("INSERT OR IGNORE INTO volume_remains (volume, name) VALUES (?, ?)", (volume, name))

    def switch(self, name: Multihash, entry: VolumeEntry, dataset: bytes) -> None:
        """Makes the copy, which is whole, the place of an object."""
        self._used = True
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO volume_objects (name, volume, size, dataset) VALUES (?, ?, ?, ?)",
                (name, entry.volume, entry.size, dataset),
            )
            connection.execute("DELETE FROM volume_remains WHERE volume = ? AND name = ?", (entry.volume, name))

    def leave(self, name: Multihash) -> None:
        """Ends that a volume is the place of an object, whose local file is durable."""
        with self._database.write() as connection:
            self.leave_in(connection, (name,))

    def leave_in(self, connection: sqlite3.Connection, names: Iterable[Multihash]) -> None:
        """Does the same for objects that nothing needs any more, in the transaction in which they go."""
        if self._used:
            rows = [(name,) for name in names]
            connection.executemany(
                "INSERT OR IGNORE INTO volume_remains (volume, name)"
                " SELECT volume, name FROM volume_objects WHERE name = ?",
                rows,
            )
            connection.executemany("DELETE FROM volume_objects WHERE name = ?", rows)

    def forget(self, volume: str, name: Multihash) -> None:
        """Notes that a copy is deleted."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM volume_remains WHERE volume = ? AND name = ?", (volume, name))

    def _names(self, question: str, *values: str | bytes) -> list[Multihash]:
        with self._database.read() as connection:
            return [Multihash.from_bytes(row[0]) for row in connection.execute(question, values).fetchall()]
