"""The log of resources: in words, in rows, and read by many at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.instant import Instant
from chain.store.database import Database, open_database
from odfd.obs.events import Event, EventLog
from odfd.resources import records, tables
from odfd.resources.changes import describe
from odfd.resources.controller import Controller, Controllers
from odfd.resources.resource import Resource, ResourceEvent, fold
from odfd.resources.status import Condition, ResourceStatus
from odfd.resources.store import ResourceStore
from odfd.resources.tables import ROOM, STEPS
from odfd.services.resources.watches import SharedReads
from odfd.store import flow_runs as flows
from worlds.clock import FixedClock
from worlds.eventually import PATIENCE

# The log of resources in words, and which events tell that a resource may have changed.


def resource(**conditions: Any) -> Resource:
    at = Instant(0)
    held = {key: Condition(value=value, updated_at=at, observed_generation=1) for key, value in conditions.items()}
    status = ResourceStatus(phase="Ready", conditions=held)
    return Resource(id="1", type="Flow", name="hourly", spec={}, status=status, created_at=at, updated_at=at)


def test_values_of_conditions_are_told_as_json() -> None:
    """A text stands as it is."""
    after = resource(Outcome={"kind": "Failed", "recoverable": True}, State="fresh", Synced=False)
    event = ResourceEvent(rv=2, at=Instant(0), op="Observed", resource=after)
    said = describe(resource(), event)
    assert said == ("Observed", ('Outcome={"kind":"Failed","recoverable":true}', "State=fresh", "Synced=false"))


def test_a_controller_names_the_events_that_tell_of_its_resources() -> None:
    class Flows(Controller):
        type, hears = "Flow", ("flow",)

    class Datasets(Controller):
        type, hears = "Dataset", ("dataset", "mirror")

    class Mirrors(Controller):
        type, hears = "Mirror", ("mirror",)

    controllers = Controllers([Flows(), Datasets(), Mirrors()])

    def told_by(kind: str, subject: str) -> set[tuple[str, str]]:
        return controllers.told_by(Event(sequence=1, time=Instant(0), kind=kind, subject=subject))

    assert told_by("flow.ended", "hourly") == {("Flow", "hourly")}
    assert told_by("mirror.synced", "copy") == {("Dataset", "copy"), ("Mirror", "copy")}
    assert told_by("peer.met", "12D3") == told_by("flow.ended", "") == set()


# Many who read a log at the same position cost one read, and each gets all of it, once and in order.

CROWD = 50


class Log:
    """Numbers from 1, of which a read returns some."""

    def __init__(self, page: int = 3) -> None:
        self.length, self.writes, self.page = 0, 0, page
        self.reads: list[int] = []
        self.broken = 0
        self.events = EventLog(FixedClock(Instant(0)))
        self.shared = SharedReads(self._read, lambda: self.writes, self.events)

    def _read(self, position: int) -> Sequence[int]:
        self.reads.append(position)
        if self.broken:
            self.broken -= 1
            raise OSError("the disk fails")
        return range(position + 1, min(self.length, position + self.page) + 1)

    def write(self, count: int, *, nudge: bool = True) -> None:
        self.length += count
        self.writes += 1
        if nudge:
            self.events.nudge()

    async def follow(self, position: int, seen: list[int], end: int | None = None) -> None:
        while end is None or position < end:
            found = await self.shared.after(position)
            assert found
            seen += found
            position = found[-1]


async def test_a_crowd_at_one_position_costs_one_read_of_news_and_one_of_nothing() -> None:
    log, seen = Log(), [[] for _ in range(CROWD)]
    async with trio.open_nursery() as nursery:
        for each in seen:
            nursery.start_soon(log.follow, 0, each)
        await reads(log, [0])
        log.write(2)
        await reads(log, [0, 0, 2])
        assert seen == [[1, 2]] * CROWD
        for _ in range(3):
            log.events.nudge()
            await trio.testing.wait_all_tasks_blocked()
        assert log.reads == [0, 0, 2], "nothing was written"
        nursery.cancel_scope.cancel()


async def test_who_comes_later_to_what_was_read_reads_nothing_until_more_is_written() -> None:
    log = Log()
    log.write(2)
    for _ in range(CROWD):
        assert list(await log.shared.after(0)) == [1, 2]
    assert log.reads == [0]
    log.write(1, nudge=False)
    assert list(await log.shared.after(0)) == [1, 2, 3]
    assert log.reads == [0, 0]


async def test_others_go_on_when_the_one_who_reads_is_cancelled() -> None:
    log, seen = Log(), []
    async with trio.open_nursery() as nursery:
        first = await nursery.start(cancellable, log)
        await reads(log, [0])
        nursery.start_soon(log.follow, 0, seen, 1)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        log.write(1)
    assert seen == [1]


async def test_others_go_on_when_a_read_fails() -> None:
    log, seen = Log(), []
    log.broken = 1

    async def first() -> None:
        with pytest.raises(OSError, match="the disk fails"):
            await log.shared.after(0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        nursery.start_soon(follow_after_one, log, seen)
    assert seen == [1]


READER_STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 5)),
    st.tuples(st.just("write silently"), st.integers(0, 5)),
    st.tuples(st.just("join"), st.integers(0, 20)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("let them run"), st.just(0)),
)


@given(st.lists(READER_STEPS, max_size=30), st.integers(1, 4))
def test_p04_each_reader_sees_all_after_its_position_once_and_in_order(steps: list[tuple[str, int]], page: int) -> None:
    """Whatever is written, nudged, joined and cancelled meanwhile."""

    async def run() -> None:
        log = Log(page)
        readers: list[tuple[int, list[int], trio.CancelScope]] = []
        end = sum(count for step, count in steps if step.startswith("write")) + 1

        async def reader(position: int, seen: list[int], scope: trio.CancelScope) -> None:
            with scope:
                await log.follow(position, seen, end)

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for step, number in steps:
                    if step.startswith("write"):
                        log.write(number, nudge=step == "write")
                    elif step == "join":
                        readers.append((min(number, log.length), [], trio.CancelScope()))
                        nursery.start_soon(reader, *readers[-1])
                    elif step == "cancel" and readers:
                        readers[number % len(readers)][2].cancel()
                    else:
                        await trio.testing.wait_all_tasks_blocked()
                log.write(1)
        for position, seen, scope in readers:
            whole = list(range(position + 1, end + 1))
            assert seen == (whole[: len(seen)] if scope.cancel_called else whole)

    trio.run(run)


async def cancellable(log: Log, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await log.shared.after(0)


async def follow_after_one(log: Log, seen: list[int]) -> None:
    """When somebody reads already."""
    await trio.testing.wait_all_tasks_blocked()
    log.write(1)
    await log.follow(0, seen, 1)


async def reads(log: Log, expected: list[int]) -> None:
    """Waits until so many reads are over, and nothing else happens."""
    with trio.fail_after(PATIENCE):
        while len(log.reads) < len(expected):
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert log.reads == expected


# What the rows of resources say is what their log says, at a cost that does not grow with the log.

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
