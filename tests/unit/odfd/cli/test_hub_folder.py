"""Folders for Hugging Face: the library of its users reads them, and what proves their rows is checked."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from chain.errors import Fault, Invalid, NotFound, Refused
from odfd.cli.offline import answer_recheck
from odfd.cli.standards import huggingface
from odfd.cli.standards.huggingface import HubFolder
from odfd.control import wire
from odfd.errors import Usage
from worlds.described_node import AWAY, BLOCK, DID, PRIVATE, PUBLIC, TABLE, DescribedNode


def asked(to: Path | str, **more: Any) -> argparse.Namespace:
    """The words of an export."""
    options = {
        "describe": [], "table": None, "replace": False, "rows_per_file": 1, "no_proof": False,
        "current": False, "as_of": None, "at_block": None, "as_at": None,
    }  # fmt: skip
    return argparse.Namespace(ref="weather", to=str(to), **{**options, **more})


def write(to: Path, table: pa.Table = TABLE, node: Any = None, **more: Any) -> list[str]:
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

    told = write(tmp_path / "hub")
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
    told = write(tmp_path / "hub", TABLE.slice(0, 0))
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
        write(tmp_path / "hub", table)
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
    write(tmp_path / "hub", license=mine)
    found = header(tmp_path / "hub")
    assert [found[name] for name in ("license", "license_name", "license_link")] == [
        "other", "my-own", "https://mine.example",
    ]  # fmt: skip
    write(tmp_path / "none", license=wire.License(short_name="", name="Mine", website_url="javascript:alert(1)"))
    assert header(tmp_path / "none")["license_name"] == "mine"
    assert "javascript" not in (tmp_path / "none" / "README.md").read_text()


@pytest.mark.parametrize(
    ("rows", "words"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**9, "1B<n<10B"), (10**12, "n>1T")]
)
def test_classes_of_size(rows: int, words: str) -> None:
    assert huggingface.size_category(rows) == words


def test_a_card_says_what_the_chain_says_and_names_no_private_input(tmp_path: Path) -> None:
    attached = (wire.Attachment(path="README.md", content="HubContent at noon.\n"),)
    told = write(tmp_path / "hub", attachments=attached)
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
    write(tmp_path / "hub")
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
    write(tmp_path / "hub")
    change(tmp_path / "hub" / "data")
    with pytest.raises(fault, match=words):
        answer_recheck.read(str(tmp_path / "hub" / "odf.json"))


def test_rows_that_are_too_many_for_a_statement_go_without_one_by_name(tmp_path: Path) -> None:
    node = DescribedNode(TABLE)
    node.most = 10
    with pytest.raises(Refused, match="too large to be proven") as refused:
        write(tmp_path / "hub", node=node)
    assert "--no-proof" in str(refused.value.hint)
    assert not list(tmp_path.iterdir())
    told = write(tmp_path / "hub", node=node, no_proof=True)
    assert "no signed statement: readers cannot check the rows against the chain" in told
    assert "statement" not in json.loads((tmp_path / "hub" / "odf.json").read_text())
    assert "recheck" not in (tmp_path / "hub" / "README.md").read_text()


def test_a_folder_is_written_anew_when_that_is_asked_for(tmp_path: Path) -> None:
    """As the clone of a repository: files of others stay, and no file of the former rows does."""
    hub = tmp_path / "hub"
    write(hub)
    (hub / ".gitattributes").write_text("*.parquet filter=lfs\n")
    with pytest.raises(Invalid, match=r"README\.md is there already"):
        write(hub)
    assert len(list((hub / "data").iterdir())) == 2
    assert "1 file of an earlier export removed" in write(hub, TABLE.slice(0, 1), replace=True)
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
        write(tmp_path / "none" / "hub")
