"""Every append rule lets one block pass and refuses another that differs in what the rule speaks of; a stream of raw
blocks is judged as the blocks one by one would be, however it is cut."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant, rules
from chain.codec.arrow_schema import schema_of
from chain.codec.blocks import content_of, decode_block, encode_block
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model import schema as odf
from chain.model.block import Block, MetadataBlock, objects_of
from chain.model.events import (
    AddData,
    Checkpoint,
    DatasetKind,
    DataSlice,
    DisablePollingSource,
    ExecuteTransform,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
    SetVocab,
    SourceState,
)
from chain.model.schema import (
    Binary,
    Bool,
    DataField,
    DataSchema,
    DataType,
    Date,
    Decimal,
    Duration,
    Float16,
    Float32,
    Float64,
    Int8,
    Int32,
    Int64,
    List,
    Map,
    Null,
    Option,
    String,
    Struct,
    Time,
    Timestamp,
    TimeUnit,
    UInt8,
    UInt64,
)
from chain.model.source import MergeLedger, ReadCsv
from chain.multihash import ARROW0_SHA3_256, SHA2_256, SHA3_256, Multihash
from chain.rules import RULES, Binds, Rule, check_block
from chain.rules.check import ChainChecker, seal
from chain.rules.schema import incompatibilities
from chain.rules.sources import NoPushBesidePolling
from chain.state import ChainState
from chain.store.layout import DirectoryChain, DirectoryObjects
from odfd.verify.report import Level
from odfd.verify.verify import VerificationRequest, verify_chain
from worlds import schemas
from worlds.chains import linked
from worlds.rule_cases import (
    CASES,
    CITY,
    DERIVED,
    FIRST_RUN,
    GO_ON,
    GROWN,
    MORE,
    NOON,
    ONE,
    POLL,
    PUSH,
    ROOT,
    SCHEMA,
    TRANSFORM,
    H,
    after,
    chain_until,
    folder_of,
    following,
    inputs,
    ran,
    rows,
    saved,
    used,
)


def broken(state: ChainState, event: Any, as_author: bool = True) -> set[str]:
    event, changes = event if isinstance(event, tuple) else (event, {})
    return {each.rule for each in check_block(state, following(state, event, **changes), as_author)}


def test_every_rule_has_an_accepting_and_a_rejecting_chain() -> None:
    assert set(CASES) == {rule.name for rule in rules.RULES}
    for name, cases in CASES.items():
        assert any(case.good is not None for case in cases), name
        assert any(case.bad is not None for case in cases), name


def test_rules_are_named_once_and_say_where_they_come_from() -> None:
    names = [rule.name for rule in rules.RULES]
    assert len(set(names)) == len(names)
    for rule in rules.RULES:
        assert rule.name == rule.name.lower()
        assert rule.name.replace("-", "").isalpha()
        assert rule.clause


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    for state, good, bad in CASES[name]:
        if good is not None:
            assert name not in broken(state, good)
        if bad is not None:
            assert name in broken(state, bad)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.name)
def test_rules_for_authors_bind_nobody_else(rule: rules.Rule) -> None:
    for state, _, bad in CASES[rule.name]:
        if bad is not None:
            assert (rule.name in broken(state, bad, as_author=False)) == (rule.binds is Binds.EVERYONE)


@pytest.mark.parametrize(
    "rule", [rule for rule in rules.RULES if rule.binds is Binds.EVERYONE], ids=lambda rule: rule.name
)
def test_a_verification_in_columns_tells_what_one_block_by_block_does(rule: rules.Rule, tmp_path: Path) -> None:
    """In a folder, a block whose neighbour is not the one it names ends a walk: what lies beyond is told as missing."""
    gaps = {"block-missing"} if rule.name in ("prev-block-link", "sequence-number") else set()
    for number, case in enumerate(CASES[rule.name]):
        for event in (case.good, case.bad):
            if event is None:
                continue
            folder = folder_of(tmp_path / f"{number} {event is case.bad}", chain_until(case, event))
            columns, alone = (
                verify_chain(
                    DirectoryChain(folder),
                    DirectoryObjects(folder),
                    VerificationRequest(ref="x", level=Level.CHAIN, columns=columns),
                ).failures
                for columns in (True, False)
            )
            assert [each.rule for each in columns] == [each.rule for each in alone]
            assert all(each.message for each in columns)
            last = max((each.block.sequence_number for each in columns), default=0)
            told = {each.rule for each in columns if each.block.sequence_number == last}
            if event is case.bad:
                assert told & {rule.name, *gaps}
            else:
                assert rule.name not in {each.rule for each in columns}


def test_whole_good_chains_break_nothing() -> None:
    for chain in (
        [ROOT, PUSH, SCHEMA, AddData(new_data=rows(0, 9), new_watermark=NOON), MORE],
        [DERIVED, TRANSFORM, SCHEMA, FIRST_RUN, ran(GO_ON | {"new_block_hash": H[2]}, new_watermark=NOON)],
    ):
        state = ChainState.EMPTY
        for event in chain:
            assert broken(state, event) == set()
            state = state.advance(following(state, event))


STATE = SourceState(source_name="default", kind="odf/etag", value="1")
LATER = Instant(NOON + MILLISECOND)
LEGACY = SetDataSchema(raw_arrow_schema=b"read by nobody here")
HONEST: dict[str, list[Any]] = {
    "a source that gave nothing yet": [ROOT, POLL, AddData(new_source_state=STATE), AddData(new_watermark=NOON)],
    "a watermark set by hand forgets the source's state": [
        ROOT, POLL, SCHEMA,
        AddData(new_data=rows(0, 9), new_watermark=NOON, new_source_state=STATE),
        AddData(prev_offset=9, new_watermark=LATER),
        AddData(prev_offset=9, new_watermark=LATER, new_source_state=STATE),
    ],
    "a watermark-only event drops the checkpoint": [
        ROOT, PUSH, SCHEMA,
        AddData(new_data=rows(0, 9), new_checkpoint=saved(1), new_watermark=NOON),
        AddData(prev_checkpoint=H[1], prev_offset=9, new_watermark=LATER),
        AddData(prev_offset=9, new_data=rows(10, 19), new_watermark=LATER),
    ],
    "a checkpoint that stays the same": [
        ROOT, PUSH, SCHEMA,
        AddData(new_data=rows(0, 9), new_checkpoint=saved(1), new_watermark=NOON),
        msgspec.structs.replace(MORE, prev_checkpoint=H[1], new_checkpoint=saved(1)),
    ],
    "descriptions said twice": [ROOT, SetInfo(description="a"), SetInfo(description="a"), SetVocab(), SetVocab()],
    "sources that are changed, and a second one": [
        ROOT, PUSH, msgspec.structs.replace(PUSH, merge=MergeLedger(primary_key=("city",))),
        msgspec.structs.replace(PUSH, source_name="b"), SCHEMA, AddData(new_data=rows(0, 0)),
    ],
    "a polling source that is changed": [ROOT, POLL, msgspec.structs.replace(POLL, read=ReadCsv(header=True))],
    "system columns that no schema names": [ROOT, PUSH, SetDataSchema(schema=DataSchema(fields=(CITY,)))],
    "a legacy schema, and rows under it": [ROOT, PUSH, LEGACY, AddData(new_data=rows(0, 9))],
    "a transform that is set again, with another input": [
        DERIVED, inputs(TRANSFORM.inputs[0]), SCHEMA,
        ExecuteTransform(query_inputs=(used(ONE, new_block_hash=H[1]),), new_watermark=NOON),
        TRANSFORM,
        ran({"prev_block_hash": H[1]}, {"new_block_hash": H[2], "new_offset": 4}, new_watermark=NOON),
    ],
    "inputs that did not move beside one that did": [
        DERIVED, TRANSFORM, SCHEMA, FIRST_RUN,
        ran({**GO_ON, "new_block_hash": H[2]}, new_watermark=NOON),
        ran({"prev_block_hash": H[2], "prev_offset": 9}, {"new_block_hash": H[3]}, new_watermark=NOON),
    ],
    "a run that only brings rows": [
        DERIVED, TRANSFORM, SCHEMA, FIRST_RUN, ran(GO_ON, new_data=rows(0, 3), new_watermark=NOON),
    ],
    "a run before the schema": [
        DERIVED, TRANSFORM, FIRST_RUN, SCHEMA, ran(GO_ON, new_data=rows(0, 3), new_watermark=NOON),
    ],
    "a history thrown away": [DERIVED, SetInfo(description="a"), TRANSFORM, SCHEMA, FIRST_RUN],
    "watermarks without rows for long": [ROOT, PUSH, *(AddData(new_watermark=Instant(NOON + n)) for n in range(20))],
}  # fmt: skip


@pytest.mark.parametrize("events", HONEST.values(), ids=list(HONEST))
@pytest.mark.parametrize("version", [2, 3])
def test_what_the_reference_writes_in_honest_use_breaks_nothing(events: list[Any], version: int) -> None:
    """By hand, from what the reference's own rules allow: nothing of it may be refused, one by one or in columns."""
    state, raws = ChainState.EMPTY, []
    for number, event in enumerate(events):
        content = content_of(following(state, event))
        block = encode_block(content, version if number < 4 else 3)
        assert check_block(state, block, as_author=False) == []
        state = state.advance(block)
        raws.append(block.raw)
    judge = ChainChecker(ChainState.EMPTY)
    assert len(judge.take(raws)) == len(events)
    assert judge.state == state


def test_violations_say_what_was_expected() -> None:
    [found] = check_block(GROWN, following(GROWN, msgspec.structs.replace(MORE, prev_offset=8)), True)[1:]
    assert (found.rule, found.expected, found.actual) == ("prev-offset", "9", "8")


def test_a_disabled_polling_source_is_not_said_to_be_there() -> None:
    """The chain is refused, as every reader does; the message is true, and says the way out."""
    chain, rule = after(ROOT, POLL, DisablePollingSource()), NoPushBesidePolling()
    (told,) = rule.check(chain, following(chain, PUSH))
    assert "had a polling source: that is disabled" in told.message
    (there,) = rule.check(after(ROOT, POLL), following(after(ROOT, POLL), PUSH))
    assert "has a polling source" in there.message
    assert "another dataset" in told.hint == there.hint


STAMP = odf.Timestamp(unit=odf.TimeUnit.MILLISECOND, timezone="UTC")
COLUMNS = (
    DataField(name="offset", type=odf.Int64()),
    DataField(name="op", type=odf.Int32()),
    DataField(name="system_time", type=STAMP),
    DataField(name="event_time", type=STAMP),
)


def chain_of(count: int, back: int | None = None, every: int = 17) -> list[Block]:
    """Watermarks in a row, with a SetInfo now and then; at ``back`` the watermark goes back."""
    events: list[Seed | SetInfo | AddData] = []
    for number in range(count):
        event: Seed | SetInfo | AddData = AddData(new_watermark=Instant(10**18 + number * 10**9 * (number != back)))
        if number == 0:
            event = Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT)
        elif number % every == 0 and number != back:
            event = SetInfo(description=f"{number}")
        events.append(event)
    return linked(events, Instant(10**18), step=1)


@pytest.mark.slow
@given(st.integers(1, 80), st.lists(st.integers(1, 30), min_size=1))
def test_the_cuts_of_a_stream_do_not_matter(count: int, cuts: list[int]) -> None:
    blocks = chain_of(count)
    judge = ChainChecker(ChainState.EMPTY)
    sealed = []
    start = 0
    while start < count:
        size = cuts[start % len(cuts)]
        sealed += judge.take([block.raw for block in blocks[start : start + size]])
        start += size
    state = ChainState.EMPTY
    for block in blocks:
        state = state.advance(block)
    assert judge.state == state
    assert sealed == [seal(decode_block(block.raw)) for block in blocks]


@pytest.mark.parametrize("every", [5, 1000])
def test_the_first_broken_rule_ends_it_and_nothing_is_taken(every: int) -> None:
    blocks = chain_of(60, back=40, every=every)
    judge = ChainChecker(ChainState.EMPTY)
    with pytest.raises(Invalid, match="the watermark goes back") as caught:
        judge.take([block.raw for block in blocks])
    assert (caught.value.rule, caught.value.place) == ("watermark-monotonic", "block #40")
    assert judge.state == ChainState.EMPTY


def test_bytes_that_are_no_block_end_it() -> None:
    raws = [block.raw for block in chain_of(40, every=1000)]
    raws[30] = bytes(len(raws[30]))
    judge = ChainChecker(ChainState.EMPTY)
    with pytest.raises(Invalid):
        judge.take(raws)
    assert judge.state == ChainState.EMPTY


def digest(text: str, code: int = SHA3_256) -> Multihash:
    return Multihash.from_digest(code, hashlib.sha3_256(text.encode()).digest())


def data_chain(count: int, often: int, code: int) -> list[Block]:
    """A slice in each block, a checkpoint in most; slices are named by the algorithm ``code``."""
    blocks: list[Block] = []
    left: Multihash | None = None
    events: list[Any] = [
        Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT),
        SetDataSchema(schema=DataSchema(fields=COLUMNS)),
    ]
    for number in range(count):
        slice_ = DataSlice(
            logical_hash=digest(f"rows {number}", ARROW0_SHA3_256),
            physical_hash=digest(f"{number}", code),
            offset_interval=OffsetInterval(start=number, end=number),
            size=number + 9,
        )
        checkpoint = Checkpoint(physical_hash=digest(f"left {number}"), size=number) if number % often else None
        offset = number - 1 if number else None
        events.append(AddData(prev_checkpoint=left, prev_offset=offset, new_data=slice_, new_checkpoint=checkpoint))
        left = checkpoint.physical_hash if checkpoint else None
    for number, event in enumerate(events):
        head = blocks[-1].hash if blocks else None
        content = MetadataBlock(system_time=Instant(10**18), prev_block_hash=head, sequence_number=number, event=event)
        blocks.append(encode_block(content))
    return blocks


@pytest.mark.slow
@given(st.integers(10, 60), st.sampled_from([2, 7, 1000]), st.sampled_from([SHA3_256, SHA2_256]))
def test_what_blocks_bring_is_told_without_decoding_them(count: int, often: int, code: int) -> None:
    blocks = data_chain(count, often, code)
    sealed = ChainChecker(ChainState.EMPTY).take([block.raw for block in blocks])
    assert [each.objects for each in sealed] == [objects_of(block) for block in blocks]
    assert [len(each.objects) for each in sealed] == [0, 0, *(2 if number % often else 1 for number in range(count))]


SEEDED = Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT)
FAR = instant.parse("2150-01-01T00:00:00Z")
EARLIER = range(10**18, 10**18 + 12)
LARGE = 1 << 63


def marked(*times: int) -> list[Any]:
    return [AddData(new_watermark=Instant(time)) for time in times]


def sliced(*bounds: tuple[int, int]) -> list[Any]:
    found: list[Any] = [SetDataSchema(schema=DataSchema(fields=COLUMNS))]
    for start, end in bounds:
        new_data = rows(start, end, physical_hash=digest(f"{start}"))
        found.append(AddData(prev_offset=start - 1 if start else None, new_data=new_data))
    return found


def stated(count: int) -> list[Any]:
    state = SourceState(source_name="default", kind="odf/etag", value="abcd")
    return [AddData(new_watermark=Instant(10**18 + number), new_source_state=state) for number in range(count)]


def raws_of(events: list[Any], at: int = 0, text: bytes = b"abcd", code: int = SHA3_256) -> list[bytes]:
    """A chain whose block ``at`` has another text in place of its own, and whose links are named by ``code``."""
    raws: list[bytes] = []
    for number, event in enumerate([SEEDED, *events]):
        head = Multihash.from_digest(code, hashlib.sha3_256(raws[-1]).digest()) if raws else None
        content = MetadataBlock(system_time=NOON, prev_block_hash=head, sequence_number=number, event=event)
        raw = encode_block(content).raw
        raws.append(raw.replace(b"abcd", text) if number == at else raw)
    return raws


@pytest.mark.parametrize(
    ("raws", "rule"),
    [
        (raws_of(marked(*EARLIER)), ""),
        (raws_of(marked(FAR, *EARLIER)), "watermark-monotonic"),
        (raws_of(sliced(*((n, n) for n in range(12)), (12, LARGE - 1), (LARGE, LARGE + 5))), ""),
        (raws_of(sliced(*((n, n) for n in range(12)), (12, LARGE - 1), (LARGE, 5))), "offset-interval"),
        (raws_of(marked(*EARLIER), code=SHA2_256), "prev-block-link"),
        (raws_of(stated(20), 9, "éx".encode() + b"x"), ""),
        (raws_of(stated(20), 9, b"ab\xffd"), "utf-8"),
    ],
)
def test_what_no_column_holds_is_judged_as_one_by_one(raws: list[bytes], rule: str) -> None:
    """Taken whole, from the third block on, and one at a time: late times, large offsets, other hashes, other texts."""
    for cuts in ([0], [0, 2], range(len(raws))):
        judge, found = ChainChecker(ChainState.EMPTY), ""
        try:
            for start, stop in itertools.pairwise([*cuts, len(raws)]):
                judge.take(raws[start:stop])
        except Invalid as fault:
            found = fault.rule
        assert found == rule, cuts


def test_every_rule_says_what_it_is() -> None:
    """``docs/reference/append-rules.md`` is made of what they say."""
    assert all(type(rule).__doc__ != Rule.__doc__ for rule in RULES)


# Schemas in the legacy Arrow form: read without a native parser, and upgraded to ODF's own.


def legacy(schema: pa.Schema) -> SetDataSchema:
    return SetDataSchema(raw_arrow_schema=schemas.legacy(schema))


TYPES: list[tuple[pa.DataType, DataType]] = [
    (pa.int8(), Int8()),
    (pa.int64(), Int64()),
    (pa.uint8(), UInt8()),
    (pa.uint64(), UInt64()),
    (pa.float16(), Float16()),
    (pa.float32(), Float32()),
    (pa.float64(), Float64()),
    (pa.bool_(), Bool()),
    (pa.string(), String()),
    (pa.large_string(), String()),
    (pa.string_view(), String()),
    (pa.binary(), Binary()),
    (pa.large_binary(), Binary()),
    (pa.binary_view(), Binary()),
    (pa.binary(7), Binary(fixed_length=7)),
    (pa.decimal128(12, 3), Decimal(precision=12, scale=3)),
    (pa.decimal256(40, -2), Decimal(precision=40, scale=-2)),
    (pa.date32(), Date()),
    (pa.date64(), Date()),
    (pa.time32("s"), Time(unit=TimeUnit.SECOND)),
    (pa.time32("ms"), Time(unit=TimeUnit.MILLISECOND)),
    (pa.time64("ns"), Time(unit=TimeUnit.NANOSECOND)),
    (pa.timestamp("us", "UTC"), Timestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")),
    (pa.timestamp("ms"), Timestamp(unit=TimeUnit.MILLISECOND)),
    (pa.duration("ms"), Duration(unit=TimeUnit.MILLISECOND)),
    (pa.duration("s"), Duration(unit=TimeUnit.SECOND)),
    (pa.list_(pa.int8()), List(item_type=Option(inner=Int8()))),
    (pa.large_list(pa.field("item", pa.int8(), nullable=False)), List(item_type=Int8())),
    (pa.list_(pa.int8(), 3), List(item_type=Option(inner=Int8()), fixed_length=3)),
    (
        pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())]),
        Struct(fields=(DataField(name="a", type=Int32()), DataField(name="b", type=Option(inner=String())))),
    ),
    (
        pa.map_(pa.string(), pa.int32()),
        Map(key_type=String(), value_type=Option(inner=Int32()), keys_sorted=False),
    ),
]


@pytest.mark.parametrize(("arrow", "expected"), TYPES, ids=lambda value: str(value)[:40])
def test_types(arrow: pa.DataType, expected: DataType) -> None:
    schema = pa.schema([pa.field("required", arrow, nullable=False), pa.field("optional", arrow)])
    assert schema_of(legacy(schema)) == DataSchema(
        fields=(DataField(name="required", type=expected), DataField(name="optional", type=Option(inner=expected)))
    )


def test_null_columns() -> None:
    assert schema_of(legacy(pa.schema([pa.field("n", pa.null())]))).fields[0].type == Null()


@pytest.mark.parametrize(
    "arrow", [pa.dictionary(pa.int8(), pa.string()), pa.month_day_nano_interval(), pa.dense_union([])], ids=str
)
def test_types_that_odf_has_not(arrow: pa.DataType) -> None:
    with pytest.raises(Invalid, match=r"column 'x' has .*, for which ODF has no type"):
        schema_of(legacy(pa.schema([pa.field("x", arrow)])))


def test_the_golden_legacy_schema(vectors: dict[str, Any]) -> None:
    [vector] = [each for each in vectors["metadata_blocks"]["vectors"] if "legacy" in each["name"]]
    raw = bytes.fromhex(vector["block"]["event"][1]["raw_arrow_schema"]["$hex"])
    names = [field.name for field in schema_of(SetDataSchema(raw_arrow_schema=raw)).fields]
    assert names == ["a", "b"]


def test_upgrades_may_change_optionality_and_nothing_else() -> None:
    old = schema_of(legacy(pa.schema([("at", pa.timestamp("ms", "UTC")), ("n", pa.list_(pa.int32()))]))).fields
    same = (DataField(name="at", type=Timestamp()), DataField(name="n", type=List(item_type=Int32())))
    assert list(incompatibilities(old, same, upgrade=True)) == []
    assert len(list(incompatibilities(old, same))) == 2
    other = (DataField(name="at", type=Date()), DataField(name="n", type=List(item_type=Int64())))
    assert [each.message for each in incompatibilities(old, other, upgrade=True)] == [
        "column 'at' changes its type",
        "column 'n[]' changes its type",
    ]


def test_an_event_without_a_schema() -> None:
    with pytest.raises(Invalid, match="holds no schema"):
        schema_of(SetDataSchema())
    with pytest.raises(Invalid, match="too short"):
        schema_of(SetDataSchema(raw_arrow_schema=b""))


def test_a_change_of_parameters_is_told_in_full() -> None:
    old = (DataField(name="at", type=Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")),)
    new = (DataField(name="at", type=Timestamp(unit=TimeUnit.NANOSECOND, timezone="UTC")),)
    [found] = incompatibilities(old, new)
    assert (found.expected, found.actual) == ("Timestamp<Millisecond, UTC>", "Timestamp<Nanosecond, UTC>")
