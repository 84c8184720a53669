"""How the store lays out, packs, caches and seals what it holds."""

from __future__ import annotations

import ctypes
import errno
import itertools
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.codec.blocks import MAX_BLOCK, encode_block
from chain.errors import Conflict, Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant, from_millis
from chain.model.block import Block, MetadataBlock, SealedBlock
from chain.model.events import AddData, DatasetKind, Seed, SetInfo
from chain.multihash import Multihash
from chain.store import blockfiles, bulk_rows, durable, sqlite
from chain.store import database as module
from chain.store.base import Append, Head
from chain.store.blockfiles import BlockFiles, Names, walk
from chain.store.database import Database, open_database
from chain.store.layout import DirectoryWriter, read_head
from chain.store.objects import DiskObjects
from chain.store.seals import ROW_DAMAGED, Sealed
from chain.store.shards import SEALED
from chain.store.sqlite import SqliteChains
from chain.store.sqlite_shards import SqliteShards
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


# The walk through a folder of blocks: guessed or read, whole or damaged, it finds the same names.


SIZE = 40


def chain() -> list[Block]:
    """Most blocks of one shape, some of another."""
    blocks: list[Block] = []
    for number in range(SIZE):
        event: Seed | SetInfo | AddData = AddData(new_watermark=Instant(number * SECOND))
        if number == 0:
            event = Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT)
        elif number % 9 == 0:
            event = SetInfo(description="n" * (number % 4))
        previous = blocks[-1].hash if blocks else None
        content = MetadataBlock(
            system_time=Instant(number * SECOND), prev_block_hash=previous, sequence_number=number, event=event
        )
        blocks.append(encode_block(content))
    return blocks


CHAIN = chain()
DAMAGE = st.one_of(
    st.tuples(st.just("gone"), st.just(0)),
    st.tuples(st.just("short"), st.integers(0, 250)),
    st.tuples(st.just("flipped"), st.integers(0, 8 * len(CHAIN[1].raw) - 1)),
)


def write(folder: Path, damage: dict[int, tuple[str, int]]) -> None:
    for file in folder.iterdir():
        file.unlink()
    for block in CHAIN:
        raw = bytearray(block.raw)
        kind, place = damage.get(block.sequence_number, ("", 0))
        if kind == "short":
            del raw[place:]
        elif kind == "flipped":
            raw[place // 8 % len(raw)] ^= 1 << place % 8
        if kind != "gone":
            (folder / str(block.hash)).write_bytes(raw)


def named(walked: tuple[int, Names]) -> tuple[int, list[Multihash]]:
    return walked[0], list(walked[1])


def test_the_walk_goes_from_the_head_to_the_seed(tmp_path: Path) -> None:
    write(tmp_path, {})
    assert named(walk(BlockFiles(tmp_path), CHAIN[-1].hash)) == (0, [block.hash for block in CHAIN])


@pytest.mark.slow
@settings(max_examples=share(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.dictionaries(st.integers(0, SIZE - 1), DAMAGE, max_size=4))
def test_guesses_lose_nothing(damage: dict[int, tuple[str, int]], tmp_path: Path) -> None:
    write(tmp_path, damage)
    _, guessed = walk(BlockFiles(tmp_path), CHAIN[-1].hash)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockfiles, "_MAX_PLACES", 0)
        _, read = walk(BlockFiles(tmp_path), CHAIN[-1].hash)
    assert list(guessed[len(guessed) - len(read) :]) == list(read)


@pytest.mark.slow
@settings(max_examples=share(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(1, SIZE - 2), damage=DAMAGE)
def test_one_damaged_block_does_not_end_the_walk(number: int, damage: tuple[str, int], tmp_path: Path) -> None:
    write(tmp_path, {number: damage})
    assert named(walk(BlockFiles(tmp_path), CHAIN[-1].hash)) == (0, [block.hash for block in CHAIN])


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {})
    monkeypatch.setattr(blockfiles, "KEPT", 3 * len(CHAIN[2].raw))
    files = BlockFiles(tmp_path)
    walk(files, CHAIN[-1].hash)
    for file in tmp_path.iterdir():
        file.unlink()
    left = [block.sequence_number for block in CHAIN if files.read(block.hash) is not None]
    assert left == [0, 1, 2], "those where a reading begins"


def test_no_more_is_read_than_a_block_may_have(tmp_path: Path) -> None:
    name = Multihash.sha3_256(b"")
    with (tmp_path / str(name)).open("wb") as file:
        file.truncate(1 << 32)
    raw = BlockFiles(tmp_path).read(name)
    assert raw is not None
    assert len(raw) == MAX_BLOCK + 1


@pytest.mark.slow
@settings(max_examples=share(60))
@given(ahead=st.integers(0, 9), ring=st.integers(1, 9), look=st.integers(1, 12))
def test_files_that_name_each_other_in_a_ring_are_walked_once(ahead: int, ring: int, look: int) -> None:
    names = [Multihash.sha3_256(bytes([number])) for number in range(ahead + ring)]

    class Rings(BlockFiles):
        """Files that hold other blocks than their names say, each naming the next."""

        def read(self, name: Multihash) -> bytes:
            return name

    class Walk(blockfiles._Walk):
        def _next(self, name: Multihash, number: int | None) -> tuple[int, Multihash]:
            place = names.index(name)
            above = 1000 if number is None else number
            return above - 1, names[place + 1] if place + 1 < len(names) else names[ahead]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockfiles, "_FIRST_LOOK", look)
        first, found = Walk(Rings(Path("nowhere"))).run(names[0])
    assert list(found) == names[::-1]
    assert first == 1000 - len(names) + 1


def test_names_are_a_sequence() -> None:
    names = Names(b"".join(block.hash for block in CHAIN))
    assert len(names) == len(CHAIN)
    assert list(names) == [block.hash for block in CHAIN]
    assert names[-1] == CHAIN[-1].hash
    assert list(names[3:5]) == [CHAIN[3].hash, CHAIN[4].hash]
    assert not names[5:3]
    with pytest.raises(IndexError):
        names[len(CHAIN)]


# Frontiers of shards move without blocks, never back, all or none; and commits keep what they promise.


D, K = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[SqliteChains, SqliteShards]]:
    database = open_database(tmp_path / "odfd.sqlite")
    chains = SqliteChains(database, DiskObjects(tmp_path / "objects", database))
    chains.commit([Append(dataset=each, expected=None, blocks=[seed(each)]) for each in (D, K)])
    yield chains, SqliteShards(database, chains)
    database.close()


def block(time: int, after: Block | None, event: Any) -> Block:
    number = 0 if after is None else after.sequence_number + 1
    before = None if after is None else after.hash
    return encode_block(
        MetadataBlock(system_time=from_millis(time), prev_block_hash=before, sequence_number=number, event=event)
    )


def seed(dataset: DatasetId) -> Block:
    return block(10, None, Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT))


def appended(dataset: DatasetId, time: int) -> Append:
    """A second block of a chain."""
    first = seed(dataset)
    made = block(time, first, SetInfo(description="later"))
    return Append(dataset=dataset, expected=Head(first.hash, 0), blocks=[made])


def uppers(chains: SqliteChains) -> list[int]:
    return [chains.upper(each) for each in (D, K)]


def test_a_frontier_moves_and_never_back(kept: tuple[SqliteChains, SqliteShards]) -> None:
    chains, shards = kept
    assert uppers(chains) == [10, 10], "without a promise another block may have the last one's time"
    shards.advance([D], 30)
    shards.advance([D, K], 20)
    assert uppers(chains) == [30, 20]
    shards.advance([D], SEALED)
    shards.advance([D], 40)
    assert uppers(chains) == [SEALED, 20]
    for bad in (-1, SEALED + 1):
        with pytest.raises(Invalid, match="is no time"):
            shards.advance([D, K], bad)


def test_commits_keep_what_was_promised(kept: tuple[SqliteChains, SqliteShards]) -> None:
    chains, shards = kept
    shards.advance([D], 30)
    with pytest.raises(Conflict, match="complete"):
        chains.commit([appended(K, 40), appended(D, 20)])
    assert uppers(chains) == [30, 10], "none of both"
    chains.commit([appended(D, 35)])
    assert uppers(chains) == [35, 10]


def test_who_is_overtaken_between_reading_and_writing_begins_anew(
    kept: tuple[SqliteChains, SqliteShards], monkeypatch: pytest.MonkeyPatch
) -> None:
    chains, shards = kept
    read, late = shards.read, [appended(D, 20)]

    def overtaken(datasets: Sequence[DatasetId]) -> Any:
        found = read(datasets)
        if late:
            chains.commit([late.pop()])
        return found

    monkeypatch.setattr(shards, "read", overtaken)
    shards.advance([K, D], 30)
    assert uppers(chains) == [30, 30]
    head = chains.chain(D).head()
    assert head is not None
    assert head.sequence_number == 1


# Keys that writes touched since a given one: those of a model, or everything where the database does not remember.


NOTED_STEPS = ("CREATE TABLE noted (key BLOB) STRICT;", "CREATE TABLE other (n INTEGER) STRICT;")
REMEMBERED = 4


@pytest.fixture
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(module, "RECENT_WRITES", REMEMBERED)
    monkeypatch.setattr(module, "MAX_KEYS", 3)
    opened = open_database(tmp_path / "db")
    opened.migrate("room", NOTED_STEPS)
    opened.watch({"noted": "{row}.key"}, (), lambda connection, touched: None)
    yield opened
    opened.close()


@pytest.mark.slow
@settings(max_examples=share(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=st.lists(st.frozensets(st.sampled_from([b"a", b"b", b"c", b"d", None]), max_size=4), max_size=12))
def test_keys_are_those_of_the_writes_or_everything(forgetful: Database, writes: list[frozenset[bytes | None]]) -> None:
    start, model = forgetful.writes, [(forgetful.writes, frozenset[bytes | None]())]
    for keys in writes:
        with forgetful.write() as connection:
            connection.executemany("INSERT INTO noted VALUES (?)", [(key,) for key in keys if key is not None])
            if None in keys:
                connection.execute("INSERT INTO other VALUES (1)")
        model.append((forgetful.writes, keys))
    assert forgetful.writes == start + len(writes)
    for since, _ in model:
        later = [keys for number, keys in model if number > since]
        told, touched = forgetful.changed_since(since), frozenset[bytes | None]().union(*later)
        if told is not None:
            assert told == touched, "nothing that changed is left out"
        else:
            forgotten = sum(map(bool, later)) > REMEMBERED
            assert forgotten or None in touched or any(len(keys) > 3 for keys in later), "everything without a reason"


def test_what_is_up_to_date_costs_nothing(forgetful: Database) -> None:
    assert forgetful.changed_since(forgetful.writes) == frozenset()
