"""Records which objects are in volumes, outside of the state directory, and which copies there are to be deleted.

An object is moved in steps, so that a crash at any point leaves one intact copy. The copy to be made is first recorded
as one to be deleted (``begin``); when it is written and checked, one transaction makes it the object's place
(``switch``), and only then the local file is deleted. The way back is ``leave``, after the local file is durable: the
copy becomes one to be deleted in the transaction in which it ceases to be the object's place. So everything that a
crash leaves in a volume has a row, and is deleted later.
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
"""Rule of faults about objects in a volume that cannot be reached now."""
_ABSENT: Final = (
    "SELECT value FROM json_each(?3) WHERE NOT EXISTS"
    " (SELECT 1 FROM volume_objects WHERE name = substr(?1, key * ?2 + 1, ?2))"
)


class VolumeEntry(NamedTuple):
    """The place of an object: its volume, and its size in bytes."""

    volume: str
    """Id of the volume's resource."""
    size: int


class VolumeUsage(NamedTuple):
    """Number and bytes of the objects in a volume."""

    objects: int
    bytes: int
    remains: int
    """Number of copies that are to be deleted."""


Opener: TypeAlias = Callable[[VolumeEntry, Multihash], Path]
"""Returns a readable file of an object in a volume. Raises Environment, NotFound."""


def no_volumes(entry: VolumeEntry, name: Multihash) -> Path:
    """Stands in for the opener of volumes in a process that opens none. Raises Environment."""
    raise Environment(
        f"object {name.short} is in the volume {entry.volume}, which this process does not read",
        rule=AWAY,
        hint="ask the running node",
    )


class VolumeIndex:
    """The rows about volumes of one database. Costs nothing if no object was ever in one."""

    def __init__(self, database: Database) -> None:
        """Reads whether any object is in a volume. The tables must exist (``chain.store.schema``)."""
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
        """Lists those of ``names`` that are in no volume, in their order."""
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
        """Whether a volume was claimed at ``place`` before, or has objects or copies."""
        usage = self.usage(volume)
        return bool(usage.objects or usage.remains) or self.place_of(volume) == place

    def place_of(self, volume: str) -> str | None:
        """Returns the place at which a volume was claimed last; ``None`` if it was not."""
        with self._database.read() as connection:
            row = connection.execute("SELECT place FROM volume_claims WHERE volume = ?", (volume,)).fetchone()
        return None if row is None else row[0]

    def claim(self, volume: str, place: str) -> None:
        """Records that a volume is claimed at ``place``."""
        with self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO volume_claims (volume, place) VALUES (?, ?)", (volume, place))

    def unclaim(self, volume: str) -> None:
        """Forgets the claim of a volume, which is deleted."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM volume_claims WHERE volume = ?", (volume,))

    def begin(self, name: Multihash, volume: str) -> None:
        """Records that a copy of an object will be written to a volume."""
        with self._database.write() as connection:
            connection.execute("INSERT OR IGNORE INTO volume_remains (volume, name) VALUES (?, ?)", (volume, name))

    def switch(self, name: Multihash, entry: VolumeEntry, dataset: bytes) -> None:
        """Makes the finished copy the place of an object."""
        self._used = True
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO volume_objects (name, volume, size, dataset) VALUES (?, ?, ?, ?)",
                (name, entry.volume, entry.size, dataset),
            )
            connection.execute("DELETE FROM volume_remains WHERE volume = ? AND name = ?", (entry.volume, name))

    def leave(self, name: Multihash) -> None:
        """Takes an object out of its volume, after its local file is durable; the copy is then to be deleted."""
        with self._database.write() as connection:
            self.leave_in(connection, (name,))

    def leave_in(self, connection: sqlite3.Connection, names: Iterable[Multihash]) -> None:
        """Does the same for objects that nothing needs any more, in the transaction that removes them."""
        if self._used:
            rows = [(name,) for name in names]
            connection.executemany(
                "INSERT OR IGNORE INTO volume_remains (volume, name)"
                " SELECT volume, name FROM volume_objects WHERE name = ?",
                rows,
            )
            connection.executemany("DELETE FROM volume_objects WHERE name = ?", rows)

    def forget(self, volume: str, name: Multihash) -> None:
        """Records that a copy was deleted."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM volume_remains WHERE volume = ? AND name = ?", (volume, name))

    def _names(self, question: str, *values: str | bytes) -> list[Multihash]:
        with self._database.read() as connection:
            return [Multihash.from_bytes(row[0]) for row in connection.execute(question, values).fetchall()]
