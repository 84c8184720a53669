"""Reads blocks of ODF 0.18, as kamu wrote them in 2021: YAML on disk, FlatBuffers for their hash.

A block states its own hash, and its predecessor's. The hash is SHA3-256 of the block as FlatBuffers without its last 32
bytes, where the hash itself lies: ``blockHash`` is the first field, and buffers are written from the back. So verifying
a block means encoding it again; new blocks are never made here. Spec: ODF 0.18, Metadata Block Hashing.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from flatbuffers import Builder

from chain.codec import timestamp, yaml_tree
from chain.codec.bind import plain
from chain.errors import Invalid
from chain.instant import Instant, parse

RULE: Final = "former-block"
MAX_BLOCK: Final = 1 << 20
"""Largest file of one block, in bytes."""
_DIGEST: Final = 32
_HASH: Final = re.compile(r"[0-9a-f]{64}\Z")
_NO_TIME: Final = bytes(timestamp.SIZE)
_BOUNDS: Final = re.compile(r"([\[(])([^,\[\]()]+),([^,\[\]()]+)([\])])\Z")
_INTERVALS: Final = {
    ("[", "]"): 0, ("(", ")"): 1, ("(", "]"): 2, ("[", ")"): 3,
}  # fmt: skip
_OPEN_LEFT: Final = {"]": 4, ")": 5}
_OPEN_RIGHT: Final = {"[": 6, "(": 7}
_SINGLETON, _UNBOUNDED, _EMPTY = 8, 9, 10

_Fields = tuple[tuple[str, str], ...]
"""Names and types of fields. ``?`` means optional, ``|`` a union, ``[`` a vector, ``#`` a number omitted if zero."""
_TABLES: Final[Mapping[str, _Fields]] = {
    "MetadataBlock": (
        ("blockHash", "digest"),
        ("prevBlockHash", "?digest"),
        ("systemTime", "time"),
        ("outputSlice", "?DataSlice"),
        ("outputWatermark", "?time"),
        ("inputSlices", "?[DataSlice"),
        ("source", "?|DatasetSource"),
        ("vocab", "?DatasetVocabulary"),
    ),
    "DataSlice": (("hash", "digest"), ("interval", "interval"), ("numRecords", "#int64")),
    "DatasetVocabulary": (("systemTimeColumn", "?text"), ("eventTimeColumn", "?text")),
    "DatasetSourceRoot": (
        ("fetch", "|FetchStep"),
        ("prepare", "?[|PrepStep"),
        ("read", "|ReadStep"),
        ("preprocess", "?|Transform"),
        ("merge", "|MergeStrategy"),
    ),
    "DatasetSourceDerivative": (("inputs", "[text"), ("transform", "|Transform")),
    "FetchStepUrl": (("url", "text"), ("eventTime", "?|EventTimeSource"), ("cache", "?|SourceCaching")),
    "FetchStepFilesGlob": (
        ("path", "text"),
        ("eventTime", "?|EventTimeSource"),
        ("cache", "?|SourceCaching"),
        ("order", "?SourceOrdering"),
    ),
    "EventTimeSourceFromMetadata": (),
    "EventTimeSourceFromPath": (("pattern", "text"), ("timestampFormat", "?text")),
    "SourceCachingForever": (),
    "PrepStepDecompress": (("format", "#CompressionFormat"), ("subPath", "?text")),
    "PrepStepPipe": (("command", "[text"),),
    "ReadStepCsv": (
        ("schema", "?[text"),
        ("separator", "?text"),
        ("encoding", "?text"),
        ("quote", "?text"),
        ("escape", "?text"),
        ("comment", "?text"),
        ("header", "?bool"),
        ("enforceSchema", "?bool"),
        ("inferSchema", "?bool"),
        ("ignoreLeadingWhiteSpace", "?bool"),
        ("ignoreTrailingWhiteSpace", "?bool"),
        ("nullValue", "?text"),
        ("emptyValue", "?text"),
        ("nanValue", "?text"),
        ("positiveInf", "?text"),
        ("negativeInf", "?text"),
        ("dateFormat", "?text"),
        ("timestampFormat", "?text"),
        ("multiLine", "?bool"),
    ),
    "ReadStepJsonLines": (
        ("schema", "?[text"),
        ("dateFormat", "?text"),
        ("encoding", "?text"),
        ("multiLine", "?bool"),
        ("primitivesAsString", "?bool"),
        ("timestampFormat", "?text"),
    ),
    "ReadStepGeoJson": (("schema", "?[text"),),
    "ReadStepEsriShapefile": (("schema", "?[text"), ("subPath", "?text")),
    "TransformSql": (
        ("engine", "text"),
        ("version", "?text"),
        ("query", "?text"),
        ("queries", "?[SqlQueryStep"),
        ("temporalTables", "?[TemporalTable"),
    ),
    "SqlQueryStep": (("alias", "?text"), ("query", "text")),
    "TemporalTable": (("id", "text"), ("primaryKey", "[text")),
    "MergeStrategyAppend": (),
    "MergeStrategyLedger": (("primaryKey", "[text"),),
    "MergeStrategySnapshot": (
        ("primaryKey", "[text"),
        ("compareColumns", "?[text"),
        ("observationColumn", "?text"),
        ("obsvAdded", "?text"),
        ("obsvChanged", "?text"),
        ("obsvRemoved", "?text"),
    ),
}
_UNIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "DatasetSource": ("Root", "Derivative"),
    "FetchStep": ("Url", "FilesGlob"),
    "EventTimeSource": ("FromMetadata", "FromPath"),
    "SourceCaching": ("Forever",),
    "PrepStep": ("Decompress", "Pipe"),
    "ReadStep": ("Csv", "JsonLines", "GeoJson", "EsriShapefile"),
    "Transform": ("Sql",),
    "MergeStrategy": ("Append", "Ledger", "Snapshot"),
}
_ENUMS: Final[Mapping[str, tuple[str, ...]]] = {
    "SourceOrdering": ("ByEventTime", "ByName"),
    "CompressionFormat": ("Gzip", "Zip"),
}


class FormerSlice(NamedTuple):
    """The rows that a block added: their digest and number, as the block states them."""

    digest: str
    records: int


class FormerBlock(NamedTuple):
    """A block of ODF 0.18 whose hash was verified."""

    hash: str
    """Hash of the block, as 64 hexadecimal digits."""
    previous: str | None
    system_time: Instant
    watermark: Instant | None
    output: FormerSlice | None
    is_derived: bool
    """Whether the block declares a transform of other datasets, or has input slices."""
    system_time_column: str | None
    event_time_column: str | None
    text: str
    """The YAML of the block's file, unchanged."""


def read_block(text: str, place: str) -> FormerBlock:
    """Reads and verifies a block. Raises Invalid if it is not a block, or its hash differs from the stated one."""
    if len(text) > MAX_BLOCK:
        raise Invalid(f"a block of more than {MAX_BLOCK:,} characters", rule=RULE, place=place)
    documents = yaml_tree.parse(text, place)
    manifest = plain(documents[0]) if len(documents) == 1 else None
    if (
        not isinstance(manifest, dict)
        or manifest.keys() != {"apiVersion", "kind", "content"}
        or (manifest["apiVersion"], manifest["kind"]) != (1, "MetadataBlock")
    ):
        raise Invalid("no block of ODF 0.18", rule=RULE, hint="it has apiVersion: 1, kind: MetadataBlock", place=place)
    content = manifest["content"]
    raw = encode(content, place)
    said, found = raw[-_DIGEST:].hex(), hashlib.sha3_256(raw[:-_DIGEST]).hexdigest()
    if said != found:
        raise Invalid(
            f"block {said[:16]}… has the hash {found[:16]}…", rule="former-hash", hint="it was changed", place=place
        )
    output, source = content.get("outputSlice"), content.get("source") or {}
    vocabulary = content.get("vocab") or {}
    return FormerBlock(
        hash=said,
        previous=content.get("prevBlockHash"),
        system_time=parse(content["systemTime"]),
        watermark=parse(content["outputWatermark"]) if content.get("outputWatermark") is not None else None,
        output=None if output is None else FormerSlice(output["hash"], output["numRecords"]),
        is_derived=content.get("inputSlices") is not None or str(source.get("kind")).casefold() == "derivative",
        system_time_column=vocabulary.get("systemTimeColumn"),
        event_time_column=vocabulary.get("eventTimeColumn"),
        text=text,
    )


def encode(content: object, place: str = "") -> bytes:
    """Encodes a block's content as FlatBuffers, in the order that gives its hash. Raises Invalid."""
    builder = Builder(1024)
    try:
        builder.Finish(_table(builder, "MetadataBlock", content, "content"))
    except Invalid as fault:
        fault.place = f"{place}: {fault.place}" if place else fault.place
        raise
    return bytes(builder.Output())


def _table(builder: Builder, name: str, value: object, path: str) -> int:
    """Writes a table: first its children in the order of fields, then its slots in the same order."""
    fields = _TABLES[name]
    members = _members(name, value, path)
    ready = []
    slot = 0
    for key, kind in fields:
        given = members.get(key)
        if given is not None:
            ready.append((slot, kind.lstrip("?"), _child(builder, kind.lstrip("?"), given, f"{path}.{key}")))
        elif not kind.startswith("?"):
            raise _wrong(f"{path}.{key}", "is missing")
        slot += 2 if kind.lstrip("?").startswith("|") else 1
    builder.StartObject(slot)
    for number, kind, child in ready:
        _put(builder, number, kind, child)
    end: int = builder.EndObject()
    return end


def _members(name: str, value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(path, "has no fields")
    known = {key for key, _ in _TABLES[name]}
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise _wrong(f"{path}.{unknown[0][:60]}", "is no field of ODF 0.18")
    return value


def _child(builder: Builder, kind: str, value: object, path: str) -> Any:
    match kind[0]:
        case "|":
            return _union(builder, kind[1:], value, path)
        case "[":
            return _vector(builder, kind[1:], value, path)
        case "#":
            return _scalar(kind[1:], value, path)
    if kind == "digest":
        return builder.CreateByteVector(_digest(value, path))
    if kind == "text":
        return builder.CreateString(_text(value, path))
    if kind in _TABLES:
        return _table(builder, kind, value, path)
    return _scalar(kind, value, path)


def _union(builder: Builder, name: str, value: object, path: str) -> tuple[int, int]:
    """Writes a union's value. A variant without fields may be given as its name alone."""
    fields = {"kind": value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise _wrong(path, "has no kind")
    number = _number(_UNIONS[name], fields["kind"], f"{path}.kind") + 1
    variant = f"{name}{_UNIONS[name][number - 1]}"
    return number, _table(builder, variant, {key: each for key, each in fields.items() if key != "kind"}, path)


def _vector(builder: Builder, item: str, value: object, path: str) -> int:
    if not isinstance(value, list):
        raise _wrong(path, "is no list")
    offsets = []
    for index, each in enumerate(value):
        place = f"{path}[{index}]"
        if item.startswith("|"):  # each union in a table of its own, as FlatBuffers has no vectors of unions
            number, offset = _union(builder, item[1:], each, place)
            builder.StartObject(2)
            builder.PrependUint8Slot(0, number, 0)
            builder.PrependUOffsetTRelativeSlot(1, offset, 0)
            offsets.append(builder.EndObject())
        else:
            offsets.append(_child(builder, item, each, place))
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    end: int = builder.EndVector()
    return end


def _scalar(kind: str, value: object, path: str) -> Any:
    if kind in _ENUMS:
        return _number(_ENUMS[kind], value, path)
    if kind == "bool":
        if isinstance(value, bool):
            return value
        raise _wrong(path, "is neither true nor false")
    if kind == "int64":
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
            return value
        raise _wrong(path, "is no number of records")
    return _interval(_text(value, path), path) if kind == "interval" else _time(_text(value, path), path)


def _put(builder: Builder, slot: int, kind: str, value: Any) -> None:
    match kind:
        case "time":
            _struct(builder, slot, value)
        case "interval":
            _struct(builder, slot, value)
        case "bool":
            builder.PrependBoolSlot(slot, value, None)
        case "#int64":
            builder.PrependInt64Slot(slot, value, 0)
        case "#CompressionFormat":
            builder.PrependInt32Slot(slot, value, 0)
        case "SourceOrdering":
            builder.PrependInt32Slot(slot, value, None)
        case _ if kind.startswith("|"):
            builder.PrependUint8Slot(slot, value[0], 0)
            builder.PrependUOffsetTRelativeSlot(slot + 1, value[1], 0)
        case _:
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)


def _struct(builder: Builder, slot: int, raw: bytes) -> None:
    """Writes a struct without alignment, as a defect of the FlatBuffers library of 2021 did."""
    builder.Prep(1, len(raw))
    builder.head -= len(raw)
    builder.Bytes[builder.head : builder.head + len(raw)] = raw
    builder.Slot(slot)


def _number(names: tuple[str, ...], value: object, path: str) -> int:
    word = value.casefold() if isinstance(value, str) else None
    for number, name in enumerate(names):
        if name.casefold() == word:
            return number
    raise _wrong(path, f"is none of {', '.join(names)}")


def _digest(value: object, path: str) -> bytes:
    if isinstance(value, str) and _HASH.match(value):
        return bytes.fromhex(value)
    raise _wrong(path, "is no hash of 64 hexadecimal digits")


def _text(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    raise _wrong(path, "is no text")


def _time(text: str, path: str) -> bytes:
    try:
        return timestamp.pack(parse(text))
    except Invalid as fault:
        raise _wrong(path, fault.message) from fault


def _interval(text: str, path: str) -> bytes:
    """Encodes an interval as its kind and two times; a missing bound is written as time zero."""
    if text == "()":
        return _bounds(_EMPTY)
    found = _BOUNDS.match(text)
    if found is None:
        raise _wrong(path, "is no interval of times")
    opens, left, right, closes = found[1], found[2].strip(), found[3].strip(), found[4]
    if (left, right) == ("-inf", "inf") and (opens, closes) == ("(", ")"):
        return _bounds(_UNBOUNDED)
    if left == "-inf" and opens == "(":
        return _bounds(_OPEN_LEFT[closes], right=_time(right, path))
    if right == "inf" and closes == ")":
        return _bounds(_OPEN_RIGHT[opens], left=_time(left, path))
    first, last = _time(left, path), _time(right, path)
    if first == last and (opens, closes) == ("[", "]"):
        return _bounds(_SINGLETON, left=first)
    return _bounds(_INTERVALS[opens, closes], first, last)


def _bounds(kind: int, left: bytes = _NO_TIME, right: bytes = _NO_TIME) -> bytes:
    return struct.pack("<Bxxx", kind) + left + right


def _wrong(path: str, what: str) -> Invalid:
    return Invalid(f"{path} {what}", rule=RULE, place=path)
