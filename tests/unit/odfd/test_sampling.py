"""A manifest that is written from a sample is applied as it stands, reads the sample, and says what was not sure."""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.codec.manifest import to_builtins
from chain.errors import Invalid
from chain.model.events import AddPushSource
from chain.model.source import MergeAppend
from odfd.cli.main import main
from odfd.cli.offline.new import preview
from odfd.cli.offline.sampling.inference import guess_format, markup, read_sample
from odfd.cli.offline.sampling.manifest import manifest_text, proven
from odfd.cli.offline.sampling.text_types import column_of
from odfd.cli.session import Session
from worlds import foreign_bytes as made
from worlds.reading import read_step


@pytest.mark.parametrize(
    "values,ddl,said",
    [
        (["1", "-2", "+3"], "STRING", {}),
        (["1", "-2"], "BIGINT", {}),
        (["01", "2"], "STRING", {}),
        (["1", "2.5"], "DOUBLE", {}),
        (["1.234,5", "7"], "DOUBLE", {"decimal": ",", "thousands": "."}),
        (["0,5"], "DOUBLE", {"decimal": ","}),
        (["1", "n/a"], "BIGINT", {"nulls": ("n/a",)}),
        (["a", "n/a"], "STRING", {"nulls": ()}),
        (["true", "FALSE"], "BOOLEAN", {}),
        (["2024-05-01"], "DATE", {"date": None}),
        (["2024-05-01T00:00:00Z"], "TIMESTAMP", {"unsure": ()}),
        (["31.12.2024", "01.01.2024"], "DATE", {"date": "%d.%m.%Y", "unsure": ()}),
        (["12/31/2024"], "DATE", {"date": "%m/%d/%Y", "unsure": ()}),
        (["31/12/2024 13:00"], "TIMESTAMP", {"timestamp": "%d/%m/%Y %H:%M"}),
        (["13/13/2024"], "STRING", {}),
        ([], "STRING", {}),
    ],
)
def test_columns_are_what_all_values_are(values: list[str], ddl: str, said: dict[str, Any]) -> None:
    found = column_of(values)
    assert found.ddl == ddl
    assert {name: getattr(found, name) for name in said} == said


def test_a_date_of_two_meanings_is_told() -> None:
    (unsure,) = column_of(["01/02/2024", "03/04/2024"]).unsure
    assert "the other way round" in unsure


GERMAN = "Statistik;2024\nday;city name;amount\n01.05.2024;Köln;1.234,50\n13.05.2024;Graz;-\n"
FILES: dict[str, tuple[bytes, list[list[Any]], list[str]]] = {
    "de.csv": (
        GERMAN.encode("cp1252"),
        [[dt.date(2024, 5, 1), "Köln", 1234.5], [dt.date(2024, 5, 13), "Graz", None]],
        ["encoding: cp1252", "skipRows: 1", "# unsure: '-' is taken for no value", "eventTimeColumn: day"],
    ),
    "gap.csv": (
        b"id,seen,known\n1,2024-05-01,2024-05-02\n2,,2024-05-03\n",
        [[1, dt.date(2024, 5, 1), dt.date(2024, 5, 2)], [2, None, dt.date(2024, 5, 3)]],
        ["happened\n", "eventTimeColumn: known"],
    ),
    "gaps.csv": (b"id,seen\n1,2024-05-01\n2,\n", [], ["# unsure: some rows have no seen: the event time is that"]),
    "a.csv.gz": (gzip.compress(b"id,word\n1,a\n2,b\n"), [[1, "a"], [2, "b"]], ["- id BIGINT"]),
    "bare.tsv": (b"1\tx\n2\ty\n", [[1, "x"], [2, "y"]], ["header: false", "# unsure: the first row is taken for data"]),
    "noted.csv": (b"# a\n# b\nid,x\n1,2\n", [[1, 2]], ["comment: '#'"]),
    "list.json": (b'[{"a": 1}]', [[1]], ["kind: Json"]),
    "inner.json": (b'{"result": {"rows": [{"a": 1}]}}', [[1]], ["subPath: result.rows"]),
    "lines.json": (b'{"a": 1}\n{"a": 2}\n', [[1], [2]], ["kind: NdJson"]),
    "two.zip": (
        made.zipped({"a.csv": "n\n1\n", "b.csv": "n\n2\n", "LICENSE": ""}),
        [[1], [2]],
        ["members: '*.csv'", "# unsure: all files *.csv of the zip are read as one batch"],
    ),
    "table.xlsx": (made.xlsx({"S": [["n", "w"], [1, "a"]]}), [[1, "a"]], ["kind: Spreadsheet"]),
    "sheets.xlsx": (
        made.xlsx({"Info": [["A report"]], "Sales": [["day", "n"], ["01.05.2024", 1], ["13.05.2024", 2]]}),
        [[dt.date(2024, 5, 1), 1.0], [dt.date(2024, 5, 13), 2.0]],
        ["sheet: Sales", "# unsure: of the sheets Info, Sales this one is taken", "# unsure: the sheet has it as text"],
    ),
    "total.csv": (
        "Artikel;Menge;Preis\nA;1.200;3,50\nB;80;12,99\nSumme;1.280;\n\n(c) Amt\n".encode("cp1252"),
        [["A", 1200, 3.5], ["B", 80, 12.99]],
        ["skipFooter: 2", "thousands: .", "Menge BIGINT", "# unsure: 1.200 is taken for 1200"],
    ),
    "shop.db": (made.sqlite_file([(1, "a")]), [[1, "a"]], ["kind: Sqlite"]),
    "data.avro": (made.avro(1), [], ["kind: Avro"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_manifest_from_a_sample_reads_it(name: str, tmp_path: Path) -> None:
    data, rows, said = FILES[name]
    path = tmp_path / name
    path.write_bytes(data)
    text = manifest_text("a.b", guess_format(path, name))
    seen = read_sample(path, name, proven(text, "a.b"), 10)
    assert [each in text for each in said] == [True] * len(said), text
    if rows:
        assert [list(row.values()) for row in seen.rows.to_pylist()] == rows


def test_a_preview_reads_by_the_source_as_a_daemon_tells_it(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """And by a format, and by a look into the file."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("id;price\n1;0,5\n")
    step = read_step("kind: Csv\nheader: true\nseparator: ';'\ndecimal: ','\nddlSchema: [id BIGINT, price DOUBLE]")
    source = to_builtins(AddPushSource(source_name="default", read=step, merge=MergeAppend()))
    session = Session(argparse.Namespace(socket=None, output="json", quiet=False, verbose=False))
    for said, format_, rows in [(source, None, [["1", "0.5"]]), (None, "csv", None), (None, None, [["1", "0.5"]])]:
        if rows is None:
            with pytest.raises(Invalid, match="the header is one column"):
                preview(session, "a.csv", said, format_)
            continue
        assert preview(session, "a.csv", said, format_) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == rows


def test_xml_and_nothing_are_told(tmp_path: Path) -> None:
    for data, rule in [(b"<feed/>", "new-xml"), (b"<!doctype html><p/><p/>", "new-xml"), (b"\n\n", "new-empty")]:
        (tmp_path / "f").write_bytes(data)
        with pytest.raises(Invalid) as told:
            guess_format(tmp_path / "f", "f")
        assert told.value.rule == rule


def test_the_command_writes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("id,when\n1,2024-05-01T00:00:00Z\n")
    assert main(["new", "a.b", "a.csv"]) == 0
    assert "a.b.yaml is written" in capsys.readouterr().out
    assert "eventTimeColumn: when" in Path("a.b.yaml").read_text()
    assert main(["new", "a.b", "a.csv"]) == 5
    assert "is there already" in capsys.readouterr().err
    assert main(["new", "a.b", "a.csv", "-O", "-"]) == 0
    assert capsys.readouterr().out.startswith("$schema: Dataset\n")
    assert main(["new", "a.c", "missing.csv"]) == 5
    assert not Path("a.c.yaml").exists()


ITEM = "<item><guid>{0}</guid><title>n{0}</title></item>"


@pytest.mark.parametrize(
    ("text", "record", "doubt"),
    [
        (f"<rss><channel><title>t</title>{ITEM.format(1)}{ITEM.format(2)}</channel></rss>", "rss/channel/item", ""),
        ("<r><a><x/></a><b><x/></b><b/></r>", "r/b", ""),
        ("<r><a/><a/><b/><b/><b/></r>", "r/b", "r/a may be meant"),
        ("<!DOCTYPE r [<!ENTITY e 'x'>]><r><a/><a/></r>", None, ""),
        ("<r><a><a><a>", None, ""),
    ],
)
def test_elements_that_occur_often_are_rows(text: str, record: str | None, doubt: str) -> None:
    if record is None:
        with pytest.raises(Invalid, match="no element occurs twice"):
            markup(text.encode())
        return
    found = markup(text.encode())
    assert found.read == {"kind": "Xml", "record": record}
    assert doubt in found.unsure[0]


@pytest.mark.slow
def test_a_feed_becomes_a_manifest_that_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    items = "".join(ITEM.format(number) for number in range(3))
    Path("feed.xml").write_text(f'<?xml version="1.0"?><rss version="2.0"><channel>{items}</channel></rss>')
    assert main(["new", "feed", "feed.xml"]) == 0
    assert "record: rss/channel/item" in Path("feed.yaml").read_text()
    assert "n2" in capsys.readouterr().out


def test_a_mark_of_the_encoding_is_in_no_name(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfid,name\n1,a\n")
    assert [name for name, _, _ in guess_format(tmp_path / "f", "f").columns] == ["id", "name"]


def test_a_column_that_no_dataset_holds_is_told_before_an_ingest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    column = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"id": [1], "m": column}), "nested.parquet")
    assert main(["new", "nested", "nested.parquet"]) == 5
    assert "column 'm' is a map" in capsys.readouterr().err
    assert not Path("nested.yaml").exists()
