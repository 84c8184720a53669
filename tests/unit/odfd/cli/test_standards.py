"""Documents beside exported rows: what the standards' own readers make of them, and what they never name."""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import hashlib
import json
from pathlib import Path
from typing import Any

import frictionless
import msgspec
import pyarrow as pa
import pytest

from chain.errors import Invalid
from odfd.cli.descriptions import check_documents, write_documents
from odfd.cli.sql.output_file import Destination, to_files
from odfd.control import wire
from odfd.errors import Usage
from worlds.described_node import AWAY, DID, PRIVATE, PUBLIC, TABLE, WHEN, DescribedNode

ASKED = wire.QueryRequest(sql="select")


def described(to: Path, *standards: str, **more: Any) -> argparse.Namespace:
    """The words of an export with documents."""
    options = {"current": False, "replace": False, "rows_per_file": None, **more}
    return argparse.Namespace(ref="weather", to=str(to), describe=list(standards), **options)


def write(
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
    write(tmp_path, "csv", "frictionless")
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
    write(tmp_path, "ndjson", "frictionless")
    (resource,) = frictionless.Package(str(tmp_path / "datapackage.json")).resources
    lines = [json.loads(line) for line in (tmp_path / "daily rows.ndjson").read_text().splitlines()]
    for row in lines:
        cells, notes = resource.schema.read_cells([row[name] for name in resource.schema.field_names])
        assert not [note for note in notes if note], notes
        assert len(cells) == len(TABLE.column_names)


@pytest.mark.slow
def test_frictionless_notices_rows_that_are_not_those(tmp_path: Path) -> None:
    write(tmp_path, "csv", "frictionless")
    file = tmp_path / "daily rows.csv"
    file.write_text(file.read_text().replace("0.25", "0.x5"))
    report = frictionless.Package(str(tmp_path / "datapackage.json")).validate()
    assert {"hash-count", "type-error"} & set(report.flatten(["type"])[0])
    assert not report.valid


def test_a_package_says_what_the_chain_says(tmp_path: Path) -> None:
    _, found = write(tmp_path, "parquet", "frictionless")
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
    told, _ = write(tmp_path, "csv", standard)
    (document,) = tmp_path.glob("*.json")
    text = document.read_text()
    assert PUBLIC in text
    assert not [word for word in (PRIVATE, AWAY, "secret", "never resolved") if word in text]
    assert "3 inputs not named: private, or not held here" in told


def test_a_key_holds_of_what_holds_and_not_of_the_log(tmp_path: Path) -> None:
    source = {"merge": {"kind": "Ledger", "primaryKey": ["station"]}}
    (tmp_path / "log").mkdir()
    _, log = write(tmp_path / "log", "csv", "frictionless", "croissant", source=source)
    _, now = write(tmp_path, "csv", "frictionless", "croissant", source=source, current=True)
    assert "primaryKey" not in log["datapackage.json"]["resources"][0]["schema"]
    assert "key" not in log["croissant.json"]["recordSet"][0]
    assert now["datapackage.json"]["resources"][0]["schema"]["primaryKey"] == ["station"]
    assert now["croissant.json"]["recordSet"][0]["key"] == [{"@id": "rows/station"}]


def test_a_link_of_another_scheme_is_no_license(tmp_path: Path) -> None:
    bad = wire.License(short_name="mine", name="Mine", website_url="javascript:alert(1)")
    _, found = write(tmp_path, "csv", "frictionless", "croissant", license=bad)
    assert "javascript" not in json.dumps(found)
    assert found["datapackage.json"]["licenses"] == [{"name": "mine", "title": "Mine"}]


def test_croissant_says_each_column_or_that_it_does_not(tmp_path: Path) -> None:
    told, found = write(tmp_path, "parquet", "croissant")
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
        write(folder, form, "croissant")
        dataset = mlcroissant.Dataset(jsonld=str(folder / "croissant.json"))
        assert not dataset.metadata.ctx.issues.errors
        records = list(dataset.records("rows"))
        assert [each["rows/offset"] for each in records] == [0, 1]


def test_the_croissant_document_is_the_one_that_its_library_accepted(tmp_path: Path) -> None:
    """When this changes: run the test before with mlcroissant 1.1.1, then write the document anew."""
    _, found = write(tmp_path, "csv", "croissant")
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
    _, found = write(tmp_path, "csv", "frictionless", "croissant", "croissant")
    assert sorted(found) == ["croissant.json", "datapackage.json"]
    assert found["datapackage.json"]["odf"]["standing"] == "data"
    assert msgspec.json.decode((tmp_path / "croissant.json").read_bytes()) == found["croissant.json"]
