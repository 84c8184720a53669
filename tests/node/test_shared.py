"""A dataset that is shared with some peers: these have it by every way, and for everybody else it is nowhere."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest

from chain.errors import Fault, Invalid, Refused
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.store.database import open_database
from odfd.control import wire
from odfd.mirrors.sync import UNSHARED
from odfd.store.references import objects_of
from odfd.store.shares import Shares
from p2p.driver import serve
from p2p.identity import peer_of_did
from p2p.machines import reconcile
from p2p.wire import chains, trust
from p2p.wire.chains import BlockRange
from p2p.wire.frames import PREFIX
from p2p.wire.objects import ObjectRange, ObjectsAsk
from p2p.wire.trust import GetAsk, ListAsk, ProveAsk, SumAsk
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,200000")
LISTED, REVOKED, STRANGER = (peer_of_did(KeyDid.from_public_key(bytes([at]) * 32)) for at in (1, 2, 3))
NOWHERE = DatasetId.from_public_key(b"\7" * 32)
NOTHING = Multihash.sha3_256(b"nowhere")


class Subject(NamedTuple):
    """A dataset, or what is nowhere, by all that somebody may ask for."""

    dataset: DatasetId = NOWHERE
    object: Multihash = NOTHING
    sid: Multihash = NOTHING


def served(node: Node, peer: Any, request: Any) -> bytes:
    """The very bytes that go to the wire, as ``p2p.driver.serve`` makes them."""
    return bytes(serve.answer(node.member.library.to(peer), request, deque())[PREFIX:])


def told(node: Node, peer: Any, ask: Any) -> bytes:
    """As ``p2p.driver.statements`` makes them."""
    board, library = node.member.board, node.member.library.to(peer)
    mine = board.to(peer)

    def prove(ask: ProveAsk) -> list[bytes]:
        return library.prove(ask.dataset, ask.size, old=ask.old, index=ask.index)

    return trust.encode(reconcile.answer(ask, board.refs, mine.envelope, prove, mine.refs))


WAYS: dict[str, Callable[[Any, Any, Subject], bytes]] = {
    "size": lambda node, peer, of: served(node, peer, BlockRange(request=1, dataset=of.dataset, start=0, max_bytes=0)),
    "blocks": lambda node, peer, of: served(node, peer, BlockRange(request=1, dataset=of.dataset, start=0)),
    "object": lambda node, peer, of: served(node, peer, ObjectRange(request=1, name=of.object, offset=0, length=100)),
    "small objects": lambda node, peer, of: served(node, peer, ObjectsAsk(request=1, names=(of.object,))),
    "proof": lambda node, peer, of: told(node, peer, ProveAsk(dataset=of.dataset, size=1, index=0)),
    "listing": lambda node, peer, of: told(node, peer, ListAsk(datasets=(of.dataset,), private=True)),
    "statements": lambda node, peer, of: told(node, peer, GetAsk((of.sid,))),
}
OPEN_WAYS: dict[str, Callable[[Any, Any, Subject], bytes]] = {
    "sums": lambda node, peer, _: told(node, peer, SumAsk()),
    "listing of all": lambda node, peer, _: told(node, peer, ListAsk(buckets=tuple(range(256)))),
    "listing that is passed on": lambda node, peer, of: told(node, peer, ListAsk(datasets=(of.dataset,))),
}
"""What whoever asks may pass on tells nobody, not even whom it is shared with."""


async def a_shared_one(world: World, node: Node) -> Subject:
    """Shared with ``LISTED``, and with ``REVOKED`` no more."""
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT, DERIVED)
    await node.pull()
    cities = node.dataset("cities")
    visibility, now = node.parts.visibility, node.clock.now()
    assert visibility.share(cities, [LISTED, REVOKED], now)
    assert WAYS["size"](node, REVOKED, Subject(cities)) != WAYS["size"](node, REVOKED, Subject())
    assert visibility.revoke(cities, [REVOKED])
    node.features.datasets.change_visibility(cities)
    return Subject(cities, *named_in(node, cities, LISTED))


async def test_who_has_a_shared_dataset_by_which_way(world: World) -> None:
    """Every way, and everybody: what is not shared with a peer is answered byte by byte as what is nowhere."""
    async with world.running("alice", private=True) as alice:
        shared = await a_shared_one(world, alice)
        for way, ask in WAYS.items():
            nowhere = ask(alice, STRANGER, Subject())
            answers = {peer: ask(alice, peer, shared) for peer in (LISTED, REVOKED, STRANGER)}
            assert answers[LISTED] != nowhere, way
            assert answers[REVOKED] == answers[STRANGER] == nowhere == ask(alice, LISTED, Subject()), way
        for way, ask in OPEN_WAYS.items():
            before = ask(alice, LISTED, Subject())
            assert ask(alice, LISTED, shared) == ask(alice, STRANGER, shared) == before, way
        assert shared.dataset not in alice.member.library.datasets(100), "presences go round"
        assert shared.dataset not in alice.member.board.interests()
        await alice.parts.outbox._loop._work()
        assert alice.member.announced == []
        await alice.publish("cities")
        assert all(ask(alice, STRANGER, shared) != ask(alice, STRANGER, Subject()) for ask in WAYS.values())
        await alice.unpublish("cities")
        data = [ask for way, ask in WAYS.items() if way != "listing"]  # which tells that it was taken back
        assert all(ask(alice, LISTED, shared) == ask(alice, LISTED, Subject()) for ask in data), "to nobody"


async def test_what_is_private_takes_the_lookups_of_what_is_nowhere(world: World) -> None:
    """No time of an answer tells them apart: they ask the database the same, as often."""
    async with world.running("alice", private=True) as alice:
        shared = await a_shared_one(world, alice)
        towns = Subject(alice.dataset("towns"))
        for way in ("size", "blocks", "proof", "listing"):
            for peer in (REVOKED, STRANGER):
                costs = {len(looked(alice, partial(WAYS[way], alice, peer, of))) for of in (shared, towns, Subject())}
                assert len(costs) == 1, (way, costs)


def looked(node: Node, work: Callable[[], Any]) -> list[str]:
    """What this thread asked the database meanwhile: the node's own threads ask it too."""
    asked: list[str] = []
    database, read, here = node.home.database, node.home.database.read, threading.get_ident()

    @contextmanager
    def traced() -> Iterator[sqlite3.Connection]:
        with read() as connection:
            connection.set_trace_callback(asked.append if threading.get_ident() == here else None)
            try:
                yield connection
            finally:
                connection.set_trace_callback(None)

    database.read = traced
    try:
        work()
    finally:
        del database.read
    assert asked
    return asked


async def test_a_transfer_under_way_ends_with_the_next_part(world: World) -> None:
    """What is remembered of objects that are being given is nobody else's, and no longer than the word holds."""
    async with world.running("alice", private=True) as alice:
        shared = await a_shared_one(world, alice)
        library = alice.member.library.to(LISTED)
        assert serve.answer(library, ObjectRange(request=1, name=shared.object, offset=0, length=50), deque())
        assert WAYS["object"](alice, STRANGER, shared) == WAYS["object"](alice, STRANGER, Subject())
        assert alice.parts.visibility.revoke(shared.dataset, [LISTED])
        for way, ask in WAYS.items():
            assert ask(alice, LISTED, shared) == ask(alice, LISTED, Subject()), way
        rest = serve.answer(library, ObjectRange(request=1, name=shared.object, offset=50, length=50), deque())
        assert bytes(rest[PREFIX:]) == WAYS["object"](alice, STRANGER, Subject())


async def test_sharing_outlives_a_restart_and_not_a_deletion(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        shared = await a_shared_one(world, alice)
    async with world.running("alice", private=True) as alice:
        assert alice.parts.visibility.shared_with(shared.dataset) == [LISTED]
        assert chains.decode_chain_reply(WAYS["blocks"](alice, LISTED, shared)).blocks
        await alice.api.declarations.delete("Dataset", "towns")
        await alice.api.declarations.delete("Dataset", "cities")
        assert alice.parts.visibility.shared_with(shared.dataset) == []


async def test_many_are_asked_for_as_one_is(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        shared = await a_shared_one(world, alice)
        many = [DatasetId.from_public_key(bytes([at]) * 32) for at in range(9)]
        asked = [shared.dataset, alice.dataset("towns"), *many]
        for peer in (LISTED, REVOKED, None):
            one_by_one = {each for each in asked if alice.parts.visibility.is_public(each, peer)}
            assert alice.parts.visibility.public_of(asked, peer) == one_by_one
            assert (shared.dataset in one_by_one) == (peer == LISTED)


def test_a_row_that_is_damaged_shares_nothing(tmp_path: Any) -> None:
    database = open_database(tmp_path / "db")
    database.migrate(Shares.ROOM, Shares.STEPS)
    with database.write() as connection:
        kept = Shares(connection)
        kept.put(NOWHERE, LISTED, 7)  # type: ignore[arg-type]
        kept.put(NOWHERE, REVOKED, 7)  # type: ignore[arg-type]
        connection.execute("UPDATE shares SET peer = ? WHERE peer = ?", (STRANGER, LISTED))
        assert [kept.has(NOWHERE, peer) for peer in (LISTED, REVOKED, STRANGER, None)] == [False, True, False, False]
        assert (kept.peers(NOWHERE), kept.of_peer(STRANGER)) == ([REVOKED], frozenset())
        assert (kept.drop(NOWHERE, REVOKED), kept.drop(NOWHERE, REVOKED)) == (True, False)
    database.close()


async def test_a_list_has_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfd.store.visibility.MAX_PEERS", 2)
    async with world.running("alice", private=True) as alice:
        visibility, now = alice.parts.visibility, alice.clock.now()
        assert visibility.share(NOWHERE, [LISTED, REVOKED], now)
        assert not visibility.share(NOWHERE, [LISTED], now)
        with pytest.raises(Refused, match="shared with 3 peers"):
            visibility.share(NOWHERE, [STRANGER], now)
        assert visibility.shared_with(NOWHERE) == sorted([LISTED, REVOKED])


async def shared_among(world: World, alice: Node, bob: Node) -> DatasetId:
    """Alice shares cities with Bob, who takes it from her."""
    world.write("alice", "a.csv", *ROWS)
    await alice.apply(ROOT, DERIVED)
    await alice.pull()
    view = await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(bob.key,)))
    assert (view.changed, view.published, view.shared_with) == (True, False, (bob.member.peer_id,))
    cities: DatasetId = alice.dataset("cities")
    held = await bob.mirror(cities, "theirs", peers=(alice.member.peer_id[:20],))
    assert (held.state, held.serving, held.shared_by) == ("current", False, [alice.member.peer_id])
    return cities


async def test_a_shared_dataset_comes_to_whom_it_is_shared_with_and_goes_no_further(world: World) -> None:
    """Bob has it from Alice, also what comes later; Carol is asked nothing, told nothing, and given nothing."""
    async with (
        world.running("alice", private=True) as alice,
        world.running("bob", private=True) as bob,
        world.running("carol", private=True) as carol,
    ):
        asked = questions_to(carol)
        cities = await shared_among(world, alice, bob)
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        await bob.pull("theirs")
        assert bob.size("theirs") == alice.size("cities")
        (view,) = [each for each in await alice.dataset_views() if each.name == "cities"]
        assert (view.published, view.shared_with) == (False, (bob.member.peer_id,))
        everything = Subject(cities, *named_in(alice, cities, bob.member.peer_id))
        for node in (alice, bob):
            for way, ask in (WAYS | OPEN_WAYS).items():
                assert ask(node, carol.member.peer_id, everything) == ask(node, STRANGER, Subject()), way
            assert node.member.announced == []
        await carol.mirror_in_vain(cities, "theirs", lambda mirror: mirror.passes > 0)
        await carol.mirror_in_vain(cities, "theirs", lambda mirror: mirror.passes > 1)
        assert not any(cities in each for each in asked), "nobody told Carol which it is"
        for refused in (
            bob.publish("theirs"),
            bob.api.visibility.share(wire.ShareRequest(ref="theirs", peers=(carol.key,))),
        ):
            with pytest.raises(Refused, match="others share theirs with this node"):
                await refused
        await bob.publish()
        assert not bob.parts.visibility.is_public(cities)


def questions_to(node: Node) -> list[Sequence[DatasetId]]:
    """The datasets that a node is asked for by name, from now on."""
    asked: list[Sequence[DatasetId]] = []
    board, library = node.member.board, node.member.library
    refs, size = board.refs, library.size
    copied_board, copied_library = board.to, library.to

    def told(peer: Any) -> Any:
        given = copied_board(peer)
        given.refs = lambda datasets=None: asked.append(datasets or ()) or refs(datasets)
        return given

    def shown(peer: Any) -> Any:
        given = copied_library(peer)
        given.size = lambda dataset: asked.append([dataset]) or size(dataset)
        return given

    board.refs = lambda datasets=None: asked.append(datasets or ()) or refs(datasets)
    board.to, library.to = told, shown
    return asked


def named_in(node: Node, dataset: DatasetId, peer: Any) -> tuple[Multihash, Multihash]:
    """An object of it, and a statement that is told to a peer."""
    chain = node.home.chains.chain(dataset)
    (name, *_) = (name for at in range(chain.head().size) for name, _ in objects_of(chain.block_at(at)))
    (ref, *_) = node.member.board.to(peer).refs([dataset])
    return name, ref.sid


async def test_whoever_does_not_say_that_it_passes_nothing_on_hears_nothing(world: World) -> None:
    """A listed peer that mirrors it as if it were public would publish it: it never hears a head."""
    async with world.running("alice", private=True) as alice, world.running("bob", private=True) as bob:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(bob.key,)))
        cities = alice.dataset("cities")
        waiting = await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.passes > 0)
        await bob.api.flow.pull(wire.PullRequest(refs=("theirs",)))
        assert waiting.message == "no signed head of it was seen yet, though 1 peer is connected"
        assert bob.size("theirs") == 0
        held = await bob.mirror(cities, "theirs", peers=(alice.member.peer_id,))
        assert (held.state, held.serving) == ("current", False)
        assert not bob.parts.visibility.is_public(cities), "that it was to be public does not outlast it"


async def test_a_revoked_peer_keeps_what_it_has_and_gets_no_more(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob", private=True) as bob:
        cities = await shared_among(world, alice, bob)
        before, everything = bob.size("theirs"), Subject(cities, *named_in(alice, cities, bob.member.peer_id))
        view = await alice.api.visibility.share(wire.ShareRequest(ref="cities", revoke=(bob.key,)))
        assert (view.changed, view.shared_with) == (True, ())
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        assert (await shown_of(bob, "theirs"))[1:] == ("stale", ("Unshared",))
        assert (bob.size("theirs"), alice.size("cities") > before) == (before, True)
        for way, ask in WAYS.items():
            assert ask(alice, bob.member.peer_id, everything) == ask(alice, STRANGER, Subject()), way
        assert {"dataset.shared", "dataset.revoked"} <= set(alice.kinds())
        assert not (await alice.api.visibility.share(wire.ShareRequest(ref="cities", revoke=(bob.key,)))).changed


async def shown_of(node: Node, name: str) -> tuple[str, str, tuple[str, ...]]:
    """What a pull says of a mirror, and what a list does after it."""
    (pulled,) = await node.pull(name)
    (view,) = [each for each in await node.dataset_views() if each.name == name]
    return pulled.outcome, view.state, view.conditions


async def test_a_mirror_says_that_it_is_shared_no_more_and_when_it_is_again(world: World) -> None:
    """An owner that answers as to a stranger; one that is away has said nothing, and changes nothing."""
    async with world.running("alice", private=True) as alice:
        async with world.running("bob", private=True) as bob:
            cities = await shared_among(world, alice, bob)
            assert await shown_of(bob, "theirs") == ("up-to-date", "fresh", ())
            revoke = wire.ShareRequest(ref="cities", revoke=(bob.key,))
            share = wire.ShareRequest(ref="cities", peers=(bob.key,))
            await alice.api.visibility.share(revoke)
            assert await shown_of(bob, "theirs") == ("blocked", "stale", ("Unshared",))
            (mirror,) = await bob.mirrors()
            assert (mirror.state, mirror.message) == ("waiting", UNSHARED)
            assert "mirror.unshared" in bob.kinds()
            await alice.api.visibility.share(share)
            assert await shown_of(bob, "theirs") == ("up-to-date", "fresh", ())
            await alice.api.visibility.share(revoke)
            assert (await shown_of(bob, "theirs"))[1] == "stale"
        async with world.running("bob", private=True) as bob:
            world.wires.cut.add(alice.member.peer_id)
            assert (await shown_of(bob, "theirs"))[1:] == ("stale", ("Unshared",)), "as it was heard last"
            assert not bob.parts.visibility.is_public(cities)


async def test_what_is_public_or_not_a_peer_is_not_shared(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        shared = await a_shared_one(world, alice)
        for nobody in ("12D3KooWnobody", f"{LISTED[:-1]}0", "did:key:z6"):
            with pytest.raises(Fault):
                await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(STRANGER, nobody)))
        with pytest.raises(Invalid, match="stands in both lists"):
            await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(STRANGER,), revoke=(STRANGER,)))
        assert alice.parts.visibility.shared_with(shared.dataset) == [LISTED], "all or none"
        await alice.publish("cities")
        with pytest.raises(Refused, match="cities is published") as told:
            await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(STRANGER,)))
        assert told.value.hint == "to give it to some alone: odfctl unpublish cities, then share it"
        view = await alice.api.visibility.share(wire.ShareRequest(ref="cities"))
        assert (view.published, view.shared_with, view.changed) == (True, (), False)
