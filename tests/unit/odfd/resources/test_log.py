"""The log of resources: in words, in rows, and read by many at once."""

from __future__ import annotations

import contextlib
import itertools
import random
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

from chain.errors import Environment, Fault, Invalid, Refused, Remote
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.store.database import Database, open_database
from odfd.errors import Bug
from odfd.obs.events import Event, EventLog
from odfd.renditions import former_rows
from odfd.renditions.former_rows import FormerCollection
from odfd.renditions.timeline import RenditionRow, Switch, Timeline
from odfd.resources import records, tables
from odfd.resources import tables as resources
from odfd.resources.changes import describe
from odfd.resources.controller import Controller, Controllers
from odfd.resources.resource import Resource, ResourceEvent, fold, handle_of
from odfd.resources.status import (
    EDGES,
    Condition,
    ConditionValue,
    ResourceStatus,
    fail,
    is_unchanged,
    move,
    pending,
    ready,
    show,
)
from odfd.resources.store import ResourceStore
from odfd.resources.tables import ROOM, STEPS
from odfd.resources.workqueue import HOURLY, LEAST, MOST, WorkQueue
from odfd.services.resources.watches import SharedReads
from odfd.store import collections, mirror_specs
from odfd.store import flow_runs as flows
from odfd.store.catalog import Catalog
from odfd.store.collections import CollectionState, Member
from odfd.store.mirror_specs import MirrorSpec
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
    """Attack T-HTTP-01: the task that reads for all watchers, cancelled or failing midway.

    Defence: the others are woken, and one of them reads.
    """
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
def test_each_reader_sees_all_after_its_position_once_and_in_order(steps: list[tuple[str, int]], page: int) -> None:
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


# What becomes of resources: phases along the RFC's edges, and attempts one at a time, after pauses that grow.


NOW = Instant(1_000 * SECOND)
WORK = st.lists(st.sampled_from(["change", "attempt", "fail", "crash"]), max_size=12)


def attempted(status: ResourceStatus, fault: Fault | None, generation: int = 1) -> list[ResourceStatus]:
    way = list(pending(status))
    way.append(move(way[-1] if way else status, "Reconciling"))
    told = {"Synced": ConditionValue(value=fault is None)}
    last = ready(way[-1], generation, told, NOW) if fault is None else fail(way[-1], generation, told, fault, None, NOW)
    return [*way, last]


@pytest.mark.slow
@given(WORK)
def test_every_path_of_phases_is_one_of_the_diagram(acts: list[str]) -> None:
    """As watchers see it, also where an attempt is cut off or overtaken."""
    connection = sqlite3.connect(":memory:")
    for step in tables.STEPS:
        if isinstance(step, str):
            connection.executescript(step)
    store = ResourceStore(connection)
    one = Resource(id="x", type="VariableSet", name="a", spec={}, created_at=NOW, updated_at=NOW)
    store.put(one, NOW)
    for act in acts:
        held = store.get("x")
        assert held is not None
        if act == "change":
            store.put(msgspec.structs.replace(held, generation=held.generation + 1), NOW)
        elif act == "crash":
            way = [*pending(held.status)]
            store.observe("x", held.generation, [*way, move(way[-1] if way else held.status, "Reconciling")], NOW)
        else:
            fault = Remote("away") if act == "fail" else None
            store.observe("x", held.generation, attempted(held.status, fault, held.generation), NOW)
    seen = [event.resource for event in store.events(0, 1_000)]
    phases = [each.status.phase for each in seen]
    assert all((a, b) in EDGES for a, b in itertools.pairwise(phases) if a != b)
    assert all(each.status.observed_generation <= each.generation for each in seen)


def test_no_other_way_leads_from_phase_to_phase() -> None:
    assert [each.phase for each in attempted(ResourceStatus(), None)] == ["Reconciling", "Ready"]
    for phase in ("Ready", "Failed", "Pending"):
        with pytest.raises(ValueError, match="no way"):
            move(ResourceStatus(), phase)  # type: ignore[arg-type]
    cut = pending(move(ResourceStatus(), "Reconciling"))
    assert [(each.phase, each.code) for each in cut] == [("Failed", "interrupted"), ("Pending", "interrupted")]


def test_an_attempt_says_which_generation_it_was_of_and_when() -> None:
    connection = sqlite3.connect(":memory:")
    for step in tables.STEPS:
        if isinstance(step, str):
            connection.executescript(step)
    store = ResourceStore(connection)
    one = Resource(id="x", type="VariableSet", name="a", spec={}, created_at=NOW, updated_at=NOW)
    store.put(one, NOW)
    assert store.observe("x", 1, attempted(one.status, None), NOW)
    store.put(msgspec.structs.replace(one, generation=2), NOW)
    held = store.get("x")
    assert held is not None
    assert (held.status.phase, held.status.observed_generation, held.status.reconciled_at) == ("Pending", 1, NOW)
    assert not store.observe("x", 1, attempted(held.status, None), NOW), "an attempt that was overtaken writes nothing"
    assert store.get("x") == held


def test_conditions_have_uris_and_keep_their_times_until_they_change() -> None:
    first = attempted(ResourceStatus(), None)[-1]
    later = ready(
        move(pending(first)[-1], "Reconciling"), 2, {"Synced": ConditionValue(value=True)}, Instant(NOW + SECOND)
    )
    assert later.conditions["Synced"].updated_at == NOW
    assert later.conditions["Synced"].observed_generation == 2
    assert is_unchanged(later, {"Synced": ConditionValue(value=True)})
    assert not is_unchanged(later, {})
    said = show(later, {"Synced": "https://example.org/Synced"})
    assert said["conditions"]["https://example.org/Synced"]["value"] is True
    assert (said["phase"], said["observedGeneration"]) == ("Ready", 2)


@pytest.mark.parametrize(
    ("fault", "most"), [(Environment("disk"), MOST), (Remote("away"), MOST), (Bug("ours"), HOURLY)]
)
def test_a_pause_grows_and_is_drawn_at_random(fault: Fault, most: int) -> None:
    queue = WorkQueue(random.Random(1).randrange)
    pauses = [queue.pause(fault, failures) for failures in range(30)]
    assert all(pause is not None and LEAST <= pause <= most + LEAST for pause in pauses)
    if most == MOST:
        assert all(pauses[n] <= LEAST + (LEAST << n) for n in range(9))  # type: ignore[operator]
        assert len(set(pauses)) > 20


def test_what_is_refused_waits_for_a_change() -> None:
    queue = WorkQueue(random.Random(1).randrange)
    assert queue.pause(Invalid("wrong"), 0) is None
    assert queue.pause(Refused("no"), 3) is None


@given(
    st.lists(st.tuples(st.sampled_from(["touch", "later", "take", "done"]), st.sampled_from("abc"), st.integers(0, 9)))
)
def test_attempts_on_one_id_never_overlap_and_no_touch_is_lost(acts: list[tuple[str, str, int]]) -> None:
    queue, working, owed, now = WorkQueue(random.Random(1).randrange), set(), set(), 0
    for act, each, number in acts:
        now += 1
        if act == "touch":
            queue.touch(each)
            owed.add(each)
        elif act == "later":
            queue.later(each, Instant(now + number))
            if each not in working:
                owed.add(each)
        elif act == "take":
            taken = queue.take(Instant(now), 2)
            assert not working & set(taken)
            working |= set(taken)
            owed -= set(taken)
        elif each in working:
            working.discard(each)
            queue.end(each)
    for each in sorted(working):
        queue.end(each)
    found: set[str] = set()
    while taken := queue.take(Instant(now + 100), 1):
        assert not found & set(taken)
        found |= set(taken)
    assert owed <= found
    for each in sorted(found):
        queue.end(each)
    assert queue.is_idle
    assert queue.next_time() is None


# The rows of a mirrored collection, of which each chain was a mirror by itself, are gathered into one.


THEN = Instant(7)
IDS = tuple(DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2, 3))
FIRST, ACTIVE, SHARD = map(str, IDS)


def mirror(did: str, name: str, **more: Any) -> MirrorSpec:
    return MirrorSpec(dataset=did, name=name, want="chain", priority=5, **more)


def test_the_mirror_that_people_declared_is_that_of_the_collection(tmp_path: Path) -> None:
    with contextlib.closing(Database(tmp_path / "odfd.sqlite")) as database:
        database.migrate_all([(resources.ROOM, resources.STEPS), (collections.ROOM, collections.STEPS)])
        specs = (
            mirror(FIRST, "theirs.r0", via="https://example.org/old"),
            mirror(ACTIVE, "theirs", via="https://example.org/new"),
            mirror(SHARD, "theirs.r1.s1", paused=True),
        )
        with database.write() as connection:
            store = ResourceStore(connection)
            for number, each in enumerate(specs):
                for type_, spec in (("Dataset", None), ("Mirror", mirror_specs.to_resource(each))):
                    labels = {"topic": "health"} if type_ == "Mirror" and number == 0 else {}
                    store.put(
                        Resource(id=f"{type_}{number}", type=type_, name=each.name, did=each.dataset, spec=spec,
                                 labels=labels, created_at=THEN, updated_at=THEN), THEN,
                    )  # fmt: skip
            meant = store.get("Dataset1")
            assert meant is not None
            references = {"Dataset:theirs": handle_of(meant)}
            flow = Resource(id="f", type="Flow", name="f", references=references, created_at=THEN, updated_at=THEN)
            store.put(flow, THEN)
            rows = RenditionRow(number=0, shards=(FIRST,)), RenditionRow(number=1, shards=(ACTIVE, SHARD))
            timeline = Timeline((Switch(0, "", rows[0]), Switch(1, "c", rows[1])), 2)
            members = tuple(Member(row=row, origin="owner") for row in rows)
            collections.keep(connection, CollectionState(id=IDS[0], members=members, timeline=timeline))
            (line,) = former_rows.gather(
                connection, [FormerCollection(chains=(FIRST, ACTIVE, SHARD), active=ACTIVE, renditions=2)]
            )
        assert line.startswith("the dataset theirs is one resource over 3 chains of 2 renditions: ")
        with database.read() as connection:
            store = ResourceStore(connection)
            (dataset,), (whole,) = store.all("Dataset"), store.all("Mirror")
            assert [(each.id, each.name, each.did) for each in (dataset, whole)] == [
                ("Dataset0", "theirs", ACTIVE), ("Mirror0", "theirs", ACTIVE),
            ]  # fmt: skip
            assert whole.labels == {"topic": "health"}
            assert [mirror_specs.of(connection, each) for each in IDS] == [*specs]
            assert {each.dataset for each in mirror_specs.all_of(connection)} == {FIRST, ACTIVE, SHARD}
            assert [each.name for each in Catalog(connection).chains()] == ["theirs", "theirs.r0", "theirs.r1.s1"]
            held = store.get("f")
            assert held is not None
            assert held.references == {"Dataset:theirs": handle_of(dataset)}
            assert store.deleting() == []
