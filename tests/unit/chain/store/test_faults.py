"""What can be wrong with a state directory, and what is said then."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.codec.blocks import encode_block
from chain.errors import Environment, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import DatasetKind, Seed, SetInfo
from chain.multihash import Multihash
from chain.store import objects as objects_module
from chain.store import schema
from chain.store.base import Append
from chain.store.database import Database, open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.store.crash_recovery import pages_promised
from odfd.store.directory import StateLock
from worlds import crashing_writer as writer
from worlds.depth import share
from worlds.faults import breaks
from worlds.full_disk import room_for

OWNER = DatasetId.from_public_key(bytes(32))


def seed() -> Block:
    event = Seed(dataset_id=OWNER, dataset_kind=DatasetKind.ROOT)
    return encode_block(MetadataBlock(system_time=Instant(0), sequence_number=0, event=event))


def second(text: str) -> Block:
    event = SetInfo(description=text)
    return encode_block(
        MetadataBlock(system_time=Instant(1), prev_block_hash=seed().hash, sequence_number=1, event=event)
    )


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(tmp_path / "odfd.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def objects(tmp_path: Path, database: Database) -> DiskObjects:
    return DiskObjects(tmp_path / "objects", database)


@pytest.fixture
def chains(database: Database, objects: DiskObjects) -> SqliteChains:
    return SqliteChains(database, objects)


def test_a_damaged_block_is_never_served(chains: SqliteChains, database: Database) -> None:
    chains.commit([Append(dataset=OWNER, expected=None, blocks=[seed(), second("x")])])
    with database.write() as connection:
        raw = bytearray(seed().raw)
        raw[-1] ^= 1
        connection.execute("UPDATE blocks SET raw = ? WHERE sequence = 0", (bytes(raw),))
    chain = chains.chain(OWNER)
    for read in (
        lambda: chain.block_at(0),
        lambda: chain.block_by_hash(seed().hash),
        lambda: chain.last_of(["Seed"]),
        lambda: list(chain.raw_blocks(0, 2)),
    ):
        with breaks("stored-block-damaged", Environment, match="damaged on disk") as caught:
            read()
        assert caught.value.hint
    assert chain.block_at(1) == second("x")
    assert [stored.sequence_number for stored in chain.stored_blocks()] == [0, 1]


def test_a_damaged_small_object_is_never_served(objects: DiskObjects, database: Database) -> None:
    name = objects.add_bytes(b"small")
    objects.flush()
    with database.write() as connection:
        connection.execute("UPDATE small_objects SET data = x'00'")
    with pytest.raises(Environment, match="damaged on disk"):
        objects.read(name)
    with pytest.raises(Environment, match="damaged on disk"):
        objects.path(name)


def test_adding_a_file_again_mends_a_damaged_one(objects: DiskObjects) -> None:
    data = bytes(100_000)
    name = objects.add_bytes(data)
    path = objects.path(name)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    objects.add_bytes(data)
    assert objects.path(name).read_bytes() == data


def test_small_objects_wait_for_a_commit_and_survive_it(
    tmp_path: Path, chains: SqliteChains, objects: DiskObjects
) -> None:
    name = objects.add_bytes(b"small")
    assert list(objects.names()) == []
    chains.commit([Append(dataset=OWNER, expected=None, blocks=[seed()], objects=[name])])
    assert list(objects.names()) == [name]
    large = objects.add_bytes(bytes(70_000))
    assert set(objects.names()) == {name, large}


def test_small_objects_do_not_pile_up_in_memory(objects: DiskObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "_PENDING_LIMIT", 1000)
    names = [objects.add_bytes(bytes([i]) * 100) for i in range(25)]
    assert len(list(objects.names())) >= 15
    assert [objects.read(name) for name in names] == [bytes([i]) * 100 for i in range(25)]


def test_what_a_crash_left_in_staging_goes(tmp_path: Path, database: Database) -> None:
    left = DiskObjects(tmp_path / "objects", database).stage()
    left.write_bytes(b"half")
    DiskObjects(tmp_path / "objects", database)
    assert not left.exists()


def test_a_staged_file_that_was_never_written(objects: DiskObjects) -> None:
    with pytest.raises(NotFound):
        objects.add_file(objects.stage())


def test_readers_see_a_snapshot_and_never_wait(chains: SqliteChains, database: Database) -> None:
    chains.commit([Append(dataset=OWNER, expected=None, blocks=[seed()])])
    with database.read() as reader, database.write() as writer:
        writer.execute("DELETE FROM blocks")
        assert reader.execute("SELECT count(*) FROM blocks").fetchone() == (1,)
        assert chains.chain(OWNER).block_at(0) == seed()
        writer.execute("ROLLBACK")
        writer.execute("BEGIN")
    with pytest.raises(Environment, match="readonly"), database.read() as reader:
        reader.execute("DELETE FROM blocks")


def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    database.migrate("room", ["CREATE TABLE room (n INTEGER)"])

    def fail() -> None:
        with database.write() as connection:
            connection.execute("INSERT INTO room VALUES (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.read() as connection:
        assert connection.execute("SELECT count(*) FROM room").fetchone() == (0,)


def test_rooms_bring_their_tables_step_by_step(database: Database) -> None:
    first = "CREATE TABLE room (n INTEGER);\nCREATE INDEX room_n ON room (n);"
    database.migrate("room", [first])
    database.migrate("room", [first])
    database.migrate("room", [first, "ALTER TABLE room ADD COLUMN m TEXT"])
    with database.write() as connection:
        connection.execute("INSERT INTO room VALUES (1, 'a')")
    with pytest.raises(Environment, match="the other tables of"):
        database.migrate("other", ["CREATE TABLE other (n INTEGER)", "CREATE TABLE room (n INTEGER)"])
    with database.read() as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'other'").fetchall() == []
    with breaks("database-version", Environment, match="written by a newer odfd"):
        database.migrate("room", [first])


def test_rooms_that_are_brought_together_cost_one_write_and_none_when_they_are_new(database: Database) -> None:
    def log() -> int:
        return database.path.with_name(database.path.name + "-wal").stat().st_size

    rooms = [(name, [f"CREATE TABLE {name} (n INTEGER)"]) for name in ("one", "two", "three")]
    database.migrate_all(rooms)
    size, writes = log(), database.writes
    database.migrate_all(rooms)
    assert database.writes == writes, "looked at again"
    with closing(open_database(database.path)) as other:
        begun = other.writes
        other.migrate_all(rooms)
        assert other.writes == begun + 1
        assert log() == size
    with pytest.raises(Environment):
        database.migrate_all([("four", ["CREATE TABLE four (n INTEGER)"]), ("five", ["CREATE TABLE one (n INTEGER)"])])
    with database.read() as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'four'").fetchall() == []
        assert connection.execute("SELECT count(*) FROM versions WHERE room IN ('one', 'four')").fetchone() == (1,)


@pytest.mark.parametrize("version", range(1, len(schema.STEPS)))
def test_a_database_of_a_version_before_is_brought_up(tmp_path: Path, version: int) -> None:
    old = open_database(tmp_path / "odfd.sqlite")
    old.migrate(schema.ROOM, schema.STEPS[:version])
    made = [seed(), second("one")]
    with old.write() as connection:
        connection.execute(
            "INSERT INTO datasets (number, id, head_sequence, head_hash) VALUES (1, ?, 1, ?)", (OWNER, made[-1].hash)
        )
        for number, block in enumerate(made):
            row = (1, number, schema.kind_of(block), block.hash, block.raw)
            connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?)", row)
    old.close()
    new = open_database(tmp_path / "odfd.sqlite")
    chain = SqliteChains(new, DiskObjects(tmp_path / "objects", new)).chain(OWNER)
    assert chain.block_by_hash(second("one").hash).sequence_number == 1
    new.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "odfd.sqlite").write_bytes(b"not a database" * 1000)
    with breaks("database-corrupt", Environment):
        open_database(tmp_path / "odfd.sqlite")


def test_a_damaged_database(tmp_path: Path) -> None:
    path = tmp_path / "odfd.sqlite"
    database = open_database(path)
    chains = SqliteChains(database, DiskObjects(tmp_path / "objects", database))
    chains.commit([Append(dataset=OWNER, expected=None, blocks=[seed()])])
    database.close()
    raw = path.read_bytes()
    path.write_bytes(raw[:4096] + bytes(len(raw) - 4096))
    opened = open_database(path)
    with breaks("database-corrupt", Environment):
        SqliteChains(opened, DiskObjects(tmp_path / "objects", opened)).datasets()
    opened.close()


def test_a_full_disk(database: Database, chains: SqliteChains) -> None:
    with database.read() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    with database.write() as connection:
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with breaks("disk-full", Environment):
        chains.commit([Append(dataset=OWNER, expected=None, blocks=[seed(), second("x" * 100_000)])])
    assert chains.chain(OWNER).head() is None
    with database.write() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    chains.commit([Append(dataset=OWNER, expected=None, blocks=[seed()])])


def test_no_state_directory(tmp_path: Path) -> None:
    with breaks("disk-permission", Environment):
        open_database(tmp_path / "no" / "odfd.sqlite")
    with pytest.raises(Environment, match="cannot use the state directory"):
        StateLock(tmp_path / "no").acquire()


@pytest.mark.slow
def test_one_process_per_state_directory(tmp_path: Path) -> None:
    hold = "import sys; from pathlib import Path; from odfd.store.directory import StateLock\n"
    hold += "StateLock(Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()"
    tree = Path(__file__).parents[4]
    process = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process:
        assert process.stdout.readline() == b"held\n"
        with breaks("state-lock", Environment, match=f"process {process.pid}"):
            StateLock(tmp_path).acquire()
        process.kill()
    with StateLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_an_unknown_object(objects: DiskObjects) -> None:
    with pytest.raises(NotFound):
        objects.size(Multihash.sha3_256(b"?"))


def test_a_full_disk_keeps_no_node_from_its_state(tmp_path: Path) -> None:
    with room_for(0), StateLock(tmp_path), pytest.raises(Environment) as caught:
        StateLock(tmp_path).acquire()
    assert caught.value.rule == "state-lock"


def test_a_closed_database_opens_its_file_no_more(tmp_path: Path) -> None:
    """Not even for a reader that was there when it was closed."""
    database = open_database(tmp_path / "odfd.db")
    with database.read() as reader:
        database.close()
    with pytest.raises(sqlite3.ProgrammingError):
        reader.execute("SELECT 1")
    for opened in (database.read, database.write):
        with pytest.raises(sqlite3.ProgrammingError), opened():
            raise AssertionError


def test_what_is_deleted_is_overwritten_whatever_sqlite_does_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def connect_plain(*args: Any, **settings: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **settings)
        connection.execute("PRAGMA secure_delete = OFF")  # some builds have it on, others off
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_plain)
    database = open_database(tmp_path / "odfd.db")
    database.migrate("secrets", ["CREATE TABLE secrets (value BLOB)"])
    secret = b"a sealed secret" * 100
    with database.write() as connection:
        connection.execute("INSERT INTO secrets VALUES (?)", (secret,))
    with database.write() as connection:
        connection.execute("DELETE FROM secrets")
    database.close()
    assert b"a sealed secret" not in database.path.read_bytes()


# Death at every durable step of a commit: what is found after is the old state or the new, and the work can go on.


OBJECT_STEPS = ["object-hashed", "object-synced", "object-renamed", "object-folder-synced"]
COMMIT_STEPS = ["commit-begun", "commit-objects", "commit-blocks", "commit-also", "commit-durable"]
POINTS = [f"{step}:1" for step in OBJECT_STEPS] + [f"{step}:{n}" for n in (1, 2) for step in COMMIT_STEPS]


def run(directory: Path, step: str) -> int:
    """How a process ended that wrote: a fork of this one, which has all imported already."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            writer.main(directory, step)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sizes(directory: Path) -> tuple[list[int], list[int]]:
    """Lengths of both chains and the rows beside them; checks that whatever is there is whole."""
    database = open_database(directory / "odfd.sqlite")
    objects = DiskObjects(directory / "objects", database)
    chains = SqliteChains(database, objects)
    found = []
    for dataset in writer.DATASETS:
        raws = list(chains.chain(dataset).raw_blocks(0, 99))
        assert raws == [block.raw for block in writer.chain_of(dataset)[: len(raws)]]
        head = chains.chain(dataset).head()
        assert (head.size if head else 0) == len(raws)
        found.append(len(raws))
    if any(found):
        assert objects.read(Multihash.sha3_256(writer.LARGE)) == writer.LARGE
        assert objects.read(Multihash.sha3_256(writer.SMALL)) == writer.SMALL
    with database.read() as connection:
        rows = connection.execute("SELECT size FROM notes ORDER BY size").fetchall()
    assert list((directory / "objects" / ".staging").iterdir()) == []
    database.close()
    return found, [row[0] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_commit_is_all_or_nothing(point: str, tmp_path: Path) -> None:
    assert run(tmp_path, point) == 9
    step, _, number = point.partition(":")
    commits = 0 if step in OBJECT_STEPS else int(number) - (step != "commit-durable")
    expected = {0: ([0, 0], []), 1: ([1, 1], [1]), 2: ([3, 3], [1, 3])}
    assert sizes(tmp_path) == expected[commits]
    assert run(tmp_path, "none") == 0
    assert sizes(tmp_path) == expected[2]
    assert run(tmp_path, "none") == 0
    assert sizes(tmp_path) == expected[2]


# What was committed and cannot be read back is noticed, wherever the log of a killed process is damaged.


TABLE = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT) STRICT"
FIRST, FRAME = 32, 24 + 4096
"""Where the first page of a log starts, and what one takes."""
BITS = st.integers(0, (1 << 40) - 1)


@pytest.fixture(scope="module", params=["one commit", "many", "begun anew", "begun anew and longer"])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A database in mid-life, and the size of each of its commits. A log that was folded in begins anew."""
    sizes, anew_after = {
        "one commit": ([50], None),
        "many": ([700, 9000, 1, 30_000, 20], None),
        "begun anew": ([9000, 9000, 30_000, 10, 6000], 3),
        "begun anew and longer": ([10, 9000, 700, 30_000, 5], 1),
    }[request.param]
    folder = tmp_path_factory.mktemp("killed")
    database = open_database(folder / "d")
    with database.write() as connection:
        connection.execute(TABLE)
    for number, size in enumerate(sizes):
        if number == anew_after:
            with contextlib.closing(sqlite3.connect(folder / "d")) as other:
                other.execute("PRAGMA wal_checkpoint(FULL)")
        with database.write() as connection:
            connection.execute("INSERT INTO notes VALUES (?, ?)", (number, "x" * size))
    shutil.copytree(folder, folder / "copy")
    database.close()
    return folder / "copy" / "d", sizes


@contextlib.contextmanager
def copied(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for file in (path, log_of(path)):
            shutil.copy(file, folder)
        yield Path(folder) / "d"


def notes(path: Path) -> tuple[int, list[tuple[int, str]]]:
    database = open_database(path)
    try:
        with database.read() as connection:
            return database.recovered, connection.execute("SELECT id, text FROM notes ORDER BY id").fetchall()
    finally:
        database.close()


def log_of(path: Path) -> Path:
    return path.with_name("d-wal")


def test_a_whole_log_keeps_its_promise(killed: tuple[Path, list[int]]) -> None:
    with copied(killed[0]) as path:
        promised = pages_promised(log_of(path))
        recovered, found = notes(path)
    assert promised == recovered > 0
    assert [(number, len(text)) for number, text in found] == list(enumerate(killed[1]))


@pytest.mark.slow
@given(BITS, st.booleans())
@settings(max_examples=share(60))
def test_a_flipped_bit_breaks_it_or_changes_nothing(
    killed: tuple[Path, list[int]], place: int, in_header: bool
) -> None:
    raw = bytearray(log_of(killed[0]).read_bytes())
    at = place // 8 % len(raw)
    if in_header:
        # The bytes of the log's own header and of its pages' are few, and mean most.
        pages = range(FIRST, len(raw), FRAME)
        spots = [*range(FIRST), *(page + byte for page in pages for byte in range(24))]
        at = spots[place // 8 % len(spots)]
    raw[at] ^= 1 << place % 8
    with copied(killed[0]) as path:
        log_of(path).write_bytes(raw)
        promised = pages_promised(log_of(path))
        try:
            recovered, found = notes(path)
        except (Environment, sqlite3.OperationalError):
            return  # noticed: the table is not there, or the file is no database
    whole = [(number, len(text)) for number, text in found] == list(enumerate(killed[1]))
    assert whole or promised > recovered


def test_a_commit_that_was_cut_off_is_no_loss(killed: tuple[Path, list[int]]) -> None:
    with copied(killed[0]) as path:
        log = log_of(path)
        last = pages_promised(log)
        with log.open("r+b") as file:
            file.truncate(FIRST + last * FRAME - 1)
        promised = pages_promised(log)
        recovered, _ = notes(path)
    assert promised == recovered < last


@pytest.mark.parametrize("raw", [b"", b"\0", bytes(31), bytes(55)])
def test_a_log_with_nothing_in_it_promises_nothing(raw: bytes, tmp_path: Path) -> None:
    log = tmp_path / "d-wal"
    assert pages_promised(log) == 0
    log.write_bytes(raw)
    assert pages_promised(log) == 0


@given(st.binary(min_size=56, max_size=20_000))
def test_garbage_promises_no_more_than_there_is_room_for(raw: bytes) -> None:
    with tempfile.NamedTemporaryFile() as log:
        log.write(raw)
        log.flush()
        assert 1 <= pages_promised(Path(log.name)) <= len(raw) // 24
