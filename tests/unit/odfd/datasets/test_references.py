"""What blocks name: kept as they lie, found by name, and carried over from how it was kept before."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from chain.ids import DatasetId
from chain.multihash import Multihash
from odfd.store.references import STEPS, drop_later, drop_references, keep_named, references_to

MINE, OTHER = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))
NAMES = [Multihash.sha3_256(bytes([number])) for number in range(9)]


def tables(connection: sqlite3.Connection, steps: tuple[str, ...] = STEPS) -> None:
    for script in steps:
        connection.executescript(script)


def test_the_first_block_that_names_it_counts_in_each_dataset() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        tables(connection)
        keep_named(connection, MINE, [(NAMES[0], 2), (NAMES[1], 2), (NAMES[0], 5)])
        keep_named(connection, OTHER, [(NAMES[0], 7)])
        assert sorted(references_to(connection, NAMES[0])) == sorted([(MINE, 2), (OTHER, 7)])
        drop_later(connection, MINE, 5)
        assert (MINE, 2) in references_to(connection, NAMES[0])
        assert sorted(drop_references(connection, MINE)) == [NAMES[1]]
        assert references_to(connection, NAMES[0]) == [(OTHER, 7)]


def test_names_that_begin_alike_are_told_apart() -> None:
    """The index holds eight bytes of a name."""
    alike = Multihash(NAMES[0][:20] + bytes(14))
    with closing(sqlite3.connect(":memory:")) as connection:
        tables(connection)
        keep_named(connection, MINE, [(NAMES[0], 1), (alike, 3)])
        assert references_to(connection, alike) == [(MINE, 3)]


def test_what_was_kept_by_name_is_carried_over() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        tables(connection, STEPS[:-1])
        rows = [(name, MINE, number) for number, name in enumerate(NAMES)]
        connection.executemany("INSERT INTO object_references (object, dataset, sequence) VALUES (?, ?, ?)", rows)
        tables(connection, STEPS[-1:])
        assert [references_to(connection, name) for name in NAMES] == [[(MINE, number)] for number in range(9)]
