"""Who is charged, and who is not blamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from p2p.budget.buckets import Relaying
from p2p.budget.work import STATEMENT
from p2p.driver import discovery, serve, statements
from p2p.driver.framing import FramedStream
from p2p.driver.statements import GOSSIP_RATE
from p2p.peers.book import DOUBTED, UNRELIABLE, Score
from p2p.ports import PeerId, Topic
from p2p.wire import chains, objects, trust
from p2p.wire import presence as wire
from p2p.wire.chains import BlockRange
from p2p.wire.limits import MAX_RANGE_BYTES, MAX_REPLY
from p2p.wire.objects import ObjectRange, ObjectsAsk
from p2p.wire.presence import Presence

# What a peer asks of us is charged to it before it is done, each kind of work.

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


# Nobody is blamed for what others made it pass on: three free keys made a node shut its own bootstrap out.

HEADS, PEERS = "/odf/1/test/heads", "/odf/1/test/peers"


def apart(node: Any) -> None:
    """Strangers are in one block of addresses, and everybody else in one of its own."""
    node.host.network_of = lambda peer: "strangers" if peer.startswith("free") else peer


async def three_strangers(town: Any, hub: Any) -> list[Any]:
    apart(hub)
    strangers = [town.bare(f"free{number}") for number in range(3)]
    for one in strangers:
        town.fabric.join(one, hub.host)
    await trio.sleep(1)
    return strangers


@pytest.mark.slow
async def test_three_keys_do_not_make_a_node_shut_its_bootstrap_out(autojump_clock: Any, town: Any) -> None:
    hub = await town.node("hub", entropy_interval=1e9)
    node = await town.node("node", bootstrap=(hub.host.address,), entropy_interval=1e9)
    honest = await town.node("honest", connect=[hub], entropy_interval=1e9)
    for one in await three_strangers(town, hub):
        for number in range(2_000):
            await one.publish(HEADS, b"ok %d" % number + one.peer_id.encode())
    await trio.sleep(1)
    rate = GOSSIP_RATE.within_limit()
    assert len(node.board.judged) <= rate.burst + 2 * rate.per_second, "what it relays is capped at the relay"
    assert node.driver._statements.dropped == 0
    assert hub.driver._statements.forwarding.kept_back > 1000
    assert node.score(hub) == 0
    await honest.driver.announce(statements.Topic.HEADS, b"ok, honestly")
    await trio.sleep(1)
    assert b"ok, honestly" in {envelope for _, envelope, _ in node.board.judged}, "a flood leaves room for others"


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_publisher_in_a_network_that_floods_is_heard_through_others(
    autojump_clock: Any, town: Any, is_known: bool
) -> None:
    """Its words have a share of their own where it publishes what is mirrored; else it is one of those strangers."""
    hub = await town.node("hub", entropy_interval=1e9)
    node = await town.node("node", bootstrap=(hub.host.address,), entropy_interval=1e9)
    strangers = await three_strangers(town, hub)
    publisher = town.bare("free9")
    town.fabric.join(publisher, hub.host)
    hub.host.choose([], [], [publisher.peer_id] if is_known else [])
    for number, most in enumerate([500, 40, 40]):
        for one in strangers:
            for each in range(most):
                await one.publish(HEADS, b"ok %d %d" % (number, each) + one.peer_id.encode())
        await publisher.publish(HEADS, b"ok, published %d" % number)
        await trio.sleep(1)
    heard = [envelope for _, envelope, _ in node.board.judged if envelope.startswith(b"ok, published")]
    assert len(heard) == (3 if is_known else 0)


async def test_nobody_is_blamed_for_presences_of_others(autojump_clock: Any, town: Any, monkeypatch: Any) -> None:
    few = statements.Rate(per_second=1.0, burst=20.0)
    monkeypatch.setattr(discovery, "TOLD_RATE", few)
    hub = await town.known(1, degree=0)
    node = await town.known(2, degree=0, connect=[hub])
    strangers = await three_strangers(town, hub)
    now = 1_700_000_000_000 + int(trio.current_time() * 1000)
    for seed in range(100, 190):
        key = SigningKey(seed.to_bytes(32, "big"))
        said = wire.seal(Presence(key=key.public, issued=now, lifetime=3600), "test", key)
        await strangers[seed % 3].publish(PEERS, said)
    await trio.sleep(1)
    assert len(hub.driver._discovery.directory) > 45
    assert len(node.driver._discovery.directory) <= 20
    assert node.score(hub) == 0
    assert all(hub.score(one) == 0 for one in strangers), "nor those who begin it: they are charged, and heard less"


def test_silence_alone_shuts_nobody_out() -> None:
    """A peer that others keep busy answers late, and that is no reason to leave it."""
    score = Score()
    for number in range(1000):
        score = score.lower(UNRELIABLE, number / 10)
    assert score.value >= DOUBTED
    assert not score.shut_out
    assert score.lower(90.0, 100.0).shut_out, "what it does itself counts beside that"


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 5, 100])
def test_a_flood_leaves_each_block_its_share(blocks: int) -> None:
    """Of what is passed on; and all of them together get no more than others look at."""
    relaying, passed = Relaying(GOSSIP_RATE), 0
    honest = 0
    for tick in range(6000):
        now = tick / 100
        passed += sum(relaying.passes(f"flood{number}", now) for number in range(blocks))
        if not tick % 100:
            honest += relaying.passes("honest", now)
    assert honest == 60 if blocks < 10 else honest > 10
    assert passed + honest <= GOSSIP_RATE.burst + 60 * GOSSIP_RATE.per_second
