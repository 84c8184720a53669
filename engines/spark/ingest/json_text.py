"""JSON texts to rows of exact types: one object per line, an array in a document, GeoJSON features.

Pure over bytes. Lines are parsed by pyarrow.json; documents are few and small by limit, taken apart by msgspec and
given to the same parser as lines, so that there is one place where JSON becomes columns.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.json as pa_json

from chain.errors import Invalid
from engines.spark.ingest.texts import Misfit, check_present, converted, misfit_fault, to_dates, to_instants, type_name

INFER_ROWS: Final = 1000
MAX_DOCUMENT: Final = 256 << 20
"""Bytes of a document that must be parsed in one piece."""
_ROW: Final = re.compile(r"\A(?:JSON parse error: )?(.*?)(?: in row (\d+))?\Z", re.DOTALL)


def guess_json(data: bytes, place: str) -> pa.Schema:
    """Types from the first lines of ``data``, columns in order of first appearance. Raises Invalid."""
    lines = [line for line in data.split(b"\n", INFER_ROWS)[:INFER_ROWS] if line.strip()]
    if not lines:
        return pa.schema([])
    table = _read(b"\n".join(lines), None, place, 0)
    return pa.schema([(field.name, _plain(field.type)) for field in table.schema])


def _plain(type_: pa.DataType) -> pa.DataType:
    """pyarrow takes some texts for times; the reference leaves them texts. A column of nulls is text."""
    if pa.types.is_temporal(type_) or pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_plain(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(child.name, _plain(child.type)) for child in type_])
    return type_


def parse_json_lines(data: bytes, schema: pa.Schema, place: str, lines_before: int = 0) -> pa.Table:
    """Objects, one a line, as a table of ``schema``: absent fields are null, unknown ones are passed over."""
    if not data.strip():
        return schema.empty_table()
    table = _read(data, pa.schema([(field.name, _read_as(field.type)) for field in schema]), place, lines_before)
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            check_present(column, field)
            columns.append(_typed(column, field.type))
        except Misfit as misfit:
            line = lines_before + line_of_row(data, misfit.row)
            raise misfit_fault(f"{place}:{line}", field.name, field.type, misfit.value) from misfit
    out = pa.schema([field.with_type(column.type) for field, column in zip(schema, columns, strict=True)])
    return pa.Table.from_arrays(columns, schema=out)


def _read_as(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_) or pa.types.is_binary(type_):
        return pa.string()
    return pa.float32() if pa.types.is_float16(type_) else type_


def _typed(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_timestamp(type_):
        return to_instants(column, type_)
    if pa.types.is_date(type_):
        return to_dates(column)
    return converted(column, lambda part: part.cast(type_))


def _read(data: bytes, schema: pa.Schema | None, place: str, lines_before: int) -> pa.Table:
    try:
        return pa_json.read_json(
            pa.BufferReader(data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        match = _ROW.match(str(error))
        what = match[1] if match else str(error)
        line = f":{lines_before + line_of_row(data, int(match[2]))}" if match and match[2] else ""
        wanted = ", ".join(f"{field.name} {type_name(field.type)}" for field in schema) if schema else ""
        raise Invalid(
            f"not the JSON expected: {what}",
            rule="read-json",
            hint=f"the schema reads {wanted}" if wanted else "one JSON object per line is expected",
            place=f"{place}{line}",
        ) from error


def line_of_row(data: bytes, row: int) -> int:
    """Line, from 1, of record ``row`` (from 0; empty lines are no records). Only for messages."""
    seen = -1
    for number, line in enumerate(data.split(b"\n"), 1):
        seen += bool(line.strip())
        if seen == row:
            return number
    return 1


def array_lines(data: bytes, sub_path: str | None, place: str) -> bytes:
    """The objects of the array at dotted ``sub_path`` of one JSON document, as lines. Raises Invalid."""
    node = _document(data, place)
    walked = "$"
    for step in sub_path.split(".") if sub_path else ():
        if not isinstance(node, dict) or step not in node:
            keys = ", ".join(sorted(node)[:10]) if isinstance(node, dict) else type(node).__name__
            raise Invalid(f"no {step!r} at {walked}", rule="read-sub-path", hint=f"there is: {keys}", place=place)
        node, walked = node[step], f"{walked}.{step}"
    if not isinstance(node, list):
        raise Invalid(
            f"{walked} is not an array", rule="read-json", hint="name the array of records with subPath", place=place
        )
    return b"\n".join(msgspec.json.encode(item) for item in node)


def feature_lines(data: bytes, place: str) -> bytes:
    """Features of one GeoJSON FeatureCollection as lines: properties beside ``geometry``, which is JSON text."""
    document = _document(data, place)
    features = document.get("features") if isinstance(document, dict) else None
    if not isinstance(features, list):
        raise Invalid("not a FeatureCollection: it has no array 'features'", rule="read-geojson", place=place)
    return b"\n".join(_flat(feature, place) for feature in features)


def feature_per_line(data: bytes, place: str) -> bytes:
    """GeoJSON features, one a line, in the form of ``feature_lines``; empty lines stay, so that lines keep numbers."""
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        rows.append(_flat(_document(line, f"{place}:{number}"), f"{place}:{number}") if line.strip() else b"")
    return b"\n".join(rows)


def _flat(feature: object, place: str) -> bytes:
    if not isinstance(feature, dict) or feature.get("type") != "Feature":
        raise Invalid("not a GeoJSON Feature", rule="read-geojson", place=place)
    properties = feature.get("properties") or {}
    geometry = msgspec.json.encode(feature.get("geometry"), order="sorted").decode()
    return msgspec.json.encode({**properties, "geometry": geometry}, order="sorted")


def _document(data: bytes, place: str) -> object:
    if len(data) > MAX_DOCUMENT:
        raise Invalid(
            f"a JSON document of {len(data) >> 20} MiB",
            rule="read-document-size",
            hint=f"at most {MAX_DOCUMENT >> 20} MiB in one piece; give one object per line (NdJson) instead",
            place=place,
        )
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise Invalid(f"not JSON: {error}", rule="read-json", place=place) from error
