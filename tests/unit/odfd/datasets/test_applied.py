"""Snapshots that are applied again, and clocks that are wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.codec.blocks import decode_block
from chain.data.arrow_schema import to_arrow
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model import schema as odf
from chain.model.events import (
    AddData,
    AddPushSource,
    AttachmentEmbedded,
    AttachmentsEmbedded,
    DatasetKind,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    MetadataEvent,
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
from chain.state import ChainState
from odfd.datasets.commit import TOLERANCE, block_time, check_jump
from odfd.datasets.creation import changed_events, founding_events
from odfd.runtime.clock import JumpWatch
from odfd.trust.signing.owner_commit import author_blocks
from worlds.legacy_schema import legacy

# A snapshot that was accepted is applied again: nothing changes, whatever it says and whatever was there before.

DATASET, INPUT = (DatasetId.from_public_key(bytes([n]) * 32) for n in (1, 2))
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
        return founding_events(snapshot, DATASET, resolve, pin)
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
    "event", [AddData(new_watermark=Instant(0)), Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)]
)
def test_events_that_are_the_nodes_own_stand_in_no_manifest(event: Any) -> None:
    state = after(None, applied(None, DatasetSnapshot(name="x", kind=DatasetKind.ROOT, metadata=())))
    with pytest.raises(Invalid, match="cannot stand in a snapshot"):
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
