"""Rounds, and what they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha3_256
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Remote
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.tree import Tree
from odfd.network.evidence import MANIFEST_SECONDS, EvidenceFetcher
from p2p.budget.buckets import Rate
from p2p.driver import framing, statements
from p2p.driver.framing import FramedStream
from p2p.driver.mesh import QUICK, SLOW, RoundSlots
from p2p.driver.statements import (
    ANSWER_PATIENCE,
    PROOF_SECONDS,
    PROVER_SECONDS,
    PROVERS,
    ROUND_SECONDS,
    WIDE,
    RoundScope,
)
from p2p.errors import PeerFault, StreamBroken, TooSlow
from p2p.ports import Judgement, PeerId, StatementRef, Topic, TreeRoot
from p2p.wire import chains, trust
from p2p.wire.limits import MAX_DATASETS, MAX_REPLY, MAX_TRUST_REPLY

# Rounds with peers end, and one who drips or holds what it was sent delays nobody else.

DATASET = DatasetId.from_public_key(b"d" * 32)


def numbers() -> Iterator[Multihash]:
    return (Multihash.from_digest(0x16, number.to_bytes(32, "big")) for number in range(1, 1 << 30))


async def drip(stream: Any, peer: PeerId, *, wait: float = ANSWER_PATIENCE - 1, size: int = 0) -> None:
    """Each answer is right, and comes when the asker is about to leave: a listing with no end."""
    framed, names = FramedStream(stream, peer, MAX_TRUST_REPLY), numbers()
    try:
        while body := await framed.read():
            await trio.sleep(wait)
            match trust.decode_ask(body):
                case trust.SumAsk():
                    await framed.write(trust.encode(trust.Sums({"64": "0" * 64})))
                case trust.ListAsk():
                    page = tuple(next(names) for _ in range(256))
                    await framed.write(trust.encode(trust.Listing({str(DATASET): page}, more=page[-1])))
                case trust.GetAsk():
                    said = tuple(trust.TopicEnvelope(Topic.HEADS, b"ok" + bytes(size)) for _ in range(8 if size else 0))
                    await framed.write(trust.encode(trust.Statements(said, done=8)))
    except PeerFault:
        return


async def test_a_round_with_one_who_drips_ends(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-06: an anti-entropy round whose answers each arrive just in time, without end.

    Defence: 120 s and 32 MiB a round; a slow round runs concurrently with others.
    """
    slow = town.bare("slow", trust=drip)
    node = await town.node("node", entropy_interval=1e9)
    await node.driver.connect(slow.address)
    with pytest.raises(TooSlow, match="nothing new in 120 s"), trio.fail_after(ROUND_SECONDS + 1):
        await node.driver.pull_statements(slow.peer_id)


async def test_a_round_has_so_many_bytes(autojump_clock: Any, town: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(statements, "ROUND_BYTES", 1 << 20)
    told = 0

    async def much(stream: Any, peer: PeerId) -> None:
        nonlocal told
        count = stream.send_all

        async def counted(data: bytes) -> None:
            nonlocal told
            told += len(data)
            await count(data)

        stream.send_all = counted
        await drip(stream, peer, wait=0, size=60_000)

    loud = town.bare("loud", trust=much)
    node = await town.node("node", entropy_interval=1e9)
    await node.driver.connect(loud.address)
    await trio.testing.wait_all_tasks_blocked()
    told = 0
    assert await node.driver.pull_statements(loud.peer_id) == 0
    assert 1 << 20 < told < 3 << 20, "no fault: it is asked for the rest next time"


async def test_those_who_drip_delay_no_others_meeting(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-06: many peers that drip, so that rounds with others do not take place.

    Defence: a round holds its slot for five seconds; a new round ends the oldest slow one.

    Twelve of them come first, and then an honest peer with news.
    """
    node = await town.node("node", entropy_interval=1e9)
    for number in range(12):
        town.fabric.join(town.bare(f"slow{number}", trust=drip), node.host)
    await trio.sleep(1)
    honest = await town.node("honest", entropy_interval=1e9)
    honest.board.judge(Topic.HEADS, b"ok news", honest.peer)
    await honest.driver.connect(node.host.address)
    await trio.sleep(30)
    assert node.board.held, "it has heard of them"


@pytest.mark.slow
async def test_a_round_begins_in_its_time_whoever_drips(autojump_clock: Any, town: Any) -> None:
    honest = await town.node("honest", entropy_interval=1e9)
    node = await town.node("node", connect=[honest], entropy_interval=60.0, entropy_peers=3)
    await trio.testing.wait_all_tasks_blocked()
    town.fabric.join(town.bare("slow", trust=drip), node.host)
    for news in range(1, 6):
        honest.board.judge(Topic.HEADS, b"ok %d" % news, honest.peer)
        await trio.sleep(80)
        assert len(node.board.held) == news


async def test_so_many_slow_rounds_go_on_and_the_oldest_ends_for_one_more(autojump_clock: Any, nursery: Any) -> None:
    slots, under_way = RoundSlots(), list[int]()

    async def never(number: int) -> None:
        under_way.append(number)
        try:
            await trio.sleep_forever()
        finally:
            under_way.remove(number)

    for number in range(QUICK + SLOW + 10):
        nursery.start_soon(slots.attend, PeerId(f"p{number}"), never, number)
    await trio.sleep(1)
    assert len(under_way) == QUICK
    first = set(under_way)
    for number in first:
        nursery.start_soon(slots.attend, PeerId(f"p{number}"), never, number)
    await trio.sleep(1000)
    assert len(under_way) == len(set(under_way)) == SLOW
    assert not first & set(under_way)


@pytest.mark.slow
async def test_one_proof_is_asked_of_some_side_by_side(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-06: peers that answer no request for a proof, or slowly, before one that would.

    Defence: four at a time, and a further one for each that has not answered in two seconds; a minute in all.

    Three who say nothing stand before the one who proves, or thirty, half of which drip; all of them have an end.
    """

    async def silent(stream: Any, peer: PeerId) -> None:
        await trio.sleep_forever()

    async def dripping(stream: Any, peer: PeerId) -> None:
        with suppress(StreamBroken, trio.BrokenResourceError):
            await stream.send_all((1 << 10).to_bytes(4, "big"))
            while True:
                await stream.send_all(b"{")
                await trio.sleep(0.5)

    chain = town.made_chain("c", 10)
    mute = [town.bare(f"mute{number}", trust=(silent, dripping)[number % 2]) for number in range(30)]
    giver = await town.node("giver")
    giver.shelf.chains[DATASET] = chain
    node = await town.node("node", connect=[*mute, giver], entropy_interval=1e9)
    await trio.sleep(2000)
    heads = [TreeRoot(size, town_root(chain, size)) for size in (4, 10)]
    with trio.fail_after(1):
        assert await node.driver.prove_prefix([*(one.peer_id for one in mute[:3]), giver.peer], DATASET, *heads)
    with trio.fail_after(30 / PROVERS * PROVER_SECONDS + 1):
        assert await node.driver.prove_prefix([*(one.peer_id for one in mute), giver.peer], DATASET, *heads)
    with trio.fail_after(PROOF_SECONDS + 1), pytest.raises(Remote, match="no peer proves"):
        await node.driver.prove_prefix([one.peer_id for one in mute], DATASET, *heads)


def town_root(chain: tuple[bytes, ...], size: int) -> bytes:
    return Tree(lambda start, stop: [sha3_256(raw).digest() for raw in chain[start:stop]]).root(size)


async def test_one_block_at_a_time_is_no_transfer(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-06: a transfer of one block at a time, each in time.

    Defence: a peer that sends less than 64 KiB in a minute of waiting is left.

    Each answer in time, with one block of six hundred bytes: a chain of a thousand would take four hours.
    """
    blocks = town.made_chain("x", 1000)

    async def one_by_one(stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, 256)
        try:
            while body := await framed.read():
                ask = chains.decode_range(body)
                await trio.sleep(14)
                said = blocks[ask.start : ask.start + min(1, ask.max_blocks)] if ask.max_bytes else ()
                whole = chains.Blocks(request=ask.request, size=1000, start=ask.start, blocks=said)
                await framed.write(chains.encode_blocks(whole))
        except PeerFault:
            return

    slow = town.bare("slow", chain=one_by_one)
    node = await town.node("node", connect=[slow])
    with trio.fail_after(600), pytest.raises(PeerFault, match="less than 65,536 bytes in 60 s"):
        await node.driver.pull_chain([slow.peer_id], DATASET, 1000, town.ChainBook(blocks))


async def test_an_answer_that_never_ends_is_not_kept_for_ever(autojump_clock: Any, town: Any) -> None:
    """Its asker has left; the stream and the part of an answer go too."""
    streams = []

    async def begin(stream: Any, peer: PeerId) -> None:
        streams.append(stream)
        await FramedStream(stream, peer, 256).read()
        await stream.send_all((MAX_REPLY).to_bytes(4, "big") + bytes(1 << 20))
        try:
            while True:
                await trio.sleep(10)
                await stream.send_all(b".")
        except PeerFault:
            return

    slow = town.bare("slow", chain=begin)
    node = await town.node("node", connect=[slow])
    with pytest.raises(PeerFault):
        await node.driver.chain_size(slow.peer_id, DATASET)
    await trio.sleep(60)
    assert streams[0].was_reset or streams[0].closed
    assert node.driver._standing._unfinished.coming.total == 0


@pytest.mark.slow
async def test_what_all_leave_unfinished_is_bounded(autojump_clock: Any, town: Any, monkeypatch: Any) -> None:
    """Attack T-PEER-04: answers of 16 MiB that forty peers begin and never end.

    Defence: 128 MiB of unfinished frames of all; the largest of the subnet with most is dropped; an answer due for a
    minute ends its stream.

    Forty peers begin an answer of 16 MiB each; an honest one of elsewhere is served all the same.
    """
    monkeypatch.setattr(framing, "MOST", 8 << 20)

    async def begin(stream: Any, peer: PeerId) -> None:
        await FramedStream(stream, peer, 256).read()
        try:
            await stream.send_all((MAX_REPLY).to_bytes(4, "big") + bytes(1 << 20))
            await trio.sleep_forever()
        except PeerFault:
            return

    liars = [town.bare(f"liar{number}", chain=begin) for number in range(40)]
    honest = await town.node("honest")
    honest.shelf.chains[DATASET] = town.made_chain("c", 3)
    node = await town.node("node", connect=[*liars, honest])
    most = 0

    async def ask(peer: PeerId) -> None:
        nonlocal most
        try:
            assert await node.driver.chain_size(peer, DATASET) == 3
        except PeerFault:
            assert peer != honest.peer
        most = max(most, node.driver._standing._unfinished.coming.total)

    async with trio.open_nursery() as nursery:
        for one in liars:
            nursery.start_soon(ask, one.peer_id)
        await trio.sleep(1)
        nursery.start_soon(ask, honest.peer)
    assert 0 < most <= 10 << 20


async def test_a_manifest_of_evidence_is_not_waited_for_from_one(autojump_clock: Any, tmp_path: Path) -> None:
    class Peers:
        asked = 0

        async def fetch_object(self, *_: object) -> None:
            self.asked += 1
            await trio.sleep_forever()

    peers: Any = Peers()
    fetcher = EvidenceFetcher(peers, None, tmp_path, lambda: 0)  # type: ignore[arg-type]  # only peers are asked
    holders = [(PeerId(f"p{number}"), 9) for number in range(3)]
    with trio.fail_after(3 * MANIFEST_SECONDS + 1), pytest.raises(Remote, match="no manifest in 30 s"):
        await fetcher._manifest(Multihash.sha3_256(b"x"), holders, tmp_path)
    assert peers.asked == 3


async def test_who_held_another_history_delays_no_transfer(autojump_clock: Any, town: Any) -> None:
    """It is asked whether it follows by now, and says nothing for half a minute."""

    async def silent(stream: Any, peer: PeerId) -> None:
        await trio.sleep_forever()

    blocks = town.made_chain("x", 10)
    mute, giver = town.bare("mute", chain=silent), await town.node("giver")
    giver.shelf.chains[DATASET] = blocks
    node = await town.node("node", connect=[mute, giver])
    node.driver._histories._elsewhere[DATASET, mute.peer_id] = None
    with trio.fail_after(6):
        await node.driver.pull_chain([mute.peer_id, giver.peer], DATASET, 10, town.ChainBook(blocks))


# Rounds of anti-entropy go over what is wanted here, once what is wanted by nobody has cost enough.

WANTED, OTHER = DatasetId.from_public_key(b"A" * 32), DatasetId.from_public_key(b"B" * 32)


def spend(node: Any, but: int = 0) -> None:
    """As after hearing all that a large network says, but so many bytes."""
    node.driver._statements._scope.cost(int(WIDE.burst) - but, trio.current_time())


def said(node: Any, *envelopes: bytes) -> None:
    for envelope in envelopes:
        assert node.board.judge(Topic.HEADS, envelope, node.peer) is Judgement.ACCEPT


def held(node: Any) -> set[bytes]:
    return {envelope for _, envelope, _ in node.board.held.values()}


@pytest.mark.slow
async def test_rounds_bring_what_is_wanted_and_no_more(
    autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "WIDE", Rate(per_second=WIDE.burst / 600, burst=WIDE.burst))
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    b.board.wanted.add(WANTED)
    spend(b)
    said(a, b"okA lost by gossip", b"okB lost too")
    await trio.sleep(80)
    assert held(b) == {b"okA lost by gossip"}
    await trio.sleep(300)
    assert held(b) == held(a), "there is room for what others want, in time"


async def test_a_newcomer_is_met_with_what_it_wants(autojump_clock: Any, town: Any) -> None:
    a, b = await town.node("a"), await town.node("b")
    said(a, b"okA one", b"okB two")
    b.board.wanted.add(WANTED)
    spend(b)
    await b.driver.connect("/memory/a")
    await trio.sleep(5)
    assert held(b) == {b"okA one"}


async def test_who_asks_for_all_hears_all(autojump_clock: Any, town: Any) -> None:
    """A person, or a journal that is put together again, waits for it."""
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    spend(b)
    said(a, b"okA one", b"okB two")
    assert await b.driver.pull_statements(a.peer) == 2


async def test_what_one_round_fetched_is_there_when_another_one_ends(
    autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that began again without it would sign it a second time."""
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    said(a, b"okA one")
    judge, ended = b.driver._statements._judge, list[tuple[str, set[bytes]]]()

    async def slowly(*given: Any) -> Any:
        await trio.sleep(10)
        return await judge(*given)

    async def pull(name: str) -> None:
        await b.driver.pull_statements(a.peer)
        ended.append((name, held(b)))

    monkeypatch.setattr(b.driver._statements, "_judge", slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pull, "first")
        await trio.sleep(5)
        nursery.start_soon(pull, "second")
    assert ended == [("first", {b"okA one"}), ("second", {b"okA one"})]


async def test_a_node_that_wants_nothing_asks_nothing(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    said(a, b"okB of no interest")
    spend(b)
    assert await b.driver._statements.run_round(a.peer) == 0
    assert held(b) == set()


class Throng:
    """A peer in a large network: it keeps 4,096 statements nobody here wants, each time others. Counts its bytes."""

    listed = 4096

    def __init__(self) -> None:
        self.given = self.rounds = self.directed = 0

    def tell(self, ask: trust.TrustAsk) -> trust.TrustTell:
        if isinstance(ask, trust.SumAsk):
            self.rounds += 1
            return trust.Sums({f"{n:02x}": f"{self.rounds:064d}" for n in range(256)})
        if isinstance(ask, trust.GetAsk):
            return trust.Statements((), done=len(ask.sids))
        assert isinstance(ask, trust.ListAsk)
        if ask.datasets:
            self.directed += 1
            return trust.page([], more=False)
        first = self.rounds << 12
        refs = [
            StatementRef(Multihash.from_digest(0x16, (first + n).to_bytes(32, "big")), OTHER)
            for n in range(self.listed)
        ]
        return trust.page(refs, more=False)

    async def serve(self, stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, MAX_TRUST_REPLY)
        while body := await framed.read():
            answer = trust.encode(self.tell(trust.decode_ask(body)))
            self.given += len(answer)
            await framed.write(answer)


@pytest.mark.slow
async def test_what_nobody_wants_costs_so_much_however_many_tell_it(autojump_clock: Any, town: Any) -> None:
    """Attack T-HEAD-08: statements without end on datasets of no interest, in rounds with any number of peers.

    Defence: 8 MiB and 64 B/s of all peers; then rounds cover only ids of interest.
    """
    node = await town.node("node")
    node.board.wanted.add(WANTED)
    throng = [Throng() for _ in range(3)]
    for number, peer in enumerate(throng):
        town.bare(f"t{number}", trust=peer.serve)
        await node.driver.connect(f"/memory/t{number}")
    await trio.sleep(1800)
    assert sum(peer.given for peer in throng) < WIDE.burst + 1800 * WIDE.per_second + 4 * MAX_TRUST_REPLY
    assert all(peer.directed > 10 for peer in throng), "each is asked for what is wanted meanwhile"


async def test_sums_cost_nothing(autojump_clock: Any, town: Any) -> None:
    """Where all keep the same, rounds are wide for ever, however many datasets there are."""
    node = await town.node("node")
    await trio.testing.wait_all_tasks_blocked()
    spend(node, but=1000)
    throng = Throng()
    throng.listed = 0
    town.bare("t", trust=throng.serve)
    await node.driver.connect("/memory/t")
    await trio.sleep(5)
    assert throng.given > len(trust.encode(throng.tell(trust.SumAsk()))) - 1
    assert node.driver._statements._scope.is_wide(trio.current_time())


def test_what_is_spent_rests_until_half_of_it_is_back() -> None:
    scope = RoundScope()
    assert scope.is_wide(0)
    scope.cost(int(WIDE.burst), 0)
    half = WIDE.burst / 2 / WIDE.per_second
    assert [scope.is_wide(at) for at in (0, 60, half - 1, half, half + 1)] == [False, False, False, True, True]


@given(st.sets(st.integers(0, 1 << 30), max_size=4 * MAX_DATASETS), st.integers(0, 6))
def test_prop_all_that_is_wanted_has_its_turn(numbers: set[int], before: int) -> None:
    wanted = [DatasetId.from_public_key(number.to_bytes(32, "big")) for number in numbers]
    scope = RoundScope()
    for _ in range(before):
        scope.turn([*wanted[::2], OTHER])
    turns = [scope.turn(wanted) for _ in range(-(-len(wanted) // MAX_DATASETS))]
    assert {each for turn in turns for each in turn} == set(wanted)
    assert all(len(turn) <= MAX_DATASETS for turn in turns)
    assert len(turns) < 1 or len(turns[0]) == min(len(wanted), MAX_DATASETS)
