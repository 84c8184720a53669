"""Every rule judges an event alike, whether it spells the format's defaults out or leaves them out, in any chain."""

from __future__ import annotations

import itertools
from typing import Any, Final, TypeVar

import msgspec
import pytest

from chain.codec.blocks import encode_block
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model import schema as odf
from chain.model import source
from chain.model.block import Block, MetadataBlock
from chain.model.defaults import DEFAULTS, spelled_out
from chain.model.events import (
    AddData,
    AddPushSource,
    AttachmentsEmbedded,
    DatasetKind,
    DataSlice,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
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
from chain.multihash import ARROW0_SHA3_256, Multihash
from chain.rules import RULES, check_block
from chain.rules.check import ChainChecker
from chain.state import ChainState

T = TypeVar("T")
ME: Final = DatasetId.from_public_key(bytes(32))
OTHER: Final = DatasetId.from_public_key(b"o" * 32)
NOON: Final = Instant(1_700_000_000_000_000_000)


def column(name: str, kind: odf.DataType) -> odf.DataField:
    return odf.DataField(name=name, type=kind)


SYSTEM: Final = (
    column("offset", odf.Int64()),
    column("op", odf.Int32()),
    column("system_time", odf.Timestamp()),
    column("event_time", odf.Option(inner=odf.Timestamp())),
)
CLOCKS: Final = odf.Struct(fields=(column("at", odf.Time()), column("long", odf.Option(inner=odf.Duration()))))
SCHEMA: Final = odf.DataSchema(
    fields=(
        *SYSTEM,
        column("clocks", odf.List(item_type=CLOCKS)),
        column("by", odf.Option(inner=odf.Map(key_type=odf.Timestamp(), value_type=odf.Duration()))),
    )
)
MORE: Final = odf.DataSchema(fields=(*SCHEMA.fields, column("more", odf.Option(inner=odf.Time()))))
TOPICS: Final = (source.MqttTopicSubscription(path="a"),)
READS: Final[tuple[source.ReadStep, ...]] = (
    *(kind(schema=SCHEMA) for kind in source.ReadStep.__args__),
    source.ReadCsv(ddl_schema=("a INT",)),
)
MERGE: Final = source.MergeLedger(primary_key=("at",))
DATA: Final = DataSlice(
    logical_hash=Multihash.from_digest(ARROW0_SHA3_256, bytes(32)),
    physical_hash=Multihash.sha3_256(b""),
    offset_interval=OffsetInterval(start=0, end=0),
    size=1,
)
QUERY: Final = source.TransformSql(engine="spark", queries=(source.SqlQueryStep(query="select 1"),))
TRANSFORM: Final = SetTransform(inputs=(TransformInput(dataset_ref=str(OTHER), alias="o"),), transform=QUERY)
POLLS: Final = [
    SetPollingSource(fetch=fetch, read=source.ReadCsv(schema=SCHEMA), merge=MERGE)
    for fetch in (source.FetchMqtt(host="h", port=1, topics=TOPICS), source.FetchUrl(url="https://a.example"))
]
EVENTS: Final[tuple[MetadataEvent, ...]] = (
    Seed(dataset_id=ME, dataset_kind=DatasetKind.ROOT),
    *(AddPushSource(source_name="a", read=read, merge=MERGE) for read in READS),
    *POLLS,
    SetDataSchema(schema=SCHEMA),
    SetDataSchema(schema=MORE),
    SetVocab(),
    SetVocab(offset_column="system_time", system_time_column="at"),
    SetInfo(description="d"),
    SetLicense(short_name="l", name="l", website_url="w"),
    SetAttachments(attachments=AttachmentsEmbedded(items=())),
    TRANSFORM,
    AddData(new_data=DATA, new_watermark=NOON),
    ExecuteTransform(query_inputs=(ExecuteTransformInput(dataset_id=OTHER),), new_data=DATA),
    DisablePushSource(source_name="a"),
    DisablePollingSource(),
)


def left_out(value: T) -> T:
    """The value without the fields that hold their default, at any depth."""
    return _left_out(value)  # type: ignore[no-any-return]


def _left_out(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_left_out, value))
    if not isinstance(value, msgspec.Struct):
        return value
    usual = DEFAULTS.get(type(value), {})
    held = {name: getattr(value, name) for name in value.__struct_fields__}
    brief = {name: None if name in usual and each == usual[name] else _left_out(each) for name, each in held.items()}
    return msgspec.structs.replace(value, **brief)


def tables(value: Any) -> set[type]:
    """The tables within a value."""
    if isinstance(value, tuple):
        return set().union(*map(tables, value))
    if not isinstance(value, msgspec.Struct):
        return set()
    return {type(value)}.union(*(tables(getattr(value, name)) for name in value.__struct_fields__))


def following(state: ChainState, event: MetadataEvent) -> Block:
    content = MetadataBlock(system_time=NOON, prev_block_hash=state.head, sequence_number=state.size, event=event)
    return encode_block(content)


def chain(*events: MetadataEvent) -> tuple[ChainState, list[bytes]]:
    """Blocks of these events, and the state after them; whether they may stand is not asked."""
    state, raws = ChainState.EMPTY, []
    for event in events:
        block = following(state, event)
        raws.append(block.raw)
        state = state.advance(block)
    return state, raws


def verdict(state: ChainState, event: MetadataEvent) -> list[tuple[str, str]]:
    return [(each.rule, each.message) for each in check_block(state, following(state, event), as_author=True)]


def test_each_table_with_defaults_and_each_event_is_among_them() -> None:
    assert set(map(type, EVENTS)) == set(MetadataEvent.__args__)
    assert tables(EVENTS) >= set(DEFAULTS)
    assert tables(left_out(EVENTS)) == tables(spelled_out(EVENTS)) == tables(EVENTS)
    assert left_out(EVENTS) != spelled_out(EVENTS)
    assert left_out(spelled_out(EVENTS)) == left_out(EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_rules_judge_both_spellings_alike(event: MetadataEvent) -> None:
    """After each other event, of which both spellings too: a chain of two more blocks than a Seed, or of one."""
    seeds = [Seed(dataset_id=ME, dataset_kind=kind) for kind in DatasetKind]
    told: set[str] = set()
    for seed, before in itertools.product(seeds, ((), *((each,) for each in EVENTS))):
        states = [chain(seed, *spell(before))[0] for spell in (left_out, spelled_out)]
        found = [verdict(state, spell(event)) for state in states for spell in (left_out, spelled_out)]
        assert all(each == found[0] for each in found), (before, event, found)
        told |= {rule for rule, _ in found[0]}
    assert told <= {rule.name for rule in RULES}
    assert told


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        *((each, "push-source-no-op") for each in EVENTS if isinstance(each, AddPushSource)),
        *((each, "schema-no-op") for each in EVENTS if isinstance(each, SetDataSchema)),
    ],
)
def test_a_chain_of_others_that_says_a_thing_twice_is_refused_in_both_spellings(
    event: MetadataEvent, rule: str
) -> None:
    seed = Seed(dataset_id=ME, dataset_kind=DatasetKind.ROOT)
    for first, second in itertools.product((left_out(event), spelled_out(event)), repeat=2):
        with pytest.raises(Invalid) as refused:
            ChainChecker(ChainState.EMPTY).take(chain(seed, first, second)[1])
        assert refused.value.rule == rule
