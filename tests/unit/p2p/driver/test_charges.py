"""What a peer asks of us is charged to it before it is done, each kind of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.budget.work import STATEMENT
from p2p.driver import serve
from p2p.driver.framing import FramedStream
from p2p.ports import PeerId, Topic
from p2p.wire import chains, objects, trust
from p2p.wire.chains import BlockRange
from p2p.wire.limits import MAX_RANGE_BYTES, MAX_REPLY
from p2p.wire.objects import ObjectRange, ObjectsAsk

DATASET = DatasetId.from_public_key(b"d" * 32)
THING = b"thing"
NAME = Multihash.sha3_256(THING)

ASKS: dict[str, Callable[[], bytes]] = {
    "range": lambda: chains.encode_range(BlockRange(request=1, dataset=DATASET, start=0)),
    "object": lambda: objects.encode_read(ObjectRange(request=1, name=NAME, offset=0, length=5)),
    "pack": lambda: objects.encode_some(ObjectsAsk(request=1, names=(NAME,) * 100)),
    "sum": lambda: trust.encode(trust.SumAsk()),
    "list": lambda: trust.encode(trust.ListAsk(datasets=(DATASET,))),
    "get": lambda: trust.encode(trust.GetAsk((NAME,) * 100)),
    "prove": lambda: trust.encode(trust.ProveAsk(dataset=DATASET, size=3, old=2)),
}


@pytest.mark.parametrize("kind", ASKS)
async def test_each_question_is_paid_for_before_anything_is_read(autojump_clock: Any, town: Any, kind: str) -> None:
    giver, asker = await town.node("giver"), town.bare("asker")
    giver.shelf.chains[DATASET], giver.shelf.things[NAME] = town.made_chain("x", 5), THING
    town.fabric.join(asker, giver.host)
    await trio.sleep(1)
    charged, done = list[float](), list[str]()

    def charge(peer: PeerId, cost: float) -> float:
        assert peer == asker.peer_id
        charged.append(cost)
        return 50.0

    def watched(room: Any, name: str) -> None:
        method = getattr(room, name)
        setattr(room, name, lambda *args, **more: (done.append(name), method(*args, **more))[1])

    giver.host.charge = charge
    for name in ("size", "blocks", "prove", "object_part", "small_objects"):
        watched(giver.shelf, name)
    for name in ("refs", "envelope"):
        watched(giver.board, name)
    protocol = {"range": chains.PROTOCOL, "object": objects.PROTOCOL, "pack": objects.PROTOCOL}.get(
        kind, trust.PROTOCOL
    )
    stream = FramedStream(await asker.open_stream(giver.peer, protocol), giver.peer, MAX_REPLY)
    done.clear()
    await stream.write(ASKS[kind]())
    await trio.sleep(40)
    assert len(charged) == 1
    assert charged[0] >= 100
    assert done == []
    assert await stream.read()
    assert done


async def test_statements_that_we_fetch_are_paid_for_by_who_gives_them(autojump_clock: Any, town: Any) -> None:
    """Judging is work: a peer full of statements does not get more of it than others."""
    giver = await town.node("giver")
    node = await town.node("node", connect=[giver], entropy_interval=1e9)
    await trio.sleep(1)
    for number in range(20):
        giver.board.judge(Topic.HEADS, b"ok %d" % number, giver.peer)
    charged = list[tuple[str, float]]()
    node.host.charge = lambda peer, cost: charged.append((peer, cost)) or 1.0
    begun = trio.current_time()
    assert await node.driver.pull_statements(giver.peer) == 20
    assert [peer for peer, cost in charged if cost == STATEMENT] == [giver.peer] * 20
    assert trio.current_time() - begun > 19.9


def test_a_question_for_one_block_reads_no_thousand() -> None:
    """Sixty bytes of question made a node read a MiB and give one block of it."""
    asked = list[int]()

    class Shelf:
        def size(self, dataset: DatasetId) -> int:
            return 10_000

        def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> list[bytes]:
            asked.append(max_bytes)
            return [b"b" * 600] * max(1, max_bytes // 600)

    shelf: Any = Shelf()
    for wanted in (1, 10, 16_384):
        one = BlockRange(request=1, dataset=DATASET, start=0, max_blocks=wanted, max_bytes=MAX_RANGE_BYTES)
        serve.answer(shelf, one, serve.Spare())
    assert asked == [serve.LEAST_READ, 10 * serve.PER_BLOCK, MAX_RANGE_BYTES]
