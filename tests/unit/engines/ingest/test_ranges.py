"""Cut anywhere, parse apart: the rows are those of the whole file."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from engines.spark.ingest.csv_text import parse_csv, read_head
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.json_text import parse_json_lines
from engines.spark.ingest.ranges import Range, line_ranges, quotes_stay_in_lines, ranges_at

CELLS = st.text(st.sampled_from('ab1 ,"\n\r\\é'), max_size=6)
ROWS = st.lists(st.tuples(CELLS, CELLS), max_size=12)
CUTS = st.lists(st.integers(0, 120), max_size=6).map(sorted)
STRINGS = pa.schema([("x", pa.string()), ("y", pa.string())])
COMMA, QUOTE = ord(","), ord('"')


def written(rows: list[tuple[str, str]], quoting: int, end: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=quoting, lineterminator=end).writerows(rows)
    return out.getvalue().encode()


def parse(data: bytes, spans: list[Range], dialect: CsvDialect) -> list[dict[str, str | None]]:
    head = read_head(data, dialect, STRINGS, "f")
    tables = [parse_csv(data[span.start : span.stop], head, dialect, "f") for span in spans]
    return pa.concat_tables([STRINGS.empty_table(), *tables]).to_pylist()


def outcome(data: bytes, spans: list[Range], dialect: CsvDialect) -> list[dict[str, str | None]] | str:
    """Rows, or the rule that is broken: Python's writer leaves bare carriage returns unquoted, which are line ends."""
    try:
        return parse(data, spans, dialect)
    except Invalid as fault:
        return fault.rule


@given(ROWS, CUTS, st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]), st.sampled_from(["\n", "\r\n"]))
def test_parts_give_the_rows_of_the_whole(rows: list[tuple[str, str]], cuts: list[int], quoting: int, end: str) -> None:
    data = written(rows, quoting, end)
    dialect = CsvDialect(escape=None)
    if data and quotes_stay_in_lines(data, 0, COMMA, QUOTE):
        whole = outcome(data, [Range(0, len(data))], dialect)
        assert outcome(data, ranges_at(data, 0, cuts), dialect) == whole


@given(ROWS, st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
def test_a_proven_file_has_as_many_lines_as_records(rows: list[tuple[str, str]], quoting: int) -> None:
    """The proof against another reader's opinion: were a newline inside quotes, there would be fewer records."""
    data = written(rows, quoting, "\n")
    if quotes_stay_in_lines(data, 0, COMMA, QUOTE):
        lines = [line for line in data.decode().split("\n") if line]
        assert (
            len(lines) == sum(1 for row in csv.reader(io.StringIO(data.decode(), newline="")) if row) or b"\r" in data
        )


@given(st.binary(max_size=200), CUTS)
def test_ranges_cover_everything_once_and_end_after_newlines(data: bytes, cuts: list[int]) -> None:
    spans = ranges_at(data, 0, cuts)
    assert b"".join(data[span.start : span.stop] for span in spans) == data
    assert all(data[span.start : span.stop].endswith(b"\n") for span in spans[:-1])


@pytest.mark.parametrize(
    "text,proven",
    [
        (b"", True),
        (b"a,b\n1,2\n", True),
        (b'"a","b"\n"1","2"\n', True),
        (b'"a""b",c\n', True),
        (b'"a","b"\r\n"c","d"', True),
        (b'"a\nb",c\n', False),
        (b'5" x,"a\nb",6" y\n', False),
        (b'5" pipe,x\n', False),
        (b'"a"b,c\n', False),
        (b'"",""\n', True),
        (b'"""",x\n', True),
    ],
)
def test_what_is_proven(text: bytes, proven: bool) -> None:
    assert quotes_stay_in_lines(text, 0, COMMA, QUOTE) is proven


def test_a_line_longer_than_the_window_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.spark.ingest.ranges._WINDOW", 8)
    assert not quotes_stay_in_lines(b'"abcdefghijkl","m"\n', 0, COMMA, QUOTE)
    assert quotes_stay_in_lines(b'"a","b"\n' * 5, 0, COMMA, QUOTE)


def test_quoted_newlines_are_read_when_the_file_is_whole() -> None:
    dialect = CsvDialect(escape=None, whole=True)
    data = b'"a\nb",c\n\nd,"e ""f"""\n'
    assert parse(data, [Range(0, len(data))], dialect) == [{"x": "a\nb", "y": "c"}, {"x": "d", "y": 'e "f"'}]
    with pytest.raises(Invalid, match="f:4: 1 columns where 2 are expected"):
        parse(b'"a\nb",c\n\nd\n', [Range(0, 12)], dialect)


@given(st.lists(st.dictionaries(st.sampled_from("xyz"), st.text(max_size=4), max_size=3), max_size=10), CUTS)
def test_json_lines_may_be_cut_at_every_newline(rows: list[dict[str, str]], cuts: list[int]) -> None:
    import json

    data = "\n".join(json.dumps(row) for row in rows).encode()
    parts = [parse_json_lines(data[span.start : span.stop], STRINGS, "f") for span in ranges_at(data, 0, cuts)]
    got = pa.concat_tables([STRINGS.empty_table(), *parts]).to_pylist()
    assert got == [{"x": row.get("x"), "y": row.get("y")} for row in rows]


def test_targets_make_ranges_of_about_that_size() -> None:
    data = b"0123456789\n" * 1000
    spans = line_ranges(data, 0, 1000)
    assert {len(range(*span)) // 100 for span in spans[:-1]} <= {9, 10, 11}
    assert line_ranges(data, 0) == [Range(0, len(data))]
