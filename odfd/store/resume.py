"""Records verified parts, so that an interrupted verification continues and a repeated one costs less.

Two facts about a dataset are stored, bound to the hash of a block and to the version of all rules: up to which block
every object matched its block, and whether that verification was finished. Blocks are always hashed and checked again,
and after a finished verification so are the bytes of all objects, to find bits that flipped since. Reading rows is
saved, since equal bytes hold equal rows; after an unfinished one, also all checks of the objects that it had done. A
``StoredMemory`` is made for one verification. It never asserts that a chain is valid.
"""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

import msgspec

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.rules.check import RULES
from chain.store.base import Head, StoredChain
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
"""Incremented whenever an append rule or a check of objects changes its meaning under the same name."""


class Remembered(msgspec.Struct, frozen=True):
    """Reusable results. ``rows``: number of first blocks with only bytes to check; ``done``: without any check."""

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
        """Opens the memory; ``forget`` deletes earlier results of the dataset."""
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


class CheckedOnArrival:
    """Results of checks that were made while all objects of a chain were fetched; it records nothing."""

    def __init__(self, last: Head) -> None:
        """``last``: the last block whose objects, and those before, were checked."""
        self._last = last

    def recall(self, chain: StoredChain) -> Remembered:
        size = self._last.size
        last = next(chain.stored_blocks(size - 1, size), None)
        return Remembered(rows=size, done=size) if last is not None and last.name == self._last.hash else Remembered()

    def keep(self, size: int, name: Multihash, complete: bool) -> None:
        """Records nothing: whoever takes the chain in records it."""


def rules_version() -> bytes:
    """Returns a hash that changes with the list of rules, and with EDITION."""
    return hashlib.sha3_256("\n".join([str(EDITION), *(rule.name for rule in RULES)]).encode()).digest()
