"""Rows in files, and documents of standards beside them, as the readers of others see them."""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import frictionless
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from python_calamine import CalamineWorkbook

from chain.data.json_values import plain_rows
from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from engines.query.frames import COLUMNS, END, HEAD, LINES, PLAIN, ROWS
from engines.query.text_rows import heading, render_lines
from odfd.cli.descriptions import check_documents, write_documents
from odfd.cli.new_file import NewFile
from odfd.cli.offline import answer_recheck
from odfd.cli.sql import output_file
from odfd.cli.sql.output_file import Destination, to_files
from odfd.cli.sql.sheet import MOST_COLUMNS, MOST_TEXT, SheetWriter
from odfd.cli.standards import huggingface
from odfd.cli.standards.huggingface import HubFolder
from odfd.control import wire
from odfd.errors import Usage
from worlds.described_node import AWAY, BLOCK, DID, PRIVATE, PUBLIC, TABLE, WHEN, DescribedNode
from worlds.full_disk import room_for

# Rows in files: all of them or none, in as many files as were asked for; of a sheet, what it does not hold is told.

HEAD_SAID = wire.QueryHead(pins=(), standing="data", standings=())
ASKED = wire.QueryRequest(sql="select")


class Daemon:
    """Answers each query with a table, ``rows`` at a time; with ``fault``, until it comes."""

    def __init__(self, table: pa.Table, rows: int = 4, fault: Exception | None = None) -> None:
        self._table, self._rows, self._fault = table, rows, fault

    @contextmanager
    def frames(self, call: Any, _meanwhile: object = None) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        yield self._frames(call.request.plain, call.request.lines)

    def _frames(self, plain: bool, lines: Any) -> Iterator[tuple[bytes, bytes]]:
        yield HEAD, msgspec.json.encode(HEAD_SAID)
        batches = self._table.to_batches(max_chunksize=self._rows)
        if lines:
            yield COLUMNS, msgspec.json.encode([(field.name, str(field.type)) for field in self._table.schema])
            yield LINES, bytes(4) + heading(self._table.schema.names, lines)
            for rows, text in (each for batch in batches for each in render_lines(batch, lines)):
                yield LINES, rows.to_bytes(4, "big") + text
        elif plain:
            yield COLUMNS, msgspec.json.encode([(field.name, str(field.type)) for field in self._table.schema])
            yield from ((PLAIN, msgspec.json.encode(plain_rows(batch))) for batch in batches)
        else:
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, self._table.schema) as stream:
                for batch in batches:
                    stream.write_batch(batch)
            yield ROWS, sink.getvalue()
        if self._fault:
            raise self._fault
        yield END, msgspec.json.encode(wire.QueryEnd(rows=self._table.num_rows))


def numbers(count: int) -> pa.Table:
    return pa.table({"n": list(range(count)), "name": [f"row {n}" for n in range(count)]})


def read(path: Path) -> list[int]:
    match path.suffix:
        case ".csv":
            return [int(line.partition(",")[0]) for line in path.read_text().splitlines()[1:]]
        case ".ndjson":
            return [msgspec.json.decode(line)["n"] for line in path.read_text().splitlines()]
        case ".parquet":
            return list(pq.read_table(path).column("n").to_pylist())
        case ".arrow":
            return list(pa.ipc.open_stream(path.read_bytes()).read_all().column("n").to_pylist())
    sheets = CalamineWorkbook.from_path(path)
    return [int(row[0]) for name in sheets.sheet_names for row in sheets.get_sheet_by_name(name).to_python()[1:]]


@pytest.mark.parametrize("form", ["csv", "ndjson", "parquet", "arrow", "xlsx"])
@pytest.mark.parametrize("rows,each,sizes", [(8, 4, [4, 4]), (10, 3, [3, 3, 3, 1]), (0, 3, [0]), (9, 50, [9])])
def test_parts_are_the_whole(tmp_path: Path, form: str, rows: int, each: int, sizes: list[int]) -> None:
    done = to_files(Daemon(numbers(rows)), ASKED, form, Destination(tmp_path / f"all.{form}", each))
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == [f"all-{n:05d}.{form}" for n in range(1, len(sizes) + 1)]
    assert [len(read(path)) for path in files] == sizes
    assert [n for path in files for n in read(path)] == list(range(rows))
    assert (done.rows, "file" in done.remarks[0]) == (rows, True)


@pytest.mark.parametrize("form", ["csv", "ndjson", "parquet", "arrow", "xlsx"])
@pytest.mark.parametrize("each", [None, 3])
def test_of_an_answer_that_breaks_off_no_file_is_left(tmp_path: Path, form: str, each: int | None) -> None:
    fault = Invalid("a slice is damaged", rule="slice")
    with pytest.raises(Invalid, match="damaged"):
        to_files(Daemon(numbers(10), fault=fault), ASKED, form, Destination(tmp_path / f"all.{form}", each))
    assert list(tmp_path.iterdir()) == []


def test_files_of_an_earlier_export_are_told_apart(tmp_path: Path) -> None:
    to_files(Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 3))
    with pytest.raises(Invalid, match="is there already"):
        to_files(Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 4))
    assert len(read(tmp_path / "all-00001.csv")) == 3
    done = to_files(Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 4, replace=True))
    assert done.remarks[1] == "all-00004.csv was there before, and is not of this export"
    again = Destination(tmp_path / "all.csv", 2, replace=True)
    assert len(to_files(Daemon(numbers(10)), ASKED, "csv", again).remarks) == 1


def test_files_whose_names_would_not_sort_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_file, "MOST_FILES", 3)
    with pytest.raises(Invalid, match="more than 3 files"):
        to_files(Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 3))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="No such file or directory"):
        to_files(Daemon(numbers(1)), ASKED, "csv", Destination(tmp_path / "nowhere" / "all.csv"))


def test_what_the_machine_refuses_is_no_mistake_of_the_command_line(tmp_path: Path) -> None:
    with room_for(100), pytest.raises(Environment, match="cannot write"):
        to_files(Daemon(numbers(1000)), ASKED, "csv", Destination(tmp_path / "all.csv"))
    assert list(tmp_path.iterdir()) == []
    with room_for(0), pytest.raises(Environment, match="cannot write"):
        NewFile(tmp_path / "answer.json").write("{}\n")
    assert list(tmp_path.iterdir()) == []


def sheet(table: pa.Table, **more: Any) -> tuple[list[list[Any]], list[str]]:
    out = io.BytesIO()
    writer = SheetWriter(out, [(field.name, str(field.type)) for field in table.schema], **more)
    try:
        writer.write(plain_rows(table))
    finally:
        writer.close()
    book = CalamineWorkbook.from_filelike(io.BytesIO(out.getvalue()))
    return [row for name in book.sheet_names for row in book.get_sheet_by_name(name).to_python()], writer.remarks()


LONG = decimal.Decimal("12345678901234567.89")


def test_values_are_those_of_a_sheet_or_text_and_told() -> None:
    """Attack T-CARD-03: a text that begins like a formula, in an exported sheet.

    Defence: cells of text are written as texts, never as formulas.
    """
    table = pa.table(
        {
            "n": pa.array([1, -5, 2**60, None], pa.int64()),
            "x": pa.array([0.5, float("nan"), float("inf"), -1e300]),
            "price": pa.array([decimal.Decimal("1.50"), LONG, None, None], pa.decimal128(20, 2)),
            "at": pa.array([0, 1_700_000_000_123_000, 1_700_000_000_123_456, -(10**17)], pa.timestamp("us", "UTC")),
            "day": pa.array([dt.date(2024, 2, 29), dt.date(1899, 1, 1), None, dt.date(1900, 3, 1)]),
            "said": [True, None, False, True],
            "text": ["=1+1", "12", "", "é"],
        }
    )
    heading, *rows = sheet(table)[0]
    assert heading == table.column_names
    assert rows[0] == [1, 0.5, 1.5, dt.date(1970, 1, 1), dt.date(2024, 2, 29), True, "=1+1"]
    half = dt.datetime(2023, 11, 14, 22, 13, 20, 123_000)
    assert rows[1][:5] == [-5, "nan", str(LONG), half, "1899-01-01"]
    assert rows[2][:4] == [str(2**60), "inf", "", "2023-11-14T22:13:20.123456Z"]
    assert rows[3][1] == -1e300
    assert [row[6] for row in rows] == ["=1+1", "12", "", "é"]
    said = sheet(table)[1]
    assert [line.partition(":")[0] for line in said] == [
        "1 value of n is text", "2 values of x are text", "1 value of price is text", "2 values of at are text",
        "1 value of day is text",
    ]  # fmt: skip


INTEGERS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=8)


@pytest.mark.slow
@settings(max_examples=30)
@given(INTEGERS, st.integers(1, 4))
@example([34_561_881_851_091_100], 1)
@example([1_600_593_426_432_000], 1)
def test_numbers_come_back_whatever_the_sheets(values: list[int | None], most: int) -> None:
    out = io.BytesIO()
    writer = SheetWriter(out, [("n", "int64")], most_rows=most)
    writer.write(plain_rows(pa.table({"n": pa.array(values, pa.int64())})))
    writer.close()
    book = CalamineWorkbook.from_filelike(io.BytesIO(out.getvalue()))
    sheets = [book.get_sheet_by_name(name).to_python()[1:] for name in book.sheet_names]
    assert [int(row[0]) for rows in sheets for row in rows if row[0] != ""] == [n for n in values if n is not None]
    assert len(sheets) == max(1, -(-len(values) // most))
    long = [n for n in values if n is not None and len(str(abs(n)).rstrip("0")) > 15]
    assert len(writer.remarks()) == (len(sheets) > 1) + bool(long)


def test_what_no_sheet_holds_is_refused() -> None:
    whole = "x" * MOST_TEXT
    assert sheet(pa.table({"t": [whole]}))[0][1] == [whole]
    with pytest.raises(Invalid, match="'t' in row 2 has 32,768"):
        sheet(pa.table({"t": ["", whole + "x"]}))
    with pytest.raises(Invalid, match="at most 16,384 columns"):
        SheetWriter(io.BytesIO(), [("c", "int64")] * (MOST_COLUMNS + 1))


def test_what_is_written_is_told_as_it_grows(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    to_files(
        Daemon(numbers(10)), ASKED, "csv", Destination(tmp_path / "all.csv", 4), lambda *counts: told.append(counts)
    )
    assert told == sorted(told)
    assert told[-1][0] == 10
    assert told[-1][1] <= sum(file.stat().st_size for file in tmp_path.glob("all-*.csv"))


# Folders for Hugging Face: the library of its users reads them, and what proves their rows is checked.


def asked(to: Path | str, **more: Any) -> argparse.Namespace:
    """The words of an export."""
    options = {
        "describe": [], "table": None, "replace": False, "rows_per_file": 1, "no_proof": False,
        "current": False, "as_of": None, "at_block": None, "as_at": None,
    }  # fmt: skip
    return argparse.Namespace(ref="weather", to=str(to), **{**options, **more})


def write_hub(to: Path, table: pa.Table = TABLE, node: Any = None, **more: Any) -> list[str]:
    about = {name: more.pop(name) for name in ("license", "attachments") if name in more}
    _, told = HubFolder(asked(to, **more)).write(node or DescribedNode(table, **about), lambda _rows, _bytes: None)
    return told


def header(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    return found


@pytest.fixture
def load(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:
    """Reads a folder by the library of Hugging Face, which asks no server and has a cache of its own."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(cache))
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return lambda folder: datasets.load_dataset(str(folder), split="train", cache_dir=str(cache))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_library_reads_rows_and_types(tmp_path: Path, load: Callable[[Path], Any]) -> None:
    """Its features are those of the card, its rows those of the files, and it counts them by the card."""
    import datasets

    told = write_hub(tmp_path / "hub")
    assert "README.md is the card; odf.json says where the rows come from" in told
    rows = load(tmp_path / "hub")
    assert rows.with_format("arrow")[:].to_pylist() == TABLE.to_pylist()
    info = header(tmp_path / "hub")["dataset_info"]
    assert info["features"] == datasets.Features.from_arrow_schema(TABLE.schema)._to_yaml_list()
    assert rows.info.splits["train"].num_examples == 2
    readme = tmp_path / "hub" / "README.md"
    readme.write_text(readme.read_text().replace("num_examples: 2", "num_examples: 3"))
    with pytest.raises(datasets.exceptions.NonMatchingSplitsSizesError):
        datasets.load_dataset(str(tmp_path / "hub"), cache_dir=str(tmp_path / "other"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_hubs_library_reads_the_card_of_no_rows_too(tmp_path: Path) -> None:
    card = pytest.importorskip("huggingface_hub").DatasetCard
    told = write_hub(tmp_path / "hub", TABLE.slice(0, 0))
    assert "no rows yet: the library datasets does not load a split without rows" in told
    found = card.load(tmp_path / "hub" / "README.md").data
    assert (found.pretty_name, found.license, found.size_categories) == ("Weather daily", "cc-by-4.0", ["n<1K"])
    assert found.tags == ["weather", "open-data-fabric"]


def test_features_are_written_as_the_library_writes_them() -> None:
    """The expected ones are what ``datasets`` 5.2.0 makes of these types."""
    point = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])
    schema = pa.schema(
        [
            ("a", pa.float16()), ("b", pa.float32()), ("c", pa.float64()), ("d", pa.date32()), ("e", pa.time32("ms")),
            ("f", pa.timestamp("ns", "Europe/Vienna")), ("g", pa.decimal128(5, 2)), ("h", pa.list_(point)),
            ("i", pa.large_list(pa.int32())), ("j", pa.list_(pa.int32(), 3)), ("k", pa.list_(pa.list_(pa.int8()))),
            ("l", pa.dictionary(pa.int32(), pa.string())), ("m", pa.binary(4)), ("n", pa.duration("ms")),
        ]
    )  # fmt: skip
    assert huggingface.features(schema) == [
        {"name": "a", "dtype": "float16"},
        {"name": "b", "dtype": "float32"},
        {"name": "c", "dtype": "float64"},
        {"name": "d", "dtype": "date32"},
        {"name": "e", "dtype": "time32[ms]"},
        {"name": "f", "dtype": "timestamp[ns, tz=Europe/Vienna]"},
        {"name": "g", "dtype": "decimal128(5, 2)"},
        {"name": "h", "list": [{"name": "x", "dtype": "int64"}, {"name": "y", "list": "string"}]},
        {"name": "i", "large_list": "int32"},
        {"name": "j", "list": "int32", "length": 3},
        {"name": "k", "list": {"list": "int8"}},
        {"name": "l", "dtype": "string"},
        {"name": "m", "dtype": "fixed_size_binary[4]"},
        {"name": "n", "dtype": "duration[ms]"},
    ]


def test_a_column_that_readers_lack_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    table = pa.table({"offset": [0], "pairs": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(Invalid, match=r"the column 'pairs' is map<string, int64>"):
        write_hub(tmp_path / "hub", table)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("spdx", "name"),
    [
        ("CC-BY-4.0", "cc-by-4.0"),
        ("ODbL-1.0", "odbl"),
        ("PDDL-1.0", "pddl"),
        ("GPL-3.0-only", "gpl-3.0"),
        ("X-1", None),
    ],
)
def test_licences_have_the_names_of_the_hub(spdx: str, name: str | None) -> None:
    assert huggingface.license_of(spdx) == name


def test_another_licence_is_named_and_linked(tmp_path: Path) -> None:
    mine = wire.License(short_name="My own", name="Mine", website_url="https://mine.example")
    write_hub(tmp_path / "hub", license=mine)
    found = header(tmp_path / "hub")
    assert [found[name] for name in ("license", "license_name", "license_link")] == [
        "other", "my-own", "https://mine.example",
    ]  # fmt: skip
    write_hub(tmp_path / "none", license=wire.License(short_name="", name="Mine", website_url="javascript:alert(1)"))
    assert header(tmp_path / "none")["license_name"] == "mine"
    assert "javascript" not in (tmp_path / "none" / "README.md").read_text()


@pytest.mark.parametrize(
    ("rows", "words"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**9, "1B<n<10B"), (10**12, "n>1T")]
)
def test_classes_of_size(rows: int, words: str) -> None:
    assert huggingface.size_category(rows) == words


def test_a_card_says_what_the_chain_says_and_names_no_private_input(tmp_path: Path) -> None:
    attached = (wire.Attachment(path="README.md", content="HubContent at noon.\n"),)
    told = write_hub(tmp_path / "hub", attachments=attached)
    text = (tmp_path / "hub" / "README.md").read_text()
    for words in (
        DID,
        BLOCK,
        "By day",
        "HubContent at noon.",
        "| station | string | where |",
        f"readings (`{PUBLIC}`)",
    ):
        assert words in text
    assert not [word for word in (PRIVATE, AWAY, "secret") if word in text]
    assert "3 inputs not named: private, or not held here" in told


def test_the_statement_is_about_the_rows_of_the_files(tmp_path: Path) -> None:
    write_hub(tmp_path / "hub")
    origin = tmp_path / "hub" / "odf.json"
    found = json.loads(origin.read_text())
    assert [each["path"] for each in found["files"]] == ["data/rows-00001.parquet", "data/rows-00002.parquet"]
    assert found["readFrom"] == [{"dataset": DID, "block": BLOCK, "sequenceNumber": 7}]
    proven = answer_recheck.read(str(origin))
    assert proven is not None
    assert (proven.files, proven.predicate.rows, proven.predicate.query) == (2, 2, 'SELECT * FROM "weather"')


def _other_rows(data: Path) -> None:
    table = pq.read_table(data / "rows-00002.parquet")
    station = table.schema.get_field_index("station")
    pq.write_table(table.set_column(station, "station", pa.array(["linz"])), data / "rows-00002.parquet")


def _named(data: Path, path: str) -> None:
    origin = data.parent / "odf.json"
    found = json.loads(origin.read_text())
    origin.write_text(json.dumps({**found, "files": [{"path": path}] if path else []}))


@pytest.mark.parametrize(
    ("change", "fault", "words"),
    [
        (_other_rows, Invalid, "the rows in the files are not those that were signed"),
        (lambda data: (data / "rows-00001.parquet").replace(data / "rows-00002.parquet"), NotFound, "no file"),
        (lambda data: (data / "rows-00003.parquet").write_bytes(b"more"), Invalid, "is none of the files"),
        (lambda data: (data / "rows-00001.parquet").write_bytes(b"PAR1 of no use PAR1"), Invalid, "not a readable"),
        (lambda data: _named(data, "../rows.parquet"), Invalid, "not named within its folder"),
        (lambda data: _named(data, "/etc/passwd"), Invalid, "not named within its folder"),
        (lambda data: _named(data, ""), Invalid, "no file is named"),
    ],
)
def test_other_files_are_told(tmp_path: Path, change: Callable[[Path], Any], fault: type[Fault], words: str) -> None:
    """Attack T-REPO-01: rows of a folder for Hugging Face that were replaced after the export, or a file that the
    card's pattern takes too.

    Defence: the signed statement has the hash of all rows; `odfctl trust recheck` compares the files with it, refuses
    files beside them, and reads none outside of the folder.
    """
    write_hub(tmp_path / "hub")
    change(tmp_path / "hub" / "data")
    with pytest.raises(fault, match=words):
        answer_recheck.read(str(tmp_path / "hub" / "odf.json"))


def test_rows_that_are_too_many_for_a_statement_go_without_one_by_name(tmp_path: Path) -> None:
    node = DescribedNode(TABLE)
    node.most = 10
    with pytest.raises(Refused, match="too large to be proven") as refused:
        write_hub(tmp_path / "hub", node=node)
    assert "--no-proof" in str(refused.value.hint)
    assert not list(tmp_path.iterdir())
    told = write_hub(tmp_path / "hub", node=node, no_proof=True)
    assert "no signed statement: readers cannot check the rows against the chain" in told
    assert "statement" not in json.loads((tmp_path / "hub" / "odf.json").read_text())
    assert "recheck" not in (tmp_path / "hub" / "README.md").read_text()


def test_a_folder_is_written_anew_when_that_is_asked_for(tmp_path: Path) -> None:
    """As the clone of a repository: files of others stay, and no file of the former rows does."""
    hub = tmp_path / "hub"
    write_hub(hub)
    (hub / ".gitattributes").write_text("*.parquet filter=lfs\n")
    with pytest.raises(Invalid, match=r"README\.md is there already"):
        write_hub(hub)
    assert len(list((hub / "data").iterdir())) == 2
    assert "1 file of an earlier export removed" in write_hub(hub, TABLE.slice(0, 1), replace=True)
    assert sorted(path.name for path in hub.rglob("*") if path.is_file()) == [
        ".gitattributes", "README.md", "odf.json", "rows-00001.parquet",
    ]  # fmt: skip
    assert answer_recheck.read(str(hub / "odf.json")) is not None


@pytest.mark.parametrize(
    ("more", "words"),
    [({"describe": ["croissant"]}, "--describe is not"), ({"table": "delta"}, "--table is not")],
)
def test_other_documents_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(Usage, match=words):
        HubFolder(asked(tmp_path / "hub", **more))


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", "https://huggingface.co/datasets/x"):
        with pytest.raises(Usage, match="is no folder"):
            HubFolder(asked(place))
    with pytest.raises(Usage, match="hub"):
        write_hub(tmp_path / "none" / "hub")


# Documents beside exported rows: what the standards' own readers make of them, and what they never name.


def described(to: Path, *standards: str, **more: Any) -> argparse.Namespace:
    """The words of an export with documents."""
    options = {"current": False, "replace": False, "rows_per_file": None, **more}
    return argparse.Namespace(ref="weather", to=str(to), describe=list(standards), **options)


def describe_rows(
    folder: Path, form: str, *standards: str, table: pa.Table = TABLE, **about: Any
) -> tuple[list[str], dict[str, Any]]:
    """Exports rows and describes them; what was told, and each document."""
    node: Any = DescribedNode(table, **{name: value for name, value in about.items() if name != "current"})
    path = folder / f"daily rows.{form}"
    written = to_files(node, ASKED, form, Destination(path, replace=True))
    asked = described(path, *standards, current=about.get("current", False), replace=True)
    told = write_documents(node, asked, form, written, check_documents(asked, form))
    found = {place.name: json.loads(place.read_text()) for place in folder.glob("*.json")}
    return told, found


@pytest.mark.slow
def test_frictionless_reads_the_rows_that_were_exported(tmp_path: Path) -> None:
    """The standard's own library checks the document, sizes, hashes and each cell against the Table Schema."""
    describe_rows(tmp_path, "csv", "frictionless")
    package = frictionless.Package(str(tmp_path / "datapackage.json"))
    report = package.validate()
    assert report.valid, report.flatten(["rowNumber", "fieldName", "type", "note"])
    resource: Any = package.resources[0]
    first, second = resource.read_rows()
    assert first["celsius"] == decimal.Decimal("9.50")
    assert first["event_time"].astimezone(dt.UTC) == WHEN
    assert (first["day"], first["ok"], first["big"]) == (dt.date(2024, 5, 1), True, 2**60)
    assert (first["tags"], first["place"]) == (["a", "b"], {"x": 1})
    assert (second["station"], second["share"]) == ('w,"ien', None)


@pytest.mark.slow
def test_the_schema_fits_values_of_json_too(tmp_path: Path) -> None:
    describe_rows(tmp_path, "ndjson", "frictionless")
    (resource,) = frictionless.Package(str(tmp_path / "datapackage.json")).resources
    lines = [json.loads(line) for line in (tmp_path / "daily rows.ndjson").read_text().splitlines()]
    for row in lines:
        cells, notes = resource.schema.read_cells([row[name] for name in resource.schema.field_names])
        assert not [note for note in notes if note], notes
        assert len(cells) == len(TABLE.column_names)


@pytest.mark.slow
def test_frictionless_notices_rows_that_are_not_those(tmp_path: Path) -> None:
    describe_rows(tmp_path, "csv", "frictionless")
    file = tmp_path / "daily rows.csv"
    file.write_text(file.read_text().replace("0.25", "0.x5"))
    report = frictionless.Package(str(tmp_path / "datapackage.json")).validate()
    assert {"hash-count", "type-error"} & set(report.flatten(["type"])[0])
    assert not report.valid


def test_a_package_says_what_the_chain_says(tmp_path: Path) -> None:
    _, found = describe_rows(tmp_path, "parquet", "frictionless")
    package = found["datapackage.json"]
    assert (package["name"], package["title"], package["id"]) == ("weather-daily", "Weather daily", DID)
    assert package["licenses"] == [{"name": "CC-BY-4.0", "path": "https://cc.example", "title": "Attribution"}]
    (resource,) = package["resources"]
    data = (tmp_path / "daily rows.parquet").read_bytes()
    assert (resource["bytes"], resource["hash"]) == (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")
    (station,) = [each for each in resource["schema"]["fields"] if each["name"] == "station"]
    assert (station["description"], station["constraints"]) == ("where", {"required": True})


@pytest.mark.parametrize("standard", ["frictionless", "croissant"])
def test_an_input_that_others_may_not_know_of_is_not_named(tmp_path: Path, standard: str) -> None:
    """Attack T-PRIVATE-02: reading a data package or Croissant document beside exported rows for private inputs of a
    derived dataset.

    Defence: an input is named only if it is visible to others; the number of other inputs is shown on the owner's
    terminal.
    """
    told, _ = describe_rows(tmp_path, "csv", standard)
    (document,) = tmp_path.glob("*.json")
    text = document.read_text()
    assert PUBLIC in text
    assert not [word for word in (PRIVATE, AWAY, "secret", "never resolved") if word in text]
    assert "3 inputs not named: private, or not held here" in told


def test_a_key_holds_of_what_holds_and_not_of_the_log(tmp_path: Path) -> None:
    source = {"merge": {"kind": "Ledger", "primaryKey": ["station"]}}
    (tmp_path / "log").mkdir()
    _, log = describe_rows(tmp_path / "log", "csv", "frictionless", "croissant", source=source)
    _, now = describe_rows(tmp_path, "csv", "frictionless", "croissant", source=source, current=True)
    assert "primaryKey" not in log["datapackage.json"]["resources"][0]["schema"]
    assert "key" not in log["croissant.json"]["recordSet"][0]
    assert now["datapackage.json"]["resources"][0]["schema"]["primaryKey"] == ["station"]
    assert now["croissant.json"]["recordSet"][0]["key"] == [{"@id": "rows/station"}]


def test_a_link_of_another_scheme_is_no_license(tmp_path: Path) -> None:
    bad = wire.License(short_name="mine", name="Mine", website_url="javascript:alert(1)")
    _, found = describe_rows(tmp_path, "csv", "frictionless", "croissant", license=bad)
    assert "javascript" not in json.dumps(found)
    assert found["datapackage.json"]["licenses"] == [{"name": "mine", "title": "Mine"}]


def test_croissant_says_each_column_or_that_it_does_not(tmp_path: Path) -> None:
    told, found = describe_rows(tmp_path, "parquet", "croissant")
    (rows,) = found["croissant.json"]["recordSet"]
    kinds = {each["name"]: (each["dataType"], each.get("repeated", False)) for each in rows["field"]}
    assert kinds["tags"] == ("sc:Text", True)
    assert kinds["celsius"] == ("sc:Float", False)
    assert not {"place", "raw"} & set(kinds)
    assert "croissant.json has no type for 2 columns: place, raw" in told


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_croissant_is_read_by_its_own_library(tmp_path: Path) -> None:
    """Runs where ``mlcroissant`` is installed by hand: it brings scipy and types that change what mypy sees."""
    mlcroissant = pytest.importorskip("mlcroissant")
    for form in ("csv", "ndjson", "parquet"):
        folder = tmp_path / form
        folder.mkdir()
        describe_rows(folder, form, "croissant")
        dataset = mlcroissant.Dataset(jsonld=str(folder / "croissant.json"))
        assert not dataset.metadata.ctx.issues.errors
        records = list(dataset.records("rows"))
        assert [each["rows/offset"] for each in records] == [0, 1]


def test_the_croissant_document_is_the_one_that_its_library_accepted(tmp_path: Path) -> None:
    """When this changes: run the test before with mlcroissant 1.1.1, then write the document anew."""
    _, found = describe_rows(tmp_path, "csv", "croissant")
    accepted = Path(__file__).with_name("croissant.json")
    assert found["croissant.json"] == json.loads(accepted.read_text())


@pytest.mark.slow
def test_several_files_are_several_resources(tmp_path: Path) -> None:
    node: Any = DescribedNode(TABLE)
    written = to_files(node, ASKED, "csv", Destination(tmp_path / "part.csv", 1))
    asked = described(tmp_path / "part.csv", "frictionless")
    write_documents(node, asked, "csv", written, check_documents(asked, "csv"))
    with pytest.raises(Invalid, match=r"datapackage\.json is there already"):
        check_documents(asked, "csv")
    package = frictionless.Package(str(tmp_path / "datapackage.json"))
    assert [each.path for each in package.resources] == ["part-00001.csv", "part-00002.csv"]
    assert package.validate().valid
    asked = described(tmp_path / "part.csv", "croissant")
    with pytest.raises(Invalid, match="one file of rows, not 2"):
        write_documents(node, asked, "csv", written, check_documents(asked, "csv"))


def test_a_package_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfd.cli.standards.frictionless.MOST_FILES", 1)
    node: Any = DescribedNode(TABLE)
    written = to_files(node, ASKED, "csv", Destination(tmp_path / "part.csv", 1))
    asked = described(tmp_path / "part.csv", "frictionless")
    with pytest.raises(Invalid, match="2 files in one data package"):
        write_documents(node, asked, "csv", written, check_documents(asked, "csv"))
    assert not list(tmp_path.glob("*.json"))


def test_what_is_not_described_is_said_before_a_row_is_read(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="xlsx are not described"):
        check_documents(described(tmp_path / "a.xlsx", "frictionless"), "xlsx")
    with pytest.raises(Usage, match="one file"):
        check_documents(described(tmp_path / "a.csv", "croissant", rows_per_file=10), "csv")
    assert check_documents(described(tmp_path / "a.xlsx"), "xlsx") == []
    check_documents(described(tmp_path / "a.csv", "frictionless", rows_per_file=10), "csv")


def test_documents_are_json_that_any_reader_takes(tmp_path: Path) -> None:
    _, found = describe_rows(tmp_path, "csv", "frictionless", "croissant", "croissant")
    assert sorted(found) == ["croissant.json", "datapackage.json"]
    assert found["datapackage.json"]["odf"]["standing"] == "data"
    assert msgspec.json.decode((tmp_path / "croissant.json").read_bytes()) == found["croissant.json"]
