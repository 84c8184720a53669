"""Reads Parquet files of sources: columns as slices can hold them, and the rows of a range.

A file may be cut between row groups, as its footer says: a group belongs to the range in which it begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

from chain.data.footer import UNREADABLE, ParquetFooter, RowGroup
from chain.data.parquet import SliceFile, open_slice
from chain.data.uuids import is_marked
from chain.errors import Invalid
from chain.wording import a, listed
from engines.spark.ingest.encodings import BEGIN, PARQUET, found_kind
from engines.spark.ingest.json_text import JsonTable
from engines.spark.ingest.ranges import TARGET, Range
from engines.spark.ingest.text_columns import (
    Misfit,
    check_once,
    check_present,
    instant_type,
    misfit_fault,
    type_name,
)

MOST: Final = 64
"""Ranges of a file: the footer is read for each. A long one takes no more memory."""
_MARKS: Final = 8
"""Bytes for whether a value is there, and for where it begins."""


def parquet_ranges(footer: ParquetFooter, size: int, target: int = TARGET) -> list[Range]:
    """Returns ranges of a file of ``size`` bytes that cover it; the rows of each take about ``target`` bytes, or are of
    one group. A file whose groups do not begin one after another is one range.
    """
    starts = _starts(footer, size)
    if starts is None:
        return [Range(0, size)]
    each = [_bytes(group) for group in footer.groups]
    target = max(target, sum(each) // MOST)
    cuts, held = [0], 0
    for start, own in zip(starts, each, strict=True):
        if held and held + own > target:
            cuts.append(start)
            held = 0
        held += own
    return list(itertools.starmap(Range, itertools.pairwise([*cuts, size])))


def groups_of(footer: ParquetFooter, span: Range, size: int) -> range:
    """Returns the row groups of a range that ``parquet_ranges`` gives."""
    starts = _starts(footer, size)
    if starts is None:
        return range(len(footer.groups))
    found = [group for group, start in enumerate(starts) if span.start <= start < span.stop]
    return range(found[0], found[-1] + 1) if found else range(0)


def decoded_bytes(footer: ParquetFooter, groups: range) -> int:
    """Estimates the bytes of these groups' rows in memory, without what texts take that come again and again."""
    return sum(_bytes(footer.groups[group]) for group in groups)


def _starts(footer: ParquetFooter, size: int) -> list[int] | None:
    """Returns where each row group begins, or ``None`` if these do not rise within the file."""
    if not footer.leaves:
        return None
    firsts = [group.chunks[0] for group in footer.groups]
    starts = [first.data_page if first.dictionary_page is None else first.dictionary_page for first in firsts]
    return starts if all(a < b for a, b in itertools.pairwise([-1, *starts, size])) else None


def _bytes(group: RowGroup) -> int:
    return sum(max(0, chunk.opened_size) + max(0, chunk.values) * _MARKS for chunk in group.chunks)


MAX_DECIMAL128: Final = 38
"""Most digits of a decimal with 128 bits."""


def footer(path: Path, name: str) -> ParquetFooter:
    """Raises Invalid for a file that is no Parquet."""
    with _open(path, name) as file:
        return file.footer


def describe_file(path: Path, name: str) -> tuple[ParquetFooter, pa.Schema]:
    """Returns the footer of a file, and its columns with types that slices can hold. Raises Invalid."""
    with _open(path, name) as file:
        check_once(file.schema, name)
        columns = [
            field if is_marked(field) else field.with_type(_plain(field.type)).remove_metadata()
            for field in file.schema
        ]
        return file.footer, pa.schema(columns)


def estimate_decoded(path: Path, name: str, span: Range) -> int:
    """Estimates the bytes that the rows of a range take in memory. Raises Invalid."""
    own = footer(path, name)
    return decoded_bytes(own, groups_of(own, span, path.stat().st_size))


def before(path: Path, name: str, span: Range) -> int:
    """Counts the rows before those of a range. Raises Invalid."""
    own = footer(path, name)
    return sum(group.rows for group in own.groups[: groups_of(own, span, path.stat().st_size).start])


def batches(path: Path, name: str, span: Range, schema: pa.Schema) -> Iterator[JsonTable]:
    """Yields the rows of a range, some at a time in bounded memory, in the types of ``schema``.

    Columns that it does not name are counted as unknown.
    Raises Invalid for a file that is no Parquet, or has other columns or values.
    """
    first = 0
    with _open(path, name) as file:
        check_once(file.schema, name)
        wanted, there = dict.fromkeys(schema.names), dict.fromkeys(file.schema.names)
        if missing := next((column for column in wanted if column not in there), None):
            raise Invalid(
                f"no column {missing!r}",
                rule="read-columns",
                hint=f"the file has {listed(list(there))}",
                place=name,
            )
        others = [column for column in there if column not in wanted]
        groups = groups_of(file.footer, span, path.stat().st_size)
        for batch in file.batches(columns=schema.names, groups=groups):
            table = pa.Table.from_batches([batch])
            columns = [_convert(table.column(field.name), field, path, name, span, first) for field in schema]
            yield JsonTable(pa.Table.from_arrays(columns, schema=schema), dict.fromkeys(others, batch.num_rows))
            first += batch.num_rows


@contextmanager
def _open(path: Path, name: str) -> Iterator[SliceFile]:
    """Opens a file; what is wrong with it is told as of a source. Raises Invalid, Environment."""
    try:
        with open_slice(path) as file:
            yield file
    except Invalid as error:
        if error.rule == UNREADABLE:
            raise _no_parquet(path, name, error) from error
        if error.rule == "slice-footprint":
            raise Invalid(error.message, rule="read-parquet", hint=error.hint, place=name) from error
        raise


def _convert(
    column: pa.ChunkedArray, field: pa.Field, path: Path, name: str, span: Range, first: int
) -> pa.ChunkedArray:
    """Converts values of the rows from ``first`` on of a range. Raises Invalid."""
    try:
        check_present(column, field)
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(field.type):
            raise _too_fine(name, column.type, field) from error
        raise misfit_fault(name, field.name, field.type, str(error)) from error
    except Misfit as misfit:
        place = f"{name}: row {before(path, name, span) + first + misfit.row + 1}"
        raise misfit_fault(place, field.name, field.type, misfit.value) from misfit


def _no_parquet(path: Path, name: str, error: Invalid) -> Invalid:
    with path.open("rb") as file:
        found = found_kind(file.read(BEGIN))
    if found is not None and found[0] != PARQUET:
        return Invalid(f"this is {found[0]}, and not Parquet", rule="read-kind-of-file", hint=found[1], place=name)
    reason = error.message.partition("Parquet file: ")[2] or error.message
    return Invalid(
        f"not a readable Parquet file: {reason}",
        rule="read-parquet",
        hint="check that the file is complete",
        place=name,
    )


def _plain(type_: pa.DataType) -> pa.DataType:
    """Returns the type without encodings that are no logical types: dictionaries, views, large offsets;
    times are instants."""
    if pa.types.is_dictionary(type_):
        return _plain(type_.value_type)
    if pa.types.is_timestamp(type_):
        return instant_type(type_)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_date(type_):
        return pa.date32()
    if pa.types.is_decimal(type_) and type_.precision <= MAX_DECIMAL128:
        return pa.decimal128(type_.precision, type_.scale)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(type_.value_field.with_type(_plain(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_plain(field.type)).remove_metadata() for field in type_])
    return pa.binary() if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_) else type_


def _too_fine(place: str, kind: pa.DataType, declared: pa.Field) -> Invalid:
    unit = {"us": "Microsecond", "ns": "Nanosecond"}.get(kind.unit, "Millisecond")
    return Invalid(
        f"column {declared.name!r} is declared {a(type_name(declared.type))}, and the file holds finer times",
        rule="exact-times",
        hint=f"declare it in `schema` as {{kind: Timestamp, unit: {unit}}}, which keeps all digits",
        place=place,
    )
