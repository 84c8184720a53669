"""Answers as they are written: values that are told apart, and nothing that a terminal obeys."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from chain.data.json_values import plain_rows
from chain.errors import Invalid
from odfd import output
from odfd.cli.sql.formats import FILES, check_form, show, write
from odfd.control import wire
from odfd.errors import Usage

TABLE = pa.table(
    {
        "text": ["a", "", None, 'say "x", y', "two\nlines", "\x1b[31mred"],
        "number": [1, None, 2**60, 0, -1, 7],
        "said": [True, False, None, True, True, True],
        "list": [[1, 2], [], None, [3], [4], [5]],
    }
)


class Answer:
    """As ``Shown`` and as ``Answered``, of a table."""

    def __init__(self, table: pa.Table) -> None:
        self.schema = table.schema
        self.columns = [(field.name, str(field.type)) for field in table.schema]
        self.head = wire.QueryHead(pins=(), standing="data", standings=())
        self._table = table

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches(max_chunksize=4)

    def pages(self) -> Iterator[Sequence[Sequence[Any]]]:
        yield from map(plain_rows, self.batches())


def written(form: str, capfdbinary: Any, table: pa.Table = TABLE) -> bytes:
    (write if form in FILES else show)(Answer(table), form)  # type: ignore[arg-type]
    output.flush()
    return bytes(capfdbinary.readouterr().out)


def test_csv_tells_no_value_from_an_empty_text(capfdbinary: Any) -> None:
    text = written("csv", capfdbinary).decode()
    assert text.splitlines()[:4] == [
        "text,number,said,list",
        'a,1,true,"[1,2]"',
        '"",,false,[]',
        ",1152921504606846976,,",
    ]
    found = list(csv.reader(io.StringIO(text)))
    assert [row[0] for row in found[4:]] == ['say "x", y', "two\nlines", "\x1b[31mred"]


def test_csv_on_a_terminal_moves_no_cursor(capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert b"\x1b" not in written("csv", capfdbinary)
    for form in ("parquet", "arrow"):
        with pytest.raises(Usage):
            check_form(form)


@pytest.mark.parametrize("form", ["table", "vertical", "markdown", "json", "ndjson"])
def test_nothing_is_written_that_a_terminal_obeys(form: str, capfdbinary: Any) -> None:
    assert b"\x1b" not in written(form, capfdbinary)


def test_json_is_one_document_and_ndjson_a_line_a_row(capfdbinary: Any) -> None:
    found = json.loads(written("json", capfdbinary))
    assert found["standing"] == "data"
    assert [row[0] for row in found["rows"]] == TABLE["text"].to_pylist()
    lines = [json.loads(line) for line in written("ndjson", capfdbinary).splitlines()]
    assert lines[2] == {"text": None, "number": str(2**60), "said": None, "list": None}
    empty = json.loads(written("json", capfdbinary, TABLE.slice(0, 0)))
    assert empty["rows"] == []


def test_no_column_is_lost_to_another_of_its_name(capfdbinary: Any) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(Invalid):
        written("ndjson", capfdbinary, twice)
    assert json.loads(written("json", capfdbinary, twice))["rows"] == [[1, 2]]


def test_arrow_and_parquet_give_the_same_rows(capfdbinary: Any) -> None:
    import pyarrow.parquet as pq

    assert pa.ipc.open_stream(written("arrow", capfdbinary)).read_all().equals(TABLE)
    assert pq.read_table(pa.BufferReader(written("parquet", capfdbinary))).equals(TABLE)
