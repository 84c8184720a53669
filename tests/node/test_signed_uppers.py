"""Frontiers in signed heads: a mirror gets its owner's promise, and a promise that is signed is not broken unseen."""

from __future__ import annotations

import pytest

from chain.errors import Invalid, Refused
from chain.instant import SECOND, from_millis, render
from chain.statements.statement import HeadStatement
from config import model
from odfd.cli.details import dataset as shown
from odfd.control import wire
from odfd.mirrors.mirror_state import SchedulerState
from odfd.services.trust.journal_recovery import recall
from odfd.store.ledger.log import Ledger
from odfd.trust.signing.owner_commit import SignedUppers
from worlds.manifests import ROOT
from worlds.node_world import Node, World


def newest(node: Node, ref: str) -> HeadStatement:
    with node.home.database.read() as connection:
        found = Ledger(connection).newest_head(node.dataset(ref))
    assert found is not None
    return found[0]


async def advanced(node: Node, name: str) -> None:
    await node.done(node.api.flow.advance(name))


async def complete(node: Node, name: str) -> str | None:
    """As all of the list, the view and the description tell."""
    view = await node.dataset_view(name)
    assert view in await node.dataset_views()
    detail = await node.api.datasets.describe(name)
    assert f"before {view.frontiers.upper}" in shown(detail)
    return view.frontiers.upper


def forgotten(node: Node, name: str) -> None:
    """The store as a backup from before the promise has it."""
    with node.home.database.write() as connection:
        connection.execute("UPDATE datasets SET upper = NULL WHERE id = ?", (node.dataset(name),))


async def test_a_mirror_gets_the_frontier_that_its_owner_signed(world: World) -> None:
    """Without a block; it is told like other facts of heads, and survives that nobody is there any more."""
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("bob") as bob:
        async with world.running("alice") as alice:
            await alice.apply(ROOT)
            await alice.pull("cities")
            await bob.mirror(alice.dataset("cities"), "theirs")
            assert newest(alice, "cities").upper is None
            size, before = bob.size("theirs"), await complete(bob, "theirs")
            for _ in range(2):
                world.clock.instant += 60 * SECOND
                await advanced(alice, "cities")
                await bob.parts.scheduler.pass_now(bob.dataset("theirs"))
                assert await complete(bob, "theirs") == await complete(alice, "cities") != before
            assert bob.size("theirs") == size
            heads = (await bob.api.trust.show("theirs")).heads
            assert max(each.upper or "" for each in heads) == await complete(alice, "cities")
            await alice.pull("cities")
            world.write("alice", "b.csv", "2024-01-02T00:00:00Z,Linz,2")
            world.clock.instant += 60 * SECOND
            await alice.pull("cities")
            await bob.parts.scheduler.pass_now(bob.dataset("theirs"))
            assert newest(alice, "cities").upper is None, "the last block says as much"
            assert await complete(bob, "theirs") == await complete(alice, "cities")
        assert bob.size("theirs") == size + 1
    async with world.running("bob") as bob:
        assert await complete(bob, "theirs") is not None


async def test_what_is_private_is_signed_when_it_is_published(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.unpublish("cities")
        world.clock.instant += 60 * SECOND
        await advanced(alice, "cities")
        assert newest(alice, "cities").upper is None
        await alice.publish("cities")
        upper = newest(alice, "cities").upper
        assert upper is not None
        assert render(from_millis(upper)) == await complete(alice, "cities")
        before = newest(alice, "cities")
        assert not alice.parts.committer.sign_unsigned(alice.dataset("cities")), "nothing changed since"
        assert newest(alice, "cities") == before


async def test_an_older_state_contradicts_no_signed_frontier(world: World) -> None:
    """Neither by a block nor by a head; to promise more makes it whole."""
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        world.clock.instant += 60 * SECOND
        await advanced(alice, "cities")
        size = alice.size("cities")
        forgotten(alice, "cities")
        world.clock.instant -= 50 * SECOND
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        (pulled,) = await alice.pull("cities")
        assert (pulled.outcome, pulled.fault.rule) == ("failed", "trust.behind")
        assert "odfctl advance" in pulled.fault.hint
        assert alice.size("cities") == size
        world.clock.instant += 4 * 86_400 * SECOND
        with pytest.raises(Refused, match="has signed that the times"):
            alice.parts.committer.sign_unsigned(alice.dataset("cities"))
        await advanced(alice, "cities")
        assert (await alice.pull("cities"))[0].outcome == "updated"


async def test_lost_journals_get_frontiers_back_from_statements(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        world.clock.instant += 60 * SECOND
        await advanced(alice, "cities")
        key = alice.home.keys.dataset_key(alice.dataset("cities")).did
        with alice.home.database.read() as connection:
            known = recall(connection, [key])[key]
        assert known["upper"].order == (newest(alice, "cities").upper,)


async def test_a_publisher_that_breaks_its_promise_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of a time that was signed as complete: whoever saw the promise takes it not, and says so."""
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        await alice.apply(ROOT)
        await alice.pull("cities")
        world.clock.instant += 3600 * SECOND
        await advanced(alice, "cities")
        await bob.mirror(alice.dataset("cities"), "theirs")
        size, upper = bob.size("theirs"), await complete(bob, "theirs")
        forgotten(alice, "cities")
        monkeypatch.setattr(SignedUppers, "check", lambda *_: None)
        world.clock.instant -= 1800 * SECOND
        world.write("alice", "b.csv", "2024-01-02T00:00:00Z,Linz,2")
        assert (await alice.pull("cities"))[0].outcome == "updated"
        mirror = await bob.parts.scheduler.pass_now(bob.dataset("theirs"))
        assert mirror.state is SchedulerState.REFUSED
        assert isinstance(mirror.fault, Invalid)
        assert (mirror.fault.rule, bob.size("theirs")) == ("trust.upper", size)
        assert await complete(bob, "theirs") == upper
        await carol.mirror(alice.dataset("cities"), "theirs")
        assert carol.size("theirs") == alice.size("cities"), "who never saw the promise cannot tell"


async def test_a_frontier_holds_within_its_epoch(world: World) -> None:
    """A history that is given up takes along what was signed of it; then the new one's frontier is followed."""
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
    follows = model.Policy(rewrite=model.Rewrite(follow="follow"))
    async with world.running("alice") as alice, world.running("bob", policy=follows) as bob:
        await alice.apply(ROOT)
        await alice.pull("cities")
        world.clock.instant += 60 * SECOND
        await advanced(alice, "cities")
        await bob.mirror(alice.dataset("cities"), "theirs")
        promised = newest(alice, "cities").upper
        request = wire.RewriteRequest(action="reset", to="#1")
        await alice.done(alice.api.rewriting.rewrite("cities", request))
        head = newest(alice, "cities")
        assert (head.epoch, head.upper) == (1, promised), "an epoch takes back no promise of the owner"
        await bob.parts.scheduler.pass_now(bob.dataset("theirs"))
        assert bob.size("theirs") == head.size
        assert bob.home.chains.upper(bob.dataset("theirs")) == promised
