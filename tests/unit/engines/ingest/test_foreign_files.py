"""Files of others: of each format, packed and hostile ones."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import json
import lzma
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.errors import Environment, Invalid
from chain.model.source import ReadCsv, ReadJson, ReadNdJson, ReadParquet
from engines.spark.ingest import source_files, unpack
from engines.spark.ingest.encodings import guess, with_guess
from engines.spark.ingest.foreign import sqlite_file, xml_records
from engines.spark.ingest.foreign.converting import convert
from engines.spark.ingest.foreign.job import Conversion, ConversionResult
from engines.spark.ingest.unpack import SourceFile, UnpackBounds, unpack_source
from worlds import foreign_bytes as made
from worlds.hostile_files import KINDS, changed, hostile_book, hostile_xml, overlapping
from worlds.reading import NAME, read, read_step

# Tables of office programs, shapefiles, GeoPackages, XML and Avro: rows as they say, or refused by name and place.

TABLE = [["id", "name", "day", "ok"], [1, "a", dt.date(2024, 5, 1), True], [], [2.5, None, None, False]]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Without a process for each file, unless the test is about that."""
    if "process" not in request.fixturenames:
        monkeypatch.setattr(source_files, "_run_process", lambda job, check: convert(job))


@pytest.fixture
def process() -> None: ...


def table(more: str = "") -> Any:
    return read_step(
        "kind: Spreadsheet\nheader: true\nddlSchema: ['id DOUBLE, name STRING, day DATE, ok BOOLEAN']\n" + more
    )


def test_a_sheet_is_read(tmp_path: Path) -> None:
    rows = [[1.0, "a", dt.date(2024, 5, 1), True], [2.5, None, None, False]]
    assert read(tmp_path, made.xlsx({"One": TABLE}), table()).rows == rows
    two = made.xlsx({"One": [["x"]], "Two": TABLE})
    assert read(tmp_path, two, table("sheet: Two")).rows == rows
    for more, said in [("", "2 sheets in"), ("sheet: Three", "no sheet 'Three' in")]:
        with pytest.raises(Invalid, match=said) as told:
            read(tmp_path, two, table(more))
        assert "One, Two" in told.value.hint
    ids = read_step("kind: Spreadsheet\nheader: true\nddlSchema: ['id BIGINT, name STRING']")
    assert read(tmp_path, made.ods({"S": [["id", "name"], [7, "x"]]}), ids).rows == [[7, "x"]]


def test_a_fault_in_a_sheet_names_its_row(tmp_path: Path) -> None:
    ids = read_step("kind: Spreadsheet\nheader: true\nskipRows: 1\nddlSchema: ['id BIGINT']")
    with pytest.raises(Invalid, match=r"'2\.5' is not an Int64") as told:
        read(tmp_path, made.xlsx({"S": [["title"], ["id"], [1], [], [2.5]]}), ids)
    assert told.value.place == f"{NAME}:5"


@pytest.mark.parametrize("kind", ["Spreadsheet", "Avro", "GeoPackage", "EsriShapefile", "Sqlite"])
def test_what_is_something_else_is_refused(kind: str, tmp_path: Path) -> None:
    for data in (
        b"a,b\n1,2\n",
        made.zipped({"a.csv": "a\n"}),
        b"SQLite format 3\0" + bytes(4096),
        b"Obj\x01" + b"\xff" * 50,
    ):
        with pytest.raises(Invalid) as told:
            read(tmp_path, data, read_step(f"kind: {kind}"))
        assert told.value.hint, data[:10]


def features(read_rows: list[list[Any]], place: int = 0) -> list[Any]:
    return [row[place] and json.loads(row[place]) for row in read_rows]


POINT = {"type": "Point", "coordinates": [16.37, 48.2]}


def test_shapefiles(tmp_path: Path) -> None:
    step = read_step(
        "kind: EsriShapefile\nddlSchema: ['name STRING, people BIGINT, share DOUBLE, founded DATE, geometry STRING']"
    )
    for encoding in ("utf-8", "cp1252"):
        got = read(tmp_path, made.shapefile_zip(tmp_path, encoding=encoding), step)
        assert got.rows[0][:4] == ["Größe", 1_900_000, 0.125, dt.date(1221, 10, 18)]
        assert got.rows[1] == ["nowhere", None, None, None, None]
        assert features(got.rows, 4) == [POINT, None]
    web = 'PROJCS["WGS_1984_Web_Mercator",GEOGCS["GCS_WGS_1984"]]'
    crs = {"type": "name", "properties": {"name": "WGS_1984_Web_Mercator"}}
    assert features(read(tmp_path, made.shapefile_zip(tmp_path, prj=web), step).rows, 4)[0] == {**POINT, "crs": crs}
    plain = made.shapefile_zip(tmp_path, prj='GEOGCS["GCS_WGS_1984",DATUM["D"]]')
    assert features(read(tmp_path, plain, step).rows, 4)[0] == POINT


def test_one_of_several_shapefiles(tmp_path: Path) -> None:
    two = made.shapefile_zip(tmp_path, ("cities", "rivers"))
    with pytest.raises(Invalid, match="2 shapefiles in") as told:
        read(tmp_path, two, read_step("kind: EsriShapefile"))
    assert "data/cities.shp, data/rivers.shp" in told.value.hint
    for sub_path in ("data/rivers.shp", "*rivers*"):
        assert len(read(tmp_path, two, read_step(f"kind: EsriShapefile\nsubPath: '{sub_path}'")).rows) == 2


LAYER = "kind: GeoPackage\nddlSchema: ['id BIGINT, name STRING, geometry STRING']"


def test_geopackages(tmp_path: Path) -> None:
    square = made.counted(made.counted(made.xy(0, 0), made.xy(1, 0), made.xy(1, 1), made.xy(0, 0)))
    shapes = {
        "Point": (made.wkb(1, made.xy(1, 2)), [1, 2]),
        "Point Z": (made.wkb(1001, made.xy(1, 2, 3)), [1, 2, 3]),
        "Point M": (made.wkb(2001, made.xy(1, 2, 9)), [1, 2]),
        "LineString": (made.wkb(2, made.counted(made.xy(1, 2), made.xy(3, 4))), [[1, 2], [3, 4]]),
        "Polygon": (made.wkb(3, square), [[[0, 0], [1, 0], [1, 1], [0, 0]]]),
        "MultiPoint": (made.wkb(4, made.counted(made.wkb(1, made.xy(1, 2)))), [[1, 2]]),
    }
    got = read(tmp_path, made.geopackage(tmp_path, [blob for blob, _ in shapes.values()] + [None]), read_step(LAYER))
    found = features(got.rows, 2)
    assert [each["coordinates"] for each in found[:-1]] == [wanted for _, wanted in shapes.values()]
    assert found[-1] is None
    assert got.rows[0][:2] == [1, "place 1"]
    other = read(tmp_path, made.geopackage(tmp_path, [shapes["Point"][0]], 3857), read_step(LAYER))
    assert features(other.rows, 2)[0]["crs"]["properties"]["name"] == "EPSG:3857"
    with pytest.raises(Invalid, match="no layer 'roads'"):
        read(tmp_path, made.geopackage(tmp_path, []), read_step("kind: GeoPackage\nlayer: roads"))


@pytest.mark.parametrize(
    "blob", [made.wkb(2, b"\xff\xff\xff\xff"), made.wkb(99), b"\x01", made.wkb(7, made.counted(made.wkb(7))) * 9, b""]
)
def test_a_broken_geometry_is_refused(blob: bytes, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="not a GeoPackage that can be read"):
        read(tmp_path, made.geopackage(tmp_path, [blob]), read_step(LAYER))
    nested = made.wkb(1, made.xy(1, 2))
    for _ in range(sqlite_file._DEPTH + 2):
        nested = made.wkb(7, made.counted(nested))
    with pytest.raises(Invalid, match="too many levels"):
        read(tmp_path, made.geopackage(tmp_path, [nested]), read_step(LAYER))


def test_tables_of_sqlite(tmp_path: Path) -> None:
    step = read_step("kind: Sqlite\nddlSchema: ['id BIGINT, name STRING']")
    rows = [(1, "a"), (1 << 62, None)]
    assert read(tmp_path, made.sqlite_file(rows), step).rows == [list(row) for row in rows]
    odd = 'we"ird; --'
    assert read(tmp_path, made.sqlite_file(rows, odd), step).rows == [list(row) for row in rows]
    named = read_step("kind: Sqlite\ntable: other\nddlSchema: ['id BIGINT']")
    with pytest.raises(Invalid, match="no table 'other'"):
        read(tmp_path, made.sqlite_file(rows), named)
    for value, said in [(b"x", "column 'name' holds bytes"), (float("inf"), "column 'name' holds inf")]:
        with pytest.raises(Invalid, match=said) as told:
            read(tmp_path, made.sqlite_file([(1, "a"), (2, value)]), step)
        assert told.value.place == f"{NAME}:2"


FEED = """<?xml version="1.0"?>
<feed xmlns="http://example.com/a">
  <title>All</title>
  <entry id="1"><name>a, "b"</name><price currency="EUR">1.5</price></entry>

  <entry id="2">
    <name/>
    <price>2</price>
    <at>2024-05-01T00:00:00Z</at>
  </entry>
</feed>
"""


def test_records_of_xml(tmp_path: Path) -> None:
    step = read_step("kind: Xml\nrecord: feed/entry")
    got = read(tmp_path, FEED, step)
    assert got.table.column_names == ["@id", "name", "price/@currency", "price", "at"]
    assert got.rows == [["1", 'a, "b"', "EUR", "1.5", None], ["2", None, None, "2", "2024-05-01T00:00:00Z"]]
    typed = "ddlSchema: ['id BIGINT, name STRING, price_currency STRING, price DOUBLE, at TIMESTAMP']"
    rows = read(tmp_path, FEED, read_step(f"kind: Xml\nrecord: feed/entry\n{typed}")).rows
    assert [row[:4] for row in rows] == [[1, 'a, "b"', "EUR", 1.5], [2, None, None, 2.0]]
    with pytest.raises(Invalid, match="'two' is not a Float64") as told:
        read(tmp_path, FEED.replace(">2<", ">two<"), read_step(f"kind: Xml\nrecord: feed/entry\n{typed}"))
    assert told.value.place == f"{NAME}:6"


@pytest.mark.parametrize(
    "text,said,line",
    [
        (FEED.replace("<name/>", "<name>x</name><name>y</name>"), "'name' occurs more than once", 7),
        (FEED.replace("</feed>", ""), "not XML: no element found", 12),
        (FEED.replace("<feed", '<!DOCTYPE x [<!ENTITY a "aaaa">]><feed'), "a document type", 2),
        ("<feed>" + "<a>" * 200, "elements of more than", 1),
        ("<other/>", "no record feed/entry", None),
    ],
)
def test_xml_that_is_no_table_is_refused(text: str, said: str, line: int | None, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=said) as told:
        read(tmp_path, text, read_step("kind: Xml\nrecord: feed/entry"))
    assert told.value.place == (NAME if line is None else f"{NAME}:{line}")


def test_records_do_not_depend_on_how_they_are_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = read(tmp_path, FEED, read_step("kind: Xml\nrecord: feed/entry")).rows
    monkeypatch.setattr(xml_records, "CHUNK", 3)
    assert read(tmp_path, FEED, read_step("kind: Xml\nrecord: feed/entry")).rows == whole


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_avro(codec: str, tmp_path: Path) -> None:
    got = read(tmp_path, made.avro(3, codec), read_step("kind: Avro"))
    at = dt.datetime(2024, 5, 1, 12, 0, 0, 2, tzinfo=dt.UTC)
    assert [str(value) for value in got.rows[2][:3]] == ["2", "even", "1234567890.12"]
    assert got.rows[2][3:] == [at, [0.5, 0.5], {"a": 2}]


@pytest.mark.parametrize(
    "kind",
    [{"type": "map", "values": "int"}, ["int", "string"], {"type": "long", "logicalType": "local-timestamp-millis"}],
)
def test_what_no_column_holds_is_refused_by_its_name(kind: Any, tmp_path: Path) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "odd", "type": kind}]}
    with pytest.raises(Invalid, match="column 'odd' is a"):
        read(tmp_path, made.avro(0, schema=schema), read_step("kind: Avro"))


def job(tmp_path: Path, kind: str = "Xml") -> Any:
    path = tmp_path / "in.xml"
    path.write_text(FEED)
    return SourceFile(path, "in.xml")


@pytest.mark.slow
def test_a_file_is_read_by_a_process_of_its_own(process: None, tmp_path: Path) -> None:
    step = read_step("kind: Xml\nrecord: feed/entry")
    made_file = source_files.converted_file(job(tmp_path), step, tmp_path / "o", UnpackBounds(), lambda: None)
    assert made_file.path.read_text().count("\n") >= 3


@pytest.mark.parametrize(
    "script,fault,said",
    [
        ("import os; os.abort()", Invalid, "its reader was ended"),
        ("import sys; sys.exit('MemoryError')", Invalid, "its reader was ended"),
        ("import sys; sys.exit('no module')", Environment, "no module"),
    ],
)
def test_a_reader_that_dies_is_told(
    process: None, script: str, fault: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = tmp_path / "python"
    dying.write_text(f"#!{sys.executable}\n{script}\n")
    dying.chmod(0o755)
    monkeypatch.setattr(source_files.sys, "executable", str(dying))
    step = read_step("kind: Xml\nrecord: feed/entry")
    with pytest.raises(fault, match=said):
        source_files.converted_file(job(tmp_path), step, tmp_path / "o", UnpackBounds(), lambda: None)


@pytest.mark.slow
def test_a_stopped_request_ends_its_reader(process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = tmp_path / "python"
    waiting.write_text("#!/bin/sh\nexec sleep 600\n")
    waiting.chmod(0o755)
    monkeypatch.setattr(source_files.sys, "executable", str(waiting))
    step = read_step("kind: Xml\nrecord: feed/entry")

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        source_files.converted_file(job(tmp_path), step, tmp_path / "o", UnpackBounds(), stop)


def test_no_text_grows_beyond_its_bounds(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="unpacks to more than 10 bytes"):
        source_files.converted_file(
            job(tmp_path),
            read_step("kind: Xml\nrecord: feed/entry"),
            tmp_path / "o",
            UnpackBounds(size=10),
            lambda: None,
        )
    assert ConversionResult.of(Invalid("m", rule="r", hint="h", place="p")).fault() is not None
    assert ConversionResult().fault() is None
    assert Conversion.__struct_config__.frozen


@pytest.mark.slow
def test_a_table_of_more_cells_than_memory_harms_its_reader_alone(process: None, tmp_path: Path) -> None:
    """Attack T-BYTES-02: office tables, shapefiles, databases, XML or Avro that attack their reader.

    Defence: each file is converted by a process of its own in the engine's sandbox, within 2 GiB; a crash is a fault of
    that file; document types are refused.

    Two cells in opposite corners of a sheet, which its library keeps room for all between.
    """
    corner = '<row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData>'
    with zipfile.ZipFile(io.BytesIO(made.xlsx({"S": [["a"]]}))) as archive:
        parts = {name: archive.read(name).replace(b"</sheetData>", corner.encode()) for name in archive.namelist()}
    path = tmp_path / "bomb.xlsx"
    path.write_bytes(made.zipped(parts))
    step, bounds = read_step("kind: Spreadsheet"), UnpackBounds()
    with pytest.raises(Invalid, match="its reader was ended, as for memory"):
        source_files.converted_file(SourceFile(path, "bomb.xlsx"), step, tmp_path / "o", bounds, lambda: None)


# Files that are packed, or in another encoding, are read for what is in them, within bounds.

AB = ReadCsv(header=True, ddl_schema=("a STRING, b STRING",))
ROWS = b"a,b\n1,2\n"


def zstd_frame(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": zstd_frame,
    "zip": lambda data: zipped({"a.csv": data, "__MACOSX/a.csv": b"x", "d/": b""}),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_is_packed_is_read_whatever_it_is_called(packing: str, tmp_path: Path) -> None:
    assert read(tmp_path, PACKINGS[packing](ROWS), AB).rows == [["1", "2"]]


@pytest.mark.parametrize("packing", ["gzip", "bzip2", "xz", "zstandard"])
def test_packings_behind_and_in_one_another(packing: str, tmp_path: Path) -> None:
    pack = PACKINGS[packing]
    assert read(tmp_path, pack(b"a,b\n") + pack(b"1,2\n") * 2, AB).rows == [["1", "2"]] * 2
    assert read(tmp_path, gzip.compress(pack(ROWS)), AB).rows == [["1", "2"]]
    with pytest.raises(Invalid) as told:
        read(tmp_path, pack(pack(pack(pack(ROWS)))), AB)
    assert told.value.rule == "unpack-layers"


def test_streams_that_fill_up_with_zeros_and_cross_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "CHUNK", 7)
    rows = b"".join(b"%d,%d\n" % (n, n) for n in range(50))
    data = lzma.compress(b"a,b\n") + bytes(8) + lzma.compress(rows)
    assert len(read(tmp_path, data, AB).rows) == 50
    assert len(read(tmp_path, bz2.compress(b"a,b\n") + bz2.compress(rows), AB).rows) == 50


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_is_cut_off_is_refused(packing: str, tmp_path: Path) -> None:
    whole = PACKINGS[packing](b"a,b\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(500)))
    with pytest.raises(Invalid, match="is not whole") as told:
        read(tmp_path, whole[: len(whole) // 2], AB)
    assert (told.value.rule, told.value.hint) == ("unpack", "check that the file is complete")


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_bombs_are_refused(packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-BYTES-02: compressed source files that expand when they are read.

    Defence: decompressed in the engine's process by blocks, up to a size, a ratio and three layers; xz within 256 MiB.
    """
    monkeypatch.setattr(unpack, "FREE", 1 << 16)
    bomb = tmp_path / "bomb"
    bomb.write_bytes(PACKINGS[packing](bytes(4 << 20)))
    small = UnpackBounds(size=1 << 16, ratio=1 << 30)
    for bounds, rule in [(UnpackBounds(ratio=10), "unpack-ratio"), (small, "max-source-bytes")]:
        folder = tmp_path / rule
        folder.mkdir()
        with pytest.raises(Invalid) as told:
            unpack_source(SourceFile(bomb, "bomb"), folder, bounds)
        assert told.value.rule == rule
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 2 << 20


def test_a_zip_of_several_asks_which(tmp_path: Path) -> None:
    data = zipped({"a.csv": ROWS, "b.csv": ROWS, "README": b"hello"})
    with pytest.raises(Invalid) as told:
        read(tmp_path, data, AB)
    assert told.value.message == f"{NAME} holds 3 files"
    assert "members: '*.csv'" in told.value.hint
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    found = unpack_source(SourceFile(path, "a.zip"), tmp_path, UnpackBounds(), "*.csv")
    assert [each.name for each in found] == ["a.zip/a.csv", "a.zip/b.csv"]
    with pytest.raises(Invalid, match=r"no file in a\.zip is called '\*\.txt'"):
        unpack_source(SourceFile(path, "a.zip"), tmp_path, UnpackBounds(), "*.txt")


def test_an_office_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is a table of an office program") as told:
        read(tmp_path, zipped({"[Content_Types].xml": b"<a/>", "xl/workbook.xml": b"<a/>"}), AB)
    assert "kind: Spreadsheet" in told.value.hint


def test_packed_parquet_is_parquet(tmp_path: Path) -> None:
    whole = io.BytesIO()
    pq.write_table(pa.table({"a": ["x"] * 3}), whole)
    assert read(tmp_path, gzip.compress(whole.getvalue()), ReadParquet()).rows == [["x"]] * 3


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-be", "utf-32", "iso8859-15", "mac-roman"])
def test_a_declared_encoding_is_read(encoding: str, tmp_path: Path) -> None:
    data = "a,b\nGröße,ÄÖ\n".encode(encoding)
    step = ReadCsv(header=True, encoding=encoding, ddl_schema=AB.ddl_schema)
    assert read(tmp_path, data, step).rows == [["Größe", "ÄÖ"]]
    assert read(tmp_path, gzip.compress(data), step).rows == [["Größe", "ÄÖ"]]
    objects = '{"a": "ä"}\n'.encode(encoding)
    assert read(tmp_path, objects, ReadNdJson(encoding=encoding, ddl_schema=("a STRING",))).rows == [["ä"]]
    assert read(tmp_path, b"[" + b"]", ReadJson(encoding="utf8", ddl_schema=("a STRING",))).rows == []


def test_what_is_not_in_its_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    data = b"a,b\n" + "1,日\n".encode("shift_jis") * 2 + b"\x81\xff,1\n"
    with pytest.raises(Invalid, match="not shift_jis: byte 0x81") as told:
        read(tmp_path, data, ReadCsv(header=True, encoding="sjis", ddl_schema=AB.ddl_schema))
    assert told.value.place == f"{NAME}:4"
    for name in ("rot13", "hex", "idna", "utf-7", "unicode_escape", "nope", "a\0b"):
        with pytest.raises(Invalid, match="is not known"):
            read(tmp_path, ROWS, ReadCsv(encoding=name, ddl_schema=AB.ddl_schema))


def test_a_guess_is_told_and_not_used(tmp_path: Path) -> None:
    """Only where the text is no UTF-8."""
    words = "Der Zug fährt über Köln nach Süden, und die Größe der Straße ändert sich täglich.\n" * 20
    data = b"a\n" + words.encode("cp1252")
    path = tmp_path / "words.csv"
    path.write_bytes(data)
    with pytest.raises(Invalid, match="not UTF-8") as caught:
        read(tmp_path, data, ReadCsv(header=True, ddl_schema=("a STRING",), separator=";"))
    fault = Invalid(caught.value.message, rule=caught.value.rule, place="words.csv:2")
    told = with_guess(fault, [SourceFile(path, "words.csv")])
    found = guess(data)
    assert found is not None
    assert f"say `encoding: {found}`" in told.hint
    assert words in data.decode(found)
    assert guess(words.encode()) is None


# Files of strangers made to read others, to expand, or to be something else: each attack is tried on its reader.

SHEET, ENTRIES = read_step("kind: Spreadsheet\nheader: true"), read_step("kind: Xml\nrecord: feed/entry")
SECRET = "what only this machine knows"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("place", ["<entry><a>{}</a></entry>", '<entry a="{}"/>'])
def test_nothing_that_a_document_type_says_is_expanded(
    kind: str, encoding: str, place: str, secret: Path, tmp_path: Path
) -> None:
    """Attack T-BYTES-02: XML with entities that double, or that name a file or an address of this machine, in any
    encoding.

    Defence: a document type is refused where it begins, and nothing that was not declared is looked up.
    """
    with pytest.raises(Invalid, match="a document type") as caught:
        read(tmp_path, hostile_xml(kind, secret, encoding, place), ENTRIES)
    assert SECRET not in str(caught.value)


def test_entities_that_were_never_declared_and_inclusions_bring_nothing(secret: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="not XML: undefined entity"):
        read(tmp_path, "<feed><entry><a>&a;</a></entry></feed>", ENTRIES)
    include = f'<x:include xmlns:x="http://www.w3.org/2001/XInclude" href="{secret.as_uri()}" parse="text"/>'
    got = read(tmp_path, f"<feed><entry><b>1</b><a>{include}</a></entry></feed>", ENTRIES)
    assert SECRET not in str(got.rows)
    assert got.rows[0][0] == "1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("book", [made.xlsx, made.ods], ids=["xlsx", "ods"])
def test_nothing_in_an_office_table_is_expanded(
    kind: str, book: Callable[..., bytes], secret: Path, tmp_path: Path
) -> None:
    """Attack T-BYTES-02: an xlsx or ods table with XML entities that double, or that name a file or an address.

    Defence: its reader knows no entities, and refuses the table.
    """
    honest = book({"S": [["a"], ["SAID"]]})
    assert read(tmp_path, honest, SHEET).rows == [["SAID"]]
    hostile = hostile_book(kind, secret, honest)
    with pytest.raises(Invalid, match="not a table of an office program") as caught:
        read(tmp_path, hostile, SHEET)
    assert SECRET not in str(caught.value)


def test_a_sheet_that_says_it_is_large_takes_no_room(tmp_path: Path) -> None:
    said = '<dimension ref="A1:XFD1048576"/><sheetData>'
    hostile = changed(made.xlsx({"S": [["a"], ["x"]]}), lambda text: text.replace("<sheetData>", said))
    assert read(tmp_path, hostile, SHEET).rows == [["x"]]


@pytest.mark.slow
def test_members_that_are_one_another_count_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-BYTES-02: a zip whose names lead to one another's bytes, so that they count once.

    Defence: all that comes out of a file counts, for its ratio too.

    Which is refused as soon as the second name is read, or where all that comes out is too much for the file.
    """
    monkeypatch.setattr(unpack, "FREE", 4 << 20)
    path = tmp_path / "bomb.zip"
    path.write_bytes(overlapping(400))
    assert path.stat().st_size < 32 << 10
    (folder := tmp_path / "o").mkdir()
    with pytest.raises(Invalid) as caught:
        unpack_source(SourceFile(path, "bomb.zip"), folder, UnpackBounds(), "*")
    assert caught.value.rule in ("unpack", "unpack-ratio")
    assert sum(each.stat().st_size for each in folder.iterdir()) <= 9 << 20


def test_a_zip_within_a_zip_is_no_table(tmp_path: Path) -> None:
    inner = made.zipped({"a.csv": "a\n1\n"})
    for _ in range(3):
        inner = made.zipped({"a.zip": inner})
    with pytest.raises(Invalid, match="a zip archive") as caught:
        read(tmp_path, inner, read_step("kind: Csv\nheader: true"))
    assert caught.value.rule == "read-kind-of-file"


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "..\\out", "C:\\out"])
def test_a_member_is_written_nowhere_but_in_its_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(made.zipped({name: "a\n1\n"}))
    (folder := tmp_path / "o").mkdir()
    (found,) = unpack_source(SourceFile(path, "a.zip"), folder, UnpackBounds())
    assert found.path.parent == folder
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.zip", "o"]
