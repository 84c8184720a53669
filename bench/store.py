"""Measures the store: reads at any length and among any number of chains, commits, and reads during writes."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import chains
from bench.measure import CPU, MILLION, Row, Side, Size, in_turns
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import AddData, DatasetKind, Seed, SetInfo
from chain.state import load_state
from chain.store.base import Append
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChain, SqliteChains

_SHORT: Final = 100
_LOG: Final = 20
_NEIGHBOURS: Final = 1_000


@contextmanager
def opened(folder: Path) -> Iterator[tuple[SqliteChains, DiskObjects]]:
    """Opens a store, a new one where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    database = open_database(folder / "odfd.sqlite")
    try:
        objects = DiskObjects(folder / "objects", database)
        yield SqliteChains(database, objects), objects
    finally:
        database.close()


def measure_state(size: Size, folder: Path) -> list[Row]:
    """Measures the reads of a transaction's preparation and of ``log``, of long chains against a short one."""
    repeats = size.pick(5, 200)
    with opened(folder / "short") as (few, _):
        chains.keep(few, chains.long_chain(_SHORT))
        return [_looked(length, folder / str(length), size, few, repeats) for length in size.lengths()]


def _looked(length: int, folder: Path, size: Size, few: SqliteChains, repeats: int) -> Row:
    with opened(folder) as (many, _):
        chains.keep(many, chains.long_chain(length))
        long, short = many.chain(chains.DATASET), few.chain(chains.DATASET)
        ours, peer = in_turns(_repeated(long, repeats), _repeated(short, repeats), size.pick(1, 7), CPU)
    return Row(
        name=f"state {length:,}",
        measures=f"CPU time of state, last {_LOG} blocks and last event of a kind at {length:,} blocks",
        ours=Side(name=f"{length:,} blocks", costs=tuple(cost / repeats for cost in ours)),
        peer=Side(name=f"{_SHORT} blocks", costs=tuple(cost / repeats for cost in peer)),
        goal="≤ 1.2",
    )


def measure_many(size: Size, folder: Path) -> list[Row]:
    """Measures the same reads of one chain among many."""
    neighbours, repeats = size.pick(20, _NEIGHBOURS), size.pick(5, 200)
    with opened(folder / "one") as (lonely, _), opened(folder / "many") as (crowded, _):
        for kept in (lonely, crowded):
            chains.keep(kept, chains.long_chain(_SHORT))
        crowded.commit([_neighbour(number) for number in range(neighbours)])
        among, alone = crowded.chain(chains.DATASET), lonely.chain(chains.DATASET)
        ours, peer = in_turns(_repeated(among, repeats), _repeated(alone, repeats), size.pick(1, 7), CPU)
    return [
        Row(
            name="many datasets",
            measures=f"CPU time of the same reads of a chain among {neighbours:,} others",
            ours=Side(name=f"{neighbours:,} others", costs=tuple(cost / repeats for cost in ours)),
            peer=Side(name="alone", costs=tuple(cost / repeats for cost in peer)),
            goal="≤ 1.2",
        )
    ]


def _repeated(chain: SqliteChain, repeats: int) -> Callable[[], None]:
    def look() -> None:
        for _ in range(repeats):
            _look(chain)

    return look


def _look(chain: SqliteChain) -> None:
    state = load_state(chain)
    first = max(0, state.size - _LOG)
    assert len(list(chain.raw_blocks(first, state.size))) == state.size - first
    assert chain.last_of(("SetDataSchema",)) is not None
    assert chain.last_of(("SetTransform",)) is None


def _neighbour(number: int) -> Append:
    dataset = DatasetId.from_public_key(b"neighbour".ljust(24) + number.to_bytes(8, "big"))
    seed = Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
    return Append(dataset=dataset, expected=None, blocks=chains.blocks_of(seed, SetInfo(description="one of many")))


def measure_append(size: Size, folder: Path) -> list[Row]:
    """Blocks committed one by one, against a file that takes the same bytes and is synced after each."""
    commits = size.pick(20, 500)
    stores = (folder / f"store-{number}" for number in itertools.count())

    def sync() -> None:
        with (folder / "file").open("wb", buffering=0) as file:
            for block in _blocks(commits):
                file.write(block.raw)
                os.fsync(file.fileno())

    ours, peer = in_turns(lambda: _append(next(stores), commits), sync, size.pick(1, 5))
    return [
        Row(
            name="append",
            measures=f"{commits} blocks, each a transaction of its own",
            ours=Side(name="commit", costs=ours, amount=commits, unit="blocks"),
            peer=Side(name="write and fsync", costs=peer, amount=commits, unit="blocks"),
        )
    ]


def _blocks(count: int) -> list[Block]:
    seed = Seed(dataset_id=chains.DATASET, dataset_kind=DatasetKind.ROOT)
    return chains.blocks_of(seed, *(AddData(new_watermark=chains.START) for _ in range(count - 1)))


def _append(folder: Path, commits: int) -> None:
    with opened(folder) as (kept, _):
        chain = kept.chain(chains.DATASET)
        for block in _blocks(commits):
            kept.commit([Append(dataset=chains.DATASET, expected=chain.head(), blocks=[block])])


def measure_readers(size: Size, folder: Path) -> list[Row]:
    """Reads while another thread commits without a pause, against reads of a store at rest."""
    repeats = size.pick(20, 1_000)
    with opened(folder) as (kept, _):
        chains.keep(kept, chains.long_chain(_SHORT))
        look = _repeated(kept.chain(chains.DATASET), repeats)

        def beside() -> None:
            with _writing(kept):
                look()

        ours, peer = in_turns(beside, look, size.pick(1, 5))
    return [
        Row(
            name="readers",
            measures=f"{repeats:,} looks at a chain while another is written",
            ours=Side(name="beside a writer", costs=ours, amount=repeats, unit="looks"),
            peer=Side(name="at rest", costs=peer, amount=repeats, unit="looks"),
        )
    ]


@contextmanager
def _writing(kept: SqliteChains) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        for number in itertools.count(MILLION):
            if ended.is_set():
                return
            append = _neighbour(number)
            kept.commit([append])
            kept.drop(append.dataset)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
