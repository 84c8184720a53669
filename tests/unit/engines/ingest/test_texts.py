"""Texts become values of the columns that are declared."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.model.schema import MAX_COLUMNS, MAX_NAME
from chain.model.source import ReadCsv, ReadParquet
from engines.spark.ingest import csv_text
from engines.spark.ingest.csv_text import parse_csv, read_head
from engines.spark.ingest.dialect import CsvDialect, csv_dialect
from engines.spark.ingest.text_columns import Misfit, check_made, check_read, millis_type, to_instants, type_name
from worlds.reading import NAME, Read, read

# Texts to times, options to dialects, heads to columns.

TIMES = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1))
ZONES = st.sampled_from(["Z", "z", "+00:00", "-07:30", "+14:00", ""])


def instants(*texts: str | None) -> list[int | None]:
    return to_instants(pa.chunked_array([texts], pa.string())).cast(pa.int64()).to_pylist()


@given(st.lists(st.tuples(TIMES, ZONES, st.integers(0, 9), st.sampled_from("T ")), max_size=8))
def test_times_are_those_of_rfc3339(cases: list[tuple[dt.datetime, str, int, str]]) -> None:
    """Against our own scalar parser; without zone means UTC, and the past is rounded to."""
    texts = []
    for moment, zone, digits, between in cases:
        fraction = f".{moment.microsecond:06d}789"[: digits + 1] if digits else ""
        texts.append(f"{moment:%Y-%m-%d}{between}{moment:%H:%M:%S}{fraction}{zone}")
    expected = []
    for text in texts:
        zoned = text if text[-1] in "Zz" or text[-6] in "+-" else f"{text}Z"
        expected.append(instant.to_millis(instant.parse(zoned)))
    assert instants(*texts) == expected


def test_dates_nulls_and_mixtures() -> None:
    assert instants("1970-01-02", None, " 1970-01-01T00:00:00.0019Z") == [86_400_000, None, 1]
    assert instants("1969-12-31T23:59:59.9999Z") == [-1]
    assert instants() == []


@pytest.mark.parametrize(
    "bad", ["9/25/2022 1:02:03", "2024-02-30", "now", "2024-01-01T25:00:00", "2024-01-01T00:00:00X"]
)
def test_the_first_bad_time_is_found(bad: str) -> None:
    with pytest.raises(Misfit) as caught:
        instants("2024-01-01", "2024-01-01T00:00:00Z", None, bad, "also bad")
    assert (caught.value.row, caught.value.value) == (3, bad)


def test_names_of_types() -> None:
    others = [pa.bool_(), millis_type(), pa.date32(), pa.decimal128(9, 2)]
    kinds = [pa.int8(), pa.uint64(), pa.float64(), pa.string(), *others]
    said = ["Int8", "UInt64", "Float64", "String", "Bool", "Timestamp", "Date", "Decimal(9, 2)"]
    assert [type_name(kind) for kind in kinds] == said


@pytest.mark.parametrize("said,escape", [(None, None), ("", None), ('"', None), ("\\", "\\"), ("^", "^")])
def test_an_escape_is_what_a_manifest_declares(said: str | None, escape: str | None) -> None:
    assert csv_dialect(ReadCsv(escape=said)).escape == escape


@pytest.mark.parametrize("options", [{"separator": '"'}, {"separator": "\\", "escape": "\\"}])
def test_characters_of_two_meanings_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="are one character"):
        csv_dialect(ReadCsv(**options))


@pytest.mark.parametrize(
    "header,wanted,names",
    [
        ("a,b", "a b", ["a", "b"]),
        ("b,a", "a b", ["b", "a"]),
        ("City Name,Pop", "city pop", ["city", "pop"]),
        ("a,X", "a b", ["a", "b"]),
        ("B ,A", "a b", ["b", "a"]),
        ("Date (UTC),City Name", "city_name date_utc", ["date_utc", "city_name"]),
        ("latitude,longitude", "lat lon", ["lat", "lon"]),
    ],
)
def test_headers_match_by_name_else_by_place(header: str, wanted: str, names: list[str]) -> None:
    schema = pa.schema([(name, pa.string()) for name in wanted.split()])
    head = read_head(f"{header}\n1,2\n".encode(), CsvDialect(header=True), schema, "f")
    assert list(head.names) == names
    assert head.schema == schema


@pytest.mark.parametrize(
    "header,wanted",
    [
        ("X,a", "a b"),
        ("a", "a b"),
        ("a,b,c", "a b"),
        ("a,a", "a b"),
        ("x,y", "a b"),
        ("longitude,latitude", "lat lon"),
        ("lon,x", "lat lon"),
        ("a;b", "a b"),
    ],
)
def test_headers_that_would_swap_or_lose_columns_are_refused(header: str, wanted: str) -> None:
    schema = pa.schema([(name, pa.string()) for name in wanted.split()])
    with pytest.raises(Invalid) as caught:
        read_head(f"{header}\n".encode(), CsvDialect(header=True), schema, "f")
    assert caught.value.place == "f:1"


NAMES = st.lists(st.text("ab_", min_size=1, max_size=5), min_size=1, max_size=6)


@given(NAMES, NAMES)
def test_names_alike_are_found_as_by_comparing_each(names: list[str], asked: list[str]) -> None:
    among = csv_text._Alike(names)
    assert [one in among for one in asked] == [any(csv_text._alike(one, name) for name in names) for one in asked]


@pytest.mark.parametrize("header", [True, False])
def test_a_header_has_so_many_columns_and_names_so_long(header: bool) -> None:
    """Attack T-BYTES-02: a CSV header of 200,000 columns.

    Defence: refused with its place before its names are compared.
    """

    def read(*names: str) -> None:
        read_head(",".join(names).encode() + b"\n", CsvDialect(header=header), None, "f")

    most = [f"c{number}" for number in range(MAX_COLUMNS)]
    read(*most)
    read("n" * MAX_NAME)
    with pytest.raises(Invalid, match="10,001 columns") as caught:
        read(*most, "more")
    assert (caught.value.rule, caught.value.place) == ("read-columns", "f:1")
    if header:
        with pytest.raises(Invalid, match="1,025 characters"):
            read("n" * (MAX_NAME + 1))


def test_types_of_csv() -> None:
    schema = pa.schema(
        [
            ("i", pa.uint8()),
            ("f", pa.float16()),
            ("b", pa.bool_()),
            ("d", pa.decimal128(6, 2)),
            ("day", pa.date32()),
            ("t", millis_type()),
        ]
    )
    dialect = CsvDialect(null="NA")
    data = b"7,0.5,true,12.30,2024-05-01,2024-05-01T00:00:00.123456Z\nNA,,,,,\n"
    head = read_head(data, dialect, schema, "f")
    table = parse_csv(data, head, dialect, "f")
    assert table.schema == schema
    assert table.column("t").cast(pa.int64())[0].as_py() == 1_714_521_600_123
    assert all(column.null_count == 1 for column in table.columns)
    with pytest.raises(Invalid, match=r"f:1: column 'i': '256' is not a UInt8"):
        parse_csv(b"256,,,,,\n", head, dialect, "f")


@pytest.mark.parametrize(
    ("type_", "value", "said"),
    [
        (pa.decimal128(5, 2), "1e99", "column 'x': '1e99' is not a Decimal(5, 2)"),
        (pa.decimal128(5, 2), "123456.00", "column 'x': '123456.00' is not a Decimal(5, 2)"),
        (pa.decimal128(5, 2), "1.234", "column 'x': '1.234' is not a Decimal(5, 2)"),
        (pa.int8(), "300", "column 'x': '300' is not an Int8"),
        (pa.float64(), "one", "column 'x': 'one' is not a Float64"),
        (pa.bool_(), "maybe", "column 'x': 'maybe' is not a Bool"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_line(type_: pa.DataType, value: str, said: str) -> None:
    schema = pa.schema([("n", pa.string()), ("x", type_)])
    head = read_head(b"", CsvDialect(), schema, "f.csv")
    data = f'"two\n lines",1\n\nb,{value}\nc,also bad\n'.encode()
    with pytest.raises(Invalid) as caught:
        parse_csv(data, head, CsvDialect(whole=True), "f.csv")
    assert (caught.value.message, caught.value.place) == (said, "f.csv:4")


def test_a_byte_order_mark_is_no_text() -> None:
    data = b"\xef\xbb\xbfa\n1\n"
    head = read_head(data, CsvDialect(header=True), None, "f")
    assert head.names == ("a",)
    assert data[head.body :] == b"1\n"


def test_nested_types_are_refused_by_name() -> None:
    schema = pa.schema([("l", pa.list_(pa.int64()))])
    head = read_head(b"1\n", CsvDialect(), schema, "f")
    with pytest.raises(Invalid, match="column 'l': CSV cannot hold"):
        parse_csv(b"1\n", head, CsvDialect(), "f")


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(["2024-01-01T00:00:00Z", "2024-01-01 00:00:00", "2024-01-01T01:00:00+01:00", None, "x"]))
)
def test_a_few_texts_that_are_tried_first_decide_nothing(tail: list[str | None]) -> None:
    """Behind many of one form, any other is read as it is alone."""
    for form in ("2024-01-01T00:00:00Z", "2024-01-01 00:00:00"):
        texts = [form] * 100 + tail
        if "x" in tail:
            with pytest.raises(Misfit) as caught:
                instants(*texts)
            assert caught.value.row == texts.index("x")
        else:
            assert instants(*texts) == [None if each is None else 1_704_067_200_000 for each in texts]


# Columns that cannot be read as they are: named, with the file, the rule, and what to do next.

STRUCTS = pa.list_(pa.struct([("a", pa.int64())]))
MAP = pa.map_(pa.string(), pa.int64())


def parquet(folder: Path, table: pa.Table, *ddl: str) -> Read:
    pq.write_table(table, folder / "made")
    return read(folder, (folder / "made").read_bytes(), ReadParquet(ddl_schema=ddl or None))


@pytest.mark.parametrize("ddl", [(), ("a BIGINT",), ("b BIGINT",)])
def test_two_columns_of_one_name(tmp_path: Path, ddl: tuple[str, ...]) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    with pytest.raises(Invalid) as told:
        parquet(tmp_path, table, *ddl)
    assert told.value.message == "2 columns are called 'a'"
    assert (told.value.rule, told.value.place) == ("read-columns", NAME)
    assert told.value.hint == "rename all but one where the file is written"


def test_two_members_of_one_name(tmp_path: Path) -> None:
    inner = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(Invalid, match=r"2 columns are called 's\.a'"):
        parquet(tmp_path, pa.Table.from_arrays([inner], names=["s"]))


@pytest.mark.parametrize(
    "kind,queried,said,hint",
    [
        (MAP, False, "a map of string to int64", "declare the other columns in the read schema, which leaves it out"),
        (MAP, True, "a map of string to int64", "declare the other columns in the read schema, which leaves it out"),
        (pa.duration("s"), False, "a duration[s]", "this one as m BIGINT: the number of its units"),
        (pa.duration("us"), True, "a duration[us]", "this one as m BIGINT: the number of its units"),
        (STRUCTS, False, "a list<", "make it a text in preprocess: to_json(m) as m"),
    ],
)
def test_types_that_no_dataset_holds(kind: pa.DataType, queried: bool, said: str, hint: str) -> None:
    with pytest.raises(Invalid) as told:
        check_read(pa.schema([("n", pa.int64()), ("m", kind)]), NAME, queried=queried)
    assert told.value.message.startswith(f"column 'm' is {said}")
    assert told.value.message.endswith(", which no dataset holds")
    assert (told.value.rule, told.value.place) == ("column-type", NAME)
    assert hint in told.value.hint


def test_what_a_query_may_read_and_make() -> None:
    check_read(pa.schema([("m", STRUCTS)]), NAME, queried=True)
    check_made(pa.schema([("m", pa.list_(pa.string())), ("s", pa.struct([("a", pa.int64())]))]))
    with pytest.raises(Invalid) as told:
        check_made(pa.schema([("m", STRUCTS)]))
    assert told.value.hint == "make it a number, or a text, in its query: to_json(m) as m"
    with pytest.raises(Invalid, match="2 columns are called 'n'") as told:
        check_made(pa.schema([("n", pa.int64()), ("n", pa.string())]))
    assert told.value.place == "preprocess"


def test_the_ways_out_work(tmp_path: Path) -> None:
    """A column that is not declared is left out, and told; a duration is the number of its units."""
    columns = {"n": pa.array([1, 2]), "m": pa.array([[("a", 1)], []], MAP), "d": pa.array([5, None], pa.duration("s"))}
    got = parquet(tmp_path, pa.table(columns), "n BIGINT", "d BIGINT")
    assert got.rows == [[1, 5], [2, None]]
    assert got.unknown == {"m": 2}
