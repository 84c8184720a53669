"""For every append rule a block that it lets pass, and another that differs in what the rule speaks of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.block import Block, MetadataBlock, UnknownEvent
from chain.model.changelog import with_changelog
from chain.model.defaults import spelled_out
from chain.model.events import (
    AddData,
    AddPushSource,
    Checkpoint,
    DatasetKind,
    DataSlice,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    TransformInput,
)
from chain.model.schema import (
    MAX_COLUMNS,
    DataField,
    DataSchema,
    Int32,
    Int64,
    List,
    Option,
    String,
    Struct,
    Timestamp,
    TimeUnit,
)
from chain.model.source import (
    FetchEthereumLogs,
    FetchUrl,
    MergeAppend,
    MergeLedger,
    ReadCsv,
    SqlQueryStep,
    TransformSql,
)
from chain.multihash import ARROW0_SHA3_256, SHA2_256, Multihash
from chain.state import ChainState
from chain.store.layout import DirectoryWriter

ME, ONE, TWO = (DatasetId.from_public_key(bytes([n]) * 32) for n in (1, 2, 3))
NOON = Instant(1_700_000_000_000 * MILLISECOND)
H = [Multihash.sha3_256(bytes([n])) for n in range(9)]
ROWS = Multihash.from_digest(ARROW0_SHA3_256, bytes(32))

ROOT = Seed(dataset_id=ME, dataset_kind=DatasetKind.ROOT)
DERIVED = Seed(dataset_id=ME, dataset_kind=DatasetKind.DERIVATIVE)
SYSTEM = (
    DataField(name="offset", type=Int64()),
    DataField(name="op", type=Int32()),
    DataField(name="system_time", type=Timestamp()),
    DataField(name="event_time", type=Option(inner=Timestamp())),
)
CITY = DataField(name="city", type=Option(inner=String()))
SCHEMA = SetDataSchema(schema=DataSchema(fields=(*SYSTEM, CITY)))
PUSH = AddPushSource(source_name="a", read=ReadCsv(), merge=MergeAppend())
POLL = SetPollingSource(fetch=FetchUrl(url="file:///x"), read=ReadCsv(), merge=MergeAppend())
QUERY = SqlQueryStep(query="select 1")
SQL = TransformSql(engine="spark", queries=(QUERY,))
TRANSFORM = SetTransform(
    inputs=(TransformInput(dataset_ref=str(ONE), alias="one"), TransformInput(dataset_ref=str(TWO), alias="two")),
    transform=SQL,
)


def rows(start: int, end: int, **changes: Any) -> DataSlice:
    whole = DataSlice(
        logical_hash=ROWS, physical_hash=H[0], offset_interval=OffsetInterval(start=start, end=end), size=10
    )
    return msgspec.structs.replace(whole, **changes)


def saved(number: int) -> Checkpoint:
    return Checkpoint(physical_hash=H[number], size=1)


def used(dataset: DatasetId, **fields: Any) -> ExecuteTransformInput:
    return ExecuteTransformInput(dataset_id=dataset, **fields)


def ran(first: dict[str, Any], second: dict[str, Any] | None = None, **fields: Any) -> ExecuteTransform:
    return ExecuteTransform(query_inputs=(used(ONE, **first), used(TWO, **(second or {}))), **fields)


def following(state: ChainState, event: Any, **changes: Any) -> Block:
    content = {
        "system_time": NOON,
        "prev_block_hash": state.head,
        "sequence_number": state.size,
        "event": event,
    } | changes
    if isinstance(event, UnknownEvent):
        known = following(state, SetInfo(), **changes)
        return msgspec.structs.replace(known, event=event)
    return encode_block(MetadataBlock(**content))


CHAINS: dict[Multihash | None, tuple[Block, ...]] = {None: ()}
"""Every chain that a case begins with, by its head."""


def after(*events: Any) -> ChainState:
    state = ChainState.EMPTY
    for event in events:
        block = following(state, event)
        CHAINS[block.hash] = (*CHAINS[state.head], block)
        state = state.advance(block)
    return state


NUMBERED = tuple(DataField(name=f"c{number}", type=Int64()) for number in range(MAX_COLUMNS))


def typed(*fields: DataField) -> SetDataSchema:
    return SetDataSchema(schema=DataSchema(fields=(*SYSTEM, *fields)))


def changing(changelog: bool, *fields: DataField) -> SetDataSchema:
    """Says whether rows can be taken back."""
    schema = typed(CITY, *fields).schema
    assert schema is not None
    return SetDataSchema(schema=with_changelog(schema, changelog))


class Case(NamedTuple):
    state: ChainState
    good: Any
    """An event, or an event and changes of the block around it."""
    bad: Any


FIRST_RUN = ran({"new_block_hash": H[1], "new_offset": 9}, new_watermark=NOON)
BEGUN = after(ROOT, PUSH, SCHEMA)
GROWN = after(ROOT, PUSH, SCHEMA, AddData(new_data=rows(0, 9), new_watermark=NOON))
SAVED = after(ROOT, PUSH, SCHEMA, AddData(new_data=rows(0, 9), new_checkpoint=saved(1), new_watermark=NOON))
DECLARED = after(DERIVED, TRANSFORM, SCHEMA)
RUN = after(DERIVED, TRANSFORM, SCHEMA, FIRST_RUN)
GO_ON = {"prev_block_hash": H[1], "prev_offset": 9}
EMPTY = ChainState.EMPTY


def queries(*steps: SqlQueryStep, **changes: Any) -> SetTransform:
    sql = msgspec.structs.replace(SQL, queries=steps, **changes)
    return msgspec.structs.replace(TRANSFORM, transform=sql)


def inputs(*named: TransformInput) -> SetTransform:
    return msgspec.structs.replace(TRANSFORM, inputs=named)


MORE = AddData(prev_offset=9, new_data=rows(10, 19), new_watermark=NOON)
CASES: dict[str, list[Case]] = {
    "first-block-seed": [Case(EMPTY, ROOT, SetInfo())],
    "one-seed": [Case(EMPTY, ROOT, None), Case(after(ROOT), SetInfo(), ROOT)],
    "prev-block-link": [
        Case(after(ROOT), SetInfo(), (SetInfo(), {"prev_block_hash": H[0]})),
        Case(after(ROOT), SetInfo(), (SetInfo(), {"prev_block_hash": None})),
        Case(EMPTY, ROOT, (ROOT, {"prev_block_hash": H[0]})),
    ],
    "sequence-number": [
        Case(after(ROOT), SetInfo(), (SetInfo(), {"sequence_number": 2})),
        Case(EMPTY, ROOT, (ROOT, {"sequence_number": 1})),
    ],
    "known-event": [Case(after(ROOT), SetInfo(), UnknownEvent(variant=14))],
    "system-time-monotonic": [Case(after(ROOT), SetInfo(), (SetInfo(), {"system_time": NOON - 1}))],
    "system-time-millis": [Case(after(ROOT), SetInfo(), (SetInfo(), {"system_time": NOON + 1}))],
    "watermark-monotonic": [
        Case(GROWN, MORE, msgspec.structs.replace(MORE, new_watermark=Instant(NOON - 1))),
        Case(GROWN, MORE, msgspec.structs.replace(MORE, new_watermark=None)),
    ],
    "offsets-sequential": [
        Case(BEGUN, AddData(new_data=rows(0, 0)), AddData(new_data=rows(1, 1))),
        Case(GROWN, MORE, msgspec.structs.replace(MORE, new_data=rows(11, 19))),
        Case(GROWN, MORE, msgspec.structs.replace(MORE, new_data=rows(9, 19))),
    ],
    "offset-interval": [Case(GROWN, MORE, msgspec.structs.replace(MORE, new_data=rows(10, 9)))],
    "prev-offset": [
        Case(GROWN, MORE, msgspec.structs.replace(MORE, prev_offset=8, new_data=rows(9, 19))),
        Case(GROWN, MORE, msgspec.structs.replace(MORE, prev_offset=None, new_data=rows(0, 19))),
        Case(BEGUN, AddData(new_data=rows(0, 9)), AddData(prev_offset=4, new_data=rows(5, 9))),
    ],
    "event-empty": [
        Case(BEGUN, AddData(new_source_state=SourceState(source_name="a", kind="b", value="c")), AddData()),
        Case(DECLARED, FIRST_RUN, ran({"new_block_hash": H[1]})),
    ],
    "add-data-no-op": [
        Case(
            GROWN,
            AddData(prev_offset=9, new_watermark=Instant(NOON + 1)),
            AddData(prev_offset=9, new_watermark=NOON),
        ),
    ],
    "prev-checkpoint": [
        Case(SAVED, msgspec.structs.replace(MORE, prev_checkpoint=H[1], new_checkpoint=saved(1)), MORE),
        Case(GROWN, MORE, msgspec.structs.replace(MORE, prev_checkpoint=H[1])),
    ],
    "checkpoint-carried": [
        Case(
            SAVED,
            msgspec.structs.replace(MORE, prev_checkpoint=H[1], new_checkpoint=saved(1)),
            msgspec.structs.replace(MORE, prev_checkpoint=H[1]),
        ),
    ],
    "event-of-kind": [
        Case(BEGUN, AddData(new_data=rows(0, 0)), TRANSFORM),
        Case(DECLARED, FIRST_RUN, AddData(new_data=rows(0, 0))),
        Case(after(ROOT), POLL, TRANSFORM),
        Case(after(DERIVED), TRANSFORM, POLL),
        Case(after(DERIVED), TRANSFORM, PUSH),
    ],
    "description-no-op": [
        Case(after(ROOT, SetInfo(description="a")), SetInfo(description="b"), SetInfo(description="a")),
        Case(after(ROOT, SetVocab(offset_column="o")), SetVocab(), SetVocab(offset_column="o")),
        Case(after(ROOT, SetVocab()), SetVocab(offset_column="o"), SetVocab(offset_column="offset")),
    ],
    "hash-algorithm": [
        Case(GROWN, MORE, msgspec.structs.replace(MORE, new_data=rows(10, 19, logical_hash=H[0]))),
        Case(
            GROWN,
            MORE,
            msgspec.structs.replace(
                MORE, new_data=rows(10, 19, physical_hash=Multihash.from_digest(SHA2_256, bytes(32)))
            ),
        ),
    ],
    "schema-before-data": [
        Case(BEGUN, AddData(new_data=rows(0, 0)), None),
        Case(after(ROOT, PUSH), AddData(new_watermark=NOON), AddData(new_data=rows(0, 0))),
        Case(after(DERIVED, TRANSFORM), FIRST_RUN, msgspec.structs.replace(FIRST_RUN, new_data=rows(0, 0))),
    ],
    "schema-present": [
        Case(after(ROOT), SCHEMA, SetDataSchema()),
        Case(
            after(ROOT),
            SetDataSchema(raw_arrow_schema=b"x"),
            msgspec.structs.replace(SCHEMA, raw_arrow_schema=b"x"),
        ),
    ],
    "schema-no-op": [
        Case(BEGUN, typed(DataField(name="city", type=CITY.type, extra={"a": 1})), SCHEMA),
        Case(BEGUN, None, spelled_out(SCHEMA)),
        Case(
            after(ROOT, typed(DataField(name="a", type=Int32(), extra={"b": 1}))),
            typed(DataField(name="a", type=Int32(), extra={"b": True})),
            typed(DataField(name="a", type=Int32(), extra={"b": 1})),
        ),
    ],
    "schema-compatible": [
        Case(
            after(ROOT, typed(DataField(name="at", type=Timestamp()))),
            typed(DataField(name="at", type=Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC"), extra={"a": 1})),
            typed(DataField(name="at", type=Timestamp(unit=TimeUnit.MICROSECOND))),
        ),
        Case(BEGUN, typed(CITY, DataField(name="b", type=Option(inner=Int32()))), typed()),
        Case(BEGUN, None, typed(CITY, DataField(name="b", type=Int32()))),
        Case(BEGUN, None, typed(DataField(name="city", type=Option(inner=Int32())))),
        Case(BEGUN, None, typed(DataField(name="city", type=String()))),
        Case(
            after(ROOT, typed(DataField(name="s", type=List(item_type=Struct(fields=(CITY,)))))),
            typed(
                DataField(
                    name="s",
                    type=List(
                        item_type=Struct(fields=(DataField(name="n", type=Option(inner=Int32())), CITY)),
                    ),
                )
            ),
            typed(DataField(name="s", type=List(item_type=Struct(fields=(DataField(name="n", type=Int32()), CITY))))),
        ),
    ],
    "schema-system-columns": [
        Case(after(ROOT), SCHEMA, SetDataSchema(schema=DataSchema(fields=SYSTEM[:3]))),
        Case(after(ROOT, SetVocab(event_time_column="city")), SCHEMA, typed()),
    ],
    "schema-columns-distinct": [Case(after(ROOT), SCHEMA, typed(CITY, CITY))],
    "schema-columns": [
        Case(after(ROOT), typed(*NUMBERED[4:]), typed(*NUMBERED[3:])),
        Case(after(ROOT), None, typed(DataField(name="s", type=Option(inner=Struct(fields=NUMBERED[4:]))))),
        Case(
            after(ROOT),
            typed(msgspec.structs.replace(CITY, name="n" * 1024)),
            typed(msgspec.structs.replace(CITY, name="n" * 1025)),
        ),
    ],
    "schema-changelog-stays": [
        Case(after(ROOT, changing(True)), changing(True, DataField(name="b", type=Option(inner=Int32()))), SCHEMA),
        Case(after(ROOT, changing(True)), None, changing(False)),
        Case(after(ROOT, changing(False)), changing(True), None),
        Case(after(ROOT, changing(False)), SCHEMA, None),
    ],
    "read-schema-form": [
        Case(
            after(ROOT),
            msgspec.structs.replace(PUSH, read=ReadCsv(schema=SCHEMA.schema)),
            msgspec.structs.replace(PUSH, read=ReadCsv(schema=SCHEMA.schema, ddl_schema=("a INT",))),
        ),
    ],
    "ethereum-chain": [
        Case(
            after(ROOT),
            msgspec.structs.replace(POLL, fetch=FetchEthereumLogs(chain_id=1)),
            msgspec.structs.replace(POLL, fetch=FetchEthereumLogs()),
        ),
    ],
    "polling-beside-push": [Case(after(ROOT), POLL, None), Case(after(ROOT, PUSH), None, POLL)],
    "push-beside-polling": [Case(after(ROOT), PUSH, None), Case(after(ROOT, POLL), None, PUSH)],
    "push-source-no-op": [
        Case(after(ROOT, PUSH), msgspec.structs.replace(PUSH, merge=MergeLedger(primary_key=("a",))), PUSH),
        Case(after(ROOT, PUSH), msgspec.structs.replace(PUSH, read=ReadCsv(header=True)), spelled_out(PUSH)),
    ],
    "source-after-disable": [
        Case(after(ROOT, PUSH), msgspec.structs.replace(PUSH, source_name="b"), None),
        Case(
            after(ROOT, PUSH, DisablePushSource(source_name="a")), None, msgspec.structs.replace(PUSH, source_name="b")
        ),
        Case(after(ROOT, PUSH, DisablePushSource(source_name="a")), None, PUSH),
        Case(after(ROOT, POLL, DisablePollingSource()), None, PUSH),
    ],
    "disable-active-source": [
        Case(after(ROOT, PUSH), DisablePushSource(source_name="a"), DisablePushSource(source_name="b")),
        Case(after(ROOT, PUSH, DisablePushSource(source_name="a")), None, DisablePushSource(source_name="a")),
        Case(after(ROOT, POLL), DisablePollingSource(), None),
        Case(after(ROOT, POLL, DisablePollingSource()), None, DisablePollingSource()),
    ],
    "transform-inputs": [Case(after(DERIVED), TRANSFORM, inputs())],
    "transform-inputs-distinct": [
        Case(after(DERIVED), TRANSFORM, inputs(TRANSFORM.inputs[0], TRANSFORM.inputs[0])),
    ],
    "transform-inputs-resolved": [
        Case(after(DERIVED), TRANSFORM, inputs(TransformInput(dataset_ref="one", alias="one"))),
        Case(after(DERIVED), TRANSFORM, inputs(TransformInput(dataset_ref=str(ONE)))),
    ],
    "queries-normalised": [
        Case(after(DERIVED), TRANSFORM, queries(QUERY, query="select 1")),
        Case(
            after(ROOT),
            msgspec.structs.replace(PUSH, preprocess=SQL),
            msgspec.structs.replace(PUSH, preprocess=TransformSql(engine="spark", query="select 1")),
        ),
    ],
    "queries-present": [
        Case(after(DERIVED), TRANSFORM, queries()),
        Case(
            after(ROOT),
            msgspec.structs.replace(POLL, preprocess=SQL),
            msgspec.structs.replace(POLL, preprocess=TransformSql(engine="spark")),
        ),
    ],
    "queries-output": [Case(after(DERIVED), TRANSFORM, queries(SqlQueryStep(alias="a", query="select 1")))],
    "queries-aliased": [
        Case(after(DERIVED), queries(SqlQueryStep(alias="a", query="select 1"), QUERY), queries(QUERY, QUERY)),
    ],
    "transform-declared": [Case(DECLARED, FIRST_RUN, None), Case(after(DERIVED, SCHEMA), None, FIRST_RUN)],
    "query-inputs-order": [
        Case(DECLARED, FIRST_RUN, ExecuteTransform(query_inputs=(used(TWO), used(ONE)), new_watermark=NOON)),
        Case(DECLARED, FIRST_RUN, ExecuteTransform(query_inputs=(used(ONE),), new_watermark=NOON)),
    ],
    "input-block-interval": [
        Case(
            RUN,
            ran(GO_ON | {"new_block_hash": H[2]}, new_watermark=NOON),
            ran(GO_ON | {"new_block_hash": H[1]}, new_watermark=NOON),
        ),
    ],
    "input-offset-interval": [
        Case(
            RUN,
            ran(GO_ON | {"new_block_hash": H[2], "new_offset": 10}, new_watermark=NOON),
            ran(GO_ON | {"new_block_hash": H[2], "new_offset": 9}, new_watermark=NOON),
        ),
    ],
    "input-prev-block": [
        Case(
            RUN,
            ran(GO_ON | {"new_block_hash": H[2]}, new_watermark=NOON),
            ran({"prev_offset": 9, "new_block_hash": H[2]}, new_watermark=NOON),
        ),
        Case(DECLARED, FIRST_RUN, ran({"prev_block_hash": H[1]}, new_watermark=NOON)),
    ],
    "input-prev-offset": [
        Case(
            RUN,
            ran(GO_ON | {"new_block_hash": H[2]}, new_watermark=NOON),
            ran({"prev_block_hash": H[1], "new_block_hash": H[2]}, new_watermark=NOON),
        ),
        Case(DECLARED, FIRST_RUN, ran({"prev_offset": 1, "new_block_hash": H[2]}, new_watermark=NOON)),
    ],
    "input-offset-without-block": [
        Case(
            RUN,
            ran(GO_ON | {"new_block_hash": H[2], "new_offset": 10}, new_watermark=NOON),
            ran(GO_ON | {"new_offset": 10}, new_watermark=NOON),
        ),
    ],
    "execute-transform-no-op": [
        Case(RUN, ran(GO_ON | {"new_block_hash": H[2]}, new_watermark=NOON), ran(GO_ON, new_watermark=NOON)),
    ],
}


def chain_until(case: Case, event: Any) -> list[Block]:
    """The chain that a case begins with, and a block of this event of its."""
    event, changes = event if isinstance(event, tuple) else (event, {})
    return [*CHAINS[case.state.head], following(case.state, event, **changes)]


def folder_of(directory: Path, blocks: list[Block]) -> Path:
    (directory / "refs").mkdir(parents=True)
    (directory / "blocks").mkdir()
    writer = DirectoryWriter(directory)
    for block in blocks:
        writer.add_block(block.hash, block.raw)
    writer.set_head(blocks[-1].hash, None)
    return directory
