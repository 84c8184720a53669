"""Texts are cut into lines, records and ranges."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import mmap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.model.source import ReadCsv, ReadGeoJson, ReadJson, ReadNdGeoJson, ReadNdJson
from engines.spark.ingest.csv_text import parse_csv, read_head
from engines.spark.ingest.dialect import CsvDialect
from engines.spark.ingest.json_text import parse_json
from engines.spark.ingest.parse import check_lines, parse_sources
from engines.spark.ingest.quoting import Quotes, check_quotes
from engines.spark.ingest.ranges import Range, first_of, line_ranges, ranges_at
from engines.spark.ingest.records import line_of_row, object_lines
from engines.spark.ingest.unpack import SourceFile

# Cut anywhere, parse apart: the rows are those of the whole file.

CELLS = st.text(st.sampled_from('ab1 ,"\n\r\\é'), max_size=6)
ROWS = st.lists(st.tuples(CELLS, CELLS), max_size=12)
CUTS = st.lists(st.integers(0, 120), max_size=6).map(sorted)
STRINGS = pa.schema([("x", pa.string()), ("y", pa.string())])
PLAIN = CsvDialect()


def written(rows: list[tuple[str, str]], quoting: int, end: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=quoting, lineterminator=end).writerows(rows)
    return out.getvalue().encode()


def parse(data: bytes, spans: list[Range], dialect: CsvDialect) -> list[dict[str, str | None]]:
    head = read_head(data, dialect, STRINGS, "f")
    tables = [parse_csv(data[span.start : span.stop], head, dialect, "f") for span in spans]
    return pa.concat_tables([STRINGS.empty_table(), *tables]).to_pylist()


def outcome(data: bytes, spans: list[Range], dialect: CsvDialect) -> list[dict[str, str | None]] | str:
    """Rows, or the rule that is broken: Python's writer leaves bare carriage returns unquoted, which are line ends."""
    try:
        return parse(data, spans, dialect)
    except Invalid as fault:
        return fault.rule


@pytest.mark.slow
@given(ROWS, CUTS, st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]), st.sampled_from(["\n", "\r\n"]))
def test_parts_give_the_rows_of_the_whole(rows: list[tuple[str, str]], cuts: list[int], quoting: int, end: str) -> None:
    data = written(rows, quoting, end)
    if data and check_quotes(data, 0, PLAIN, "f") is Quotes.IN_LINES:
        whole = outcome(data, [Range(0, len(data))], PLAIN)
        assert outcome(data, ranges_at(data, 0, cuts), PLAIN) == whole


@given(ROWS, st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
def test_a_proven_file_has_as_many_lines_as_records(rows: list[tuple[str, str]], quoting: int) -> None:
    """The proof against another reader's opinion: were a newline inside quotes, there would be fewer records."""
    data = written(rows, quoting, "\n")
    if check_quotes(data, 0, PLAIN, "f") is Quotes.IN_LINES:
        lines = [line for line in data.decode().split("\n") if line]
        assert (
            len(lines) == sum(1 for row in csv.reader(io.StringIO(data.decode(), newline="")) if row) or b"\r" in data
        )


@given(st.binary(max_size=200), CUTS)
def test_ranges_cover_everything_once_and_end_after_newlines(data: bytes, cuts: list[int]) -> None:
    spans = ranges_at(data, 0, cuts)
    assert b"".join(data[span.start : span.stop] for span in spans) == data
    assert all(data[span.start : span.stop].endswith(b"\n") for span in spans[:-1])


IN, ACROSS, LITERAL = Quotes.IN_LINES, Quotes.ACROSS_LINES, Quotes.LITERAL


@pytest.mark.parametrize("window", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    "text,found",
    [
        (b"", IN),
        (b"a,b\n1,2\n", IN),
        (b'"a","b"\n"1","2"\n', IN),
        (b'"a""b",c\n', IN),
        (b'"a","b"\r\n"c","d"', IN),
        (b'"a\nb",c\n', ACROSS),
        (b'"a\rb",c\n', ACROSS),
        (b'5" x,"a\nb",6" y\n', LITERAL),
        (b'5" pipe,x\n', LITERAL),
        (b'a""b,"c"\n', LITERAL),
        (b'"",""\n', IN),
        (b'"""",x\n', IN),
    ],
)
def test_what_quotes_mean(text: bytes, found: Quotes, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.spark.ingest.quoting.WINDOW", window)
    assert check_quotes(text, 0, PLAIN, "f") is found


@pytest.mark.parametrize("window", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    "text,line,said",
    [
        (b'a,b\n1,"2\n3,4\n5,6\n', 2, "never closed; the 3 lines behind it"),
        (b'a,b\n1,"2\n', 2, "never closed; the 1 line behind it"),
        (b'a,b\n"1,2\n"3","4"\n', 2, "text behind the quote that closes a value: '\"1,2'"),
        (b'a,b\n1,"a"b\n', 2, "text behind the quote"),
        (b'"a" ,b\n', 1, "text behind the quote"),
        (b'5" x,"6\n', 1, "never closed"),
        (b'1,2\n3,"4\\""\n5,"6"\n7,8\n', 2, "text behind"),
        (b'"', 1, "never closed"),
    ],
)
def test_misplaced_quotes_are_refused(
    text: bytes, line: int, said: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.spark.ingest.quoting.WINDOW", window)
    with pytest.raises(Invalid) as told:
        check_quotes(text, 0, PLAIN, "f")
    assert (told.value.rule, told.value.place) == ("read-quotes", f"f:{line}")
    assert said in told.value.message


@given(st.text(st.sampled_from('ab ,"\n\r\\'), max_size=30), st.integers(1, 9))
def test_the_proof_and_the_walk_agree(text: str, window: int) -> None:
    """What numpy proves, the regular expression walks through to the end; and neither depends on the window."""
    from engines.spark.ingest import quoting

    data = text.encode()
    proven = quoting._proven(data, 0, PLAIN) if data else Quotes.IN_LINES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quoting, "WINDOW", window)
        assert (quoting._proven(data, 0, PLAIN) if data else Quotes.IN_LINES) is proven
    if proven is not None:
        walked = quoting._walk(PLAIN).match(data)
        assert walked is not None
        assert walked.end() == len(data)


@pytest.mark.slow
@given(ROWS, st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]), st.sampled_from(["\n", "\r\n"]))
def test_what_a_writer_quotes_is_read_as_written(rows: list[tuple[str, str]], quoting: int, end: str) -> None:
    """RFC 4180 both ways: any text, quoted, comes back."""
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator=end).writerows(rows)
    data = out.getvalue().encode()
    dialect = CsvDialect(whole=True)
    if data:
        check_quotes(data, 0, dialect, "f")
        read = parse(data, [Range(0, len(data))], dialect)
        assert read == [{"x": one or None, "y": other or None} for one, other in rows]


@example('\\"","')
@given(st.text(st.sampled_from('ab,"\n\\'), max_size=30))
def test_escapes_are_rewritten_alike_by_both_ways(text: str) -> None:
    from engines.spark.ingest import quoting

    data, dialect = text.encode(), CsvDialect(escape="\\", whole=True)
    try:
        check_quotes(data, 0, dialect, "f")
    except Invalid:
        return
    quick = quoting.unescape(data, dialect)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quoting, "_escapes_are_quoted", lambda data, dialect: False)
        assert quoting.unescape(data, dialect) == quick
    check_quotes(quick, 0, PLAIN, "f")


@pytest.mark.slow
@given(ROWS)
def test_declared_escapes_are_read_as_written(rows: list[tuple[str, str]]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    data = "".join(f"{quoted(one)},{quoted(other)}\n" for one, other in rows).encode()
    dialect = CsvDialect(escape="\\", whole=True)
    if data:
        check_quotes(data, 0, dialect, "f")
        read = parse(data, [Range(0, len(data))], dialect)
        assert read == [{"x": one or None, "y": other or None} for one, other in rows]


def test_quoted_newlines_are_read_when_the_file_is_whole() -> None:
    dialect = CsvDialect(whole=True)
    data = b'"a\nb",c\n\nd,"e ""f"""\n'
    assert parse(data, [Range(0, len(data))], dialect) == [{"x": "a\nb", "y": "c"}, {"x": "d", "y": 'e "f"'}]
    with pytest.raises(Invalid, match="f:4: 1 column where 2 are expected"):
        parse(b'"a\nb",c\n\nd\n', [Range(0, 12)], dialect)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.sampled_from("xyz"), st.text(max_size=4), max_size=3), max_size=10), CUTS)
def test_json_lines_may_be_cut_at_every_newline(rows: list[dict[str, str]], cuts: list[int]) -> None:
    import json

    data = "\n".join(json.dumps(row) for row in rows).encode()
    parts = [
        parse_json(object_lines(data[span.start : span.stop]), STRINGS, "f").table for span in ranges_at(data, 0, cuts)
    ]
    got = pa.concat_tables([STRINGS.empty_table(), *parts]).to_pylist()
    assert got == [{"x": row.get("x"), "y": row.get("y")} for row in rows]


def test_targets_make_ranges_of_about_that_size() -> None:
    data = b"0123456789\n" * 1000
    spans = line_ranges(data, 0, 1000)
    assert {len(range(*span)) // 100 for span in spans[:-1]} <= {9, 10, 11}
    assert line_ranges(data, 0) == [Range(0, len(data))]


class Watched(bytes):
    """A text that notes which of its bytes are looked at."""

    seen: list[int]

    def find(self, byte: bytes, start: int, stop: int) -> int:  # type: ignore[override]
        self.seen.append(stop - start)
        return super().find(byte, start, stop)


def test_a_byte_is_found_a_window_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However large the file, memory holds a window of it."""
    monkeypatch.setattr("engines.spark.ingest.ranges.WINDOW", 5000)
    text = Watched(b"a" * 20_001 + b"b" + b"a" * 20_000)
    text.seen = []
    assert first_of(text, b"b", 3) == 20_001
    assert set(text.seen) == {5000}
    assert first_of(text, b"c", 0) == -1
    file = tmp_path / "file"
    file.write_bytes(text)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert first_of(view, b"b", 3) == 20_001
        assert first_of(view, b"c", 0) == -1
        assert bytes(view) == bytes(text), "what was unmapped is read again"


# The line of a record is found by reading up to it: inference asks for as many as it looks at, in any file.


@given(st.lists(st.sampled_from([b"{}", b"", b"  ", b"\r", b'{"a": 1}'])), st.booleans())
def test_a_record_is_on_the_line_that_holds_it(lines: list[bytes], ends: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if ends else b"")
    places = [number for number, line in enumerate(lines, 1) if line.strip()]
    assert [line_of_row(data, row) for row in range(len(places))] == places


class Counted(bytes):
    """Counts the lines that are looked at."""

    looked = 0

    def find(self, *args: Any) -> int:
        type(self).looked += 1
        return super().find(*args)

    def split(self, *_: Any) -> Any:
        raise AssertionError("all of the file is cut into lines for one of them")


def test_what_lies_behind_a_record_is_not_read() -> None:
    data = Counted(b"{}\n" * 10_000)
    assert [line_of_row(data, row) for row in (0, 10, 99)] == [1, 11, 100]
    assert Counted.looked <= 1 + 11 + 100


# A record longer than the settings allow is refused with its place, before a parser takes several times its size.

MOST = 1024
POINT = {"type": "Point", "coordinates": [1, 2]}


def feature(name: str) -> str:
    return json.dumps({"type": "Feature", "properties": {"a": name}, "geometry": POINT})


def collection(*names: str) -> str:
    return json.dumps({"type": "FeatureCollection", "features": ["@"]}).replace('"@"', ",\n".join(map(feature, names)))


KINDS: dict[str, tuple[Any, Any]] = {
    "csv": (ReadCsv(header=True), lambda *names: "a\n" + "".join(f"{name}\n" for name in names)),
    "csv with old line ends": (ReadCsv(header=True), lambda *names: "a\r" + "".join(f"{name}\r" for name in names)),
    "csv with quotes": (
        ReadCsv(header=True),
        lambda *names: "a,b\n" + "".join(f'"{name}\n","{name}\n"\n' for name in names),
    ),
    "csv with quotes that are plain": (
        ReadCsv(header=True),
        lambda *names: (
            "a,b\n" + "".join(f'x"y,"{name[: len(name) // 2]}\n{name[: len(name) // 2]}"\n' for name in names)
        ),
    ),
    "objects": (ReadNdJson(), lambda *names: "\n".join(json.dumps({"a": name}) for name in names)),
    "a document": (ReadJson(sub_path="x"), lambda *names: json.dumps({"x": [{"a": name} for name in names]})),
    "features": (ReadNdGeoJson(), lambda *names: "\n".join(map(feature, names))),
    "a collection": (ReadGeoJson(), collection),
}


LINES = {
    "csv": 3,
    "csv with old line ends": 1,
    "csv with quotes": 5,
    "csv with quotes that are plain": 4,
    "objects": 2,
    "a document": 1,
    "features": 2,
    "a collection": 2,
}
"""Where the second record begins, or the line of it that is too long by itself."""


def no_session() -> Any:
    raise AssertionError("a Spark session was opened")


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_too_long_is_refused_by_its_place(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-BYTES-02: a source with one line of 300 MB, which ends the engine for others too.

    Defence: a record of a text has at most `ingest.record-bytes`, checked with its place before a parser sees it.
    """
    read, text = KINDS[kind]
    path = tmp_path / "source"

    def parts(*names: str) -> Any:
        path.write_text(text(*names))
        (folder := tmp_path / f"parts-{len(list(tmp_path.iterdir()))}").mkdir()
        return parse_sources(no_session, [SourceFile(path, "s", MOST)], read, folder)

    fitting = "n" * (MOST // 3)
    assert sum(parts(*[fitting] * 9).rows) == 9, "the file is longer, and its records are not"
    monkeypatch.setattr("pyarrow.csv.read_csv", no_session)
    monkeypatch.setattr("pyarrow.json.read_json", no_session)
    with pytest.raises(Invalid, match="is the most") as caught:
        parts(fitting, "n" * (2 * MOST - 100), fitting)
    assert caught.value.rule == "record-size"
    assert "ingest.record-bytes" in caught.value.hint
    assert caught.value.place == f"s:{LINES[kind]}"


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.integers(1, 12))
def test_lines_are_found_as_by_looking_at_each(lines: list[bytes], most: int) -> None:
    text = b"\n".join(lines)
    too_long = [number for number, line in enumerate(lines, 1) if len(line) > most]
    with pytest.raises(Invalid) if too_long else contextlib.nullcontext() as caught:
        check_lines(text, most, "s")
    assert caught is None or caught.value.place == f"s:{too_long[0]}"
