"""Datasets in folders: out and in again, and as Delta tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import decode_block
from chain.errors import Conflict, Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.model import schema as odf
from chain.model.events import Seed
from chain.multihash import Multihash
from chain.store.base import Head
from chain.store.database import open_database
from chain.store.layout import DirectoryChain, DirectoryWriter, read_head
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.transfer.delta_log import LOG, check_types, table_schema, write_log
from odfd.transfer.folders import NotVerified, Transfer, export_dataset, import_dataset, whole_or_gone
from odfd.verify.verify import VerificationRequest, verify_chain
from worlds.chains import following
from worlds.full_disk import room_for

# A folder with a Delta log is a Delta table to its readers, and still the same dataset.

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


# Out and in again: the same bytes, nothing kept that does not hold, nothing lost when cut short.

NAMES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())


class Store(NamedTuple):
    chains: SqliteChains
    objects: DiskObjects


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    state = tmp_path / "state"
    state.mkdir()
    database = open_database(state / "odfd.sqlite")
    objects = DiskObjects(state / "objects", database)
    yield Store(SqliteChains(database, objects), objects)
    database.close()


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.relative_to(folder).parts[0] != "info"
    }


def truncated(folder: Path, target: Path, size: int) -> Path:
    """A copy as it was when the chain had ``size`` blocks."""
    shutil.copytree(folder, target)
    (target / "refs" / "head").write_text(str(DirectoryChain(folder).block_at(size - 1).hash))
    return target


def referenced(folder: Path) -> set[str]:
    names = {"refs/head"}
    for raw in DirectoryChain(folder).raw_blocks(0, 10**6):
        block = decode_block(raw)
        names.add(f"blocks/{block.hash}")
        if data := getattr(block.event, "new_data", None):
            names.add(f"data/{data.physical_hash}")
    return names


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_goes_in_comes_out(name: str, store: Store, tmp_path: Path) -> None:
    source = GOLDEN / name
    taken = import_dataset(source, store.chains, store.objects)
    assert taken.head == read_head(source)
    given = export_dataset(store.chains, store.objects, taken.dataset, tmp_path / "out")
    assert given == taken
    kept = referenced(source)
    assert tree(tmp_path / "out") == {path: raw for path, raw in tree(source).items() if path in kept}
    report = verify_chain(store.chains.chain(taken.dataset), store.objects, VerificationRequest(ref=name))
    assert report.ok
    assert report.checked.slices == sum(path.startswith("data/") for path in kept)


@pytest.mark.slow
def test_again_is_nothing_new(store: Store, tmp_path: Path) -> None:
    first = import_dataset(GOLDEN / "flights", store.chains, store.objects)
    again = import_dataset(GOLDEN / "flights", store.chains, store.objects)
    assert again == Transfer(dataset=first.dataset, head=first.head)
    export_dataset(store.chains, store.objects, first.dataset, tmp_path / "out")
    before = tree(tmp_path / "out")
    assert export_dataset(store.chains, store.objects, first.dataset, tmp_path / "out").blocks == 0
    assert tree(tmp_path / "out") == before


@pytest.mark.slow
def test_both_go_on_from_an_earlier_part(store: Store, tmp_path: Path) -> None:
    early = truncated(GOLDEN / "flights", tmp_path / "early", 9)
    dataset = import_dataset(early, store.chains, store.objects).dataset
    export_dataset(store.chains, store.objects, dataset, tmp_path / "out")
    assert import_dataset(GOLDEN / "flights", store.chains, store.objects).blocks == 10
    assert export_dataset(store.chains, store.objects, dataset, tmp_path / "out").blocks == 10
    assert tree(tmp_path / "out") == tree(GOLDEN / "flights")
    with pytest.raises(Conflict, match="early is 10 blocks behind the node, from #9 on"):
        import_dataset(early, store.chains, store.objects)
    whole = _copy(GOLDEN / "flights", tmp_path / "whole")
    store.chains.drop(dataset)
    import_dataset(early, store.chains, store.objects)
    with pytest.raises(Conflict, match=r"the node is 10 blocks behind .*whole, from #9 on") as caught:
        export_dataset(store.chains, store.objects, dataset, whole)
    assert caught.value.rule == "export-behind"


@pytest.mark.slow
def test_only_what_is_missing_is_read_and_verified(store: Store, tmp_path: Path) -> None:
    whole = _copy(GOLDEN / "flights", tmp_path / "whole")
    slices = [getattr(decode_block(raw).event, "new_data", None) for raw in DirectoryChain(whole).raw_blocks(0, 10**6)]
    import_dataset(truncated(whole, tmp_path / "early", 9), store.chains, store.objects)
    (whole / "data" / str(next(each.physical_hash for each in slices[:9] if each))).unlink()
    last = whole / "data" / str(next(each.physical_hash for each in slices[::-1] if each))
    kept = last.read_bytes()
    last.write_bytes(kept[:-1] + b"!")
    with pytest.raises(NotVerified):
        import_dataset(whole, store.chains, store.objects)
    last.write_bytes(kept)
    assert import_dataset(whole, store.chains, store.objects).blocks == 10
    shutil.rmtree(whole / "data")
    assert import_dataset(whole, store.chains, store.objects).blocks == 0


@pytest.mark.slow
def test_of_two_who_write_a_folder_one_is_told(store: Store, tmp_path: Path) -> None:
    """Attack T-REPO-02: two writers of one dataset in a repository.

    Defence: a writer locks the folder, and moves the head only from the value that it read; the other writer gets an
    error.
    """
    dataset = import_dataset(GOLDEN / "flights", store.chains, store.objects).dataset
    told: list[Conflict] = []

    def second(_so_far: Transfer) -> None:
        with pytest.raises(Conflict, match="someone else is writing to") as caught:
            export_dataset(store.chains, store.objects, dataset, tmp_path / "out")
        told.append(caught.value)

    first = export_dataset(store.chains, store.objects, dataset, tmp_path / "out", second)
    assert len(told) == first.blocks
    assert tree(tmp_path / "out") == tree(GOLDEN / "flights")
    assert export_dataset(store.chains, store.objects, dataset, tmp_path / "out").blocks == 0


def test_nothing_is_kept_of_a_folder_that_does_not_hold(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(GOLDEN / "flights", copy)
    damaged = sorted((copy / "data").iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.raises(NotVerified) as caught:
        import_dataset(copy, store.chains, store.objects)
    assert not caught.value.report.ok
    assert "odfctl verify" in caught.value.hint
    assert list(store.chains.datasets()) == []


@pytest.mark.slow
def test_another_history_is_refused(store: Store, tmp_path: Path) -> None:
    """Attack T-REPO-02: a repository with a diverged history.

    Defence: nothing is overwritten: the push is refused, and the error names the block where the histories diverge.

    A chain that parts: the same beginning, then blocks of its own.
    """
    from chain.model.events import SetInfo

    early = truncated(GOLDEN / "flights", tmp_path / "early", 9)
    last = DirectoryChain(early).block_at(8)
    other = following(last, SetInfo(description="another"), last.system_time)
    writer = DirectoryWriter(early)
    writer.add_block(other.hash, other.raw)
    writer.set_head(other.hash, last.hash)
    dataset = import_dataset(early, store.chains, store.objects).dataset
    with pytest.raises(Conflict, match=r"diverge at block #9: 10 blocks of .*flights against 1 block of the node"):
        import_dataset(GOLDEN / "flights", store.chains, store.objects)
    target = _copy(GOLDEN / "flights", tmp_path / "target")
    with pytest.raises(Conflict, match="diverge at block #9: 1 block of the node against 10 blocks of") as caught:
        export_dataset(store.chains, store.objects, dataset, target)
    assert caught.value.rule == "export-diverged"
    with pytest.raises(Conflict, match="no block in common"):
        export_dataset(store.chains, store.objects, dataset, _copy(GOLDEN / "orders", tmp_path / "orders"))


def _copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


@pytest.mark.slow
def test_a_run_cut_short_goes_on(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chain.store.layout.PAGE_BLOCKS", 5)

    def stop(done: Transfer) -> None:
        if done.blocks == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_dataset(GOLDEN / "flights", store.chains, store.objects, stop)
    (dataset,) = store.chains.datasets()
    head = store.chains.chain(dataset).head()
    assert head is not None
    assert head.size == 10
    assert import_dataset(GOLDEN / "flights", store.chains, store.objects).blocks == 9
    with pytest.raises(KeyboardInterrupt):
        export_dataset(store.chains, store.objects, dataset, tmp_path / "out", stop)
    assert read_head(tmp_path / "out") is None


def test_targets_and_sources_that_are_not_datasets(store: Store, tmp_path: Path) -> None:
    dataset = import_dataset(GOLDEN / "places", store.chains, store.objects).dataset
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(Conflict, match="not empty"):
        export_dataset(store.chains, store.objects, dataset, tmp_path / "full")
    with pytest.raises(NotFound, match="not a dataset"):
        import_dataset(tmp_path / "full", store.chains, store.objects)
    with pytest.raises(NotFound, match="no dataset"):
        export_dataset(store.chains, store.objects, DatasetId.from_public_key(bytes(32)), tmp_path / "out")
    (tmp_path / "odd" / "refs").mkdir(parents=True)
    (tmp_path / "odd" / "refs" / "head").write_text("not a hash")
    with pytest.raises(Invalid, match="does not hold a block's hash"):
        import_dataset(tmp_path / "odd", store.chains, store.objects)


def cut_off(store: Store, name: str, target: Path, step: str) -> Transfer:
    """Exports to ``target`` until ``step`` was passed ten times; what was imported before."""
    taken = import_dataset(GOLDEN / name, store.chains, store.objects)
    left = 10

    def stop(now: str) -> None:
        nonlocal left
        left -= now == step
        if not left:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_dataset(store.chains, store.objects, taken.dataset, target, step=stop)
    return taken


@pytest.mark.slow
def test_an_export_that_was_cut_off_goes_on(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "out"
    taken = cut_off(store, "flights", target, "folder-file-written")
    assert [file.name[0] for file in target.rglob("*") if file.name.startswith(".")] == ["."]
    assert export_dataset(store.chains, store.objects, taken.dataset, target) == taken
    assert set(tree(target)) == referenced(GOLDEN / "flights")


@pytest.mark.slow
def test_an_export_that_another_dataset_was_cut_off_in_is_left_alone(store: Store, tmp_path: Path) -> None:
    cut_off(store, "flights", tmp_path / "out", "folder-file-renamed")
    other = import_dataset(GOLDEN / "airlines", store.chains, store.objects)
    with pytest.raises(Conflict, match="not a dataset"):
        export_dataset(store.chains, store.objects, other.dataset, tmp_path / "out")


@pytest.mark.parametrize("place", ["/proc/nowhere/out", "/dev/null/out"])
def test_a_folder_that_cannot_be_made_is_named(store: Store, place: str) -> None:
    taken = import_dataset(GOLDEN / "airlines", store.chains, store.objects)
    with pytest.raises(Environment, match=f"cannot make the folder {place}") as told:
        export_dataset(store.chains, store.objects, taken.dataset, Path(place))
    assert "disk that you may write to" in told.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [False, True])
def test_a_full_disk_leaves_no_part_of_a_new_folder(store: Store, tmp_path: Path, is_there: bool) -> None:
    imported = import_dataset(GOLDEN / "flights", store.chains, store.objects)
    target = tmp_path / "out"
    if is_there:
        target.mkdir()
    most = max(len(raw) for raw in DirectoryChain(GOLDEN / "flights").raw_blocks(0, imported.blocks))
    done: list[Transfer] = []
    with room_for(most - 1), pytest.raises(Environment, match="out"), whole_or_gone(target):
        export_dataset(store.chains, store.objects, imported.dataset, target, done.append)
    assert target.exists() == is_there
    assert not is_there or not list(target.iterdir())
    export_dataset(store.chains, store.objects, imported.dataset, target)
    with room_for(0), pytest.raises(Environment), whole_or_gone(target):
        DirectoryWriter(target).add_block(Multihash.sha3_256(b"x"), b"x")
    DirectoryWriter(target)  # what was cut off goes with the next export
    assert tree(target) == tree(GOLDEN / "flights")
