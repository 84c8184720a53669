"""Rows in files: all of them or none, in as many files as were asked for; of a sheet, what it does not hold is told."""

from __future__ import annotations

import datetime as dt
import decimal
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from python_calamine import CalamineWorkbook

from chain.data.json_values import plain_rows
from chain.errors import Environment, Invalid
from engines.query.frames import COLUMNS, END, HEAD, LINES, PLAIN, ROWS
from engines.query.text_rows import heading, render_lines
from odfd.cli.new_file import NewFile
from odfd.cli.sql import output_file
from odfd.cli.sql.output_file import Destination, to_files
from odfd.cli.sql.sheet import MOST_COLUMNS, MOST_TEXT, SheetWriter
from odfd.control import wire
from odfd.errors import Usage
from worlds.full_disk import room_for

HEAD_SAID = wire.QueryHead(pins=(), standing="data", standings=())
ASKED = wire.QueryRequest(sql="select")


class Daemon:
    """Answers each query with a table, ``rows`` at a time; with ``fault``, until it comes."""

    def __init__(self, table: pa.Table, rows: int = 4, fault: Exception | None = None) -> None:
        self._table, self._rows, self._fault = table, rows, fault

    @contextmanager
    def frames(self, call: Any, _meanwhile: object = None) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        yield self._frames(call.request.plain, call.request.lines)

    def _frames(self, plain: bool, lines: Any) -> Iterator[tuple[bytes, bytes]]:
        yield HEAD, msgspec.json.encode(HEAD_SAID)
        batches = self._table.to_batches(max_chunksize=self._rows)
        if lines:
            yield COLUMNS, msgspec.json.encode([(field.name, str(field.type)) for field in self._table.schema])
            yield LINES, bytes(4) + heading(self._table.schema.names, lines)
            for rows, text in (each for batch in batches for each in render_lines(batch, lines)):
                yield LINES, rows.to_bytes(4, "big") + text
        elif plain:
            yield COLUMNS, msgspec.json.encode([(field.name, str(field.type)) for field in self._table.schema])
            yield from ((PLAIN, msgspec.json.encode(plain_rows(batch))) for batch in batches)
        else:
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, self._table.schema) as stream:
                for batch in batches:
                    stream.write_batch(batch)
            yield ROWS, sink.getvalue()
        if self._fault:
            raise self._fault
        yield END, msgspec.json.encode(wire.QueryEnd(rows=self._table.num_rows))


def numbers(count: int) -> pa.Table:
    return pa.table({"n": list(range(count)), "name": [f"row {n}" for n in range(count)]})


def read(path: Path) -> list[int]:
    match path.suffix:
        case ".csv":
            return [int(line.partition(",")[0]) for line in path.read_text().splitlines()[1:]]
        case ".ndjson":
            return [msgspec.json.decode(line)["n"] for line in path.read_text().splitlines()]
        case ".parquet":
            return list(pq.read_table(path).column("n").to_pylist())
        case ".arrow":
            return list(pa.ipc.open_stream(path.read_bytes()).read_all().column("n").to_pylist())
    sheets = CalamineWorkbook.from_path(path)
    return [int(row[0]) for name in sheets.sheet_names for row in sheets.get_sheet_by_name(name).to_python()[1:]]


@pytest.mark.parametrize("form", ["csv", "ndjson", "parquet", "arrow", "xlsx"])
@pytest.mark.parametrize("rows,each,sizes", [(8, 4, [4, 4]), (10, 3, [3, 3, 3, 1]), (0, 3, [0]), (9, 50, [9])])
def test_parts_are_the_whole(tmp_path: Path, form: str, rows: int, each: int, sizes: list[int]) -> None:
    done = to_files(Daemon(numbers(rows)), ASKED, form, Destination(tmp_path / f"all.{form}", each))
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == [f"all-{n:05d}.{form}" for n in range(1, len(sizes) + 1)]
    assert [len(read(path)) for path in files] == sizes
    assert [n for path in files for n in read(path)] == list(range(rows))
    assert (done.rows, "file" in done.remarks[0]) == (rows, True)


@pytest.mark.parametrize("form", ["csv", "ndjson", "parquet", "arrow", "xlsx"])
@pytest.mark.parametrize("each", [None, 3])
def test_of_an_answer_that_breaks_off_no_file_is_left(tmp_path: Path, form: str, each: int | None) -> None:
    fault = Invalid("a slice is damaged", rule="slice")
    with pytest.raises(Invalid, match="damaged"):
        to_files(Daemon(numbers(10), fault=fault), ASKED, form, Destination(tmp_path / f"all.{form}", each))
    assert list(tmp_path.iterdir()) == []


def test_files_of_an_earlier_export_are_told_apart(tmp_path: Path) -> None:
    to_files(Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 3))
    with pytest.raises(Invalid, match="is there already"):
        to_files(Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 4))
    assert len(read(tmp_path / "all-00001.csv")) == 3
    done = to_files(Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 4, replace=True))
    assert done.remarks[1] == "all-00004.csv was there before, and is not of this export"
    again = Destination(tmp_path / "all.csv", 2, replace=True)
    assert len(to_files(Daemon(numbers(10)), ASKED, "csv", again).remarks) == 1


def test_files_whose_names_would_not_sort_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_file, "MOST_FILES", 3)
    with pytest.raises(Invalid, match="more than 3 files"):
        to_files(Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 3))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="No such file or directory"):
        to_files(Daemon(numbers(1)), ASKED, "csv", Destination(tmp_path / "nowhere" / "all.csv"))


def test_what_the_machine_refuses_is_no_mistake_of_the_command_line(tmp_path: Path) -> None:
    with room_for(100), pytest.raises(Environment, match="cannot write"):
        to_files(Daemon(numbers(1000)), ASKED, "csv", Destination(tmp_path / "all.csv"))
    assert list(tmp_path.iterdir()) == []
    with room_for(0), pytest.raises(Environment, match="cannot write"):
        NewFile(tmp_path / "answer.json").write("{}\n")
    assert list(tmp_path.iterdir()) == []


def sheet(table: pa.Table, **more: Any) -> tuple[list[list[Any]], list[str]]:
    out = io.BytesIO()
    writer = SheetWriter(out, [(field.name, str(field.type)) for field in table.schema], **more)
    try:
        writer.write(plain_rows(table))
    finally:
        writer.close()
    book = CalamineWorkbook.from_filelike(io.BytesIO(out.getvalue()))
    return [row for name in book.sheet_names for row in book.get_sheet_by_name(name).to_python()], writer.remarks()


LONG = decimal.Decimal("12345678901234567.89")


def test_values_are_those_of_a_sheet_or_text_and_told() -> None:
    table = pa.table(
        {
            "n": pa.array([1, -5, 2**60, None], pa.int64()),
            "x": pa.array([0.5, float("nan"), float("inf"), -1e300]),
            "price": pa.array([decimal.Decimal("1.50"), LONG, None, None], pa.decimal128(20, 2)),
            "at": pa.array([0, 1_700_000_000_123_000, 1_700_000_000_123_456, -(10**17)], pa.timestamp("us", "UTC")),
            "day": pa.array([dt.date(2024, 2, 29), dt.date(1899, 1, 1), None, dt.date(1900, 3, 1)]),
            "said": [True, None, False, True],
            "text": ["=1+1", "12", "", "é"],
        }
    )
    heading, *rows = sheet(table)[0]
    assert heading == table.column_names
    assert rows[0] == [1, 0.5, 1.5, dt.date(1970, 1, 1), dt.date(2024, 2, 29), True, "=1+1"]
    half = dt.datetime(2023, 11, 14, 22, 13, 20, 123_000)
    assert rows[1][:5] == [-5, "nan", str(LONG), half, "1899-01-01"]
    assert rows[2][:4] == [str(2**60), "inf", "", "2023-11-14T22:13:20.123456Z"]
    assert rows[3][1] == -1e300
    assert [row[6] for row in rows] == ["=1+1", "12", "", "é"]
    said = sheet(table)[1]
    assert [line.partition(":")[0] for line in said] == [
        "1 value of n is text", "2 values of x are text", "1 value of price is text", "2 values of at are text",
        "1 value of day is text",
    ]  # fmt: skip


INTEGERS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=8)


@pytest.mark.slow
@settings(max_examples=30)
@given(INTEGERS, st.integers(1, 4))
@example([34_561_881_851_091_100], 1)
@example([1_600_593_426_432_000], 1)
def test_numbers_come_back_whatever_the_sheets(values: list[int | None], most: int) -> None:
    out = io.BytesIO()
    writer = SheetWriter(out, [("n", "int64")], most_rows=most)
    writer.write(plain_rows(pa.table({"n": pa.array(values, pa.int64())})))
    writer.close()
    book = CalamineWorkbook.from_filelike(io.BytesIO(out.getvalue()))
    sheets = [book.get_sheet_by_name(name).to_python()[1:] for name in book.sheet_names]
    assert [int(row[0]) for rows in sheets for row in rows if row[0] != ""] == [n for n in values if n is not None]
    assert len(sheets) == max(1, -(-len(values) // most))
    long = [n for n in values if n is not None and len(str(abs(n)).rstrip("0")) > 15]
    assert len(writer.remarks()) == (len(sheets) > 1) + bool(long)


def test_what_no_sheet_holds_is_refused() -> None:
    whole = "x" * MOST_TEXT
    assert sheet(pa.table({"t": [whole]}))[0][1] == [whole]
    with pytest.raises(Invalid, match="'t' in row 2 has 32,768"):
        sheet(pa.table({"t": ["", whole + "x"]}))
    with pytest.raises(Invalid, match="at most 16,384 columns"):
        SheetWriter(io.BytesIO(), [("c", "int64")] * (MOST_COLUMNS + 1))


def test_what_is_written_is_told_as_it_grows(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    to_files(
        Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 4), lambda *counts: told.append(counts)
    )
    assert told == sorted(told)
    assert told[-1][0] == 10
    assert told[-1][1] <= sum(file.stat().st_size for file in tmp_path.glob("all-*.csv"))
