"""A chain's state, its comparison and its walks: the same by folding and by reading, in reads that do not grow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from chain.codec.blocks import encode_block
from chain.compare import Relation, compare
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock, UnknownEvent
from chain.model.events import (
    AddData,
    AddPushSource,
    Checkpoint,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataEvent,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    TransformInput,
)
from chain.model.events import AttachmentsEmbedded as Embedded
from chain.model.schema import DataSchema
from chain.model.source import FetchUrl, MergeAppend, MergeLedger, ReadCsv, ReadNdJson, TransformSql
from chain.multihash import Multihash
from chain.state import ChainState, InputPosition, load_state
from chain.store.schema import KINDS, kind_name
from chain.walk import newest_first, oldest_first
from worlds.depth import share

ME = DatasetId.from_public_key(bytes(32))
SEED = Seed(dataset_id=ME, dataset_kind=DatasetKind.ROOT)
H = [Multihash.sha3_256(bytes([n])) for n in range(4)]


class Chain:
    """A chain in memory that counts what is read of it."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.reads = 0
        self._places: dict[str, list[int]] = {}
        for block in blocks:
            self._places.setdefault(kind_name(block.event), []).append(block.sequence_number)

    def head(self) -> Block | None:
        self.reads += 1
        return self.blocks[-1] if self.blocks else None

    def block_at(self, sequence_number: int) -> Block:
        self.reads += 1
        return self.blocks[sequence_number]

    def last_of(self, kinds: Iterable[str], before: int | None = None) -> Block | None:
        self.reads += 1
        end = len(self.blocks) if before is None else before
        places = [place for kind in kinds for place in self._places.get(kind, ()) if place < end]
        return self.blocks[max(places)] if places else None

    def raw_blocks(self, start: int, stop: int) -> Iterator[bytes]:
        return (block.raw for block in self.blocks[start:stop])


def chained(events: Iterable[MetadataEvent | UnknownEvent], onto: list[Block] | None = None) -> list[Block]:
    blocks = list(onto or [])
    for event in events:
        content = MetadataBlock(
            system_time=Instant(len(blocks)),
            prev_block_hash=blocks[-1].hash if blocks else None,
            sequence_number=len(blocks),
            event=SetInfo() if isinstance(event, UnknownEvent) else event,
        )
        block = encode_block(content)
        blocks.append(msgspec.structs.replace(block, event=event) if isinstance(event, UnknownEvent) else block)
    return blocks


NAMES = st.sampled_from(["a", "b"])
READS = st.sampled_from([ReadCsv(), ReadNdJson()])
HASHES = st.none() | st.sampled_from(H)
OFFSETS = st.none() | st.integers(0, 9)
EVENTS = st.one_of(
    st.builds(
        AddData,
        prev_offset=OFFSETS,
        new_watermark=st.none() | st.integers(0, 9).map(Instant),
        new_checkpoint=st.none() | st.builds(Checkpoint, physical_hash=st.sampled_from(H), size=st.just(1)),
        new_source_state=st.none() | st.builds(SourceState, source_name=NAMES, kind=NAMES, value=NAMES),
    ),
    st.builds(
        ExecuteTransform,
        query_inputs=st.tuples(
            st.builds(
                ExecuteTransformInput,
                dataset_id=st.just(ME),
                prev_block_hash=HASHES,
                new_block_hash=HASHES,
                prev_offset=OFFSETS,
                new_offset=OFFSETS,
            )
        ),
    ),
    st.builds(AddPushSource, source_name=NAMES, read=READS, merge=st.just(MergeAppend())),
    st.builds(DisablePushSource, source_name=NAMES),
    st.builds(SetPollingSource, fetch=st.builds(FetchUrl, url=NAMES), read=READS, merge=st.just(MergeAppend())),
    st.just(DisablePollingSource()),
    st.builds(SetInfo, description=NAMES),
    st.builds(SetVocab, offset_column=st.none() | NAMES, event_time_column=st.none() | NAMES),
    st.builds(SetDataSchema, schema=st.just(DataSchema(fields=()))),
    st.builds(SetAttachments, attachments=st.just(Embedded(items=()))),
    st.builds(
        SetTransform,
        inputs=st.tuples(st.builds(TransformInput, dataset_ref=NAMES)),
        transform=st.builds(TransformSql, engine=NAMES),
    ),
    st.builds(UnknownEvent, variant=st.sampled_from([KINDS["Seed"], *range(KINDS["SetPollingSource"], 16)])),
)


@pytest.mark.slow
@settings(max_examples=share(200))
@given(st.lists(EVENTS, max_size=25))
def test_a_loaded_state_is_the_folded_state(events: list[MetadataEvent]) -> None:
    blocks = chained([SEED, *events])
    folded = ChainState.EMPTY
    for block in blocks:
        folded = folded.advance(block)
    assert load_state(Chain(blocks)) == folded
    assert (folded.size, folded.head, folded.dataset) == (len(blocks), blocks[-1].hash, ME)


def test_what_cannot_be_read_is_not_taken_for_what_was_before_it() -> None:
    blocks = chained([SEED, SetDataSchema(schema=DataSchema(fields=())), UnknownEvent(variant=KINDS["SetDataSchema"])])
    state = load_state(Chain(blocks))
    assert (state.schema, state.unknown, state.may_hold(SetDataSchema), state.may_hold(SetInfo)) == (
        None,
        None,
        True,
        False,
    )
    again = chained([SetDataSchema(schema=DataSchema(fields=()))], blocks)[-1]
    assert not state.advance(again).may_hold(SetDataSchema)


def test_an_empty_chain_has_the_empty_state() -> None:
    assert load_state(Chain([])) == ChainState.EMPTY
    assert (ChainState.EMPTY.size, ChainState.EMPTY.next_offset, ChainState.EMPTY.watermark) == (0, 0, None)


@pytest.fixture(scope="module")
def long_chain() -> list[Block]:
    push = [AddPushSource(source_name=name, read=ReadCsv(), merge=MergeLedger(primary_key=("k",))) for name in "abc"]
    return chained([SEED, *push, *(AddData(prev_offset=n) for n in range(10_000 - 4))])


@pytest.mark.slow
def test_reads_to_load_do_not_grow_with_the_chain(long_chain: list[Block]) -> None:
    counts = set()
    for length in (100, 10_000):
        chain = Chain(long_chain[:length])
        state = load_state(chain)
        assert (state.size, state.last_offset, len(state.push_sources)) == (length, length - 5, 3)
        counts.add(chain.reads)
    assert len(counts) == 1
    assert counts.pop() < 25


def test_positions_of_inputs_carry_on() -> None:
    def used(**fields: object) -> ExecuteTransform:
        return ExecuteTransform(query_inputs=(ExecuteTransformInput(dataset_id=ME, **fields),))  # type: ignore[arg-type]

    state = ChainState.EMPTY
    for block in chained([SEED, used(new_block_hash=H[1], new_offset=0)]):
        state = state.advance(block)
    assert state.input_positions == {ME: InputPosition(H[1], 0)}
    for block in chained([used(prev_block_hash=H[1], prev_offset=0)], chained([SEED]))[1:]:
        state = state.advance(block)
    assert state.input_positions == {ME: InputPosition(H[1], 0)}


@pytest.mark.slow
@settings(max_examples=share(200))
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_comparison(common: int, ours: int, theirs: int) -> None:
    shared = chained([SEED] + [SetInfo(description=str(n)) for n in range(common)])[:common]
    one = Chain(chained((SetInfo(description=f"ours {n}") for n in range(ours)), shared))
    other = Chain(chained((SetInfo(description=f"theirs {n}") for n in range(theirs)), shared))
    found = compare(one, other)
    assert (found.common, found.ours, found.theirs) == (common, ours, theirs)
    expected = {(False, False): Relation.EQUAL, (True, False): Relation.AHEAD, (False, True): Relation.BEHIND}
    assert found.relation is expected.get((ours > 0, theirs > 0), Relation.DIVERGED)


@pytest.mark.slow
def test_comparison_reads_a_logarithm(long_chain: list[Block]) -> None:
    for parting in (1, 2, 4_999, 9_999):
        fork = chained((SetInfo(description=str(n)) for n in range(10_000 - parting)), long_chain[:parting])
        ours, theirs = Chain(long_chain), Chain(fork)
        assert compare(ours, theirs).common == parting
        assert max(ours.reads, theirs.reads) <= 2 + math.log2(10_000) + 1


@pytest.mark.slow
def test_walks(long_chain: list[Block]) -> None:
    chain = Chain(long_chain)
    assert [block.sequence_number for block in newest_first(chain, ["AddPushSource", "Seed"])] == [3, 2, 1, 0]
    assert [block.sequence_number for block in newest_first(chain, ["AddPushSource"], before=3)] == [2, 1]
    assert chain.reads == 7
    assert list(oldest_first(chain, 5, 9)) == long_chain[5:9]
