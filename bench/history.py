"""Measures how verification scales with length: long chains at level chain, from the database."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bench import chains
from bench.machine import alone
from bench.measure import CPU, MILLION, Row, Side, Size, in_turns, seconds
from bench.store import opened
from chain.store.layout import DirectoryObjects
from chain.store.sqlite import SqliteChains
from odfd.verify.report import Level
from odfd.verify.verify import VerificationRequest, verify_chain


def measure_verify(size: Size, folder: Path) -> list[Row]:
    """Chains of several lengths at level chain against SHA3-256 of the same bytes."""
    return [_verified(length, folder / str(length), size) for length in size.lengths()]


def _verified(length: int, folder: Path, size: Size) -> Row:
    raws = list(chains.long_chain(length))
    with opened(folder) as (kept, _):
        made = seconds(lambda: chains.keep(kept, raws))

        def hash_all() -> None:
            for raw in raws:
                hashlib.sha3_256(raw).digest()

        ours, peer = in_turns(lambda: _verify(kept, length), hash_all, size.rounds(length), CPU, warm=length < MILLION)
    return Row(
        name=f"verify {length:,}",
        measures=f"CPU time of level chain, {length:,} blocks in SQLite",
        ours=Side(name="hash, decode, link, rules", costs=ours, amount=length, unit="blocks"),
        peer=Side(name="SHA3-256 of each block in memory", costs=peer, amount=length, unit="blocks"),
        goal="≤ 2.5",
        facts={
            "MB": sum(map(len, raws)) / 1e6,
            "more MiB at peak": alone("bench.history", folder, length),
            "s to commit": made,
        },
    )


def _verify(kept: SqliteChains, length: int) -> None:
    objects = DirectoryObjects(Path())  # at level chain nobody looks at any
    report = verify_chain(kept.chain(chains.DATASET), objects, VerificationRequest(ref="long", level=Level.CHAIN))
    assert report.ok, report.failures[:1]
    assert report.checked.blocks == length


def main(folder: str, length: str) -> None:
    """Runs once, in a process of its own."""
    with opened(Path(folder)) as (kept, _):
        _verify(kept, int(length))
