"""Intents in force: as replaying the log gives them, and at a cost that does not grow with the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.instant import Instant
from chain.store.database import Database, open_database
from odfd.resources.store import ROOM, STEPS, Resources

NAMES = ("a", "B", "c")
KINDS = ("dataset", "mirror")
OLD = 2
"""Steps of the tables that had the log alone."""
ACTS = st.lists(
    st.tuples(st.sampled_from(("apply", "delete", "tell")), st.sampled_from(KINDS), st.sampled_from(NAMES),
              st.integers(0, 2)), max_size=30
)  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> Any:
    opened = open_database(tmp_path / "x.sqlite")
    opened.migrate(ROOM, STEPS)
    yield opened
    opened.close()


def replayed(connection: sqlite3.Connection) -> dict[tuple[str, str], tuple[bytes, int, int, int]]:
    """Spec, generation, when it was applied first and last: from the log, as the code did that read it whole."""
    found: dict[tuple[str, str], tuple[bytes, int, int, int]] = {}
    for kind, key, spec, at in connection.execute("SELECT kind, key, spec, at FROM resource_events ORDER BY seq"):
        if spec is None:
            found.pop((kind, key), None)
        else:
            _, generation, created, _ = found.get((kind, key), (b"", 0, at, at))
            found[kind, key] = (bytes(spec), generation + 1, created, at)
    return found


def in_force(connection: sqlite3.Connection) -> dict[tuple[str, str], tuple[bytes, int, int, int]]:
    return {
        (each.kind, each.name.casefold()): (each.spec, each.generation, each.created_at, each.updated_at)
        for kind in KINDS
        for each in Resources(connection).all(kind)
    }


@given(ACTS)
def test_what_is_in_force_is_what_the_log_says(acts: list[tuple[str, str, str, int]]) -> None:
    connection = sqlite3.connect(":memory:")
    for step in STEPS:
        connection.executescript(step)
    resources, told = Resources(connection), {}
    for at, (act, kind, name, value) in enumerate(acts):
        spec, before = b"%d" % value, resources.get(kind, name.lower())
        if act == "apply":
            assert resources.apply(kind, name, spec, Instant(at), f"about {value}") == (
                before is None or before.spec != spec
            )
        elif act == "delete":
            assert resources.delete(kind, name, Instant(at)) == (before is not None)
            told.pop((kind, name), None)
        elif resources.tell(kind, name, spec):
            told[kind, name] = spec
        assert in_force(connection) == replayed(connection)
    for kind in KINDS:
        for name in NAMES:
            found = resources.get(kind, name.upper())
            assert (found and found.status) == told.get((kind, name))
            assert found is None or found in resources.about(kind, f"about {found.spec.decode()}")


@given(ACTS)
def test_a_database_from_before_is_taken_over(acts: list[tuple[str, str, str, int]]) -> None:
    connection = sqlite3.connect(":memory:")
    for step in STEPS[: OLD + 1]:
        connection.executescript(step)
    for at, (act, kind, name, value) in enumerate(acts):
        spec = None if act == "delete" else b"%d" % value
        if spec is not None or (kind, name.casefold()) in replayed(connection):
            connection.execute(
                "INSERT INTO resource_events (kind, key, name, spec, at) VALUES (?, ?, ?, ?, ?)",
                (kind, name.casefold(), name, spec, at),
            )
    connection.executescript(STEPS[OLD + 1])
    assert in_force(connection) == replayed(connection)


def test_publications_from_before_keep_what_had_become_of_them() -> None:
    connection = sqlite3.connect(":memory:")
    for step in STEPS[: OLD + 1]:
        connection.executescript(step)
    for at in range(500):
        connection.execute(
            "INSERT INTO resource_events (kind, key, name, spec, at) VALUES ('publication', 'd', 'd', ?, ?)",
            (b'{"root":"/ipfs/%d"}' % at, at),
        )
    connection.executescript(STEPS[OLD + 1])
    found = Resources(connection).get("publication", "d")
    assert found is not None
    assert (found.status, found.generation) == (b'{"root":"/ipfs/499"}', 500)
    assert connection.execute("SELECT count(*) FROM resource_events").fetchone() == (1,)


def steps(connection: sqlite3.Connection, ask: Callable[[], object]) -> int:
    """Of SQLite's machine."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection.set_progress_handler(count, 1)
    ask()
    connection.set_progress_handler(None, 1)
    return counted


def test_no_question_costs_all_that_was_ever_intended(database: Database) -> None:
    """An intent that was changed 1,000 times was read 1,000 times at each question."""
    with database.write() as connection:
        resources = Resources(connection)
        asks = [lambda: resources.get("mirror", "a"), lambda: resources.all("mirror"),
                lambda: resources.about("mirror", "did"), lambda: resources.tell("mirror", "a", b"x")]  # fmt: skip
        cost = []
        for number in range(1001):
            resources.apply("mirror", "a", b"%d" % number, Instant(number), "did")
            if number in (10, 1000):
                cost.append([steps(connection, ask) for ask in asks])
    assert cost[0] == cost[1]
