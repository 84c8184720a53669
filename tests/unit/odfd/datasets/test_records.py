"""What is kept beside the blocks: counts, extents, references, incidents."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain import instant
from chain.codec.blocks import decode_block
from chain.data.arrow_schema import from_arrow, to_arrow
from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import MILLISECOND, SECOND, Instant
from chain.model import schema as odf
from chain.model.block import Block
from chain.model.events import (
    AddData,
    AddPushSource,
    AttachmentEmbedded,
    AttachmentsEmbedded,
    DatasetKind,
    DatasetSnapshot,
    DataSlice,
    DisablePollingSource,
    DisablePushSource,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    TransformInput,
)
from chain.model.schema import DataField, DataSchema
from chain.model.source import (
    FetchFilesGlob,
    FetchUrl,
    MergeAppend,
    MergeLedger,
    Pipe,
    ReadCsv,
    ReadJson,
    RequestHeader,
    SqlQueryStep,
    TransformSql,
)
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.statements.card import Card, ChainFacts, PublisherClaims
from chain.statements.keys import SigningKey
from chain.store.base import Head
from chain.store.database import Database
from engines.contract import RowCounts, SkippedFile
from odfd.datasets.commit import TOLERANCE, block_time, check_jump
from odfd.datasets.creation import changed_events, founding_events
from odfd.obs.events import EventLog
from odfd.runtime.clock import JumpWatch
from odfd.runtime.subjects import about
from odfd.runtime.supervision import Life
from odfd.services.maintenance.incident_keeper import IncidentKeeper
from odfd.services.publishing import card_facts
from odfd.services.publishing.card_facts import EventExtents, EventSpan, Measured, extent_in, interval_of, render_span
from odfd.store import incidents, row_counts, unmanaged
from odfd.store.directory import StateDirectory, open_state_directory
from odfd.store.incidents import MOST, Incident
from odfd.store.references import STEPS, drop_later, drop_references, keep_named, references_to
from odfd.store.row_counts import add_counts
from odfd.trust.signing.owner_commit import author_blocks
from worlds.chains import linked
from worlds.clock import FixedClock
from worlds.depth import share
from worlds.schemas import legacy

# The records beside the blocks: whatever is appended, given up or merged, sums are those of the records.

DATASET, OTHER = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "test.sqlite")
    opened.migrate(row_counts.ROOM, row_counts.STEPS)
    yield opened
    opened.close()


def counts(read: int, *files: str) -> RowCounts:
    return RowCounts(read=read, unchanged=read, skipped=tuple(SkippedFile(name=name, reason="x") for name in files))


commands = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(1, 9)),
        st.tuples(st.just("idle"), st.just(0), st.integers(1, 9)),
        st.tuples(st.just("reset"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("merge"), st.integers(0, 9), st.integers(2, 4)),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=share(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commands)
def test_sums_are_those_of_the_records(database: Database, ran: list[tuple[str, int, int]]) -> None:
    model: list[tuple[int, bool, int]] = []
    """(block, idle, rows read) of each transaction."""
    size = 1
    with database.write() as connection:
        row_counts.COUNTS.forget(connection, DATASET)
        row_counts.keep(connection, OTHER, 3, counts(1000))
        for command, one, two in ran:
            if command == "append":
                size += one
                row_counts.keep(connection, DATASET, size - 1, counts(two))
                model.append((size - 1, False, two))
            elif command == "idle":
                row_counts.keep(connection, DATASET, size - 1, counts(two), idle=True)
                model.append((size - 1, True, two))
            elif command == "reset":
                size = max(1, min(size, one))
                row_counts.cut(connection, DATASET, size)
                model = [each for each in model if each[0] < size]
            else:
                start, width = min(one, size), two

                def moved(number: int, start: int = start, width: int = width) -> int:
                    return start + (number - start) // width

                row_counts.move(connection, DATASET, start, moved)
                model = [(moved(block) if block >= start else block, idle, n) for block, idle, n in model]
                size = moved(size - 1) + 1 if size > start else size
        kept = row_counts.newest(connection, DATASET)
        found = row_counts.of_blocks(connection, DATASET, 0, 1 << 40)
        row_counts.COUNTS.forget(connection, OTHER)
    by_block: dict[int, int] = {}
    for block, idle, n in model:
        if not idle:
            by_block[block] = by_block.get(block, 0) + n
    assert {block: each.read for block, each in found.items()} == by_block
    if kept is None:
        assert not model
    else:
        assert (kept.total.transactions, kept.total.counts.read) == (len(model), sum(n for _, _, n in model))
        newest = max((block, idle) for block, idle, _ in model)
        assert kept.last.counts.read == sum(n for block, idle, n in model if (block, idle) == newest)


def test_records_are_there_after_a_restart_and_sealed(tmp_path: Path) -> None:
    path = tmp_path / "test.sqlite"
    first = Database(path)
    first.migrate(row_counts.ROOM, row_counts.STEPS)
    with first.write() as connection:
        row_counts.keep(connection, DATASET, 3, counts(5, "a.csv"))
        row_counts.keep(connection, DATASET, 3, counts(7, "a.csv", "b.csv"), idle=True)
        row_counts.keep(connection, DATASET, 3, counts(1, "b.csv"), idle=True)
    first.close()
    second = Database(path)
    second.migrate(row_counts.ROOM, row_counts.STEPS)
    with second.read() as connection:
        kept = row_counts.newest(connection, DATASET)
    assert kept is not None
    assert (kept.total.since, kept.total.transactions, kept.total.counts.read) == (3, 3, 13)
    assert (kept.last.transactions, kept.last.counts.read) == (2, 8)
    assert [each.name for each in kept.last.counts.skipped] == ["a.csv", "b.csv"]
    assert kept.total.counts.skipped == ()
    second.close()


def test_what_one_does_not_say_is_not_known_of_both() -> None:
    assert add_counts(RowCounts(read=1, late=2), RowCounts(read=3)) == RowCounts(read=4)


# First and last event times of datasets: equal to those of all slices, whatever was looked at before, and bounded.

OWNER = SigningKey(b"e" * 32)
OWNED: DatasetId = OWNER.dataset_id
UTC = pa.timestamp("ms", "UTC")
STEP = 60 * SECOND
Spans = Sequence[tuple[int, int] | None]


class Chain:
    """A chain in memory, one slice a block after the first two; ``read`` counts what was looked at."""

    def __init__(self, spans: Spans, kind: pa.DataType = UTC) -> None:
        schema = pa.schema([pa.field("offset", pa.int64()), pa.field("event_time", kind)])
        events: list[MetadataEvent] = [
            Seed(dataset_id=OWNED, dataset_kind=DatasetKind.ROOT),
            SetDataSchema(schema=from_arrow(schema)),
        ]
        self.extents: dict[Multihash, EventSpan | None] = {}
        for number, span in enumerate(spans):
            name = Multihash.sha3_256(b"%d" % number)
            self.extents[name] = None if span is None else EventSpan(*(Instant(each * SECOND) for each in sorted(span)))
            named = DataSlice(
                logical_hash=name, physical_hash=name, offset_interval=OffsetInterval(start=number, end=number), size=1
            )
            events.append(AddData(new_data=named, prev_offset=number - 1 if number else None))
        self.blocks = linked(events, Instant(0), STEP)
        self.looked: list[Multihash] = []

    def read(self, named: DataSlice, _column: str) -> EventSpan | None:
        self.looked.append(named.physical_hash)
        return self.extents[named.physical_hash]

    def head(self) -> Head | None:
        return Head(hash=self.blocks[-1].hash, sequence_number=self.blocks[-1].sequence_number)

    def block_at(self, sequence_number: int) -> Block:
        return self.blocks[sequence_number]

    def block_by_hash(self, block_hash: Multihash) -> Block:
        return next(each for each in self.blocks if each.hash == block_hash)

    def raw_blocks(self, start: int, stop: int) -> Iterator[bytes]:
        return (each.raw for each in self.blocks[start:stop])

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None:
        wanted = set(kinds)
        found = (each for each in reversed(self.blocks[:before]) if type(each.event).__name__ in wanted)
        return next(found, None)


def measure(
    extents: EventExtents, chain: Chain, before: Card | None = None, first: int = 0, epoch: int = 0
) -> Measured:
    return extents.measure(chain, load_state(chain), epoch, first, before)


def whole(spans: Spans) -> EventSpan | None:
    known = [each for each in spans if each is not None]
    if len(known) < len(spans):
        return None
    return (
        EventSpan(Instant(min(map(min, known)) * SECOND), Instant(max(map(max, known)) * SECOND))
        if known
        else EventSpan()
    )


def card(chain: Chain, size: int, epoch: int = 0) -> Card:
    known = EventSpan()
    for each in list(chain.extents.values())[: size - 2]:
        assert each is not None
        known = known.union(each)
    first, last = render_span(known)
    return Card(
        dataset=OWNED,
        author=OWNER.did,
        authority=0,
        epoch=epoch,
        size=size,
        issued_at="2026-11-20T08:00:00Z",
        expires_at="2026-11-21T08:00:00Z",
        chain=ChainFacts(
            kind="root",
            records=1,
            created_at="2026-01-01T00:00:00Z",
            updated_at="2026-01-01T00:00:00Z",
            first_event=first,
            last_event=last,
            bytes=size - 2,
        ),
        claims=PublisherClaims(name="dust"),
        head=chain.blocks[size - 1].hash,
    )


SPAN = st.tuples(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))


@pytest.mark.slow
@given(spans=st.lists(SPAN | st.none(), max_size=12), cuts=st.sets(st.integers(2, 14)), most=st.integers(1, 5))
def test_whatever_was_looked_at_before_the_answer_is_that_of_all_slices(
    spans: Spans, cuts: set[int], most: int
) -> None:
    chain = Chain(spans)
    extents, blocks = EventExtents(chain.read), chain.blocks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(card_facts, "MOST", most)
        for size in sorted(each for each in cuts if each < len(blocks)):
            chain.blocks = blocks[:size]
            measure(extents, chain)
        chain.blocks = blocks
        for _ in range(len(spans) + 2):
            chain.looked.clear()
            found = measure(extents, chain)
            assert len(chain.looked) <= most, "a look is bounded"
            if found.is_whole:
                break
            assert found.extent is None, "nothing is said of a part"
        assert found == Measured(whole(spans), len(spans))
        chain.looked.clear()
        assert measure(extents, chain) == found
        assert not chain.looked, "and a slice is looked at once"


def test_after_a_restart_the_last_card_is_gone_on_from() -> None:
    chain = Chain([(5, 9), (2, 3), (7, 11)])
    before = card(chain, 4)
    assert measure(EventExtents(chain.read), chain, before) == Measured(whole([(5, 9), (2, 3), (7, 11)]), 3)
    assert len(chain.looked) == 1, "only what came since"
    assert measure(EventExtents(chain.read), chain, before, first=4).extent is not None, "older data is not needed"


@pytest.mark.parametrize("changed", [{"epoch": 1}, {"head": Multihash.sha3_256(b"other")}, {"size": 99}])
def test_a_card_of_another_history_counts_for_nothing(changed: dict[str, Any]) -> None:
    chain = Chain([(5, 9), (6, 7)])
    before = msgspec.structs.replace(card(Chain([(1, 99)]), 3), **{"head": chain.blocks[2].hash, **changed})
    assert measure(EventExtents(chain.read), chain, before).extent == whole([(5, 9), (6, 7)])


def test_what_cannot_be_known_is_not_stated() -> None:
    assert measure(EventExtents(Chain([]).read), Chain([])) == Measured(EventSpan()), "no rows"
    numbers = Chain([(1, 2)], pa.int64())
    assert measure(EventExtents(numbers.read), numbers) == Measured(None, 1), "an event time that is a number"
    chain = Chain([(1, 2), (3, 4)])
    assert measure(EventExtents(chain.read), chain, first=3) == Measured(None), "older data that is not kept here"
    assert render_span(EventSpan()) == (None, None)
    assert render_span(None) == (None, None)
    far = instant.parse("+12000-01-01T00:00:00Z")
    assert render_span(EventSpan(Instant(0), far)) == (None, None), "a year that a statement cannot contain"
    assert render_span(EventSpan(Instant(-1), Instant(1))) == ("1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z")


def test_the_interval_is_the_usual_one_of_the_newest_blocks() -> None:
    assert [interval_of(Chain([(1, 2)] * count)) for count in (0, 1, 2, 40)] == [0, 0, 60, 60]
    uneven = Chain([(1, 2)] * 5)
    late = instant.parse("2026-01-01T00:00:00Z")
    uneven.blocks[-1] = msgspec.structs.replace(uneven.blocks[-1], system_time=late)
    assert interval_of(uneven) == 60, "one long pause changes nothing"


@pytest.mark.slow
def test_the_footer_of_a_slice_says_it(tmp_path: Path) -> None:
    name = Multihash.sha3_256(b"slice")
    named = DataSlice(logical_hash=name, physical_hash=name, offset_interval=OffsetInterval(start=0, end=1), size=1)
    path = tmp_path / "slice"
    pq.write_table(pa.table({"event_time": pa.array([5_000, 1_500, None], UTC), "none": pa.nulls(3, UTC)}), path)

    def here(_: Multihash) -> Path:
        return path

    def gone(_: Multihash) -> Path:
        raise NotFound("no object", rule="object")

    assert extent_in(here, named, "event_time") == EventSpan(Instant(1_500_000_000), Instant(5_000_000_000))
    assert extent_in(here, named, "none") == EventSpan(), "no row has one"
    assert extent_in(here, named, "other") is None
    assert extent_in(gone, named, "event_time") is None
    pq.write_table(pa.table({"event_time": pa.array([5_000], UTC)}), path, write_statistics=False)
    assert extent_in(here, named, "event_time") is None, "no column is read for it"
    path.write_bytes(b"PAR1 not really")
    assert extent_in(here, named, "event_time") is None


# What blocks name: kept as they lie, found by name, and carried over from how it was kept before.

MINE, THEIRS = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))
NAMES = [Multihash.sha3_256(bytes([number])) for number in range(9)]


def tables(connection: sqlite3.Connection, steps: tuple[str, ...] = STEPS) -> None:
    for script in steps:
        connection.executescript(script)


def test_the_first_block_that_names_it_counts_in_each_dataset() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        tables(connection)
        keep_named(connection, MINE, [(NAMES[0], 2), (NAMES[1], 2), (NAMES[0], 5)])
        keep_named(connection, THEIRS, [(NAMES[0], 7)])
        assert sorted(references_to(connection, NAMES[0])) == sorted([(MINE, 2), (THEIRS, 7)])
        drop_later(connection, MINE, 5)
        assert (MINE, 2) in references_to(connection, NAMES[0])
        assert sorted(drop_references(connection, MINE)) == [NAMES[1]]
        assert references_to(connection, NAMES[0]) == [(THEIRS, 7)]


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


# What was found wrong with a dataset is known after a restart, bounded, and only of datasets that are here.

HERE, AWAY = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StateDirectory]:
    with open_state_directory(tmp_path / "state") as opened:
        with opened.database.write() as connection:
            row = (HERE, 0, b"")
            connection.execute("INSERT INTO datasets (id, head_sequence, head_hash) VALUES (?, ?, ?)", row)
        yield opened


def kept(home: StateDirectory, dataset: DatasetId = HERE) -> list[Incident]:
    with home.database.read() as connection:
        return incidents.of(connection, dataset)


async def test_events_of_what_was_found_are_kept_once(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(FixedClock(Instant(7)))
    keeper = IncidentKeeper(home.database, log)
    stored, keep = trio.Event(), keeper._keep

    def told(found: list[Incident]) -> None:
        keep(found)
        if found[0].message == "last":
            trio.from_thread.run_sync(stored.set)

    monkeypatch.setattr(keeper, "_keep", told)
    log.emit("damage.found", "cities", "block #1: other bytes", about=about(HERE, "a-resource"))
    log.emit("mirror.synced", "cities", "5 blocks", about=about(HERE))
    log.emit("dataset.forked", "strange", "two histories", about=about(AWAY))
    life = Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run, life)
        await life.wait_ready()
        log.emit("verdict.mismatch", "cities", "last", about=about(HERE))
        await stored.wait()
        log.emit("dataset.resolved", "cities", "before the stop", about=about(HERE))
        life.stopping.set()
    expected = [Incident(HERE, Instant(7), "damage.found", "block #1: other bytes"),
                Incident(HERE, Instant(7), "dataset.resolved", "before the stop"),
                Incident(HERE, Instant(7), "verdict.mismatch", "last")]  # fmt: skip
    assert kept(home) == expected
    assert kept(home, AWAY) == [], "strangers accuse any dataset"
    keeper._keep(expected)
    assert kept(home) == expected


def test_of_many_the_newest_stay(home: StateDirectory) -> None:
    many = [Incident(HERE, Instant(time), "head.refused", "x" * 2000) for time in range(MOST + 20)]
    with home.database.write() as connection:
        incidents.keep(connection, many)
    assert [each.at for each in kept(home)] == list(range(MOST + 19, 19, -1))
    assert {len(each.message) for each in kept(home)} == {incidents.LONGEST}


def test_they_go_with_the_data_and_damaged_ones_are_left_out(home: StateDirectory) -> None:
    two: Any = [Incident(HERE, Instant(1), "damage.found", "one"), Incident(HERE, Instant(2), "damage.found", "two")]
    with home.database.write() as connection:
        incidents.keep(connection, two)
        connection.execute("UPDATE incidents SET message = 'three' WHERE at = 2")
    assert [each.message for each in kept(home)] == ["one"]
    with home.database.write() as connection:
        unmanaged.forget_data(connection, HERE, Instant(3))
    assert kept(home) == []


def test_each_kind_is_of_an_event() -> None:
    from odfd.obs.events import EVENT_KINDS

    assert set(EVENT_KINDS) >= incidents.KINDS


# Snapshots that are applied again, and clocks that are wrong.


# A snapshot that was accepted is applied again: nothing changes, whatever it says and whatever was there before.

APPLIED, INPUT = (DatasetId.from_public_key(bytes([n]) * 32) for n in (1, 2))
FIELDS = [DataField(name="offset", type=odf.Int64()), DataField(name="op", type=odf.Int32()),
          DataField(name="system_time", type=odf.Timestamp(unit=odf.TimeUnit.MILLISECOND, timezone="UTC")),
          DataField(name="event_time", type=odf.Timestamp(unit=odf.TimeUnit.MILLISECOND, timezone="UTC"))]  # fmt: skip
READS = st.sampled_from(
    [ReadCsv(header=True, ddl_schema=()), ReadCsv(ddl_schema=("a STRING",)), ReadCsv(escape=""), ReadJson(sub_path="")]
)
MERGES = st.sampled_from([MergeAppend(), MergeLedger(primary_key=("a",))])
QUERIES = st.sampled_from(
    [None, TransformSql(engine="spark", query="select 1"), TransformSql(engine="spark", version="",
     queries=(SqlQueryStep(alias="x", query="select 2"), SqlQueryStep(query="select * from x")))]
)  # fmt: skip
FETCHES = st.sampled_from(
    [FetchFilesGlob(path="*.csv"), FetchUrl(url="https://a.example/b", headers=()),
     FetchUrl(url="https://a.example/b", headers=(RequestHeader(name="a", value=""),))]
)  # fmt: skip
POLLING = st.builds(
    SetPollingSource, fetch=FETCHES, read=READS, merge=MERGES, preprocess=QUERIES,
    prepare=st.sampled_from([None, (), (Pipe(command=()),)]),
)  # fmt: skip
PUSHING = st.builds(
    AddPushSource, source_name=st.sampled_from(["a", "b"]), read=READS, merge=MERGES, preprocess=QUERIES
)
COMMON = st.one_of(
    st.builds(SetInfo, description=st.sampled_from([None, "", "a", "b"]),
              keywords=st.sampled_from([None, (), ("k",), ("",)])),
    st.builds(SetLicense, short_name=st.sampled_from(["", "x"]), name=st.just("y"), website_url=st.just("z"),
              spdx_id=st.sampled_from([None, "", "s"])),
    st.builds(SetVocab, offset_column=st.sampled_from([None, "", "offset", "o"]),
              event_time_column=st.sampled_from([None, "t"])),
    st.builds(lambda items: SetAttachments(attachments=AttachmentsEmbedded(items=tuple(items))),
              st.lists(st.builds(AttachmentEmbedded, path=st.sampled_from(["a", "b"]), content=st.just("")),
                       max_size=2)),
    st.builds(lambda more: SetDataSchema(schema=DataSchema(fields=(*FIELDS, *more))),
              st.lists(st.just(DataField(name="a", type=odf.Option(inner=odf.String()))), max_size=1)),
)  # fmt: skip
DISABLING = st.one_of(
    st.just(DisablePollingSource()), st.builds(DisablePushSource, source_name=st.sampled_from(["a", "b", "c"]))
)
NEVER = st.just(AddData(new_watermark=Instant(0)))
ROOTS = st.lists(st.one_of(COMMON, POLLING, PUSHING, DISABLING, NEVER), max_size=6)
TRANSFORMS = st.builds(
    lambda alias, query: SetTransform(inputs=(TransformInput(dataset_ref="in", alias=alias),), transform=query),
    st.sampled_from([None, "", "x"]), QUERIES.filter(lambda query: query is not None),
)  # fmt: skip


def resolve(_: str) -> DatasetId:
    return INPUT


def pin(_: TransformSql) -> str:
    return "sha256:1"


def applied(state: ChainState | None, snapshot: DatasetSnapshot) -> tuple[MetadataEvent, ...]:
    if state is None:
        return founding_events(snapshot, APPLIED, resolve, pin)
    return changed_events(state, snapshot, resolve, pin)


def after(state: ChainState | None, events: tuple[MetadataEvent, ...]) -> ChainState:
    """As the chain is read again. Raises Invalid."""
    before = state or ChainState.EMPTY
    for block in author_blocks(before, events, before.system_time or Instant(0)):
        before = before.advance(decode_block(block.raw))
    return before


def lives(kind: DatasetKind, lots: list[list[MetadataEvent]]) -> None:
    state: ChainState | None = None
    for lot in lots:
        snapshot = DatasetSnapshot(name="x", kind=kind, metadata=tuple(lot))
        try:
            events = applied(state, snapshot)
            state = after(state, events)
        except Invalid:
            continue
        assert applied(state, snapshot) == ()


@pytest.mark.slow
@given(st.lists(ROOTS, min_size=1, max_size=4))
def test_a_root_applied_again_is_unchanged(lots: list[list[MetadataEvent]]) -> None:
    lives(DatasetKind.ROOT, lots)


@pytest.mark.slow
@given(st.lists(st.tuples(st.lists(COMMON, max_size=3), TRANSFORMS), min_size=1, max_size=4))
def test_a_derivative_applied_again_is_unchanged(lots: list[tuple[list[MetadataEvent], MetadataEvent]]) -> None:
    lives(DatasetKind.DERIVATIVE, [[*some, transform] for some, transform in lots])


SOURCE = SetPollingSource(fetch=FetchFilesGlob(path="*.csv"), read=ReadCsv(), merge=MergeAppend())


@pytest.mark.parametrize(
    "first,then",
    [
        ([], [SetDataSchema(schema=DataSchema(fields=tuple(FIELDS)))]),
        ([SOURCE], [SOURCE, DisablePollingSource()]),
        ([SOURCE], [DisablePollingSource()]),
        ([AddPushSource(source_name="a", read=ReadCsv(), merge=MergeAppend())], [DisablePushSource(source_name="a")]),
        ([], [SetInfo(description="one"), SetInfo(description="two")]),
        ([], [SetInfo(keywords=())]),
    ],
)  # fmt: skip
def test_events_that_could_not_be_applied_twice(first: Any, then: Any) -> None:
    state = after(None, applied(None, DatasetSnapshot(name="x", kind=DatasetKind.ROOT, metadata=tuple(first))))
    snapshot = DatasetSnapshot(name="x", kind=DatasetKind.ROOT, metadata=tuple(then))
    state = after(state, applied(state, snapshot))
    assert applied(state, snapshot) == ()


@pytest.mark.parametrize("is_legacy", [False, True])
def test_a_schema_may_only_describe_columns_anew(is_legacy: bool) -> None:
    """Whoever declared the columns before, an engine that inferred them, a manifest, or a writer of the legacy form."""
    schema = DataSchema(fields=tuple(FIELDS))
    held = SetDataSchema(raw_arrow_schema=legacy(to_arrow(schema))) if is_legacy else SetDataSchema(schema=schema)
    state = after(None, (*applied(None, DatasetSnapshot(name="x", kind=DatasetKind.ROOT, metadata=())), held))
    told = [msgspec.structs.replace(field, extra={"opendatafabric.org/description": "new"}) for field in FIELDS]
    described = SetDataSchema(schema=DataSchema(fields=tuple(told)))
    snapshot = DatasetSnapshot(name="x", kind=DatasetKind.ROOT, metadata=(described,))
    assert applied(state, snapshot) == (described,)
    assert after(state, (described,)).schema == described


@pytest.mark.parametrize(
    "event", [AddData(new_watermark=Instant(0)), Seed(dataset_id=APPLIED, dataset_kind=DatasetKind.ROOT)]
)
def test_events_that_are_the_nodes_own_stand_in_no_manifest(event: Any) -> None:
    state = after(None, applied(None, DatasetSnapshot(name="x", kind=DatasetKind.ROOT, metadata=())))
    with pytest.raises(Invalid, match="is not allowed in a snapshot"):
        applied(state, DatasetSnapshot(name="x", kind=DatasetKind.ROOT, metadata=(event,)))


# Clocks that are wrong by days write nothing; those that differ by less do no harm.

YEAR = 365 * 86400 * instant.SECOND
NOW = instant.parse("2024-05-01T00:00:00Z")


def state_at(time: int) -> ChainState:
    return msgspec.structs.replace(ChainState.EMPTY, system_time=Instant(time))


def test_block_times_are_whole_milliseconds_and_never_go_back() -> None:
    assert block_time(ChainState.EMPTY, Instant(1_999_999), 0) == 1_000_000
    assert block_time(state_at(5 * MILLISECOND), Instant(1), 0) == 5 * MILLISECOND
    assert block_time(state_at(NOW + TOLERANCE), NOW, 0) == NOW + TOLERANCE


def test_a_clock_days_behind_the_last_block_writes_nothing() -> None:
    with pytest.raises(Refused, match="2024-05-01T00:00:00Z, and the last block is of 2025-05-01") as raised:
        block_time(state_at(NOW + YEAR), NOW, 0)
    assert raised.value.rule == "clock-behind"
    assert "odfctl doctor" in raised.value.hint


class Clocks:
    def __init__(self, wall: int) -> None:
        self.wall, self.steady = wall, 1000

    def now(self) -> Instant:
        return Instant(self.wall)

    def monotonic(self) -> int:
        return self.steady

    def passes(self, span: int) -> None:
        self.wall += span
        self.steady += span


def test_a_clock_that_is_set_ahead_is_told_by_the_monotonic_one() -> None:
    clocks = Clocks(NOW)
    watch = JumpWatch(clocks)
    clocks.passes(3 * YEAR)
    assert watch.ahead(NOW) == 0, "time that passes is no jump"
    clocks.wall += YEAR
    assert watch.ahead(NOW) == watch.ahead(None) == YEAR
    clocks.wall -= 3 * YEAR
    assert watch.ahead(NOW) == 0


def test_a_clock_that_began_wrong_may_be_set_right() -> None:
    clocks = Clocks(0)
    watch = JumpWatch(clocks)
    clocks.wall = NOW
    assert watch.ahead(Instant(NOW - YEAR)) == 0


def test_a_jump_of_days_is_refused_and_less_is_not() -> None:
    check_jump(TOLERANCE, NOW)
    with pytest.raises(Refused, match="366 days ahead") as raised:
        check_jump(366 * 86400 * instant.SECOND, NOW)
    assert raised.value.rule == "clock-ahead"
