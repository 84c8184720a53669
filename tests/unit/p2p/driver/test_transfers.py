"""Transfers from one giver and from swarms."""

from __future__ import annotations

import threading
from contextlib import suppress
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
import trio

from chain.errors import Environment, Invalid, Remote
from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.driver import serve, swarms
from p2p.driver.framing import FramedStream
from p2p.driver.peer_penalties import PeerPenalties
from p2p.driver.swarms import MEET_RATE
from p2p.driver.transfers import PARTS_AHEAD, TransferRun
from p2p.errors import Misbehaviour, PeerFault, ProtocolUnsupported, StreamBroken
from p2p.machines.transfer import MAX_UNVERIFIED, Arrived, Ask, PartTransfer, TransferShape
from p2p.pace import Bandwidth, Pace
from p2p.ports import HeldParts, PartsAsk, PeerId, PiecesAsk, Tip
from p2p.wire import chains, frames, objects, presence
from p2p.wire.chains import Blocks
from p2p.wire.limits import MAX_REPLY, MAX_REQUEST
from p2p.wire.presence import Presence
from p2p.wire.swarm import SWARM_PROTOCOL, PartsTold, encode_told

# Chains and objects between real drivers, among peers that are slow, silent, lying or gone.

DATASET = DatasetId.from_public_key(b"d" * 32)
BIG = bytes(range(256)) * 4096 * 5 + b"tail"
NAME = Multihash.sha3_256(BIG)
STANDING: Any = Mock(spec=PeerPenalties)
"""Nobody is penalised."""


def sink(town: Any, blocks: tuple[bytes, ...]) -> Any:
    return town.ChainBook(blocks)


async def silence(stream: Any, peer: PeerId) -> None:
    """Takes all and says nothing."""
    while await stream.receive_some(1024):
        pass


@pytest.mark.slow
async def test_a_chain_comes_from_several_peers_at_once(autojump_clock: Any, town: Any) -> None:
    blocks = town.made_chain("x", 9000)
    givers = [await town.node(name) for name in "abc"]
    for giver in givers:
        giver.shelf.chains[DATASET] = blocks
    puller = await town.node("puller", connect=givers)
    wanted = sink(town, blocks)
    await puller.driver.pull_chain([giver.peer for giver in givers], DATASET, 9000, wanted)
    assert tuple(wanted.blocks) == blocks
    assert set(wanted.givers) == {"a", "b", "c"}


async def test_one_range_and_the_size(autojump_clock: Any, town: Any) -> None:
    blocks = town.made_chain("x", 50)
    giver = await town.node("giver")
    giver.shelf.chains[DATASET] = blocks
    puller = await town.node("puller", connect=[giver])
    assert await puller.driver.chain_size(giver.peer, DATASET) == 50
    assert await puller.driver.chain_size(giver.peer, DatasetId.from_public_key(b"e" * 32)) == 0
    assert tuple(await puller.driver.fetch_blocks(giver.peer, DATASET, 10, 1800)) == blocks[10:13]
    assert tuple(await puller.driver.fetch_blocks(giver.peer, DATASET, 10, 5)) == blocks[10:11]
    assert tuple(await puller.driver.fetch_blocks(giver.peer, DATASET, 50, 5)) == ()
    with pytest.raises(PeerFault, match="does not have it"):
        await puller.driver.fetch_blocks(giver.peer, DatasetId.from_public_key(b"e" * 32), 0, 100)


async def test_a_silent_peer_delays_and_does_not_prevent(autojump_clock: Any, town: Any) -> None:
    blocks = town.made_chain("x", 4000)
    giver = await town.node("giver")
    giver.shelf.chains[DATASET] = blocks
    silent = town.bare("a-silent", chain=silence)
    puller = await town.node("puller", connect=[giver, silent])
    wanted = sink(town, blocks)
    started = trio.current_time()
    await puller.driver.pull_chain([silent.peer_id, giver.peer], DATASET, 4000, wanted)
    assert tuple(wanted.blocks) == blocks
    assert trio.current_time() - started < 5, "the part that all waited for was asked of the other"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_the_liar_is_found_and_nobody_else_accused(autojump_clock: Any, town: Any, seed: int) -> None:
    """Attack T-PEER-07: wrong bytes of one of several peers.

    Defence: the sender is found by asking again; no other peer is penalised.
    """
    blocks, lies = town.made_chain("x", 9000), town.made_chain("lie", 9000)
    names = ["a", "b", "c"]
    givers = [await town.node(name) for name in names]
    liar = givers[seed % 3]
    for giver in givers:
        giver.shelf.chains[DATASET] = lies if giver is liar else blocks
    puller = await town.node(f"puller{seed}", connect=givers)
    wanted = sink(town, blocks)
    await puller.driver.pull_chain([giver.peer for giver in givers], DATASET, 9000, wanted)
    assert tuple(wanted.blocks) == blocks
    for giver in givers:
        assert puller.score(giver) >= 0 or giver is liar


async def test_only_liars(autojump_clock: Any, town: Any) -> None:
    givers = [await town.node(name) for name in "ab"]
    for giver in givers:
        giver.shelf.chains[DATASET] = town.made_chain("lie", 500)
    puller = await town.node("puller", connect=givers)
    wanted = sink(town, town.made_chain("x", 500))
    with pytest.raises(Remote, match=r"no peer could give it: .*not the chain whose head was signed"):
        await puller.driver.pull_chain([giver.peer for giver in givers], DATASET, 500, wanted)
    assert wanted.blocks == []
    await trio.sleep(1)
    assert all(-5 < puller.score(giver) < 0 for giver in givers), "they may hold another history"
    with pytest.raises(Remote, match="all 2 peers that have it hold another history"):
        await puller.driver.pull_chain([giver.peer for giver in givers], DATASET, 500, wanted)


async def test_who_shows_to_have_it_and_gives_other_blocks_lies(autojump_clock: Any, town: Any) -> None:
    blocks, lies = town.made_chain("x", 500), town.made_chain("lie", 500)
    liar = await town.node("liar")
    liar.shelf.chains[DATASET] = blocks
    liar.shelf.blocks = lambda _dataset, start, _room: (blocks if start == 499 else lies)[start : start + 20]
    puller = await town.node("puller", connect=[liar])
    for most in (0, -9):
        with pytest.raises(Remote, match="not the chain whose head was signed"):
            await puller.driver.pull_chain([liar.peer], DATASET, 500, sink(town, blocks))
        await trio.sleep(1)
        assert most - 5 < puller.score(liar) < most, "the first time it may have turned in between"


async def test_who_follows_a_rewrite_while_it_is_asked_is_not_blamed(autojump_clock: Any, town: Any) -> None:
    """It gave blocks of the old history, and shows the new one when it is asked about them."""
    new, old = town.made_chain("new", 500), town.made_chain("old", 500)
    peer = await town.node("peer")
    peer.shelf.chains[DATASET] = new
    turned = []

    def blocks(_dataset: Any, start: int, _room: int) -> Any:
        turned.append(start == 499)
        return (new if any(turned) else old)[start : start + 20]

    peer.shelf.blocks = blocks
    puller = await town.node("puller", connect=[peer])
    with pytest.raises(Remote):
        await puller.driver.pull_chain([peer.peer], DATASET, 500, sink(town, new))
    await trio.sleep(1)
    assert puller.score(peer) > -5
    wanted = sink(town, new)
    await puller.driver.pull_chain([peer.peer], DATASET, 500, wanted)
    assert tuple(wanted.blocks) == new


@pytest.mark.slow
async def test_who_held_another_history_is_asked_again_once_it_follows(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-07: blocks of a superseded history, from a peer that has not switched yet.

    Defence: no penalty: wrong blocks count only against a peer that had shown to hold the right ones; the chain is
    requested from it again once it follows.

    Its owner rewrote the chain; one peer has turned, the other has not yet. Neither way round is anybody blamed.
    """
    old, new = town.made_chain("old", 500), town.made_chain("new", 600)
    slow, quick = await town.node("a-slow"), await town.node("quick")
    slow.shelf.chains[DATASET], quick.shelf.chains[DATASET] = old * 2, new
    puller = await town.node("puller", connect=[slow, quick])
    peers = [slow.peer, quick.peer]
    for _ in range(20):
        wanted = sink(town, new)
        await puller.driver.pull_chain(peers, DATASET, 600, wanted)
        assert tuple(wanted.blocks) == new
    await trio.sleep(1)
    assert puller.score(slow) > -5, "asked for once"
    late = sink(town, old)
    with pytest.raises(Remote):
        await puller.driver.pull_chain([quick.peer], DATASET, 500, late)
    await trio.sleep(1)
    assert puller.score(quick) > -5
    slow.shelf.chains[DATASET] = new
    wanted = sink(town, new)
    await puller.driver.pull_chain([slow.peer], DATASET, 600, wanted)
    assert set(wanted.givers) == {"a-slow"}


async def test_nobody_to_ask(autojump_clock: Any, town: Any) -> None:
    puller = await town.node("puller")
    with pytest.raises(Remote, match="no peer to ask"):
        await puller.driver.pull_chain([], DATASET, 5, sink(town, town.made_chain("x", 5)))
    with pytest.raises(PeerFault, match="not connected"):
        await puller.driver.pull_chain([PeerId("ghost")], DATASET, 5, sink(town, town.made_chain("x", 5)))


async def test_a_peer_that_lacks_the_end(autojump_clock: Any, town: Any) -> None:
    blocks = town.made_chain("x", 100)
    short, whole = await town.node("a-short"), await town.node("whole")
    short.shelf.chains[DATASET] = blocks[:60]
    whole.shelf.chains[DATASET] = blocks
    puller = await town.node("puller", connect=[short, whole])
    wanted = sink(town, blocks)
    await puller.driver.pull_chain([short.peer, whole.peer], DATASET, 100, wanted)
    assert tuple(wanted.blocks) == blocks
    alone = sink(town, blocks)
    with pytest.raises(PeerFault, match="no more than 60"):
        await puller.driver.pull_chain([short.peer], DATASET, 100, alone)
    assert len(alone.blocks) == 60, "the received bytes are kept"
    assert puller.score(short) == 0


async def test_an_object_is_resumed_and_comes_from_many(autojump_clock: Any, town: Any) -> None:
    givers = [await town.node(name) for name in "ab"]
    for giver in givers:
        giver.shelf.things[NAME] = BIG
    puller = await town.node("puller", connect=givers)
    part = town.Part(NAME, BIG[:1_234_567])
    await puller.driver.fetch_object([giver.peer for giver in givers], NAME, len(BIG), part)
    assert part.visible == BIG
    assert sum(giver.shelf.reads for giver in givers) == 4
    assert all(giver.shelf.reads for giver in givers)


@pytest.mark.slow
async def test_a_buffer_of_an_answer_that_was_sent_is_used_again(
    autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class Counted(bytearray):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            made.append(size)

    monkeypatch.setattr(serve, "bytearray", Counted, raising=False)
    giver = await town.node("giver")
    giver.shelf.things[NAME] = BIG
    puller = await town.node("puller", connect=[giver])
    for _ in range(4):
        part = town.Part(NAME)
        await puller.driver.fetch_object([giver.peer], NAME, len(BIG), part)
        assert part.visible == BIG
    assert len(made) <= 2 + 4, "two that are under way, and the small end of each"


@pytest.mark.slow
async def test_bad_bytes_begun_by_nobody_known_start_anew(autojump_clock: Any, town: Any) -> None:
    giver = await town.node("giver")
    giver.shelf.things[NAME] = BIG
    puller = await town.node("puller", connect=[giver])
    part = town.Part(NAME, b"?" * 1000)
    await puller.driver.fetch_object([giver.peer], NAME, len(BIG), part)
    assert part.visible == BIG
    assert puller.score(giver) == 0


@pytest.mark.slow
@pytest.mark.parametrize("liar", ["a", "b", "c"])
async def test_a_flipped_byte_is_laid_at_the_right_door(autojump_clock: Any, town: Any, liar: str) -> None:
    givers = {name: await town.node(name) for name in "abc"}
    for name, giver in givers.items():
        giver.shelf.things[NAME] = BIG.replace(b"\x01\x02", b"\x02\x02") if name == liar else BIG
    puller = await town.node("puller", connect=list(givers.values()))
    part = town.Part(NAME)
    await puller.driver.fetch_object([giver.peer for giver in givers.values()], NAME, len(BIG), part)
    assert part.visible == BIG
    for name, giver in givers.items():
        assert puller.score(giver) >= 0 or name == liar


SMALL = [f"slice {number}".encode() * (number % 60) for number in range(300)]
NAMES = [Multihash.sha3_256(data) for data in SMALL]


async def test_small_objects_come_many_in_one_answer(autojump_clock: Any, town: Any) -> None:
    giver = await town.node("giver")
    giver.shelf.things.update(zip(NAMES, SMALL, strict=True))
    puller = await town.node("puller", connect=[giver])
    pack = town.Pack(NAMES)
    await puller.driver.fetch_small([giver.peer], NAMES, pack)
    assert pack.here == SMALL
    assert giver.shelf.reads == 3


async def test_small_objects_that_one_lacks_are_asked_of_another(autojump_clock: Any, town: Any) -> None:
    """Who has half of them, and not the first, gives what it has; what is large is nobody's to pack."""
    givers = [await town.node(name) for name in "ab"]
    for place, giver in enumerate(givers):
        giver.shelf.things.update(
            (name, data)
            for number, (name, data) in enumerate(zip(NAMES, SMALL, strict=True))
            if number // 50 % 2 == place
        )
    puller = await town.node("puller", connect=givers)
    peers, pack = [giver.peer for giver in givers], town.Pack(NAMES)
    await puller.driver.fetch_small(peers, NAMES, pack)
    assert pack.here == SMALL
    assert [puller.score(giver) for giver in givers] == [0.0, 0.0]
    givers[0].shelf.things[NAME] = BIG
    wanted = [*NAMES[:3], NAME, *NAMES[4:]]
    some = town.Pack(wanted)
    with pytest.raises(PeerFault, match=r"small objects.*does not have it"):
        await puller.driver.fetch_small(peers, wanted, some)
    assert some.here == SMALL[:3], "what came stays"


async def test_a_small_object_that_is_another_accuses_who_gave_it(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-07: one false object in a pack of valid ones.

    Defence: the valid ones before it are kept, the rest is requested again, and the sender is penalised.
    """
    givers = [await town.node(name) for name in "ab"]
    for giver in givers:
        giver.shelf.things.update(zip(NAMES, SMALL, strict=True))
    givers[0].shelf.things[NAMES[200]] = b"?"
    puller = await town.node("puller", connect=givers)
    pack = town.Pack(NAMES)
    await puller.driver.fetch_small([giver.peer for giver in givers], NAMES, pack)
    assert pack.here == SMALL
    assert puller.score(givers[1]) >= 0


@pytest.mark.parametrize("asks", ["read", "some"])
async def test_an_answer_to_another_kind_of_question_is_a_violation(autojump_clock: Any, town: Any, asks: str) -> None:
    """Attack T-PEER-02: an answer of another kind than the question.

    Defence: the stream ends and the peer is penalised before the content is parsed.
    """

    async def confused(stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, MAX_REQUEST)
        while body := await framed.read():
            number = objects.decode_request(body).request
            pack = objects.encode_pack(objects.ObjectPack(request=number, objects=(b"x",)))
            part = objects.encode_bytes(objects.ObjectBytes(request=number, size=len(BIG), offset=0, data=b"x"))
            await framed.write(pack if asks == "read" else part)

    other = town.bare("other", object=confused)
    puller = await town.node("puller", connect=[other])
    driver, peers = puller.driver, [other.peer_id]
    wanted = driver.fetch_object(peers, NAME, len(BIG), town.Part(NAME))
    some = driver.fetch_small(peers, NAMES, town.Pack(NAMES))
    asked, other_one = (wanted, some) if asks == "read" else (some, wanted)
    other_one.close()
    with pytest.raises(PeerFault, match="answered with"):
        await asked
    assert puller.score(other) < 0


async def test_more_objects_than_were_asked_for_are_a_violation(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-07: more objects in an answer than were asked for.

    Defence: the stream ends and the peer is penalised.
    """

    async def generous(stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, MAX_REQUEST)
        while body := await framed.read():
            ask = objects.decode_request(body)
            await framed.write(objects.encode_pack(objects.ObjectPack(request=ask.request, objects=(b"x",) * 9)))

    other = town.bare("other", object=generous)
    puller = await town.node("puller", connect=[other])
    with pytest.raises(PeerFault, match="asked for 2 objects, got 9"):
        await puller.driver.fetch_small([other.peer_id], NAMES[:2], town.Pack(NAMES))
    assert puller.score(other) < 0


async def test_an_empty_object(autojump_clock: Any, town: Any) -> None:
    puller = await town.node("puller")
    part = town.Part(Multihash.sha3_256(b""))
    await puller.driver.fetch_object([], part.name, 0, part)
    assert part.visible == b""


async def test_a_full_disk_ends_the_transfer_as_itself(autojump_clock: Any, town: Any) -> None:
    giver = await town.node("giver")
    giver.shelf.things[NAME] = BIG
    puller = await town.node("puller", connect=[giver])
    part = town.Part(NAME)

    def full(data: bytes) -> None:
        raise Environment("no space left")

    part.write = full
    with pytest.raises(Environment, match="no space left"):
        await puller.driver.fetch_object([giver.peer], NAME, len(BIG), part)
    assert puller.score(giver) == 0


class Court:
    """Wants ``size`` units of which each answer brings one; ``at`` are those that were judged, in that order."""

    what = "a thing"

    def __init__(self, size: int) -> None:
        self.run = TransferRun(
            self, PartTransfer(0, size, TransferShape(most_units=1, most_bytes=1), Random(0)), STANDING, [Pace()]
        )
        self.at: list[int] = []
        self.accused: list[PeerId] = []
        self.may_judge = threading.Event()

    async def ask(self, ask: Ask) -> Arrived:
        return Arrived(peer=ask.peer, ask=ask.ask, payload=b"x", units=1, bytes=1, available=9)

    def judge(self, peer: PeerId, start: int, payloads: Any) -> None:
        self.may_judge.wait()
        self.at += range(start, start + len(payloads))
        self.look()

    def look(self) -> None: ...
    def finish(self) -> None: ...

    def resume_at(self) -> int:
        return 0

    def accuse(self, peer: PeerId, reason: str) -> None:
        self.accused.append(peer)


async def test_what_was_delivered_before_a_rejection_is_not_judged() -> None:
    court = Court(6)

    def look() -> None:
        if len(court.at) == 1:
            raise Invalid("bad", rule="test")

    court.look = look  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(court.run.run, [PeerId("a"), PeerId("b")])
        while len(court.run._court) + 1 < MAX_UNVERIFIED:
            await trio.lowlevel.checkpoint()
        court.may_judge.set()
    assert court.at == [0, *range(6)]
    (given,), _ = STANDING.gave.call_args
    assert sum(given.values()) == 6, "what was judged before the rejection earns nobody a place"
    assert len(court.accused) == 1


async def test_a_transfer_that_is_cut_off_leaves_no_judge_at_work() -> None:
    court = Court(9)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(court.run.run, [PeerId("a")])
            while len(court.run._court) + 1 < MAX_UNVERIFIED:
                await trio.lowlevel.checkpoint()
            court.look = scope_cancel(scope)  # type: ignore[method-assign]
            court.may_judge.set()
    assert len(court.at) <= MAX_UNVERIFIED
    for _ in range(3):
        await trio.lowlevel.checkpoint()  # what the judge said is heard by nobody


def scope_cancel(scope: trio.CancelScope) -> Any:
    """For the judge's thread: it goes on when the loop has cancelled."""
    return lambda: trio.from_thread.run_sync(scope.cancel)


async def test_the_size_of_an_object_is_asked_for_alone(autojump_clock: Any, town: Any) -> None:
    giver = await town.node("giver")
    giver.shelf.things[NAME] = BIG
    puller = await town.node("puller", connect=[giver])
    assert await puller.driver.object_size(giver.peer, NAME) == len(BIG)
    assert await puller.driver.object_size(giver.peer, Multihash.sha3_256(b"nobody has it")) is None
    assert giver.shelf.reads == 0


async def test_an_object_of_another_size_is_a_violation(autojump_clock: Any, town: Any) -> None:
    giver = await town.node("giver")
    giver.shelf.things[NAME] = BIG
    puller = await town.node("puller", connect=[giver])
    with pytest.raises(PeerFault, match="and not 10"):
        await puller.driver.fetch_object([giver.peer], NAME, 10, town.Part(NAME))
    assert puller.score(giver) < -10


@pytest.mark.parametrize(
    "speech",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\x05hello",
        b"\0\0\0\0",
        (MAX_REPLY + 1).to_bytes(4, "big") + bytes(99),
        b"\0\0\0\x09" + chains.encode_blocks(Blocks(request=0, size=9, start=0, blocks=()))[:9],
    ],
)
async def test_a_giver_that_speaks_garbage(autojump_clock: Any, town: Any, speech: bytes) -> None:
    async def babble(stream: Any, peer: PeerId) -> None:
        await stream.receive_some(1000)
        await stream.send_all(speech)

    blocks = town.made_chain("x", 3000)
    giver = await town.node("giver")
    giver.shelf.chains[DATASET] = blocks
    babbler = town.bare("a-babbler", chain=babble)
    puller = await town.node("puller", connect=[giver, babbler])
    wanted = sink(town, blocks)
    await puller.driver.pull_chain([babbler.peer_id, giver.peer], DATASET, 3000, wanted)
    assert tuple(wanted.blocks) == blocks
    await trio.testing.wait_all_tasks_blocked()
    assert puller.score(babbler) <= -19
    assert puller.score(giver) == 0


@pytest.mark.slow
async def test_peers_that_drip_delay_no_block_and_no_object(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-06: peers that answer slowly when asked for a block, an object or a pack, with new keys each time.

    Defence: peers with a valid record are asked first, the fastest before others; a peer without a record is tried in a
    quarter of transfers, until one of its subnet stalls; if no byte arrives other peers are asked after a tenth of a
    second (half a second if no peer is known), twice as many each time, up to 16.

    Twelve boast of a chain and give a byte now and then; new ones come for each head. One gives what was signed, the
    object that it names, and small ones in a pack.
    """

    async def drip(stream: Any, _peer: PeerId) -> None:
        with suppress(StreamBroken, trio.BrokenResourceError):
            await stream.send_all((1 << 20).to_bytes(4, "big"))
            while True:
                await stream.send_all(b"\x81")
                await trio.sleep(0.5)

    blocks = town.made_chain("x", 12)
    giver = await town.node("giver")
    giver.shelf.things.update(zip(NAMES, SMALL, strict=True))
    puller, took = await town.node("puller", connect=[giver]), list[float]()
    for size in range(1, len(blocks) + 1):
        giver.shelf.chains[DATASET] = blocks[:size]
        thing = bytes([size]) * 5000
        giver.shelf.things[name := Multihash.sha3_256(thing)] = thing
        dripping = [town.bare(f"{size}-drips{number}", chain=drip, object=drip) for number in range(12)]
        for each in dripping:
            await puller.driver.connect(each.address)
        peers = [*(each.peer_id for each in dripping), giver.peer]
        wanted, began = sink(town, blocks[:size]), trio.current_time()
        await puller.driver.pull_chain(peers, DATASET, size, wanted)
        await puller.driver.fetch_object(peers, name, len(thing), part := town.Part(name))
        await puller.driver.fetch_small(peers, NAMES, pack := town.Pack(NAMES))
        took.append(trio.current_time() - began)
        assert (tuple(wanted.blocks), bytes(part.data), pack.here) == (blocks[:size], thing, SMALL)
    assert took[0] < 4, "nobody is known yet"
    assert max(took[1:]) < 0.3


async def test_an_answer_nobody_asked_for(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-02: an unsolicited answer.

    Defence: the stream ends, a penalty.
    """

    async def wrong_number(stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, 256)
        ask = chains.decode_range(await framed.read() or b"")
        await framed.write(chains.encode_blocks(Blocks(request=ask.request + 77, size=1, start=0, blocks=())))

    other = town.bare("other", chain=wrong_number)
    puller = await town.node("puller", connect=[other])
    with pytest.raises(PeerFault, match="none of ours"):
        await puller.driver.chain_size(other.peer_id, DATASET)
    await trio.testing.wait_all_tasks_blocked()
    assert puller.score(other) <= -19


@pytest.mark.parametrize("alone", [True, False])
async def test_an_answer_a_byte_a_second_is_not_waited_for(autojump_clock: Any, town: Any, alone: bool) -> None:
    """Attack T-PEER-06: an answer a byte a second.

    Defence: a question has a time limit; a late answer is requested from another peer.
    """
    blocks = town.made_chain("x", 100)

    async def drip(stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, 256)
        ask = chains.decode_range(await framed.read() or b"")
        answer = chains.encode_blocks(Blocks(request=ask.request, size=100, start=0, blocks=blocks))
        with suppress(StreamBroken):  # it is given up
            for byte in frames.frame(answer):
                await stream.send_all(bytes([byte]))
                await trio.sleep(1)

    dripping = town.bare("a-dripping", chain=drip)
    giver = await town.node("giver")
    giver.shelf.chains[DATASET] = blocks
    puller = await town.node("puller", connect=[dripping, giver])
    wanted = sink(town, blocks)
    began = trio.current_time()
    if alone:
        with pytest.raises(PeerFault, match="no peer could give it"):
            await puller.driver.pull_chain([dripping.peer_id], DATASET, 100, wanted)
    else:
        await puller.driver.pull_chain([dripping.peer_id, giver.peer], DATASET, 100, wanted)
        assert tuple(wanted.blocks) == blocks
    assert trio.current_time() - began < 600, "the whole answer would take 60,000 s"


@pytest.mark.parametrize("alone", [True, False])
async def test_a_peer_that_changes_its_answer_is_found(autojump_clock: Any, town: Any, alone: bool) -> None:
    """Attack T-PEER-07: a peer that changes its answer.

    Defence: data that does not match is requested again, from others first, a bounded number of times.

    Each of its answers is of another of two histories. What does not fit is asked for anew, with an end.
    """
    histories = town.made_chain("x", 3000), town.made_chain("lie", 3000)
    asked = 0

    async def waver(stream: Any, peer: PeerId) -> None:
        nonlocal asked
        framed = FramedStream(stream, peer, 256)
        while body := await framed.read():
            ask, asked = chains.decode_range(body), asked + 1
            said = histories[asked % 2][ask.start : ask.start + min(ask.max_blocks, 100)]
            await framed.write(
                chains.encode_blocks(Blocks(request=ask.request, size=3000, start=ask.start, blocks=said))
            )

    wavering = town.bare("a-wavering", chain=waver)
    giver = await town.node("giver")
    giver.shelf.chains[DATASET] = histories[0]
    puller = await town.node("puller", connect=[wavering, giver])
    wanted = sink(town, histories[0])
    if alone:
        with pytest.raises(PeerFault, match="no peer could give it"):
            await puller.driver.pull_chain([wavering.peer_id], DATASET, 3000, wanted)
    else:
        await puller.driver.pull_chain([wavering.peer_id, giver.peer], DATASET, 3000, wanted)
        assert tuple(wanted.blocks) == histories[0]
    await trio.testing.wait_all_tasks_blocked()
    # With another giver it may be asked no more than three times, and nothing that was kept contradicts it.
    assert puller.score(wavering) < 0 or (asked <= 3 and not alone)
    assert puller.score(giver) >= 0
    assert asked < 300


async def test_who_stops_waiting_disturbs_nobody(autojump_clock: Any, town: Any) -> None:
    """Cancelled questions leave whole frames behind, and their late answers are dropped."""

    async def slow(stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, 256)
        while body := await framed.read():
            ask = chains.decode_range(body)
            await trio.sleep(5)
            await framed.write(
                chains.encode_blocks(Blocks(request=ask.request, size=ask.request + 1, start=ask.start, blocks=()))
            )

    other = town.bare("other", chain=slow)
    puller = await town.node("puller", connect=[other])
    for _ in range(3):
        with trio.move_on_after(1):
            await puller.driver.chain_size(other.peer_id, DATASET)
    assert await puller.driver.chain_size(other.peer_id, DATASET) == 4
    assert puller.score(other) == 0


async def test_a_question_has_an_end(autojump_clock: Any, town: Any) -> None:
    silent = town.bare("silent", chain=silence)
    puller = await town.node("puller", connect=[silent])
    with pytest.raises(PeerFault, match="no answer in 30 s"):
        await puller.driver.chain_size(silent.peer_id, DATASET)


async def test_a_lost_connection_is_dialled_again(autojump_clock: Any, town: Any) -> None:
    giver = await town.node("giver")
    giver.shelf.chains[DATASET] = town.made_chain("x", 3)
    puller = await town.node("puller", connect=[giver])
    await puller.host.disconnect(giver.peer)
    assert await puller.driver.chain_size(giver.peer, DATASET) == 3


async def test_an_object_protocol_reply_of_too_few_bytes(autojump_clock: Any, town: Any) -> None:
    async def stingy(stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, 256)
        while body := await framed.read():
            ask = objects.decode_request(body)
            answer = objects.ObjectBytes(request=ask.request, size=len(BIG), offset=ask.offset, data=b"one byte")
            await framed.write(objects.encode_bytes(answer))

    other = town.bare("other", object=stingy)
    puller = await town.node("puller", connect=[other])
    with pytest.raises(PeerFault, match="asked for 1048576 bytes"):
        await puller.driver.fetch_object([other.peer_id], NAME, len(BIG), town.Part(NAME))
    assert puller.score(other) <= -19


@pytest.mark.slow
async def test_what_is_taken_keeps_to_the_cap_and_nobody_seems_slow(autojump_clock: Any, town: Any) -> None:
    """Several objects at once share it; in virtual time the whole takes as long as the cap says, and no longer."""
    givers = [await town.node(name) for name in "ab"]
    for giver in givers:
        giver.shelf.things[NAME] = BIG
    rate = 200_000
    puller = await town.node("puller", connect=givers, line=Bandwidth(down=rate))
    began = trio.current_time()
    parts = [town.Part(NAME), town.Part(NAME)]
    async with trio.open_nursery() as nursery:
        for part in parts:
            nursery.start_soon(puller.driver.fetch_object, [giver.peer for giver in givers], NAME, len(BIG), part)
    assert [part.visible for part in parts] == [BIG, BIG]
    took = trio.current_time() - began
    least = (2 * len(BIG) - (PARTS_AHEAD + 1) * rate) / rate
    assert least <= took <= least + 10, "all but the last parts, judged together"
    assert [puller.score(giver) for giver in givers] == [0.0, 0.0]


@pytest.mark.slow
async def test_a_cap_of_ones_own_holds_under_that_of_the_node(autojump_clock: Any, town: Any) -> None:
    giver, rate = await town.node("giver"), 100_000
    giver.shelf.things[NAME] = BIG
    puller, took = await town.node("puller", connect=[giver], line=Bandwidth(down=10 * rate)), {}

    async def fetch(name: str, pace: Pace | None) -> None:
        part = town.Part(NAME)
        await puller.driver.fetch_object([giver.peer], NAME, len(BIG), part, pace)
        assert part.visible == BIG
        took[name] = trio.current_time() - began

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, "capped", Pace(rate))
        nursery.start_soon(fetch, "free", None)
    assert took["capped"] >= (len(BIG) - (PARTS_AHEAD + 1) * rate) / rate, "all but the last parts, judged together"
    assert took["free"] < took["capped"] / 3
    assert puller.score(giver) == 0.0


@pytest.mark.slow
async def test_a_cap_that_changes_counts_from_then_on(autojump_clock: Any, town: Any) -> None:
    giver, line = await town.node("giver"), Bandwidth(down=1000)
    giver.shelf.things[NAME] = BIG
    puller, part = await town.node("puller", connect=[giver], line=line), town.Part(NAME)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(puller.driver.fetch_object, [giver.peer], NAME, len(BIG), part)
        await trio.sleep(10)
        assert part.visible is None
        line.cap(down=len(BIG), up=0)
    assert part.visible == BIG
    assert trio.current_time() - began < len(BIG) / 1000 / 2


@pytest.mark.slow
async def test_what_is_given_keeps_to_the_cap_and_more_is_told_to_ask_elsewhere(autojump_clock: Any, town: Any) -> None:
    rate = 300_000
    giver = await town.node("giver", line=Bandwidth(up=rate))
    giver.shelf.things[NAME] = BIG
    pullers = [await town.node(name, connect=[giver]) for name in "abc"]
    began = trio.current_time()
    parts = [town.Part(NAME) for _ in pullers]
    async with trio.open_nursery() as nursery:
        for puller, part in zip(pullers, parts, strict=True):
            nursery.start_soon(patient, puller, giver, part)
    assert [part.visible for part in parts] == [BIG] * 3
    took = trio.current_time() - began
    assert took >= (3 * len(BIG) - rate) / rate - 4
    assert all(puller.score(giver) < 1 for puller in pullers)


async def patient(puller: Any, giver: Any, part: Any) -> None:
    """Tries until it is here, as a mirror does."""
    while part.visible is None:
        try:
            await puller.driver.fetch_object([giver.peer], NAME, len(BIG), part)
        except Remote:
            assert trio.current_time() < 600, "it starves"
            await trio.sleep(5)


# What nodes tell each other of objects that they have, and whom a holder names to those who ask.

SHARED = DatasetId.from_public_key(b"s" * 32)
ASK = PartsAsk(dataset=SHARED, tip=Tip(4, bytes(32)), start=0, count=4, have=0b1000)
PARTS = HeldParts(has=0b1111, offers=0b0011, given=7)


def holder(node: Any, parts: HeldParts | None = PARTS, *, is_public: bool = True) -> list[PartsAsk]:
    """Has a node tell these; returns what it is asked."""
    asked: list[PartsAsk] = []

    def told(ask: PartsAsk) -> HeldParts | None:
        asked.append(ask)
        return parts

    node.shelf.parts = told
    node.shelf.size = lambda _dataset: int(is_public)
    return asked


async def test_a_question_and_its_answer(town: Any) -> None:
    giver = await town.node("giver")
    asked = holder(giver)
    asker = await town.node("asker", connect=[giver])
    assert await asker.driver.ask_parts(giver.peer, ASK) == PARTS
    assert asked == [ASK]
    holder(giver, None)
    assert await asker.driver.ask_parts(giver.peer, ASK) is None
    assert (asker.score(giver), giver.score(asker)) == (0, 0)


PIECED = Multihash.sha3_256(b"object")
PIECES = PiecesAsk(dataset=SHARED, name=PIECED, size=9 << 20, root=bytes(32), have=1)


async def test_pieces_and_their_list_are_asked_for(town: Any) -> None:
    giver = await town.node("giver")
    asked: list[Any] = []
    listed = bytes(32 * 9), bytes(64)

    def pieces(ask: PiecesAsk) -> HeldParts:
        asked.append(ask)
        return PARTS

    giver.shelf.pieces = pieces
    giver.shelf.piece_list = lambda *ask: asked.append(ask) or listed
    asker = await town.node("asker", connect=[giver])
    assert await asker.driver.ask_pieces(giver.peer, PIECES) == PARTS
    assert await asker.driver.piece_list(giver.peer, SHARED, PIECED, 9 << 20) == listed
    assert asked == [PIECES, (SHARED, PIECED, 9 << 20)]
    giver.shelf.pieces = giver.shelf.piece_list = lambda *_: None
    assert await asker.driver.ask_pieces(giver.peer, PIECES) is None
    assert await asker.driver.piece_list(giver.peer, SHARED, PIECED, 9 << 20) is None
    assert (asker.score(giver), giver.score(asker)) == (0, 0)


async def test_a_list_of_another_length_is_penalised(town: Any) -> None:
    giver = await town.node("giver")
    giver.shelf.piece_list = lambda *_: (bytes(32 * 8), bytes(64))
    asker = await town.node("asker", connect=[giver])
    with pytest.raises(Misbehaviour):
        await asker.driver.piece_list(giver.peer, SHARED, PIECED, 9 << 20)
    assert asker.score(giver) < 0


async def test_an_older_peer_has_no_such_protocol_and_no_blame(town: Any) -> None:
    giver = await town.node("giver")
    del giver.host.handlers[SWARM_PROTOCOL]
    asker = await town.node("asker", connect=[giver])
    with pytest.raises(ProtocolUnsupported):
        await asker.driver.ask_parts(giver.peer, ASK)
    assert asker.score(giver) == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_public", [True, False])
async def test_a_holder_names_those_who_ask_and_they_meet(town: Any, is_public: bool) -> None:
    """Of what is shared with some alone, nobody is named: the owner's friends need not know of each other."""
    giver = await town.known(1, degree=0)
    holder(giver, is_public=is_public)
    one, other = [await town.known(number, connect=[giver], degree=0) for number in (2, 3)]
    await trio.sleep(1)  # virtual: until all have told each other where they are
    await one.driver.ask_parts(giver.peer, ASK)
    await other.driver.ask_parts(giver.peer, ASK)
    await trio.sleep(1)
    assert other.host.is_connected(one.peer) == is_public


@pytest.mark.slow
async def test_who_names_many_brings_few_dials(town: Any) -> None:
    """Attack T-REACH-01: a holder that names many peers to have this node dial them.

    Defence: presences must be signed by the peers that they name; 16 for a dataset are dialled, then one a minute, only
    at addresses where peers may be.

    Of presences that are well signed: others are refused, and whoever names them is penalised.
    """
    from chain.statements.keys import SigningKey

    def made(number: int) -> bytes:
        key = SigningKey(number.to_bytes(32, "big"))
        address = f"/ip4/10.1.{number // 250}.{number % 250 + 1}/tcp/4150"
        said = Presence(key=key.public, issued=1_700_000_000_000, lifetime=3600, addresses=(address,))
        return presence.seal(said, "test", key)

    names = [made(number) for number in range(100, 180)]

    async def answer(stream: Any, _peer: Any) -> None:
        await stream.receive_some(1000)
        body = encode_told(PartsTold(PARTS, tuple(names[:8])), ASK.count)
        del names[:8]
        await stream.send_all(len(body).to_bytes(4, "big") + body)

    liar = town.bare("liar")
    liar.set_handler(SWARM_PROTOCOL, answer)
    asker = await town.node("asker", connect=[liar], degree=0)
    while names:
        await asker.driver.ask_parts(liar.peer_id, ASK)
    await trio.sleep(1)
    assert len(asker.host.dials) <= MEET_RATE.burst + 2


@pytest.mark.parametrize("body", [b"\x81", b"\x81" + bytes(10), b"garbage"])
async def test_garbage_is_penalised(town: Any, body: bytes) -> None:
    async def answer(stream: Any, _peer: Any) -> None:
        await stream.receive_some(1000)
        await stream.send_all(len(body).to_bytes(4, "big") + body)

    liar = town.bare("liar")
    liar.set_handler(SWARM_PROTOCOL, answer)
    asker = await town.node("asker", connect=[liar])
    with pytest.raises(Misbehaviour):
        await asker.driver.ask_parts(liar.peer_id, ASK)
    assert asker.score(liar) < 0


async def test_a_peer_that_says_nothing_is_left(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarms, "PATIENCE", 0.05)

    async def silent(_stream: Any, _peer: Any) -> None:
        await trio.sleep_forever()

    mute = town.bare("mute")
    mute.set_handler(SWARM_PROTOCOL, silent)
    asker = await town.node("asker", connect=[mute])
    with pytest.raises(PeerFault, match=r"0\.05 s"):
        await asker.driver.ask_parts(mute.peer_id, ASK)
