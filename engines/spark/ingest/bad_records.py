"""Finds the records of a text that cannot be read, so that all others can be.

Runs only after a text was refused. The text is cut into records, and the parser tries each distinct text of a column
once (``bad_values``): this finds most bad records at once, with the columns at fault. The rest is parsed as usual. If
the parser still refuses it, it is halved, and refused halves are halved again, until each refused record stands alone.
So a record is bad exactly when the parser refuses it alone. The work grows with the text, and with the number of
different texts that cannot be read. Pure over bytes.
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
from engines.spark.ingest.record_split import RecordCut
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
``column``: the first at fault, null if the record as a whole is."""
MAX_RAW: Final = 1 << 20
"""Most characters of a record that are kept."""
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
"""Rules that a single record can break; breaking another rule means that the file, or its description, is at fault."""
LIMIT: Final = "quarantine-limit"

Parse = Callable[[bytes, pa.Schema], JsonTable]
"""Parses all records of a text as rows of a schema. Raises Invalid."""


class RecordParser(NamedTuple):
    """How the records of a text are parsed."""

    schema: pa.Schema
    parse: Parse
    cells: Cells
    needed: Mapping[str, Absence] = MappingProxyType({})
    """Columns that must have values for another reason than the schema, with that reason."""


class SetAside(NamedTuple):
    """The result of parsing: rows of the good records, and ``BAD`` rows of the others."""

    good: JsonTable
    bad: pa.Table
    records: int | None = None
    """Number of records in the text, each of which is one row; ``None``: the text was not split."""

    @property
    def agrees(self) -> bool:
        """Whether the parser finds the same records as the split did."""
        return self.records is None or self.good.table.num_rows + self.bad.num_rows == self.records


class _Bad(NamedTuple):
    """Records that cannot be read: by number, the fault; and the columns at fault, in the order of the schema."""

    faults: dict[int, Invalid]
    columns: dict[int, list[tuple[str, Invalid]]]


def without_bad(cut: RecordCut, reader: RecordParser, name: str, limit: int) -> SetAside:
    """Separates bad records; ``name``: of the file. Raises Invalid for more than ``limit``, and for
    faults of no record."""
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
            missed = _find_refused(cut, left, reader.schema, reader.parse, limit - len(bad.faults))
            if not missed:
                raise
            bad.faults.update(missed)
    return SetAside(good, _bad_rows(cut, bad, name), cut.size)


def _bad_texts(cut: RecordCut, among: np.ndarray, reader: RecordParser) -> _Bad:
    """Finds the bad ones of the records with these numbers by their texts: with another number of values, or with a
    text that is no value of its column. Records that cannot be taken apart into texts are tried one by one."""
    texts = reader.cells.texts(cut, among, reader.schema.names)
    faults, columns = dict(texts.refused), dict[int, list[tuple[str, Invalid]]]()
    faults.update(_find_refused(cut, texts.unclear, reader.schema, reader.parse, None))
    for field in reader.schema:
        for at, fault in _at_fault(field, texts.columns[field.name], reader):
            number = int(texts.numbers[at])
            columns.setdefault(number, []).append((field.name, fault))
            faults.setdefault(number, fault)
    return _Bad(faults, columns)


def _at_fault(field: pa.Field, column: pa.Array, reader: RecordParser) -> Iterator[tuple[int, Invalid]]:
    """Yields the positions of texts in a column that are no values of it, with the fault."""
    texts = reader.cells.alike(field, column).dictionary_encode()
    asked = reader.cells.alone(field, texts.dictionary)
    refused = _find_refused(_as_cut(asked), np.arange(len(asked)), pa.schema([field]), reader.cells.parse, None)
    codes = texts.indices.to_numpy()
    for at in np.flatnonzero(np.isin(codes, np.fromiter(refused, np.int64, len(refused)))).tolist():
        fault = reader.cells.explain(field, column[at].as_py(), refused[int(codes[at])])
        if fault.rule == NOT_NULL and field.name in reader.needed:
            why = reader.needed[field.name]
            fault = Invalid(why.message, rule=why.rule)
        yield at, fault


def _as_cut(texts: pa.LargeBinaryArray) -> RecordCut:
    """Joins records one after the other, as a split text; their places in a file are not needed."""
    _, ends, data = texts.buffers()
    starts = np.frombuffer(ends, np.int64, len(texts) + 1, texts.offset * 8)
    text = b"" if data is None else data.to_pybytes()
    return RecordCut(text, starts, lambda _: b"", lambda numbers: numbers, {})


def _others(numbers: np.ndarray, without: dict[int, Invalid]) -> np.ndarray:
    return np.setdiff1d(numbers, np.fromiter(without, np.int64, len(without)), assume_unique=True)


def _find_refused(
    cut: RecordCut, among: np.ndarray, schema: pa.Schema, parse: Parse, limit: int | None
) -> dict[int, Invalid]:
    """Returns the faults of those records that the parser refuses alone; stops shortly after ``limit``."""
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
    cut: RecordCut, part: np.ndarray, schema: pa.Schema, parse: Parse, fault: Invalid
) -> tuple[np.ndarray, dict[int, Invalid]]:
    """Tries the record that a fault names by itself, and removes it if it is bad. If a line holds several records, the
    parser counts otherwise, and another record is at fault."""
    if not isinstance(fault, RowFault) or not fault.row < len(part):
        return part, {}
    own = _fault(cut, part[fault.row : fault.row + 1], schema, parse)
    return (part, {}) if own is None else (np.delete(part, fault.row), {int(part[fault.row]): own})


def _fault(cut: RecordCut, part: np.ndarray, schema: pa.Schema, parse: Parse) -> Invalid | None:
    """Returns the fault of some records, if the parser refuses them. Raises Invalid for a fault of no record."""
    try:
        parse(cut.some(part), schema)
    except Invalid as fault:
        if fault.rule not in OF_RECORDS:
            raise
        return fault
    return None


def _bad_rows(cut: RecordCut, bad: _Bad, name: str) -> pa.Table:
    rows, numbers = [], np.array(sorted(bad.faults), np.int64)
    for number, line in zip(numbers.tolist(), cut.lines(numbers).tolist(), strict=True):
        blamed = bad.columns.get(number, [])
        text, left_out = show_record(cut.raw(number))
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


def show_record(raw: bytes) -> tuple[str, Sequence[str]]:
    """Returns a record as text, and remarks on what was left out."""
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
