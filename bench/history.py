"""What length costs: verification of long chains, import of a folder, reads of a chain's state."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import chains
from bench.machine import Peak
from bench.measure import CPU, Row, Side, Size, in_turns, seconds
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.database import open_database
from chain.store.layout import DirectoryObjects, DirectoryWriter
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.transfer.folders import import_dataset
from odfd.verify.report import Level
from odfd.verify.verify import Request, verify_chain


@contextmanager
def store(folder: Path) -> Iterator[tuple[SqliteChains, DiskObjects]]:
    """A fresh one."""
    folder.mkdir(parents=True)
    database = open_database(folder / "odfd.sqlite")
    try:
        objects = DiskObjects(folder / "objects", database)
        yield SqliteChains(database, objects), objects
    finally:
        database.close()


def measure_verify(size: Size, folder: Path) -> list[Row]:
    """Chains of several lengths at level chain, out of the database, against SHA3-256 of the same bytes."""
    lengths = [1_000, 3_000] if size.quick else [10_000, 100_000] + ([1_000_000] if size.million else [])
    return [_verified(length, folder / str(length), 1 if length >= 10**6 else size.pick(1, 5)) for length in lengths]


def _verified(length: int, folder: Path, rounds: int) -> Row:
    raws = list(chains.long_chain(length))
    with store(folder) as (kept, _):
        made = seconds(lambda: chains.keep(kept, raws))
        chain, objects = kept.chain(chains.DATASET), DirectoryObjects(folder)
        request = Request(ref="long", level=Level.CHAIN)

        def verify() -> None:
            report = verify_chain(chain, objects, request)
            assert report.ok, report.failures[:1]
            assert report.checked.blocks == length

        def hash_all() -> None:
            for raw in raws:
                hashlib.sha3_256(raw).digest()

        ours, peer = in_turns(verify, hash_all, rounds, CPU)
        peak = _alone("verify", folder)
        stored = sum(len(raw) for raw in raws)
    return Row(
        name=f"verify {length:,}",
        measures=f"CPU time of level chain, {length:,} blocks in SQLite",
        ours=Side(name="hash, decode, link, rules", costs=ours, amount=length, unit="blocks"),
        peer=Side(name="SHA3-256 of each block in memory", costs=peer, amount=length, unit="blocks"),
        facts={"MB": stored / 1e6, "more MiB at peak": peak, "s to commit": made},
    )


def _alone(what: str, *places: Path) -> float:
    """MiB by which a process of its own grows over its imports: this one keeps what earlier rounds took."""
    words = [sys.executable, "-m", "bench.history", what, *map(str, places)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    return float(done.stdout)


def main(what: str, *places: str) -> None:
    """``verify STORE`` or ``import FOLDER STORE``, once; prints the growth."""
    with Peak() as peak:
        if what == "verify":
            database = open_database(Path(places[0]) / "odfd.sqlite")
            kept = SqliteChains(database, DiskObjects(Path(places[0]) / "objects", database))
            verify_chain(
                kept.chain(chains.DATASET), DirectoryObjects(Path(places[0])), Request(ref="long", level=Level.CHAIN)
            )
            database.close()
        else:
            with store(Path(places[1])) as (fresh, objects):
                import_dataset(Path(places[0]), fresh, objects)
    print(peak.bytes / 2**20)


def measure_import(size: Size, folder: Path) -> list[Row]:
    """A folder in the ODF layout into an empty store, against reading and hashing its files."""
    length = size.pick(300, 10_000)
    source = folder / "source"
    writer = DirectoryWriter(source)
    head = None
    for raw in chains.long_chain(length, slices=False):
        head = Multihash.sha3_256(raw)
        writer.add_block(head, raw)
    assert head is not None
    writer.set_head(head, None)
    fresh = iter(range(1_000))

    def take() -> None:
        with store(folder / f"store-{next(fresh)}") as (kept, objects):
            assert import_dataset(source, kept, objects).blocks == length

    def read() -> None:
        for path in (source / "blocks").iterdir():
            hashlib.sha3_256(path.read_bytes()).digest()

    ours, peer = in_turns(take, read, size.pick(1, 3))
    return [
        Row(
            name=f"import {length:,}",
            measures=f"a folder of {length:,} blocks, verified and committed",
            ours=Side(name="import", costs=ours, amount=length, unit="blocks"),
            peer=Side(name="read and hash each file", costs=peer, amount=length, unit="blocks"),
            facts={"more MiB at peak": _alone("import", source, folder / "alone")},
        )
    ]


def measure_state(size: Size, folder: Path) -> list[Row]:
    """The state of a long chain against that of a short one: preparing a transaction must not feel the length."""
    short, long = size.pick(50, 100), size.pick(2_000, 100_000)
    repeats = size.pick(5, 200)
    with store(folder / "short") as (few, _), store(folder / "long") as (many, _):
        chains.keep(few, chains.long_chain(short))
        chains.keep(many, chains.long_chain(long))

        def load(kept: SqliteChains, blocks: int) -> None:
            for _ in range(repeats):
                assert load_state(kept.chain(chains.DATASET)).size == blocks

        ours, peer = in_turns(lambda: load(many, long), lambda: load(few, short), size.pick(1, 7), CPU)
    return [
        Row(
            name="state",
            measures=f"CPU time of load_state from SQLite at {long:,} blocks",
            ours=Side(name=f"{long:,} blocks", costs=tuple(cost / repeats for cost in ours)),
            peer=Side(name=f"{short:,} blocks", costs=tuple(cost / repeats for cost in peer)),
            goal="≤ 1.2",
        )
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
