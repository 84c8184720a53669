"""Spellings of CSV that a manifest declares: from its text, by way of the chain's bytes, to rows of exact types."""

from __future__ import annotations

import datetime as dt
import io
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.model.read_options import READ
from chain.model.source import ReadCsv, ReadEsriShapefile, ReadParquet, ReadStep
from engines.spark.ingest.dialect import Spelling
from worlds.reading import NAME, read, read_step

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
