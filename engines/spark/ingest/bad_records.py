"""Finds the records of a text that cannot be read, so that all others can be.

Done only when a text was refused. The text is cut into records, and each text that a column holds in them is asked of
the parser once (``bad_values``): most bad records are found so, all at once, with the columns at fault. What is left is
parsed as ever. If the parser still refuses it, halves that it refuses are cut further, until each record that it
refuses stands by itself. So a record is bad exactly when the parser refuses it alone. Work grows with the text, and
beyond it with the number of different texts that cannot be read. Pure over bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from chain.errors import Invalid
from chain.wording import plural
from engines.spark.ingest.bad_values import Cells
from engines.spark.ingest.json_text import JsonTable
from engines.spark.ingest.record_split import Cut
from engines.spark.ingest.text_columns import NOT_NULL, NULL_KEY, Absence, RowFault

BAD: Final = pa.schema(
    [
        pa.field("record", pa.int64(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("raw", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
    ]
)
"""One row for a record that was set aside. ``record``: its number in its range, from 0; ``line``: of the file, from 1;
``column``: the first that is at fault, null where the record as a whole is."""
MAX_RAW: Final = 1 << 20
"""Characters of a record that are kept."""
OF_RECORDS: Final = frozenset(
    {
        "event-time-missing",
        "not-null",
        NULL_KEY,
        "read-columns",
        "read-csv",
        "read-encoding",
        "read-geojson",
        "read-json",
        "read-json-depth",
        "read-value",
    }
)
"""Rules that a single record can break; what breaks others is wrong with the file, or with its description."""
LIMIT: Final = "quarantine-limit"

Parse = Callable[[bytes, pa.Schema], JsonTable]
"""All records of a text as rows of a schema. Raises Invalid."""


class Reader(NamedTuple):
    schema: pa.Schema
    parse: Parse
    cells: Cells
    needed: Mapping[str, Absence] = MappingProxyType({})
    """Columns that must have values for another reason than the schema, and that reason."""


class SetAside(NamedTuple):
    """Rows of the good records, and ``BAD`` rows of the others."""

    good: JsonTable
    bad: pa.Table
    records: int | None = None
    """Records there are, where each is one row; ``None``: nothing was cut."""

    @property
    def agrees(self) -> bool:
        """Whether the parser finds the same records as the split did."""
        return self.records is None or self.good.table.num_rows + self.bad.num_rows == self.records


class _Bad(NamedTuple):
    """Records that cannot be read: why, by number; and their columns at fault, in the order of the schema."""

    faults: dict[int, Invalid]
    columns: dict[int, list[tuple[str, Invalid]]]


def without_bad(cut: Cut, reader: Reader, name: str, limit: int) -> SetAside:
    """Separates bad records; ``name``: of the file. Raises Invalid for more than ``limit``, and for other faults."""
    every = np.arange(cut.size)
    bad = _bad_texts(cut, _others(every, cut.broken), reader)
    bad.faults.update(cut.broken)
    good: JsonTable | None = None
    while good is None:
        if len(bad.faults) > limit:
            first = min(bad.faults)
            line = cut.lines(np.array([first])).tolist()[0]
            raise too_many(f"more than {plural(limit, 'record')}", bad.faults[first].message, f"{name}:{line}")
        left = _others(every, bad.faults)
        try:
            good = reader.parse(cut.some(left), reader.schema)
        except Invalid as fault:
            if fault.rule not in OF_RECORDS:
                raise
            missed = _refused(cut, left, reader.schema, reader.parse, limit - len(bad.faults))
            if not missed:
                raise
            bad.faults.update(missed)
    return SetAside(good, _bad_rows(cut, bad, name), cut.size)


def _bad_texts(cut: Cut, among: np.ndarray, reader: Reader) -> _Bad:
    """Those of the records of these numbers that have another number of values, or a text that is none of its column's;
    and of those that are not made of texts, all that are bad."""
    texts = reader.cells.texts(cut, among, reader.schema.names)
    faults, columns = dict(texts.refused), dict[int, list[tuple[str, Invalid]]]()
    faults.update(_refused(cut, texts.unclear, reader.schema, reader.parse, None))
    for field in reader.schema:
        for at, fault in _at_fault(field, texts.columns[field.name], reader):
            number = int(texts.numbers[at])
            columns.setdefault(number, []).append((field.name, fault))
            faults.setdefault(number, fault)
    return _Bad(faults, columns)


def _at_fault(field: pa.Field, column: pa.Array, reader: Reader) -> Iterator[tuple[int, Invalid]]:
    """Places in a column at which texts stand that are no values of it."""
    texts = reader.cells.alike(field, column).dictionary_encode()
    asked = reader.cells.alone(field, texts.dictionary)
    refused = _refused(_as_cut(asked), np.arange(len(asked)), pa.schema([field]), reader.cells.parse, None)
    codes = texts.indices.to_numpy()
    for at in np.flatnonzero(np.isin(codes, np.fromiter(refused, np.int64, len(refused)))).tolist():
        fault = reader.cells.explain(field, column[at].as_py(), refused[int(codes[at])])
        if fault.rule == NOT_NULL and field.name in reader.needed:
            why = reader.needed[field.name]
            fault = Invalid(why.message, rule=why.rule)
        yield at, fault


def _as_cut(texts: pa.LargeBinaryArray) -> Cut:
    """Joins records one after the other; their places in a file are not needed."""
    _, ends, data = texts.buffers()
    starts = np.frombuffer(ends, np.int64, len(texts) + 1, texts.offset * 8)
    text = b"" if data is None else data.to_pybytes()
    return Cut(text, starts, lambda _: b"", lambda numbers: numbers, {})


def _others(numbers: np.ndarray, without: dict[int, Invalid]) -> np.ndarray:
    return np.setdiff1d(numbers, np.fromiter(without, np.int64, len(without)), assume_unique=True)


def _refused(cut: Cut, among: np.ndarray, schema: pa.Schema, parse: Parse, limit: int | None) -> dict[int, Invalid]:
    """The records of these numbers that the parser refuses alone, with reasons; few more than ``limit``."""
    bad: dict[int, Invalid] = {}
    parts = [among] if len(among) else []
    while parts:
        part = parts.pop()
        fault = _fault(cut, part, schema, parse)
        if fault is None:
            continue
        if len(part) == 1:
            bad[int(part[0])] = fault
        else:
            part, found = _without_first(cut, part, schema, parse, fault)
            bad |= found
            middle = len(part) // 2
            parts += [each for each in (part[middle:], part[:middle]) if len(each)]
        if limit is not None and len(bad) > limit:
            break
    return bad


def _without_first(
    cut: Cut, part: np.ndarray, schema: pa.Schema, parse: Parse, fault: Invalid
) -> tuple[np.ndarray, dict[int, Invalid]]:
    """The record that a fault is of is asked by itself: where a line holds several, the parser counts others."""
    if not isinstance(fault, RowFault) or not fault.row < len(part):
        return part, {}
    own = _fault(cut, part[fault.row : fault.row + 1], schema, parse)
    return (part, {}) if own is None else (np.delete(part, fault.row), {int(part[fault.row]): own})


def _fault(cut: Cut, part: np.ndarray, schema: pa.Schema, parse: Parse) -> Invalid | None:
    """Raises Invalid for what is no record's fault."""
    try:
        parse(cut.some(part), schema)
    except Invalid as fault:
        if fault.rule not in OF_RECORDS:
            raise
        return fault
    return None


def _bad_rows(cut: Cut, bad: _Bad, name: str) -> pa.Table:
    rows, numbers = [], np.array(sorted(bad.faults), np.int64)
    for number, line in zip(numbers.tolist(), cut.lines(numbers).tolist(), strict=True):
        blamed = bad.columns.get(number, [])
        text, left_out = shown(cut.raw(number))
        reasons = [fault.message for _, fault in blamed] or [bad.faults[number].message]
        rows.append(
            {
                "record": number,
                "file": name,
                "line": line,
                "column": blamed[0][0] if blamed else None,
                "raw": text,
                "reason": "; ".join([*reasons, *left_out]),
                "rule": bad.faults[number].rule,
            }
        )
    return pa.Table.from_pylist(rows, schema=BAD)


def shown(raw: bytes) -> tuple[str, Sequence[str]]:
    """Returns a record as text, and the list of what is not shown unchanged."""
    text = raw.decode("utf-8", "backslashreplace")
    if len(text) <= MAX_RAW:
        return text, ()
    return text[:MAX_RAW], (f"the record has {len(text):,} characters, and the first {MAX_RAW:,} are kept",)


def too_many(what: str, first: str, place: str) -> Invalid:
    """Makes the error for more bad records than may be set aside."""
    return Invalid(
        f"{what} cannot be read, which is more than may be set aside; the first: {first}",
        rule=LIMIT,
        hint="mend the file or the schema; onError: {quarantine: {maxRows: N, maxPercent: N}} says what may be",
        place=place,
    )
