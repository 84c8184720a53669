"""The lookup in whole drivers: a holder is found that nobody near ever met; only what is published is announced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from chain.ids import DatasetId
from chain.statements.keys import SigningKey
from p2p.driver import lookups
from p2p.lookup.node import Announcing
from p2p.peers.book import GARBAGE
from p2p.wire.contact import lookup_key
from p2p.wire.frames import frame
from p2p.wire.lookup import LOOKUP_PROTOCOL, Nodes, encode_nodes

DATASET = DatasetId.from_public_key(b"d" * 32)
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
    """Whoever searches is connected with it, and got nothing from it."""
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
