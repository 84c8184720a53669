"""Infers a read step from a file's bytes, with its columns and uncertainties.

Decides by a sample: which part of a file that has several, which elements of an XML document are its rows. The read
step is tried on the file before it is returned (``read_sample``), as the engine would read it.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sqlite3
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.parsers import expat

import msgspec

from chain.codec.manifest import from_builtins
from chain.data.arrow_schema import from_arrow
from chain.data.ddl import parse_ddl
from chain.errors import Invalid
from chain.libraries import pa
from chain.model.read_options import KINDS, NAMES, READ
from chain.model.source import (
    ReadCsv,
    ReadEsriShapefile,
    ReadGeoJson,
    ReadJson,
    ReadNdGeoJson,
    ReadNdJson,
    ReadParquet,
    ReadStep,
)
from chain.terminal_text import visible
from chain.wording import plural
from engines.spark.ingest.encodings import UTF8, guess, with_guess
from engines.spark.ingest.parse import plan_file, read_schema
from engines.spark.ingest.range_tasks import ParquetFormat, RangeTask, parse
from engines.spark.ingest.ranges import Range
from engines.spark.ingest.source_files import open_sources
from engines.spark.ingest.unpack import SourceFile, UnpackBounds, member_names, unpack_source
from odfd.cli.offline.sampling.text_types import TEXT, Guess, GuessedColumn, column_of

_BOUNDS: Final = UnpackBounds()


class SampleRows(NamedTuple):
    """The first rows of a file, and remarks on them."""

    rows: pa.Table
    remarks: tuple[str, ...]


def read_sample(path: Path, name: str, step: ReadStep, limit: int, bounds: UnpackBounds = _BOUNDS) -> SampleRows:
    """Reads at most ``limit`` rows, of the first range only. Raises Invalid as an ingest does; Environment."""
    with tempfile.TemporaryDirectory(prefix="odfctl-") as scratch:
        folder = Path(scratch)
        sources = open_sources([SourceFile(path, name)], step, folder, bounds)
        try:
            return _first(sources.files, sources.step, sources.remarks, limit, folder)
        except Invalid as fault:
            raise with_guess(fault, sources.files) from fault


def _first(files: list[SourceFile], step: ReadStep, remarks: tuple[str, ...], limit: int, folder: Path) -> SampleRows:
    wanted, tables = read_schema(step), []
    for file in files:
        if not file.path.stat().st_size:
            continue
        plan = plan_file(file, step, wanted)
        wanted = plan.schema
        remarks += plan.remarks
        span = plan.spans[0] if plan.spans else Range(0, 0)
        task = RangeTask(
            path=str(file.path), name=file.name, span=span, format=plan.format, schema=wanted, part=str(folder / "part")
        )
        if plan.spans or isinstance(plan.format, ParquetFormat):
            tables.append(parse(task).table.slice(0, limit))
        if sum(table.num_rows for table in tables) >= limit:
            break
    columns = wanted if wanted is not None else pa.schema([])
    rows = pa.concat_tables([columns.empty_table(), *(table.cast(columns) for table in tables)])
    return SampleRows(rows.slice(0, limit), remarks)


DEPTH: Final = 16
"""Depth of elements within one another that is looked at."""
PATHS: Final = 1000
"""Different paths that are counted."""
_HTML: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_SAID: Final = 3


def markup(data: bytes) -> Guess:
    """Returns a read step of kind Xml. Raises Invalid for HTML, and if no element occurs twice."""
    if _HTML.match(data):
        raise Invalid(
            "this is HTML, a page for a browser",
            rule="new-xml",
            hint="an error page of the server, or a form to log in? Name the address of the data themselves",
        )
    counts = _count_paths(data)
    repeated = [path for path, number in counts.items() if number > 1]
    if not repeated:
        raise Invalid(
            "XML: no element occurs twice, so which one is a row is for you to say",
            rule="new-xml",
            hint="write `read: {kind: Xml, record: feed/entry}` with your path; see odfctl docs sources",
        )
    first = min(repeated, key=lambda path: (path.count("/"), -counts[path]))
    others = [path for path in repeated if not path.startswith(f"{first}/") and path != first][:_SAID]
    doubt = f"each element {first} is taken for a row" + (f"; {' or '.join(others)} may be meant" if others else "")
    return Guess({"kind": "Xml", "record": first}, unsure=(visible(doubt),))


def _count_paths(data: bytes) -> Counter[str]:
    """Counts how often each path of elements occurs, as far as the sample is well formed."""
    counts: Counter[str] = Counter()
    above: list[str] = []
    parser = expat.ParserCreate()

    def start(name: str, _: object) -> None:
        above.append(name)
        if len(above) > DEPTH:  # a path of each of many levels would be as long as they are
            return
        path = "/".join(above)
        if len(counts) < PATHS or path in counts:
            counts[path] += 1

    def no_type(*_: object) -> None:
        raise _Stop

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: above.pop()
    parser.StartDoctypeDeclHandler = no_type
    with contextlib.suppress(expat.ExpatError, _Stop):
        parser.Parse(data, False)
    return counts


class _Stop(Exception):
    """Stops the parser at a document type, whose entities are not read."""


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


SAMPLE: Final = 1 << 20
"""Most bytes of text that are examined."""
LINES: Final = 1000
_HEAD: Final = 30
"""Lines among which the header is searched."""
_FOOTER: Final = 10
"""Most lines at the end that are taken for no rows."""
_TOTALS: Final = frozenset(
    {"total", "totals", "sum", "summe", "gesamt", "gesamtsumme", "totale", "totaal", "suma", "somme", "итого"}
)
"""Words with which a line of totals begins."""
_SEPARATORS: Final = (",", ";", "\t", "|")
_STEPS: Final[dict[str, type[ReadStep]]] = {
    "Csv": ReadCsv,
    "Json": ReadJson,
    "NdJson": ReadNdJson,
    "GeoJson": ReadGeoJson,
    "NdGeoJson": ReadNdGeoJson,
    "Parquet": ReadParquet,
    "EsriShapefile": ReadEsriShapefile,
}


def step_of(read: dict[str, Any]) -> ReadStep:
    """Returns the read step of a manifest's mapping. Raises Invalid."""
    options = {key: value for key, value in read.items() if key in NAMES}
    plain = {key: value for key, value in read.items() if key not in NAMES}
    kind = plain["kind"]
    if kind in KINDS:
        options["format"], plain["kind"] = kind, KINDS[kind]
    if options:
        plain["schema"] = {**plain.get("schema", {"fields": []})}
        plain["schema"]["extra"] = {**plain["schema"].get("extra", {}), READ: options}
    found: ReadStep = from_builtins(_STEPS[plain["kind"]], plain)
    if found.schema is None or not found.ddl_schema:
        return found
    schema = msgspec.structs.replace(parse_ddl(found.ddl_schema), extra=found.schema.extra)
    return msgspec.structs.replace(found, schema=schema, ddl_schema=None)


def guess_format(path: Path, name: str) -> Guess:
    """Guesses the format of a file. Raises Invalid for unsupported ones."""
    with tempfile.TemporaryDirectory(prefix="odfctl-") as scratch:
        if zipfile.is_zipfile(path) and (found := _of_zip(path)) is not None:
            return _with_columns(path, name, _with_part(path, name, found))
        members, pattern = _members(path, name, Path(scratch))
        inner = members[0].path
        if pattern is not None:
            found = _of_file(inner)
            return found._replace(
                read={"kind": found.read["kind"], "members": pattern, **found.read},
                unsure=(*found.unsure, f"all files {pattern} of the zip are read as one batch"),
            )
        found = _of_file(inner)
        return found if found.columns else _with_columns(path, name, _with_part(inner, name, found))


def _with_part(path: Path, name: str, found: Guess) -> Guess:
    def look(read: Mapping[str, Any], rows: int) -> tuple[int, int]:
        table = read_sample(path, name, step_of(dict(read)), rows).rows
        return table.num_columns, table.num_rows

    return with_part(path, found, look)


def _members(path: Path, name: str, folder: Path) -> tuple[list[SourceFile], str | None]:
    """Chooses, in a zip of several files, those with the most frequent ending."""
    source = SourceFile(path, name)
    if not zipfile.is_zipfile(path):
        return unpack_source(source, folder, UnpackBounds()), None
    with zipfile.ZipFile(path) as archive:
        names = member_names(archive)
    if len(names) <= 1:
        return unpack_source(source, folder, UnpackBounds()), None
    ending, _ = Counter(f".{each.rpartition('.')[2]}" for each in names).most_common(1)[0]
    return unpack_source(source, folder, UnpackBounds(), f"*{ending}"), f"*{ending}"


def _of_zip(path: Path) -> Guess | None:
    with zipfile.ZipFile(path) as archive:
        names = set(member_names(archive))
    if {"xl/workbook.xml", "content.xml"} & names:
        return Guess(
            {"kind": "Spreadsheet", "header": True, "inferSchema": True}, unsure=("the first row names the columns",)
        )
    if any(name.lower().endswith(".shp") for name in names):
        return Guess({"kind": "EsriShapefile"})
    return None


def _of_file(path: Path) -> Guess:
    with path.open("rb") as file:
        data = file.read(SAMPLE)
    for magic, kind in ((b"PAR1", "Parquet"), (b"Obj\x01", "Avro"), (b"SQLite format 3\0", "GeoPackage")):
        if data.startswith(magic):
            return Guess({"kind": "Sqlite" if kind == "GeoPackage" and b"gpkg_contents" not in data else kind})
    if data.startswith(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"):
        return Guess({"kind": "Spreadsheet", "header": True, "inferSchema": True})
    text, encoding, unsure = _text(data)
    start = text.lstrip()[:1]
    if start == "<":
        return markup(data)
    found = _json(text) if start in ("{", "[") else _csv(text)
    if encoding is not None:
        found = found._replace(read={**found.read, "encoding": encoding}, unsure=(*unsure, *found.unsure))
    return found


def _text(data: bytes) -> tuple[str, str | None, tuple[str, ...]]:
    """Returns the text, its encoding if that is not UTF-8, and the doubts about it."""
    for mark, encoding in ((b"\xff\xfe\0\0", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            return data.decode(encoding, "ignore"), encoding, ()
    whole = data if len(data) < SAMPLE else data[: data.rfind(b"\n") + 1] or data
    try:
        return whole.decode("utf-8-sig"), None, ()
    except UnicodeDecodeError:
        found = guess(whole) or "latin-1"
        if found == UTF8:
            return whole.decode("utf-8", "replace"), None, ()
        return (
            whole.decode(found, "replace"),
            found,
            (f"the encoding {found} is a guess: look at letters with accents",),
        )


def _json(text: str) -> Guess:
    lines = [line for line in text.splitlines() if line.strip()][:2]
    try:
        first = json.loads(lines[0])
        if isinstance(first, dict) and (len(lines) > 1 or not _arrays(first, ())):
            return Guess({"kind": "NdGeoJson" if first.get("type") == "Feature" else "NdJson"})
    except ValueError:
        pass
    if '"FeatureCollection"' in text[:2000]:
        return Guess({"kind": "GeoJson"})
    if text.lstrip()[:1] == "[":
        return Guess({"kind": "Json"})
    try:
        document = json.loads(text)
    except ValueError:
        return Guess({"kind": "Json"}, unsure=("where its records are is not known: say subPath: a.b",))
    paths = list(_arrays(document, ()))
    read = {"kind": "Json", **({"subPath": ".".join(paths[0])} if paths else {})}
    return Guess(read, unsure=tuple(f"records may also be at subPath: {'.'.join(path)}" for path in paths[1:4]))


def _arrays(value: Any, above: tuple[str, ...]) -> list[tuple[str, ...]]:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [above]
    if not isinstance(value, dict) or len(above) > 3:
        return []
    return [path for name, child in value.items() for path in _arrays(child, (*above, name))]


def _csv(text: str) -> Guess:
    lines = text.splitlines(keepends=True)[: LINES + _HEAD]
    comment = "#" if sum(line.startswith("#") for line in lines) > 1 else None
    separator = max(_SEPARATORS, key=lambda each: _agreement(lines, each))
    records = [
        (number, record)
        for number, record in enumerate(csv.reader(io.StringIO("".join(lines), newline=""), delimiter=separator))
        if any(record) and not (comment and record[0].startswith(comment))
    ]
    if not records:
        raise Invalid("there is no row in it", rule="new-empty", hint="give a file with some rows")
    width = Counter(len(record) for _, record in records).most_common(1)[0][0]
    at = next(place for place, (_, record) in enumerate(records) if len(record) == width)
    skipped = records[at][0]
    footer = _footer([record for _, record in records[at:]], width) if len(lines) < LINES else 0
    rows = [record for _, record in records[at : len(records) - footer] if len(record) == width]
    header, unsure = _is_header(rows)
    names = rows[0] if header else [f"column_{number}" for number in range(1, width + 1)]
    body = rows[1:] if header else rows
    columns = [column_of([row[place] for row in body[:LINES] if row[place]]) for place in range(width)]
    gaps = frozenset(
        name
        for place, (name, column) in enumerate(zip(names, columns, strict=True))
        if any(not row[place] or row[place].strip() in column.nulls for row in body[:LINES])
    )
    found = _of_columns(
        names,
        columns,
        {"separator": separator, "header": header, "skip": skipped, "footer": footer, "comment": comment},
        unsure,
    )
    return found._replace(gaps=gaps)


def _footer(records: Sequence[Sequence[str]], width: int) -> int:
    """Returns how many records at the end are no rows: those of another width, and one that is a total."""
    last = max(place for place, record in enumerate(records) if len(record) == width)
    others = len(records) - last - 1
    if last < 2:  # the header and one row
        return others if others <= _FOOTER else 0
    word = re.match(r"\W*(\w*)", records[last][0].casefold())
    is_total = word is not None and word[1] in _TOTALS and not all(records[last])
    return others + is_total if others <= _FOOTER else 0


def _agreement(lines: Sequence[str], separator: str) -> tuple[int, int]:
    counts = Counter(line.count(separator) for line in lines[:200] if separator in line)
    return counts.most_common(1)[0][::-1] if counts else (0, 0)


def _is_header(rows: Sequence[Sequence[str]]) -> tuple[bool, tuple[str, ...]]:
    first = rows[0]
    named = all(first) and len(set(first)) == len(first) and all(column_of([each]).ddl == "STRING" for each in first)
    typed = any(
        column_of([row[place] for row in rows[1:] if row[place]]).ddl != "STRING" for place in range(len(first))
    )
    if named and not typed:
        return True, ("the first row is taken for the names of the columns: all columns are text",)
    return named, () if named else ("the first row is taken for data: say header: true if it names the columns",)


def _of_columns(
    names: list[str], columns: list[GuessedColumn], found: dict[str, Any], unsure: tuple[str, ...]
) -> Guess:
    read: dict[str, Any] = {"kind": "Csv", "header": found["header"]}
    if found["separator"] != ",":
        read["separator"] = found["separator"]
    if found["skip"]:
        read["skipRows"] = found["skip"]
        unsure = (*unsure, f"before the header: {plural(found['skip'], 'line')}, taken for no rows")
    if found["footer"]:
        read["skipFooter"] = found["footer"]
        unsure = (*unsure, f"at the end: {plural(found['footer'], 'line')}, taken for no rows")
    if found["comment"]:
        read["comment"] = found["comment"]
    if any(column.decimal == "," for column in columns):
        columns = [column.grouped or column for column in columns]
    for option, key in (("decimal", "decimal"), ("thousands", "thousands"), ("date", "dateFormat"),
                        ("timestamp", "timestampFormat")):  # fmt: skip
        values = Counter(value for column in columns if (value := getattr(column, option)))
        if values:
            read[key] = values.most_common(1)[0][0]
            columns = [_agreeing(column, option, read[key]) for column in columns]
    nulls = tuple(dict.fromkeys(word for column in columns for word in column.nulls))
    if nulls:
        read["nullValues"] = list(nulls)
    return Guess(read, tuple((name, each.ddl, each.unsure) for name, each in zip(names, columns, strict=True)), unsure)


def _agreeing(column: GuessedColumn, option: str, value: str) -> GuessedColumn:
    """Returns the column if its spelling agrees with the file's; otherwise the column as text."""
    kinds = {"decimal": ("DOUBLE",), "thousands": ("DOUBLE", "BIGINT"), "date": ("DATE",), "timestamp": ("TIMESTAMP",)}[
        option
    ]
    stated = getattr(column, option)
    if (
        column.ddl not in kinds
        or stated == value
        or (option == "thousands" and (column.decimal or column.ddl == "BIGINT"))
    ):
        return column
    return TEXT._replace(unsure=(f"it is spelled otherwise than {value!r}: convert it in preprocess",))


def _with_columns(path: Path, name: str, found: Guess) -> Guess:
    """Adds to the guess the columns that reading the file finds."""
    rows = read_sample(path, name, step_of(found.read), LINES).rows
    schema: pa.Schema = rows.schema
    plain = from_arrow(schema)
    columns: tuple[tuple[str, str, tuple[str, ...]], ...] = tuple(
        (field.name, _ddl(schema.field(field.name).type), ()) for field in plain.fields
    )
    if all(ddl for _, ddl, _ in columns):
        read = {key: value for key, value in found.read.items() if key != "inferSchema"}
        if read["kind"] == "Spreadsheet" and not {"DATE", "TIMESTAMP"} & {ddl for _, ddl, _ in columns}:
            read, columns = _with_dates(read, columns, rows)
        gaps = frozenset(name for name in rows.column_names if rows[name].null_count)
        return found._replace(read=read, columns=columns, gaps=gaps)
    return found


def _with_dates(
    read: dict[str, Any], columns: tuple[tuple[str, str, tuple[str, ...]], ...], rows: pa.Table
) -> tuple[dict[str, Any], tuple[tuple[str, str, tuple[str, ...]], ...]]:
    """Adds the spelling of dates and times that a sheet has as texts; none where it has real ones beside."""
    taken = []
    for name, ddl, unsure in columns:
        values = rows[name].drop_null().to_pylist() if ddl == "STRING" else []
        seen = column_of(values) if values else TEXT
        for option, key in (("date", "dateFormat"), ("timestamp", "timestampFormat")):
            form = getattr(seen, option)
            if form is not None and read.setdefault(key, form) == form:
                ddl, unsure = seen.ddl, (*unsure, "the sheet has it as text", *seen.unsure)
        taken.append((name, ddl, unsure))
    return read, tuple(taken)


def _ddl(kind: pa.DataType) -> str:
    """Formats a type in DDL; empty for types that it cannot express."""
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.unit == "ms" else ""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    names = {"int64": "BIGINT", "int32": "INT", "double": "DOUBLE", "float": "FLOAT", "string": "STRING"}
    return {**names, "bool": "BOOLEAN", "date32[day]": "DATE"}.get(str(kind), "")
