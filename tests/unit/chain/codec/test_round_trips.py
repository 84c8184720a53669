"""Every class of the model survives both codecs; bytes that are damaged or made to hurt give a value or one Invalid."""

from __future__ import annotations

import functools
import inspect
import json
import time
import typing
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import pytest
from flatbuffers import Builder
from google.protobuf import unknown_fields
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engines.contract
from chain import instant
from chain.codec import blocks, flat, flat_read, layout, manifest
from chain.codec.layout import Choice, Flag, JsonObject, Kind, Moment, Number, Octets, Table, Text, Union, Vector
from chain.codec.protobuf import Field, bytes_of, delimited, field, fixed64_field, number_of, read_fields
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model import events, schema, source
from chain.model.block import MetadataBlock
from chain.model.events import (
    AddData,
    Checkpoint,
    DatasetKind,
    DatasetSnapshot,
    DataSlice,
    MetadataEvent,
    Seed,
    SetAttachments,
    SetInfo,
)
from chain.model.events import AttachmentEmbedded as Attachment
from chain.model.events import AttachmentsEmbedded as Embedded
from chain.model.schema import MAX_COLUMNS, DataField, DataSchema, DataType, Option, String
from chain.model.wire import I32, I64, U64, Scalar, Time
from chain.multihash import ARROW0_SHA3_256, SHA2_256, SHA3_256, Multihash
from odfd.cli.offline.block import describe
from worlds.depth import share

# Every class of the model survives both codecs; damaged bytes give a value or one Invalid, within bounded work.

MODEL = sorted(
    {
        cls
        for module in (events, schema, source, engines.contract)
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, msgspec.Struct) and cls is not msgspec.Struct and not cls.__name__.startswith("_")
    },
    key=lambda cls: (cls.__module__, cls.__name__),
)
EARLIEST, LATEST = instant.parse("-262143-01-01T00:00:00Z"), instant.parse("+262142-12-31T23:59:59.999999999Z")
YEAR_1, YEAR_9999 = -62_135_596_800_000_000_000, 253_402_300_799_999_999_999
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
DIGEST = st.binary(min_size=32, max_size=32)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def contents(kind: Kind, depth: int) -> st.SearchStrategy[Any]:
    match kind:
        case Number():
            return st.integers(kind.low, kind.high)
        case Flag():
            return st.booleans()
        case Choice(options):
            return st.sampled_from(options)
        case Text():
            return TEXT
        case Octets(of):
            if of is Multihash:
                return st.builds(Multihash.from_digest, st.sampled_from([SHA2_256, SHA3_256, ARROW0_SHA3_256]), DIGEST)
            return st.builds(DatasetId.from_public_key, DIGEST) if of is DatasetId else st.binary(max_size=40)
        case Moment():
            return st.builds(Instant, st.integers(YEAR_1, YEAR_9999) | st.integers(EARLIEST, LATEST))
        case JsonObject():
            return st.dictionaries(TEXT, JSON, max_size=3)
        case Table(of):
            return values(of, depth + 1)
        case Union(variants):
            shallow = [each for each in variants if depth < 4 or not contains_itself(each)]
            return st.sampled_from(shallow).flatmap(lambda each: values(each, depth + 1))
        case Vector(item):
            return st.lists(contents(item, depth), max_size=2 if depth < 4 else 0).map(tuple)


def contains_itself(cls: type[msgspec.Struct]) -> bool:
    return any(each.required and isinstance(each.kind, Union) for each in layout.fields_of(cls))


@functools.cache
def values(cls: type[msgspec.Struct], depth: int = 0) -> st.SearchStrategy[Any]:
    fields = {}
    for each in layout.fields_of(cls):
        value = contents(each.kind, depth)
        fields[each.name] = st.none() | value if each.optional else value
    return st.builds(cls, **fields)


EXAMPLES = settings(max_examples=share(40), suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.parametrize("cls", MODEL, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
@EXAMPLES
@given(data=st.data())
def test_every_class_survives_both_codecs(cls: type[msgspec.Struct], data: st.DataObject) -> None:
    """To draw a value costs most."""
    value = data.draw(values(cls))
    for alignment in (flat.ALIGNED, flat.PACKED):
        raw = flat.encode(value, time_alignment=alignment)
        assert flat.decode(cls, raw) == value
        assert flat.encode(flat.decode(cls, raw), time_alignment=alignment) == raw
    plain = msgspec.json.decode(msgspec.json.encode(manifest.to_builtins(value)))
    assert manifest.from_builtins(cls, plain) == value


@pytest.mark.slow
@settings(EXAMPLES, max_examples=share(300))
@given(values(MetadataBlock), st.sampled_from([2, 3]))
def test_a_shown_block_encodes_to_the_same_bytes(content: MetadataBlock, version: int) -> None:
    block = blocks.encode_block(content, version)
    assert blocks.decode_block(block.raw) == block
    [read] = manifest.parse_manifests(manifest.render_manifest(block), "block.yaml")
    assert isinstance(read.content, MetadataBlock)
    assert blocks.encode_block(read.content, read.version).raw == block.raw


@pytest.mark.slow
@settings(EXAMPLES, max_examples=share(100))
@given(values(events.DatasetSnapshot))
def test_a_rendered_snapshot_reads_back(snapshot: events.DatasetSnapshot) -> None:
    [read] = manifest.parse_manifests(manifest.render_manifest(snapshot), "snapshot.yaml")
    assert read.content == snapshot


@pytest.mark.parametrize(
    "text",
    ["a\x85b", "a\u2028b", "a\r\nb", "\n", " a\n b\n", "a \n", "\tb\n", "yes", "0o17", "1e5", "1_0", "~", "2020-01-01",
     "", "\x00\x07\x7f", "\ufeff", "\U0001f600", "# a", "a: b", "'", '"', "---", "...\n", "a\n\n\n", "=", "<<", "1:30"],
)  # fmt: skip
def test_awkward_text_survives_yaml(text: str) -> None:
    event = events.SetInfo(description=text, keywords=(text, text + "x"))
    [read] = manifest.parse_manifests(manifest.render_manifest(event), "info.yaml")
    assert read.content == event


def survives(raw: bytes) -> None:
    try:
        block = blocks.decode_block(raw)
    except Invalid as fault:
        told = str(fault) and fault.rule
    else:
        told = block.raw == raw
    assert told


@EXAMPLES
@given(st.binary(max_size=400))
def test_garbage_gives_invalid(raw: bytes) -> None:
    survives(raw)


# The codec of Protocol Buffers, against the runtime of its authors and any bytes.

RULE = "some-message"
numbers = st.integers(0, 2**64 - 1)
fields = st.lists(st.tuples(st.integers(1, 2**29 - 1), st.one_of(numbers, st.binary(max_size=300))), max_size=9)


def read_by_google(raw: bytes) -> list[tuple[int, Field]]:
    message = Empty()
    message.ParseFromString(raw)
    return [(one.field_number, one.data) for one in unknown_fields.UnknownFieldSet(message)]


@given(fields)
def test_prop_fields_are_read_as_written_here_and_by_google(content: list[tuple[int, Field]]) -> None:
    raw = b"".join(field(number, value) for number, value in content)
    assert list(read_fields(raw, RULE)) == content == read_by_google(raw)


@given(st.integers(1, 2**29 - 1), numbers)
def test_prop_fixed_numbers_are_read_as_written(number: int, value: int) -> None:
    raw = fixed64_field(number, value)
    assert list(read_fields(raw, RULE)) == [(number, value)] == read_by_google(raw)


@given(st.binary(max_size=60))
def test_prop_any_bytes_are_fields_or_invalid(raw: bytes) -> None:
    try:
        content = list(read_fields(raw, RULE))
    except Invalid:
        return
    try:
        assert content == read_by_google(raw)
    except DecodeError:  # it also refuses numbers of fields that no schema may use
        assert any(not 0 < number < 1 << 29 for number, _ in content)


@pytest.mark.parametrize(
    "raw",
    [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\x0f", b"\x08", b"\x08" + b"\x80" * 10, b"\x08" + b"\xff" * 9 + b"\x02",
     b"\x21\x00", b"\x2d" + bytes(3)],
    ids=["no-length", "cut", "group", "no-kind", "no-number", "no-end", "over-64-bits", "fixed64-cut", "fixed32-cut"],
)  # fmt: skip
def test_broken_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(Invalid, match="not a protobuf message") as refused:
        list(read_fields(raw, RULE))
    assert refused.value.rule == RULE


def test_a_field_of_another_type_is_refused() -> None:
    assert (number_of(5, RULE), bytes_of(b"five", RULE)) == (5, b"five")
    with pytest.raises(Invalid):
        number_of(b"five", RULE)
    with pytest.raises(Invalid):
        bytes_of(5, RULE)


def test_a_delimited_message_begins_with_its_length() -> None:
    assert delimited(bytes(300)) == b"\xac\x02" + bytes(300)


# The model's classes are the tables of the ODF schema: same fields, same order, same types, same unions and enums.
# ``odf-tables.json`` lists the schema's declarations; what the engine contract adds comes after a table's last field.


ROOTS: list[tuple[type[msgspec.Struct], str]] = [
    (MetadataBlock, "MetadataBlock"),
    (DatasetSnapshot, "DatasetSnapshot"),
    (engines.contract.TransformRequest, "TransformRequest"),
    (engines.contract.TransformResponseRoot, "TransformResponseRoot"),
    (engines.contract.RawQueryRequest, "RawQueryRequest"),
    (engines.contract.RawQueryResponseRoot, "RawQueryResponseRoot"),
]
SUFFIX = {"DatasetVocabulary": "_column"}
"""Table -> what its names end with and ours do not; FlatBuffers hold no names of fields."""


class Comparing:
    """Walks model and schema side by side."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.tables, self.unions, self.enums = schema["tables"], schema["unions"], schema["enums"]
        self.seen: set[str] = set()

    def table(self, cls: type[msgspec.Struct], name: str) -> None:
        if name in self.seen:
            return
        self.seen.add(name)
        declared = [line.split(": ") for line in self.tables[name]]
        fields = layout.fields_of(cls)
        assert [each.name for each in fields[: len(declared)]] == [
            each.removesuffix(SUFFIX.get(name, "")) for each, _ in declared
        ], name
        if not cls.__module__.startswith("engines."):
            assert len(fields) == len(declared), name
        for each, (field_name, text) in zip(fields, declared, strict=False):
            type_name, _, default = text.partition(" = ")
            scalar = isinstance(each.kind, Number | Flag | Choice)
            assert (default == "null") == (each.optional and scalar), f"{name}.{field_name}"
            self.kind(each.kind, type_name, f"{name}.{field_name}")

    def kind(self, kind: Kind, name: str, place: str) -> None:
        match kind:
            case Vector(Union() as union):
                wrapper = name.strip("[]")
                assert self.tables[wrapper] == [f"value: {wrapper.removesuffix('Wrapper')}"], place
                self.kind(union, wrapper.removesuffix("Wrapper"), place)
            case Vector(item):
                assert (name[0], name[-1]) == ("[", "]"), place
                self.kind(item, name[1:-1], place)
            case Union(variants):
                assert len(variants) == len(self.unions[name]), place
                for variant, table in zip(variants, self.unions[name], strict=True):
                    assert table.endswith(str(variant.__struct_config__.tag).removeprefix("RawQuery")), place
                    self.table(variant, table)
            case Table(of):
                self.table(of, name)
            case Choice(options, number):
                assert [number.name, *(each.value for each in options)] == self.enums[name], place
            case Number(name=number_name):
                assert number_name == name, place
            case _:
                plain = {
                    Text: "string",
                    Octets: "[ubyte]",
                    Moment: "Timestamp",
                    JsonObject: "ExtraAttributes",
                    Flag: "bool",
                }
                assert plain[type(kind)] == name, place


@pytest.fixture(scope="module")
def tables(golden: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden / "odf-tables.json").read_text())
    return found


@pytest.mark.parametrize(("cls", "name"), ROOTS, ids=lambda value: value if isinstance(value, str) else "")
def test_tables_are_those_of_the_schema(cls: type[msgspec.Struct], name: str, tables: dict[str, Any]) -> None:
    Comparing(tables).table(cls, name)


def test_no_table_of_the_schema_is_left_out(tables: dict[str, Any]) -> None:
    comparing = Comparing(tables)
    for cls, name in ROOTS:
        comparing.table(cls, name)
    beyond = {"Manifest", "ExtraAttributes", "PrepStepWrapper", "MetadataEventWrapper"}
    assert set(tables["tables"]) - comparing.seen == beyond


# Buffers made to hurt: shared parts, endless nesting, offsets to nowhere, texts that are not.

STRING, STRUCT = 24, 21


def doubling(levels: int) -> bytes:
    """A struct of two fields that are one and the same struct of two fields …: 2 ** levels to a naive reader."""
    builder = Builder(1024)
    name = builder.CreateString("x")
    builder.StartObject(0)
    inner, kind = builder.EndObject(), STRING
    for _ in range(levels):
        builder.StartObject(4)
        builder.PrependUOffsetTRelativeSlot(0, name, 0)
        builder.PrependUint8Slot(1, kind, 0)
        builder.PrependUOffsetTRelativeSlot(2, inner, 0)
        field = builder.EndObject()
        builder.StartVector(4, 2, 4)
        builder.PrependUOffsetTRelative(field)
        builder.PrependUOffsetTRelative(field)
        fields = builder.EndVector()
        builder.StartObject(1)
        builder.PrependUOffsetTRelativeSlot(0, fields, 0)
        inner, kind = builder.EndObject(), STRUCT
    builder.Finish(inner)
    return bytes(builder.Output())


def test_shared_parts_are_paid_for_each_time() -> None:
    assert len(flat.decode(DataSchema, doubling(1)).fields) == 2
    begin = time.process_time()
    with pytest.raises(Invalid, match="parts overlap") as caught:
        flat.decode(DataSchema, doubling(30))
    assert time.process_time() - begin < 10, "a thousand million fields would take a day"
    assert caught.value.place.startswith("$.fields[0].type.fields[0].type.")


@pytest.mark.slow
def test_a_block_has_so_many_parts() -> None:
    """Attack T-BYTES-01: a block of more parts than any reader can use.

    Defence: it is refused while it is decoded.

    A schema of as many columns as we declare is read; of one of more than a hundred thousand no reader is asked.
    """

    def read(columns: int) -> DataSchema:
        fields = tuple(DataField(name="", type=Option(inner=String())) for _ in range(columns))
        return flat.decode(DataSchema, flat.encode(DataSchema(fields=fields)))

    assert len(read(MAX_COLUMNS).fields) == MAX_COLUMNS
    with pytest.raises(Invalid) as caught:
        read(flat_read.MAX_TABLES // 2)
    assert caught.value.rule == "flatbuffers-tables"


def nested(levels: int) -> DataSchema:
    inner: DataType = String()
    for _ in range(levels):
        inner = Option(inner=inner)
    return DataSchema(fields=(DataField(name="deep", type=inner),))


@pytest.mark.slow
def test_nesting_ends_for_writers_and_readers_alike() -> None:
    deepest = nested(flat.MAX_DEPTH - 3)
    assert flat.decode(DataSchema, flat.encode(deepest)) == deepest
    with pytest.raises(Invalid, match="nested deeper than 64 tables"):
        flat.encode(nested(flat.MAX_DEPTH - 2))
    with pytest.raises(Invalid, match="nested deeper than 64 tables"):
        flat.decode(DataSchema, doubling(40))
    plain: object = {"kind": "SetInfo"}
    for _ in range(50_000):
        plain = [plain]
    with pytest.raises(Invalid, match="nested deeper than 100"):
        manifest.from_builtins(SetInfo, plain)


def test_a_table_that_is_its_own_child() -> None:
    raw = bytearray(flat.encode(nested(1)))
    option = flat.decode(DataSchema, bytes(raw)).fields[0].type
    assert isinstance(option, Option)
    refused = 0
    for place in range(0, len(raw) - 3, 4):
        for value in (0xFFFF_FFFC, 0xFFFF_FFF8, 0, 1):
            turned = bytes(raw[:place]) + value.to_bytes(4, "little") + bytes(raw[place + 4 :])
            try:
                flat.decode(DataSchema, turned)
            except Invalid as fault:
                refused += bool(fault.rule)
    assert refused > 20


@pytest.mark.parametrize("size", range(8))
def test_too_short(size: int) -> None:
    with pytest.raises(Invalid, match=f"too short: {size} bytes"):
        flat.decode(SetInfo, bytes(size))


def test_every_truncation_is_refused() -> None:
    raw = encoded(Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT)).raw
    for size in range(len(raw)):
        with pytest.raises(Invalid):
            blocks.decode_block(raw[:size])


def encoded(event: Seed | AddData | SetInfo | SetAttachments, when: int = 0) -> blocks.Block:
    return blocks.encode_block(MetadataBlock(system_time=Instant(when), sequence_number=0, event=event))


@pytest.mark.slow
def test_size_of_blocks_is_bounded() -> None:
    readme = Attachment(path="README.md", content="x" * blocks.MAX_BLOCK)
    with pytest.raises(Invalid, match="a block of 167"):
        encoded(SetAttachments(attachments=Embedded(items=(readme,))))
    with pytest.raises(Invalid, match="a block of 16777217 bytes"):
        blocks.decode_block(bytes(blocks.MAX_BLOCK + 1))


def test_values_that_the_wire_cannot_hold_are_named() -> None:
    for event, message in (
        (AddData(prev_offset=-1), r"\$.event.prev_offset: -1 does not fit uint64"),
        (AddData(prev_offset=1 << 64), r"\$.event.prev_offset: 18446744073709551616 does not fit uint64"),
        (AddData(new_watermark=Instant(10**30)), r"\$.event.new_watermark: time out of range"),
        (SetInfo(keywords=("a", "\ud800")), r"\$.event.keywords\[1\]: not Unicode text"),
    ):
        with pytest.raises(Invalid, match=message):
            encoded(event)


def test_bytes_that_are_no_text_or_hash_are_placed() -> None:
    raw = encoded(SetInfo(description="abcd")).raw
    with pytest.raises(Invalid, match=r"\$.event.description: not UTF-8"):
        blocks.decode_block(raw.replace(b"abcd", b"ab\xff\xff"))
    with pytest.raises(Invalid, match=r"\$.event.description: a text does not end with a zero byte"):
        blocks.decode_block(raw.replace(b"abcd\0", b"abcde"))
    seed = encoded(Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.DERIVATIVE)).raw
    with pytest.raises(Invalid, match=r"\$.event.dataset_id: not an Ed25519 identity"):
        blocks.decode_block(seed.replace(b"\xed\x01", b"\xed\x02"))


def test_extra_attributes_are_json_objects() -> None:
    raw = encoded(AddData(extra={"k": [1]})).raw
    assert b'{"k":[1]}' in raw
    for text in (b'{"k":[1}]', b'[["k":1]]', b'"k\\":[11"', b'{"k":[1]]', b"[[[[[[[[["):
        with pytest.raises(Invalid, match=r"\$.event.extra: not a JSON object"):
            blocks.decode_block(raw.replace(b'{"k":[1]}', text))
    deep = b"[" * 100_000
    long = encoded(AddData(extra={"k": "x" * (len(deep) - 8)})).raw
    with pytest.raises(Invalid, match="not a JSON object"):
        blocks.decode_block(long.replace(b'{"k":"' + b"x" * (len(deep) - 8) + b'"}', deep))


def test_keys_of_extra_attributes_are_sorted_at_every_level() -> None:
    extra: dict[str, object] = {"b": {"z": 1, "a": "ü"}, "a": None}
    assert '{"a":null,"b":{"a":"ü","z":1}}'.encode() in encoded(AddData(extra=extra)).raw


def test_numbers_of_extra_attributes_are_printed_as_the_reference_prints_them() -> None:
    numbers = [1e16, -2.5e300, 9007199254740993.0, 1e15, 1e-5, 1e-6, 5e-324, -0.0, 100.0, 0.1, 2**64 - 1, -(2**63), 1]
    text = (
        b"[1e+16,-2.5e+300,9007199254740992.0,1000000000000000.0,0.00001,1e-6,5e-324,-0.0,100.0,0.1,"
        b"18446744073709551615,-9223372036854775808,1]"
    )
    block = encoded(AddData(extra={"n": numbers}))
    assert b'{"n":' + text + b"}" in block.raw
    assert blocks.encode_block(blocks.content_of(blocks.decode_block(block.raw))).raw == block.raw


def test_extra_attributes_end_somewhere() -> None:
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(Invalid, match="nested deeper than 128"):
        encoded(AddData(extra={"deep": deep}))


@pytest.mark.parametrize(
    ("year", "day", "second", "nanos", "good"),
    [
        (2020, 366, 86_399, 999_999_999, True),
        (2016, 366, 86_399, 1_500_000_000, True),
        (2021, 366, 0, 0, False),
        (2020, 0, 0, 0, False),
        (2020, 1, 86_400, 0, False),
        (2020, 1, 0, 1_000_000_000, False),
        (2020, 1, 59, 2_000_000_000, False),
        (0, 366, 0, 0, True),
        (0, 0, 0, 0, False),
        (-1, 366, 0, 0, False),
        (-4, 366, 0, 0, True),
        (-5, 1, 0, 0, True),
        (10_000, 366, 0, 0, True),
        (9999, 366, 0, 0, False),
        (9999, 365, 86_399, 1_000_000_000, True),
        (262_142, 365, 86_399, 999_999_999, True),
        (262_142, 365, 86_399, 1_000_000_000, False),
        (262_143, 1, 0, 0, False),
        (-262_143, 1, 0, 0, True),
        (-262_144, 1, 0, 0, False),
        (-(1 << 31), 1, 0, 0, False),
    ],
)
def test_times_that_do_not_exist(year: int, day: int, second: int, nanos: int, good: bool) -> None:
    import struct

    noon = struct.pack("<iHxxII", 2020, 1, 43_200, 7)
    raw = encoded(SetInfo(), 1_577_880_000_000_000_007).raw
    assert noon in raw
    other = raw.replace(noon, struct.pack("<iHxxII", year, day, second, nanos))
    if good:
        assert blocks.decode_block(other).raw == other
    else:
        with pytest.raises(Invalid, match=r"\$.system_time: no such time"):
            blocks.decode_block(other)


def test_a_class_that_cannot_be_laid_out_is_our_mistake() -> None:
    class Odd(msgspec.Struct):
        number: float

    with pytest.raises(TypeError, match=r"Odd\.number: no wire layout"):
        flat.encode(Odd(1.0))


class NewerCheckpoint(msgspec.Struct, frozen=True):
    """A Checkpoint of some later schema."""

    physical_hash: Multihash
    size: Annotated[int, Scalar("uint64")]
    engine: str | None = None
    pages: Annotated[int, Scalar("uint64")] | None = None


class NewerAddData(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="AddData"):
    prev_checkpoint: Multihash | None = None
    prev_offset: U64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: NewerCheckpoint | None = None


def newer(event: NewerAddData) -> bytes:
    """A block that a later version wrote: the event is encoded as that version knows it."""
    variants = (NewerAddData, *get_args(MetadataEvent)[1:])
    block = msgspec.defstruct(
        "Newer",
        [
            ("system_time", Time),
            ("prev_block_hash", Multihash | None),
            ("sequence_number", U64),
            ("event", typing.Union[variants]),  # noqa: UP007
        ],
        frozen=True,
    )
    inner = flat.encode(block(Instant(0), Multihash.sha3_256(b""), 7, event))
    manifest_ = msgspec.defstruct("Manifest", [("kind", I64), ("version", I32), ("content", bytes)])
    return flat.encode(manifest_(blocks.KIND, 3, inner))


def test_fields_of_a_newer_schema_are_kept_and_told() -> None:
    plain = newer(NewerAddData(new_checkpoint=NewerCheckpoint(Multihash.sha3_256(b"x"), 1)))
    assert blocks.decode_block(plain).unknown_fields == ()
    raw = newer(NewerAddData(new_checkpoint=NewerCheckpoint(Multihash.sha3_256(b"x"), 1, engine="spark", pages=0)))
    block = blocks.decode_block(raw)
    assert block.raw == raw
    assert block.unknown_fields == ("Checkpoint[2]", "Checkpoint[3]")
    assert block.event == AddData(new_checkpoint=Checkpoint(physical_hash=Multihash.sha3_256(b"x"), size=1))
    with pytest.raises(Invalid, match=r"holds fields of a newer schema.*: Checkpoint\[2\], Checkpoint\[3\]"):
        manifest.render_manifest(block)
    shown = describe(block)
    assert shown["unknownFields"] == ["Checkpoint[2]", "Checkpoint[3]"]
    with pytest.raises(Invalid, match="a manifest cannot say"):
        manifest.parse_manifests(manifest.render_yaml(shown), "shown.yaml")
