"""Networks of a node: joined by one line, left at once, and none learns what another has."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from node.test_private import OPEN_WAYS, ROWS, STRANGER, WAYS, Subject, looked, named_in

from chain.errors import Invalid, NotFound, Refused, Remote
from chain.ids import DatasetId, KeyDid
from chain.instant import SECOND, Instant
from chain.store.database import open_database
from chain.store.sqlite import SqliteChain
from config import model
from odfd.control import wire
from odfd.network.invitation import WELL_KNOWN
from odfd.network.joined_networks import Network
from odfd.queries import slices
from odfd.runtime.tasks import TaskPhase
from odfd.services.datasets import profiles
from odfd.store.ledger.cards import Cards
from odfd.store.shares import NetworkScopes
from odfd.store.slice_files import SliceFiles
from odfd.store.visibility import Marks, VisibilityMark
from odfd.verify.verify import ObjectQueue
from p2p.identity import peer_of_seed
from p2p.ports import Topic
from worlds.certificates import certified
from worlds.eventually import PATIENCE, became
from worlds.http_served import HttpServer, serving
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World
from worlds.web_site import Site

# A dataset that is published to one of several networks: members of the others cannot tell it from what is nowhere.


A, B = Network(name="a"), Network(name="b")


def inside(node: Node, network: str) -> Any:
    """The node as members of a network see it."""
    member = SimpleNamespace(library=node.parts.library.within(network), board=node.parts.board.within(network))
    return SimpleNamespace(member=member)


async def published_to(world: World, node: Node, *networks: str) -> Subject:
    await node.member.take_part(A, B)
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT, DERIVED)
    await node.pull()
    (done,) = await node.api.visibility.publish(wire.VisibilityRequest(refs=("cities",), to=networks))
    assert (done.changed, done.published, done.networks) == (True, True, networks)
    (shown,) = [each for each in await node.dataset_views() if each.name == "cities"]
    assert (shown.published, shown.published_in) == (True, networks)
    cities = node.dataset("cities")
    node.parts.heads.loop._work()
    seen = SimpleNamespace(home=node.home, member=inside(node, networks[0]).member)
    return Subject(cities, *named_in(seen, cities, STRANGER))


async def test_each_way_out_is_open_in_one_network_alone(world: World) -> None:
    """Attack T-PRIVATE-03: a request in one network for a dataset published in another: by each way out, in presences,
    by the number of queries to the database.

    Defence: one predicate with the network as its argument; a stream names its network, or belongs to the one that its
    peer declares.
    """
    async with world.running("alice", private=True) as alice:
        cities = await published_to(world, alice, "a")
        there, elsewhere, nowhere = inside(alice, "a"), inside(alice, "b"), Subject()
        for way, ask in WAYS.items():
            assert ask(there, STRANGER, cities) != ask(there, STRANGER, nowhere), way
            assert ask(elsewhere, STRANGER, cities) == ask(elsewhere, STRANGER, nowhere), way
            assert ask(alice, STRANGER, cities) == ask(alice, STRANGER, nowhere), "in no network"
        listed = OPEN_WAYS["listing of all"]
        assert listed(elsewhere, STRANGER, cities) != listed(there, STRANGER, cities)
        assert there.member.library.datasets(9) == [cities.dataset], "presences"
        assert elsewhere.member.library.datasets(9) == [] == list(alice.parts.library.datasets(9))
        assert cities.dataset in there.member.board.interests()
        assert cities.dataset not in elsewhere.member.board.interests()
        assert not alice.parts.visibility.is_public(cities.dataset), "sites, IPFS, witnesses and repositories"
        for way in ("size", "blocks", "proof", "listing"):
            costs = {len(looked(alice, lambda way=way, of=of: WAYS[way](elsewhere, STRANGER, of))) for of in
                     (cities, Subject(alice.dataset("towns")), nowhere)}  # fmt: skip
            assert len(costs) == 1, (way, costs)


async def test_gossip_and_what_is_taken_back_stay_in_the_network(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-PRIVATE-03: listening in one network for heads, cards and withdrawals of a dataset published in another.

    Defence: each is announced only in the networks of its dataset, a withdrawal where the card was.
    """
    async with world.running("alice", private=True) as alice:
        told: list[frozenset[str]] = []

        async def announce_in(networks: Any, _topic: Topic, _envelope: bytes) -> None:
            told.append(frozenset(networks))

        alice.member.announce_in = announce_in
        cities = await published_to(world, alice, "b")
        await alice.parts.outbox._loop._work()
        alice.parts.cards._settle(cities.dataset)
        await alice.unpublish("cities")
        later = Instant(alice.clock.now() + 3600 * SECOND)
        monkeypatch.setattr(alice.parts.cards._clock, "now", lambda: later)
        alice.parts.cards._settle(cities.dataset)
        with alice.home.database.read() as connection:
            taken_back = Cards(connection).of(cities.dataset)
        assert taken_back is not None
        assert taken_back.is_withdrawal
        await alice.parts.outbox._loop._work()
        assert alice.member.announced == []
        assert set(told) == {frozenset({"b"})}
        card = next(ref for ref in inside(alice, "b").member.board.refs([cities.dataset]))
        kind = alice.parts.board.envelope(card.sid)
        assert kind is not None
        assert inside(alice, "a").member.board.refs([cities.dataset]) == [], "it was never there"
        assert inside(alice, "a").member.board.envelope(card.sid) is None


async def test_what_is_said_in_one_network_is_not_passed_on_in_another(world: World) -> None:
    """Attack T-PRIVATE-03: a member of two networks that carries statements of one into the other.

    Defence: statements of others are forwarded only in the network where they were received, also after a restart.

    bob is in both; alice publishes in one of them. Of what nobody mirrors, and of his own mirror.
    """
    async with world.running("alice") as alice, world.running("bob", private=True) as bob:
        await bob.member.take_part(A, B)
        await alice.take_in(ROOT, files={"a.csv": ROWS})
        cities = alice.dataset("cities")
        refs = alice.parts.board.refs([cities])
        assert refs
        for ref in refs:
            found = alice.parts.board.envelope(ref.sid)
            bob.parts.board.within("a").judge(*found, alice.member.peer_id)
        for view, known in (("a", True), ("b", False)):
            board = bob.parts.board.within(view)
            assert bool(board.refs([cities])) is known, view
            assert (board.envelope(refs[0].sid) is not None) is known, view
        bob.parts.visibility.keep_heard(cities, bob.clock.now())
        assert bob.parts.visibility.scope(cities) == {"a"}, "and after a restart"
        bob.parts.board.within("b").judge(*alice.parts.board.envelope(refs[0].sid), alice.member.peer_id)
        assert bob.parts.board.within("b").refs([cities]), "it is told there too"


async def test_mirrors_stay_where_they_were_found(world: World) -> None:
    async with world.running("alice") as alice:
        mirror = DatasetId.from_public_key(b"\5" * 32)
        with alice.home.database.write() as connection:
            Marks(connection).put(mirror, VisibilityMark.MIRRORED, alice.clock.now())
        visibility = alice.parts.visibility
        assert visibility.within("b")([mirror]) == {mirror}, "while one network is joined"
        alice.api.networks._limit(B)
        assert (visibility.within("wires")([mirror]), visibility.within("b")([mirror])) == ({mirror}, frozenset())
        assert visibility.limit_mirrors("b", alice.clock.now()) == 0, "it has a place"


async def test_a_mirror_is_looked_for_in_the_network_that_its_owner_names(world: World) -> None:
    """Nowhere else, and a network that this node is not in is a mistake and not passed over."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.take_in(ROOT, files={"a.csv": ROWS})
        cities = alice.dataset("cities")
        await world.spread(alice, "cities")
        await bob.member.take_part(A, B)
        await alice.member.take_part(B)
        with pytest.raises(NotFound, match="this node is not in the network c"):
            await bob.mirror(cities, "theirs", network="c")
        assert await bob.mirrors() == []
        assert (await bob.mirror(cities, "theirs", network="b")).network == "b"
        assert bob.parts.visibility.scope(cities) == {"b"}
        assert (bob.parts.visibility.within("a")([cities]), bob.parts.visibility.within("b")([cities])) == (
            frozenset(), {cities},
        )  # fmt: skip


async def test_mistakes_of_publishing_to_networks(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        cities = (await published_to(world, alice, "a")).dataset
        api = alice.api.visibility
        with pytest.raises(NotFound, match="not in the network c"):
            await api.publish(wire.VisibilityRequest(refs=("cities",), to=("c",)))
        (more,) = await api.publish(wire.VisibilityRequest(refs=("cities",), to=("B",)))
        assert (more.changed, more.networks) == (True, ("a", "b"))
        (again,) = await api.publish(wire.VisibilityRequest(refs=("cities",), to=("a",)))
        assert (again.changed, again.networks) == (False, ("a", "b"))
        (everywhere,) = await api.publish(wire.VisibilityRequest(refs=("cities",)))
        assert (everywhere.changed, everywhere.networks) == (True, None)
        assert alice.parts.visibility.is_public(cities)
        with pytest.raises(Refused, match="cities is published everywhere") as fault:
            await api.publish(wire.VisibilityRequest(refs=("cities",), to=("a",)))
        assert "odfctl unpublish cities" in str(fault.value.hint)


def test_a_damaged_row_limits_to_nothing(tmp_path: Any) -> None:
    """Attack T-PRIVATE-03: a flipped bit in the row that limits a dataset to a network.

    Defence: each row has a seal; a damaged row allows no network.

    It fails closed.
    """
    database, dataset = open_database(tmp_path / "db"), DatasetId.from_public_key(b"\6" * 32)
    database.migrate(NetworkScopes.ROOM, NetworkScopes.STEPS)
    with database.write() as connection:
        scopes = NetworkScopes(connection)
        assert scopes.of(dataset) is None
        scopes.add(dataset, ["a"], 7)  # type: ignore[arg-type]
        assert (scopes.of(dataset), scopes.all()) == ({"a"}, {dataset: {"a"}})
        connection.execute("UPDATE network_scopes SET network = 'b'")
        assert (scopes.of(dataset), scopes.all()) == (frozenset(), {dataset: frozenset()})
    database.close()


# A network that is joined by one line: whose policy holds, and until when.


WEEK = wire.InvitationRequest(seconds=7 * 86_400)


async def leave(node: Node) -> None:
    """Leaves the network, which a node is in by its settings or by a resource."""
    if await node.api.declarations.list("Network", None):
        await node.api.declarations.delete("Network", "wires")
    else:
        await node.parts.membership.leave("wires")


async def test_whoever_is_invited_keeps_the_networks_rules(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data & fresh"))
        made = await alice.api.networks.invite("wires", WEEK)
        assert (made.by, made.policy_key, made.rules) == (alice.key, alice.key, ("use: data & fresh",))
        await leave(bob)
        assert await bob.api.networks.invitation(wire.InvitationText(text=made.text)) == made
        joined = await bob.api.networks.join(wire.NetworkRequest(name="wires", invitation=made.text))
        assert (joined.name, joined.policy_key, joined.bootstrap) == ("wires", alice.key, made.bootstrap)
        await bob.heard("policy.heard")
        assert (await bob.api.policies.policy()).use == "data & fresh"
        passed_on = await bob.api.networks.invite("wires", WEEK)
        assert (passed_on.by, passed_on.policy_key, passed_on.rules) == (bob.key, alice.key, made.rules)
    async with world.running("bob") as bob:
        assert (await bob.api.policies.policy()).use == "data & fresh", "over a restart too"
        await leave(bob)
        assert (await bob.api.policies.policy()).use == "data", "and no longer than it is in the network"


async def test_first_peers_are_dialled_side_by_side_and_for_a_bounded_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that answers is enough, and eight that say nothing cost no more than one. Each is dialled once, by all of its
    addresses."""
    monkeypatch.setattr("odfd.services.network.networks.OTHERS_SECONDS", 0.0)
    async with world.running("alice") as alice:
        peers = [peer_of_seed(bytes([each]) * 32) for each in range(4)]
        places = ("/ip4/192.0.2.1", "/ip6/2001:db8::1")
        silent = [f"{place}/tcp/4150/p2p/{peer}" for peer in peers for place in places]
        dialled: list[tuple[str, ...]] = []
        answers: set[str] = {silent[3]}

        async def connect(*addresses: str) -> str:
            dialled.append(addresses)
            if not answers.intersection(addresses):
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            return str(alice.member.peer_id)

        alice.member.connect = connect
        with trio.fail_after(PATIENCE):
            await alice.api.networks.join(wire.NetworkRequest(name="wires", bootstrap=tuple(silent)))
            assert sorted(dialled) == sorted(zip(silent[::2], silent[1::2], strict=True))
            answers.clear()
            monkeypatch.setattr("odfd.services.network.networks.DIAL_SECONDS", 0.01)
            await alice.api.networks.join(wire.NetworkRequest(name="wires", bootstrap=tuple(silent)))


async def test_what_is_refused(world: World) -> None:
    theirs = model.Policy(network_key="did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9")
    async with world.running("alice") as alice, world.running("bob", theirs) as bob:
        await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data"))
        made = await alice.api.networks.invite("wires", WEEK)
        with pytest.raises(Refused, match="hold on this node, and in wires those of"):
            await bob.api.networks.join(wire.NetworkRequest(name="wires", invitation=made.text))
        with pytest.raises(Invalid, match="is to wires, not to other"):
            await bob.api.networks.join(wire.NetworkRequest(name="other", invitation=made.text))
        with pytest.raises(NotFound, match="not in the network other"):
            await alice.api.networks.invite("other", WEEK)
        for seconds in (0, 400 * 86_400):
            with pytest.raises(Invalid, match="an invitation for"):
                await alice.api.networks.invite("wires", wire.InvitationRequest(seconds=seconds))


@contextmanager
def with_tls(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    certificate, key = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = HttpServer(site._handler())
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield f"https://localhost:{server.server_port}"


async def test_a_network_is_joined_by_the_name_of_a_web_site(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "www" / WELL_KNOWN.lstrip("/")
    file.parent.mkdir(parents=True)
    site = Site(tmp_path / "www")
    async with world.running("alice") as alice, world.running("bob") as bob:
        made = await alice.api.networks.invite("wires", wire.InvitationRequest(seconds=3600))
        file.write_text(made.text + "\n")
        with with_tls(site, tmp_path, monkeypatch) as url:
            seen = await bob.api.networks.invitation(wire.InvitationText(text=url))
            assert seen == made, "what is shown is what is signed"
            await leave(bob)
            joined = await bob.api.networks.join(wire.NetworkRequest(name=seen.network, invitation=seen.text))
            assert joined.name == "wires"
            file.write_text(made.text[:-9] + "A" * 9)
            with pytest.raises(Invalid, match="not an invitation"):
                await bob.api.networks.invitation(wire.InvitationText(text=url))
        with pytest.raises(Invalid, match="a man in the middle"):
            await bob.api.networks.invitation(wire.InvitationText(text="http://example.org"))


async def test_a_network_that_is_left_while_records_are_read_stays_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        made = await alice.api.networks.invite("wires", WEEK)
        await leave(bob)
        await bob.api.networks.join(wire.NetworkRequest(name="wires", invitation=made.text))
        member, read, go_on = bob.parts.membership, trio.Event(), threading.Event()
        read_kept = member._read_kept

        def slowly() -> Any:
            found = read_kept()
            trio.from_thread.run_sync(read.set)
            go_on.wait(PATIENCE)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(member, "_read_kept", slowly)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(member.reload)
                await read.wait()
                nursery.start_soon(leave, bob)
                await became(lambda: not member.networks or member._recording.statistics().tasks_waiting)
                go_on.set()
        assert bob.member.networks == ()


ONCE = wire.InvitationRequest(seconds=3600, uses=1)


async def states(node: Node) -> list[tuple[str, int, list[str]]]:
    return [
        (each.state, each.uses, [one.peer_id for one in each.nodes]) for each in await node.api.networks.invitations()
    ]


async def test_a_single_use_invitation_admits_one_node(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        made = await alice.api.networks.invite("wires", ONCE)
        assert made.uses == 1
        seen = await bob.api.networks.invitation(wire.InvitationText(text=made.text))
        assert seen == made
        assert await states(alice) == [("open", 1, [])], "to look at it uses nothing up"
        for node in (bob, carol):
            await leave(node)
        request = wire.NetworkRequest(name="wires", invitation=made.text)
        assert (await bob.api.networks.join(request)).name == "wires"
        assert await states(alice) == [("used", 1, [bob.member.peer_id])]
        with pytest.raises(Refused, match="used by as many nodes as it is for") as caught:
            await carol.api.networks.join(request)
        assert caught.value.rule == "invitation-used"
        assert carol.member.networks == (), "who is refused has joined nothing"
        await leave(bob)
        assert (await bob.api.networks.join(request)).name == "wires", "the same node may join again"
        bob_key = bob.home.keys.node_key().did
        assert bob_key in alice.features.peers.find_known_peers().chosen, "its place is kept"
        (one,) = await alice.api.networks.invitations()
        assert (await alice.api.networks.revoke(one.id)).state == "revoked"
        assert bob_key not in alice.features.peers.find_known_peers().chosen
        with pytest.raises(Refused, match="it was revoked") as caught:
            await bob.api.networks.join(request)
        assert caught.value.rule == "invitation-revoked"
        assert [each.name for each in bob.member.networks] == ["wires"], "it was a member before, and stays one"
    async with world.running("alice") as alice:
        assert await states(alice) == [("revoked", 1, [bob.member.peer_id])], "over a restart"


async def test_tokens_that_admit_nobody_are_refused_by_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        with pytest.raises(Invalid, match="an invitation for 0 nodes"):
            await alice.api.networks.invite("wires", wire.InvitationRequest(seconds=60, uses=0))
        with pytest.raises(NotFound, match="no invitation with a token begins"):
            await alice.api.networks.revoke("abc")
        made = await alice.api.networks.invite("wires", ONCE)
        own = wire.NetworkRequest(name="wires", invitation=made.text)
        await alice.api.networks.join(own)
        assert await states(alice) == [("open", 1, [])], "who invites needs no use"
        await leave(bob)

        async def silent(_inviter: Any, _token: bytes) -> Any:
            raise Remote("no answer within 10 s")

        with monkeypatch.context() as patch:
            patch.setattr(bob.member, "redeem_at", silent)
            with pytest.raises(Remote, match="did not answer: no answer within") as unanswered:
                await bob.api.networks.join(own)
        assert "try again" in str(unanswered.value.hint)
        assert bob.member.networks == ()
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM invitations")
        with pytest.raises(Refused, match="knows no such invitation") as caught:
            await bob.api.networks.join(own)
        assert caught.value.rule == "invitation-unknown"
    async with world.running("bob") as bob:
        with pytest.raises(Remote):
            await bob.api.networks.join(own)
        assert [each.name for each in bob.member.networks] == ["wires"]


# Who leaves takes the work of threads along: counted by slices and blocks that are still read afterwards.


COMMITS = 8
ASKED = ContextVar("asked", default=False)
"""Whether a thread works for the request: those of the background read too."""
COUNT = wire.QueryRequest(sql="select count(*) from cities")
READS: dict[str, tuple[Any, str, Callable[[Any], Awaitable[object]]]] = {
    "a query hashes slices": (SliceFiles, "_hash", lambda api: api.queries.answer(COUNT, _take)),
    "a query lists slices": (slices, "PlacedSlice", lambda api: api.queries.answer(COUNT, _take)),
    "the last rows": (SliceFiles, "_hash", lambda api: api.datasets.tail("cities", 1000)),
    "a description": (profiles, "_add", lambda api: api.datasets.describe("cities", profile=True)),
    "a log": (SqliteChain, "last_of", lambda api: api.datasets.log("cities", ["AddData"], 100, None)),
}
"""What is read for a request, by what is counted of it."""


async def _take(_: object) -> None: ...


@pytest.mark.parametrize("name", READS)
async def test_who_leaves_ends_what_reads_for_it(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Attack T-QUERY-04: a client that starts long reads of slices and blocks, and leaves, again and again.

    Defence: loops over slices and blocks that read for a request end when its task is cancelled.
    """
    place, counted, ask = READS[name]
    async with world.running("alice") as alice:
        for number in range(COMMITS):
            world.write("alice", f"{number}.csv", f"2024-01-0{number + 1}T00:00:00Z,c{number},{number}")
        await alice.apply(ROOT)
        await alice.pull("cities")
        original, calls, leaving = getattr(place, counted), 0, trio.CancelScope()

        def stepping(*args: Any) -> Any:
            nonlocal calls
            calls += ASKED.get()
            if ASKED.get() and calls == 2:
                trio.from_thread.run_sync(leaving.cancel)
            return original(*args)

        with monkeypatch.context() as counting, leaving:
            counting.setattr(place, counted, stepping)
            ASKED.set(True)
            await ask(alice.api)
        assert leaving.cancelled_caught
        assert calls == 2, "and no more of eight"
        await ask(alice.api)


async def test_a_verification_that_is_cancelled_takes_no_more_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as alice:
        for number in range(COMMITS):
            world.write("alice", f"{number}.csv", f"2024-01-0{number + 1}T00:00:00Z,c{number},{number}")
        await alice.apply(ROOT)
        await alice.pull("cities")
        original, calls, wanted = ObjectQueue.take, 0, wire.VerifyRequest(level="data", full=True)

        def stepping(queue: ObjectQueue, all_of_them: bool) -> Any:
            nonlocal calls
            calls += 1
            # The worker may be here before the one who asked knows the task.
            if live := [each.id for each in alice.board.list() if calls == 2 and not each.finished.is_set()]:
                trio.from_thread.run_sync(alice.board.cancel, *live)
            return original(queue, all_of_them)

        with monkeypatch.context() as counting:
            counting.setattr(ObjectQueue, "take", stepping)
            task = alice.board.get((await alice.api.verification.verify("cities", wanted)).id)
            await task.finished.wait()
            assert (task.state, calls) == (TaskPhase.CANCELLED, 2), "and no more of eight"
            assert (await alice.done(alice.api.verification.verify("cities", wanted))).ok
        assert calls >= 2 + COMMITS, "each slice is one of them where nobody cancels"


# Whose nodes have room that no stranger touches, and what peers are asked about by id.


async def test_listed_groups_and_writers_of_mirrors_are_known(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.take_in(ROOT, files={"a.csv": ["2024-01-01T00:00:00Z,Graz,300000"]})
        await world.spread(alice, "cities")
        groups = (model.Group(name="others", keys=(alice.key,)),)
        listens = model.Policy(validators=model.Validators(f=0, groups=groups))
        async with world.running("bob", listens) as bob:
            assert bob.features.peers.find_known_peers() == ({KeyDid.parse(alice.key)}, set()), (
                "what it does not mirror is none"
            )
            await bob.mirror(alice.dataset("cities"), "cities")
            known = bob.features.peers.find_known_peers()
            assert known == ({KeyDid.parse(alice.key)}, {KeyDid.parse(alice.key)}), "version 0: heads name the node"


async def test_peers_are_asked_of_inputs_and_listed_keys_and_of_nothing_private(world: World) -> None:
    """Attack T-PRIVATE-02: a peer that records which ids a round names.

    Defence: private datasets, their private inputs, and datasets that the operator is just adding are not named; public
    datasets and listed keys are.
    """
    async with world.running("alice") as alice:
        await alice.take_in(ROOT, DERIVED, files={"a.csv": ["2024-01-01T00:00:00Z,Graz,300000"]})
        cities, towns = alice.dataset("cities"), alice.dataset("towns")
        await world.spread(alice, "towns")
        validator = DatasetId.from_public_key(KeyDid.parse(alice.key).public_key)
        groups = (model.Group(name="others", keys=(alice.key,)),)
        async with world.running("bob", model.Policy(validators=model.Validators(f=0, groups=groups))) as bob:
            assert set(bob.parts.board.interests()) == {validator}
            await bob.mirror(towns, "towns")
            assert set(bob.parts.board.interests()) == {validator, towns, cities}, "forks of its input end it too"
            bob.parts.visibility.set_for_all([towns], VisibilityMark.PRIVATE, bob.parts.context.clock.now())
            assert set(bob.parts.board.interests()) == {validator}
