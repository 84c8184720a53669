"""Cuts JSON objects out of documents unchanged, with the line on which each begins.

Only the necessary parts are decoded: a number reaches the parser with the digits that the file has, and a repeated key
reaches it twice. A GeoJSON feature becomes an object of its properties and the column ``geometry``, with the shape as
compact JSON text with sorted keys, or null if there is none. A property that is itself called ``geometry`` becomes
``_geometry``. Coordinates in another system than WGS 84 keep its name in the member ``crs``, as in the first edition of
GeoJSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

import msgspec

from chain.errors import Invalid

MAX_DOCUMENT: Final = 256 << 20
"""Most bytes of a document that must be parsed in one piece."""
BOM: Final = b"\xef\xbb\xbf"
_NO_VALUE: Final = msgspec.Raw(b"null")
_MANY_DIGITS: Final = re.compile(rb"[\d.]{16}")
"""Matches a number that a double may not hold: a decimal of at most 15 digits is unchanged by it."""
_WGS84: Final = re.compile(r"(OGC:(1\.3|2)?:CRS84h?|EPSG:(\d[\d.]*)?:?4326)\Z", re.IGNORECASE)
"""Names of the coordinate system that GeoJSON has by default."""
_FIRST: Final = re.compile(rb"\s*(\S)")
_AT: Final = re.compile(r" \(byte (\d+)\)\Z")
_KEY: Final = b'"geometry"'
_STRUCTURE: Final = "the file is cut off, or it is not JSON; one object per line is NdJson"


class JsonRecords(NamedTuple):
    """Records as ``text``: consecutive JSON objects."""

    text: bytes
    line_of: Callable[[int], int]
    """Returns the line of the file, from 1, on which the object with a number (from 0) begins. Only for messages."""


class Items(NamedTuple):
    """The records of a document, unchanged."""

    texts: Sequence[bytes | msgspec.Raw]
    crs: object = None
    """Coordinate system of a whole collection of features; ``None``: not declared."""


OwnId = Literal["column", "told", "ignored"]
"""Use of a feature's own id: as column ``id`` if no property has that name; as a field that is reported
as unread; none."""
_READ: Final = frozenset({"type", "id", "properties", "geometry", "crs", "bbox"})
"""Members of a feature that are read, or that only repeat properties of its shape."""


class _Collection(msgspec.Struct):
    features: list[msgspec.Raw] | None = None
    crs: msgspec.Raw = _NO_VALUE


_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_COLLECTION: Final = msgspec.json.Decoder(_Collection)
_SHAPE: Final = msgspec.json.Decoder()
_TEXT: Final = msgspec.json.Encoder(order="sorted", decimal_format="number")


def object_lines(data: bytes, lines_before: int = 0) -> JsonRecords:
    """Takes objects that stand one per line; empty lines are no objects."""
    return JsonRecords(data.removeprefix(BOM), lambda row: lines_before + line_of_row(data, row))


def line_of_row(data: bytes, row: int) -> int:
    """Returns the line, from 1, of record ``row`` (from 0; empty lines are no records). Only for messages."""
    seen, number, start = -1, 0, 0
    while start <= len(data):
        number += 1
        found = data.find(b"\n", start)
        end = len(data) if found < 0 else found
        seen += bool(data[start:end].strip())
        if seen == row:
            return number
        start = end + 1
    return 1


def array_records(data: bytes, sub_path: str | None, place: str, limit: int | None = None) -> JsonRecords:
    """Returns the objects, or the first ``limit``, of the array at ``sub_path`` of a JSON document. Raises Invalid."""
    items = array_items(data, sub_path, place).texts[:limit]
    return JsonRecords(b"\n".join(items), _lines_in(data, items))


def array_items(data: bytes, sub_path: str | None, place: str) -> Items:
    """Returns the elements of the array at dotted ``sub_path`` of one JSON document. Raises Invalid."""
    data = _whole(data, place)
    node: bytes | msgspec.Raw = data
    walked = "$"
    for step in sub_path.split(".") if sub_path else ():
        fields = _decode(_OBJECT, node, data, place) if _opens(node, b"{") else {}
        if step not in fields:
            there = ", ".join(sorted(fields)[:10]) or _kind(node)
            raise Invalid(f"no {step!r} at {walked}", rule="read-sub-path", hint=f"there is: {there}", place=place)
        node, walked = fields[step], f"{walked}.{step}"
    if not _opens(node, b"["):
        if walked == "$":
            _decode(_SHAPE, node, data, place)
        raise Invalid(
            f"{walked} is not an array but {_kind(node)}",
            rule="read-json",
            hint="name the array of records with subPath",
            place=place,
        )
    return Items(_decode(_ARRAY, node, data, place))


def feature_records(data: bytes, place: str, own_id: OwnId, limit: int | None = None) -> JsonRecords:
    """Returns the features, or the first ``limit``, of one FeatureCollection. Raises Invalid."""
    found = feature_items(data, place)
    line_of = _lines_in(data, found.texts)
    rows = []
    for number, raw in enumerate(found.texts[:limit]):
        try:
            rows.append(flat(raw, found.crs, own_id))
        except Invalid as fault:
            raise Invalid(fault.message, rule=fault.rule, hint=fault.hint, place=f"{place}:{line_of(number)}") from None
    return JsonRecords(b"\n".join(rows), line_of)


def feature_items(data: bytes, place: str) -> Items:
    """Returns the features of one FeatureCollection. Raises Invalid."""
    data = _whole(data, place)
    document = _decode(_COLLECTION, data, data, place) if _opens(data, b"{") else _Collection()
    if document.features is None:
        raise Invalid(
            "not a FeatureCollection: it has no array 'features'",
            rule="read-geojson",
            hint="one Feature a line is NdGeoJson",
            place=place,
        )
    return Items(document.features, _foreign_crs(document.crs))


def feature_per_line(data: bytes, place: str, own_id: OwnId, lines_before: int = 0) -> JsonRecords:
    """Reads GeoJSON features, one per line, as ``feature_records``; keeps empty lines, so that line numbers stay."""
    rows = []
    for number, line in enumerate(data.removeprefix(BOM).split(b"\n"), lines_before + 1):
        try:
            rows.append(flat(line, None, own_id) if line.strip() else b"")
        except Invalid as fault:
            raise Invalid(fault.message, rule=fault.rule, hint=fault.hint, place=f"{place}:{number}") from None
    return JsonRecords(b"\n".join(rows), lambda row: lines_before + line_of_row(data, row))


def flat(raw: bytes | msgspec.Raw, crs: object, own_id: OwnId) -> bytes:
    """Converts one feature to an object of its columns. Raises Invalid without a geometry.

    Members beside its properties become a field that no schema names, so that they are counted as unread.
    """
    feature: dict[str, msgspec.Raw] = _decode(_OBJECT, raw, bytes(raw), "") if _opens(raw, b"{") else {}
    if bytes(feature.get("type", b"")) != b'"Feature"':
        raise Invalid("not a GeoJSON Feature", rule="read-geojson")
    properties = bytes(feature.get("properties", _NO_VALUE)).strip()
    if properties == b"null":
        properties = b"{}"
    if not properties.startswith(b"{"):
        raise Invalid("the properties of a feature are not an object", rule="read-geojson")
    if _KEY in properties or b"\\u" in properties:
        properties = _beside_geometry(properties)
    said = crs if crs is not None else _foreign_crs(feature.get("crs", _NO_VALUE))
    members = [b'"geometry":' + _geometry(feature.get("geometry", _NO_VALUE), said)]
    members += _beside_properties(feature, properties, own_id)
    inner = properties[1:-1].strip()
    return b"{" + b",".join([*members, inner] if inner else members) + b"}"


def _beside_properties(feature: dict[str, msgspec.Raw], properties: bytes, own_id: OwnId) -> list[bytes]:
    """Returns members for a feature's own id, unless a property repeats it, and for members that
    GeoJSON does not define."""
    if own_id == "ignored":
        return []
    members = [_member(f"{name} beside properties", feature[name]) for name in feature if name not in _READ]
    number = feature.get("id", _NO_VALUE)
    if number != _NO_VALUE:
        property_ = _decode(_OBJECT, properties, properties, "").get("id")
        if own_id == "column" and property_ is None:
            members.append(_member("id", number))
        elif property_ != number:
            members.append(_member("id beside properties", number))
    return members


def _member(name: str, value: msgspec.Raw) -> bytes:
    return msgspec.json.encode(name) + b":" + bytes(value)


def _beside_geometry(properties: bytes) -> bytes:
    """Returns the properties, without one that has the name of the shape's column. Raises Invalid."""
    fields: dict[str, Any] = _decode(_OBJECT, properties, properties, "")
    if "geometry" not in fields:
        return properties
    if "_geometry" in fields:
        raise Invalid(
            "properties 'geometry' and '_geometry' would both be the column '_geometry'",
            rule="read-geojson",
            hint="the column 'geometry' is the shape; rename one of the properties",
        )
    return msgspec.json.encode({("_geometry" if name == "geometry" else name): raw for name, raw in fields.items()})


def _geometry(raw: msgspec.Raw, crs: object) -> bytes:
    """Returns the shape as a JSON text within JSON. If a double would lose digits they are kept; else
    numbers are as kamu's."""
    text = bytes(raw)
    exact = _MANY_DIGITS.search(text) is not None
    shape = _decode(msgspec.json.Decoder(float_hook=_exact) if exact else _SHAPE, raw, text, "")
    if shape is None:
        return b"null"
    if crs is not None and isinstance(shape, dict):
        shape.setdefault("crs", crs)
    return msgspec.json.encode(_TEXT.encode(shape).decode())


def _exact(text: str) -> float | Decimal:
    value = float(text)
    return value if Decimal(repr(value)) == Decimal(text) else Decimal(text)


def _foreign_crs(raw: msgspec.Raw) -> object:
    """Returns the value of a member ``crs``; ``None`` if it names GeoJSON's default system."""
    said = _decode(_SHAPE, raw, bytes(raw), "")
    properties = said.get("properties") if isinstance(said, dict) else None
    name = properties.get("name") if isinstance(properties, dict) else None
    return None if isinstance(name, str) and _WGS84.search(name) else said


def _lines_in(data: bytes, items: Sequence[bytes | msgspec.Raw]) -> Callable[[int], int]:
    def line_of(row: int) -> int:
        end = 0
        for item in items[: row + 1]:
            text = bytes(item)
            start = data.find(text, end)
            end = start + len(text)
        return newlines(data, start) + 1 if items else 1

    return line_of


def starts_in(data: bytes, items: Sequence[bytes | msgspec.Raw]) -> list[int]:
    """Returns the positions at which the elements of one array of a document begin."""
    starts, end = [], 0
    for item in items:
        text = bytes(item)
        starts.append(data.find(text, end))
        end = starts[-1] + len(text)
    return starts


def newlines(data: bytes, end: int) -> int:
    """Counts line ends before byte ``end``."""
    return data.count(b"\n", 0, end)


def _whole(data: bytes, place: str) -> bytes:
    if len(data) > MAX_DOCUMENT:
        raise Invalid(
            f"a JSON document of {len(data) >> 20} MiB",
            rule="read-document-size",
            hint=f"at most {MAX_DOCUMENT >> 20} MiB in one piece; give one object per line (NdJson) instead",
            place=place,
        )
    return data.removeprefix(BOM)


def _opens(node: bytes | msgspec.Raw, with_: bytes) -> bool:
    return _first(node) == with_


def _first(node: bytes | msgspec.Raw) -> bytes:
    found = _FIRST.match(node)
    return found[1] if found else b""


def _kind(node: bytes | msgspec.Raw) -> str:
    return {b"{": "an object", b"[": "an array", b'"': "a string", b"n": "null"}.get(_first(node), "a value")


def _decode(decoder: msgspec.json.Decoder[Any], node: bytes | msgspec.Raw, data: bytes, place: str) -> Any:
    try:
        return decoder.decode(node)
    except RecursionError as error:
        raise Invalid(
            "JSON nested too deeply to be read", rule="read-json-depth", hint="no record is like that", place=place
        ) from error
    except msgspec.DecodeError as error:
        at = _AT.search(str(error))
        what = str(error)[: at.start()] if at else str(error)
        if at is not None and place and node is data:
            place = f"{place}:{newlines(data, int(at[1])) + 1}"
        raise Invalid(f"not JSON: {what}", rule="read-json", hint=_STRUCTURE, place=place) from error
