"""Mirrors that pull: which heads, when, ahead and from whom; only the signed tree makes blocks the owner's."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from chain import instant
from chain.codec.blocks import encode_block
from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, DatasetKind, Seed
from chain.multihash import Multihash
from chain.state import ChainState
from chain.statements.authority import implicit
from chain.statements.keys import SigningKey
from chain.statements.statement import Epoch, HeadStatement
from chain.statements.statement import TreeHead as SignedTree
from chain.statements.tree import Frontier
from chain.store.database import open_database
from odfd.mirrors import sync
from odfd.mirrors.epoch_switch import check_base
from odfd.mirrors.first_contact import (
    ENOUGH,
    EXPECTED,
    FIRST_SIGHT,
    NETWORKS,
    PAUSES,
    WITNESSED,
    DeclinedHeads,
    FirstContact,
    rung_of,
)
from odfd.mirrors.holders import GRACE_SECONDS, KNOWN_SECONDS, PROBE_SECONDS, SOON, STRANGERS, Holders
from odfd.mirrors.scheduler import AGAIN, NEWCOMERS_SECONDS, MirrorScheduler
from odfd.mirrors.sinks import SignedFault, VerifiedChain
from odfd.mirrors.sync import Current, NobodyHasIt, Prefetch, Start, _check_expected, _check_seed
from odfd.policy.witness_quorum import Witnesses
from odfd.store.ledger import log
from odfd.store.mirror_specs import MirrorSpec
from p2p.ports import PeerId, TreeRoot
from worlds.faults import breaks
from worlds.statements import head_statement

# Blocks that are pulled: judged in whatever parts they come, and only the signed tree makes them the owner's.

DATASET = DatasetId.from_public_key(bytes(32))
PEER = PeerId("somebody")
SIZE = 60


def chain_of(size: int, back: int | None = None) -> list[Block]:
    """Watermarks that move; at ``back`` it goes back."""
    blocks: list[Block] = []
    for number in range(size):
        event: Seed | AddData = AddData(new_watermark=Instant(10**18 + number * 10**9 * (number != back)))
        if number == 0:
            event = Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)
        head = blocks[-1].hash if blocks else None
        content = MetadataBlock(
            system_time=Instant(10**18 + number * 10**6), prev_block_hash=head, sequence_number=number, event=event
        )
        blocks.append(encode_block(content))
    return blocks


BLOCKS = chain_of(SIZE)


def signed(blocks: list[Block]) -> HeadStatement:
    return HeadStatement(
        dataset=DATASET,
        epoch=1,
        size=len(blocks),
        root_hash=Frontier().extend(block.hash.digest for block in blocks).root,
        authority=1,
        issued_at=instant.render(Instant(10**18)),
        expires_at=instant.render(Instant(2 * 10**18)),
        head=blocks[-1].hash,
    )


def fill(sink: VerifiedChain, blocks: list[Block], part: int) -> None:
    while sink.size < len(blocks):
        sink.append(PEER, sink.size, [block.raw for block in blocks[sink.size : sink.size + part]])


@given(st.integers(0, SIZE - 1), st.integers(1, SIZE))
def test_the_parts_and_the_start_do_not_matter(start: int, part: int) -> None:
    state, frontier = ChainState.EMPTY, Frontier()
    for block in BLOCKS[:start]:
        state, frontier = state.advance(block), frontier.append(block.hash.digest)
    sink = VerifiedChain(state, frontier, signed(BLOCKS))
    fill(sink, BLOCKS, part)
    sink.finish()
    assert [(each.raw, each.hash, each.sequence_number) for each in sink.blocks] == [
        (each.raw, each.hash, each.sequence_number) for each in BLOCKS[start:]
    ]
    assert sink.frontier.root == signed(BLOCKS).root_hash


@pytest.mark.parametrize("part", [1, 7, SIZE])
def test_a_block_that_breaks_a_rule_is_named_and_its_part_is_not_kept(part: int) -> None:
    wrong = chain_of(SIZE, back=40)
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(wrong))
    with pytest.raises(Invalid, match="the watermark goes back") as caught:
        fill(sink, wrong, part)
    assert (caught.value.rule, caught.value.place) == ("watermark-monotonic", "block #40")
    kept = 40 // part * part
    assert (sink.size, len(sink.blocks)) == (kept, kept)
    assert sink.frontier == Frontier().extend(block.hash.digest for block in wrong[:kept])


@pytest.mark.parametrize("part", [1, 7, SIZE])
@pytest.mark.parametrize("back", [40, SIZE - 1])
def test_a_block_that_its_owner_signed_is_no_fault_of_who_gave_it(part: int, back: int) -> None:
    """Attack T-HEAD-02: an owner that signs a block which breaks a rule, so that honest peers that pass it on are shut
    out.

    Defence: a peer that gives a block is not at fault if the signed head, or a proof of its tree, has that block: the
    mirror refuses by the rule and keeps its data. A peer that gives another block is penalised, and other peers are
    asked.

    The last one is proven by the head itself, others by who proves the tree up to them.
    """
    wrong, asked = chain_of(SIZE, back=back), list[TreeRoot]()

    def proves(tree: TreeRoot) -> bool:
        asked.append(tree)
        return tree.root == Frontier().extend(block.hash.digest for block in wrong[: tree.size]).root

    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(wrong), proves=proves)
    with pytest.raises(SignedFault) as caught:
        fill(sink, wrong, part)
    assert (caught.value.fault.rule, caught.value.fault.place) == ("watermark-monotonic", f"block #{back}")
    assert [tree.size for tree in asked] == [back + 1] * (back + 1 < SIZE)
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(BLOCKS), proves=lambda _: False)
    with pytest.raises(Invalid, match="the watermark goes back"):
        fill(sink, wrong, part)


def test_bytes_that_are_no_block_are_their_owners_fault_where_they_are_signed() -> None:
    leaves = [block.hash.digest for block in BLOCKS[:5]] + [Multihash.sha3_256(b"no block").digest]
    head = msgspec.structs.replace(signed(BLOCKS), size=6, root_hash=Frontier().extend(leaves).root)
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), head)
    with pytest.raises(SignedFault):
        sink.append(PEER, 0, [*(block.raw for block in BLOCKS[:5]), b"no block"])
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), head)
    with pytest.raises(Invalid):
        sink.append(PEER, 0, [*(block.raw for block in BLOCKS[:5]), b"no  block"])


def test_good_blocks_that_nobody_signed_are_forgotten() -> None:
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(chain_of(SIZE + 1)), until=SIZE)
    fill(sink, BLOCKS, SIZE)
    sink.finish()
    assert sink.size == SIZE
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(chain_of(SIZE, back=SIZE - 1)))
    fill(sink, BLOCKS, SIZE)
    with breaks("trust.tree", Invalid):
        sink.finish()
    assert (sink.size, sink.blocks, sink.frontier) == (0, [], Frontier())


@pytest.mark.parametrize("part", [1, SIZE])
@pytest.mark.parametrize("lie", [{"root_hash": signed(BLOCKS[:-1]).root_hash}, {"head": BLOCKS[-2].hash}])
def test_the_right_blocks_under_a_false_root_or_head_are_not_the_signed_ones(part: int, lie: dict[str, Any]) -> None:
    """Attack T-HEAD-02: a publisher that signs a false root over its own last block, to prove another history by it
    later.

    Defence: the blocks count only if their own tree is the signed one; the head alone is not enough.

    A publisher that signs another tree over its own last block could prove other histories by it later.
    """
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), msgspec.structs.replace(signed(BLOCKS), **lie))
    fill(sink, BLOCKS, part)
    with breaks("trust.tree", Invalid):
        sink.finish()
    assert (sink.size, sink.blocks, sink.frontier) == (0, [], Frontier())


@pytest.mark.parametrize("until", [SIZE // 2, SIZE])
def test_a_chain_whose_seed_is_of_another_dataset_is_refused_before_its_head_is_there(until: int) -> None:
    """Whoever signed a head for it: a key may sign any tree under the name of its own dataset."""
    other = DatasetId.from_public_key(bytes(31) + b"\1")
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), msgspec.structs.replace(signed(BLOCKS), dataset=other), until)
    fill(sink, BLOCKS[:until], SIZE)
    with pytest.raises(Invalid) as caught:
        sink.finish()
    assert (caught.value.rule, sink.size) == ("graft", 0)


def filled() -> VerifiedChain:
    sink = VerifiedChain(ChainState.EMPTY, Frontier(), signed(BLOCKS))
    fill(sink, BLOCKS, SIZE)
    sink.finish()
    return sink


def test_a_chain_whose_seed_is_not_that_of_its_authority_or_that_lacks_the_expected_block_is_refused() -> None:
    """One key may sign two chains; each is whole by itself, and only one is the one that was meant."""
    sink = filled()
    rights = msgspec.structs.replace(implicit(DATASET), seed=BLOCKS[0].hash)
    _check_seed(sink, rights)
    with breaks("graft", Invalid):
        _check_seed(sink, msgspec.structs.replace(rights, seed=BLOCKS[1].hash))
    spec = MirrorSpec(dataset=str(DATASET), name="theirs", expect=str(BLOCKS[7].hash))
    _check_expected(spec, sink)
    with breaks("mirror-expect", Invalid):
        _check_expected(msgspec.structs.replace(spec, expect=str(chain_of(SIZE, back=7)[7].hash)), sink)


def test_blocks_that_are_not_those_on_which_their_epoch_was_opened_are_refused() -> None:
    """Whatever the head says: the roots signed how the epoch begins, and a writer alone cannot change that."""
    sink = filled()
    base = SignedTree(size=9, root_hash=Frontier().extend(block.hash.digest for block in BLOCKS[:9]).root)
    opened = Epoch(number=1, reason="rotation", base=base, last=base)
    for root, size, wrong in ((base.root_hash, 9, False), (bytes(32), 9, True), (base.root_hash, 10, True)):
        epoch = msgspec.structs.replace(opened, base=SignedTree(size=size, root_hash=root))
        rights = msgspec.structs.replace(implicit(DATASET), epochs=(epoch,))
        if wrong:
            with breaks("trust.epoch-base", Invalid):
                check_base(Frontier(), sink.blocks, signed(BLOCKS), rights)
        else:
            check_base(Frontier(), sink.blocks, signed(BLOCKS), rights)


# Which signed heads are looked at again after one of them broke a rule, and when.

SIGNED = SigningKey(b"d" * 32).dataset_id
SPEC = MirrorSpec(dataset=str(SIGNED), name="theirs")
WRONG = Invalid("a slice is not what its block says", rule="slice-logical-hash")
DAY = 86_400


def head(number: int, epoch: int = 0) -> HeadStatement:
    return head_statement(
        SIGNED, number, number.to_bytes(32, "big"), epoch=epoch, head=Multihash.sha3_256(b"%d" % number)
    )


@pytest.mark.slow
@given(st.integers(1, 600))
def test_however_fast_a_publisher_signs(every: int) -> None:
    declined, looks = DeclinedHeads(), 0
    for at in range(0, DAY, every):
        if declined.why(SPEC, head(at + 1), at) is None:
            looks += 1
            declined.note(SPEC, head(at + 1), WRONG, at)
    assert 2 <= looks <= 13


def test_the_same_tree_never_and_another_epoch_or_spec_at_once() -> None:
    declined = DeclinedHeads()
    for number in range(1, 9):
        declined.note(SPEC, head(number), WRONG, 0.0)
    assert declined.why(SPEC, head(9), 1.0) is WRONG
    assert declined.why(SPEC, head(9), PAUSES.most) is None
    assert declined.why(SPEC, head(8), 10 * PAUSES.most) is WRONG
    assert declined.why(SPEC, head(8, epoch=1), 1.0) is None
    assert declined.why(msgspec.structs.replace(SPEC, want="chain"), head(9), 1.0) is None
    declined.forget(SIGNED)
    assert declined.why(SPEC, head(8), 1.0) is None


def test_a_first_contact_is_shown_as_what_it_was(tmp_path: Path) -> None:
    """Two networks may be one attacker's; three count, and only where neither a hash nor witnesses were asked for."""
    now = instant.parse("2026-11-20T08:00:00Z")
    with closing(open_database(tmp_path / "odfd.sqlite")) as database:
        database.migrate(log.ROOM, log.STEPS)
        for expect, quorum, networks, rung in (
            (None, 0, 0, FIRST_SIGHT),
            (None, 0, ENOUGH - 1, FIRST_SIGHT),
            (None, 0, ENOUGH, NETWORKS),
            (None, 2, ENOUGH, WITNESSED),
            (str(head(1).head), 2, 0, EXPECTED),
        ):
            first = FirstContact(partial(Witnesses, quorum=quorum), lambda: now)
            with database.write() as connection:
                first.keep(connection, msgspec.structs.replace(SPEC, expect=expect), networks)
            with database.read() as connection:
                assert rung_of(connection, SIGNED) == rung
    assert ENOUGH >= 3


# A mirror whose peers are behind asks again soon after news, and ever later without any.

ID = DatasetId.from_public_key(b"d" * 32)
OTHER = DatasetId.from_public_key(b"o" * 32)


class Behind:
    """Peers that do not have what is signed yet; notes when they are asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def sync(self, *_: object) -> NobodyHasIt:
        self.asked.append(trio.current_time())
        return NobodyHasIt("no connected peer serves it that far")


async def test_news_ends_the_pauses_after_what_failed_before(autojump_clock: MockClock) -> None:
    """Each hop of a chain of mirrors was a minute behind the last head of a busy publisher."""
    behind = Behind()
    nothing = cast(Any, None)
    scheduler = MirrorScheduler(nothing, cast(Any, behind), nothing, nothing, nothing, print, print, lambda: True)
    async with trio.open_nursery() as nursery:
        scheduler._nursery = nursery
        scheduler._begin(MirrorSpec(dataset=str(ID), name="cities"))
        for _ in range(60):
            await trio.sleep(0.7)
            scheduler.poke(ID)
        last = trio.current_time()
        await trio.sleep(200)
        nursery.cancel_scope.cancel()
    pauses = [at - last for at in behind.asked if at > last]
    assert pauses[:3] == [AGAIN.whole(1), AGAIN.whole(1) + AGAIN.whole(2), sum(map(AGAIN.whole, (1, 2, 3)))]
    assert len(pauses) < 12


class Whole(Behind):
    """Peers that have nothing newer."""

    async def sync(self, *_: object) -> Current:  # type: ignore[override]
        self.asked.append(trio.current_time())
        return Current(peers=1, connected=1)


async def test_strangers_that_come_and_go_make_nobody_ask_all_the_time(autojump_clock: MockClock) -> None:
    """Attack T-PEER-06: unlisted peers that reconnect, so that mirrors ask them for missing data each time.

    Defence: a complete mirror asks no peer; others ask newcomers once in two seconds.

    Four a second, for a minute: a mirror that has all asks nobody for it, one that lacks something now and then.
    """
    for peers, most in ((Whole(), 2), (Behind(), 1 + 60 / NEWCOMERS_SECONDS)):
        nothing = cast(Any, None)
        scheduler = MirrorScheduler(nothing, cast(Any, peers), nothing, nothing, nothing, print, print, lambda: True)
        async with trio.open_nursery() as nursery:
            scheduler._nursery = nursery
            scheduler._begin(MirrorSpec(dataset=str(ID), name="cities"))
            await trio.sleep(0.5)
            before = len(peers.asked)
            scheduler.met_someone()
            await trio.testing.wait_all_tasks_blocked()
            assert len(peers.asked) - before == (0 if isinstance(peers, Whole) else 1), "the first newcomer is asked"
            for _ in range(240):
                await trio.sleep(0.25)
                scheduler.met_someone()
            assert len(peers.asked) - before <= most
            nursery.cancel_scope.cancel()


async def test_in_no_network_a_mirror_waits_for_news_alone(autojump_clock: MockClock) -> None:
    """An idle node has no wake-up for it; with the first network it is asked for, and then every minute."""
    for peers in (Whole(), Behind()):
        nothing, joined = cast(Any, None), [False]
        scheduler = MirrorScheduler(
            nothing, cast(Any, peers), nothing, nothing, nothing, print, print, lambda j=joined: j[0]
        )
        async with trio.open_nursery() as nursery:
            scheduler._nursery = nursery
            scheduler._begin(MirrorSpec(dataset=str(ID), name="cities"))
            scheduler._begin(MirrorSpec(dataset=str(OTHER), name="kept", via="https://example.org/odf"))
            await trio.sleep(10_000)
            assert [at for at in peers.asked if at > 9_000], "a place on the web is looked at all the same"
            assert scheduler.get(ID).passes == 1
            joined[0] = True
            scheduler.met_someone()
            await trio.sleep(1_000)
            assert scheduler.get(ID).passes > 5
            nursery.cancel_scope.cancel()


# Steps fetched ahead: in order, so many and no more, and what went wrong is told where it would have been taken.


class Step:
    """One block more."""

    def __init__(self, number: int, size: int) -> None:
        self.bytes = size
        self.state = msgspec.structs.replace(ChainState.EMPTY, sequence_number=number)
        self.frontier = Frontier()


class Source:
    """Steps of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.asked = 0

    async def fetch(self, start: Start) -> Any:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if start.state.size == len(self.sizes):
            raise Remote("nobody has it", rule="no-peer")
        return Step(start.state.size, self.sizes[start.state.size])

    def way(self, size: int) -> Prefetch:
        return Prefetch(self.fetch, Start(ChainState.EMPTY, Frontier()), size)


async def test_so_many_wait_and_no_more() -> None:
    source = Source([1] * 9)
    way = source.way(9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        for number in range(9):
            await trio.testing.wait_all_tasks_blocked()
            assert source.asked == min(number + sync.STEPS_HELD, 9)
            assert (await way.next()).state.size == number + 1
            await trio.testing.wait_all_tasks_blocked()
            assert source.asked == min(number + sync.STEPS_HELD, 9), "one that is being kept is in memory"
            way.kept()


async def test_large_ones_wait_alone() -> None:
    source = Source([sync.BYTES_HELD + 1] * 3)
    way = source.way(3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        for number in range(3):
            await way.next()
            await trio.testing.wait_all_tasks_blocked()
            assert source.asked == number + 1
            way.kept()


async def test_what_went_wrong_is_told_in_its_place() -> None:
    way = Source([1, 1]).way(9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.run)
        for _ in range(2):
            await way.next()
            way.kept()
        with pytest.raises(Remote, match="nobody has it"):
            await way.next()


# Who drips delays no mirror: once somebody has said to serve a chain, others have a moment more.

HELD = DatasetId.from_public_key(b"d" * 32)


class Network:
    """Peers that answer after so many seconds; those named ``known`` gave what proved true before."""

    def __init__(self, **waits: float) -> None:
        self.waits = waits
        self.told = set[str]()

    def peers(self) -> list[Any]:
        return [
            SimpleNamespace(peer=PeerId(name), connected=True, blocked=False, proven="known" in name)
            for name in self.waits
        ]

    async def chain_size(self, peer: PeerId, _dataset: DatasetId) -> int:
        await trio.sleep(self.waits[peer])
        if peer.startswith("empty"):
            raise Remote("has it not")
        return 7

    async def pull_statements(self, peer: PeerId, _datasets: Any) -> int:
        await trio.sleep(self.waits[peer])
        self.told.add(peer)
        return 0


async def found(network: Any) -> tuple[set[str], float]:
    began = trio.current_time()
    peers = await Holders(network, network).of(HELD, 7)
    return set(peers), trio.current_time() - began


async def test_peers_that_drip_do_not_delay_what_others_serve(autojump_clock: Any) -> None:
    drips = {f"drips{number}": 60.0 for number in range(20)}
    peers, took = await found(Network(near=0.02, far=0.3, empty=0.01, **drips))
    assert peers == {"near", "far"}
    assert took <= 0.02 + GRACE_SECONDS + 0.001


async def test_a_slow_one_is_waited_for_where_nobody_else_has_it(autojump_clock: Any) -> None:
    assert (await found(Network(slow=PROBE_SECONDS - 1, empty=0.01)))[0] == {"slow"}
    peers, took = await found(Network(drips=60.0))
    assert not peers
    assert took == PROBE_SECONDS


async def test_others_are_hardly_waited_for_once_a_known_peer_serves_it(autojump_clock: Any) -> None:
    """Attack T-PEER-06: connected peers that answer slowly when a mirror asks who serves a new head, to delay each by
    ten seconds.

    Defence: the mirror waits half a second more once one peer serves it, and a twentieth of a second once a peer with a
    valid record does.
    """
    peers, took = await found(Network(boasts=0.001, known=0.02, far=0.3, drips=60.0))
    assert peers == {"boasts", "known"}
    assert took <= 0.02 + SOON[0] + 0.001
    peers, took = await found(Network(boasts=0.001, known=0.2, far=0.3, drips=60.0))
    assert peers == {"boasts", "known", "far"}, "who is as far is waited for as long"


async def test_what_strangers_say_at_once_keeps_out_no_known_peer(autojump_clock: Any) -> None:
    """Attack T-PEER-06: peers that claim at once to serve a new head, to be asked first.

    Defence: the node waits two seconds for a peer with a valid record, and asks it first; until such a peer serves the
    head all are asked.
    """
    boasts = {f"boasts{number}": 0.001 for number in range(STRANGERS)}
    peers, took = await found(Network(known=GRACE_SECONDS + 1, **boasts))
    assert peers == {"known", *boasts}
    peers, took = await found(Network(known=60.0, **boasts))
    assert (peers, took) == ({*boasts}, 0.001 + KNOWN_SECONDS)


async def test_few_strangers_are_asked_beside_a_known_peer_and_each_time_others(autojump_clock: Any) -> None:
    """Attack T-PEER-06: fifty connections that make a mirror ask as many questions for each new head.

    Defence: beside peers with a valid record, eight are asked, different ones each time.
    """
    network = Network(known=0.02, **{f"far{number}": 0.01 for number in range(40)})
    holders, asked = Holders(network, network), Counter[str]()  # type: ignore[arg-type]
    for _ in range(5):
        peers = await holders.of(HELD, 7)
        assert len(peers) == 1 + STRANGERS
        asked.update(peers)
    assert len(asked) == 41, "those who served it are asked again, beside others"


async def test_what_strangers_say_keeps_nobody_from_being_asked(autojump_clock: Any) -> None:
    """Those who gave something have it not; who serves it is one of forty, of whom most say that they do."""
    strangers = {f"boasts{number}": 0.01 for number in range(40)}
    for waits in ({"known": 60.0}, {"empty-known": 0.01}):
        network = Network(**waits, **strangers, far=0.1)
        for _ in range(5):
            assert "far" in await Holders(network, network).of(HELD, 7)  # type: ignore[arg-type]


async def test_all_are_asked_where_those_who_are_known_have_it_not(autojump_clock: Any) -> None:
    strangers = {f"empty{number}": 0.01 for number in range(20)}
    for waits in ({"known": 60.0}, {"empty-known": 0.01}):
        network = Network(**waits, **strangers, far=0.1)
        for _ in range(3):
            peers = await Holders(network, network).of(HELD, 7)  # type: ignore[arg-type]
            assert peers == ["far"]


async def test_whether_a_holder_answered_is_told(autojump_clock: Any) -> None:
    network = Network(near=0.01, far=0.1, empty=0.01)
    holders = Holders(network, network)  # type: ignore[arg-type]
    assert await holders.news(HELD) == 0, "nobody is known to hold it"
    assert set(await holders.of(HELD, 7)) == {"near", "far"}
    network.waits |= {"near": 60.0}
    assert await holders.news(HELD) == 0
    network.waits |= {"far": 60.0}
    assert await holders.news(HELD) == 2


async def test_news_are_not_waited_for_of_those_who_drip(autojump_clock: Any) -> None:
    """Attack T-PEER-06: connected peers that answer slowly when the operator asks for new blocks (`odfctl pull`).

    Defence: the node waits half a second after all peers with a valid record answered.

    A person waits for them, at each pull.
    """
    drips = {f"drips{number}": 60.0 for number in range(20)}
    for known in ({}, {"known1": 0.02, "known2": 1.0}):
        network, began = Network(**known, near=0.01, far=1.3, **drips), trio.current_time()
        await Holders(network, network).news(HELD)  # type: ignore[arg-type]
        assert network.told == {*known, "near", "far"}
        assert trio.current_time() - began == (1.0 + GRACE_SECONDS if known else PROBE_SECONDS)
