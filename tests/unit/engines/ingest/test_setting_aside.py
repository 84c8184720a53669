"""Records that cannot be read are set aside one by one: each with its line, text and reason, and no other with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.data.arrow_schema import to_arrow
from chain.data.ddl import parse_ddl
from chain.errors import Invalid
from chain.model.read_options import ON_ERROR, Quarantine, quarantine_of
from chain.model.schema import DataSchema
from chain.model.source import ReadCsv, ReadGeoJson, ReadJson, ReadNdGeoJson, ReadNdJson, ReadStep
from engines.spark.ingest import csv_text, json_text, parse, ranges
from engines.spark.ingest.bad_records import CsvCells, JsonCells
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.parse import SourceFile, plan_file, read_schema
from engines.spark.ingest.range_tasks import RangeTask, bad_part, parse_to_part, place_of
from worlds.depth import share, stride
from worlds.reading import read

NAME = "data.txt"


def columns(ddl: str, said: object = "quarantine") -> DataSchema:
    return DataSchema(fields=parse_ddl((ddl,)).fields, extra={ON_ERROR: said})


TYPED = columns("id BIGINT NOT NULL, at TIMESTAMP, price DECIMAL(6, 2), name STRING")


class Apart:
    """A file read as the engine reads it, range by range."""

    def __init__(self, folder: Path, data: bytes | str, step: ReadStep) -> None:
        path = folder / NAME
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        schema, format_, spans, *_ = plan_file(SourceFile(path, NAME), step, read_schema(step))
        self.tasks = [
            RangeTask(
                path=str(path),
                name=NAME,
                span=span,
                format=format_,
                schema=schema,
                part=str(folder / f"{number}"),
                quarantine=quarantine_of(step.schema),
            )
            for number, span in enumerate(spans)
        ]
        self.written = [parse_to_part(task) for task in self.tasks]

    @property
    def good(self) -> list[dict[str, Any]]:
        return [row for task in self.tasks for row in pq.read_table(task.part).to_pylist()]

    @property
    def bad(self) -> list[dict[str, Any]]:
        parts = [bad_part(task) for task in self.tasks if bad_part(task).exists()]
        return [row for part in parts for row in pq.read_table(part).to_pylist()]

    def lines(self) -> list[tuple[int, str | None, str]]:
        return [(row["line"], row["column"], row["raw"]) for row in self.bad]


@pytest.mark.parametrize(
    "text,step",
    [
        ('null\n{"id": 1}\nnull\n{"id": 2.5}\n{"id": 2},\n{"id": 3}\n', ReadNdJson(schema=columns("id BIGINT"))),
        ('[null,\n{"id": 1},\nnull,\n{"id": 2.5},\n"x",\n{"id": 3}]', ReadJson(schema=columns("id BIGINT"))),
    ],
)
def test_json_that_is_no_record(tmp_path: Path, text: str, step: ReadStep) -> None:
    got = Apart(tmp_path, text, step)
    assert got.good == [{"id": 1}, {"id": 3}]
    assert [row["line"] for row in got.bad] == [1, 3, 4, 5]


def test_csv(tmp_path: Path) -> None:
    text = (
        "id,at,price,name\n"
        "1,2024-05-01T00:00:00Z,1.50,ok\n"
        "x,yesterday,1.5,three are wrong\n"
        "\n"
        "3,2024-05-01T00:00:00Z,12345.67,too large\n"
        "4,2024-05-01T00:00:00Z,1.50\n"
        ",2024-05-01T00:00:00Z,1.50,no id\n"
        "6,2024-05-01T00:00:00Z,1.50,ok"
    )
    found = Apart(tmp_path, text, ReadCsv(header=True, schema=TYPED))
    assert [row["id"] for row in found.good] == [1, 6]
    assert found.lines() == [
        (3, "id", "x,yesterday,1.5,three are wrong"),
        (5, "price", "3,2024-05-01T00:00:00Z,12345.67,too large"),
        (6, None, "4,2024-05-01T00:00:00Z,1.50"),
        (7, "id", ",2024-05-01T00:00:00Z,1.50,no id"),
    ]
    first, _, short, empty = found.bad
    assert first["reason"] == "column 'id': 'x' is not an Int64; column 'at': 'yesterday' is not a Timestamp"
    assert [row["rule"] for row in found.bad] == ["read-value", "read-value", "read-columns", "not-null"]
    assert short["reason"].startswith("3 columns where 4 are expected")
    assert empty["reason"] == "column 'id' is empty, and the schema says NOT NULL"
    assert place_of(found.tasks[0], 1) == "data.txt:8"


def test_nothing_is_set_aside_unless_the_manifest_says_so(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"data\.txt:1: column 'id': 'x' is not an Int64"):
        Apart(tmp_path, "x,,,", ReadCsv(schema=columns("id BIGINT, at STRING, price STRING, name STRING", "fail")))


def test_values_over_several_lines(tmp_path: Path) -> None:
    text = 'id,at,price,name\n1,,,"one\nand more"\nx,,,"two\nand ""more"""\n3,,,plain\ny,,,last\n'
    found = Apart(tmp_path, text, ReadCsv(header=True, schema=TYPED))
    assert [(row["id"], row["name"]) for row in found.good] == [(1, "one\nand more"), (3, "plain")]
    assert found.lines() == [(4, "id", 'x,,,"two\nand ""more"""'), (7, "id", "y,,,last")]


def test_quotes_that_are_letters(tmp_path: Path) -> None:
    text = '1,,,5" pipe\r\nx,,,"a\r\nb"\r\n\r\n3,,,6" pipe\r\n'
    found = Apart(tmp_path, text, ReadCsv(schema=TYPED))
    assert [row["id"] for row in found.good] == [1, 3]
    assert found.lines() == [(2, "id", 'x,,,"a\r\nb"')]


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    found = Apart(tmp_path, b"1,,,gut\n2,,,schlecht \xfc\n3,,,gut\n", ReadCsv(schema=TYPED))
    assert [row["id"] for row in found.good] == [1, 3]
    assert found.lines() == [(2, "name", "2,,,schlecht \\xfc")]
    assert found.bad[0]["reason"] == "not UTF-8: byte 0xfc"


def test_lines_of_json(tmp_path: Path) -> None:
    text = (
        '{"id": 1, "name": "ok", "more": 1}\n'
        '{"id": "one", "price": 1, "name": 7}\n'
        "\n"
        '{"id": 3, "name": "cut off\n'
        '{"name": "no id"}\n'
        '{"id": 5, "at": "2024-05-01T00:00:00Z", "price": 0.10}\n'
        '{"id": 6, "price": 123456.7}\n'
        "[1]\n"
    )
    found = Apart(tmp_path, text, ReadNdJson(schema=TYPED))
    assert [row["id"] for row in found.good] == [1, 5]
    assert str(found.good[1]["price"]) == "0.10"
    assert [line[:2] for line in found.lines()] == [(2, "id"), (4, None), (5, "id"), (7, "price"), (8, None)]
    assert found.bad[0]["raw"] == '{"id": "one", "price": 1, "name": 7}'
    assert "'name'" in found.bad[0]["reason"]
    assert "'id'" in found.bad[0]["reason"]
    assert found.written[0].unknown == {"more": 1}


def test_elements_of_a_document(tmp_path: Path) -> None:
    text = '{"rows": [\n{"id": 1},\n{"id":\n "x"},\n7,\n{"id": 4,\n "name": "ok"}]}'
    found = Apart(tmp_path, text, ReadJson(sub_path="rows", schema=TYPED))
    assert [row["id"] for row in found.good] == [1, 4]
    assert found.lines() == [(3, "id", '{"id":\n "x"}'), (5, None, "7")]


def test_a_document_that_is_cut_off_is_no_records_fault(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="not JSON"):
        Apart(tmp_path, '[{"id": 1}, {"id": "x"}, {"id":', ReadJson(schema=TYPED))


@pytest.mark.parametrize("per_line", [False, True])
def test_features(tmp_path: Path, per_line: bool) -> None:
    rows = [
        {"type": "Feature", "properties": {"id": 1}, "geometry": None},
        {"type": "Feature", "properties": {"id": "x"}, "geometry": None},
        {"type": "Future", "properties": {"id": 3}, "geometry": None},
        {"type": "Feature", "properties": {"id": 4}, "geometry": {"type": "Point", "coordinates": [1, 2]}},
    ]
    lines = [json.dumps(row) for row in rows]
    schema = columns("id BIGINT, geometry STRING")
    if per_line:
        found = Apart(tmp_path, "\n".join(lines), ReadNdGeoJson(schema=schema))
    else:
        text = '{"type": "FeatureCollection", "features": [' + ",\n".join(lines) + "]}"
        found = Apart(tmp_path, text, ReadGeoJson(schema=schema))
    assert [row["id"] for row in found.good] == [1, 4]
    assert found.lines() == [(2, "id", lines[1]), (3, None, lines[2])]
    assert [row["reason"] for row in found.bad][1] == "not a GeoJSON Feature"


def test_more_than_may_be_set_aside(tmp_path: Path) -> None:
    """Attack T-SOURCE-03: a source whose rows cannot be read, to hide data among them.

    Defence: rows are set aside only if the manifest allows it; they are counted; the declared share and count of a file
    are limits; each is kept with its text.
    """
    schema = columns("id BIGINT", {"quarantine": {"maxRows": 2}})
    assert len(Apart(tmp_path, "1\nx\ny\n", ReadCsv(schema=schema)).bad) == 2
    with pytest.raises(Invalid, match=r"data\.txt:2: more than 2 records cannot be read") as told:
        Apart(tmp_path, "1\nx\ny\nz\n5\n", ReadCsv(schema=schema))
    assert told.value.rule == "quarantine-limit"


@pytest.mark.parametrize("said", ["ignore", {"quarantine": {"maxRows": -1}}, {"quarantine": {"rows": 1}}, 7, None])
def test_what_is_declared_must_be_understood(said: object) -> None:
    with pytest.raises(Invalid) as told:
        quarantine_of(columns("id BIGINT", said))
    assert told.value.rule == "on-error"


def test_what_is_declared() -> None:
    assert quarantine_of(None) is quarantine_of(parse_ddl(("id BIGINT",))) is quarantine_of(columns("a INT", "fail"))
    assert quarantine_of(TYPED) == Quarantine()
    said = {"quarantine": {"maxRows": 5, "maxPercent": 1}}
    assert quarantine_of(columns("a INT", said)) == Quarantine(max_rows=5, max_percent=1)


def asked(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str, bad: int) -> int:
    """How often the parser is asked about 3,000 records of which so many cannot be read."""
    calls = 0
    for module, name in ((csv_text, "read_values"), (json_text, "read_objects")):
        parser = getattr(module, name)

        def counted(*args: Any, parser: Callable[..., Any] = parser, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            return parser(*args, **more)

        monkeypatch.setattr(module, name, counted)
    ids = [f"no {number}" if number < bad else str(number) for number in range(3000)]
    schema = columns("id BIGINT NOT NULL, name STRING")
    if kind == "csv":
        step: ReadStep = ReadCsv(schema=schema)
        text = "".join(f"{each},n{number}\n" if number % 3 else f"{each}\n" for number, each in enumerate(ids))
    else:
        step = ReadNdJson(schema=schema)
        rows = [{"id": each if number < bad else int(each), "name": "n"} for number, each in enumerate(ids)]
        text = "\n".join(map(json.dumps, rows))
    found = Apart(folder, text, step)
    assert len(found.bad) == (bad if kind == "json" else bad + len(range(bad + -bad % 3, 3000, 3)))
    assert len(found.bad) + len(found.good) == 3000
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_thousand_bad_records_are_found_at_once(tmp_path: Path, kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        few = asked(patch, tmp_path, kind, 10)
    with pytest.MonkeyPatch.context() as patch:
        many = asked(patch, tmp_path, kind, 1000)
    assert many == few < 20


VALID = {
    "INT": ["1", "-20"],
    "BIGINT": ["12345678901", " 7 "],
    "DOUBLE": ["1.5", "-2E5", "nan", "inf", "-Infinity"],
    "FLOAT": ["0.25"],
    "DECIMAL(9, 2)": ["1.25", "-3"],
    "BOOLEAN": ["true", "False", "1"],
    "DATE": ["2024-05-01"],
    "TIMESTAMP": ["2024-05-01T12:30:00Z", "2024-05-01 12:30:00.5", "2024-05-01T12:30:00+01:00", "2024-05-01"],
}


QUICK = ("INT", "DATE")
"""Of the others there are more texts."""


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in VALID])
def test_a_foreign_character_is_refused_wherever_it_stands(kind: str) -> None:
    """So texts that have one need not be asked each for itself."""
    (field,) = to_arrow(parse_ddl((f"a {kind}",)))
    cells = CsvCells(CsvDialect(), ("a",), NAME)
    texts = [
        value[:at] + chr(code) + value[at + cut :]
        for value in VALID[kind]
        for at in range(len(value) + 1)
        for cut in (0, 1)
        for code in range(0x20, 0x7F)
    ]
    column = pa.array(sorted({text.encode() for text in texts})[:: stride()], pa.binary())
    foreign = column.filter(pc.equal(cells.alike(field, column), b"?"))
    assert len(foreign) > 500 // stride()
    taken = 0
    for text, alone in zip(foreign.to_pylist(), cells.alone(field, foreign).to_pylist(), strict=True):
        with pytest.raises(Invalid) as told:
            cells.parse(alone, pa.schema([field]))
        assert told.value.message == cells.explain(field, text, told.value).message
    for value in VALID[kind]:
        column = pa.array([value.encode()], pa.binary())
        assert cells.alike(field, column).equals(column)
        taken += cells.parse(cells.alone(field, column)[0].as_py(), pa.schema([field])).table.num_rows
    assert taken == len(VALID[kind])


@pytest.mark.parametrize("kind", [*VALID, "STRING"])
def test_a_json_value_of_another_kind_is_refused_whatever_it_is(kind: str) -> None:
    (field,) = to_arrow(parse_ddl((f"a {kind}",)))
    cells = JsonCells(NAME)
    texts = [b'""', b'"x"', b'"1"', b"0", b"-7", b"1.5", b"true", b"false", b"null", b"{}", b'{"b":1}', b"[]", b"[1]"]
    column = pa.array(texts, pa.large_binary())

    def refused(text: bytes) -> str:
        alone = cells.alone(field, pa.array([text], pa.large_binary()))[0].as_py()
        try:
            cells.parse(alone, pa.schema([field]))
        except Invalid as fault:
            return fault.message
        return ""

    for text, other in zip(texts, cells.alike(field, column).to_pylist(), strict=True):
        assert text == other or refused(text) == refused(other) != ""


VALUES = st.sampled_from(["1", "2024", "x", "", "1.5", "0x1F", "-7", " 3 ", '"4"', '"a\nb"', "1,2", "9" * 30, '""'])


@pytest.mark.slow
@settings(max_examples=share(60))
@given(values=st.lists(VALUES, max_size=40), end=st.sampled_from(["\n", "\r\n"]), target=st.sampled_from([8, 1 << 24]))
def test_a_record_is_set_aside_exactly_when_it_cannot_be_read_alone(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], end: str, target: int
) -> None:
    """Good and set aside are all, in their order, and who else stands in the file does not matter."""
    folder = tmp_path_factory.mktemp("one")
    schema, plain = columns("id BIGINT NOT NULL, name STRING"), parse_ddl(("id BIGINT NOT NULL, name STRING",))
    rows = [f"{value},{number}" for number, value in enumerate(values)]
    alone = []
    for row in rows:
        try:
            alone.append(read(folder, row + end, ReadCsv(schema=plain)).rows)
        except Invalid:
            alone.append([])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse, "line_ranges", partial(ranges.line_ranges, target=target))
        text = end.join(rows) + end
        if not rows:
            return
        found = Apart(folder, text, ReadCsv(schema=schema))
    assert [list(row.values()) for row in found.good] == [row for each in alone for row in each]
    assert [row["raw"] for row in found.bad] == [row for row, each in zip(rows, alone, strict=True) if not each]


JSON_VALUES = st.sampled_from(
    [
        "1",
        "-7",
        '"x"',
        '""',
        "null",
        "1.5",
        "9" * 30,
        "true",
        "[1]",
        "{",
        '1, "id": 2',
        '1, "more": "\\ud800"',
        "1}\n{}",
    ]
)


@pytest.mark.slow
@settings(max_examples=share(60))
@given(values=st.lists(JSON_VALUES, min_size=1, max_size=40), target=st.sampled_from([8, 1 << 24]))
def test_a_line_of_json_is_set_aside_exactly_when_it_cannot_be_read_alone(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], target: int
) -> None:
    folder = tmp_path_factory.mktemp("one")
    schema, plain = columns("id BIGINT NOT NULL, name STRING"), parse_ddl(("id BIGINT NOT NULL, name STRING",))
    text = "\n".join(f'{{"name": "n{number}", "id": {value}}}' for number, value in enumerate(values))
    alone: list[tuple[str, list[Any]]] = []
    for row in text.split("\n"):
        try:
            alone.append((row, read(folder, row, ReadNdJson(schema=plain)).rows))
        except Invalid:
            alone.append((row, []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse, "line_ranges", partial(ranges.line_ranges, target=target))
        found = Apart(folder, text, ReadNdJson(schema=schema))
    assert [list(row.values()) for row in found.good] == [row for _, rows in alone for row in rows]
    assert [row["raw"] for row in found.bad] == [row for row, rows in alone if not rows]
    assert [row["column"] for row in found.bad] == [
        Apart(folder, row, ReadNdJson(schema=schema)).bad[0]["column"] for row, rows in alone if not rows
    ]
