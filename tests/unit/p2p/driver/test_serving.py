"""The giving side under rude peers: garbage, silence, floods, slow readers. Others must not notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import structlog
import trio

from chain.errors import Environment, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from p2p.budget.buckets import Relaying
from p2p.budget.work import STATEMENT
from p2p.driver import discovery, lookups, serve, statements
from p2p.driver.framing import FramedStream
from p2p.driver.inbound import PATIENCE
from p2p.driver.serve import MAX_STREAMS
from p2p.driver.statements import GOSSIP_RATE
from p2p.errors import PeerFault
from p2p.lookup.node import Announcing
from p2p.machines.request_queue import MAX_WAITING
from p2p.peers.book import DOUBTED, GARBAGE, UNRELIABLE, Score
from p2p.ports import PeerId, Topic
from p2p.wire import chains, objects, presence, trust
from p2p.wire import presence as wire
from p2p.wire.chains import BlockRange, Blocks
from p2p.wire.contact import lookup_key
from p2p.wire.frames import frame
from p2p.wire.limits import MAX_RANGE_BYTES, MAX_REPLY, MAX_REQUEST, MAX_TRUST_REQUEST
from p2p.wire.lookup import LOOKUP_PROTOCOL, Nodes, encode_nodes
from p2p.wire.objects import ObjectRange, ObjectsAsk
from p2p.wire.presence import Presence
from p2p.wire.refusal import PeerRefusal, RefusalReason

DATASET = DatasetId.from_public_key(b"d" * 32)
BIG = bytes(3 << 20)
NAME = Multihash.sha3_256(BIG)


def question(number: int, start: int = 0) -> bytes:
    return chains.encode_range(BlockRange(request=number, dataset=DATASET, start=start))


async def giver_and_guest(town: Any, **settings: Any) -> tuple[Any, Any]:
    giver = await town.node("giver", **settings)
    giver.shelf.chains[DATASET] = town.made_chain("x", 20)
    giver.shelf.things[NAME] = BIG
    guest = town.bare("guest")
    town.fabric.join(guest, giver.host)
    await trio.testing.wait_all_tasks_blocked()
    return giver, guest


@pytest.mark.parametrize("protocol", [chains.PROTOCOL, objects.PROTOCOL, trust.PROTOCOL])
@pytest.mark.parametrize(
    "speech",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0",
        b"\0\0\0\x03abc",
        b"\0\0\0\x37" + bytes(55),
        b"\xff" * 400,
        b"\0\0\0\x02{}",
    ],
)
async def test_garbage_costs_the_speaker(autojump_clock: Any, town: Any, protocol: str, speech: bytes) -> None:
    """Attack T-PEER-02: garbage in our protocols.

    Defence: one refusal, a penalty, the end of the stream.
    """
    giver, guest = await giver_and_guest(town)
    stream = await guest.open_stream(giver.peer, protocol)
    await stream.send_all(speech)
    await trio.testing.wait_all_tasks_blocked()
    assert giver.score(guest) <= -19
    honest = await town.node("honest", connect=[giver])
    assert await honest.driver.chain_size(giver.peer, DATASET) == 20


async def test_one_over_every_request_limit(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town)
    for protocol, limit in ((chains.PROTOCOL, MAX_REQUEST), (trust.PROTOCOL, MAX_TRUST_REQUEST)):
        before = giver.score(guest)
        stream = await guest.open_stream(giver.peer, protocol)
        await stream.send_all((limit + 1).to_bytes(4, "big"))
        await trio.testing.wait_all_tasks_blocked()
        assert giver.score(guest) < before - 19


async def test_who_keeps_on_is_shut_out(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town)
    for _ in range(6):
        if giver.peer in guest.links:
            stream = await guest.open_stream(giver.peer, chains.PROTOCOL)
            await stream.send_all(b"\xff" * 100)
            await trio.testing.wait_all_tasks_blocked()
    assert giver.peer not in guest.links
    assert [view.blocked for view in giver.driver.peers() if view.peer == guest.peer_id] == [True]
    town.fabric.join(guest, giver.host)
    await trio.testing.wait_all_tasks_blocked()
    assert giver.peer not in guest.links, "and is not let in again at once"


async def test_silence_costs_nothing(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town)
    streams = [await guest.open_stream(giver.peer, trust.PROTOCOL) for _ in range(2)]
    await trio.sleep(100)
    for stream in streams:
        assert await stream.receive_some(10) == b""
    assert giver.score(guest) == 0


async def test_more_streams_than_allowed_are_reset(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town)
    streams = [await guest.open_stream(giver.peer, chains.PROTOCOL) for _ in range(MAX_STREAMS + 1)]
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(PeerFault):
        await streams[-1].receive_some(10)
    framed = FramedStream(streams[0], giver.peer, MAX_REPLY)
    await framed.write(question(7))
    answer = chains.decode_chain_reply(await framed.read() or b"")
    assert isinstance(answer, Blocks)
    assert answer.blocks == giver.shelf.chains[DATASET]


PROTOCOLS = {chains.PROTOCOL: 2, objects.PROTOCOL: 2, trust.PROTOCOL: 2, presence.PROTOCOL: 1}
"""How many streams of one peer each protocol listens to at once."""


async def is_reset(stream: Any) -> bool:
    with trio.move_on_after(0.5):
        try:
            return not await stream.receive_some(10)
        except PeerFault:
            return True
    return False


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_further_stream_waits_a_moment_for_its_place(autojump_clock: Any, town: Any, protocol: str) -> None:
    """One opened before the end of an earlier one was seen is served; those that nobody makes room for are not."""
    giver, guest = await giver_and_guest(town)
    most = PROTOCOLS[protocol]
    first = [await guest.open_stream(giver.peer, protocol) for _ in range(most)]
    await trio.testing.wait_all_tasks_blocked()
    further = await guest.open_stream(giver.peer, protocol)
    await trio.testing.wait_all_tasks_blocked()
    await first[0].send_eof()
    await trio.testing.wait_all_tasks_blocked()
    assert await is_reset(first[0])
    assert not await is_reset(further)
    late = [await guest.open_stream(giver.peer, protocol) for _ in range(most + 1)]
    await trio.testing.wait_all_tasks_blocked()
    assert [await is_reset(each) for each in late[-1:]] == [True]
    assert not await is_reset(late[0])
    await trio.sleep(PATIENCE)
    assert await is_reset(late[0])
    assert giver.score(guest) == 0


async def test_a_flood_of_questions_is_refused_and_noted(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-04: a flood of questions.

    Defence: 64 may wait; further ones are refused and penalised.
    """
    giver, guest = await giver_and_guest(town)
    framed = FramedStream(await guest.open_stream(giver.peer, chains.PROTOCOL), giver.peer, MAX_REPLY)
    flood = b"".join(
        len(body).to_bytes(4, "big") + body for body in (question(number) for number in range(MAX_WAITING + 12))
    )
    await framed._stream.send_all(flood)
    await trio.testing.wait_all_tasks_blocked()
    replies = [chains.decode_chain_reply(await framed.read() or b"") for _ in range(MAX_WAITING + 12)]
    refused = [reply for reply in replies if isinstance(reply, PeerRefusal)]
    assert {reply.reason for reply in refused} == {RefusalReason.BUSY}
    assert 1 <= len(refused) <= 11
    assert giver.score(guest) == pytest.approx(-len(refused), abs=0.1)
    assert {reply.request for reply in replies} == set(range(MAX_WAITING + 12))


async def test_a_slow_reader_holds_two_answers_and_ends(autojump_clock: Any, town: Any) -> None:
    """It asks for much and reads nothing: its stream ends after the patience, and others are served meanwhile."""
    giver, guest = await giver_and_guest(town)
    guest.lockstep = True
    stream = await guest.open_stream(giver.peer, objects.PROTOCOL)
    for number in range(20):
        body = objects.encode_read(ObjectRange(request=number, name=NAME, offset=0))
        await stream.send_all(len(body).to_bytes(4, "big") + body)
    honest = await town.node("honest", connect=[giver])
    assert await honest.driver.chain_size(giver.peer, DATASET) == 20
    part = town.Part(NAME)
    await honest.driver.fetch_object([giver.peer], NAME, len(BIG), part)
    assert part.visible == BIG
    assert trio.current_time() < 25
    assert giver.shelf.reads <= 3 + 2, "two answers of the slow reader are in memory, not twenty"
    await trio.sleep(60)
    with pytest.raises(PeerFault):  # noqa: PT012 - what was on its way before still comes
        while True:
            await stream.receive_some(1 << 20)


async def test_refusals_say_why(autojump_clock: Any, town: Any) -> None:
    giver, _ = await giver_and_guest(town)
    puller = await town.node("puller", connect=[giver])
    with pytest.raises(PeerFault, match="does not have it"):
        await puller.driver.fetch_object([giver.peer], Multihash.sha3_256(b"?"), 5, town.Part(NAME))

    def refuse(dataset: DatasetId) -> int:
        raise Refused("policy says no")

    giver.shelf.size = refuse
    with pytest.raises(PeerFault, match=r"does not serve it .policy says no"):
        await puller.driver.chain_size(giver.peer, DATASET)

    def broken(dataset: DatasetId) -> int:
        raise Environment("the disk at /secret/place is gone")

    giver.shelf.size = broken
    with pytest.raises(PeerFault, match=r"cannot read it$"):
        await puller.driver.chain_size(giver.peer, DATASET)


async def test_a_bug_behind_the_port_costs_one_answer(autojump_clock: Any, town: Any) -> None:
    giver, _ = await giver_and_guest(town)
    puller = await town.node("puller", connect=[giver], question_patience=5.0)
    good = giver.shelf.size
    giver.shelf.size = lambda dataset: 1 // 0
    with structlog.testing.capture_logs() as said, pytest.raises(PeerFault, match="no answer in 5 s"):
        await puller.driver.chain_size(giver.peer, DATASET)
    giver.shelf.size = good
    assert await puller.driver.chain_size(giver.peer, DATASET) == 20
    assert any("exc_info" in entry for entry in said)


async def test_draining_lets_answers_out_and_takes_no_more(autojump_clock: Any, town: Any) -> None:
    giver, guest = await giver_and_guest(town, drain=5.0)
    guest.lockstep = True
    stream = await guest.open_stream(giver.peer, chains.PROTOCOL)
    body = question(1)
    await stream.send_all(len(body).to_bytes(4, "big") + body)
    drained = trio.Event()

    async def drain() -> None:
        await giver.driver.drain()
        drained.set()

    town.nursery.start_soon(drain)
    await trio.testing.wait_all_tasks_blocked()
    assert not drained.is_set()
    framed = FramedStream(stream, giver.peer, MAX_REPLY)
    assert isinstance(chains.decode_chain_reply(await framed.read() or b""), Blocks)
    await drained.wait()
    assert trio.current_time() < 5
    late = await guest.open_stream(giver.peer, chains.PROTOCOL)
    with pytest.raises(PeerFault):
        await late.receive_some(10)


async def test_who_asks_is_whose_key_the_connection_proved(town: Any) -> None:
    """Attack T-PRIVATE-04: a request under another peer's name.

    Defence: each answer is made for the key that noise proved for this connection.

    What is given to one peer is not given to another, whatever it asks: by each protocol that gives.
    """
    giver, guest = await giver_and_guest(town)
    listed = town.bare("listed")
    town.fabric.join(listed, giver.host)
    statement = b"ok" + bytes(DATASET)
    giver.board.held[Multihash.sha3_256(statement)] = (Topic.HEADS, statement, DATASET)
    nothing = type(giver.shelf)(), type(giver.board)()
    giver.shelf.to = lambda peer: giver.shelf if peer == listed.peer_id else nothing[0]
    giver.board.to = lambda peer: giver.board if peer == listed.peer_id else nothing[1]
    asked = {
        chains.PROTOCOL: [question(1)],
        objects.PROTOCOL: [objects.encode_read(ObjectRange(request=1, name=NAME, offset=0, length=9))],
        trust.PROTOCOL: [
            trust.encode(trust.GetAsk((Multihash.sha3_256(statement),))),
            trust.encode(trust.ListAsk(datasets=(DATASET,), private=True)),
            trust.encode(trust.ProveAsk(dataset=DATASET, size=20, index=1)),
        ],
    }
    for protocol, questions in asked.items():
        for body in questions:
            answers = []
            for host in (listed, guest):
                stream = FramedStream(await host.open_stream(giver.peer, protocol), giver.peer, MAX_REPLY)
                await stream.write(body)
                answers.append(await stream.read())
                await stream.reset()
                await trio.testing.wait_all_tasks_blocked()
            assert None not in answers
            assert answers[0] != answers[1], body
            assert DATASET.public_key.hex() not in answers[1].decode("latin-1")


# Who is charged, and who is not blamed.


# What a peer asks of us is charged to it before it is done, each kind of work.

CHARGED = DatasetId.from_public_key(b"d" * 32)
THING = b"thing"
THING_NAME = Multihash.sha3_256(THING)
ASKS: dict[str, Callable[[], bytes]] = {
    "range": lambda: chains.encode_range(BlockRange(request=1, dataset=CHARGED, start=0)),
    "object": lambda: objects.encode_read(ObjectRange(request=1, name=THING_NAME, offset=0, length=5)),
    "pack": lambda: objects.encode_some(ObjectsAsk(request=1, names=(THING_NAME,) * 100)),
    "sum": lambda: trust.encode(trust.SumAsk()),
    "list": lambda: trust.encode(trust.ListAsk(datasets=(CHARGED,))),
    "get": lambda: trust.encode(trust.GetAsk((THING_NAME,) * 100)),
    "prove": lambda: trust.encode(trust.ProveAsk(dataset=CHARGED, size=3, old=2)),
}


@pytest.mark.parametrize("kind", ASKS)
async def test_each_question_is_paid_for_before_anything_is_read(autojump_clock: Any, town: Any, kind: str) -> None:
    """Attack T-PEER-04: short questions that are expensive: ranges, objects, packs, sums, listings, proofs.

    Defence: each is charged before data is read, to connection, key, address, subnet and all unlisted peers.
    """
    giver, asker = await town.node("giver"), town.bare("asker")
    giver.shelf.chains[CHARGED], giver.shelf.things[THING_NAME] = town.made_chain("x", 5), THING
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
    """Attack T-PEER-04: a peer with many statements to be verified and written.

    Defence: each is charged to the peer before it is verified.

    Judging is work: a peer full of statements does not get more of it than others.
    """
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
    """Attack T-PEER-04: a question for one block that causes a MiB to be read.

    Defence: at most the usual size of the requested blocks is read.

    Sixty bytes of question made a node read a MiB and give one block of it.
    """
    asked = list[int]()

    class Shelf:
        def size(self, dataset: DatasetId) -> int:
            return 10_000

        def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> list[bytes]:
            asked.append(max_bytes)
            return [b"b" * 600] * max(1, max_bytes // 600)

    shelf: Any = Shelf()
    for wanted in (1, 10, 16_384):
        one = BlockRange(request=1, dataset=CHARGED, start=0, max_blocks=wanted, max_bytes=MAX_RANGE_BYTES)
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
    """Attack T-PEER-05: a flood through honest relays, so that these are penalised and excluded.

    Defence: volume is not charged to relays; a node forwards at most three quarters of what others process, half of it
    shared by subnets.
    """
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
    """Attack T-PEER-05: a flood of a publisher's network, behind which its statements wait or are not forwarded.

    Defence: turns, forwarding, and memory for unfinished frames are reserved for chosen peers and for publishers of
    mirrored datasets.

    Its words have a share of their own where it publishes what is mirrored; else it is one of those strangers.
    """
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
    """Attack T-PEER-05: a flood of presences of invented peers through honest relays, so that these are penalised.

    Defence: volume is not charged to relays; a node forwards at most three quarters of what others process.
    """
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
    """Attack T-PEER-05: delaying an honest peer, so that others exclude it for late answers.

    Defence: late answers lower a score to -20 at most, which excludes no peer.

    A peer that others keep busy answers late, and that is no reason to leave it.
    """
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


# The lookup in whole drivers: a holder is found that nobody near ever met; only what is published is announced.


KEY = lookup_key("test", DATASET)
CHAIN = (b"block",)


def records(nodes: list[Any]) -> int:
    return sum(bool(one.driver._lookups.node.records.of(KEY, 16, now(one), one.driver._rng)) for one in nodes)


def now(node: Any) -> int:
    return node.driver._lookups._wall()


def forget_presences(node: Any) -> None:
    """Its directory is too small for the network."""
    directory = node.driver._discovery.directory
    for peer in list(directory._known):
        directory.forget(peer)


async def line(town: Any, count: int, **settings: Any) -> list[Any]:
    """Each node was connected by the one after it, and knows no others from the start."""
    nodes: list[Any] = []
    for seed in range(1, count + 1):
        nodes.append(await town.known(seed, connect=nodes[-1:], degree=0, lookup="on", **settings))
    return nodes


async def until(look: Callable[[], object], seconds: float = 600) -> None:
    with trio.fail_after(seconds):
        while not look():  # noqa: ASYNC110 - virtual time
            await trio.sleep(1)


async def settled(nodes: list[Any]) -> None:
    await until(lambda: all(one.driver._lookups.node.table.settled for one in nodes))


@pytest.mark.slow
async def test_a_holder_is_found_that_was_never_met(autojump_clock: Any, town: Any) -> None:
    nodes = await line(town, 9)
    await settled(nodes)
    holder, seeker = nodes[0], nodes[-1]
    holder.shelf.chains[DATASET] = CHAIN
    holder.driver.look_again()
    await until(lambda: records(nodes) >= 3)
    forget_presences(seeker)
    for one in nodes[1:]:
        directory = one.driver._discovery.directory
        directory.forget(holder.peer)
    assert await seeker.driver.seek(DATASET) == 1
    assert holder.peer in seeker.host.links


async def test_a_connected_peer_that_claims_each_dataset_ends_no_search(
    autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-FIND-01: a connected peer that claims each dataset in the lookup, so that each search ends with it.

    Defence: claims of connected peers end no search.

    Whoever searches is connected with it, and got nothing from it.
    """
    monkeypatch.setattr(lookups, "GRACE", 0.0)
    nodes = await line(town, 5)
    await settled(nodes)
    holder, liar = nodes[0], nodes[-1]
    holder.shelf.chains[DATASET] = CHAIN
    holder.driver.look_again()
    await until(lambda: records(nodes) >= 3)
    served = liar.driver._lookups
    claim = served._record(KEY, served._key)

    def lies(ask: Any, _peer: Any) -> bytes:
        return encode_nodes(Nodes(contacts=served.node.table.nearest(0, 4), records=(claim,)))

    served._answer_question = lies
    seeker = await town.known(9, connect=[liar], degree=0, lookup="on")
    await until(lambda: len(seeker.driver._lookups.node.table))
    for one in nodes[:-1]:
        one.host.charge = lambda *_: 0.5  # the liar is the first to answer
    found = await seeker.driver._lookups.holders(DATASET)
    assert holder.peer in {one.peer for one in found}


async def test_a_record_is_brought_by_the_search_itself(
    autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a network so large that each node knows its region: here all belong to it."""
    monkeypatch.setattr(Announcing, "is_brought_to", lambda _self, _contact: True)
    monkeypatch.setattr(Announcing, "rest", lambda _self: [])
    nodes = await line(town, 5)
    await settled(nodes)
    nodes[0].shelf.chains[DATASET] = CHAIN
    nodes[0].driver.look_again()
    await until(lambda: records(nodes) >= 3)
    assert nodes[0].driver._lookups.node.publication.take(trio.current_time()) is None, "it counts as announced"


@pytest.mark.slow
async def test_what_is_withdrawn_is_not_told_by_its_holder_and_expires(
    autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "RECORD_LIFETIME", 900)
    nodes = await line(town, 5)
    await settled(nodes)
    holder, other = nodes[0], nodes[1]
    holder.shelf.chains[DATASET] = CHAIN
    holder.driver.look_again()
    await until(lambda: records(nodes) >= 3)
    assert (await asked(other, holder)).records
    del holder.shelf.chains[DATASET]
    holder.driver.look_again()
    await trio.sleep(5)
    assert not (await asked(other, holder)).records
    assert records(nodes) >= 3, "others tell of it until it expires"
    await trio.sleep(lookups.RECORD_LIFETIME + 60)
    assert records(nodes) == 0


async def asked(asker: Any, node: Any) -> Nodes:
    from p2p.address import parse_address
    from p2p.identity import did_of_peer
    from p2p.wire.contact import contact_at

    contact = contact_at(did_of_peer(node.peer).public_key, parse_address(node.host.address))
    return await asker.driver._lookups._find(contact, KEY)


@pytest.mark.slow
async def test_what_is_not_published_is_not_announced(autojump_clock: Any, town: Any) -> None:
    """What the library does not list for all is announced to nobody."""
    nodes = await line(town, 5)
    await settled(nodes)
    nodes[0].board.wanted.add(DATASET)
    await trio.sleep(600)
    assert records(nodes) == 0
    assert len(nodes[0].driver._lookups.node.publication) == 0


@pytest.mark.slow
async def test_a_small_network_asks_nobody(autojump_clock: Any, town: Any) -> None:
    nodes = [await town.known(1)]
    nodes.append(await town.known(2, connect=nodes))
    nodes[0].shelf.chains[DATASET] = CHAIN
    await trio.sleep(600)
    assert not town.fabric.briefs
    assert not any(one.driver._lookups.is_used for one in nodes)
    assert LOOKUP_PROTOCOL in nodes[0].host.handlers, "it answers whoever asks"


async def test_a_full_directory_begins_it(autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "LARGE", 1)
    nodes = [await town.known(1)]
    nodes.append(await town.known(2, connect=nodes))
    await settled(nodes)


async def test_off_means_neither_asking_nor_answering(
    autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "LARGE", 0)
    node = await town.known(1, lookup="off")
    assert not node.driver._lookups.is_used
    assert LOOKUP_PROTOCOL not in node.host.handlers


@pytest.mark.parametrize("body", [b"", b"\1", b"\1" + bytes(40), b"\3" + bytes(33)])
async def test_garbage_is_penalised(autojump_clock: Any, town: Any, body: bytes) -> None:
    node = await town.known(1, lookup="on")
    stranger = town.bare("stranger")
    town.fabric.join(stranger, node.host)
    stream = await stranger.open_stream(node.peer, LOOKUP_PROTOCOL)
    await stream.send_all(frame(body) if body else bytes(4))
    await trio.sleep(1)
    assert node.score(stranger) <= -GARBAGE / 2 or node.score(stranger) != 0


async def test_who_tells_forged_records_is_penalised(autojump_clock: Any, town: Any) -> None:
    node = await town.known(1, lookup="on")
    liar_key = SigningKey((7).to_bytes(32, "big"))
    liar = await town.known(7, lookup="on", connect=[node])
    forged = liar.driver._lookups._record(KEY, liar_key)
    liar.driver._lookups._sealed[KEY] = forged[:-1] + bytes([forged[-1] ^ 1])
    liar.driver._lookups._serve = lambda: None
    await settled([node])
    assert await node.driver.seek(DATASET) == 0
    assert node.driver.figures().lookup_forged == 1
    assert node.score(liar) < 0
