"""How the store lays out, packs, caches and seals what it holds."""

from __future__ import annotations

import ctypes
import errno
import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.errors import Environment, NotFound
from chain.model.block import SealedBlock
from chain.multihash import Multihash
from chain.store import bulk_rows, durable, sqlite
from chain.store.database import Database, open_database
from chain.store.layout import DirectoryWriter, read_head
from chain.store.seals import ROW_DAMAGED, Sealed
from worlds.depth import share

# The folder layout waits for its own file system, and tells what that could not write.

NAME = Multihash.sha3_256(b"a block")


def failing(_: int) -> int:
    ctypes.set_errno(errno.EIO)
    return -1


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    chain = DirectoryWriter(tmp_path / "one")
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(NotFound, match="no file"):
        chain.set_head(NAME, None)


def test_a_disk_that_fails_moves_no_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``os.sync`` returns nothing: a head could name a block that no disk holds."""
    chain = DirectoryWriter(tmp_path)
    chain.add_block(NAME, b"a block")
    monkeypatch.setattr(durable, "_c_library", lambda: SimpleNamespace(syncfs=failing))
    with pytest.raises(Environment, match=r"cannot use .*: Input/output error"):
        chain.set_head(NAME, None)
    assert read_head(tmp_path) is None


# Blocks are given to SQLite in pages: all of them, in order, and none too large to bind.

NO_BYTES = Multihash.sha3_256(b"")
ROWS = st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=40)
"""Of each block its size, and whether one is lacking before it."""


@given(rows=ROWS, blocks=st.integers(1, 7), size=st.integers(1, 20))
def test_pages_are_in_a_row_and_fit(rows: list[tuple[int, bool]], blocks: int, size: int) -> None:
    numbers = itertools.accumulate(1 + gap for _, gap in rows)
    made = [SealedBlock(bytes(room), NO_BYTES, None, at, 1, ()) for (room, _), at in zip(rows, numbers, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "_BOUND_BLOCKS", blocks)
        patch.setattr(sqlite, "_BOUND_BYTES", size)
        pages = list(sqlite._pages(made))
    assert list(itertools.chain(*pages)) == made
    for page, following in itertools.pairwise([*pages, None]):
        assert page
        assert [one.sequence_number - page[0].sequence_number for one in page] == list(range(len(page)))
        room = sum(len(one.raw) for one in page)
        assert len(page) == 1 or (len(page) <= blocks and room <= size)
        if following and following[0].sequence_number == page[-1].sequence_number + 1:
            assert len(page) == blocks or room + len(following[0].raw) > size, "no page is shorter than it must be"


# Rows given in one statement are the rows that were meant.

VALUES = st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 255)), max_size=30)
NUMBERED = st.lists(st.tuples(st.binary(min_size=1, max_size=4), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=30)


@given(VALUES)
def test_values_come_back_whole_with_their_tags(rows: list[tuple[bytes, int]]) -> None:
    values, tags = [value for value, _ in rows], [tag for _, tag in rows]
    with closing(sqlite3.connect(":memory:")) as database:
        back = database.execute(
            f"SELECT {bulk_rows.each('?1')}, {bulk_rows.TAG} FROM json_each(?2)",
            (b"".join(values), bulk_rows.places(values, tags)),
        ).fetchall()
    assert back == rows


@given(NUMBERED)
def test_values_of_all_widths_keep_their_numbers(rows: list[tuple[bytes, int]]) -> None:
    back: list[tuple[bytes, int]] = []
    with closing(sqlite3.connect(":memory:")) as database:
        for width, values, numbers in bulk_rows.by_width([each[0] for each in rows], [each[1] for each in rows]):
            back += database.execute(
                "SELECT substr(?1, key * ?2 + 1, ?2), value FROM json_each(?3)", (values, width, numbers)
            ).fetchall()
    assert sorted(back) == sorted(rows)


def test_the_last_byte_that_fits() -> None:
    """Place and length take all their bits, and a tag is no part of them."""
    (one,) = map(int, bulk_rows.places([bytes(1)], [255]).strip("[]").split(","))
    assert one == 1 << 8 | 255
    with closing(sqlite3.connect(":memory:")) as database:
        at = (bulk_rows.MOST - 1) << 33 | bulk_rows.LONGEST << 8 | 255
        found = database.execute(
            f"SELECT (value >> 33), (value >> 8) & {bulk_rows.LONGEST}, {bulk_rows.TAG} FROM json_each(?)",
            (bulk_rows.numbers([at]),),
        ).fetchone()
    assert found == (bulk_rows.MOST - 1, bulk_rows.LONGEST, 255)


# What connections keep of the file in memory is bounded together: each fills up as the file grows.

MOST = 40 << 20
"""Bytes, of the connections that a node keeps open."""


def test_all_caches_together_are_bounded(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.sqlite")
    with ExitStack() as stack:
        readers = [stack.enter_context(database.read()) for _ in range(20)]
        writer = stack.enter_context(database.write())
        kept = {each: -each.execute("PRAGMA cache_size").fetchone()[0] for each in [writer, *readers]}
        assert all(size > 0 for size in kept.values()), "in KiB, whatever the size of a page"
    idle = list(database._idle)
    assert len(idle) == 8
    assert (kept[writer] + sum(kept[reader] for reader in idle)) << 10 <= MOST
    database.close()


def test_a_large_transaction_may_take_more_while_it_lasts(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.sqlite")

    def kept() -> int:
        with database.write() as connection:
            return -int(connection.execute("PRAGMA cache_size").fetchone()[0])

    def large(fault: Exception | None) -> None:
        with database.write(is_large=True) as connection:
            assert small < -connection.execute("PRAGMA cache_size").fetchone()[0] <= 65_536
            if fault:
                raise fault

    small = kept()
    large(None)
    assert kept() == small
    with pytest.raises(ZeroDivisionError):
        large(ZeroDivisionError())
    assert kept() == small
    database.close()


# A row under a seal is what was written, or a fault; a flip in any of its columns is told.

ROOM = Sealed("notes", ("key", "size", "text", "raw"), "write it anew")
STEPS = [
    "CREATE TABLE notes (key BLOB PRIMARY KEY, size INTEGER, text TEXT, raw BLOB) STRICT, WITHOUT ROWID;",
    ROOM.step,
]
Values = tuple[bytes, int | None, str | None, bytes | None]
rows = st.tuples(
    st.binary(min_size=1, max_size=40),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))),
    st.none() | st.binary(max_size=200),
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(tmp_path / "odfd.sqlite")
    opened.migrate("notes", STEPS)
    yield opened
    opened.close()


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share(60))
@given(rows, rows)
def test_what_is_sealed_comes_back_and_nothing_else_does(database: Database, one: Values, other: Values) -> None:
    with database.write() as connection:
        connection.execute("DELETE FROM notes")
        ROOM.put(connection, *one)
        assert ROOM.one(connection, "key = ?", one[:1]) == one
        names = [name for name, a, b in zip(ROOM.columns, one, other, strict=True) if a != b]
        for name in names:
            ROOM.put(connection, *one)
            value = other[ROOM.columns.index(name)]
            connection.execute(f"UPDATE notes SET {name} = ?", (value,))
            with pytest.raises(Environment, match=r"row .* of notes is damaged") as caught:
                list(ROOM.rows(connection))
            assert (caught.value.rule, caught.value.hint) == (ROW_DAMAGED, "write it anew")
            assert len(list(ROOM.damaged(connection))) == 1
            assert ROOM.forget_damaged(connection, "TRUE", ()) == 1
            assert list(ROOM.rows(connection)) == []


def test_rows_from_before_there_were_seals_are_believed(tmp_path: Path) -> None:
    database = open_database(tmp_path / "old.sqlite")
    database.migrate("notes", STEPS[:1])
    with database.write() as connection:
        connection.execute("INSERT INTO notes VALUES (x'00', 1, 'a', NULL)")
    database.migrate("notes", STEPS)
    with database.read() as connection:
        assert list(ROOM.rows(connection)) == [(b"\0", 1, "a", None)]
        assert list(ROOM.damaged(connection)) == []
    database.close()
