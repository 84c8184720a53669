"""Measures the network layer: objects to verified disk, chains to a committed head, and a round trip.

Two processes over loopback, the other one being ``bench.giver``; against a bare TLS socket between the same two.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import truediv
from pathlib import Path
from random import Random
from subprocess import PIPE
from typing import Any, Final

import trio

from bench import chains, machine
from bench.giver import ECHO, MESSAGE, serving
from bench.measure import CPU, Row, Side, Size, all_in_turns, in_turns_async
from chain import instant
from chain.codec.blocks import decode_block
from chain.data.arrow_schema import from_arrow
from chain.ids import DatasetId
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed, SetDataSchema
from chain.multihash import ARROW0_SHA3_256, Multihash
from chain.state import ChainState
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store.base import Append, Head
from odfd.mirrors.sinks import PartialObject, VerifiedChain
from odfd.store.directory import StateDirectory, open_state_directory
from odfd.store.references import keep_references
from p2p.driver.replication import ReplicationDriver
from p2p.host.host import Host
from p2p.ports import PeerId

_TREE: Final = Path(__file__).parents[1]
_NAMING: Final = DatasetId.from_public_key(b"a chain that names one object".ljust(32))
_DEADLINE: Final = 1200.0
_HUGE: Final = 1 << 30
"""Bytes of an object that is fetched three times, for each time takes a while."""
_FAREWELL: Final = 20.0
_PART: Final = 1 << 22
_SMALL: Final = 1 << 17
"""Bytes of an object that is there only because every giver has one."""


@dataclass
class Link:
    """This process's connection to the giver."""

    home: StateDirectory
    host: Host
    driver: ReplicationDriver
    peer: PeerId
    where: dict[str, Any]
    name: Multihash
    """Of the large object that the giver has."""
    size: int
    original: Path
    """Where the giver has it."""
    giver: int
    """Its process."""

    def computed(self) -> float:
        """Seconds of CPU that both processes have had."""
        return machine.spent(os.getpid()) + machine.spent(self.giver)

    async def tls(self, port: str) -> trio.SSLStream:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", self.where[port], ssl_context=context)
        await stream.do_handshake()
        return stream


@asynccontextmanager
async def connected(folder: Path, furnish: Callable[[StateDirectory], int]) -> AsyncIterator[Link]:
    """Runs a giver with the state and the object size of ``furnish``, and connects to it."""
    state = folder / "giver"
    name, size, original = await trio.to_thread.run_sync(_furnish, state, furnish)
    command = [sys.executable, "-m", "bench.giver", str(state), str(size)]
    giver = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE, cwd=_TREE)
    assert giver.stdin is not None
    assert giver.stdout is not None
    try:
        with trio.fail_after(_DEADLINE), open_state_directory(folder / "ours") as home:
            said = b""
            while not said.endswith(b"\n"):
                said += await giver.stdout.receive_some()
            async with serving(home, b"p" * 32) as (host, driver):
                where = json.loads(said)
                yield Link(
                    home, host, driver, await driver.connect(where["address"]), where, name, size, original, giver.pid
                )
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(_FAREWELL):
            await giver.stdin.aclose()
            await giver.wait()


def _furnish(state: Path, furnish: Callable[[StateDirectory], int]) -> tuple[Multihash, int, Path]:
    with open_state_directory(state) as home:
        size = furnish(home)
        staged = home.objects.stage()
        lot = Random(1)
        with staged.open("wb") as file:
            for start in range(0, size, _PART):
                file.write(lot.randbytes(min(_PART, size - start)))
        name = home.objects.add_file(staged)
        named = DataSlice(
            logical_hash=Multihash.from_digest(ARROW0_SHA3_256, bytes(32)),
            physical_hash=name,
            offset_interval=OffsetInterval(start=0, end=chains.ROWS - 1),
            size=size,
        )
        made = chains.blocks_of(
            Seed(dataset_id=_NAMING, dataset_kind=DatasetKind.ROOT),
            SetDataSchema(schema=from_arrow(chains.SCHEMA)),
            AddData(new_data=named),
        )
        append = Append(dataset=_NAMING, expected=None, blocks=made, objects=[name])
        home.chains.commit([append], lambda connection: keep_references(connection, _NAMING, made))
        return name, size, home.objects.path(name)


def measure_object(size: Size, folder: Path) -> list[Row]:
    """Measures one large object, against the bare socket, and against a download with checks and storage."""
    return trio.run(_measure_object, size, folder)


async def _measure_object(size: Size, folder: Path) -> list[Row]:
    volume = size.pick(1, size.object_mib) << 20
    rounds = size.pick(1, 3 if volume >= _HUGE else 5)
    async with connected(folder, lambda _: volume) as link:
        sides = (lambda: _mirror(link), lambda: download(link), lambda: _hash(link))
        target = folder / "kept"
        before = partial(_clear, link, target)
        costs, socket, hashing = await all_in_turns(sides, rounds, before=before)
        computed = map(sum, zip(*await all_in_turns(sides[1:], rounds, 0, link.computed), strict=True))
        shared = [seconds / len(os.sched_getaffinity(0)) for seconds in computed]
        peaks: dict[str, float | str] = {
            "MiB of memory": machine.highest() / 2**20,
            "at the giver": machine.highest(link.giver) / 2**20,
        }
        again, kept = await all_in_turns((sides[0], lambda: download(link, target)), rounds, before=before)
    name, measures = "libp2p to a checked and synced file", f"an object of {volume >> 20} MiB from one peer"
    return [
        Row(
            name="object",
            measures=measures,
            ours=Side(name=name, costs=costs, amount=volume, unit="B"),
            peer=Side(name="trio TLS socket to nowhere", costs=socket, amount=volume, unit="B"),
            facts=peaks,
        ),
        Row(
            name="object bound",
            measures=measures,
            ours=Side(name=name, costs=costs, amount=volume, unit="B"),
            peer=Side(
                name="the slowest of that socket, SHA3-256 of the same bytes, and both on the cores that there are",
                costs=tuple(map(max, socket, hashing, shared)),
                amount=volume,
                unit="B",
            ),
            goal="≤ 1.25",
            facts={
                "MiB/s of SHA3-256": volume / 2**20 / statistics.median(hashing),
                "of that socket": volume / 2**20 / statistics.median(socket),
                "of both on the cores": volume / 2**20 / statistics.median(shared),
                "times the slower of the two alone": statistics.median(map(truediv, costs, map(max, socket, hashing))),
            },
        ),
        Row(
            name="object kept",
            measures=measures,
            ours=Side(name=name, costs=again, amount=volume, unit="B"),
            peer=Side(name="trio TLS socket to a hashed and synced file", costs=kept, amount=volume, unit="B"),
        ),
    ]


async def _mirror(link: Link) -> None:
    objects = link.home.objects
    sink = await trio.to_thread.run_sync(PartialObject, link.home.folder("partial"), objects, link.name)
    await link.driver.fetch_object([link.peer], link.name, link.size, sink)
    assert objects.size(link.name) == link.size


async def _clear(link: Link, kept: Path) -> None:
    """What came before. The kernel takes a ninth of the time of fetching a large file to forget it."""

    def clear() -> None:
        link.home.objects.remove(link.name)
        kept.unlink(missing_ok=True)

    await trio.to_thread.run_sync(clear)


async def _hash(link: Link) -> None:
    """On one core, as a node does with one object; from a file."""

    def hash_file() -> None:
        with link.original.open("rb") as file:
            assert hashlib.file_digest(file, "sha3_256").digest() == link.name.digest

    await trio.to_thread.run_sync(hash_file)


async def download(link: Link, target: Path = Path(os.devnull)) -> None:
    """Downloads everything over TLS; hashes and syncs it if there is a target."""
    got, hasher = 0, hashlib.sha3_256()
    is_kept = target != Path(os.devnull)
    with target.open("wb") as file:
        async with await link.tls("object") as stream:
            while got < link.size and (data := await stream.receive_some(1 << 18)):
                got += len(data)
                if is_kept:
                    hasher.update(data)
                    file.write(data)
        if is_kept:
            os.fsync(file.fileno())
            assert hasher.digest() == link.name.digest
    assert got == link.size


def measure_sync(size: Size, folder: Path) -> list[Row]:
    """Measures one long chain."""
    return [trio.run(_measure_sync, size, folder)]


async def _measure_sync(size: Size, folder: Path) -> Row:
    length = size.pick(1_000, 50_000)
    raws = list(chains.long_chain(length))
    digests = [hashlib.sha3_256(raw).digest() for raw in raws]
    last = decode_block(raws[-1])
    head = HeadStatement(
        dataset=chains.DATASET,
        epoch=1,
        size=length,
        root_hash=Frontier().extend(digests).root,
        authority=1,
        issued_at=instant.render(chains.START),
        expires_at=instant.render(chains.START),
        head=last.hash,
    )
    rounds = size.pick(1, 5)
    waits: list[float] = []

    async def pull() -> None:
        begun = trio.current_time()
        sink, home = VerifiedChain(ChainState.EMPTY, Frontier(), head), next(fresh)
        await link.driver.pull_chain([link.peer], chains.DATASET, length, sink)
        append = Append(dataset=chains.DATASET, expected=None, blocks=sink.blocks)
        await trio.to_thread.run_sync(
            home.chains.commit, [append], lambda connection: keep_references(connection, chains.DATASET, sink.blocks)
        )
        waits.append(trio.current_time() - begun)
        assert home.chains.chain(chains.DATASET).head() == Head(sink.blocks[-1].hash, length - 1)

    async def hash_all() -> None:
        for raw in raws:
            hashlib.sha3_256(raw).digest()

    with ExitStack() as homes:
        fresh = iter(
            [homes.enter_context(open_state_directory(folder / f"home-{number}")) for number in range(rounds + 1)]
        )

        def chained(home: StateDirectory) -> int:
            chains.keep(home.chains, raws)
            return _SMALL

        async with connected(folder, chained) as link:
            ours, peer = await in_turns_async(pull, hash_all, rounds, clock=CPU)
    return Row(
        name="sync",
        measures=f"CPU time of the one who mirrors a chain of {length:,} blocks from one peer",
        ours=Side(name="libp2p, rules, tree, references, SQLite", costs=ours, amount=length, unit="blocks"),
        peer=Side(name="SHA3-256 of each block in memory", costs=peer, amount=length, unit="blocks"),
        facts={"MB": sum(map(len, raws)) / 1e6, "blocks/s by the clock": length / statistics.median(waits[1:])},
    )


def measure_rtt(size: Size, folder: Path) -> list[Row]:
    """Measures a request and its response."""
    return [trio.run(_measure_rtt, size, folder)]


async def _measure_rtt(size: Size, folder: Path) -> Row:
    turns = size.pick(20, 2_000)
    async with connected(folder, lambda _: _SMALL) as link:
        stream, socket = await link.host.open_stream(link.peer, ECHO), await link.tls("echo")
        ours, peer = await in_turns_async(
            lambda: _echoes(stream, turns), lambda: _echoes(socket, turns), size.pick(1, 7)
        )
        await stream.aclose()
        await socket.aclose()
    return Row(
        name="rtt",
        measures=f"a round trip of {MESSAGE} bytes between two processes",
        ours=Side(name="libp2p stream", costs=tuple(cost / turns for cost in ours)),
        peer=Side(name="trio TLS socket", costs=tuple(cost / turns for cost in peer)),
    )


async def _echoes(stream: Any, turns: int) -> None:
    for _ in range(turns):
        await stream.send_all(bytes(MESSAGE))
        got = 0
        while got < MESSAGE:
            got += len(await stream.receive_some(MESSAGE - got))
