"""Keys that writes touched since a given one: those of a model, or everything where the database does not remember."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.store import database as module
from chain.store.database import Database, open_database
from worlds.depth import share

STEPS = ("CREATE TABLE noted (key BLOB) STRICT;", "CREATE TABLE other (n INTEGER) STRICT;")
REMEMBERED = 4


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(module, "RECENT_WRITES", REMEMBERED)
    monkeypatch.setattr(module, "MAX_KEYS", 3)
    opened = open_database(tmp_path / "db")
    opened.migrate("room", STEPS)
    opened.watch({"noted": "{row}.key"}, (), lambda connection, touched: None)
    yield opened
    opened.close()


@pytest.mark.slow
@settings(max_examples=share(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=st.lists(st.frozensets(st.sampled_from([b"a", b"b", b"c", b"d", None]), max_size=4), max_size=12))
def test_keys_are_those_of_the_writes_or_everything(database: Database, writes: list[frozenset[bytes | None]]) -> None:
    start, model = database.writes, [(database.writes, frozenset[bytes | None]())]
    for keys in writes:
        with database.write() as connection:
            connection.executemany("INSERT INTO noted VALUES (?)", [(key,) for key in keys if key is not None])
            if None in keys:
                connection.execute("INSERT INTO other VALUES (1)")
        model.append((database.writes, keys))
    assert database.writes == start + len(writes)
    for since, _ in model:
        later = [keys for number, keys in model if number > since]
        told, touched = database.changed_since(since), frozenset[bytes | None]().union(*later)
        if told is not None:
            assert told == touched, "nothing that changed is left out"
        else:
            forgotten = sum(map(bool, later)) > REMEMBERED
            assert forgotten or None in touched or any(len(keys) > 3 for keys in later), "everything without a reason"


def test_what_is_up_to_date_costs_nothing(database: Database) -> None:
    assert database.changed_since(database.writes) == frozenset()
