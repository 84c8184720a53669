"""Chooses one part of a file that has several: a sheet, a table, a layer or a shapefile, by what is in it."""

from __future__ import annotations

import sqlite3
import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from chain.errors import Invalid
from chain.terminal_text import visible
from engines.spark.ingest.unpack import member_names
from odfd.cli.offline.sampling.guess import Guess

MOST: Final = 20
"""Parts that are looked into."""
_ROWS: Final = 100
_OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "Spreadsheet": ("sheet", "sheets"),
    "Sqlite": ("table", "tables"),
    "GeoPackage": ("layer", "layers"),
    "EsriShapefile": ("subPath", "shapefiles"),
}
"""By kind the option of the read step that names a part, and how parts are called."""
Look = Callable[[Mapping[str, Any], int], tuple[int, int]]
"""Reads a part by a read step, at most so many rows; returns the numbers of its columns and rows. Raises Invalid."""


def with_part(path: Path, found: Guess, look: Look) -> Guess:
    """Adds to a guess which part is read, with the doubt: the one with the most columns, then rows, then the first."""
    names = _names(path, found.read["kind"])
    if len(names) < 2:
        return found
    option, called = _OPTIONS[found.read["kind"]]
    best: tuple[tuple[int, int], str] | None = None
    for name in names[:MOST]:
        try:
            size = look({**found.read, option: name}, _ROWS)
        except Invalid:  # an empty sheet, or one that is no table
            continue
        if best is None or size > best[0]:
            best = size, name
    if best is None:
        return found
    listed = ", ".join(names[:MOST]) + (", …" if len(names) > MOST else "")
    doubt = f"of the {called} {listed} this one is taken, as it has the most columns"
    return found._replace(read={**found.read, option: best[1]}, unsure=(visible(doubt), *found.unsure))


def _names(path: Path, kind: str) -> list[str]:
    """Returns the names of the parts; none if they cannot be read, which reading the file then tells."""
    try:
        if kind == "Spreadsheet":
            from python_calamine import CalamineError, CalamineWorkbook

            try:
                return list(CalamineWorkbook.from_path(str(path)).sheet_names)
            except CalamineError:
                return []
        if kind == "EsriShapefile":
            with zipfile.ZipFile(path) as archive:
                return [name for name in member_names(archive) if name.lower().endswith(".shp")]
        if kind in _TABLES:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
                return sorted(name for (name,) in base.execute(_TABLES[kind]))
    except (OSError, sqlite3.Error, zipfile.BadZipFile, UnicodeDecodeError):
        pass
    return []


_TABLES: Final = {
    "Sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'",
    "GeoPackage": "SELECT table_name FROM gpkg_contents WHERE data_type IN ('features', 'attributes')",
}
