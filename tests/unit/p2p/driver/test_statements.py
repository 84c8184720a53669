"""Statements and proofs among peers."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Invalid, Remote
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.tree import Frontier, root_from_inclusion
from p2p.driver.framing import FramedStream
from p2p.driver.statements import ANSWER_PATIENCE, ASK_RATE, MAX_QUEUE, OF_NETWORK, USELESS, KnownAnswers, RoundPeer
from p2p.errors import PeerFault
from p2p.ports import GossipVerdict, Judgement, PeerId, StatementRef, Tip, Topic, TreeRoot
from p2p.wire import trust
from p2p.wire.frames import frame
from p2p.wire.limits import MAX_ENVELOPE, MAX_TRUST_REPLY
from p2p.wire.trust import ProveAsk

# Gossip and anti-entropy between real drivers; dialling; the peer book in the driver.

HEADS = "/odf/1/test/heads"


def put(node: Any, *envelopes: bytes) -> None:
    for envelope in envelopes:
        assert node.board.judge(Topic.HEADS, envelope, node.peer) is Judgement.ACCEPT
    node.board.judged.clear()


def held(node: Any) -> set[bytes]:
    return {envelope for _, envelope, _ in node.board.held.values()}


async def test_what_is_announced_spreads(autojump_clock: Any, town: Any) -> None:
    """a - b - c: c hears from b what a said, once."""
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    c = await town.node("c", connect=[b])
    await trio.testing.wait_all_tasks_blocked()
    await a.driver.announce(Topic.ATTEST, b"ok it is so")
    await trio.testing.wait_all_tasks_blocked()
    assert c.board.judged == [(Topic.ATTEST, b"ok it is so", "b")]
    await a.driver.announce(Topic.ATTEST, b"ok it is so")
    await trio.testing.wait_all_tasks_blocked()
    assert len(b.board.judged) == len(c.board.judged) == 1


@pytest.mark.slow
async def test_a_flood_keeps_no_honest_peer_waiting(
    autojump_clock: Any, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-HEAD-08: keys that fill the queue of statements, so that those of others wait or are dropped.

    Defence: a lane for each sender, served in turn by subnets, then by senders; the longest lane is shortened first.

    Three keys fill the queue while one statement takes long; an honest peer's word is the next but three.
    """
    node = await town.node("node")
    asked: list[PeerId] = []

    async def slow(work: Any, *args: Any, **_: Any) -> Any:
        if work == node.board.judge:
            asked.append(args[2])
            await trio.sleep(0.1)
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", slow)
    hear = node.host.validators[HEADS]
    said: list[GossipVerdict] = []
    async with trio.open_nursery() as nursery:
        for number in range(400):
            for key in ("s1", "s2", "s3"):
                nursery.start_soon(hear, PeerId(key), b"ok %s %d" % (key.encode(), number))
        await trio.testing.wait_all_tasks_blocked(0.01)

        async def honest() -> None:
            said.append(await hear(PeerId("honest"), b"ok so it is"))
            nursery.cancel_scope.cancel()

        nursery.start_soon(honest)
    assert [each.judgement for each in said] == [Judgement.ACCEPT], "a full queue has room for who sends little"
    assert asked.index(PeerId("honest")) <= 5
    assert node.driver._statements.dropped == 1200 - MAX_QUEUE - 1 + 1
    assert not node.driver._statements._turns._is_busy, "who is cancelled leaves its turn"
    assert (await hear(PeerId("honest"), b"ok and so on")).judgement is Judgement.ACCEPT


async def test_bad_statements_stop_and_cost(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    c = await town.node("c", connect=[b])
    await a.host.publish(HEADS, b"bad")
    await trio.testing.wait_all_tasks_blocked()
    assert b.score(a) == -10
    assert c.board.judged == []
    assert c.score(b) == 0


async def test_oversized_gossip_is_not_even_judged(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    assert await b.host.validators[HEADS](a.peer, b"ok" * MAX_ENVELOPE) == GossipVerdict(Judgement.REJECT)
    assert await b.host.validators[HEADS](a.peer, b"") == GossipVerdict(Judgement.REJECT)
    assert b.board.judged == []
    assert b.score(a) == pytest.approx(-40)
    with pytest.raises(Invalid, match="98305 bytes"):
        await a.driver.announce(Topic.HEADS, bytes(MAX_ENVELOPE + 1))


@pytest.mark.slow
async def test_a_gossip_flood_is_cut_off(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-05: a gossip flood.

    Defence: 50 messages a second of one peer are processed, the rest is dropped and counted; each is charged to its
    sender.

    What is over the limit is dropped. Nobody is to blame: it may pass on what many others said.
    """
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    for number in range(10_000):
        await b.host.validators[HEADS](a.peer, b"ok %d" % number)
    assert 500 <= len(b.board.judged) <= 510
    assert b.driver._statements.dropped >= 9_400
    assert b.score(a) == 0


@pytest.mark.slow
async def test_an_honest_node_asks_no_faster_than_others_allow(autojump_clock: Any, town: Any) -> None:
    """Round after round without a pause: it waits, and hears of everything."""
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    begun, asked = trio.current_time(), 0
    for number in range(400):
        put(a, b"ok" + bytes([number % 256]) + b"%d" % number)
        await b.driver.pull_statements(a.peer)
        asked += 3
    assert held(b) == held(a)
    assert a.score(b) == 0
    assert trio.current_time() - begun > (asked - ASK_RATE.burst) / ASK_RATE.per_second


async def test_a_question_that_would_wait_too_long_is_not_asked(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    ours = b.driver._statements._questions
    while ours.reserve(a.peer, trio.current_time(), ANSWER_PATIENCE) is not None:
        pass
    with pytest.raises(PeerFault, match="as often as it allows"):
        await b.driver.pull_statements(a.peer)
    await trio.sleep(ANSWER_PATIENCE)
    put(a, b"ok one")
    assert await b.driver.pull_statements(a.peer) == 1


async def test_a_fault_of_our_own_blames_nobody(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    b = await town.node("b", connect=[a])

    def broken(*_: object) -> Judgement:
        raise Environment("the disk is full")

    b.board.judge = broken
    assert await b.host.validators[HEADS](a.peer, b"ok") == GossipVerdict(Judgement.IGNORE)
    assert b.score(a) == 0


async def test_a_new_connection_is_greeted_in_both_directions(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    put(a, b"ok one", b"ok two")
    b = await town.node("b")
    put(b, b"ok three")
    await b.driver.connect("/memory/a")
    await trio.testing.wait_all_tasks_blocked()
    assert held(a) == held(b) == {b"ok one", b"ok two", b"ok three"}


@pytest.mark.slow
async def test_rounds_bring_what_gossip_lost(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    put(a, *(b"ok %d" % number for number in range(700)))
    await trio.sleep(80)
    assert held(b) == held(a)
    assert len(b.board.judged) == 700, "what is known is not fetched again"


async def test_pulling_some_datasets_only(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    put(a, b"okA 1", b"okA 2", b"okB 1")
    assert await b.driver.pull_statements(a.peer, [DatasetId.from_public_key(b"A" * 32)]) == 2
    assert held(b) == {b"okA 1", b"okA 2"}
    assert await b.driver.pull_statements(a.peer, [DatasetId.from_public_key(b"A" * 32)]) == 0
    assert await b.driver.pull_statements(a.peer) == 1


async def test_a_peer_full_of_bad_statements(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    for number in range(50):
        sid = Multihash.sha3_256(b"%d" % number)
        a.board.held[sid] = (Topic.HEADS, b"bad %d" % number, DatasetId.from_public_key(b"x" * 32))
    b = await town.node("b")
    await b.driver.connect("/memory/a")
    await trio.testing.wait_all_tasks_blocked()
    assert b.driver.book.is_shut_out(a.peer, trio.current_time())
    assert len(b.board.judged) <= 11, "it is cut off long before its last"
    assert a.peer not in b.host.links


@pytest.mark.parametrize(
    "reply",
    [
        b"{}",
        b'{"tell":"get","statements":[],"done":1}',
        b'{"tell":"sum","buckets":{"zz":"00"}}',
        b"\xff\xfe",
        b'{"tell":"list","refs":{}}',
    ],
)
async def test_an_answer_that_is_none(autojump_clock: Any, town: Any, reply: bytes) -> None:
    async def odd(stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, 1 << 16)
        await framed.read()
        await framed.write(reply)

    town.bare("odd", trust=odd)
    b = await town.node("b")
    await b.driver.connect("/memory/odd")
    with pytest.raises(PeerFault):
        await b.driver.pull_statements(PeerId("odd"))
    assert b.driver.book.get(PeerId("odd")).score.value <= -20


async def test_an_endless_listing_ends(autojump_clock: Any, town: Any) -> None:
    """Ever new names, page after page: the round has a last page."""
    asked = 0

    async def endless(stream: Any, peer: PeerId) -> None:
        nonlocal asked
        framed = FramedStream(stream, peer, MAX_TRUST_REPLY)
        number = 0
        while body := await framed.read():
            asked += 1
            ask = trust.decode_ask(body)
            if isinstance(ask, trust.SumAsk):
                await framed.write(trust.encode(trust.Sums({"78": "0" * 64})))
            elif isinstance(ask, trust.ListAsk):
                number += 1
                sid = Multihash.from_digest(0x16, number.to_bytes(32, "big"))
                listing = trust.Listing({str(DatasetId.from_public_key(b"x" * 32)): (sid,)}, more=sid)
                await framed.write(trust.encode(listing))
            else:
                await framed.write(trust.encode(trust.Statements((), done=len(ask.sids))))

    town.bare("endless", trust=endless)
    b = await town.node("b")
    await b.driver.connect("/memory/endless")
    assert await b.driver.pull_statements(PeerId("endless")) == 0
    assert asked <= 2 * 70


class Hawker:
    """Goes on telling of statements that nobody wants; ``fresh``: of others each time. Counts what is fetched."""

    def __init__(self, count: int, size: int, *, fresh: bool = False) -> None:
        self.count, self.size, self.fresh = count, size, fresh
        self.given = self.rounds = 0

    def sids(self) -> list[Multihash]:
        first = self.rounds * self.count if self.fresh else 0
        return [Multihash.from_digest(0x16, (first + n).to_bytes(32, "big")) for n in range(1, self.count + 1)]

    def tell(self, ask: trust.TrustAsk) -> trust.TrustTell:
        if isinstance(ask, trust.SumAsk):
            self.rounds += 1
            return trust.Sums({"78": f"{self.rounds if self.fresh else 7:064d}"})
        if isinstance(ask, trust.ListAsk):
            refs = [StatementRef(sid, DatasetId.from_public_key(b"x" * 32)) for sid in self.sids()]
            return trust.page([ref for ref in refs if ask.after is None or ref.sid > ask.after], more=False)
        assert isinstance(ask, trust.GetAsk)
        said = [trust.TopicEnvelope(Topic.HEADS, bytes(sid).ljust(self.size)) for sid in ask.sids[:8]]
        return trust.Statements(tuple(said), done=len(said))

    async def serve(self, stream: Any, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, MAX_TRUST_REPLY)
        while body := await framed.read():
            answer = trust.encode(self.tell(trust.decode_ask(body)))
            self.given += len(answer)
            await framed.write(answer)


async def hour_beside(town: Any, hawkers: dict[str, Hawker]) -> None:
    node = await town.node("node")
    node.board.judge = lambda *_: Judgement.IGNORE
    for name, hawker in hawkers.items():
        town.bare(name, trust=hawker.serve)
        await node.driver.connect(f"/memory/{name}")
    await trio.sleep(3600)


@pytest.mark.slow
async def test_what_was_declined_is_not_fetched_again_and_again(autojump_clock: Any, town: Any) -> None:
    """Attack T-HEAD-08: a neighbour that offers declined statements in each round.

    Defence: an id is requested from the same peer again after pauses that double; ranges whose sums led to nothing are
    skipped.

    3 MB that a neighbour tells of at each round, for ever: once, and again after pauses that double.
    """
    hawker = Hawker(count=32, size=80_000)
    await hour_beside(town, {"hawker": hawker})
    assert hawker.rounds > 40
    assert hawker.given < 4.5 * hawker.count * hawker.size * 4 / 3


@pytest.mark.slow
async def test_what_is_of_no_use_and_always_new_has_an_end(autojump_clock: Any, town: Any) -> None:
    """Attack T-HEAD-08: a neighbour that offers other useless statements in each round, by keys in one network.

    Defence: a budget of useless bytes by peer and by network.

    However many keys of one network tell it.
    """
    hawkers = {f"h{n}": Hawker(count=128, size=80_000, fresh=True) for n in range(8)}
    await hour_beside(town, hawkers)
    of_one = USELESS.burst + 3700 * USELESS.per_second
    given = [hawker.given for hawker in hawkers.values()]
    assert max(given) < of_one + 2 * MAX_TRUST_REPLY
    assert sum(given) < OF_NETWORK * of_one + 16 * MAX_TRUST_REPLY


def test_keys_of_one_network_share_what_is_of_no_use() -> None:
    answers, given = KnownAnswers(), dict.fromkeys(("198.51.0.0/16", "203.0.0.0/16"), 0)
    for network in given:
        for number in range(5 * OF_NETWORK):
            teller = RoundPeer(peer=PeerId(f"{network} {number}"), network=network)
            while answers.may_go_on(teller, 0.0):
                answers.cost(teller, MAX_TRUST_REPLY, 0.0)
                given[network] += MAX_TRUST_REPLY
    assert all(0 <= each - OF_NETWORK * USELESS.burst < MAX_TRUST_REPLY for each in given.values())


async def test_a_silent_trust_peer(autojump_clock: Any, town: Any) -> None:
    async def silence(stream: Any, peer: PeerId) -> None:
        await trio.sleep(1000)

    town.bare("silent", trust=silence)
    b = await town.node("b")
    await b.driver.connect("/memory/silent")
    started = trio.current_time()
    with pytest.raises(PeerFault, match="no answer in 20 s"):
        await b.driver.pull_statements(PeerId("silent"))
    assert trio.current_time() - started == pytest.approx(20, abs=0.1)


async def test_bootstrap_is_dialled_until_it_is_there_and_again(autojump_clock: Any, town: Any) -> None:
    hub = town.bare("hub")
    hub.reachable = False
    a = await town.node("a", bootstrap=("/memory/hub",))
    await trio.sleep(40)
    dials = len(a.host.dials)
    assert 4 <= dials <= 9, "with growing waits"
    hub.reachable = True
    await trio.sleep(300)
    assert hub.peer_id in a.host.links
    dials = len(a.host.dials)
    await trio.sleep(300)
    assert len(a.host.dials) == dials
    town.fabric.part(a.host, hub)
    await trio.sleep(5)
    assert hub.peer_id in a.host.links


async def test_a_bootstrap_peer_is_dialled_by_all_of_its_addresses_at_once(autojump_clock: Any, town: Any) -> None:
    hub, other = town.bare("hub"), town.bare("other")
    hub.address = "/memory/2/p2p/hub"
    where = (f"/memory/{each}/p2p/hub" for each in range(3))
    a = await town.node("a", bootstrap=(other.address, *where), degree=0)
    await trio.sleep(1)
    assert {hub.peer_id, other.peer_id} == set(a.host.links)
    assert sorted(place for _, place in a.host.dials) == ["/memory/0/p2p/hub", other.address]


async def test_lost_notices_are_made_up_for(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    b = await town.node("b", connect=[a])
    await trio.testing.wait_all_tasks_blocked()
    a.host.reachable = False
    b.host.links.clear()
    await trio.sleep(100)
    assert [view.connected for view in b.driver.peers()] == [False]


async def test_stopping_leaves_nothing_behind(autojump_clock: Any, town: Any) -> None:
    a = await town.node("a")
    async with trio.open_nursery() as nursery:
        b = town.__class__(nursery)
        b.fabric = town.fabric
        node = await b.node("b", connect=[a])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with pytest.raises(Invalid, match="not running"):
        await node.driver.chain_size(a.peer, DatasetId.from_public_key(b"x" * 32))


# A peer proves that what has come so far is the beginning of what was signed; one that cannot proves nothing.

DATASET = DatasetId.from_public_key(b"p" * 32)


def head(chain: tuple[bytes, ...], size: int) -> TreeRoot:
    return TreeRoot(size, Frontier().extend(hashlib.sha3_256(raw).digest() for raw in chain[:size]).root)


def tip(chain: tuple[bytes, ...], size: int) -> Tip:
    return Tip(size, hashlib.sha3_256(chain[size - 1]).digest())


async def giver(town: Any, chain: tuple[bytes, ...]) -> Any:
    node = await town.node("giver")
    node.shelf.chains[DATASET] = chain
    return node


async def test_a_beginning_is_proven(autojump_clock: Any, town: Any) -> None:
    chain = town.made_chain("c", 100)
    node = await giver(town, chain)
    asker = await town.node("asker", connect=[node])
    for size in (1, 2, 63, 64, 65, 99, 100):
        assert await asker.driver.prove_prefix([node.peer], DATASET, head(chain, size), head(chain, 100))
    other = town.made_chain("d", 100)
    assert not await asker.driver.prove_prefix([node.peer], DATASET, head(other, 50), head(chain, 100))
    assert asker.score(node) == 0


async def test_a_block_is_proven(autojump_clock: Any, town: Any) -> None:
    chain = town.made_chain("c", 37)
    node = await giver(town, chain)
    asker = await town.node("asker", connect=[node])
    path = await asker.driver._statements.prove(node.peer, ProveAsk(dataset=DATASET, size=37, index=20))
    leaf = hashlib.sha3_256(chain[20]).digest()
    assert root_from_inclusion(leaf, 20, 37, path) == head(chain, 37).root


async def test_a_proof_that_proves_nothing_moves_nothing(autojump_clock: Any, town: Any) -> None:
    """Attack T-PEER-07: invalid proofs.

    Defence: checked against both roots; another peer is asked.
    """
    chain = town.made_chain("c", 100)
    node = await giver(town, chain)

    async def lie(stream: Any, peer: Any) -> None:
        await stream.receive_some(1 << 16)
        await stream.send_all(frame(trust.encode(trust.ProofAnswer(("00" * 32,) * 3))))
        await trio.sleep(1)

    liar = town.bare("liar", trust=lie)
    asker = await town.node("asker", connect=[node, liar])
    await trio.sleep(1)
    before = asker.score(liar)
    assert await asker.driver.prove_prefix([liar.peer_id, node.peer], DATASET, head(chain, 40), head(chain, 100))
    assert asker.score(liar) == before, "it may hold another history"
    assert not await asker.driver.prove_prefix([liar.peer_id], DATASET, head(chain, 40), head(chain, 100))


async def test_a_whole_chain_is_shown_by_its_last_block(autojump_clock: Any, town: Any) -> None:
    chain, other = town.made_chain("c", 100), town.made_chain("d", 100)
    node = await giver(town, chain)
    asker = await town.node("asker", connect=[node])
    for size in (1, 2, 64, 100):
        assert await asker.driver.holds(node.peer, DATASET, tip(chain, size))
        assert not await asker.driver.holds(node.peer, DATASET, tip(other, size))
    assert not await asker.driver.holds(PeerId("ghost"), DATASET, tip(chain, 1))
    node.shelf.chains[DATASET] = chain[:99]
    assert not await asker.driver.holds(node.peer, DATASET, tip(chain, 100))
    assert asker.score(node) == 0


async def test_nobody_who_can_prove(autojump_clock: Any, town: Any) -> None:
    chain = town.made_chain("c", 10)
    node = await giver(town, chain[:5])
    asker = await town.node("asker", connect=[node])
    with pytest.raises(Remote, match="a tree of 10 blocks of that dataset is not served here"):
        await asker.driver.prove_prefix([node.peer], DATASET, head(chain, 4), head(chain, 10))
    with pytest.raises(PeerFault):
        await asker.driver._statements.prove(node.peer, ProveAsk(dataset=DATASET, size=6, index=5))


@pytest.mark.parametrize("fields", [{}, {"old": 9}, {"old": 1, "index": 1}, {"index": 8}, {"old": 0}])
def test_what_cannot_be_asked(fields: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        trust.decode_ask(trust.encode(ProveAsk(dataset=DATASET, size=8, **fields)))


@given(st.binary(max_size=200))
def test_garbage_is_no_proof(body: bytes) -> None:
    with pytest.raises(Invalid):
        trust.decode_tell(b'{"tell":"proof","nodes":' + body)
