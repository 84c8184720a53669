"""Small files of kinds that need a reader of their own, made byte by byte or by the library that reads them."""

from __future__ import annotations

import datetime as dt
import io
import sqlite3
import struct
import zipfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import shapefile

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_DOCUMENT = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return out.getvalue()


def xlsx(sheets: Mapping[str, Sequence[Sequence[Any]]]) -> bytes:
    """Cells are texts, numbers, booleans, dates, or nothing."""
    parts, listed, relations = {}, [], []
    for number, (name, rows) in enumerate(sheets.items(), 1):
        listed.append(f'<sheet name="{name}" sheetId="{number}" r:id="r{number}"/>')
        target = f"worksheets/sheet{number}.xml"
        relations.append(f'<Relationship Id="r{number}" Type="{_REL}/worksheet" Target="{target}"/>')
        body = "".join(
            f'<row r="{at}">{"".join(_cell(cell, f"{chr(65 + place)}{at}") for place, cell in enumerate(row))}</row>'
            for at, row in enumerate(rows, 1)
        )
        parts[f"xl/{target}"] = f'<worksheet xmlns="{_MAIN}"><sheetData>{body}</sheetData></worksheet>'
    relations.append(f'<Relationship Id="s" Type="{_REL}/styles" Target="styles.xml"/>')
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
            f'<Override PartName="/xl/workbook.xml" ContentType="{_DOCUMENT}.sheet.main+xml"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
            f'<Relationship Id="w" Type="{_REL}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_REL}">'
            f"<sheets>{''.join(listed)}</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
            f"{''.join(relations)}</Relationships>",
            "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><cellXfs count="2"><xf numFmtId="0"/>'
            '<xf numFmtId="14" applyNumberFormat="1"/></cellXfs></styleSheet>',
            **parts,
        }
    )


def _cell(cell: Any, at: str) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return f'<c r="{at}" t="b"><v>{int(cell)}</v></c>'
        case int() | float():
            return f'<c r="{at}"><v>{cell}</v></c>'
        case dt.date():
            return f'<c r="{at}" s="1"><v>{(cell - dt.date(1899, 12, 30)).days}</v></c>'
    return f'<c r="{at}" t="inlineStr"><is><t>{cell}</t></is></c>'


def ods(sheets: Mapping[str, Sequence[Sequence[Any]]]) -> bytes:
    tables = ""
    for name, rows in sheets.items():
        body = ""
        for row in rows:
            cells = "".join(
                f'<table:table-cell office:value-type="float" office:value="{cell}"><text:p>{cell}</text:p>'
                "</table:table-cell>"
                if isinstance(cell, int | float)
                else f'<table:table-cell office:value-type="string"><text:p>{cell}</text:p></table:table-cell>'
                for cell in row
            )
            body += f"<table:table-row>{cells}</table:table-row>"
        tables += f'<table:table table:name="{name}">{body}</table:table>'
    space = "urn:oasis:names:tc:opendocument:xmlns:"
    content = (
        f'<office:document-content xmlns:office="{space}office:1.0" xmlns:table="{space}table:1.0" '
        f'xmlns:text="{space}text:1.0"><office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body>'
        "</office:document-content>"
    )
    manifest = f'<manifest:manifest xmlns:manifest="{space}manifest:1.0"/>'
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    return zipped({"mimetype": kind, "META-INF/manifest.xml": manifest, "content.xml": content})


def shapefile_zip(folder: Path, names: Sequence[str] = ("cities",), prj: str = "", encoding: str = "utf-8") -> bytes:
    """Two points each, one without a place."""
    members: dict[str, str | bytes] = {}
    for name in names:
        shp, shx, dbf = io.BytesIO(), io.BytesIO(), io.BytesIO()
        with shapefile.Writer(shp=shp, shx=shx, dbf=dbf, encoding=encoding) as writer:
            writer.shapeType = shapefile.POINT
            for field in (("name", "C", 40, 0), ("people", "N", 18, 0), ("share", "N", 10, 3), ("founded", "D", 8, 0)):
                writer.field(*field)
            writer.point(16.37, 48.2)
            writer.record("Größe", 1_900_000, 0.125, dt.date(1221, 10, 18))
            writer.null()
            writer.record("nowhere", None, None, None)
            parts = {"shp": shp, "shx": shx, "dbf": dbf}
            writer.close()
        for ending, file in parts.items():
            members[f"data/{name}.{ending}"] = file.getvalue()
        if prj:
            members[f"data/{name}.prj"] = prj
        members[f"data/{name}.cpg"] = encoding
    return zipped(members)


def wkb(kind: int, *body: bytes) -> bytes:
    return struct.pack("<BI", 1, kind) + b"".join(body)


def xy(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def counted(*parts: bytes) -> bytes:
    return struct.pack("<I", len(parts)) + b"".join(parts)


def geopackage(folder: Path, shapes: Sequence[bytes | None], srs: int = 4326) -> bytes:
    path = folder / "made.gpkg"
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    base.executescript(
        """
        CREATE TABLE gpkg_spatial_ref_sys (srs_id INTEGER, organization TEXT, organization_coordsys_id INTEGER);
        CREATE TABLE gpkg_contents (table_name TEXT, data_type TEXT);
        CREATE TABLE gpkg_geometry_columns (table_name TEXT, column_name TEXT, srs_id INTEGER);
        INSERT INTO gpkg_spatial_ref_sys VALUES (4326, 'EPSG', 4326), (3857, 'epsg', 3857);
        INSERT INTO gpkg_contents VALUES ('places', 'features'), ('tiles', 'tiles');
        CREATE TABLE places (id INTEGER, geom BLOB, name TEXT);
        """
    )
    base.execute("INSERT INTO gpkg_geometry_columns VALUES ('places', 'geom', ?)", (srs,))
    for number, shape in enumerate(shapes, 1):
        blob = None if shape is None else b"GP\0\x01" + struct.pack("<i", srs) + shape
        base.execute("INSERT INTO places VALUES (?, ?, ?)", (number, blob, f"place {number}"))
    base.commit()
    base.close()
    return path.read_bytes()


def sqlite_file(rows: Sequence[tuple[Any, Any]], table: str = "orders") -> bytes:
    base = sqlite3.connect(":memory:")
    table = table.replace('"', '""')
    base.execute(f'CREATE TABLE "{table}" (id, name)')
    base.executemany(f'INSERT INTO "{table}" VALUES (?, ?)', rows)
    base.commit()
    data = base.serialize()
    base.close()
    return data


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "reading",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "word", "type": ["null", "string"]},
        {"name": "exact", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "parts", "type": {"type": "array", "items": "double"}},
        {"name": "inner", "type": {"type": "record", "name": "inner", "fields": [{"name": "a", "type": "int"}]}},
    ],
}


def avro(rows: int = 2, codec: str = "deflate", schema: dict[str, Any] | None = None, **more: Any) -> bytes:
    out = io.BytesIO()
    records = [
        {
            "id": number,
            "word": None if number % 2 else "even",
            "exact": Decimal("1234567890.12"),
            "at": dt.datetime(2024, 5, 1, 12, 0, 0, number, tzinfo=dt.UTC),
            "parts": [0.5] * number,
            "inner": {"a": number},
            **more,
        }
        for number in range(rows)
    ]
    fastavro.writer(out, schema or AVRO, records, codec=codec)
    return out.getvalue()
