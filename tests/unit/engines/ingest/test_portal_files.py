"""Files of the kinds that data portals publish: what comes out is what the file says, or it is refused by name."""

from __future__ import annotations

import gzip
import io
from decimal import Decimal
from math import inf, isnan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.errors import Invalid
from chain.model.source import ReadCsv, ReadJson, ReadNdJson, ReadParquet, ReadStep
from worlds.reading import NAME, read

AB = ReadCsv(header=True, ddl_schema=("a STRING, b STRING",))
TYPED = ReadCsv(header=True, ddl_schema=("time TIMESTAMP, station STRING, celsius DECIMAL(5, 2)",))
GUESS = ReadCsv(header=True, infer_schema=True)
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "data,rows",
    [
        (b'a,b\n1,C:\\new\n2,"say \\"\n', [["1", "C:\\new"], ["2", "say \\"]]),
        (b'a,b\n"x\\",1\n"y",2\n', [["x\\", "1"], ["y", "2"]]),
        (b'a,b\n"he said ""hi""",1\n', [['he said "hi"', "1"]]),
        (b'a,b\n"two\nlines",1\n"three\r\n\r\nlines",2\n', [["two\nlines", "1"], ["three\r\n\r\nlines", "2"]]),
        (b'a,b\r\n1,"x,y"\r\n', [["1", "x,y"]]),
        (b"a,b\r1,2\r3,4\r", [["1", "2"], ["3", "4"]]),
        (b"a,b\r\n1,2\n3,4\r5,6", [["1", "2"], ["3", "4"], ["5", "6"]]),
        (b"a,b\n\n\n1,2\n\n3,4\n\n\n", [["1", "2"], ["3", "4"]]),
        (BOM + b"a,b\n1,2\n", [["1", "2"]]),
        (BOM + b'"a","b"\n1,2\n', [["1", "2"]]),
        (b'a,b\n5" pipe,6" pipe\n', [['5" pipe', '6" pipe']]),
        (b'a,b\n"",\n,""\n', [[None, None], [None, None]]),
        (b"a,b\n 1 , 2\n", [[" 1 ", " 2"]]),
        ("a,b\näöü,日本語\n😀,\u200b\n".encode(), [["äöü", "日本語"], ["😀", "\u200b"]]),
        (b"a,b\n", []),
        (b"a,b", []),
        (b"b,a\n1,2\n", [["2", "1"]]),
        (b'"a","b"\n"1","2"', [["1", "2"]]),
        (b"a,b\nNULL,N/A\n", [["NULL", "N/A"]]),
        (b'a,b\n1,"' + b"x" * 70_000 + b'"\n', [["1", "x" * 70_000]]),
        (b"a,b\n1,-- not a comment\n#2,3\n", [["1", "-- not a comment"], ["#2", "3"]]),
    ],
)
def test_csv_is_read_to_the_letter(tmp_path: Path, data: bytes, rows: list[list[Any]]) -> None:
    assert read(tmp_path, data, AB).rows == rows


def test_one_column_of_blanks_is_rows(tmp_path: Path) -> None:
    step = ReadCsv(header=True, ddl_schema=("a STRING",))
    assert read(tmp_path, b"a\n \n  \n", step).rows == [[" "], ["  "]]


def test_one_escape_somewhere_changes_nothing(tmp_path: Path) -> None:
    """It switched escapes on for the whole file, and rows went into a value."""
    lines = ['"path\\",1', '"x",2', '"y \\"" z",3', "plain\\,4"]
    data = "a,b\n" + "\n".join(lines) + "\n"
    assert read(tmp_path, data, AB).rows == [["path\\", "1"], ["x", "2"], ['y \\" z', "3"], ["plain\\", "4"]]
    for none in ("", '"'):
        assert read(tmp_path, data, ReadCsv(header=True, escape=none, ddl_schema=AB.ddl_schema)).rows[0][0] == "path\\"


def test_a_declared_escape_works_within_quotes_only(tmp_path: Path) -> None:
    step = ReadCsv(header=True, escape="\\", ddl_schema=AB.ddl_schema)
    data = 'a,b\n"say \\"hi\\"","C:\\new"\nx\\,y\\"z\n"end \\\\","a""b"\n"two\n\\"lines\\"",1\n'
    assert read(tmp_path, data, step).rows == [
        ['say "hi"', "C:\\new"],
        ["x\\", 'y\\"z'],
        ["end \\", 'a"b'],
        ['two\n"lines"', "1"],
    ]


@pytest.mark.parametrize(
    "data,said,place",
    [
        (b'a,b\n1,2\n3,"4\n5,6\n7,8\n', "a quote is opened and never closed; the 3 lines", 3),
        (b'a,b\n1,"2', "a quote is opened and never closed: '\"2'", 2),
        (b"a,b," + b",".join(b"c%d" % n for n in range(999)), "'c8', 'c9' and 989 more", 1),
        (bytes(257) + b"ustar\x0000", "this is a tar archive, and not Csv", None),
        (b'a,b\n1,"x"y\n', "text behind the quote that closes a value", 2),
        (b'a,b\n"x" ,2\n', "text behind the quote", 2),
        (b"a,b\n1,2,\n", "3 columns where 2 are expected", 2),
        (b"a,b\n1,2\n3\n", "1 column where 2 are expected", 3),
        (b"a,b,\n1,2,\n", "the header has 3 columns and the schema 2; not in the schema: ''", 1),
        (b"a;b\n1;2\n", "the header is one column, 'a;b'", 1),
        (b"a\tb\n1\t2\n", "the header is one column", 1),
        (b"a,a\n1,2\n", "columns named twice: 'a'", 1),
        (b"x,y\n1,2\n", "no column of the header is in the schema; missing 'a', 'b'", 1),
        (b"a,b\n1,\xff\n", "not UTF-8: byte 0xff", 2),
        (b"a,b\n1,\x00\n", "a byte of value zero", 2),
        (b"a,b\n1,2\n" + bytes(4096), "a byte of value zero", 3),
        ("a,b\n1,2\n".encode("utf-16"), "this is UTF-16 text, and not Csv", None),
        ("a,b\n1,2\n".encode("utf-16-be"), "UTF-16 text without a mark", 1),
        ("a,b\n1,2\n".encode("utf-32"), "this is UTF-32 text", None),
        ("a,b\n1,\xe4\n".encode("latin-1"), "not UTF-8: byte 0xe4", 2),
        (b"%PDF-1.7\n", "this is a PDF", None),
        (b"PAR1....PAR1", "this is Parquet, and not Csv", None),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "this is an .xls table", None),
        (b"<!DOCTYPE html><html><body>Log in", "this is HTML or XML", None),
        (b"\n  <html>", "this is HTML or XML", None),
        (b'<?xml version="1.0"?><a/>', "this is HTML or XML", None),
    ],
)
def test_what_is_no_such_csv_is_refused_by_name(tmp_path: Path, data: bytes, said: str, place: int | None) -> None:
    with pytest.raises(Invalid) as told:
        read(tmp_path, data, AB)
    assert said in told.value.message
    assert told.value.place == (NAME if place is None else f"{NAME}:{place}")
    assert told.value.rule.startswith("read-")
    assert told.value.hint


NO_TEXT = [b"%PDF-1.7", b"<html>", "[]".encode("utf-16"), b'{"a": 1}\n\x00\x00']


@pytest.mark.parametrize("data", NO_TEXT)
@pytest.mark.parametrize("step", [ReadNdJson(), ReadJson()])
def test_what_is_no_json_is_named(tmp_path: Path, data: bytes, step: ReadStep) -> None:
    with pytest.raises(Invalid) as told:
        read(tmp_path, data, step)
    assert told.value.rule == "read-kind-of-file"


def test_what_is_no_parquet_is_named(tmp_path: Path) -> None:
    whole = io.BytesIO()
    pq.write_table(pa.table({"a": ["x"] * 100}), whole)
    for data, said in [
        (gzip.compress(b"%PDF-", mtime=0), "this is a PDF, and not Parquet"),
        (b"<html>", "this is HTML or XML, and not Parquet"),
        (b"a,b\n1,2\n", "not a readable Parquet file"),
        (whole.getvalue()[:-20], "not a readable Parquet file"),
    ]:
        with pytest.raises(Invalid, match=said):
            read(tmp_path, data, ReadParquet())


@pytest.mark.parametrize(
    "header,names,remarks",
    [
        ("time,station,celsius", None, 0),
        ("celsius,time,station", None, 0),
        ("Time;Station;Celsius", None, 0),
        ("TIME,Station Name,Celsius", None, 1),
        ("time,where,celsius", None, 1),
    ],
)
def test_headers_that_match(tmp_path: Path, header: str, names: None, remarks: int) -> None:
    values = {"time": "2024-05-01T00:00:00Z", "station": "graz", "celsius": "9.5"}
    separator = ";" if ";" in header else ","
    order = [next((key for key in values if key in name.lower()), "station") for name in header.split(separator)]
    data = f"{header}\n{separator.join(values[key] for key in order)}\n"
    step = ReadCsv(header=True, separator=separator, ddl_schema=TYPED.ddl_schema)
    got = read(tmp_path, data, step)
    assert got.rows[0][1:] == ["graz", Decimal("9.50")]
    assert len(got.remarks) == remarks
    assert not remarks or "matched by their position" in got.remarks[0]


@pytest.mark.parametrize(
    "data,rule,said",
    [
        ("2024-05-01T00:00:00Z,graz,9.5\n2024-05-01T00:00:00Z,wien,9\n", "read-header", "would be lost as a header"),
        ("a,b,c\n2024-05-01T00:00:00Z,graz,9.5\n", "read-columns", "no column of the header is in the schema"),
        ("station,time,x\n", "read-columns", "'station' where the schema has 'time'"),
        ("\n\n\n", "read-header", "no header: all lines are empty"),
        ("\ufeff", "read-header", "no header: all lines are empty"),
        ("Report of 2024\n\ntime,station,celsius\n", "read-columns", "the header has 1 column and the schema 3"),
    ],
)
def test_headers_of_something_else(tmp_path: Path, data: str, rule: str, said: str) -> None:
    with pytest.raises(Invalid, match=said) as told:
        read(tmp_path, data, TYPED)
    assert told.value.rule == rule
    assert ("the lines before it" in told.value.hint) == data.startswith("Report")


def test_a_header_that_nobody_announced_is_no_row(tmp_path: Path) -> None:
    step = ReadCsv(ddl_schema=("a STRING, b STRING",))
    assert read(tmp_path, "1,2\n", step).rows == [["1", "2"]]
    with pytest.raises(Invalid, match="the first line names the columns") as told:
        read(tmp_path, "A,b\n1,2\n", step)
    assert "header: true" in told.value.hint


@pytest.mark.parametrize(
    "values,wanted",
    [
        (["007", "12"], ["007", "12"]),
        (["12", "012"], ["12", "012"]),
        (["-007", "12"], ["-007", "12"]),
        (["+4366412345", "1"], ["+4366412345", "1"]),
        (["0x1F", "12"], ["0x1F", "12"]),
        (["007.50", "1.25"], ["007.50", "1.25"]),
        (["12345678901234567890", "1"], [Decimal(12345678901234567890), Decimal(1)]),
        (["-9223372036854775809", "1"], [Decimal(-9223372036854775809), Decimal(1)]),
        (["9" * 39, "1"], ["9" * 39, "1"]),
        (["1234567890123456789012", "1.5"], ["1234567890123456789012", "1.5"]),
        (["9223372036854775807", "0"], [9223372036854775807, 0]),
        (["-0", "0"], [0, 0]),
        (["0", "10"], [0, 10]),
        (["0.5", "1.25"], [0.5, 1.25]),
        (["1e3", "2"], [1000.0, 2.0]),
        (["1_000", "2"], ["1_000", "2"]),
        (["1 000", "2"], ["1 000", "2"]),
        (["12:30", "13:45"], ["12:30", "13:45"]),
        (["true", "false"], [True, False]),
        (["yes", "no"], ["yes", "no"]),
    ],
)
def test_guessing_loses_nothing(tmp_path: Path, values: list[str], wanted: list[Any]) -> None:
    got = read(tmp_path, "x\n" + "\n".join(values) + "\n", GUESS).column("x")
    assert got == wanted
    assert [type(each) for each in got] == [type(each) for each in wanted]


def test_guessed_numbers_that_are_none_are_doubles(tmp_path: Path) -> None:
    one, two, three = read(tmp_path, "x\nNaN\nInfinity\n-inf\n", GUESS).column("x")
    assert isnan(one)
    assert (two, three) == (inf, -inf)


@pytest.mark.parametrize("late", ["007", "+5", "0x10", "9" * 20, "many"])
def test_what_comes_behind_the_sample_is_not_changed(tmp_path: Path, late: str) -> None:
    """Types are those of the first thousand rows; a later text that they would change is refused."""
    data = "x,y\n" + "".join(f"{number},a\n" for number in range(1, 1500)) + f"{late},b\n"
    with pytest.raises(Invalid) as told:
        read(tmp_path, data, GUESS)
    assert told.value.place == f"{NAME}:1501"
    assert late[:20] in told.value.message
    assert told.value.rule == "read-infer"


def test_the_sample_ends_between_records(tmp_path: Path) -> None:
    data = "x,y\n" + "".join(f'{number},"two\nlines, {number}"\n' for number in range(1500))
    got = read(tmp_path, data, GUESS)
    assert got.table.schema == pa.schema([("x", pa.int64()), ("y", pa.string())])
    assert got.table.num_rows == 1500


@pytest.mark.parametrize("header", ["a;b;c", "a\tb", "a|b"])
def test_one_column_that_looks_like_many_is_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(Invalid, match="the header is one column") as told:
        read(tmp_path, f"{header}\n1;2\n", ReadCsv(header=True))
    assert "separator" in told.value.hint
    single = ReadCsv(header=True, ddl_schema=("a STRING",))
    assert read(tmp_path, "a\n1;2\n", single).rows == [["1;2"]]


def test_a_column_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="column 3 of the header has no name"):
        read(tmp_path, "a,b,\n1,2,\n", ReadCsv(header=True))


@pytest.mark.parametrize(
    "data,rows",
    [("a;b\n1,5;2\n", [["1,5", "2"]]), ("a;b\n1.234,56;x\n", [["1.234,56", "x"]])],
)
def test_decimal_commas_are_text(tmp_path: Path, data: str, rows: list[list[str]]) -> None:
    assert read(tmp_path, data, ReadCsv(header=True, separator=";", ddl_schema=AB.ddl_schema)).rows == rows
    step = ReadCsv(header=True, separator=";", ddl_schema=("a DOUBLE, b STRING",))
    with pytest.raises(Invalid, match="is not a Float64") as told:
        read(tmp_path, data, step)
    assert "declare the column as String" in told.value.hint


@pytest.mark.parametrize(
    "ddl,value,said",
    [
        ("x BIGINT", "0x1F", "'0x1F' is not an Int64"),
        ("x BIGINT", "-0X1f", "'-0X1f' is not an Int64"),
        ("x DOUBLE", "1e999", "'1e999' is not a Float64"),
        ("x DOUBLE", "-" + "9" * 400, "is not a Float64"),
        ("x FLOAT", "1e39", "'1e39' is not a Float32"),
    ],
)
def test_numbers_that_would_become_others_are_refused(tmp_path: Path, ddl: str, value: str, said: str) -> None:
    """They were 31, and infinite."""
    with pytest.raises(Invalid) as told:
        read(tmp_path, f"x,note\n1,a\n,b\n{value},0x1F\n", ReadCsv(header=True, ddl_schema=(f"{ddl}, note STRING",)))
    assert said in told.value.message
    assert told.value.place == f"{NAME}:4"


def test_numbers_that_are_meant_so_are_read(tmp_path: Path) -> None:
    step = ReadCsv(header=True, ddl_schema=("i BIGINT, f DOUBLE, note STRING",))
    got = read(tmp_path, "i,f,note\n7,inf,0x1F\n,-Infinity,\n1,1e308,x\n", step)
    assert got.rows == [[7, inf, "0x1F"], [None, -inf, None], [1, 1e308, "x"]]
