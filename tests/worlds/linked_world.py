"""A dataset folder whose rows link to objects, large files beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from chain.data.logical_hash import logical_hash
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model import schema as odf
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed, SetDataSchema
from chain.model.schema import DataField, DataSchema
from chain.multihash import Multihash
from chain.store.layout import DirectoryWriter
from worlds.chains import linked as blocks_of

LINK: dict[str, object] = {"opendatafabric.org/type": {"kind": "ObjectLink", "linkType": {"kind": "Multihash"}}}
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


def rows(links: list[str], start: int = 0) -> pa.Table:
    count = len(links)
    columns: list[tuple[str, pa.Array]] = [
        ("offset", pa.array(range(start, start + count), pa.int64())),
        ("op", pa.array([0] * count, pa.int32())),
        ("system_time", pa.array([0] * count, TIME)),
        ("event_time", pa.array([0] * count, TIME)),
        ("file", pa.array(links, pa.string())),
    ]
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns]
    return pa.Table.from_arrays([column for _, column in columns], schema=pa.schema(fields))


def slice_at(file: Path, links: list[str], start: int = 0) -> DataSlice:
    """Rows with these links, written to ``file``."""
    table = rows(links, start)
    write_slice(table, file)
    return DataSlice(
        logical_hash=logical_hash(table),
        physical_hash=Multihash.sha3_256(file.read_bytes()),
        offset_interval=OffsetInterval(start=start, end=start + len(links) - 1),
        size=file.stat().st_size,
    )


def made(folder: Path, links: list[str], declared: SetDataSchema) -> Path:
    """A dataset folder of one slice."""
    writer = DirectoryWriter(folder)
    data = slice_at(folder / "slice", links)
    (folder / "slice").rename(folder / "data" / str(data.physical_hash))
    events: list[Any] = [
        Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT),
        declared,
        AddData(new_data=data),
    ]
    blocks = blocks_of(events, Instant(10**18))
    for block in blocks:
        writer.add_block(block.hash, block.raw)
    writer.set_head(blocks[-1].hash, None)
    for each in FILES:
        (folder / "data" / str(Multihash.sha3_256(each))).write_bytes(each)
    return folder


def linked(folder: Path, links: list[str] | None = None) -> Path:
    names = [str(Multihash.sha3_256(each)) for each in FILES]
    return made(folder, [*names, *names] if links is None else links, SetDataSchema(schema=schema()))
