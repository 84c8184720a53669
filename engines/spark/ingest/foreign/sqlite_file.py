"""Converts SQLite tables to lines of JSON, and GeoPackage layers to GeoJSON. Read only; runs nothing
that is in the file."""

from __future__ import annotations

import math
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import msgspec

from chain.errors import Invalid
from engines.spark.ingest.foreign.job import RULE, Conversion, one_of

_LENGTH: Final = 64 << 20
"""Most bytes of one value."""
_ENVELOPES: Final = (0, 32, 48, 48, 64)
"""Bytes of the envelope of a geometry, by its indicator."""
_SIMPLE: Final = {1: "Point", 2: "LineString", 3: "Polygon"}
_MANY: Final = {4: "MultiPoint", 5: "MultiLineString", 6: "MultiPolygon"}
_COLLECTION: Final = 7
_DEPTH: Final = 16
_WGS84: Final = frozenset({4326, 0, -1})
_LITTLE_ENDIAN_BIT, _EMPTY_BIT = 0x01, 0x10


def opened_base(job: Conversion) -> sqlite3.Connection:
    """Opens the database read only. Raises sqlite3.Error."""
    base = sqlite3.connect(f"file:{job.path}?mode=ro&immutable=1", uri=True)
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH)
    base.execute("PRAGMA trusted_schema = OFF")
    base.execute("PRAGMA cell_size_check = ON")
    return base


def all_rows(base: sqlite3.Connection, table: str) -> tuple[list[str], Iterator[tuple[object, ...]]]:
    """Returns the names of a table's columns, and its rows in the order of the file."""
    quoted = table.replace('"', '""')
    rows = base.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608  a name that the file has, quoted
    return [each[0] for each in rows.description], rows


def check_plain(values: Mapping[str, object], place: str) -> None:
    """Raises Invalid for a value that JSON cannot hold."""
    for name, value in values.items():
        lost = "bytes" if isinstance(value, bytes) else ""
        if isinstance(value, float) and not math.isfinite(value):
            lost = str(value)
        if lost:
            raise Invalid(
                f"column {name!r} holds {lost}, which JSON does not",
                rule="column-type",
                hint="leave the column out, or write it as a text, where the file is written",
                place=place,
            )


def table_text(job: Conversion) -> Iterator[bytes]:
    """Yields the rows of a table as lines of JSON. Raises Invalid."""
    try:
        with closing(opened_base(job)) as base:
            listed = base.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
            )
            tables = sorted(name for (name,) in listed)
            names, rows = all_rows(base, one_of(job.options.table, tables, "table", "table", job.name))
            for number, row in enumerate(rows, 1):
                values = dict(zip(names, row, strict=True))
                check_plain(values, f"{job.name}:{number}")
                yield msgspec.json.encode(values) + b"\n"
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        raise Invalid(
            f"not an SQLite database that can be read: {error}",
            rule=RULE,
            hint="is the whole file there, and were its changes written out of the log (-wal)?",
            place=job.name,
        ) from error


def layer_text(job: Conversion) -> Iterator[bytes]:
    """Yields the features of a layer as lines of GeoJSON. Raises Invalid."""
    try:
        with closing(opened_base(job)) as base:
            yield from _features(base, job)
    except (sqlite3.Error, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise Invalid(
            f"not a GeoPackage that can be read: {error}",
            rule=RULE,
            hint="check that the file is complete",
            place=job.name,
        ) from error


def _features(base: sqlite3.Connection, job: Conversion) -> Iterator[bytes]:
    kinds = dict(base.execute("SELECT table_name, data_type FROM gpkg_contents"))
    layers = sorted(name for name, kind in kinds.items() if kind in ("features", "attributes"))
    layer = one_of(job.options.layer or job.sub_path, layers, "layer", "layer", job.name)
    shapes = dict(base.execute("SELECT column_name, srs_id FROM gpkg_geometry_columns WHERE table_name = ?", (layer,)))
    column = next(iter(shapes), None)
    crs = None if column is None else _crs(base, shapes[column])
    names, rows = all_rows(base, layer)
    for number, row in enumerate(rows, 1):
        values = dict(zip(names, row, strict=True))
        geometry = None if column is None else _geometry(values.pop(column))
        if geometry is not None and crs is not None:
            geometry["crs"] = {"type": "name", "properties": {"name": crs}}
        check_plain(values, f"{job.name}:{number}")
        yield msgspec.json.encode({"type": "Feature", "geometry": geometry, "properties": values}) + b"\n"


def _crs(base: sqlite3.Connection, srs: int) -> str | None:
    """Returns a name like ``EPSG:3857``; ``None`` for WGS 84, and if none is declared."""
    if srs in _WGS84:
        return None
    said = "SELECT organization, organization_coordsys_id FROM gpkg_spatial_ref_sys WHERE srs_id = ?"
    found = base.execute(said, (srs,)).fetchone()
    return f"SRS:{srs}" if found is None else f"{str(found[0]).upper()}:{found[1]}"


def _geometry(blob: object) -> dict[str, Any] | None:
    """Reads the binary form of a GeoPackage's geometry: a header, then well-known binary."""
    if not isinstance(blob, bytes) or blob[:2] != b"GP":
        if blob is None:
            return None
        raise sqlite3.DataError("a geometry that is none")
    flags = blob[3]
    if flags & _EMPTY_BIT:
        return None
    envelope = (flags >> 1) & 7
    if envelope >= len(_ENVELOPES):
        raise sqlite3.DataError("a geometry with an unknown envelope")
    return _Binary(blob, 8 + _ENVELOPES[envelope]).shape(0)


class _Binary:
    """Well-known binary, read from front to back."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def _take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return values

    def shape(self, depth: int) -> dict[str, Any]:
        if depth > _DEPTH:
            raise sqlite3.DataError("a geometry of too many levels")
        order = "<" if self._take("B")[0] & _LITTLE_ENDIAN_BIT else ">"
        (code,) = self._take(f"{order}I")
        high, kind = (code >> 28) & 0xF, code & 0x0FFFFFFF
        kind, plane = kind % 1000, kind // 1000
        has_z = bool(high & 8) or plane in (1, 3)
        has_m = bool(high & 4) or plane in (2, 3)
        size = 2 + has_z + has_m
        if kind in _SIMPLE:
            return {"type": _SIMPLE[kind], "coordinates": self._coordinates(order, kind, size, 2 + has_z)}
        if kind not in _MANY and kind != _COLLECTION:
            raise sqlite3.DataError(f"a geometry of kind {kind}, which GeoJSON has not")
        parts = [self.shape(depth + 1) for _ in range(self._count(order, 5))]
        if kind == _COLLECTION:
            return {"type": "GeometryCollection", "geometries": parts}
        return {"type": _MANY[kind], "coordinates": [part["coordinates"] for part in parts]}

    def _coordinates(self, order: str, kind: int, size: int, kept: int) -> Any:
        if kind == 1:
            return list(self._take(f"{order}{size}d"))[:kept]
        if kind == 2:
            return [list(self._take(f"{order}{size}d"))[:kept] for _ in range(self._count(order, 8 * size))]
        return [self._coordinates(order, 2, size, kept) for _ in range(self._count(order, 4))]

    def _count(self, order: str, least: int) -> int:
        (count,) = self._take(f"{order}I")
        if count * least > len(self._data) - self._at:
            raise sqlite3.DataError("a geometry that ends too early")
        return int(count)
