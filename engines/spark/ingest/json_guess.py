"""Infers types of JSON objects that have no schema, from the first of them.

Guessing must not lose a digit: whole numbers beyond 64 bits become Decimals, and a value that a column cannot hold
exactly is refused, naming the line. Texts stay texts, even if they look like times, as in the reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from chain.errors import Invalid
from chain.wording import agree
from engines.spark.ingest.json_text import read_objects
from engines.spark.ingest.records import JsonRecords
from engines.spark.ingest.text_columns import check_size, text_of

INFER_ROWS: Final = 1000
"""Rows from which types are guessed, as in the reference."""
MAX_DEPTH: Final = 64
"""Most levels of arrays and objects in a record whose types are guessed, since the parser recurses over them."""
MAX_DIGITS: Final = 38
"""Most digits of a whole number that is guessed to be a Decimal."""
_BEGIN: Final = re.compile(r"\S")
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
    return pa.schema([(field.name, _plain(field.type, (field.name,), numbers, place)) for field in table.schema])


def _first(records: JsonRecords, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields text and value of the first objects. Raises Invalid for a value that is no object, or too
    deeply nested."""
    decoder = json.JSONDecoder(parse_int=_Whole)
    text, at = text_of(records.text, place), 0
    for number in range(INFER_ROWS):
        found = _BEGIN.search(text, at)
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


def _plain(type_: pa.DataType, path: _Path, numbers: dict[_Path, int], place: str) -> pa.DataType:
    """Returns the type to use: pyarrow takes some texts for times, and large whole numbers for doubles.
    All nulls are text."""
    if pa.types.is_temporal(type_) or pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_plain(type_.value_type, (*path, "[]"), numbers, place))
    if pa.types.is_struct(type_):
        return pa.struct([(child.name, _plain(child.type, (*path, child.name), numbers, place)) for child in type_])
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
