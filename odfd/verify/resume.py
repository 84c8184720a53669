"""Records verified parts, so that an interrupted verification continues and a repeated one costs less.

Two things are remembered of a dataset, bound to the name of a block and to the version of all rules: up to which block
every object was found to be what its block says, and whether that verification came to its end. Blocks are always
hashed and judged again, and of a finished verification so are the bytes of all objects: a bit that flipped since is
found. What is spared is reading rows, since equal bytes hold equal rows; and of an unfinished one all of the objects
that it had done. A ``StoredMemory`` is made for one verification. It never says that a chain holds.
"""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

import msgspec

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.rules.check import RULES
from chain.store.base import StoredChain
from chain.store.database import Database
from chain.store.seals import Sealed

VERIFIED: Final = Sealed(
    "verified", ("dataset", "size", "name", "version", "complete"), "odfctl verify REF --full forgets it"
)
ROOM: Final = "verify"
STEPS: Final = (
    """
    CREATE TABLE verified (
        dataset BLOB PRIMARY KEY,
        size INTEGER NOT NULL,
        name BLOB NOT NULL,
        version BLOB NOT NULL,
        complete INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    VERIFIED.step,
)
EDITION: Final = 2
"""Raised whenever an append rule or a check of objects comes to mean something else under the same name."""


class Remembered(msgspec.Struct, frozen=True):
    """Reusable results; ``rows``: first blocks with only bytes to check. ``done``: blocks without any check."""

    rows: int = 0
    done: int = 0


class Memory(Protocol):
    def recall(self, chain: StoredChain) -> Remembered:
        """Returns the reusable results for ``chain``; none after a rewrite."""

    def keep(self, size: int, name: Multihash, complete: bool) -> None:
        """Records that the objects of the first ``size`` blocks, the last of which is ``name``, are valid."""


class StoredMemory:
    """A memory in the node's database."""

    def __init__(self, database: Database, dataset: DatasetId, forget: bool = False) -> None:
        """``forget``: whatever was known is no longer."""
        database.migrate(ROOM, STEPS)
        self._database = database
        self._dataset = dataset
        if forget:
            with database.write() as connection:
                connection.execute("DELETE FROM verified WHERE dataset = ?", (dataset,))

    def recall(self, chain: StoredChain) -> Remembered:
        with self._database.read() as connection:
            wanted = (self._dataset, rules_version())
            row, whole = VERIFIED.look(connection, "dataset = ? AND version = ?", wanted)
        if row is None or not whole:
            return Remembered()
        _, size, name, _, complete = row
        last = next(chain.stored_blocks(size - 1, size), None)
        if last is None or last.name != name:
            return Remembered()
        return Remembered(rows=size, done=0 if complete else size)

    def keep(self, size: int, name: Multihash, complete: bool) -> None:
        with self._database.write() as connection:
            VERIFIED.put(connection, self._dataset, size, name, rules_version(), complete)


def rules_version() -> bytes:
    """Changes with every rule that comes or goes, and with EDITION."""
    return hashlib.sha3_256("\n".join([str(EDITION), *(rule.name for rule in RULES)]).encode()).digest()
