"""What the rows of resources say is what their log says, at a cost that does not grow with the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.instant import Instant
from chain.store.database import Database, open_database
from odfd.resources import records, tables
from odfd.resources.resource import Resource, fold
from odfd.resources.store import ResourceStore
from odfd.resources.tables import ROOM, STEPS
from odfd.store import flow_runs as flows

NAMES = ("a", "B", "c")
TYPES = ("Dataset", "Mirror")
ACTS = st.lists(
    st.tuples(st.sampled_from(("declare", "withdraw")), st.sampled_from(TYPES), st.sampled_from(NAMES),
              st.integers(0, 2)), max_size=30
)  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> Any:
    opened = open_database(tmp_path / "x.sqlite")
    opened.migrate(ROOM, STEPS)
    yield opened
    opened.close()


def fresh() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for step in STEPS:
        if isinstance(step, str):
            connection.executescript(step)
    return connection


@pytest.mark.slow
@given(ACTS)
def test_what_is_in_force_is_what_the_log_says(acts: list[tuple[str, str, str, int]]) -> None:
    store = ResourceStore(fresh())
    for at, (act, type_, name, value) in enumerate(acts):
        before = store.find_named(type_, name.lower(), None)
        if act == "declare":
            changes = store.declare(type_, name, {"value": value}, Instant(at))
            assert changes == (before is None or before.spec != {"value": value})
        else:
            assert store.withdraw(type_, name, Instant(at)) == (before is not None)
        assert {each.id: each for each in store.all()} == fold(store.events(0, 1000))
        assert [each.id for each in store.all("Mirror")] == [each.id for each in store.rows("Mirror")]


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


def test_no_question_costs_all_that_was_ever_declared(database: Database) -> None:
    """A resource that was changed 1,000 times was read 1,000 times at each question."""
    with database.write() as connection:
        store = ResourceStore(connection)
        asks = [
            lambda: store.find_named("Mirror", "a", None),
            lambda: store.all("Mirror"),
            lambda: store.rows("Mirror"),
            lambda: store.with_did("Mirror", "did"),
        ]
        cost = []
        for number in range(1001):
            store.declare("Mirror", "a", {"number": number}, Instant(number), "did")
            if number in (10, 1000):
                cost.append([steps(connection, ask) for ask in asks])
    assert cost[0] == cost[1]


def put(connection: sqlite3.Connection, kind: str, name: str, spec: object, status: bytes | None = None) -> None:
    """An intent as it was stored."""
    raw = spec if isinstance(spec, bytes) else msgspec.json.encode(spec)
    tables.IN_FORCE.put(connection, kind, name.casefold(), name, raw, status, 1, 5, 7, None)


DID = "did:odf:fed01937855671a2cd6a8134a6744411b9808e834932fb6885229000e1d5931cb25ef"


def test_intents_of_before_become_resources_with_a_line_for_each(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    for room, its in ((ROOM, tables._FORMER_STEPS), (flows.ROOM, flows.STEPS)):
        _migrated(path, room, its)
    database = open_database(path)
    with database.write() as connection:
        put(connection, "dataset", "cities", {"renditions": [{"shards": [DID]}], "created_at": 3})
        put(connection, "mirror", DID, {"dataset": DID, "name": "theirs", "priority": 4})
        put(connection, "network", "food", {"name": "food", "bootstrap": [], "invited_by": "did:key:z6"})
        put(connection, "blocked-peer", "12D3KooW", b"{}")
        put(connection, "validator", "did:key:z6Mk", {"group": "uni"})
        put(connection, "publication", DID, b'{"a":1}', b'{"b":2}')
        now = Instant(1)
        held = Resource(id="1", type="VariableSet", name="sensors", spec={}, created_at=now, updated_at=now)
        body = msgspec.json.encode(held, order="deterministic")
        tables.CURRENT.put(connection, "1", "VariableSet", "sensors", None, 1, body)
        given = msgspec.structs.replace(held, id="2", type="Repository", name="shelf", account="3")
        body = msgspec.json.encode(given, order="deterministic")
        tables.CURRENT.put(connection, "2", "Repository", "shelf", None, 2, body)
    database.migrate(ROOM, STEPS)
    with database.read() as connection:
        store = ResourceStore(connection)
        found = {each.type: each for each in store.all()}
        assert (found["Dataset"].did, found["Dataset"].name) == (DID, "cities")
        assert (found["Mirror"].did, found["Mirror"].name) == (DID, "theirs")
        assert found["Mirror"].spec == {"source": DID, "priority": 4}
        assert found["Network"].spec == {"bootstrap": [], "invitedBy": "did:key:z6"}
        assert (found["Peer"].did, found["Peer"].spec) == ("12D3KooW", {"peerId": "12D3KooW", "blocked": True})
        assert (found["Validator"].name, found["Validator"].spec["group"]) == ("z6Mk", "uni")
        assert found["VariableSet"] == held
        assert store.find_named("Repository", "shelf", None) == msgspec.structs.replace(given, account=None)
        assert records.of_kind(connection, "publication") == [records.KeptRecord(DID, b'{"a":1}', b'{"b":2}')]
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'res_touched'").fetchone() == (0,)
    assert len(database.converted) == 6
    assert "Repository shelf is of the node now, and of no account" in database.converted
    assert "Mirror theirs is declared as it stood" in database.converted
    database.close()


def _migrated(path: Path, room: str, its: Any) -> None:
    database = open_database(path)
    database.migrate(room, its)
    database.close()
