"""Nobody is told where anything is: nodes find each other, and those who serve a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from chain.ids import DatasetId
from chain.statements.keys import SigningKey
from p2p.driver import discovery
from p2p.errors import PeerFault
from p2p.identity import peer_of_did
from p2p.wire import presence as wire
from p2p.wire.frames import FrameSplitter, frame
from p2p.wire.presence import PeersAsk, Presence

WANTED = DatasetId.from_public_key(b"w" * 32)
TAG = wire.tag_of(WANTED)


def now() -> int:
    return 1_700_000_000_000 + int(trio.current_time() * 1000)


async def until(look: Callable[[], object], seconds: float = 60) -> None:
    with trio.fail_after(seconds):
        while not look():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.5)


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
    """A mirror looks for holders at each head that nobody serves yet; a publisher may sign twenty a second."""
    asked, asker = await line(town, 2, degree=0)
    others = [DatasetId.from_public_key(bytes([number]) * 32) for number in range(100)]
    for dataset in [WANTED] * 400 + others:
        assert await asker.driver.seek(dataset) == 0
        await trio.sleep(0.05)
    assert asked.score(asker) == 0


async def test_a_dead_address_costs_one_dial_and_a_rest(town: Any, autojump_clock: Any) -> None:
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
    """A presence names the loopback and a printer of whoever reads it, beside a public address."""
    node = await town.known(1, degree=0)
    node.host.address = "/ip4/203.0.113.7/tcp/4150/p2p/" + node.peer
    liar = said(7, addresses=("/ip4/127.0.0.1/tcp/22", "/ip4/8.8.8.8/tcp/53", "/ip4/169.254.169.254/tcp/80"))
    addresses = node.driver._discovery.addresses(wire.decode(liar))
    assert [one.split("/p2p/")[0] for one in addresses] == ["/ip4/8.8.8.8/tcp/53"]


async def test_what_a_peer_never_said_is_penalised(town: Any, autojump_clock: Any) -> None:
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
