"""What a read step may say, what documents say of it, and what texts become in the columns that are declared."""

from __future__ import annotations

import datetime as dt
import io
import re
import zipfile
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.data.ddl import parse_ddl
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.read_options import READ
from chain.model.schema import MAX_COLUMNS, MAX_NAME
from chain.model.source import (
    MergeAppend,
    MergeLedger,
    MergeSnapshot,
    ReadCsv,
    ReadEsriShapefile,
    ReadJson,
    ReadNdJson,
    ReadParquet,
    ReadStep,
)
from engines.contract import IngestBatchRequest, InvalidQuery, Success, Vocab
from engines.request_control import RequestControl
from engines.spark.ingest import csv_text, parse, source_files
from engines.spark.ingest.csv_text import parse_csv, read_head
from engines.spark.ingest.dialect import CsvDialect, Spelling, csv_dialect
from engines.spark.ingest.foreign.converting import convert
from engines.spark.ingest.run import run_ingest
from engines.spark.ingest.text_columns import Misfit, check_made, check_read, millis_type, to_instants, type_name
from worlds import foreign_bytes as made
from worlds.reading import NAME, Read, read, read_step

# Spellings of CSV that a manifest declares: from its text, by way of the chain's bytes, to rows of exact types.

UTC = dt.UTC


GERMAN = """
kind: Csv
header: true
separator: ';'
decimal: ','
thousands: '.'
dateFormat: '%d.%m.%Y'
timestampFormat: '%d.%m.%Y %H:%M'
timeZone: Europe/Berlin
nullValues: ['n/a', '-']
skipRows: 2
skipFooter: 1
comment: '#'
ddlSchema: [day DATE, at TIMESTAMP, n BIGINT, price DOUBLE, exact 'DECIMAL(12, 2)', word STRING]
"""
REPORT = """Statistik;2024
Stand: heute
day;at;n;price;exact;word
# a comment; of one line
01.05.2024;01.05.2024 12:30;1.234.567;-0,5;1.234,50;"#no
# comment"
2.5.2024;31.01.2024 00:00;12;1,25e3;7;n/a

-;;-;;;
Summe;;;;;
"""


def test_a_german_report_is_read_as_it_says(tmp_path: Path) -> None:
    ddl = GERMAN.replace("'DECIMAL(12, 2)'", "DECIMAL(12,2)").replace("[day", "['day").replace("STRING]", "STRING']")
    got = read(tmp_path, REPORT.replace("-;;-;;;", "-;;-;;0;"), read_step(ddl))
    assert got.rows == [
        [dt.date(2024, 5, 1), dt.datetime(2024, 5, 1, 10, 30, tzinfo=UTC), 1234567, -0.5, Decimal("1234.50"),
         "#no\n# comment"],
        [dt.date(2024, 5, 2), dt.datetime(2024, 1, 30, 23, 0, tzinfo=UTC), 12, 1250.0, Decimal("7.00"), None],
        [None, None, None, None, Decimal("0.00"), None],
    ]  # fmt: skip
    assert got.remarks == (f"{NAME}: no rows: 2 lines before the header, 1 comment, 1 line at the end",)


def csv_of(ddl: str, **options: Any) -> ReadStep:
    said = "\n".join(f"{name}: {value!r}" for name, value in options.items())
    return read_step(f"kind: Csv\nheader: true\nddlSchema: ['{ddl}']\n{said}")


@pytest.mark.parametrize(
    "ddl,options,value,hint",
    [
        ("a BIGINT", {"thousands": " "}, "1 23", "thousands: ' '"),
        ("a BIGINT", {"thousands": " "}, "12 34 567", "thousands: ' '"),
        ("a DOUBLE", {"decimal": ","}, "1.5", "decimal: ','"),
        ("a BIGINT", {"decimal": ","}, "1,5", "decimal: ','"),
        ("a DATE", {"dateFormat": "%d/%m/%Y"}, "30/02/2024", "%d/%m/%Y"),
        ("a DATE", {"dateFormat": "%d/%m/%Y"}, "2024-05-01", "%d/%m/%Y"),
        ("a TIMESTAMP", {"timestampFormat": "%Y-%m-%d %I:%M %p"}, "2024-05-01 13:00 pm", "%I"),
        ("a TIMESTAMP", {"timeZone": "Europe/Berlin"}, "2024-10-27 02:30:00", "twice or not at all"),
        ("a TIMESTAMP", {"timeZone": "Europe/Berlin"}, "2024-03-31 02:30:00", "twice or not at all"),
    ],
)
def test_what_is_spelled_otherwise_is_refused_by_line_and_column(
    tmp_path: Path, ddl: str, options: dict[str, str], value: str, hint: str
) -> None:
    good = {"a BIGINT": "1", "a DOUBLE": "1", "a DATE": "01/05/2024", "a TIMESTAMP": "2024-05-01 11:00:00"}[ddl]
    good = "2024-05-01 11:00 pm" if "timestampFormat" in options else good
    with pytest.raises(Invalid, match="column 'a'") as told:
        read(tmp_path, f'a\n"{good}"\n"{value}"\n', csv_of(ddl, **options))
    assert told.value.place == f"{NAME}:3"
    assert hint in told.value.hint


def test_what_clocks_show_twice_can_be_asked_for(tmp_path: Path) -> None:
    texts = "a\n2024-10-27 02:30:00\n2024-03-31 02:30:00\n2024-10-27T02:30:00Z\n"
    hours = []
    for moment in ("earliest", "latest"):
        zoned = csv_of("a TIMESTAMP", timeZone="Europe/Berlin", ambiguousTimes=moment, missingTimes=moment)
        hours.append([(row[0].hour, row[0].minute) for row in read(tmp_path, texts, zoned).rows])
    assert hours == [[(0, 30), (0, 59), (2, 30)], [(1, 30), (1, 0), (2, 30)]]


@pytest.mark.slow
@given(st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1)))
def test_a_format_reads_what_it_writes(moment: dt.datetime) -> None:
    for format_ in ("%d.%m.%Y %H:%M:%S.%f", "%b %d, %Y %I:%M:%S.%f %p", "%Y%m%d %H%M%S %f"):
        spelled = format_
        if format_.startswith("%Y%m"):
            spelled = "%Y/%m/%d %H:%M:%S %f"
        text = moment.strftime(spelled)
        got = Spelling(timestamp=spelled).values(pa.chunked_array([[text]], pa.string()), pa.timestamp("us", "UTC"))
        assert got.to_pylist() == [moment.replace(tzinfo=UTC)], (spelled, text)


def test_members_of_a_zip_are_one_batch(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in ("b.csv", "a.csv", "notes.txt"):
            archive.writestr(name, f"a\n{name}\n")
    assert read(tmp_path, out.getvalue(), csv_of("a STRING", members="*.csv")).rows == [["a.csv"], ["b.csv"]]


@pytest.mark.parametrize(
    "text,said",
    [
        ("kind: Csv\ndecimal: ',,'", "options of the read step"),
        ("kind: Csv\nskipRows: -1", "options of the read step"),
        ("kind: Csv\nskipRows: many", "options of the read step"),
        ("kind: NdJson\ndecimal: ','", "decimal: a read step of kind NdJson has no such option"),
        ("kind: Avro\nheader: true", "header"),
        ("kind: Csv\nsheet: a", "sheet: a read step of kind Csv has no such option"),
        (f"kind: Csv\ndecimal: ','\nschema: {{fields: [], extra: {{'{READ}': {{}}}}}}", "are both given"),
    ],
)
def test_options_that_cannot_be_meant_are_told_with_their_line(text: str, said: str) -> None:
    with pytest.raises(Invalid) as told:
        read_step(text)
    assert said in str(told.value)
    assert "m.yaml:" in str(told.value)


def test_other_kinds_stand_behind_steps_of_the_format() -> None:
    table, avro, geo = (
        read_step("kind: Spreadsheet\nsheet: S"),
        read_step("kind: Avro"),
        read_step("kind: GeoPackage\nlayer: l"),
    )
    assert isinstance(table, ReadCsv)
    assert isinstance(avro, ReadParquet)
    assert isinstance(geo, ReadEsriShapefile)
    assert table.schema is not None
    assert table.schema.extra == {READ: {"format": "Spreadsheet", "sheet": "S"}}
    assert read_step("kind: Csv\nheader: true") == ReadCsv(header=True)


# Every manifest of docs/reference/sources.md reads what it is an example of.

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "sources.md").read_text()
EXAMPLES = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```yaml\nread:\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)


def zipped(members: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return out.getvalue()


BERICHT = "Bericht\n\nday;at;amount\n# heute\n01.05.2024;01.05.2024 12:30;1.234,5\n2.5.2024;n/a;-\nSumme;;\n"
FILES: dict[str, tuple[bytes, list[list[Any]]]] = {
    "Packed files": (
        zipped({"data/b.csv": "id,name\n2,b\n", "data/a.csv": "id,name\n1,a\n", "README": ""}),
        [[1, "a"], [2, "b"]],
    ),
    "Spellings of CSV": (
        BERICHT.encode("cp1252"),
        [["2024-05-01", "2024-05-01T10:30", 1234.5], ["2024-05-02", None, None]],
    ),
}

ROWS = [["A list"], ["City", "Population", "Founded"], ["Graz", 302_000, dt.date(1928, 1, 1)]]
ATOM = """<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom"><title>A feed</title>
<entry><id>urn:1</id><title type="html">News</title><updated>2024-05-01T12:00:00+02:00</updated>
<link href="https://a.example/1"/></entry></feed>"""
POINT = '{"coordinates":[16.37,48.2],"type":"Point"}'


def more(folder: Path) -> dict[str, tuple[bytes, list[list[Any]]]]:
    """Those that are not of text."""
    entry = '<feed><entry id="1"><name>a</name><price currency="EUR">1.5</price></entry></feed>'
    spot = made.geopackage(folder, [made.wkb(1, made.xy(16.37, 48.2))])
    shapes = made.shapefile_zip(folder, ("cities", "rivers"))
    return {
        "Tables of office programs": (made.xlsx({"Cities": ROWS, "x": []}), [["Graz", 302_000, "1928-01-01"]]),
        "ESRI shapefiles": (shapes, [["Größe", 1_900_000, POINT], ["nowhere", None, None]]),
        "GeoPackages": (spot, [[1, "place 1", POINT]]),
        "SQLite databases": (made.sqlite_file([(1, "a")]), [[1, "a"]]),
        "XML": (entry.encode(), [[1, "a", "EUR", 1.5]]),
        "Feeds": (ATOM.encode(), [["urn:1", "News", "html", "2024-05-01T10:00", "https://a.example/1"]]),
        "Avro": (made.avro(1), [[0, "even", "2024-05-01T12:00"]]),
    }


@pytest.mark.parametrize("heading,text", EXAMPLES)
def test_the_example_is_read(heading: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "_run_process", lambda job, check: convert(job))
    data, rows = (FILES | more(tmp_path))[heading]
    got = read(tmp_path, data, read_step(text)).rows
    assert [[plain(value) for value in row] for row in got] == rows


def plain(value: Any) -> Any:
    return value.isoformat()[:16] if hasattr(value, "isoformat") else value


def test_all_are_tried(tmp_path: Path) -> None:
    assert [heading for heading, _ in EXAMPLES] == [*FILES, *more(tmp_path)]


# Few new rows of a root: parsed, merged and written in this process, without a Spark session.

COLUMNS = parse_ddl(("event_time TIMESTAMP, id BIGINT, name STRING",))
MANY_ROWS = 1_000
CSV = "event_time,id,name\n" + "".join(f"2024-05-01T00:{n // 60:02}:{n % 60:02}Z,{n},n{n}\n" for n in range(MANY_ROWS))
OBJECTS = [
    f'{{"event_time": "2024-05-01T00:{n // 60:02}:{n % 60:02}Z", "id": {n}, "name": "n{n}"}}' for n in range(MANY_ROWS)
]
TEXTS: dict[str, tuple[str, Any]] = {
    "csv": (CSV, ReadCsv(schema=COLUMNS, header=True)),
    "guessed": (CSV, ReadCsv(header=True, infer_schema=True)),
    "ndjson": ("\n".join(OBJECTS), ReadNdJson(schema=COLUMNS)),
    "json": (f"[{','.join(OBJECTS)}]", ReadJson(schema=COLUMNS)),
}


def no_spark() -> NoReturn:
    raise AssertionError("a Spark session was opened")


def request(folder: Path, source: Path, read: Any, **more: Any) -> IngestBatchRequest:
    return IngestBatchRequest(
        dataset_id=DatasetId.from_public_key(bytes(32)),
        system_time=instant.parse("2024-06-01T00:00:00Z"),
        vocab=Vocab(),
        read=read,
        merge=more.pop("merge", MergeAppend()),
        source_paths=(str(source),),
        next_offset=0,
        new_data_path=str(folder / "slice"),
        **more,
    )


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    "merge", [MergeAppend(), MergeLedger(primary_key=("id",)), MergeSnapshot(primary_key=("id",))], ids=type
)
def test_a_first_thousand_rows_need_no_spark(name: str, merge: Any, tmp_path: Path) -> None:
    text, read = TEXTS[name]
    source = tmp_path / "source"
    source.write_text(text)
    answer = run_ingest(no_spark, request(tmp_path, source, read, merge=merge), RequestControl())
    assert isinstance(answer, Success), answer
    assert answer.new_offset_interval is not None
    assert pq.read_table(tmp_path / "slice").column("id").to_pylist() == list(range(MANY_ROWS))


def test_later_keys_of_a_ledger_need_no_spark(tmp_path: Path) -> None:
    text, read = TEXTS["csv"]
    source, merge = tmp_path / "source", MergeLedger(primary_key=("event_time", "id"))
    source.write_text(text)
    first = run_ingest(no_spark, request(tmp_path, source, read, merge=merge), RequestControl())
    assert isinstance(first, Success)
    (tmp_path / "slice").rename(tmp_path / "earlier")
    source.write_text(text.replace("2024-05-01", "2024-05-02"))
    later = request(
        tmp_path, source, read, merge=merge, schema=first.schema, prev_data_paths=(str(tmp_path / "earlier"),)
    )
    answer = run_ingest(no_spark, msgspec.structs.replace(later, next_offset=MANY_ROWS), RequestControl())
    assert isinstance(answer, Success), answer
    assert answer.rows is not None
    assert answer.rows.shaped == MANY_ROWS
    assert pq.read_table(tmp_path / "slice").num_rows == MANY_ROWS


def test_a_fault_names_its_line(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text(CSV.replace(",7,n7\n", ",seven,n7\n"))
    answer = run_ingest(no_spark, request(tmp_path, source, TEXTS["csv"][1]), RequestControl())
    assert isinstance(answer, InvalidQuery)
    assert answer.place == "source:9"


@pytest.mark.parametrize("kind", ["text", "parquet"])
def test_what_may_be_large_goes_to_spark(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Parquet file by the rows that it may have, since its size says little of them."""
    source = tmp_path / "source"
    if kind == "text":
        monkeypatch.setattr(parse, "SMALL", len(CSV) // 2)
        source.write_text(CSV)
    else:
        monkeypatch.setattr(parse, "SMALL", 100_000)
        rows = 10_000
        times = pa.array([0] * rows, pa.timestamp("ms", "UTC"))
        pq.write_table(pa.table({"event_time": times, "id": [1] * rows, "name": ["a"] * rows}), source)
        assert source.stat().st_size < 10_000
    read = ReadParquet(schema=COLUMNS) if kind == "parquet" else TEXTS["csv"][1]
    with pytest.raises(AssertionError, match="session was opened"):
        run_ingest(no_spark, request(tmp_path, source, read), RequestControl(), spread=True)


# Texts become values of the columns that are declared.

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
