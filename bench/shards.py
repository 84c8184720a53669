"""Measures collections: compare-and-append at any length and of several shards, and reading a folder without a node."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds

from bench import chains
from bench.measure import CPU, Row, Side, Size, in_turns
from bench.node import TREE
from chain.codec.blocks import encode_block
from chain.data.arrow_schema import from_arrow
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.instant import SECOND, Instant, to_millis
from chain.model.block import MetadataBlock
from chain.model.events import AddData, DatasetKind, DataSlice, MetadataEvent, OffsetInterval, Seed, SetDataSchema
from chain.multihash import Multihash
from chain.store.base import Append, Head, UpperMove
from chain.store.database import open_database
from chain.store.layout import DirectoryWriter
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains

sys.path.append(str(TREE / "client"))  # a distribution of its own, which is not installed here
from odfd_client import open_repository

_SHORT: Final = 100
_SHARDS: Final = 4
_SLICES: Final = 10
_LATER: Final = chains.START + 1_000_000_000 * SECOND
"""After the last block of any chain here."""


class _Writer:
    """Appends transactions of one block to shards of a store, all of one time in one commit."""

    def __init__(self, folder: Path, datasets: list[DatasetId], length: int = 0) -> None:
        folder.mkdir(parents=True)
        self._database = open_database(folder / "odfd.sqlite")
        kept = SqliteChains(self._database, DiskObjects(folder / "objects", self._database))
        if length:
            chains.keep(kept, chains.long_chain(length, slices=False))
        self._chains = kept
        self._heads = {each: kept.chain(each).head() for each in datasets}
        self._count = 0

    def append(self) -> None:
        self._count += 1
        time = Instant(_LATER + self._count * SECOND)
        made = [self._appended(dataset, head, time) for dataset, head in self._heads.items()]
        self._chains.commit(made)
        self._heads = {each.dataset: Head(each.blocks[0].hash, each.blocks[0].sequence_number) for each in made}

    def close(self) -> None:
        self._database.close()

    def _appended(self, dataset: DatasetId, head: Head | None, time: Instant) -> Append:
        block = MetadataBlock(
            system_time=time,
            prev_block_hash=None if head is None else head.hash,
            sequence_number=0 if head is None else head.sequence_number + 1,
            event=Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
            if head is None
            else AddData(new_watermark=time),
        )
        upper = UpperMove(self._chains.upper(dataset), to_millis(time) + 1)
        return Append(dataset=dataset, expected=head, blocks=[encode_block(block)], upper=upper)


def measure_shards(size: Size, folder: Path) -> list[Row]:
    """Measures a compare-and-append at a long chain, and of a chain with four shards that follow it."""
    repeats, rounds = size.pick(3, 50), size.pick(1, 7)
    short = _Writer(folder / "short", [chains.DATASET], _SHORT)
    rows = []
    for length in size.lengths():
        long = _Writer(folder / str(length), [chains.DATASET], length)
        ours, peer = in_turns(_repeated(long.append, repeats), _repeated(short.append, repeats), rounds, CPU)
        rows.append(
            Row(
                name=f"shards {length:,}",
                measures=f"CPU time of a compare-and-append at {length:,} blocks",
                ours=Side(name=f"{length:,} blocks", costs=tuple(cost / repeats for cost in ours)),
                peer=Side(name=f"{_SHORT} blocks", costs=tuple(cost / repeats for cost in peer)),
                goal="≤ 1.1",
            )
        )
        long.close()
    several = [DatasetId.from_public_key(bytes([number]) * 32) for number in range(1, _SHARDS + 2)]
    fused, one = _Writer(folder / "several", several), _Writer(folder / "one", several[:1])
    ours, peer = in_turns(_repeated(fused.append, repeats), _repeated(one.append, repeats), rounds)
    rows.append(
        Row(
            name="shards together",
            measures=f"a commit to {_SHARDS + 1} chains at one time, against one chain",
            ours=Side(name=f"{_SHARDS + 1} chains", costs=tuple(cost / repeats for cost in ours)),
            peer=Side(name="one", costs=tuple(cost / repeats for cost in peer)),
            goal="≤ 1.5",
        )
    )
    for each in (short, fused, one):
        each.close()
    return rows


def measure_repository(size: Size, folder: Path) -> list[Row]:
    """Measures a log read from a folder without a node, and a look for news at a long chain."""
    rounds, repeats = size.pick(1, 9), size.pick(2, 20)
    paths = _written(folder / "large", size.pick(1_000, 500_000))
    kept = open_repository(folder).open("large")

    def scan() -> pa.Table:
        return ds.dataset(paths, format="parquet").to_table()

    assert kept.to_arrow().num_rows == scan().num_rows
    again = in_turns(kept.to_arrow, scan, rounds)
    first = in_turns(lambda: open_repository(folder).open("large").to_arrow(), scan, rounds)
    length = size.pick(300, 10_000)
    looks = [_look(folder / f"of-{each}", each) for each in (length, _SHORT)]
    news = in_turns(_repeated(looks[0], repeats), _repeated(looks[1], repeats), rounds, CPU)
    return [
        _row("repository", "a log of a folder, whose slices were hashed before", "pyarrow.dataset", again, "≤ 1.1"),
        _row("repository first", "the same, hashing all slices", "pyarrow.dataset", first, ""),
        _row("repository news", f"CPU time of a look for news at {length:,} blocks", f"{_SHORT} blocks", news, "≤ 1.1"),
    ]


def _row(name: str, measures: str, peer: str, costs: tuple[tuple[float, ...], tuple[float, ...]], goal: str) -> Row:
    ours = Side(name="odfd_client", costs=costs[0])
    return Row(name=name, measures=measures, ours=ours, peer=Side(name=peer, costs=costs[1]), goal=goal)


def _look(folder: Path, length: int) -> Callable[[], object]:
    """Writes a chain, and returns a function that reads what came after its last block: nothing."""
    writer, head = DirectoryWriter(folder), None
    for raw in chains.long_chain(length, slices=False):
        head = Multihash.sha3_256(raw)
        writer.add_block(head, raw)
    assert head is not None
    writer.set_head(head, None)
    dataset = open_repository(folder).open()
    return lambda: list(dataset.listen(follow=False))


def _written(folder: Path, rows: int) -> list[str]:
    """Writes a dataset of slices with so many rows each. Returns their paths."""
    writer = DirectoryWriter(folder)
    events: list[MetadataEvent] = [
        Seed(dataset_id=chains.DATASET, dataset_kind=DatasetKind.ROOT),
        SetDataSchema(schema=from_arrow(chains.SCHEMA)),
    ]
    for first in range(0, rows * _SLICES, rows):
        zeros, offsets = [0] * rows, range(first, first + rows)
        columns = [offsets, zeros, zeros, zeros, range(rows)]
        staged = folder / "staged"
        write_slice(pa.table(list(map(list, columns)), schema=chains.SCHEMA), staged)
        said = DataSlice(
            logical_hash=logical_hash_file(staged),
            physical_hash=Multihash.sha3_256(staged.read_bytes()),
            offset_interval=OffsetInterval(start=first, end=first + rows - 1),
            size=staged.stat().st_size,
        )
        writer.add_object("data", said.physical_hash, staged)
        staged.unlink()
        events.append(AddData(prev_offset=first - 1 if first else None, new_data=said))
    made = chains.blocks_of(*events)
    for block in made:
        writer.add_block(block.hash, block.raw)
    writer.set_head(made[-1].hash, None)
    return sorted(map(str, (folder / "data").iterdir()))


def _repeated(work: Callable[[], object], repeats: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(repeats):
            work()

    return run
