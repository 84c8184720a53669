"""Every manifest of docs/sources.md reads what it is an example of."""

from __future__ import annotations

import datetime as dt
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.spark.ingest import source_files
from engines.spark.ingest.foreign.converting import convert
from worlds import foreign_bytes as made
from worlds.reading import read, read_step

PAGE = (Path(__file__).parents[4] / "docs" / "sources.md").read_text()
EXAMPLES = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```yaml\nread:\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)


def zipped(members: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return out.getvalue()


REPORT = "Bericht\n\nday;at;amount\n# heute\n01.05.2024;01.05.2024 12:30;1.234,5\n2.5.2024;n/a;-\nSumme;;\n"
FILES: dict[str, tuple[bytes, list[list[Any]]]] = {
    "Packed files": (
        zipped({"data/b.csv": "id,name\n2,b\n", "data/a.csv": "id,name\n1,a\n", "README": ""}),
        [[1, "a"], [2, "b"]],
    ),
    "Spellings of CSV": (
        REPORT.encode("cp1252"),
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
