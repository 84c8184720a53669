"""First and last event times of datasets: equal to those of all slices, whatever was looked at before, and bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.data.arrow_schema import from_arrow
from chain.errors import NotFound
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.model.block import Block
from chain.model.events import AddData, DatasetKind, DataSlice, MetadataEvent, OffsetInterval, Seed, SetDataSchema
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements.card import Card, ChainFacts, PublisherClaims
from chain.statements.keys import SigningKey
from chain.store.base import Head
from odfd.services.publishing import card_facts
from odfd.services.publishing.card_facts import EventExtents, EventSpan, Measured, extent_in, interval_of, render_span
from worlds.chains import linked

OWNER = SigningKey(b"e" * 32)
DATASET: DatasetId = OWNER.dataset_id
UTC = pa.timestamp("ms", "UTC")
STEP = 60 * SECOND
Spans = Sequence[tuple[int, int] | None]


class Chain:
    """A chain in memory, one slice a block after the first two; ``read`` counts what was looked at."""

    def __init__(self, spans: Spans, kind: pa.DataType = UTC) -> None:
        schema = pa.schema([pa.field("offset", pa.int64()), pa.field("event_time", kind)])
        events: list[MetadataEvent] = [
            Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT),
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
        dataset=DATASET,
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
