"""Objects that rows link to are verified, exported and imported with their slices; the legacy schema is checked too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from chain.codec.blocks import encode_block
from chain.data.logical_hash import logical_hash
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model import schema as odf
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed, SetDataSchema
from chain.model.schema import DataField, DataSchema
from chain.multihash import Multihash
from chain.store.collect import collect, linked_objects
from chain.store.database import open_database
from chain.store.layout import DirectoryChain, DirectoryObjects, DirectoryWriter
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.transfer.folders import export_dataset, import_dataset
from odfd.verify.report import Verification
from odfd.verify.verify import Request, verify_chain

LINK = {"opendatafabric.org/type": {"kind": "ObjectLink", "linkType": {"kind": "Multihash"}}}
FILES = [b"a picture", b"a film" * 20_000]
TIME = pa.timestamp("ms", "UTC")


def schema() -> DataSchema:
    stamp = odf.Timestamp(unit=odf.TimeUnit.MILLISECOND, timezone="UTC")
    return DataSchema(
        fields=(
            DataField(name="offset", type=odf.Int64()),
            DataField(name="op", type=odf.Int32()),
            DataField(name="system_time", type=stamp),
            DataField(name="event_time", type=stamp),
            DataField(name="file", type=odf.String(), extra=LINK),
        )
    )


def rows(links: list[str]) -> pa.Table:
    count = len(links)
    columns: list[tuple[str, pa.Array]] = [
        ("offset", pa.array(range(count), pa.int64())),
        ("op", pa.array([0] * count, pa.int32())),
        ("system_time", pa.array([0] * count, TIME)),
        ("event_time", pa.array([0] * count, TIME)),
        ("file", pa.array(links, pa.string())),
    ]
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns]
    return pa.Table.from_arrays([column for _, column in columns], schema=pa.schema(fields))


def made(folder: Path, links: list[str], declared: SetDataSchema) -> Path:
    """A dataset folder of one slice."""
    writer = DirectoryWriter(folder)
    table = rows(links)
    file = folder / "slice"
    write_slice(table, file)
    name = Multihash.sha3_256(file.read_bytes())
    size = file.stat().st_size
    file.rename(folder / "data" / str(name))
    interval = OffsetInterval(start=0, end=len(links) - 1)
    data = DataSlice(logical_hash=logical_hash(table), physical_hash=name, offset_interval=interval, size=size)
    events: list[Any] = [
        Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT),
        declared,
        AddData(new_data=data),
    ]
    blocks: list[Block] = []
    for event in events:
        content = MetadataBlock(
            system_time=Instant(10**18),
            prev_block_hash=blocks[-1].hash if blocks else None,
            sequence_number=len(blocks),
            event=event,
        )
        blocks.append(encode_block(content))
        writer.add_block(blocks[-1].hash, blocks[-1].raw)
    writer.set_head(blocks[-1].hash, None)
    for each in FILES:
        (folder / "data" / str(Multihash.sha3_256(each))).write_bytes(each)
    return folder


def linked(folder: Path, links: list[str] | None = None) -> Path:
    names = [str(Multihash.sha3_256(each)) for each in FILES]
    return made(folder, [*names, *names] if links is None else links, SetDataSchema(schema=schema()))


def verify(folder: Path) -> Verification:
    return verify_chain(DirectoryChain(folder), DirectoryObjects(folder), Request(ref="x", workers=1))


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


def legacy(arrow: pa.Schema) -> bytes:
    """The Schema table of an Arrow IPC message, as a buffer of its own: the message's header, re-rooted."""
    import struct

    message = arrow.serialize().to_pybytes()[8:]
    root = struct.unpack_from("<I", message)[0]
    vtable = root - struct.unpack_from("<i", message, root)[0]
    header = root + struct.unpack_from("<H", message, vtable + 8)[0]
    table = header + struct.unpack_from("<I", message, header)[0]
    return struct.pack("<I", table) + message[4:]
