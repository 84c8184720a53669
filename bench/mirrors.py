"""Measures a mirror from the request to the last verified byte on disk: a daemon and ``bench.giver`` on loopback.

Against a bare TLS socket between the same two that brings as many bytes into one hashed and synced file: what no mirror
can go below. Every round has a daemon with an empty state directory, which has met the giver before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import trio

from bench import chains
from bench.measure import MILLION, Row, Side, Size
from bench.network import Link, connected, download
from bench.node import daemon, settle
from bench.peers import is_connected
from chain import instant
from chain.data.arrow_schema import from_arrow
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.model.events import AddData, DatasetKind, DataSlice, MetadataEvent, OffsetInterval, Seed, SetDataSchema
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store.base import Append
from demo.nodes import Node, until
from odfd.control import calls, wire
from odfd.control.client import Answer, ControlClient
from odfd.network.statement_store import LedgerStatementStore
from odfd.runtime.clock import SystemClock
from odfd.store.directory import StateDirectory
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.references import keep_references
from p2p.ports import Judgement, PeerId, Topic

_SLICED: Final = SigningKey(b"many small slices".ljust(32))
_ROWS: Final = 16
_MET: Final = 1.0
"""Seconds from the first connection until the giver's statements were heard."""


@dataclass(frozen=True)
class _Case:
    """A dataset that is mirrored; ``furnish`` puts it into a giver's state, and tells its bytes."""

    name: str
    dataset: DatasetId
    blocks: int
    furnish: Callable[[StateDirectory], int]
    want: Literal["chain", "data"]
    goal: str


def measure_mirror(size: Size, folder: Path) -> list[Row]:
    """Measures many small slices, and one long chain."""
    slices, length = size.pick(20, 1_000), MILLION if size.million else 100_000
    small = _Case(
        f"mirror {slices:,} slices", _SLICED.dataset_id, slices + 2,
        lambda home: _keep_slices(home, slices), "data", "0.5 s",
    )  # fmt: skip
    long = _Case(
        f"mirror {length:,} blocks", chains.DATASET, length,
        lambda home: _keep_chain(home, length), "chain", "50,000 blocks/s",
    )  # fmt: skip
    cases = [(small, size.pick(1, 5))] + ([] if size.quick else [(long, size.rounds(length))])
    return [trio.run(_measure, folder / case.want, case, rounds) for case, rounds in cases]


async def _measure(folder: Path, case: _Case, rounds: int) -> Row:
    ours, peer = [], []
    async with connected(folder, case.furnish) as link:
        for number in range(rounds):
            ours.append(await trio.to_thread.run_sync(_mirror, folder / str(number), link, case))
            begun = time.perf_counter()
            await download(link, folder / "kept")
            peer.append(time.perf_counter() - begun)
    return Row(
        name=case.name,
        measures=f"{case.blocks:,} blocks and {link.size / 1e6:,.1f} MB to the disk of a daemon, all verified",
        ours=Side(name=f"mirror add --want {case.want}", costs=tuple(ours), amount=case.blocks, unit="blocks"),
        peer=Side(
            name="trio TLS socket to one hashed and synced file", costs=tuple(peer), amount=case.blocks, unit="blocks"
        ),
        goal=case.goal,
        facts={"s": min(ours), "MB": link.size / 1e6},
    )


def _mirror(folder: Path, link: Link, case: _Case) -> float:
    """Seconds from the request until all is here."""
    with daemon(folder) as node:
        client = ControlClient(node.socket)
        node.do("network", "join", "bench", "--bootstrap", link.where["address"])
        until("the giver is met", lambda: any(map(is_connected, node.do("peer", "list"))), 60)
        time.sleep(_MET)
        settle(node)
        begun = time.perf_counter()
        request = wire.MirrorRequest(source=str(case.dataset), as_name="bench", want=case.want)
        with _task(client, request) as snapshots:
            for task in snapshots:
                assert task.value.fault is None, task
        spent = time.perf_counter() - begun
        assert _held(node) == case.blocks
        return spent


@contextmanager
def _task(client: ControlClient, request: wire.MirrorRequest) -> Iterator[Iterator[Answer[wire.TaskState]]]:
    stream = client.stream(calls.tasks_follow(client.do(calls.mirrors_add(request)).value.id))
    try:
        yield stream
    finally:
        stream.close()


def _held(node: Node) -> int:
    (found,) = node.mirrors().values()
    assert found["state"] == "current", found
    return int(found["blocks"]["have"])


def _keep_chain(home: StateDirectory, length: int) -> int:
    """A long chain and its signed head; its bytes."""
    frontier, volume = Frontier(), 0
    digests: list[bytes] = []
    groups: list[bytes] = []
    last = Multihash()

    def streamed() -> Iterator[bytes]:
        nonlocal frontier, volume, last
        for raw in chains.long_chain(length):
            last = Multihash.sha3_256(raw)
            digests.append(last.digest)
            volume += len(raw)
            if len(digests) == chains.PAGE:
                frontier = frontier.extend(digests, groups)
                digests.clear()
            yield raw

    chains.keep(home.chains, streamed())
    _sign(home, chains.KEY, frontier.extend(digests, groups), groups, last)
    return volume


def _keep_slices(home: StateDirectory, slices: int) -> int:
    """A chain of so many small slices, the slices, and the signed head; the bytes of all."""
    key, volume = _SLICED, 0
    events: list[MetadataEvent] = [
        Seed(dataset_id=key.dataset_id, dataset_kind=DatasetKind.ROOT),
        SetDataSchema(schema=from_arrow(chains.SCHEMA)),
    ]
    names = []
    for number in range(slices):
        first = number * _ROWS
        table = pa.table(
            [
                pa.array(range(first, first + _ROWS), pa.int64()),
                pa.array([0] * _ROWS, pa.int32()),
                pa.array([0] * _ROWS, pa.timestamp("ms", "UTC")),
                pa.array([0] * _ROWS, pa.timestamp("ms", "UTC")),
                pa.array([number] * _ROWS, pa.int64()),
            ],
            chains.SCHEMA,
        )
        staged = home.objects.stage()
        write_slice(table, staged)
        volume += staged.stat().st_size
        said = DataSlice(
            logical_hash=logical_hash_file(staged),
            physical_hash=Multihash.sha3_256(staged.read_bytes()),
            offset_interval=OffsetInterval(start=first, end=first + _ROWS - 1),
            size=staged.stat().st_size,
        )
        names.append(home.objects.add_file(staged))
        events.append(AddData(prev_offset=first - 1 if first else None, new_data=said))
    made = chains.blocks_of(*events)
    append = Append(dataset=key.dataset_id, expected=None, blocks=made, objects=names)
    home.chains.commit([append], lambda connection: keep_references(connection, key.dataset_id, made))
    groups: list[bytes] = []
    _sign(home, key, Frontier().extend((block.hash.digest for block in made), groups), groups, made[-1].hash)
    return volume + sum(len(block.raw) for block in made)


def _sign(home: StateDirectory, key: SigningKey, frontier: Frontier, groups: list[bytes], head: Multihash) -> None:
    """With what a publisher keeps beside its blocks."""
    with home.database.write() as connection:
        Ledger(connection).grow(key.dataset_id, Frontier(), CheckedChain(frontier, frontier.size), groups)
    now = SystemClock().now()
    said = HeadStatement(
        dataset=key.dataset_id,
        epoch=0,
        size=frontier.size,
        root_hash=frontier.root,
        authority=0,
        issued_at=statement.when(now),
        expires_at=statement.when(instant.Instant(now + 7 * 86_400 * instant.SECOND)),
        head=head,
    )
    board = LedgerStatementStore(home.database, home.chains, lambda: now, lambda some, _=None: frozenset(some))
    judged = board.judge(Topic.HEADS, envelope.seal(statement.encode(said), key), PeerId("the owner"))
    assert judged is Judgement.ACCEPT
