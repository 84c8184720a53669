"""The client's reader of blocks says what ``chain`` says, and of bytes that are none nothing but Invalid."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.codec.blocks import decode_block as decode_ours
from chain.codec.blocks import encode_block
from chain.errors import Invalid as InvalidBlock
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock, UnknownEvent
from chain.model.events import (
    AddData,
    AddPushSource,
    Checkpoint,
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetVocab,
    SourceState,
)
from chain.model.events import AttachmentEmbedded as Attachment
from chain.model.events import AttachmentsEmbedded as Attachments
from chain.model.source import (
    FetchUrl,
    MergeAppend,
    MergeChangelogStream,
    MergeLedger,
    MergeSnapshot,
    MergeUpsertStream,
    ReadCsv,
    primary_key,
)
from chain.multihash import Multihash
from odfd.renditions.successor import HandoverNotice, announce, notice_of
from odfd_client.chain_blocks import MAX_BLOCK, decode_block
from odfd_client.errors import Invalid
from worlds.depth import share
from worlds.mutation import mutated

DIGEST = st.binary(min_size=32, max_size=32)
HASH = st.builds(Multihash.from_digest, st.sampled_from([0x12, 0x16]), DIGEST)
DID = st.builds(DatasetId.from_public_key, DIGEST)
NUMBER = st.integers(0, (1 << 64) - 1)
TIME = st.builds(Instant, st.integers(-(1 << 60), 1 << 60))
TEXT = st.text(st.characters(codec="utf-8"), max_size=9)
NAMES = st.lists(TEXT, min_size=1, max_size=3).map(tuple)
INTERVAL = st.tuples(NUMBER, NUMBER).map(lambda two: OffsetInterval(start=min(two), end=max(two)))
SLICE = st.none() | st.builds(DataSlice, logical_hash=HASH, physical_hash=HASH, offset_interval=INTERVAL, size=NUMBER)
DATA: dict[str, Any] = {
    "prev_checkpoint": st.none() | HASH,
    "prev_offset": st.none() | NUMBER,
    "new_data": SLICE,
    "new_checkpoint": st.none() | st.builds(Checkpoint, physical_hash=HASH, size=NUMBER),
    "new_watermark": st.none() | TIME,
}
STATE = st.none() | st.builds(SourceState, source_name=TEXT, kind=TEXT, value=TEXT)
MERGE = st.one_of(
    st.builds(MergeAppend),
    *(st.builds(kind, primary_key=NAMES) for kind in (MergeLedger, MergeSnapshot, MergeChangelogStream)),
    st.builds(MergeUpsertStream, primary_key=NAMES),
)
READ = st.builds(ReadCsv)
SHARDS = st.integers(1, 64)
NOTICE = st.builds(HandoverNotice, to=DID, time=st.integers(0, 10**15 - 1), block=HASH, ended=SHARDS, shards=SHARDS)
INFO = st.builds(SetInfo, description=st.none() | TEXT, keywords=st.none() | NAMES)
EVENT = st.one_of(
    st.builds(AddData, **DATA, new_source_state=STATE),
    st.builds(
        ExecuteTransform, query_inputs=st.lists(st.builds(ExecuteTransformInput, dataset_id=DID)).map(tuple), **DATA
    ),
    st.builds(Seed, dataset_id=DID, dataset_kind=st.sampled_from(DatasetKind)),
    st.builds(SetVocab, **{each: st.none() | TEXT for each in SetVocab.__struct_fields__}),
    INFO,
    st.builds(announce, INFO, NOTICE),
    st.builds(AddPushSource, source_name=TEXT, read=READ, merge=MERGE),
    st.builds(SetPollingSource, fetch=st.builds(FetchUrl, url=TEXT), read=READ, merge=MERGE),
    st.builds(SetDataSchema, raw_arrow_schema=st.none() | st.binary(max_size=9)),
    st.builds(SetLicense, short_name=TEXT, name=TEXT, website_url=TEXT),
    st.just(SetAttachments(attachments=Attachments(items=(Attachment(path="p", content="c"),)))),
)
BLOCK = st.builds(
    MetadataBlock, system_time=TIME, prev_block_hash=st.none() | HASH, sequence_number=NUMBER, event=EVENT
)


def said(block: Block) -> dict[str, Any]:
    """What the client reads of a block, by the node's reader."""
    event: Any = block.event
    data, merge = getattr(event, "new_data", None), getattr(event, "merge", None)
    notice = notice_of(event) if isinstance(event, SetInfo) else None
    given = ("offset", "op", "system_time", "event_time")
    return {
        "hash": str(block.hash),
        "prev": None if block.prev_block_hash is None else str(block.prev_block_hash),
        "number": block.sequence_number,
        "time": int(block.system_time),
        "slice": None
        if data is None
        else (str(data.physical_hash), data.size, data.offset_interval.start, data.offset_interval.end),
        "watermark": getattr(event, "new_watermark", None),
        "seed": (str(event.dataset_id), event.dataset_kind.value.lower()) if isinstance(event, Seed) else None,
        "vocabulary": tuple(
            given[place] if (name := getattr(event, each)) is None else name
            for place, each in enumerate(SetVocab.__struct_fields__)
        )
        if isinstance(event, SetVocab)
        else None,
        "merge": None if merge is None else (getattr(event, "source_name", ""), primary_key(merge)),
        "notice": None if notice is None else (str(notice.to), notice.time, str(notice.block), notice.shards),
        "schema": getattr(event, "raw_arrow_schema", None),
    }


def read(raw: bytes) -> dict[str, Any]:
    """The same, by the client's."""
    found = decode_block(raw)
    part, merge, notice = found.slice, found.merge, found.notice
    return {
        "hash": found.hash,
        "prev": found.prev,
        "number": found.number,
        "time": found.time,
        "slice": None if part is None else (part.hash, part.size, part.first, part.last),
        "watermark": found.watermark,
        "seed": found.seed,
        "vocabulary": found.vocabulary,
        "merge": None if merge is None else (merge.source, merge.key),
        "notice": None if notice is None else (notice.to, notice.time, notice.block, notice.shards),
        "schema": found.arrow_schema,
    }


@pytest.mark.slow
@settings(max_examples=share(60), deadline=None)
@given(BLOCK, st.sampled_from([2, 3]))
def test_a_block_is_read_as_the_node_reads_it(content: MetadataBlock, version: int) -> None:
    block = encode_block(content, version)
    assert read(block.raw) == said(block)


@pytest.mark.slow
@settings(max_examples=share(40), deadline=None)
@given(BLOCK, BLOCK, st.integers(0, 1 << 32))
def test_damaged_bytes_are_invalid_or_read_alike(content: MetadataBlock, other: MetadataBlock, seed: int) -> None:
    lot = random.Random(seed)
    raw = encode_block(content).raw
    for _ in range(8):
        raw = mutated(lot, raw, encode_block(other).raw)
        try:
            found = read(raw)
        except Invalid:
            continue
        try:
            ours = decode_ours(raw)
        except InvalidBlock:
            continue  # it has parts that the client passes over
        if not isinstance(ours.event, UnknownEvent):  # a member of a newer schema, somewhere in it
            assert found == said(ours)


def test_strategies_have_the_numbers_of_the_format() -> None:
    merges = (MergeAppend(), MergeLedger, MergeSnapshot, MergeChangelogStream, MergeUpsertStream)
    for number, kind in enumerate(merges, 1):
        merge = kind if isinstance(kind, MergeAppend) else kind(primary_key=("k",))
        event = AddPushSource(source_name="a", read=ReadCsv(), merge=merge)
        block = MetadataBlock(system_time=Instant(0), sequence_number=0, event=event)
        found = decode_block(encode_block(block).raw).merge
        assert found is not None
        assert found.strategy == number


@pytest.mark.parametrize("raw", [b"", b"\0" * 8, b"\xff" * 64, bytes(MAX_BLOCK + 1)])
def test_what_is_no_block_is_refused(raw: bytes) -> None:
    with pytest.raises(Invalid):
        decode_block(raw)
