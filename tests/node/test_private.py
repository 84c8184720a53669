"""Private or shared with some peers: by whatever way anybody else asks, it does not even learn what is here."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from chain.errors import Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import checkpoint, envelope, statement
from chain.statements.card import Card
from chain.statements.keys import SigningKey
from chain.store.database import open_database
from config import model
from odfd.control import wire
from odfd.mirrors.sync import UNSHARED
from odfd.policy.witness_quorum import read_witness
from odfd.services.trust.witness_submission import WitnessSubmission
from odfd.store import visibility
from odfd.store.ledger.cards import Cards
from odfd.store.references import objects_of
from odfd.store.shares import Shares
from odfd.store.visibility import Marks, VisibilityMark
from p2p.driver import serve
from p2p.identity import peer_of_did
from p2p.machines import reconcile
from p2p.ports import Topic
from p2p.wire import chains, lan, trust
from p2p.wire.chains import BlockRange
from p2p.wire.frames import PREFIX
from p2p.wire.objects import ObjectRange, ObjectsAsk
from p2p.wire.trust import GetAsk, ListAsk, ProveAsk, SumAsk
from worlds.eventually import became
from worlds.manifests import DERIVED, ROOT
from worlds.memory_ipfs import MemoryIpfs, Swarm
from worlds.node_world import Node, World, add_to_first

# Private until published, from a hostile peer's side: whatever way it asks, it does not even learn what is here.


GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"
ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,200000")
MORE = ("2024-01-03T00:00:00Z,Wels,60000",)
HTTP = model.Http(listen=("127.0.0.1:0",))
ON_IPFS = model.Policy(publish=model.Publish(ipfs=True))
VKEY = checkpoint.verifier_key("witness.example/w1", checkpoint.COSIGNATURE_KEY, SigningKey(b"p" * 32).public)
WITNESS = f"{VKEY} https://witness.example"
OTHER = """kind: DatasetSnapshot
version: 1
content: {name: other, kind: Root, metadata: []}
"""


async def made(world: World, node: Node, name: str = "alice") -> tuple[DatasetId, DatasetId]:
    world.write(name, "a.csv", *ROWS)
    await node.apply(ROOT, DERIVED)
    await node.pull()
    return node.dataset("cities"), node.dataset("towns")


def blocks_of(node: Node, dataset: DatasetId) -> list[bytes]:
    return list(node.home.chains.chain(dataset).raw_blocks(0, 10**6))


def objects(node: Node, dataset: DatasetId) -> list[Multihash]:
    chain = node.home.chains.chain(dataset)
    return [name for at in range(chain.head().size) for name, _ in objects_of(chain.block_at(at))]


def told_of(node: Node, dataset: DatasetId) -> list[str]:
    """The ways in which another peer learns of a dataset, or gets something of it."""
    library, board = node.member.library, node.member.board
    found = []
    if dataset in library.datasets(100):
        found.append("presence")
    if library.size(dataset) or library.blocks(dataset, 0, 10**6):
        found.append("by did")
    try:
        library.prove(dataset, 1, index=0)
        found.append("proof")
    except NotFound:
        pass
    refs = [*(ref for ref in board.refs() if ref.dataset == dataset), *board.refs([dataset])]
    if not all(is_withdrawal(board.envelope(ref.sid)) for ref in refs):
        found.append("statements")
    if any(given(node, name) for name in objects(node, dataset)):
        found.append("by hash")
    return found


def is_withdrawal(told: tuple[Any, bytes] | None) -> bool:
    """Which is told on purpose, of what was published before."""
    said = None if told is None else statement.decode_any(envelope.payload_of(told[1]))
    return isinstance(said, Card) and said.is_withdrawal


def given(node: Node, name: Multihash) -> bool:
    library = node.member.library
    if list(library.small_objects([name], 10**6)) or library.object_size(name) is not None:
        return True
    try:
        library.object_part(name, 0, memoryview(bytearray(10)))
    except NotFound:
        return False
    return True


EVERY_WAY = ["presence", "by did", "proof", "statements", "by hash"]


async def test_nothing_is_said_or_given_before_it_is_published(world: World) -> None:
    """Attack T-PRIVATE-01: a request for a private dataset: by presence, by did, by the hash of its objects, by a
    proof, in the exchange of statements.

    Defence: the answer equals that for a dataset that does not exist.

    By presence, by did, by object hash, in proofs, in the exchange of statements; and then all of it.
    """
    async with world.running("alice", private=True) as alice:
        cities, towns = await made(world, alice)
        assert told_of(alice, cities) == told_of(alice, towns) == []
        (view,) = await alice.publish("cities")
        assert (view.published, view.changed, view.notes) == (True, True, ())
        assert (told_of(alice, cities), told_of(alice, towns)) == (EVERY_WAY, [])
        assert (await alice.dataset_view("cities")).published
        assert not (await alice.dataset_view("towns")).published
        assert (await alice.api.about.status()).published == 1
        assert not (await alice.publish("cities"))[0].changed
        (view,) = await alice.unpublish("cities")
        assert (view.published, view.changed) == (False, True)
        assert told_of(alice, cities) == []
        await alice.publish()
        assert told_of(alice, cities) == told_of(alice, towns) == EVERY_WAY
    async with world.running("alice", private=True) as alice:
        assert told_of(alice, cities) == told_of(alice, towns) == EVERY_WAY


async def test_a_peer_hears_no_gossip_of_what_is_private(world: World) -> None:
    """Attack T-PRIVATE-02: listening to gossip for heads of private datasets.

    Defence: statements about them are not sent until they are published.
    """
    async with world.running("alice", private=True) as alice, world.running("eve") as eve:
        cities, towns = await made(world, alice)
        await alice.parts.outbox._loop._work()
        assert alice.member.announced == []
        await alice.publish("cities")
        await eve.heard_head(alice.size("cities"))
        assert eve.member.board.refs([cities])
        assert not eve.member.board.refs([towns])
        looks = alice.member.looks
        assert looks, "its presence is told anew at once"
        await alice.heard("card.signed")
        await alice.unpublish("cities")
        await alice.heard("card.signed", 2)
        await alice.parts.outbox._loop._work()
        await became(lambda: alice.member.looks > looks)
        before = len(alice.member.announced)
        world.write("alice", "b.csv", *MORE)
        await alice.pull()
        await alice.parts.outbox._loop._work()
        assert len(alice.member.announced) == before


async def test_a_network_shows_what_is_announced_in_it_and_no_more(world: World) -> None:
    """Own heads are signed also while a dataset is private, and a person who looks must not read that they are told."""

    async def shown(node: Node) -> list[str]:
        network = await node.api.networks.state("wires")
        return [each.id for each in network.datasets]

    async with world.running("alice", private=True) as alice, world.running("bob", private=True) as bob:
        cities, _ = await made(world, alice)
        assert await shown(alice) == []
        await alice.publish("cities")
        assert await shown(alice) == [str(cities)]
        await bob.mirror(cities, "theirs", private=True)
        assert await shown(bob) == [str(cities)], "it is private here, and another serves it"
        await alice.unpublish("cities")
        assert await shown(alice) == []
        await alice.publish("towns")
        await alice.api.declarations.delete("Dataset", "towns")
        assert await shown(alice) == []
    async with world.running("alice", private=True) as alice:
        assert await shown(alice) == []


def withdrawals(node: Node) -> set[Any]:
    """The statements by which a node takes its cards back: they tell that there is nothing any more."""
    with node.home.database.read() as connection:
        return set(Cards(connection).list_withdrawn().values())


async def test_what_is_deleted_is_withdrawn_also_after_a_restart(world: World) -> None:
    """Attack T-PRIVATE-02: inferring deleted or withdrawn datasets from a node's statements.

    Defence: deletion withdraws them, also after restarts and in networks that are joined later.

    Deleted, then joined: its did was in all that a peer was told.
    """
    async with world.running("alice", private=True) as alice:
        cities, _ = await made(world, alice)
        await alice.publish("cities")
        await alice.api.declarations.delete("Dataset", "towns")
        await alice.api.declarations.delete("Dataset", "cities")
        assert {ref.sid for ref in alice.member.board.refs()} <= withdrawals(alice)
        assert alice.member.library.datasets(9) == []
    everything = model.Policy(publish=model.Publish(datasets=True))
    async with world.running("alice", everything, private=True) as alice, world.running("eve") as eve:
        assert {ref.sid for ref in alice.member.board.refs()} <= withdrawals(alice)
        await eve.member.pull_statements(alice.member.peer_id)
        assert {ref.sid for ref in eve.member.board.refs([cities])} <= withdrawals(alice)


async def test_an_object_that_a_public_dataset_names_too_is_given(world: World) -> None:
    """Attack T-PRIVATE-01: taking objects of a private dataset through a public one.

    Defence: an object is served if a public dataset names it; blocks of other datasets are not.

    Of two that hold the same slice the published one lets it out, and no block of the other.
    """
    async with world.running("alice", private=True) as alice:
        cities, towns = await made(world, alice)
        shared = set(objects(alice, cities)) & set(objects(alice, towns))
        await alice.publish("towns")
        mine = [name for name in objects(alice, cities) if given(alice, name)]
        assert set(mine) == shared
        assert alice.member.library.size(cities) == 0


async def test_a_site_gives_and_names_nothing_private(world: World) -> None:
    """Attack T-PRIVATE-01: probing a site for names, ids and files of private datasets.

    Defence: each answer equals that for a name that does not exist.
    """
    async with world.running("alice", private=True, http=HTTP) as alice, httpx.AsyncClient() as client:
        cities, towns = await made(world, alice)
        (url,) = (await alice.api.about.status()).http
        assert (await client.get(url)).json() == {"datasets": []}
        await alice.publish("towns")
        assert [each["name"] for each in (await client.get(url)).json()["datasets"]] == ["towns"]
        public = next(name for name in objects(alice, towns))
        assert (await client.get(f"{url}/towns/data/{public}")).status_code == 200
        head = Multihash.sha3_256(blocks_of(alice, cities)[-1])
        files = ("refs/head", "trust/head", "packs/0", f"blocks/{head}", f"data/{objects(alice, cities)[0]}")
        for ref in ("cities", str(cities), cities.multibase):
            for file in (*files, f"data/{public}"):
                answer, unknown = [await client.get(f"{url}/{name}/{file}") for name in (ref, "nothing-of-the-kind")]
                assert (answer.status_code, unknown.status_code) == (404, 404)
                assert answer.text.replace(ref, "") == unknown.text.replace("nothing-of-the-kind", "")


async def test_nothing_private_is_put_on_ipfs(world: World) -> None:
    """Attack T-PRIVATE-01: looking on IPFS for private data of a node.

    Defence: private datasets are not put there, and are removed when they become private.
    """
    kubo = MemoryIpfs(Swarm())
    async with world.running("alice", ON_IPFS, kubo, private=True) as alice:
        cities, _ = await made(world, alice)
        await alice.parts.publications._round()
        assert not await alice.api.publications.list()
        with pytest.raises(Refused, match="cities is private") as told:
            await alice.api.publications.publish(wire.PublishRequest(ref="cities"))
        assert told.value.hint == "first: odfctl publish cities"
        await alice.publish("cities")
        await alice.heard("publication.published")
        assert [each.ref for each in await alice.api.publications.list()] == ["cities"]
        await alice.unpublish("cities")
        await alice.heard("publication.withdrawn")
        assert await alice.api.publications.list() == []
        assert await alice.parts.remotes.publisher.root(cities) is None


async def test_no_public_witness_is_asked_about_what_is_private(world: World) -> None:
    """Attack T-PRIVATE-02: a public witness that collects logs of others.

    Defence: no tree of a private dataset is submitted.
    """

    class Posts:
        asked = 0

        async def post(self, *_: Any) -> Any:
            self.asked += 1
            raise Refused("enough")

    async with world.running("alice", private=True) as alice:
        await made(world, alice)
        posts, like = Posts(), alice.submissions()
        asking = WitnessSubmission(
            like._home, lambda: (read_witness(WITNESS),), world.clock, like._cosigned, alice.logger, posts
        )
        await asking._round()
        assert posts.asked == 0
        await alice.publish("cities")
        asking.loop.touch_all()
        await asking._round()
        assert posts.asked == 1


@asynccontextmanager
async def accused(world: World, policy: model.Policy) -> AsyncIterator[tuple[Any, Any]]:
    """Bob, who lets nobody know, finds that Alice lies."""
    async with world.running("alice") as alice, world.running("bob", policy, private=True) as bob:
        alice.engine.wrong = partial(add_to_first, "population", 1000)
        cities, towns = await made(world, alice)
        await world.spread(alice, "cities", "towns")
        await bob.mirror(cities, "cities", private=True)
        await bob.mirror(towns, "towns", private=True)
        await bob.heard("verdict.mismatch")
        await bob.heard("attestation.signed")
        yield alice, bob


async def test_no_verdict_or_evidence_of_a_private_mirror_leaves(world: World) -> None:
    """Attack T-PRIVATE-02: evidence, verdicts and cosignatures that reveal a private mirror.

    Defence: they are made and not sent; a bundle is served while all datasets in it are public.

    Its own attestation, the bundle by its hash, and cosignatures: signed here, and told to nobody.
    """
    policy = model.Policy(serve="data", publish=model.Publish(attest=True, cosign=True))
    async with accused(world, policy) as (alice, bob):
        cities, towns = alice.dataset("cities"), alice.dataset("towns")
        (kept,) = bob.parts.bundles._paths
        assert told_of(bob, cities) == told_of(bob, towns) == []
        assert bob.member.announced == []
        assert not given(bob, kept)
        await bob.publish("towns")
        assert not given(bob, kept), "it holds blocks and rows of cities"
        await bob.publish("cities")
        assert given(bob, kept)
        await bob.heard("attestation.signed")
        said = bob.member.board.refs([towns])
        assert any(bob.member.board.envelope(ref.sid)[0] is Topic.ATTEST for ref in said)


async def test_a_verdict_on_a_public_dataset_does_not_tell_of_its_private_inputs(world: World) -> None:
    """Attack T-PRIVATE-02: a verdict on a public dataset that reveals its private inputs.

    Defence: their trees are left out.
    """
    async with world.running("alice") as alice:
        cities, towns = await made(world, alice)
        speaker = alice.parts.validator._speaker
        assert [each.dataset for each in speaker._inputs(towns)] == [cities]
        await alice.unpublish("cities")
        assert speaker._inputs(towns) == []


async def test_mirrors_of_a_network_are_passed_on_and_those_of_a_web_server_are_not(world: World) -> None:
    """Attack T-PRIVATE-02: observing a node's questions.

    Defence: peers are not asked about a private mirror of a web server.

    And peers are not asked for what came from a server that they may not reach.
    """
    async with (
        world.running("alice", http=HTTP) as alice,
        world.running("bob", private=True) as bob,
        world.running("carol", private=True) as carol,
    ):
        cities, _ = await made(world, alice)
        await world.spread(alice, "cities")
        assert (await bob.mirror(cities, "theirs")).serving
        assert told_of(bob, cities) == EVERY_WAY
        (url,) = (await alice.api.about.status()).http
        source = wire.MirrorRequest(source=f"{url}/cities", as_name="theirs")
        view = await carol.added(source)
        assert (view.state, view.serving) == ("current", False)
        assert len(carol.parts.scheduler.holders([cities])[cities]) == 1, "the server"
        await carol.pull("theirs")
        assert bob.member.named_to(cities)
        assert carol.member.named_to(cities) == set(), "nobody in the network hears that it is of interest"
        assert told_of(carol, cities) == []
        await carol.publish("theirs")
        assert told_of(carol, cities) == EVERY_WAY
        await carol.api.declarations.delete("Mirror", "theirs")
        await carol.mirror(cities, "theirs")
        assert told_of(carol, cities) == EVERY_WAY
        await carol.mirror(cities, "theirs", private=True)
        assert told_of(carol, cities) == []
        await carol.mirror(cities, "theirs")
        assert told_of(carol, cities) == [], "a person's word stays until another"


async def test_what_comes_from_a_folder_is_private(world: World) -> None:
    policy = model.Policy(serve="data")
    async with world.running("alice", policy, private=True) as alice:
        source = wire.ImportRequest(source=str(GOLDEN / "flights"), as_name="flights")
        await alice.done(alice.api.flow.import_(source))
        flights = alice.dataset("flights")
        assert told_of(alice, flights) == []
        assert not (await alice.mirror_in_vain(flights, "flights", lambda mirror: mirror.passes > 0)).spec.via
        assert told_of(alice, flights) == [], "asking for news of it publishes nothing"
        await alice.publish("flights")
        assert told_of(alice, flights) == ["presence", "by did", "proof", "by hash"]
        await alice.api.declarations.delete("Dataset", "flights", purge=True)
        await alice.done(alice.api.flow.import_(source))
        assert told_of(alice, flights) == []


async def test_publishing_what_derives_from_private_data_says_so(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        await made(world, alice)
        (view,) = await alice.publish("towns")
        assert view.notes == (
            "it derives from cities, private here, whose id is in its blocks, and without which no other node can run"
            " it again",
        )
        await alice.publish("cities")
        (view,) = await alice.unpublish("cities")
        assert view.notes == ("towns derives from it and stays published, with its id in the blocks",)


async def test_names_that_are_none_publish_nothing(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        cities, _ = await made(world, alice)
        with pytest.raises(NotFound):
            await alice.publish("cities", "nobody")
        assert told_of(alice, cities) == []


async def test_a_node_that_gave_before_goes_on_and_says_so(world: World) -> None:
    """Attack T-PRIVATE-06: an upgrade that silently publishes or withdraws.

    Defence: published datasets stay published, and are reported until the operator decides.

    Its state directory is from a version without marks; nothing changes silently, either way.
    """

    def as_before(node: Node) -> None:
        with node.home.database.write() as connection:
            connection.execute("DELETE FROM visibility")
            connection.execute("INSERT INTO visibility (dataset, mark, at) VALUES (x'', 'unsettled', 0)")

    async with world.running("alice", private=True) as alice:
        cities, _ = await made(world, alice)
        as_before(alice)
    async with world.running("alice", private=True) as alice:
        assert told_of(alice, cities) == [], "it was in no network, and had no site"
        as_before(alice)
    async with world.running("alice", private=True, http=HTTP) as alice:
        assert told_of(alice, cities) == EVERY_WAY
        (said,) = [values for line, values in alice.logger.said if line.startswith("what was given")]
        assert sorted(said["datasets"]) == ["cities", "towns"]
        (probe,) = [each for each in await alice.api.about.doctor() if each.name == "published"]
        assert (probe.result, "cities; towns" in probe.message) == ("warning", True)
        await alice.apply(OTHER)
        assert told_of(alice, alice.dataset("other")) == []
        await alice.publish("cities")
        await alice.unpublish("towns")
        (probe,) = [each for each in await alice.api.about.doctor() if each.name == "published"]
        assert (probe.result, probe.message) == ("ok", "1 of 3 datasets")


async def test_a_mark_that_is_damaged_publishes_nothing(world: World) -> None:
    """Attack T-PRIVATE-06: a flipped bit in a mark that publishes a dataset.

    Defence: each mark has a seal; a damaged mark counts as private.
    """
    async with world.running("alice", private=True) as alice:
        cities, towns = await made(world, alice)
        await alice.publish()
        with alice.home.database.write() as connection:
            connection.execute("UPDATE visibility SET at = at + 1 WHERE dataset = ?", (cities,))
        assert (told_of(alice, cities), told_of(alice, towns)) == ([], EVERY_WAY)
        many = [DatasetId.from_public_key(bytes([at]) * 32) for at in range(9)]
        public = alice.parts.visibility.public_of([cities, towns, *many])
        assert public == {towns, *many}, "what is not here, others may have spoken of"
        await alice.publish("cities")
        assert told_of(alice, cities) == EVERY_WAY


def test_every_mark_is_read_as_it_was_written(tmp_path: Path) -> None:
    database = open_database(tmp_path / "db")
    database.migrate(visibility.ROOM, visibility.STEPS)
    one = DatasetId.from_public_key(bytes(32))
    with database.write() as connection:
        marks = Marks(connection)
        assert (marks.settle(), marks.settle()) == (True, False)
        for mark in VisibilityMark:
            marks.put(one, mark, 7)  # type: ignore[arg-type]
            assert (marks.of(one), marks.all()) == (mark, {one: mark})
        connection.execute("UPDATE visibility SET mark = 'publishes', seal = NULL")
        assert marks.of(one) is VisibilityMark.PRIVATE
    database.close()


def test_a_packet_on_the_lan_says_who_and_where_and_nothing_else() -> None:
    """Attack T-PRIVATE-02: listening on the LAN.

    Defence: mDNS announces identity and addresses, and no datasets.

    mDNS tells of a node, never of a dataset: what it is made of has no place for one.
    """
    packets = [lan.encode_question(), lan.encode_presence(PEER, "net", [lan.parse_address("/ip4/10.0.0.7/tcp/4150")])]
    for packet in packets:
        assert b"did" not in packet
        assert b"odf:" not in packet


PEER: Any = "12D3KooWGRUVh7PNDWUWwSgkVCHcBrrS2wwnVVJyTzsjUx8V8wjp"


async def test_publishing_what_nobody_signed_says_that_peers_do_not_see_it(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        await alice.done(
            alice.api.flow.import_(wire.ImportRequest(source=str(GOLDEN / "airlines"), as_name="airlines"))
        )
        (view,) = await alice.publish("airlines")
        (note,) = view.notes
        assert note.startswith("its head is not signed")
        assert told_of(alice, alice.dataset("airlines")) == []


# A dataset that is shared with some peers: these have it by every way, and for everybody else it is nowhere.


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
    """Attack T-PRIVATE-04: a request for a dataset shared with others: by each way out, with another key, after a
    revocation, through data sent to all.

    Defence: one predicate with the requester as its argument, at each answer; the key is that of the connection; the
    answer equals, byte by byte, that for a dataset that does not exist.

    Every way, and everybody: what is not shared with a peer is answered byte by byte as what is nowhere.
    """
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
    """Attack T-PRIVATE-01: telling private datasets from missing ones by response times.

    Defence: each answer by id makes the same number of the same queries to the database.

    No time of an answer tells them apart: they ask the database the same, as often.
    """
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
    """Attack T-PRIVATE-04: a revoked peer that continues a transfer, or asks for objects that are being served to
    another.

    Defence: the right is checked for each part; cached decisions are by requester, and end with the next write.

    What is remembered of objects that are being given is nobody else's, and no longer than the word holds.
    """
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
    """Attack T-PRIVATE-04: a flipped bit in a row that shares a dataset.

    Defence: each row has a seal over dataset and peer.
    """
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
    """Attack T-PRIVATE-04: a mirror of a shared dataset that passes it on, or reveals that it wants it.

    Defence: such a mirror is private, and cannot be published or shared; it asks only peers that share it.

    Bob has it from Alice, also what comes later; Carol is asked nothing, told nothing, and given nothing.
    """
    async with (
        world.running("alice", private=True) as alice,
        world.running("bob", private=True) as bob,
        world.running("carol", private=True) as carol,
    ):
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
        assert {peer for peer, _ in bob.member.named_to(cities)} == {alice.member.peer_id}
        assert alice.member.named_to(cities) == set(), "nobody told Carol which it is"
        for refused in (
            bob.publish("theirs"),
            bob.api.visibility.share(wire.ShareRequest(ref="theirs", peers=(carol.key,))),
        ):
            with pytest.raises(Refused, match="others share theirs with this node"):
                await refused
        await bob.publish()
        assert not bob.parts.visibility.is_public(cities)


def named_in(node: Node, dataset: DatasetId, peer: Any) -> tuple[Multihash, Multihash]:
    """An object of it, and a statement that is told to a peer."""
    chain = node.home.chains.chain(dataset)
    (name, *_) = (name for at in range(chain.head().size) for name, _ in objects_of(chain.block_at(at)))
    (ref, *_) = node.member.board.to(peer).refs([dataset])
    return name, ref.sid


async def test_whoever_does_not_say_that_it_passes_nothing_on_hears_nothing(world: World) -> None:
    """Attack T-PRIVATE-04: a listed peer that takes a shared dataset for a public one, and publishes it by mistake.

    Defence: heads are sent only to peers that declare not to forward them.

    A listed peer that mirrors it as if it were public would publish it: it never hears a head.
    """
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
    """Attack T-PRIVATE-04: transfers after a revocation.

    Defence: earlier copies stay; later data is not sent.
    """
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
    """Attack T-PRIVATE-04: a revoked share that still looks fresh at its mirror; an owner that is offline, taken for a
    revocation.

    Defence: the mirror asks the sharing peers each minute; it becomes `unshared` only when all answer as if the dataset
    did not exist, also after a restart.

    An owner that answers as to a stranger; one that is away has said nothing, and changes nothing.
    """
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
            world.wires.cut(alice.member.peer_id)
            assert (await shown_of(bob, "theirs"))[1:] == ("stale", ("Unshared",)), "as it was heard last"
            assert not bob.parts.visibility.is_public(cities)


async def test_what_is_public_or_not_a_peer_is_not_shared(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        shared = await a_shared_one(world, alice)
        for nobody in ("12D3KooWnobody", f"{LISTED[:-1]}0", "did:key:z6"):
            with pytest.raises(Fault):
                await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(STRANGER, nobody)))
        with pytest.raises(Invalid, match="is in both lists"):
            await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(STRANGER,), revoke=(STRANGER,)))
        assert alice.parts.visibility.shared_with(shared.dataset) == [LISTED], "all or none"
        await alice.publish("cities")
        with pytest.raises(Refused, match="cities is published") as told:
            await alice.api.visibility.share(wire.ShareRequest(ref="cities", peers=(STRANGER,)))
        assert told.value.hint == "to give it to some alone: odfctl unpublish cities, then share it"
        view = await alice.api.visibility.share(wire.ShareRequest(ref="cities"))
        assert (view.published, view.shared_with, view.changed) == (True, (), False)
