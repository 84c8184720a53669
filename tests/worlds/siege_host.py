"""A hostile host at a known address: a relay that a person chose, and a publisher of blocks with very many columns."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import cache, partial

import trio

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import DatasetKind, Seed, SetDataSchema
from chain.model.schema import DataField, DataSchema, Int64, Option
from chain.statements.keys import SigningKey
from chain.statements.tree import Frontier
from p2p.driver.framing import FramedStream
from p2p.host.host import Host, open_host
from p2p.host.messages import read_message
from p2p.host.pubsub import rpc_pb2  # type: ignore[attr-defined]
from p2p.host.stream import Stream
from p2p.ports import PeerId
from p2p.wire import chains, circuit, presence
from p2p.wire.circuit import HOP, CircuitStatus, HopKind, HopMessage, Reservation
from worlds.chains import linked
from worlds.hostile import framed
from worlds.hostile_members import key_of, seed_of
from worlds.siege_attacks import FAILS, Identity, circuits_that_lie, give_back, gossip, head_of
from worlds.siege_plan import Plan

NAMES = ("circuits that a chosen relay leads astray", "wide blocks")
WIDTHS = (60_000, 20_000)
"""Columns of the first and the second dataset: more than a block may have, and more than an author of ours may."""
HOST = 99
"""The number of its key; those of its datasets follow."""


def dataset_key(number: int) -> SigningKey:
    return key_of(HOST + 1 + number)


@cache
def wide_chain(number: int) -> tuple[Block, ...]:
    fields = tuple(DataField(name=f"c{place}", type=Option(inner=Int64())) for place in range(WIDTHS[number]))
    seed = Seed(dataset_id=dataset_key(number).dataset_id, dataset_kind=DatasetKind.ROOT)
    return tuple(linked([seed, SetDataSchema(schema=DataSchema(fields=fields))], Instant(1_700_000_000 * 10**9)))


class HostileHost(Identity):
    """Serves the wide chains, and gives everybody a reservation."""

    def __init__(self, plan: Plan, host: Host, sent: Counter[str]) -> None:
        super().__init__(plan, host, seed_of(HOST), 0, sent)
        self.chains: dict[DatasetId, tuple[Block, ...]] = {}
        for number in range(len(WIDTHS)):
            self.chains[dataset_key(number).dataset_id] = wide_chain(number)
        host.set_handler(chains.PROTOCOL, self._serve)
        host.set_handler(HOP, self._lead)

    async def _serve(self, stream: Stream, peer: PeerId) -> None:
        framed_stream = FramedStream(stream, peer, 1 << 16)
        while (body := await framed_stream.read()) is not None:
            ask = chains.decode_range(body)
            blocks = self.chains.get(ask.dataset, ())
            given = tuple(block.raw for block in blocks[ask.start : ask.start + 1]) if ask.max_bytes else ()
            answer = chains.Blocks(request=ask.request, size=len(blocks), start=ask.start, blocks=given)
            await framed_stream.write(chains.encode_blocks(answer))
            self.sent["wide blocks"] += len(given) > 0

    async def _lead(self, stream: Stream, peer: PeerId) -> None:
        asked = circuit.decode_hop(await read_message(stream, peer, circuit.MAX_MESSAGE))
        reservation = Reservation(expires=int(time.time()) + 600) if asked.kind is HopKind.RESERVE else None
        told = HopMessage(kind=HopKind.STATUS, status=CircuitStatus.OK, reservation=reservation)
        await stream.send_all(circuit.encode_hop(told))
        if reservation is None:
            await give_back(stream, noise=bool(os.urandom(1)[0] % 2))

    def news(self) -> bytes:
        """Its presence, and the heads of its chains."""
        tags = tuple(sorted(presence.tag_of(dataset) for dataset in self.chains))
        here = self.plan.listen.partition("/p2p/")[0]
        said = presence.Presence(
            key=self.key.public,
            issued=time.time_ns() // 10**6,
            lifetime=3600,
            addresses=(here,),
            tags=tags,
        )
        rpc = rpc_pb2.RPC(publish=[self.message("peers", presence.seal(said, self.plan.network, self.key), self.key)])
        for number, (dataset, blocks) in enumerate(self.chains.items()):
            root = Frontier().extend(block.hash.digest for block in blocks).root
            head = head_of(dataset, dataset_key(number), len(blocks), root, blocks[-1].hash)
            rpc.publish.append(self.message("heads", head, self.key))
        return framed(rpc)


async def stay(one: HostileHost, address: str) -> None:
    """Connected to one node, which it tells what it has; and it brings circuits of nobody, as its relay."""
    while True:
        with trio.move_on_after(60):
            try:
                target = await one.host.connect(address)
                stream = await gossip(one, target)
                while True:
                    await stream.send_all(one.news())
                    await circuits_that_lie(one, target)
                    one.sent["circuits that a chosen relay leads astray"] += 1
            except FAILS:
                await trio.sleep(2)


async def keep_house(plan: Plan, sent: Counter[str]) -> None:
    async with open_host(seed_of(HOST), [plan.listen.partition("/p2p/")[0]]) as host, trio.open_nursery() as nursery:
        one = await trio.to_thread.run_sync(partial(HostileHost, plan, host, sent))
        for address in plan.targets:
            nursery.start_soon(stay, one, address)
