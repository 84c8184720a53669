"""Converts an Avro container to Parquet: keeps all types exactly, or refuses the column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro.types import Schema

from chain.errors import Invalid
from chain.wording import a
from engines.spark.ingest.foreign.job import RULE, Conversion

BATCH: Final = 10_000
_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "uuid": pa.string(),
}
_MAX_DIGITS: Final = 38
_DEPTH: Final = 32


def avro_to_parquet(job: Conversion) -> None:
    """Converts the file. Raises Invalid."""
    try:
        with job.source.open("rb") as file:
            reader = fastavro.reader(file)
            written = reader.writer_schema
            columns = _columns(written, job.name)
            _write(iter(reader), columns, job)
    except (ValueError, EOFError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise Invalid(
            f"not an Avro container that can be read: {error}",
            rule=RULE,
            hint="check that the file is complete. Codecs null, deflate, bzip2 and xz are read",
            place=job.name,
        ) from error


def _write(records: Iterator[Any], columns: pa.Schema, job: Conversion) -> None:
    done = 0
    with pq.ParquetWriter(job.target, columns, compression="zstd", use_dictionary=False) as out:
        while batch := list(islice(records, BATCH)):
            try:
                out.write_table(pa.Table.from_pylist([_texts(each) for each in batch], columns))
            except pa.ArrowException as error:
                raise Invalid(
                    f"records from {done + 1} on: {error}", rule="read-value", hint="repair them", place=job.name
                ) from error
            done += len(batch)


def _texts(record: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if type(value).__name__ == "UUID" else value for name, value in record.items()}


def _columns(schema: Schema, place: str) -> pa.Schema:
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise Invalid(
            "no records: its schema is no record", rule=RULE, hint="check that it is the right file", place=place
        )
    fields = []
    for field in schema["fields"]:
        kind = _kind(field["type"], 0)
        if kind is None:
            raise Invalid(
                f"column {field['name']!r} is {a(_type_name(field['type']))}, which no dataset holds without loss",
                rule="column-type",
                hint="leave the column out, or write it as a text, where the file is written",
                place=place,
            )
        fields.append(pa.field(field["name"], *kind))
    return pa.schema(fields)


def _kind(schema: Any, depth: int) -> tuple[pa.DataType, bool] | None:
    """Returns the type, and whether it may be null; ``None`` for a type that we do not have."""
    if depth > _DEPTH:
        return None
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        found = _kind(others[0], depth + 1) if len(others) == 1 else None
        return None if found is None else (found[0], "null" in schema or found[1])
    if isinstance(schema, str):
        return (_PLAIN[schema], False) if schema in _PLAIN else None
    found_type = _complex(schema, depth)
    return None if found_type is None else (found_type, False)


def _complex(schema: dict[str, Any], depth: int) -> pa.DataType | None:
    logical, kind = schema.get("logicalType"), schema["type"]
    if logical == "decimal":
        digits = schema.get("precision", _MAX_DIGITS + 1)
        return pa.decimal128(digits, schema.get("scale", 0)) if digits <= _MAX_DIGITS else None
    if logical is not None:
        return _LOGICAL.get(logical)
    match kind:
        case "enum":
            return pa.string()
        case "fixed":
            return pa.binary(schema["size"])
        case "array":
            item = _kind(schema["items"], depth + 1)
            return None if item is None else pa.list_(pa.field("item", *item))
        case "record":
            parts = [(field["name"], _kind(field["type"], depth + 1)) for field in schema["fields"]]
            known = [pa.field(name, *part) for name, part in parts if part is not None]
            return pa.struct(known) if len(known) == len(parts) else None
    plain = _kind(kind, depth + 1) if kind != "map" else None
    return None if plain is None else plain[0]


def _type_name(schema: Any) -> str:
    if isinstance(schema, dict):
        return str(schema.get("logicalType") or schema.get("type"))
    return "union of " + ", ".join(map(_type_name, schema)) if isinstance(schema, list) else str(schema)
