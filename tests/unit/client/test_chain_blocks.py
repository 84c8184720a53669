"""Chains as the client reads them: blocks, folds and what is held."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
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
    MergeStrategy,
    MergeUpsertStream,
    ReadCsv,
    primary_key,
    traits,
)
from chain.multihash import Multihash
from engines.query.views import SliceView, folded_sql
from odfd.published.signed import COLLECTION, collection_in
from odfd.renditions.successor import HandoverNotice, announce, notice_of
from odfd_client.chain_blocks import MAX_BLOCK, decode_block
from odfd_client.errors import HoldLost, Invalid, OdfdError, Refused, Unreachable, from_problem
from odfd_client.folding import difference, standing
from odfd_client.holds import Hold
from odfd_client.places import FolderPlace
from odfd_client.stored_chains import KEYED
from odfd_client.stored_collections import SignedShard, beside, shards_in
from worlds.collection_bytes import KEYS, written
from worlds.depth import share
from worlds.mutation import mutated

# The client's reader of blocks says what ``chain`` says, and of bytes that are none nothing but Invalid.

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
    keyed = []
    for number, kind in enumerate(get_args(MergeStrategy), 1):
        merge = kind() if kind is MergeAppend else kind(primary_key=("k",))
        keyed += [number] if primary_key(merge) and not traits(merge).only_adds else []
        event = AddPushSource(source_name="a", read=ReadCsv(), merge=merge)
        block = MetadataBlock(system_time=Instant(0), sequence_number=0, event=event)
        found = decode_block(encode_block(block).raw).merge
        assert found is not None
        assert found.strategy == number
    assert tuple(keyed) == KEYED


@pytest.mark.parametrize("raw", [b"", b"\0" * 8, b"\xff" * 64, bytes(MAX_BLOCK + 1)])
def test_what_is_no_block_is_refused(raw: bytes) -> None:
    with pytest.raises(Invalid):
        decode_block(raw)


# Current rows of a repository are those that the node's query engine gives for the same log.

SCHEMA = pa.schema([("offset", pa.int64()), ("op", pa.int32()), ("city", pa.string()), ("n", pa.int64())])
ROW = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2, 3]), st.sampled_from(["Graz", "Linz", None]), st.none() | st.integers(1, 2)
)


@pytest.mark.slow
@settings(max_examples=share(60), deadline=None)
@given(st.lists(ROW, max_size=30), st.booleans())
def test_the_same_rows_stand_as_in_sql(rows: list[tuple[int, str | None, int | None]], by_key: bool) -> None:
    log = pa.table([range(len(rows)), *([row[at] for row in rows] for at in range(3))], schema=SCHEMA)
    same = ["city"] if by_key else ["city", "n"]
    kept = standing(log.select(["offset", "op", *same]), "offset", "op", by_key=by_key)
    offsets = log["offset"] if kept is None else kept
    view = SliceView(
        name="t", files=(), schema=b"", fold="key" if by_key else "rows", key=("city",) if by_key else (),
        system=("offset", "op", "op"),
    )  # fmt: skip
    with duckdb.connect() as connection:
        connection.register("log", log)
        wanted = {"offset": "BIGINT", "op": "INTEGER", "city": "VARCHAR", "n": "BIGINT"}
        found = connection.sql(folded_sql(view, "SELECT * FROM log", wanted)).fetchall()
    assert sorted(offsets.to_pylist()) == [each[0] for each in found]


TABLE = st.lists(st.tuples(st.sampled_from(["Graz", "Linz", None]), st.sampled_from([1.0, None, 0.5])), max_size=12)


@pytest.mark.slow
@settings(max_examples=share(40), deadline=None)
@given(TABLE, TABLE)
def test_a_difference_makes_the_one_the_other(old: list[tuple[object, ...]], new: list[tuple[object, ...]]) -> None:
    kinds = pa.schema([("city", pa.string()), ("n", pa.float64())])
    before, now = (pa.table([[row[at] for row in rows] for at in range(2)], schema=kinds) for rows in (old, new))
    rows = difference(before, now, ["city", "n"]).to_pylist()
    has = Counter(old)
    for row in rows:
        has[row["city"], row["n"]] += -1 if row["op"] == 1 else 1
    assert +has == Counter(new)
    assert min(has.values(), default=0) >= 0
    assert not {(row["city"], row["n"]) for row in rows if row["op"] == 1} & {
        (row["city"], row["n"]) for row in rows if row["op"] == 0
    }
    assert difference(pa.table({}), pa.table({}), []).num_rows == 0


# The client's hold by itself: renewals that fail, a node that is away, the end.

ANSWER = {
    "id": "h",
    "time": "2026-01-01T00:00:00Z",
    "pin": {"name": "c", "id": "did", "block": "f", "sequenceNumber": 1},
}


class Node:
    """Its answers, one after the other."""

    is_remote = False

    def __init__(self, *faults: Exception | None) -> None:
        self.faults, self.asked = list(faults), list[tuple[str, str]]()

    def ask(self, method: str, path: str, **_: Any) -> Node:
        self.asked.append((method, path))
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        return self

    def close(self) -> None: ...


def held(node: Any, now: list[float]) -> Hold:
    return Hold(node, ANSWER, 60, 0.0, lambda: now[0])


def test_a_node_that_is_away_for_a_while_costs_nothing() -> None:
    now = [0.0]
    node = Node(Unreachable("away"), None)
    hold = held(node, now)
    now[0] = 40.0
    with pytest.raises(Unreachable):
        hold.renew()
    hold.renew()
    now[0] = 99.9
    hold.check()
    now[0] = 100.0
    with pytest.raises(HoldLost, match="could not be renewed in its 60 seconds"):
        hold.check()
    with pytest.raises(HoldLost):
        hold.release()


def test_the_end_is_told_to_the_node_once() -> None:
    node = Node()
    hold = held(node, [0.0])
    with hold as same:
        assert same is hold
    hold.release()
    assert node.asked == [("DELETE", "/node/v1alpha1/holds/h")]


def test_what_ends_a_block_is_told_first() -> None:
    lost = from_problem({"family": "Refused", "rule": "hold-lost", "detail": "lost"})
    assert isinstance(lost, HoldLost)
    with pytest.raises(ZeroDivisionError), held(Node(Unreachable("away")), [0.0]):
        raise ZeroDivisionError
    with pytest.raises(Unreachable), held(Node(Unreachable("away")), [0.0]):
        pass


def test_a_node_elsewhere_gives_none() -> None:
    node: Any = Node()
    node.is_remote = True
    with pytest.raises(Refused, match="own socket"):
        Hold.take(node, "c", None, 60, "")


def test_one_that_is_owned_outlives_its_block_and_its_time_until_another_takes_over() -> None:
    now, node = [0.0], Node(None, from_problem({"family": "Refused", "rule": "hold-fenced", "detail": "fence 3"}))
    hold = Hold(node, ANSWER | {"fence": 2}, 60, 0.0, lambda: now[0])  # type: ignore[arg-type]
    with hold:
        now[0] = 1e9
        hold.check()
    assert node.asked == [], "nothing was released"
    hold.renew()
    with pytest.raises(HoldLost, match="fence 3"):
        hold.renew()
    for told in (hold.check, lambda: hold.dataset):
        with pytest.raises(HoldLost):
            told()
    owned = Hold(Node(), ANSWER | {"fence": 2}, 60, 0.0, lambda: now[0])  # type: ignore[arg-type]
    owned.release()
    assert owned._transport.asked == [("DELETE", "/node/v1alpha1/holds/h?fence=2")]  # type: ignore[attr-defined]


# What a repository says of shards: the client reads it as the node does, and refuses what is damaged.

HEADS = st.lists(
    st.tuples(st.integers(1, 1 << 40), st.none() | st.integers(0, (1 << 53) - 1)), min_size=2, max_size=len(KEYS)
)


@pytest.mark.slow
@given(HEADS, HEADS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_readers_say_the_same(tmp_path: Path, heads: Any, others: Any) -> None:
    keys = KEYS[: len(heads)]
    raw = written(keys, heads)
    (tmp_path / "trust").mkdir(exist_ok=True)
    (tmp_path / COLLECTION).write_bytes(raw)
    found = collection_in(raw, "here")
    assert found.content == raw
    assert shards_in(FolderPlace(tmp_path), "") == tuple(
        SignedShard(str(each.dataset), str(each.head), each.size, each.upper or 0) for each in found.heads
    )
    there = collection_in(written(keys, (others * 2)[: len(keys)]), "there")
    if len(there.heads) == len(found.heads):
        joined = found.newer(there)
        assert [each.order for each in joined.heads] == [
            max(one.order, two.order) for one, two in zip(found.heads, there.heads, strict=True)
        ]
        assert collection_in(joined.content, "joined") == joined


@pytest.mark.slow
@given(st.integers(0, 1 << 32))
@settings(max_examples=share(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes_are_an_error_that_says_so(tmp_path: Path, seed: int) -> None:
    (tmp_path / "trust").mkdir(exist_ok=True)
    raw = written(KEYS[:3], [(1, 2), (3, None), (5, 6)])
    (tmp_path / COLLECTION).write_bytes(mutated(random.Random(seed), raw, raw))
    try:
        found = shards_in(FolderPlace(tmp_path), "")
    except OdfdError:
        return
    assert found is not None
    assert len(found) == 3


@pytest.mark.parametrize(("folder", "expected"), [("cities", "fed01"), ("a/cities", "a/fed01")])
def test_a_shard_lies_beside_the_name(folder: str, expected: str) -> None:
    assert beside(folder, "did:odf:fed01") == expected
