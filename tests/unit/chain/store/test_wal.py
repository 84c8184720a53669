"""What was committed and cannot be read back is noticed, wherever the log of a killed process is damaged."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.errors import Environment
from chain.store.database import open_database
from odfd.store.crash_recovery import pages_promised
from worlds.depth import share

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
