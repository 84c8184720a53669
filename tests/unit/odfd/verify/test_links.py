"""Objects that rows link to are verified, exported and imported with their slices; the legacy schema is checked too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from chain.model.events import SetDataSchema
from chain.multihash import Multihash
from chain.store.collect import collect, linked_objects
from chain.store.database import open_database
from chain.store.layout import DirectoryChain, DirectoryObjects
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.transfer.folders import export_dataset, import_dataset
from odfd.verify.report import VerificationResult
from odfd.verify.verify import VerificationRequest, verify_chain
from worlds.legacy_schema import legacy
from worlds.linked_world import FILES, linked, made, rows


def verify(folder: Path) -> VerificationResult:
    return verify_chain(DirectoryChain(folder), DirectoryObjects(folder), VerificationRequest(ref="x", workers=1))


def told(folder: Path) -> list[str]:
    return [failure.rule for failure in verify(folder).failures]


def test_links_that_hold(tmp_path: Path) -> None:
    assert told(linked(tmp_path / "d")) == []


def test_a_linked_object_that_is_missing_or_damaged(tmp_path: Path) -> None:
    folder = linked(tmp_path / "d")
    files = [folder / "data" / str(Multihash.sha3_256(each)) for each in FILES]
    files[0].unlink()
    assert told(folder) == ["linked-object-missing"]
    files[1].write_bytes(b"another film")
    assert told(folder) == ["linked-object-missing", "linked-object-physical-hash"]


def test_a_link_that_is_no_hash(tmp_path: Path) -> None:
    assert told(linked(tmp_path / "d", ["nonsense"])) == ["link-value"]


def test_links_go_out_and_in_with_their_slices(tmp_path: Path) -> None:
    folder = linked(tmp_path / "d")
    database = open_database(tmp_path / "odfd.sqlite")
    objects = DiskObjects(tmp_path / "objects", database)
    chains = SqliteChains(database, objects)
    done = import_dataset(folder, chains, objects)
    assert done.objects == 3
    assert all(objects.read(Multihash.sha3_256(each)) == each for each in FILES)
    assert collect(chains, objects, dry_run=True).objects == 0
    assert set(linked_objects(chains, objects)) == {Multihash.sha3_256(each) for each in FILES}
    export_dataset(chains, objects, done.dataset, tmp_path / "out")
    tree = {each.relative_to(folder): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    out = tmp_path / "out"
    assert {each.relative_to(out): each.read_bytes() for each in out.rglob("*") if each.is_file()} == tree
    database.close()


@pytest.mark.parametrize("held", [True, False])
def test_types_are_checked_against_a_schema_in_the_legacy_form(tmp_path: Path, held: bool) -> None:
    arrow = rows(["a"]).schema
    if not held:
        arrow = arrow.set(4, pa.field("file", pa.int64(), nullable=False))
    folder = made(tmp_path / "d", ["a"], SetDataSchema(raw_arrow_schema=legacy(arrow)))
    assert told(folder) == ([] if held else ["slice-schema"])
