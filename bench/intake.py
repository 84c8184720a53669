"""Measures taking in long chains: folders in the ODF layout, and packed streams as peers send them."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import chains
from bench.machine import alone
from bench.measure import MILLION, Row, Side, Size, in_turns, seconds
from bench.store import opened
from chain.multihash import Multihash
from chain.rules.check import ChainChecker
from chain.state import ChainState
from chain.store.base import PAGE_BLOCKS, Append
from chain.store.layout import DirectoryWriter
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.transfer.folders import import_dataset


def measure_import(size: Size, folder: Path) -> list[Row]:
    """Folders into an empty store, against reading and hashing their files."""
    return [_imported(length, folder / str(length), size) for length in size.lengths()]


def _imported(length: int, folder: Path, size: Size) -> Row:
    source = folder / "source"
    _write(source, length)

    def read() -> None:
        for file in os.scandir(source / "blocks"):
            hashlib.sha3_256(Path(file.path).read_bytes()).digest()

    stores = (folder / f"store-{number}" for number in itertools.count())
    ours, peer = in_turns(
        lambda: _import(source, next(stores), length), read, size.rounds(length), warm=length < MILLION
    )
    peak = alone("bench.intake", "import", source, folder / "alone", length)
    shutil.rmtree(folder)
    return Row(
        name=f"import {length:,}",
        measures=f"a folder of {length:,} blocks, verified and committed",
        ours=Side(name="import", costs=ours, amount=length, unit="blocks"),
        peer=Side(name="read and hash each file", costs=peer, amount=length, unit="blocks"),
        facts={"more MiB at peak": peak},
    )


def _write(folder: Path, length: int) -> None:
    writer = DirectoryWriter(folder)
    head = None
    for raw in chains.long_chain(length, slices=False):
        head = Multihash.sha3_256(raw)
        writer.add_block(head, raw)
    assert head is not None
    writer.set_head(head, None)


def _import(source: Path, store: Path, length: int) -> None:
    with _thrown_away(store) as (kept, objects):
        assert import_dataset(source, kept, objects).blocks == length


def measure_stream(size: Size, folder: Path) -> list[Row]:
    """Measures packed blocks into an empty store, against the database with the same rows unchecked."""
    return [_streamed(length, folder / str(length), size) for length in size.lengths()]


def _streamed(length: int, folder: Path, size: Size) -> Row:
    folder.mkdir(parents=True)
    packed = folder / "packed"
    chains.pack(packed, length)
    stores = (folder / f"store-{number}" for number in itertools.count())

    def unjudged() -> None:
        with _thrown_away(next(stores)) as (kept, _):
            chains.keep(kept, chains.unpack(packed))

    ours, peer = in_turns(
        lambda: _take(packed, next(stores), length), unjudged, size.rounds(length), warm=length < MILLION
    )
    facts: dict[str, float | str] = {
        "MB": packed.stat().st_size / 1e6,
        "s for the disk to take them as one file": seconds(lambda: _copy(packed, folder / "copy")),
        "more MiB at peak": alone("bench.intake", "stream", packed, folder / "alone", length),
    }
    shutil.rmtree(folder)
    return Row(
        name=f"stream {length:,}",
        measures=f"{length:,} packed blocks, verified and committed",
        ours=Side(name="hash, link, rules, commit", costs=ours, amount=length, unit="blocks"),
        peer=Side(name="hash and commit alone", costs=peer, amount=length, unit="blocks"),
        facts=facts,
    )


def _take(packed: Path, store: Path, length: int) -> None:
    with _thrown_away(store) as (kept, _):
        checker, raws, head = ChainChecker(ChainState.EMPTY), chains.unpack(packed), None
        while pages := [page for _ in range(chains.PAGE // PAGE_BLOCKS) if (page := _page(raws))]:
            sealed = [block for page in pages for block in checker.take(page)]
            kept.commit([Append(dataset=chains.DATASET, expected=head, blocks=sealed)])
            head = kept.chain(chains.DATASET).head()
        assert checker.state.size == length


def _page(raws: Iterator[bytes]) -> list[bytes]:
    return list(itertools.islice(raws, PAGE_BLOCKS))


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _thrown_away(folder: Path) -> Iterator[tuple[SqliteChains, DiskObjects]]:
    with opened(folder) as made:
        yield made
    shutil.rmtree(folder)


def main(what: str, source: str, store: str, length: str) -> None:
    """Runs once, in a process of its own."""
    {"import": _import, "stream": _take}[what](Path(source), Path(store), int(length))
