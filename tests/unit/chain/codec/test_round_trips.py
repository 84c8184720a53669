"""Every class of the model survives both codecs, and fields those of protobuf; damaged bytes give a value or one
Invalid, within bounded work."""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf import unknown_fields
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engines.contract
from chain import instant
from chain.codec import blocks, flat, layout, manifest
from chain.codec.layout import Choice, Flag, JsonObject, Kind, Moment, Number, Octets, Table, Text, Union, Vector
from chain.codec.protobuf import Field, bytes_of, delimited, field, fixed64_field, number_of, read_fields
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model import events, schema, source
from chain.model.block import MetadataBlock
from chain.model.events import DatasetSnapshot
from chain.multihash import ARROW0_SHA3_256, SHA2_256, SHA3_256, Multihash
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
