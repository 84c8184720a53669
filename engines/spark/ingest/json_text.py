"""Parses JSON objects to rows of exact types with pyarrow.json: the one place where JSON becomes columns.

Pure over bytes. A number is converted from its digits to the type of its column: no decimal passes through a double.
Fields that the schema does not name are skipped and counted.

Types of objects that have no schema are inferred from the first of them. Guessing must not lose a digit: whole numbers
beyond 64 bits become Decimals, and a value that a column cannot hold exactly is refused, naming the line. Texts stay
texts, even if they look like times, as in the reference.

pyarrow demands a required field even of a struct that is absent. So the fields are read as optional, and their presence
is checked where the struct is present. Where it is absent, they get a value that is never read: Arrow and Parquet need
one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from chain.data.uuids import is_marked, named
from chain.errors import Invalid
from chain.wording import a, agree, listed
from engines.spark.ingest.records import JsonRecords
from engines.spark.ingest.text_columns import (
    Misfit,
    RowFault,
    check_present,
    check_size,
    check_utf8,
    convert_column,
    misfit_fault,
    text_of,
    to_dates,
    to_instants,
    to_uuids,
    type_name,
)

REFUSED: Final = "a required field was null"
"""Part of pyarrow's message for this refusal."""


def needs_loosening(schema: pa.Schema) -> bool:
    """Whether the schema has a nullable struct with a field that is not nullable."""
    return any(_is_strict(field, may_be_null=False) for field in schema)


def _is_strict(field: pa.Field, *, may_be_null: bool) -> bool:
    if not pa.types.is_struct(field.type):
        return may_be_null and not field.nullable
    if may_be_null and not field.nullable:
        return True
    return any(_is_strict(inner, may_be_null=may_be_null or field.nullable) for inner in field.type.fields)


def loosen(schema: pa.Schema) -> pa.Schema:
    """Makes all fields within structs optional."""
    return pa.schema([field.with_type(_loose(field.type)) for field in schema])


def _loose(type_: pa.DataType) -> pa.DataType:
    if not pa.types.is_struct(type_):
        return type_
    return pa.struct([field.with_type(_loose(field.type)).with_nullable(True) for field in type_.fields])


def first_missing(table: pa.Table, schema: pa.Schema) -> int | None:
    """Returns the number of the first row with a struct that lacks a required field; ``None`` if there is none."""
    rows, there = [], set(table.column_names)
    for field in schema:
        if pa.types.is_struct(field.type) and field.name in there:
            column = table.column(field.name).combine_chunks()
            rows += _missing(column, field.type)
    return min(rows, default=None)


def _missing(column: pa.StructArray, type_: pa.DataType) -> list[int]:
    """Returns for each field that is missing somewhere the first row where it is."""
    found = []
    for number, field in enumerate(type_.fields):
        inner = pc.struct_field(column, number)  # null where the struct is
        if not field.nullable:
            absent = pc.and_(column.is_valid(), inner.is_null())
            found += [pc.index(absent, True).as_py()] if pc.any(absent).as_py() else []
        if pa.types.is_struct(field.type):
            found += _missing(inner, field.type)
    return found


def tighten(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Converts the columns to the types of the schema, after ``first_missing`` found none."""
    columns, fields = [], []
    for field in table.schema:
        column, number = table.column(field.name), schema.get_field_index(field.name)
        if number >= 0 and pa.types.is_struct(field.type):
            field = schema.field(number)
            column = _tight(column.combine_chunks(), field.type)
        columns.append(column)
        fields.append(field)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _tight(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(type_):
        return column
    inner = []
    for number, field in enumerate(type_.fields):
        values = _tight(pc.struct_field(column, number), field.type)
        inner.append(values if field.nullable else _fill(values))
    return pa.StructArray.from_arrays(inner, fields=list(type_.fields), mask=column.is_null())


def _fill(values: pa.Array) -> pa.Array:
    if not values.null_count:
        return values
    if pa.types.is_struct(values.type):
        fields = list(values.type.fields)
        inner = [values.field(number) for number in range(len(fields))]
        return pa.StructArray.from_arrays(
            [each if field.nullable else _fill(each) for each, field in zip(inner, fields, strict=True)],
            fields=fields,
        )
    return pc.coalesce(values, _zero(values.type))


def _zero(type_: pa.DataType) -> pa.Scalar:
    """Returns a value of a type, empty or 0."""
    if pa.types.is_nested(type_):
        return pa.scalar([], type_)
    zeros = pa.py_buffer(bytes(64))
    more = [pa.py_buffer(b"")] if type_.num_buffers > 2 else []
    return pa.Array.from_buffers(type_, 1, [None, zeros, *more])[0]


_TEXT: Final = rb'"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"?+'
_IN_TEXT: Final = re.compile(_TEXT)
_HAS_POWER: Final = re.compile(rb"[0-9][eE][+-]?[0-9]")


def _up_to(number: bytes) -> bytes:
    """Matches all before the next such number outside of texts, or all that is left.

    Texts are skipped inside of one match: Python computes the replacement of each match, which took ten times as long
    as to look for numbers when each text was a match of its own.
    """
    return rb"((?:" + _TEXT + rb"|[^\"\w.+-]++|(?!" + number + rb"(?![\w.+-]))[\w.+-]++)*+)"


_ZEROS: Final = rb"-?[0-9]++\.0++"
_POWER: Final = rb"-?[0-9]{1,400}+(?:\.[0-9]{1,400}+)?[eE][+-]?[0-9]{1,4}+"
_WITH_ZEROS: Final = re.compile(_up_to(_ZEROS) + rb"(?:(-?[0-9]++)\.0++)?+")
_WITH_POWER: Final = re.compile(_up_to(_POWER) + rb"(" + _POWER + rb")?+")
_MAX_DIGITS: Final = 38
"""Most digits in a column of whole numbers or Decimals."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+|[{\[]|[}\]]|[^\s{}\[\]"]++', re.DOTALL)
_NULL_FIRST: Final = re.compile(rb"\s*+null")
_NULL_BEHIND: Final = re.compile(rb"}\s*+null")
"""Matches a null that may be a record: inside a record none follows a brace, except in a text."""


def with_whole_numbers(text: bytes) -> bytes:
    """Rewrites numbers with whole values without point and exponent."""
    text = _WITH_ZEROS.sub(rb"\1\2", text)
    if _HAS_POWER.search(text) is None or _HAS_POWER.search(_IN_TEXT.sub(b"", text)) is None:
        return text
    return _WITH_POWER.sub(_plain, text)


def _plain(found: re.Match[bytes]) -> bytes:
    """Returns a number without point and exponent, if it is whole and a column may hold it; else the unchanged text."""
    if found[2] is None:
        return found[0]
    value = Decimal(found[2].decode())
    if value.adjusted() >= _MAX_DIGITS or value != value.to_integral_value():
        return found[0]
    return b"%b%d" % (found[1], int(value))


_CHUNK: Final = 1 << 20
"""Bytes in which fields are counted at a time."""
_ROW: Final = re.compile(r"\A(?:JSON parse error: )?(.*?)(?: in row (\d+))?\Z", re.DOTALL)
_CHANGED: Final = re.compile(r"Column\(/?(.*)\) changed from (\w+) to (\w+)")
_VALUE: Final = re.compile(r"couldn't parse:(.*)\Z", re.DOTALL)
_NULL: Final = "Column() changed from object to null"
_UNEXPECTED: Final = "unexpected field"
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonTable(NamedTuple):
    """A table of JSON records; ``unknown``: fields that the schema lacks, with the number of records.

    ``matches``: whether a field of any record is in the schema, as far as that is known.
    """

    table: pa.Table
    unknown: Mapping[str, int]
    matches: bool = True


class _Unknown(Exception):
    """Raised if a record has a field that the schema does not name."""


class _Refused(Exception):
    """Raised for a text that the parser refuses; with the number of the record (from 0) if it says so."""

    def __init__(self, what: str, row: int | None) -> None:
        super().__init__(what, row)
        self.what = what
        self.row = row


def parse_json(records: JsonRecords, schema: pa.Schema, place: str) -> JsonTable:
    """Returns rows of ``schema``; absent fields are null. Raises Invalid, naming the line."""
    if not records.text.strip():
        return JsonTable(schema.empty_table(), {})
    check_utf8(records.text, place)
    wanted = pa.schema([(field.name, pa.string() if is_marked(field) else _read_as(field.type)) for field in schema])
    unknown: Mapping[str, int] = {}
    matches = True
    try:
        table = read_objects(records, wanted, place, "error", schema)
    except _Unknown:
        table = read_objects(records, wanted, place, "ignore", schema)
        unknown, matches = _count_unknown(records.text, schema)
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            check_present(column, field)
            columns.append(to_uuids(column) if is_marked(field) else _convert(column, field.type))
        except Misfit as misfit:
            line = records.line_of(misfit.row)
            fault = misfit_fault(f"{place}:{line}", field.name, named(field).type, misfit.value)
            raise RowFault(fault, misfit.row) from misfit
    out = pa.schema([field.with_type(column.type) for field, column in zip(schema, columns, strict=True)])
    return JsonTable(pa.Table.from_arrays(columns, schema=out), unknown, matches)


def check_matches(table: JsonTable, schema: pa.Schema, place: str) -> None:
    """Raises Invalid if no field of any record is in the schema: such a file would become rows of nulls."""
    if table.matches:
        return
    raise Invalid(
        f"no field of any record is in the schema; they have {listed(list(table.unknown))}, and the schema has "
        f"{listed(schema.names)}",
        rule="read-columns",
        hint="call the columns of the read schema as the file calls its fields, and rename them in preprocess",
        place=place,
    )


def _count_unknown(text: bytes, schema: pa.Schema) -> tuple[dict[str, int], bool]:
    """Returns names of fields that no column has, with the number of objects that have them, most frequent first.

    Also returns whether any field has a column.
    """
    counts: Counter[str] = Counter()
    known = set(schema.names)
    start = 0
    while start < len(text):
        stop = text.find(b"\n", min(start + _CHUNK, len(text) - 1)) + 1 or len(text)
        try:
            counts.update(chain.from_iterable(_FIELDS.decode_lines(text[start:stop])))
        except (msgspec.DecodeError, RecursionError):
            return {"fields of records that are not one a line": 1}, True
        start = stop
    unknown = {name: count for name, count in counts.most_common() if name not in known}
    return unknown or {"fields within nested values": 1}, len(unknown) < len(counts)


def _read_as(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_) or pa.types.is_binary(type_):
        return pa.string()
    return pa.float32() if pa.types.is_float16(type_) else type_


def _convert(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_timestamp(type_):
        return to_instants(column, type_)
    if pa.types.is_date(type_):
        return to_dates(column)
    if column.type == type_:
        return column
    return convert_column(column, lambda part: part.cast(type_))


def read_objects(
    records: JsonRecords, schema: pa.Schema | None, place: str, others: str = "infer", declared: pa.Schema | None = None
) -> pa.Table:
    """Reads objects with pyarrow. Raises Invalid; if ``others`` is ``error``, ``_Unknown`` for a field that is not in
    the schema.

    ``declared``: the types that messages name; to the parser times, for instance, are texts.
    """
    try:
        table = _read(records.text, schema, others)
    except _Refused as refused:
        if refused.what == _UNEXPECTED and others == "error":
            raise _Unknown from refused
        raise _locate_fault(refused, records, schema, declared, place) from refused
    # pyarrow takes a later record that is null for one without fields.
    row = first_null(records.text, table)
    if row is not None:
        raise _locate_fault(_Refused(_NULL, row), records, schema, declared, place)
    return table


def _read(text: bytes, schema: pa.Schema | None, others: str) -> pa.Table:
    """Reads a text. Takes whole numbers written like ``1.0``, as the reference does, though the
    parser does not. Raises _Refused."""
    try:
        return _parse(text, schema, others)
    except _Refused as refused:
        if schema is None or refused.what == _UNEXPECTED or not any(_has_whole(field.type) for field in schema):
            raise
        plain = with_whole_numbers(text)
        if plain == text:
            raise
    return _parse(plain, schema, others)


def _has_whole(type_: pa.DataType) -> bool:
    """Whether values of the type, or values inside them, may be whole numbers."""
    if pa.types.is_nested(type_):
        return any(_has_whole(type_.field(number).type) for number in range(type_.num_fields))
    return bool(pa.types.is_integer(type_) or pa.types.is_decimal(type_))


def _parse(text: bytes, schema: pa.Schema | None, others: str) -> pa.Table:
    """Parses a text; works around pyarrow's refusal of structs that are null. Raises _Refused."""
    # pyarrow aborts the process here (test_json_text).
    if begins_with_null(text):
        raise _Refused(_NULL, 0)
    if schema is None or not needs_loosening(schema):
        return _parsed_as(text, schema, others)
    table = _parsed_as(text, loosen(schema), others)
    row = first_missing(table, schema)
    if row is not None:
        raise _Refused(REFUSED, row)
    return tighten(table, schema)


def _parsed_as(text: bytes, schema: pa.Schema | None, others: str) -> pa.Table:
    """Parses a text as pyarrow does. Raises _Refused."""
    try:
        return pa_json.read_json(
            pa.BufferReader(text),
            # In one block, since pyarrow refuses a record that is longer than a block, and tells of faults by rows of a
            # block.
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        match = _ROW.match(str(error))
        what, row = (match[1], match[2]) if match else (str(error), None)
        raise _Refused(what, None if row is None else int(row)) from error


def _locate_fault(
    refused: _Refused, records: JsonRecords, schema: pa.Schema | None, declared: pa.Schema | None, place: str
) -> Invalid:
    """Makes the fault with its line, and with its column if a single value is at fault."""
    told = declared or schema
    row, what = refused.row, _explain(refused.what, told)
    if row is None:
        found = first_refused(records.text, lambda part: _is_refused(part, schema))
        if found is not None:
            row, text = found
            value, column = _VALUE.search(refused.what), _column_at_fault(text, schema)
            if value is not None and column is not None:
                what = f"column {column.name!r}: {value[1][:80]!r} is not {a(type_name(column.type))}"
            elif not text.startswith(b"{"):
                row, what = max(0, row - 1), f"{text[:40].decode(errors='replace')!r} is between the records"
    wanted = ", ".join(f"{field.name} {type_name(field.type)}" for field in told) if told else ""
    fault = Invalid(
        what,
        rule="read-json",
        hint=f"the schema reads {wanted}" if wanted else "one JSON object per line is expected",
        place=place if row is None else f"{place}:{records.line_of(row)}",
    )
    return fault if row is None else RowFault(fault, row)


def _is_refused(text: bytes, schema: pa.Schema | None) -> bool:
    try:
        _read(text, schema, "ignore" if schema else "infer")
    except _Refused:
        return True
    return False


def _column_at_fault(record: bytes, schema: pa.Schema | None) -> pa.Field | None:
    """Returns the column without which the record could be read, if there is just such a one."""
    return next((field for field in schema or () if _is_refused(record, pa.schema([field]))), None)


def _explain(what: str, schema: pa.Schema | None) -> str:
    changed = _CHANGED.match(what)
    if changed is None:
        return f"not the JSON expected: {what}"
    path, before, now = changed.groups()
    if not path:
        return f"a record that is no object but: {now}"
    name, now = path.split("/")[0], a(now)
    if schema is None or name not in schema.names:
        return f"field {path!r} is first {a(before)} and then {now}"
    return f"field {path!r} is {now}, and the schema reads {a(before)} ({type_name(schema.field(name).type)})"


def begins_with_null(text: bytes) -> bool:
    """Whether the first record is null, for which pyarrow aborts the process."""
    return _NULL_FIRST.match(text) is not None


def first_null(text: bytes, table: pa.Table) -> int | None:
    """Returns the number of the first record that is null itself: a row without any value in ``table``,
    read from ``text``."""
    if any(column.null_count == 0 for column in table.columns) or _NULL_BEHIND.search(text) is None:
        return None
    empty = pa.array([True] * table.num_rows)
    for column in table.columns:
        empty = pc.and_(empty, column.is_null())
    if not pc.any(empty).as_py():
        return None
    return next((row for row, (start, stop) in enumerate(_spans(text)) if text[start:stop] == b"null"), None)


def first_refused(text: bytes, is_refused: Callable[[bytes], bool]) -> tuple[int, bytes] | None:
    """Returns the first record that is refused alone, with its number; ``None`` if none is."""
    ends = [0, *(stop for _, stop in _spans(text))]
    low, high = 0, len(ends) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_refused(text[ends[low] : ends[middle]]) else (middle, high)
    found = text[ends[low] : ends[high]].strip()
    return (low, found) if found and is_refused(found) else None


def _spans(text: bytes) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each top-level value in a text: objects, and others.

    Looks only at brackets and quotes, so no nesting is too deep.
    """
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        kind = text[token.start()]
        if not depth:
            start = token.start()
        if kind in b"{[":
            depth += 1
        elif kind in b"}]":
            depth = max(0, depth - 1)
        if not depth:
            yield start, token.end()


INFER_ROWS: Final = 1000
"""Rows from which types are guessed, as in the reference."""
MAX_DEPTH: Final = 64
"""Most levels of arrays and objects in a record whose types are guessed, since the parser recurses over them."""
MAX_DIGITS: Final = 38
"""Most digits of a whole number that is guessed to be a Decimal."""
_NOT_BLANK: Final = re.compile(r"\S")
_GIVE: Final = "give a schema"

_Path = tuple[str, ...]


class _Whole(str):
    """Digits of a whole number."""


def guess_json(records: JsonRecords, place: str) -> pa.Schema:
    """Returns the columns in order of first appearance, with guessed types. Raises Invalid."""
    sample = list(_first(records, place))
    if not sample:
        return pa.schema([])
    numbers: dict[_Path, int] = {}
    for _, value in sample:
        _look(value, (), numbers)
    text = "\n".join(text for text, _ in sample).encode()
    table = read_objects(JsonRecords(text, records.line_of), None, place)
    check_size(table.column_names, place)
    if not table.num_columns:
        first = agree(len(sample), "record has", f"{len(sample):,} records have")
        what = f"the first {first} no fields, so no columns are guessed"
        raise Invalid(what, rule="read-infer", hint=_GIVE, place=f"{place}:{records.line_of(0)}")
    return pa.schema([(field.name, _plain_type(field.type, (field.name,), numbers, place)) for field in table.schema])


def _first(records: JsonRecords, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields text and value of the first objects. Raises Invalid for a value that is no object, or too
    deeply nested."""
    decoder = json.JSONDecoder(parse_int=_Whole)
    text, at = text_of(records.text, place), 0
    for number in range(INFER_ROWS):
        found = _NOT_BLANK.search(text, at)
        if found is None:
            return
        try:
            value, at = decoder.raw_decode(text, found.start())
            if _depth(value) > MAX_DEPTH:
                raise RecursionError
        except json.JSONDecodeError as error:
            hint = "one JSON object per line is expected"
            here = f"{place}:{records.line_of(number)}"
            raise Invalid(f"not JSON: {error.msg}", rule="read-json", hint=hint, place=here) from error
        except RecursionError as error:
            raise Invalid(
                f"nested deeper than {MAX_DEPTH} levels, so types are not guessed",
                rule="read-json-depth",
                hint=_GIVE,
                place=f"{place}:{records.line_of(number)}",
            ) from error
        if not isinstance(value, dict):
            hint = "records are JSON objects, {…}"
            here = f"{place}:{records.line_of(number)}"
            raise Invalid("a record that is no object", rule="read-json", hint=hint, place=here)
        yield text[found.start() : at], value


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _look(value: object, path: _Path, numbers: dict[_Path, int]) -> None:
    """Records in ``numbers`` the most digits of the whole numbers at each path; -1 if a number there is not whole."""
    if isinstance(value, dict):
        for name, each in value.items():
            _look(each, (*path, name), numbers)
    elif isinstance(value, list):
        for each in value:
            _look(each, (*path, "[]"), numbers)
    elif isinstance(value, float):
        numbers[path] = -1
    elif isinstance(value, _Whole):
        known = numbers.get(path, 0)
        numbers[path] = known if known < 0 else max(known, len(value.lstrip("-")))


def _plain_type(type_: pa.DataType, path: _Path, numbers: dict[_Path, int], place: str) -> pa.DataType:
    """Returns the type to use: pyarrow takes some texts for times, and large whole numbers for doubles.
    All nulls are text."""
    if pa.types.is_temporal(type_) or pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_plain_type(type_.value_type, (*path, "[]"), numbers, place))
    if pa.types.is_struct(type_):
        return pa.struct(
            [(child.name, _plain_type(child.type, (*path, child.name), numbers, place)) for child in type_]
        )
    if not pa.types.is_floating(type_) or numbers.get(path, -1) < 0:
        return type_
    if numbers[path] > MAX_DIGITS:
        raise Invalid(
            f"column {'.'.join(path)!r} holds whole numbers of {numbers[path]} digits, and no number type holds them",
            rule="read-infer",
            hint=_GIVE,
            place=place,
        )
    return pa.decimal128(MAX_DIGITS, 0)
