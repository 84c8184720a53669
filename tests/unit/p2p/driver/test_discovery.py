"""Peers are found, redialled and kept."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from chain.ids import DatasetId
from chain.statements.keys import SigningKey
from p2p.budget.buckets import Rate
from p2p.driver import discovery, forwarding
from p2p.driver.statements import WIDE
from p2p.errors import PeerFault
from p2p.identity import peer_of_did
from p2p.machines.holder_connections import ENOUGH
from p2p.ports import Concern, Judgement, PeerId, Topic
from p2p.wire import presence as wire
from p2p.wire.frames import FrameSplitter, frame
from p2p.wire.presence import PeersAsk, Presence

# Nobody is told where anything is: nodes find each other, and those who serve a dataset.

WANTED = DatasetId.from_public_key(b"w" * 32)
TAG = wire.tag_of(WANTED)


def now() -> int:
    return 1_700_000_000_000 + int(trio.current_time() * 1000)


def knows(node: Any, other: Any) -> bool:
    return node.driver._discovery.directory.of(other.peer, now()) is not None


def knows_holder(node: Any, *, tag: int = TAG) -> bool:
    return bool(node.driver._discovery.directory.holders(tag, now()))


async def line(town: Any, count: int, **settings: Any) -> list[Any]:
    """Nodes of which each was told of the one before it, and of no other."""
    nodes = [await town.known(1, **settings)]
    for seed in range(2, count + 1):
        nodes.append(await town.known(seed, connect=[nodes[-1]], **settings))
    return nodes


def said(seed: int, *, network: str = "test", issued: int = 0, **fields: Any) -> bytes:
    key = SigningKey(seed.to_bytes(32, "big"))
    whole = Presence(key=key.public, issued=issued or now(), lifetime=3600, **fields)
    return wire.seal(whole, network, key)


async def ask_raw(node: Any, stranger: Any, body: bytes) -> bytes | None:
    """Send a question as ``stranger`` and read what comes."""
    stream = await stranger.open_stream(node.peer, wire.PROTOCOL)
    await stream.send_all(frame(body))
    reader = FrameSplitter(1 << 20)
    try:
        while data := await stream.receive_some(1 << 16):
            for got in reader.feed(data):
                return got
    except PeerFault:
        return None  # it was reset
    return None


@pytest.mark.slow
async def test_a_newcomer_that_knows_one_peer_finds_who_serves(town: Any, autojump_clock: Any) -> None:
    """Twenty nodes in a line; the first serves; who comes last was told of the twentieth alone."""
    nodes = await line(town, 20, degree=0)
    nodes[0].shelf.chains[WANTED] = town.made_chain("w", 5)
    newcomer = await town.known(99, connect=[nodes[-1]], degree=0)
    await until(lambda: knows_holder(newcomer))
    assert newcomer.host.links == {nodes[-1].peer}
    assert await newcomer.driver.seek(WANTED) == 1
    assert nodes[0].peer in newcomer.host.links
    assert await newcomer.driver.chain_size(nodes[0].peer, WANTED) == 5


@pytest.mark.slow
async def test_it_is_found_three_hops_away_though_all_gossip_is_lost(town: Any, autojump_clock: Any) -> None:
    nodes = await line(town, 4, degree=0)
    nodes[0].shelf.chains[WANTED] = town.made_chain("w", 5)
    for node in nodes:
        node.host.validators.clear()
    await until(lambda: knows_holder(nodes[3]), 3600)
    assert await nodes[3].driver.seek(WANTED) == 1


async def test_it_is_asked_for_where_nothing_was_heard(town: Any, autojump_clock: Any) -> None:
    """The one between has not told: it is asked, and its answer is believed because the holder signed it."""
    holder, between = await line(town, 2, degree=0)
    newcomer = await town.known(3, connect=[between], degree=0)
    await trio.sleep(1)
    for node in (holder, between, newcomer):
        node.host.validators.clear()
    between.driver._discovery.directory.admit(said(1, addresses=(), tags=(TAG,)), holder.peer, now())
    assert not knows_holder(newcomer)
    await newcomer.driver.seek(WANTED)
    assert knows_holder(newcomer)


@pytest.mark.slow
async def test_a_mesh_grows_by_itself_and_survives_its_bootstrap(town: Any, autojump_clock: Any) -> None:
    """Attack T-HEAD-07: a bootstrap peer that disappears, or hides others.

    Defence: eight connections are kept to peers known from elsewhere.
    """
    first = await town.known(1, degree=4)
    others = [await town.known(seed, connect=[first], degree=4) for seed in range(2, 13)]
    await until(lambda: all(len(node.host.links) >= 4 for node in others), 300)
    for node in others:
        town.fabric.part(node.host, first.host)
    first.host.reachable = False
    seen, edge = set(), {others[0].peer}
    while edge:
        seen |= edge
        edge = {peer for one in edge for peer in town.fabric.hosts[one].links} - seen
    assert seen == {node.peer for node in others}


async def test_who_serves_nothing_is_not_found(town: Any, autojump_clock: Any) -> None:
    nodes = await line(town, 3, degree=0)
    await until(lambda: knows(nodes[2], nodes[0]))
    assert await nodes[2].driver.seek(WANTED) == 0


@pytest.mark.slow
async def test_who_looks_for_a_dataset_all_the_time_is_no_flood(town: Any, autojump_clock: Any) -> None:
    """Attack T-PEER-05: a publisher so busy that its followers seem to flood each other.

    Defence: a node sends at most three quarters of the questions that it allows others.

    A mirror looks for holders at each head that nobody serves yet; a publisher may sign twenty a second.
    """
    asked, asker = await line(town, 2, degree=0)
    others = [DatasetId.from_public_key(bytes([number]) * 32) for number in range(100)]
    for dataset in [WANTED] * 400 + others:
        assert await asker.driver.seek(dataset) == 0
        await trio.sleep(0.05)
    assert asked.score(asker) == 0


async def test_a_dead_address_costs_one_dial_and_a_rest(town: Any, autojump_clock: Any) -> None:
    """Attack T-REACH-01: making a node dial a victim again and again.

    Defence: one dial, then growing pauses.
    """
    holder, between = await line(town, 2, degree=0)
    holder.shelf.chains[WANTED] = town.made_chain("w", 5)
    newcomer = await town.known(3, connect=[between], degree=0)
    await until(lambda: knows_holder(newcomer))
    holder.host.reachable = False
    before = len(newcomer.host.dials)
    assert [await newcomer.driver.seek(WANTED) for _ in range(5)] == [0] * 5
    assert len(newcomer.host.dials) == before + 1


async def test_holders_elsewhere_are_met_one_of_each_network(town: Any, autojump_clock: Any) -> None:
    """Who knows peers of one network alone asks them for others, and dials no network twice, whatever it is told."""
    hub = await town.known(1, degree=0)
    holders = []
    for seed, network in enumerate((0, 0, 1, 1, 1, 2, 3), start=2):
        holder = await town.known(seed, degree=0)
        holder.host.address = holder.host.address.replace("/ip4/10.0.", f"/ip4/10.{network}.")
        holder.shelf.chains[WANTED] = town.made_chain("w", 5)
        await holder.driver.connect(hub.host.address)
        holders.append((holder, f"10.{network}.0.0/16"))
    await until(lambda: len(hub.driver._discovery.directory.holders(TAG, now())) == 7)
    newcomer = await town.known(50, connect=[hub], degree=0)
    newcomer.driver._discovery.directory._known.clear()
    assert await newcomer.driver.seek(WANTED, ["10.0.0.0/16"]) == 3
    met = [network for holder, network in holders if holder.peer in newcomer.host.links]
    assert sorted(met) == ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]
    assert await newcomer.driver.seek(WANTED, ["10.0.0.0/16", *met]) == 0


async def test_nobody_is_made_to_dial_into_its_own_house(town: Any, autojump_clock: Any) -> None:
    """Attack T-REACH-01: making a node dial its own network.

    Defence: addresses from others are dialled on the Internet only, and in networks that `p2p.inside` names; this
    machine only if the owner's settings name nothing beyond it.

    A presence names the loopback and a printer of whoever reads it, beside a public address.
    """
    node = await town.known(1, degree=0)
    node.host.address = "/ip4/203.0.113.7/tcp/4150/p2p/" + node.peer
    liar = said(7, addresses=("/ip4/127.0.0.1/tcp/22", "/ip4/8.8.8.8/tcp/53", "/ip4/169.254.169.254/tcp/80"))
    addresses = node.driver._discovery.addresses(wire.decode(liar))
    assert [one.split("/p2p/")[0] for one in addresses] == ["/ip4/8.8.8.8/tcp/53"]


async def test_what_a_peer_never_said_is_penalised(town: Any, autojump_clock: Any) -> None:
    """Attack T-PEER-02: unsigned presences, or presences of another network.

    Defence: the signature covers the network; a penalty.
    """
    node = await town.known(1, degree=0)
    stranger = town.bare(str(peer_of_did(SigningKey(bytes(31) + b"\7").did)))
    town.fabric.join(stranger, node.host)
    good = said(7, addresses=("/ip4/10.9.9.9/tcp/1",))
    for body, penalised in (
        (good, False),
        (good, False),
        (said(7, network="another", issued=now() + 5), True),
        (good[:-1] + bytes([good[-1] ^ 1]), False),  # known already: its signature is not looked at
        (said(8)[:-1] + b"!", True),
        (b"\1garbage", True),
    ):
        before = node.score(stranger)
        await trio.sleep(3)
        await ask_raw(node, stranger, wire.encode_ask(PeersAsk(wanted=4, own=body)))
        assert (node.score(stranger) < before * 0.99 - 1) is penalised, body[:8]
    assert len(node.driver._discovery.directory) == 1


async def test_garbage_and_floods_of_questions_cost_standing(town: Any, autojump_clock: Any) -> None:
    node = await town.known(1, degree=0)
    stranger = town.bare("stranger")
    town.fabric.join(stranger, node.host)
    assert await ask_raw(node, stranger, b"\2") is None
    assert node.score(stranger) <= -20
    fast = town.bare("fast")
    town.fabric.join(fast, node.host)
    answers = [await ask_raw(node, fast, wire.encode_ask(PeersAsk(wanted=4))) for _ in range(40)]
    assert sum(one is not None for one in answers) < 25
    assert -25 < node.score(fast) < -10


async def test_an_answer_with_more_than_was_asked_for_is_a_violation(town: Any, autojump_clock: Any) -> None:
    async def flood(stream: Any, peer: Any) -> None:
        await stream.receive_some(1 << 16)
        most = wire.encode_answer([said(seed) for seed in range(100, 100 + discovery.SAMPLE)])
        one_more = wire.encode_answer([said(99)])
        await stream.send_all(frame(most[:1] + bytes([discovery.SAMPLE + 1]) + most[2:] + one_more[2:]))

    liar = town.bare("liar", peers=flood)
    node = await town.known(1, degree=0, connect=[liar])
    await until(lambda: node.score(liar) <= -19)
    assert len(node.driver._discovery.directory) == 0


async def test_ten_thousand_invented_peers_push_out_nobody(town: Any, autojump_clock: Any) -> None:
    """Attack T-FIND-01: ten thousand invented peers.

    Defence: the directory is bounded; when it is full, entries from the subnet that sent most are removed first.
    """
    nodes = await line(town, 3, degree=0)
    await until(lambda: knows(nodes[2], nodes[0]))
    directory = nodes[2].driver._discovery.directory
    directory._capacity = 20
    for seed in range(1000, 1100):
        directory.admit(said(seed), nodes[1].peer + "x", now())
    assert len(directory) == 20
    assert knows(nodes[2], nodes[0])
    assert knows(nodes[2], nodes[1])


@pytest.mark.slow
async def test_a_presence_ends(town: Any, autojump_clock: Any) -> None:
    nodes = await line(town, 3, degree=0)
    await until(lambda: knows(nodes[2], nodes[0]))
    town.fabric.part(nodes[0].host, nodes[1].host)
    await trio.sleep(discovery.LIFETIME + 1)
    assert not knows(nodes[2], nodes[0])
    assert knows(nodes[2], nodes[1])


async def test_connected_peers_alone_count_as_those_that_serve_a_dataset(town: Any, autojump_clock: Any) -> None:
    """Who left, or was only told of by others, holds nothing for us now."""
    holder, asker = await line(town, 2, degree=0)
    holder.shelf.chains[WANTED] = town.made_chain("w", 5)
    other = DatasetId.from_public_key(b"o" * 32)
    await until(lambda: knows_holder(asker))
    assert asker.driver.serving([WANTED, other]) == {WANTED: {holder.peer}}
    assert [view.datasets for view in asker.driver.peers()] == [1]
    far = await town.known(3, connect=[asker], degree=0)
    await until(lambda: knows_holder(far))
    assert far.driver.serving([WANTED]) == {}
    await asker.host.disconnect(holder.peer)
    await until(
        lambda: not asker.driver.book.connected_peers() or holder.peer not in asker.driver.book.connected_peers()
    )
    assert asker.driver.serving([WANTED]) == {}


# A bootstrap peer that is connected but has not said in which network it is: waited for, and dialled when it goes.


@pytest.mark.slow
async def test_who_goes_before_it_said_where_it_is_is_dialled_again_at_once(autojump_clock: Any, town: Any) -> None:
    """The node was without peers until its next round of anti-entropy, a minute later."""
    hub = town.bare("hub")
    hub.reachable = False
    a = await town.node("a", bootstrap=(hub.address,), entropy_interval=1e9)
    silent: set[PeerId] = {hub.peer_id}
    counted = type(a.host).peers
    a.host.peers = lambda: {peer: at for peer, at in counted(a.host).items() if peer not in silent}
    tell = a.host.tell
    a.host.tell = lambda peer, up: None if up and peer in silent else tell(peer, up)
    hub.reachable = True
    await trio.sleep(30.0)
    dials = len(a.host.dials)
    await trio.sleep(30.0)
    assert (len(a.host.dials), hub.peer_id in a.host.links) == (dials, True), "it is waited for"
    assert not any(view.connected for view in a.driver.peers()), "it has not said that it is in the network"
    town.fabric.part(a.host, hub)
    await trio.sleep(0.1)
    assert len(a.host.dials) == dials + 1
    silent.clear()
    tell(hub.peer_id, up=True)
    await trio.sleep(0.1)
    assert [view.peer for view in a.driver.peers() if view.connected] == [hub.peer_id]


@pytest.mark.slow
async def test_who_hangs_up_again_and_again_is_dialled_ever_less_often(autojump_clock: Any, town: Any) -> None:
    hub = town.bare("hub")
    a = await town.node("a", bootstrap=(hub.address,), entropy_interval=1e9, degree=0)
    with trio.move_on_after(60.0):
        while True:
            await trio.sleep(0.02)
            town.fabric.part(a.host, hub)
    waits = [after - before for (before, _), (after, _) in zip(a.host.dials, a.host.dials[1:], strict=False)]
    assert len(waits) < 10, waits
    assert max(waits) > 8.0, waits


@pytest.mark.slow
@pytest.mark.parametrize("is_dialled", [True, False], ids=["met-by-being-dialled", "met-by-dialling"])
async def test_a_network_is_joined_by_who_was_met_before_when_every_bootstrap_is_gone(
    autojump_clock: Any, town: Any, is_dialled: bool
) -> None:
    """Also by a node that never dialled anybody: what its peers signed of where they are is remembered."""
    hubs = [await town.known(seed, degree=0) for seed in (1, 2)]
    where = tuple(hub.host.address for hub in hubs)
    node = await town.known(3, degree=0, bootstrap=where)
    friends = [await town.known(seed, degree=0, bootstrap=where) for seed in (4, 5, 6)]
    for friend in friends:
        one, other = (friend, node) if is_dialled else (node, friend)
        await one.driver.connect(other.host.address)
    await trio.sleep(5.0)
    kept = node.driver.book.snapshot(trio.current_time())
    for hub in hubs:
        hub.host.reachable = False
    node.host.reachable = False
    for other in (*hubs, *friends):
        town.fabric.part(node.host, other.host)
    again = await town.known(3, degree=4, bootstrap=where)
    again.driver.book.restore(kept, trio.current_time())
    await trio.sleep(240.0)  # a dial at a time, each after a random pause
    assert again.host.links == {friend.peer for friend in friends}


@pytest.mark.slow
async def test_a_node_that_moved_dials_those_it_knew_at_once(autojump_clock: Any, town: Any) -> None:
    """One connection is back; the others came one by one, each some seconds after the last one."""
    took = {}
    for has_moved, (first, seeds) in {False: (10, (11, 12, 13)), True: (20, (21, 22, 23))}.items():
        node = await town.known(first)
        others = [await town.known(seed, degree=0) for seed in seeds]
        for other in others:
            await node.driver.connect(other.host.address)
        await trio.sleep(1.0)
        for other in others[1:]:
            town.fabric.part(node.host, other.host)
        begun = trio.current_time()
        if has_moved:
            node.driver.redial()
        for _ in range(1000):
            await trio.sleep(0.05)
            if all(other.host.peer_id in node.host.links for other in others):
                break
        took[has_moved] = trio.current_time() - begun
    assert took[True] < 2.5 < took[False], took


# In a network too large for all to hear all, words on a dataset reach those who want it, and cost others little.
#
# Budgets for what nobody wants here are used up from the start: that is how a node of a large network stands.


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody passes on what it does not want."""
    monkeypatch.setattr(forwarding, "UNWANTED", Rate(per_second=0.0, burst=0.0))


def indifferent(*nodes: Any) -> None:
    """They want nothing, and rounds over all are used up."""
    for node in nodes:
        node.board.wants_all = False
        node.driver._statements._scope.cost(100 * int(WIDE.burst), trio.current_time())


def wanting(town: Any, *nodes: Any, serves: bool = True) -> None:
    indifferent(*nodes)
    for node in nodes:
        node.board.wanted.add(WANTED)
        if serves:
            node.shelf.chains[WANTED] = town.made_chain("w", 5)
            node.driver.look_again()


def heard(node: Any) -> list[bytes]:
    return sorted(envelope for _, envelope, _ in node.board.held.values())


async def until(look: Callable[[], object], seconds: float = 120) -> None:
    with trio.fail_after(seconds):
        while not look():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.5)


async def test_what_nobody_wants_goes_to_those_who_asked_for_it_alone(
    autojump_clock: Any, town: Any, large: None
) -> None:
    """publisher - hub; mirror and idler know the hub alone, and the mirror has nothing yet that it could serve."""
    hub = await town.known(1, degree=0)
    publisher, mirror, idler = [await town.known(seed, connect=[hub], degree=0) for seed in (2, 3, 4)]
    indifferent(hub, idler)
    await mirror.driver.pull_statements(hub.peer, [WANTED])
    await publisher.driver.announce(Topic.HEADS, b"okw head")
    await trio.testing.wait_all_tasks_blocked()
    assert (heard(hub), heard(mirror), heard(idler)) == ([b"okw head"], [b"okw head"], [])
    await publisher.driver.announce(Topic.HEADS, b"okx of another dataset")
    await trio.testing.wait_all_tasks_blocked()
    assert heard(mirror) == [b"okw head"]
    assert hub.driver.figures().unwanted == 2
    assert hub.driver.figures().kept_back == 0


@pytest.mark.slow
async def test_what_nobody_wants_goes_to_those_who_say_they_serve_it(
    autojump_clock: Any, town: Any, large: None
) -> None:
    hub = await town.known(1, degree=0)
    publisher, holder, idler = [await town.known(seed, connect=[hub], degree=0) for seed in (2, 3, 4)]
    indifferent(hub, idler)
    wanting(town, holder)
    await until(lambda: holder.peer in hub.driver._discovery.naming([WANTED]))
    await publisher.driver.announce(Topic.HEADS, b"okw head")
    await trio.testing.wait_all_tasks_blocked()
    assert (heard(holder), heard(idler)) == ([b"okw head"], [])


@pytest.mark.slow
async def test_in_a_small_network_all_hear_all(autojump_clock: Any, town: Any) -> None:
    hub = await town.known(1, degree=0)
    publisher, idler = [await town.known(seed, connect=[hub], degree=0) for seed in (2, 4)]
    hub.board.wants_all = idler.board.wants_all = False
    for number in range(200):
        await publisher.driver.announce(Topic.HEADS, b"okw head %03d" % number)
        await trio.sleep(1)
    assert len(heard(idler)) == 200


@pytest.mark.slow
async def test_a_flood_of_what_nobody_wants_uses_up_no_room_of_what_is_wanted(autojump_clock: Any, town: Any) -> None:
    """Attack T-HEAD-08: statements without end on datasets of no interest, to use up the forwarding budget.

    Defence: they have a budget of bytes of their own; statements on datasets of interest go to peers that serve or
    requested these, whatever was used up.

    Strangers sign on and on of datasets of their own; the mirror behind the hub hears of its own at once.
    """
    hub = await town.known(1, degree=0)
    publisher, mirror, idler = [await town.known(seed, connect=[hub], degree=0) for seed in (2, 3, 4)]
    indifferent(hub, idler)
    wanting(town, mirror)
    await until(lambda: mirror.peer in hub.driver._discovery.naming([WANTED]))
    before = town.fabric.carried[idler.peer]
    strangers = [town.bare(f"s{number}") for number in range(3)]
    for one in strangers:
        town.fabric.join(one, hub.host)
    padding = b"." * 20_000
    for number in range(400):
        for one in strangers:
            await one.publish(
                "/odf/1/test/heads", b"ok%c %d" % (97 + number % 20, number) + one.peer_id.encode() + padding
            )
        await trio.sleep(0.1)
    await publisher.driver.announce(Topic.HEADS, b"okw head")
    await trio.sleep(1)
    assert b"okw head" in heard(mirror)
    carried = town.fabric.carried[idler.peer] - before
    assert carried <= forwarding.UNWANTED.within_limit().burst + 100 * forwarding.UNWANTED.per_second, (
        "and the rest hears little"
    )
    assert hub.driver.figures().unwanted > 500


@pytest.mark.slow
async def test_a_mirror_that_lost_its_publisher_hears_from_others(autojump_clock: Any, town: Any, large: None) -> None:
    """Attack T-HEAD-07: a publisher cut off from all mirrors but one, so that the others miss new heads.

    Defence: a node keeps two connections to peers that serve a dataset of interest, contacts a random further one from
    time to time, and forwards the publisher's statements.

    A crowd that wants nothing, a publisher, five mirrors. Each head is known to all within two minutes, also after
    the publisher is lost to all but one of them, and when that one is lost too and another comes.
    """
    first = await town.known(1, degree=4)
    crowd = [first, *[await town.known(seed, connect=[first], degree=4) for seed in range(2, 14)]]
    publisher, *mirrors = [await town.known(seed, connect=[crowd[seed % 13]], degree=1) for seed in range(20, 26)]
    indifferent(*crowd)
    wanting(town, publisher, *mirrors)
    await until(lambda: all(len(one.driver._discovery.naming([WANTED])) >= ENOUGH for one in mirrors), 900)
    said = 0

    async def tell(times: int, *whom: Any) -> None:
        nonlocal said
        for _ in range(times):
            said += 1
            head = b"okw head %03d" % said
            await publisher.driver.announce(Topic.HEADS, head)
            await until(lambda head=head: all(head in heard(mirror) for mirror in whom))
            await trio.sleep(30)

    await tell(3, *mirrors)
    publisher.host.reachable = False
    for peer in sorted(publisher.host.links - {mirrors[0].peer}):
        town.fabric.part(publisher.host, town.fabric.hosts[peer])
    town.fabric.join(publisher.host, mirrors[0].host)
    await tell(3, *mirrors)
    town.fabric.part(publisher.host, mirrors[0].host)
    town.fabric.join(publisher.host, mirrors[3].host)
    await tell(3, *mirrors)
    idle = [len(heard(node)) for node in crowd]
    assert sum(idle) < 13 * said, f"the crowd is not told all: {idle}"


async def test_cards_that_nobody_wants_take_no_room_of_heads(autojump_clock: Any) -> None:
    """Attack T-CARD-01: cards that use up the forwarding budget, so that heads are delayed.

    Defence: cards of no interest have a budget of their own.

    However many come, by whomever: what is short and urgent goes on.
    """
    sender = PeerId("sender")
    host: Any = SimpleNamespace(share_of=lambda _: "192.0.2.0/24", peers=list)
    room = forwarding.Forwarding(host, lambda _: set(), Rate(per_second=1e6, burst=1e6))
    cards, head = Concern((WANTED,), is_wanted=False, is_bulky=True), Concern((WANTED,), is_wanted=False)
    passed = [room.verdict(sender, cards, 8 << 10).judgement for _ in range(2000)]
    assert 0 < passed.count(Judgement.ACCEPT) * (8 << 10) < forwarding.BULKY.burst
    assert passed[-1] is Judgement.IGNORE
    assert [room.verdict(sender, head, 1 << 10).judgement for _ in range(1000)].count(Judgement.ACCEPT) == 1000
