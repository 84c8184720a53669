"""Buffers made to hurt: shared parts, endless nesting, offsets to nowhere, texts that are not."""

from __future__ import annotations

import time
from typing import Annotated, Union, get_args

import msgspec
import pytest
from flatbuffers import Builder

from chain.codec import blocks, flat, flat_read, manifest
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import MetadataBlock
from chain.model.events import AddData, Checkpoint, DatasetKind, DataSlice, MetadataEvent, Seed, SetAttachments, SetInfo
from chain.model.events import AttachmentEmbedded as Attachment
from chain.model.events import AttachmentsEmbedded as Embedded
from chain.model.schema import MAX_COLUMNS, DataField, DataSchema, DataType, Option, String
from chain.model.wire import I32, I64, U64, Scalar, Time
from chain.multihash import Multihash
from odfd.cli.offline.block import describe

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
            ("event", Union[variants]),  # noqa: UP007
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
