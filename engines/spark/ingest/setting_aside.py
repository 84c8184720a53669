"""Records of a text that cannot be read, found one by one, so that all others can be.

Done only when a text was refused. The text is cut into records; halves that the parser takes whole are left alone, and
halves that it refuses are cut further, until each record that it refuses stands by itself. What is left is parsed as
ever: a record is good exactly when the parser takes it. Attempts grow with the number of bad records, not with that of
all. Pure over bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from chain.errors import Invalid
from engines.spark.ingest.json_text import Parsed
from engines.spark.ingest.texts import NO_EVENT_TIME, NOT_NULL, RowFault

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

Parse = Callable[[bytes, pa.Schema], Parsed]
"""All records of a text as rows of a schema. Raises Invalid."""


class Reader(NamedTuple):
    """How records become rows of ``schema``."""

    schema: pa.Schema
    parse: Parse
    loose: Callable[[pa.Field | None], pa.Schema]
    """A schema in which nothing but one field, or nothing at all, can be at fault."""
    event_time: str | None = None
    """The column that must have values because rows have event times."""


class Records(NamedTuple):
    """A text cut into records: number ``n`` (from 0) stands at bytes ``starts[n] <= b < starts[n + 1]``."""

    text: bytes
    starts: np.ndarray
    raw: Callable[[int], bytes]
    """A record as the file has it."""
    lines: Callable[[np.ndarray], np.ndarray]
    """Lines of the file, from 1, on which records of these numbers begin."""
    broken: dict[int, Invalid]
    """Records of which no text could be made for the parser; they stand as nothing."""

    @property
    def size(self) -> int:
        return len(self.starts) - 1

    def some(self, numbers: np.ndarray) -> bytes:
        """Text of the records of these ascending numbers: what stands together is cut out in one piece."""
        if not len(numbers):
            return b""
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        firsts = numbers[np.concatenate(([0], breaks))]
        lasts = numbers[np.concatenate((breaks - 1, [len(numbers) - 1]))]
        view = memoryview(self.text)
        spans = zip(self.starts[firsts].tolist(), self.starts[lasts + 1].tolist(), strict=True)
        return b"".join(view[start:stop] for start, stop in spans)


class SetAside(NamedTuple):
    """Rows of the good records, and ``BAD`` rows of the others."""

    good: Parsed
    bad: pa.Table
    records: int | None = None
    """Records there are, where each is one row; ``None``: nothing was cut."""

    @property
    def agrees(self) -> bool:
        """Whether the parser sees the same records as were cut."""
        return self.records is None or self.good.table.num_rows + self.bad.num_rows == self.records


def without_bad(records: Records, reader: Reader, name: str, limit: int) -> SetAside:
    """``name``: of the file. Raises Invalid for more than ``limit`` bad records, and for what is no record's fault."""
    every = np.arange(records.size)
    bad = dict(records.broken)
    sound = _others(every, bad)
    bad |= _refused(records, sound, reader.schema, reader.parse, limit - len(bad))
    if len(bad) > limit:
        first = min(bad)
        line = records.lines(np.array([first])).tolist()[0]
        raise too_many(f"more than {limit:,} records", bad[first].message, f"{name}:{line}")
    numbers = np.array(sorted(bad), np.int64)
    good = reader.parse(records.some(_others(every, bad)), reader.schema)
    columns = _blamed(records, _others(numbers, records.broken), reader)
    return SetAside(good, _told(records, numbers, bad, columns, name), records.size)


def _others(numbers: np.ndarray, without: dict[int, Invalid]) -> np.ndarray:
    return np.setdiff1d(numbers, np.fromiter(without, np.int64, len(without)), assume_unique=True)


def _refused(
    records: Records, among: np.ndarray, schema: pa.Schema, parse: Parse, limit: int | None
) -> dict[int, Invalid]:
    """The records of these numbers that the parser refuses by themselves, and why; some more than ``limit`` of them
    when there are more."""
    bad: dict[int, Invalid] = {}
    parts = [among] if len(among) else []
    while parts:
        part = parts.pop()
        fault = _fault(records, part, schema, parse)
        if fault is None:
            continue
        if len(part) == 1:
            bad[int(part[0])] = fault
        else:
            part, found = _without_first(records, part, schema, parse, fault)
            bad |= found
            middle = len(part) // 2
            parts += [each for each in (part[middle:], part[:middle]) if len(each)]
        if limit is not None and len(bad) > limit:
            break
    return bad


def _without_first(
    records: Records, part: np.ndarray, schema: pa.Schema, parse: Parse, fault: Invalid
) -> tuple[np.ndarray, dict[int, Invalid]]:
    """The record that a fault is of is asked by itself: where a line holds several, the parser counts others."""
    if not isinstance(fault, RowFault) or not fault.row < len(part):
        return part, {}
    own = _fault(records, part[fault.row : fault.row + 1], schema, parse)
    return (part, {}) if own is None else (np.delete(part, fault.row), {int(part[fault.row]): own})


def _fault(records: Records, part: np.ndarray, schema: pa.Schema, parse: Parse) -> Invalid | None:
    """Raises Invalid for what is no record's fault."""
    try:
        parse(records.some(part), schema)
    except Invalid as fault:
        if fault.rule not in OF_RECORDS:
            raise
        return fault
    return None


def _blamed(records: Records, bad: np.ndarray, reader: Reader) -> dict[int, list[tuple[str, Invalid]]]:
    """Of bad records, each column that is at fault by itself, in the order of the schema."""
    found: dict[int, list[tuple[str, Invalid]]] = {}
    whole = _others(bad, _refused(records, bad, reader.loose(None), reader.parse, None))
    for field in reader.schema:
        for number, fault in _refused(records, whole, reader.loose(field), reader.parse, None).items():
            if fault.rule == NOT_NULL and field.name == reader.event_time:
                fault = Invalid(NO_EVENT_TIME, rule="event-time-missing")
            found.setdefault(number, []).append((field.name, fault))
    return found


def _told(
    records: Records,
    numbers: np.ndarray,
    faults: dict[int, Invalid],
    columns: dict[int, list[tuple[str, Invalid]]],
    name: str,
) -> pa.Table:
    rows = []
    for number, line in zip(numbers.tolist(), records.lines(numbers).tolist(), strict=True):
        blamed = columns.get(number, [])
        first = blamed[0][1] if blamed else faults[number]
        text, cut = shown(records.raw(number))
        reasons = [fault.message for _, fault in blamed] or [first.message]
        rows.append(
            {
                "record": number,
                "file": name,
                "line": line,
                "column": blamed[0][0] if blamed else None,
                "raw": text,
                "reason": "; ".join([*reasons, *cut]),
                "rule": first.rule,
            }
        )
    return pa.Table.from_pylist(rows, schema=BAD)


def shown(raw: bytes) -> tuple[str, Sequence[str]]:
    """A record as text, and what of it is not shown as it is."""
    text = raw.decode("utf-8", "backslashreplace")
    if len(text) <= MAX_RAW:
        return text, ()
    return text[:MAX_RAW], (f"the record has {len(text):,} characters, and the first {MAX_RAW:,} are kept",)


def too_many(what: str, first: str, place: str) -> Invalid:
    """More bad records than may be set aside."""
    return Invalid(
        f"{what} cannot be read, which is more than may be set aside; the first: {first}",
        rule=LIMIT,
        hint="mend the file or the schema; onError: {quarantine: {maxRows: N, maxPercent: N}} says what may be",
        place=place,
    )
