"""``data``: shows slice files with their ODF types, and computes both of their hashes."""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import math
import uuid
from pathlib import Path
from typing import Any, Final

from chain import instant
from chain.digits import read_whole
from chain.errors import Invalid
from chain.model.schema import Option
from chain.multihash import Multihash
from chain.store.files import disk
from odfd.cli import formatting
from odfd.cli.command import Commands, argument
from odfd.cli.offline import files
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, fields, paragraphs, render

_SAFE: Final = 1 << 53
"""Integers beyond this are written as text, since readers of JSON round them."""


commands = Commands()
data = commands.group(
    "data",
    description="Slices of data as files (†: no daemon needed).",
    example="hash ./flights/data/f1620…\nshow part.parquet -n 20",
)


def _count(text: str) -> int:
    number = read_whole(text)
    if number is None or number > 10_000:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number from 0 to 10000")
    return number


@data.add(
    "hash",
    argument("file", metavar="FILE.parquet"),
    help="print both hashes of a slice",
    description="The physical hash names the file's bytes, the logical hash its rows, however they are encoded.",
    example="part.parquet -o json",
)
def _hash(session: Session, args: argparse.Namespace) -> None:
    from chain.data.logical_hash import logical_hash_file
    from chain.data.parquet import open_slice

    path = files.existing(args.file)
    with open_slice(path) as source:
        records = source.rows
    answer = {
        "physicalHash": str(_physical_hash(path)),
        "logicalHash": str(logical_hash_file(path)),
        "size": path.stat().st_size,
        "records": records,
    }
    session.show(answer, _hash_text)


def _physical_hash(path: Path) -> Multihash:
    with disk(path), path.open("rb") as file:
        return Multihash.sha3_256_of(file)


def _hash_text(answer: dict[str, Any]) -> str:
    return fields(
        [
            ("physical", answer["physicalHash"]),
            ("logical", answer["logicalHash"]),
            ("size", f"{answer['size']:,} bytes"),
            ("records", f"{answer['records']:,}"),
        ]
    )


@data.add(
    "show",
    argument("file", metavar="FILE.parquet"),
    argument("-n", "--rows", type=_count, default=10, metavar="N", help="number of rows (10)"),
    help="print columns and first rows of a slice",
    example="part.parquet -n 20",
)
def _show(session: Session, args: argparse.Namespace) -> None:
    from chain.data.arrow_schema import from_arrow
    from chain.data.ddl import spell_field
    from chain.data.parquet import open_slice
    from chain.data.uuids import named_all

    path = files.existing(args.file)
    with open_slice(path) as source:
        schema, stats = from_arrow(source.schema), source.stats()
        batch = next(source.batches(rows=max(args.rows, 1)), None)
        shown = None if batch is None else batch.slice(0, args.rows).cast(named_all(batch.schema))
        columns = [] if shown is None else [_values(column) for column in shown.columns]
        answer = {
            "records": source.rows,
            "size": path.stat().st_size,
            "rowGroups": len(source.row_groups),
            "offsets": None if stats.offsets is None else {"start": stats.offsets[0], "end": stats.offsets[1]},
            "eventTimes": None if stats.event_times is None else _ends(stats.event_times),
            "columns": [
                {
                    "name": field.name,
                    "type": spell_field(field).removesuffix("?"),
                    "optional": isinstance(field.type, Option),
                }
                for field in schema.fields
            ],
            "rows": [[_cell(value) for value in row] for row in zip(*columns, strict=True)],
        }
    session.show(answer, _show_text)


def _ends(times: tuple[instant.Instant, instant.Instant]) -> dict[str, str]:
    return {"min": instant.render(times[0]), "max": instant.render(times[1])}


def _values(column: Any) -> list[Any]:
    """Returns a column's values; times that Python's calendar or zones do not cover become UTC texts."""
    try:
        values: list[Any] = column.to_pylist()
    except (ArithmeticError, LookupError, ValueError):
        return [_far(value) for value in column]
    return values


def _far(value: Any) -> str | None:
    from chain.data.parquet import to_instant

    if not value.is_valid:
        return None
    try:
        return instant.render(to_instant(value.value, value.type))
    except (AttributeError, Invalid):
        return f"a value of {value.type} that cannot be shown"


def _cell(value: Any) -> Any:
    """Returns a value for JSON: decimals, times, bytes, integers beyond 2^53, NaN and infinities as text."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if abs(value) <= _SAFE else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dt.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return value.hex()
        case dict():
            return {str(name): _cell(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_cell(inner) for inner in value]
        case decimal.Decimal() | dt.timedelta() | uuid.UUID():
            return str(value)
    raise Invalid(f"a value of {type(value).__name__} cannot be shown", rule="value-type")


def _show_text(answer: dict[str, Any]) -> str:
    offsets, times = answer["offsets"], answer["eventTimes"]
    facts = fields(
        [
            ("records", f"{answer['records']:,}"),
            ("size", f"{answer['size']:,} bytes in {formatting.plural(answer['rowGroups'], 'row group')}"),
            ("offsets", f"{offsets['start']:,} to {offsets['end']:,}" if offsets else ""),
            ("event time", f"{times['min']} to {times['max']}" if times else ""),
        ]
    )
    columns: list[TableColumn[dict[str, Any]]] = [
        TableColumn("COLUMN", lambda one: one["name"]),
        TableColumn("TYPE", lambda one: one["type"] + ("?" if one["optional"] else "")),
    ]
    parts = [facts, render(columns, answer["columns"])]
    if answer["rows"]:
        names = [one["name"] for one in answer["columns"]]
        cells = [TableColumn(name, _reader(place), right=_is_number(answer, place)) for place, name in enumerate(names)]
        parts.append(render(cells, answer["rows"]))
    return paragraphs(parts)


def _reader(place: int) -> Any:
    return lambda row: "-" if row[place] is None else str(row[place])


def _is_number(answer: dict[str, Any], place: int) -> bool:
    return all(isinstance(row[place], int | float | None) for row in answer["rows"])
