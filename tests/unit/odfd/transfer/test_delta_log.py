"""A folder with a Delta log is a Delta table to its readers, and still the same dataset."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import decode_block
from chain.errors import Conflict, Invalid
from chain.ids import DatasetId
from chain.model import schema as odf
from chain.model.events import Seed
from chain.store.base import Head
from chain.store.layout import DirectoryChain
from odfd.transfer.delta_log import LOG, check_types, table_schema, write_log

GOLDEN = Path(__file__).parents[3] / "golden" / "kamu"
READABLE = ("airlines", "changes", "events", "flights", "flights.long", "nested", "places")


def copied(name: str, target: Path) -> tuple[Path, DirectoryChain, DatasetId]:
    shutil.copytree(GOLDEN / name, target)
    chain = DirectoryChain(target)
    seed = decode_block(next(iter(chain.raw_blocks(0, 1)))).event
    assert isinstance(seed, Seed)
    return target, chain, seed.dataset_id


def written(name: str, target: Path, *sizes: int) -> Path:
    """A folder with a log that was written when the chain had so many blocks, one after the other; last: all."""
    folder, chain, dataset = copied(name, target)
    head = chain.head()
    assert head is not None
    for size in (*sizes, head.size):
        write_log(folder, dataset, name, chain, Head(chain.block_at(size - 1).hash, size - 1))
    return folder


def rows(folder: Path) -> int:
    return sum(pq.ParquetFile(file).metadata.num_rows for file in (folder / "data").iterdir())


def actions(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / LOG).glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", READABLE)
def test_delta_rs_reads_the_rows_of_the_slices(tmp_path: Path, name: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    folder = written(name, tmp_path / "table")
    table = deltalake.DeltaTable(str(folder))
    found = table.to_pyarrow_table()
    slices = [pq.read_table(file) for file in sorted((folder / "data").iterdir())]
    offsets = sorted(value for each in slices for value in each["offset"].to_pylist())
    assert sorted(found["offset"].to_pylist()) == offsets
    for column in slices[0].column_names:
        wanted = sorted(map(repr, (value for each in slices for value in each[column].to_pylist())))
        assert sorted(map(repr, found[column].to_pylist())) == wanted, column
    assert table.metadata().name == name


def test_each_export_is_a_version_and_goes_on_where_the_last_ended(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    size = len(list((GOLDEN / "flights" / "blocks").iterdir()))
    folder = written("flights", tmp_path / "table", size - 3)
    first, all_of_it = deltalake.DeltaTable(str(folder), version=0), deltalake.DeltaTable(str(folder))
    assert all_of_it.version() == 1
    assert set(first.file_uris()) < set(all_of_it.file_uris())
    assert len(all_of_it.file_uris()) == len(list((folder / "data").iterdir()))


@pytest.mark.slow
@given(st.data())
def test_versions_together_are_one_export_however_they_were_cut(tmp_path_factory: Any, data: st.DataObject) -> None:
    whole = written("flights", tmp_path_factory.mktemp("whole") / "table")
    size = DirectoryChain(whole).head().size  # type: ignore[union-attr]
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=4)))
    cut = written("flights", tmp_path_factory.mktemp("cut") / "table", *cuts)

    def said(folder: Path) -> list[dict[str, Any]]:
        return [each for each in actions(folder) if "commitInfo" not in each]

    assert said(cut) == said(whole)
    assert actions(cut)[-1] == actions(whole)[-1]
    versions = sorted(int(file.stem) for file in (cut / LOG).iterdir())
    assert versions == list(range(len(versions)))


def test_an_export_without_news_writes_nothing(tmp_path: Path) -> None:
    folder = written("flights", tmp_path / "table")
    before = {file.name: file.read_bytes() for file in (folder / LOG).iterdir()}
    chain = DirectoryChain(folder)
    head = chain.head()
    assert head is not None
    seed = decode_block(next(iter(chain.raw_blocks(0, 1)))).event
    assert isinstance(seed, Seed)
    assert write_log(folder, seed.dataset_id, "flights", chain, head) == 0
    assert {file.name: file.read_bytes() for file in (folder / LOG).iterdir()} == before


def test_a_dataset_without_rows_has_no_table(tmp_path: Path) -> None:
    folder, chain, dataset = copied("flights", tmp_path / "table")
    assert write_log(folder, dataset, "flights", chain, Head(chain.block_at(0).hash, 0)) is None
    assert not (folder / LOG).exists()


def test_slices_can_be_skipped_by_offset(tmp_path: Path) -> None:
    folder = written("flights", tmp_path / "table")
    stats = [json.loads(each["add"]["stats"]) for each in actions(folder) if "add" in each]
    assert sum(each["numRecords"] for each in stats) == rows(folder)
    assert [each["minValues"]["offset"] for each in stats[1:]] == [
        each["maxValues"]["offset"] + 1 for each in stats[:-1]
    ]


@pytest.mark.parametrize("text", ["", "{}", '{"commitInfo": {}}', "not json", '{"commitInfo": {"odf": {"block": 1}}}'])
def test_a_log_of_another_program_is_left_alone(tmp_path: Path, text: str) -> None:
    folder, chain, dataset = copied("flights", tmp_path / "table")
    (folder / LOG).mkdir()
    version = folder / LOG / f"{7:020}.json"
    version.write_text(text)
    head = chain.head()
    assert head is not None
    with pytest.raises(Conflict, match="is not a version that odfd wrote"):
        write_log(folder, dataset, "flights", chain, head)
    assert [file.read_text() for file in (folder / LOG).iterdir()] == [text]


def test_a_log_of_another_history_is_refused(tmp_path: Path) -> None:
    folder = written("flights", tmp_path / "table")
    other, chain, dataset = copied("airlines", tmp_path / "other")
    shutil.copytree(folder / LOG, other / LOG)
    version = other / LOG / f"{0:020}.json"
    version.write_text(version.read_text().replace('"sequenceNumber": ', '"sequenceNumber": 0, "was": '))
    head = chain.head()
    assert head is not None
    with pytest.raises(Conflict, match="of another history"):
        write_log(other, dataset, "airlines", chain, head)


def test_what_delta_has_no_type_for_is_refused_by_column(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="has no type for"):
        check_types(copied("typed", tmp_path / "table")[1])


@pytest.mark.parametrize(
    "refused",
    [
        odf.UInt8(),
        odf.UInt64(),
        odf.Float16(),
        odf.Duration(),
        odf.Time(),
        odf.Null(),
        odf.Timestamp(unit=odf.TimeUnit.NANOSECOND),
        odf.Timestamp(timezone=""),
        odf.Decimal(precision=39, scale=0),
        odf.List(item_type=odf.UInt16()),
    ],
)
def test_types_that_are_refused(refused: odf.DataType) -> None:
    with pytest.raises(Invalid, match="the column 'x'"):
        table_schema(odf.DataSchema(fields=(odf.DataField(name="x", type=odf.Option(inner=refused)),)))
