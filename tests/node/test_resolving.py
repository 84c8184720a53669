"""Two histories signed by one owner, proven and stopped at; and what a person decides of that, told for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from chain.errors import Invalid, Refused
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.statements import envelope, proof, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Authority, Roots, Writer
from config import model
from odfd.control import wire
from odfd.mirrors.epoch_switch import RewriteWaiting
from odfd.store.ledger.log import Ledger
from odfd.store.mirror_specs import MirrorSpec
from p2p.identity import peer_of_seed
from p2p.ports import Judgement, PeerId, Topic
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, add_to_first

# What a person decides on running nodes: which history, which verdict, which epoch; and that it is told for ever.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
SEED = b"\x2a" * 32
PEER = PeerId("12D3KooWPeer")


async def resolve(node: Node, ref: str, follow: object = None) -> tuple[str, ...]:
    request = wire.ResolveRequest(follow=None if follow is None else str(follow), abandon=follow is None)
    done: wire.Resolved = await node.api.resolving.resolve(ref, request)
    return done.settles


def block(node: Node, name: str, number: int) -> Multihash:
    return node.home.chains.chain(node.dataset(name)).block_at(number).hash


def decisions(node: Node, name: str) -> list[dict[str, Any]]:
    with node.home.database.read() as connection:
        rows = connection.execute(
            "SELECT body FROM trust_ledger WHERE dataset = ? AND type = 'decision'", (node.dataset(name),)
        )
        return [msgspec.json.decode(row[0]) for row in rows]


class Forked:
    """Alice and Mallory publish two histories of ``cities``; Bob mirrors Alice's and was shown both."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.peer = peer_of_seed(SEED)

    async def before(self) -> None:
        self.world.write("alice", "a.csv", *ROWS)
        async with self.world.running("alice") as alice:
            await alice.apply(ROOT)
            await alice.pull()
            self.cities, self.common = alice.dataset("cities"), alice.size("cities")
        self.world.steal("alice", "mallory", SEED)
        self.world.wires.cut(self.peer)

    async def part(self, alice: Node, bob: Node, mallory: Node) -> None:
        """Bob mirrors Alice's history, while nobody sees Mallory."""
        self.world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,1")
        await alice.pull("cities")
        await mallory.sign_again(alone=True)
        await mallory.pull("cities")
        await bob.mirror(self.cities, "theirs")
        self.world.wires.heal()

    async def meet(self, bob: Node, mallory: Node) -> None:
        """Mallory shows her head to everybody."""
        with mallory.home.database.read() as connection:
            newest = Ledger(connection).newest_head(self.cities)
        await mallory.member.announce(Topic.HEADS, newest[1].envelope)
        await bob.heard("dataset.forked")

    async def fork(self, alice: Node, bob: Node, mallory: Node) -> None:
        await self.part(alice, bob, mallory)
        await self.meet(bob, mallory)

    @asynccontextmanager
    async def with_carol(self, alice: Node, bob: Node, mallory: Node, policy: Any = None) -> AsyncIterator[Any]:
        """She mirrors Mallory's history, decides for it, and so serves it."""
        await self.part(alice, bob, mallory)
        self.world.wires.cut(alice.member.peer_id, bob.member.peer_id)
        async with self.world.running("carol", policy) as carol:
            await carol.member.pull_statements(self.peer, [self.cities])
            await carol.mirror(self.cities, "theirs")
            self.world.wires.heal()
            await self.meet(bob, mallory)
            await carol.member.pull_statements(bob.member.peer_id, [self.cities])
            await carol.heard("dataset.forked")
            await resolve(carol, "theirs", block(carol, "theirs", self.common))
            yield carol


@pytest.fixture
async def forked(world: World) -> Forked:
    made = Forked(world)
    await made.before()
    return made


@pytest.mark.slow
async def test_the_history_that_is_here_is_followed(world: World, forked: Forked) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("mallory") as mallory:
        await forked.fork(alice, bob, mallory)
        shown = await bob.api.trust.show("theirs")
        assert (shown.reach.use, shown.facts.forked) == (forked.common, True)
        mine, theirs = (block(node, name, forked.common) for node, name in ((bob, "theirs"), (mallory, "cities")))
        assert [each.hash for each in shown.choices] == [str(mine), str(theirs)]
        with pytest.raises(Refused, match="waits for a decision"):
            await resolve(bob, "theirs", block(bob, "theirs", 0))
        with pytest.raises(Refused, match="nothing that is known"):
            await resolve(bob, "theirs", Multihash.sha3_256(b"?"))
        (settled,) = await resolve(bob, "theirs", mine)
        assert f"part at #{forked.common}" in settled
        after = await bob.api.trust.show("theirs")
        assert (after.reach.use, after.why, after.facts.forked) == (forked.common + 1, None, True)
        assert ([each.matter for each in after.decisions], after.choices) == (["branch"], ())
        (decision,) = decisions(bob, "theirs")
        assert (decision["follow"], decision["policy"]) == (str(mine), str(bob.parts.policy.digest))
        assert len(decision["rests"]) >= 2
        await alice.take_in(files={"c.csv": ["2024-01-04T00:00:00Z,Steyr,2"]}, pulls=["cities"])
        await bob.heard_head(forked.common + 2)
        with bob.home.database.read() as connection:
            Ledger(connection).check()


@pytest.mark.slow
async def test_the_other_history_is_followed(world: World, forked: Forked) -> None:
    """What is here is given up from where they part; heads of the other one change nothing until the chosen is here."""
    async with (
        world.running("alice") as alice,
        world.running("bob") as bob,
        world.running("mallory") as mallory,
        forked.with_carol(alice, bob, mallory) as carol,
    ):
        theirs = block(carol, "theirs", forked.common)
        assert theirs != block(bob, "theirs", forked.common)
        world.wires.cut(carol.member.peer_id)
        await resolve(bob, "theirs", theirs)
        assert bob.size("theirs") == forked.common
        await alice.take_in(files={"c.csv": ["2024-01-04T00:00:00Z,Steyr,2"]}, pulls=["cities"])
        await bob.member.pull_statements(alice.member.peer_id, [forked.cities])
        with bob.home.database.read() as connection:
            newest = Ledger(connection).newest_head(forked.cities)
        assert (newest[0].size, newest[0].head) == (forked.common + 1, theirs)
        world.wires.heal()
        with trio.fail_after(PATIENCE):
            while bob.size("theirs") <= forked.common:
                bob.parts.scheduler.poke(forked.cities)
                await bob.parts.scheduler.get(forked.cities).turned.wait()
        assert block(bob, "theirs", forked.common) == theirs
        shown = await bob.api.trust.show("theirs")
        assert (shown.reach.use, shown.facts.forked) == (forked.common + 1, True)
        assert [each.matter for each in shown.decisions] == ["branch"]


@pytest.mark.slow
async def test_neither_is_followed(world: World, forked: Forked) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("mallory") as mallory:
        with pytest.raises(Invalid, match="either"):
            await bob.api.resolving.resolve("theirs", wire.ResolveRequest())
        await forked.fork(alice, bob, mallory)
        await resolve(bob, "theirs")
        shown = await bob.api.trust.show("theirs")
        assert (shown.reach.use, shown.why.rule, shown.facts.forked) == (forked.common, "fork", True)
        with pytest.raises(Refused, match="already"):
            await resolve(bob, "theirs")
        with pytest.raises(Refused, match="abandoned here"):
            raise (await bob.parts.scheduler.pass_now(forked.cities)).fault
        # The owner settles it for everybody; here it stays given up until a person says otherwise.
        draft = await alice.api.authority.draft_authority("cities", wire.AuthorityDraftRequest(action="rotate"))
        await alice.api.authority.change_authority("cities", wire.AuthorityRequest(payload=draft.payload))
        await bob.heard("authority.heard")
        assert (await bob.api.trust.show("theirs")).reach.use == forked.common
        settled = await resolve(bob, "theirs", block(bob, "theirs", forked.common))
        assert "taken up again" in settled[-1]
        with trio.fail_after(PATIENCE):
            turned = bob.parts.scheduler.get(forked.cities).turned
            while (await bob.api.trust.show("theirs")).epoch == 0:
                await turned.wait()
                turned = bob.parts.scheduler.get(forked.cities).turned
        assert (await bob.api.trust.show("theirs")).reach.use == forked.common + 1


@pytest.mark.slow
async def test_an_owner_settles_a_fork_in_the_open(world: World, forked: Forked) -> None:
    """A new epoch names the history kept; who follows and holds the other one goes back to where they part."""
    follows = model.Policy(rewrite=model.Rewrite(follow="follow"))
    async with (
        world.running("alice") as alice,
        world.running("bob", follows) as bob,
        world.running("mallory") as mallory,
        forked.with_carol(alice, bob, mallory, follows) as carol,
    ):
        await alice.heard("dataset.forked")
        ours = block(alice, "cities", forked.common)
        with pytest.raises(Refused, match="only a new epoch"):
            await resolve(alice, "cities", ours)
        draft = await alice.api.authority.draft_authority(
            "cities", wire.AuthorityDraftRequest(action="rotate", reason="fork")
        )
        await alice.api.authority.change_authority("cities", wire.AuthorityRequest(payload=draft.payload))
        with trio.fail_after(PATIENCE):
            for node in (bob, carol):
                while node.size("theirs") <= forked.common or block(node, "theirs", forked.common) != ours:
                    await node.parts.scheduler.get(forked.cities).turned.wait()
        for node in (bob, carol):
            shown = await node.api.trust.show("theirs")
            assert (shown.epoch, shown.reach.use, shown.facts.forked) == (1, forked.common + 1, True)
            (opened,) = (await node.api.authority.show_authority("theirs")).epochs
            assert (opened.reason, opened.kept) == ("fork", opened.ended)


ATTESTS = model.Policy(profile="validator", publish=model.Publish(attest=True))


@pytest.mark.slow
async def test_a_person_lifts_the_quarantine_of_one_step(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        alice.engine.wrong = partial(add_to_first, "population", 1000)
        await alice.take_in(ROOT, DERIVED, files={"a.csv": ROWS})
        await world.spread(alice, "cities", "towns")
        groups = (model.Group(name="g", keys=(bob.key,)),)
        validators = model.Validators(f=0, groups=groups, recheck=False, spot_check=0.0)
        listens = model.Policy(profile="mirror", serve="data", validators=validators)
        async with world.running("carol", listens) as carol:
            for node in (carol, bob):
                for name in ("cities", "towns"):
                    await node.mirror(alice.dataset(name), name)
            await carol.heard("attestation.heard")
            accused = await carol.api.trust.show("towns")
            assert (accused.why.rule, accused.reach.use) == ("accused", 3)
            (settled,) = await resolve(carol, "towns", block(carol, "towns", 3))
            assert settled == "#3 is used as data, although it is accused"
            lifted = await carol.api.trust.show("towns")
            assert (lifted.reach.use, lifted.facts.reproduced, lifted.facts.attested.have) == (4, False, 0)
            assert carol.parts.library.size(alice.dataset("towns")) == 4
            asks = model.Policy(profile="mirror", use="data & attested:1", serve="data", validators=listens.validators)
            carol.assembly.reload(model.Settings(policy=asks))
            assert (await carol.api.trust.show("towns")).reach.use == 3, "lifting makes no verdict of it"
            with pytest.raises(Refused, match="waits for a decision"):
                await resolve(carol, "cities", block(carol, "cities", 1))
            with pytest.raises(Refused, match="waits for a decision"):
                await resolve(carol, "cities")


async def test_an_epoch_that_gives_up_blocks_is_followed_on_a_persons_word(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.take_in(ROOT, files={"a.csv": ROWS})
        cities, size = alice.dataset("cities"), alice.size("cities")
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        request = wire.RewriteRequest(action="reset", to=f"#{size - 2}")
        await alice.done(alice.api.rewriting.rewrite("cities", request))
        await bob.heard_head(size - 1)
        mirror = bob.parts.scheduler.get(cities)
        with trio.fail_after(PATIENCE):
            while not isinstance(mirror.fault, RewriteWaiting):
                await mirror.turned.wait()
        (choice,) = (await bob.api.trust.show("theirs")).choices
        assert choice.message == f"epoch 1, {size - 1} blocks"
        await resolve(bob, "theirs", choice.hash)
        with trio.fail_after(PATIENCE):
            while bob.size("theirs") != size - 1:
                await bob.parts.scheduler.get(cities).turned.wait()
        assert (await bob.api.trust.show("theirs")).epoch == 1


def version_of(node: Node, dataset: Any, writer: bytes) -> bytes:
    """A first version of the authority, signed by the dataset's key; two of them contradict each other."""
    key, now = node.home.keys.dataset_key(dataset), node.clock.now()
    said = Authority(
        dataset=dataset,
        version=1,
        issued_at=statement.when(now),
        roots=Roots(threshold=1, keys=(key.did,)),
        writers=(
            Writer(key=key.did, expires_at="2026-06-01T00:00:00Z"),
            Writer(key=SigningKey(writer).did, expires_at="2026-06-01T00:00:00Z"),
        ),
        head=node.home.chains.chain(dataset).block_at(0).hash,
    )
    return envelope.seal(statement.encode(said), key)


@pytest.mark.parametrize("held", [True, False])
async def test_one_of_two_versions_is_followed(world: World, held: bool) -> None:
    """While two are known no heads are followed; a person names one, and its writers may write."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.take_in(ROOT, files={"a.csv": ROWS})
        cities = alice.dataset("cities")
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        one, other = (version_of(alice, cities, bytes([number]) * 32) for number in (1, 2))
        for raw in (one, other):
            bob.parts.board.judge(Topic.HEADS, raw, PEER)
        assert (await bob.api.authority.show_authority("theirs")).disputed
        head, key = newest_of(bob, cities), alice.home.keys.dataset_key(cities)
        renewed = msgspec.structs.replace(head, issued_at=statement.when(bob.clock.now()), authority=1)
        sealed = envelope.seal(statement.encode(renewed), key)
        assert bob.parts.board.judge(Topic.HEADS, sealed, PEER) is Judgement.IGNORE
        shown = await bob.api.trust.show("theirs")
        sids = [str(envelope.unseal(raw, statement.MAX_ANY).sid) for raw in (one, other)]
        assert [choice.hash for choice in shown.choices] == sids
        (settled,) = await resolve(bob, "theirs", sids[0 if held else 1])
        assert ("as it was held" in settled) is held
        view = await bob.api.authority.show_authority("theirs")
        writer = SigningKey(bytes([1 if held else 2]) * 32).did
        assert (view.disputed, str(writer) in {each.key for each in view.writers}) == (False, True)
        later = msgspec.structs.replace(renewed, issued_at=statement.when(Instant(bob.clock.now() + SECOND)))
        sealed = envelope.seal(statement.encode(later), SigningKey(bytes([1 if held else 2]) * 32))
        assert bob.parts.board.judge(Topic.HEADS, sealed, PEER) is Judgement.ACCEPT
        for raw in (one, other):
            assert bob.parts.board.judge(Topic.HEADS, raw, PEER) is Judgement.IGNORE
        assert not (await bob.api.authority.show_authority("theirs")).disputed


def newest_of(node: Node, dataset: Any) -> Any:
    with node.home.database.read() as connection:
        found = Ledger(connection).newest_head(dataset)
    assert found is not None
    return found[0]


# An owner whose state was copied signs two histories: whoever meets both proves it and stops where they part.


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "more"), [(1, 0), (2, 0), (1, 1), (2, -1)])
async def test_both_branches_end_where_they_part(world: World, steps: int, more: int) -> None:
    """Attack T-HEAD-03: a branch longer than the history that it leaves.

    Defence: a node whose blocks do not match searches for the last common block, as mirror and as owner.

    One block apart the proof needs nobody; more apart, who showed the other head is asked for its branch.

    ``more`` is by how much the other branch is longer: no size makes it less of a fork.
    """
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.pull()
        cities, common = alice.dataset("cities"), alice.size("cities")
    world.steal("alice", "mallory", SEED)
    mallory_peer = peer_of_seed(SEED)
    world.wires.cut(mallory_peer)
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("mallory") as mallory:
        await mallory.sign_again(alone=True)
        for step in range(max(steps, steps + more)):
            world.write("alice", f"b{step}.csv", f"2024-01-0{3 + step}T00:00:00Z,Wels,{step}")
            if step < steps:
                await alice.pull("cities")
            if step < steps + more:
                await mallory.pull("cities")
        assert (alice.size("cities"), mallory.size("cities")) == (common + steps, common + steps + more)
        await bob.heard_head(common + steps)
        await bob.mirror(cities, "theirs")
        assert bob.size("theirs") == common + steps
        world.wires.heal(mallory_peer)
        with mallory.home.database.read() as connection:
            newest = Ledger(connection).newest_head(cities)
        assert newest is not None
        await mallory.member.announce(Topic.HEADS, newest[1].envelope)

        for node, name in ((bob, "theirs"), (alice, "cities")):
            await node.heard("dataset.forked")
            views = {view.name: view for view in await node.dataset_views()}
            assert views[name].state == "forked"
            shown = await node.api.trust.show(name)
            assert shown.why is not None
            assert (shown.why.rule, shown.why.block, shown.facts.forked) == ("fork", common, True)
            assert shown.why.sids == (shown.evidence[0].id,)
            (evidence,) = [each for each in shown.evidence if each.kind == "fork"]
            assert len({side.block for side in evidence.sides}) == len(evidence.sides) == 2
            assert len({side.head.signer for side in evidence.sides}) == 1, "one key signed both"
            assert {side.head.hash for side in evidence.sides} >= {shown.head}
            here = node.home.chains.chain(node.dataset(shown.ref)).block_at(evidence.block).hash
            assert [side.block for side in evidence.sides if side.held] == [str(here)]
            found = proof.decode(await node.api.trust.evidence(evidence.id))
            assert (found.dataset, found.index) == (cities, common)
            assert node.size(name) == common + steps
        assert await trio.to_thread.run_sync(bob.parts.library.size, cities) <= common


@pytest.mark.slow
async def test_who_comes_later_learns_of_the_fork(world: World) -> None:
    """A proof is among the statements that peers compare: a newcomer stops there before it has a block."""
    await test_both_branches_end_where_they_part(world, 1, 0)
    async with world.running("bob"), world.running("carol") as carol:
        with trio.fail_after(PATIENCE):
            while not (found := carol.parts.board.unheld.datasets()):
                await carol.member.shown.wait()
        await carol.parts.scheduler.add(MirrorSpec(dataset=str(found[0]), name="theirs"))
        (event,) = await carol.heard("dataset.forked")
        assert "two histories" in event.message
