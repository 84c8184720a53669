"""Frontiers of datasets: what people are told of them, what owners sign of them, and what is set by hand."""

from __future__ import annotations

from typing import Any

import pytest

from chain import instant
from chain.errors import Conflict, Invalid, Refused
from chain.instant import SECOND, Instant, from_millis, render, to_millis
from chain.model.events import AddData
from chain.state import load_state
from chain.statements.statement import HeadStatement
from chain.store.shards import SEALED
from chain.store.sqlite_shards import SqliteShards
from config import model
from odfd.cli.details import dataset as shown
from odfd.control import wire
from odfd.mirrors.mirror_state import SchedulerState
from odfd.services.trust.journal_recovery import recall
from odfd.store.ledger.log import Ledger
from odfd.trust.signing.owner_commit import OwnerCommitter, SignedUppers
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

# Frontiers of datasets: what people are told of them, and that they follow what was promised and what was written.


MERGE = "merge: {kind: Ledger, primaryKey: [event_time, city]}"


def newest(node: Node, dataset: Any) -> Any:
    """The last head that was signed, and when."""
    with node.home.database.read() as connection:
        return Ledger(connection).newest_head(dataset)


def promise(node: Node, name: str, upper: int) -> None:
    SqliteShards(node.home.database, node.home.chains).advance([node.dataset(name)], upper)


async def seen(node: Node, name: str) -> wire.Frontiers:
    """As get, the list and the description tell of it, which is one and the same."""
    view = await node.dataset_view(name)
    assert view in await node.dataset_views()
    assert (await node.api.datasets.describe(name)).dataset.frontiers == view.frontiers
    return view.frontiers


async def test_without_a_promise_the_last_block_is_the_frontier(world: World) -> None:
    """Here and in a mirror: another block may have its time still, so that time itself is not complete."""
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        before = await seen(alice, "cities")
        await alice.pull("cities")
        detail = await alice.api.datasets.describe("cities")
        after = await seen(alice, "cities")
        assert after == wire.Frontiers(since=None, upper=detail.updated_at)
        assert before.upper < after.upper
        assert f"complete   before {after.upper}" in " ".join(shown(detail).split("\n"))
        await bob.mirror(alice.dataset("cities"), "theirs")
        assert await seen(bob, "theirs") == after


async def test_a_promise_is_told_at_once_and_after_a_restart(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        old, size = await seen(alice, "cities"), alice.size("cities")
        upper = to_millis(instant.parse(old.upper)) + 5_000
        promise(alice, "cities", upper)
        told = wire.Frontiers(upper=instant.render(instant.from_millis(upper)))
        assert await seen(alice, "cities") == told
        alice.parts.views.refresher.refresh()
        promise(alice, "cities", upper + 1)
    async with world.running("alice") as alice:
        assert await seen(alice, "cities") == wire.Frontiers(upper=instant.render(instant.from_millis(upper + 1)))
        assert alice.size("cities") == size
        promise(alice, "cities", SEALED)
        assert await seen(alice, "cities") == wire.Frontiers(sealed=True)
        assert "complete   for ever: it is sealed" in shown(await alice.api.datasets.describe("cities"))


async def advanced(node: Node, name: str) -> wire.PullItem:
    result = await node.done(node.api.flow.advance(name))
    (item,) = result.items
    return item


def at(upper: str | None) -> int:
    assert upper is not None
    return to_millis(instant.parse(upper))


async def test_the_frontier_moves_when_it_is_asked_for_and_adds_no_block(world: World) -> None:
    """Attack T-HEAD-01: a clock that goes back behind times that were promised complete.

    Defence: later blocks get a later time; the store refuses others.

    No block, and of a private dataset no signature; the next block is not before it, whatever the clock says.
    """
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.unpublish("cities")
        cities, size = alice.dataset("cities"), alice.size("cities")
        signed = newest(alice, cities)
        world.clock.instant += 60 * SECOND
        before = world.clock.instant
        item = await advanced(alice, "cities")
        upper = (await seen(alice, "cities")).upper
        assert before // 10**6 <= at(upper) <= world.clock.instant // 10**6
        assert item.message == f"times before {upper} are complete"
        assert (alice.size("cities"), newest(alice, cities)) == (size, signed)
        world.clock.instant -= 3600 * SECOND
        assert (await advanced(alice, "cities")).message == item.message
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        (pulled,) = await alice.pull("cities")
        assert pulled.outcome == "updated", pulled
        await alice.apply(ROOT.replace("merge: {kind: Append}", MERGE))
        blocks = await alice.api.datasets.log("cities", [], 100, None, None)
        assert {block.system_time for block in blocks[: alice.size("cities") - size]} == {upper}
        assert blocks[0].event == "SetPollingSource"
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok


async def test_a_derived_dataset_is_written_at_its_frontier_too(world: World) -> None:
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        await alice.pull("cities")
        world.clock.instant += 60 * SECOND
        await advanced(alice, "towns")
        upper = (await seen(alice, "towns")).upper
        world.clock.instant -= 3600 * SECOND
        assert (await alice.pull("towns"))[-1].outcome == "updated"
        (block, *_) = await alice.api.datasets.log("towns", [], 1, None, None)
        assert block.system_time == upper


async def test_a_promise_while_rows_are_computed_makes_the_pull_plan_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first plan is refused by name; the second has a time at the promise, and no row comes twice."""
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        commit, refused = OwnerCommitter.commit, []

        async def promised_first(self: OwnerCommitter, work: Any) -> Any:
            dataset = work.parts[0].dataset
            if len(refused) < 2 and dataset not in [each for each, _ in refused]:
                uppers[dataset] = alice.home.chains.upper(dataset) + 60_000
                SqliteShards(alice.home.database, alice.home.chains).advance([dataset], uppers[dataset])
                with pytest.raises(Conflict) as lost:
                    await commit(self, work)
                refused.append((dataset, str(lost.value)))
                raise lost.value
            return await commit(self, work)

        uppers: dict[Any, int] = {}
        monkeypatch.setattr(OwnerCommitter, "commit", promised_first)
        for name in ("cities", "towns"):
            assert (await alice.pull(name))[-1].outcome == "updated"
            dataset = alice.dataset(name)
            assert str(uppers[dataset]) in dict(refused)[dataset]
            (block, *_) = await alice.api.datasets.log(name, [], 1, None, None)
            assert at(block.system_time) == uppers[dataset]
            assert (await alice.api.datasets.describe(name)).dataset.records == 1


async def test_only_who_alone_may_write_promises(world: World) -> None:
    """Attack T-HEAD-01: a node that promises times of a dataset with several writers.

    Defence: refused unless the node holds the keys of all writers.
    """
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await alice.pull("cities")
        await bob.mirror(alice.dataset("cities"), "theirs")
        before = await seen(bob, "theirs")
        with pytest.raises(Refused, match="other keys than this node's") as raised:
            await advanced(bob, "theirs")
        assert raised.value.rule == "advance-writer"
        assert await seen(bob, "theirs") == before


async def test_a_promise_of_a_wrong_clock_is_not_made_and_not_followed(world: World) -> None:
    """Attack T-HEAD-01: a promise by a clock that is far ahead.

    Defence: refused if the error is detected; otherwise the promise holds, and blocks are refused until its time.

    What a clock that is days ahead would promise could not be taken back; where it was, nothing is written.
    """
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        before = await seen(alice, "cities")
        now = world.clock.now
        world.clock.now = lambda: Instant(now() + 30 * 86_400 * SECOND)
        with pytest.raises(Refused) as ahead:
            await advanced(alice, "cities")
        assert ahead.value.rule == "clock-ahead"
        world.clock.now = now
        assert await seen(alice, "cities") == before
        promise(alice, "cities", to_millis(world.clock.instant + 30 * 86_400 * SECOND))
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        (pulled,) = await alice.pull("cities")
        assert pulled.outcome == "failed"
        assert pulled.fault.rule == "clock-behind"
        promise(alice, "cities", SEALED)
        with pytest.raises(Refused, match="sealed"):
            await advanced(alice, "cities")


async def test_reading_and_idling_move_nothing(world: World) -> None:
    """Whoever looks at frontiers writes and signs nothing, however much time passed; only who asks moves them."""
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        cities = alice.dataset("cities")
        before, signed = await seen(alice, "cities"), newest(alice, cities)
        kept = alice.home.chains.upper(cities)
        for _ in range(24):
            world.clock.instant += 3600 * SECOND
            assert await seen(alice, "cities") == before
        assert alice.home.chains.upper(cities) == kept
        assert newest(alice, cities) == signed


# Frontiers in signed heads: a mirror gets its owner's promise, and a promise that is signed is not broken unseen.


def newest_head(node: Node, ref: str) -> HeadStatement:
    with node.home.database.read() as connection:
        found = Ledger(connection).newest_head(node.dataset(ref))
    assert found is not None
    return found[0]


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
            assert newest_head(alice, "cities").upper is None
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
            assert newest_head(alice, "cities").upper is None, "the last block says as much"
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
        assert newest_head(alice, "cities").upper is None
        await alice.publish("cities")
        upper = newest_head(alice, "cities").upper
        assert upper is not None
        assert render(from_millis(upper)) == await complete(alice, "cities")
        before = newest_head(alice, "cities")
        assert not alice.parts.committer.sign_unsigned(alice.dataset("cities")), "nothing changed since"
        assert newest_head(alice, "cities") == before


async def test_an_older_state_contradicts_no_signed_frontier(world: World) -> None:
    """Attack T-HEAD-01: a signed frontier that goes back, by an old head or an older state.

    Defence: of one history the later upper counts; the journal lets no key sign a smaller one, nor a block before it.

    Neither by a block nor by a head; to promise more makes it whole.
    """
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
        assert known["upper"].order == (newest_head(alice, "cities").upper,)


async def test_a_publisher_that_breaks_its_promise_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-HEAD-01: a publisher adds a block of a time that its head had called complete.

    Defence: a mirror that has the blocks of that head refuses it, says so, and keeps what it has; both heads stay in
    the ledger.

    A block of a time that was signed as complete: whoever saw the promise takes it not, and says so.
    """
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
        promised = newest_head(alice, "cities").upper
        request = wire.RewriteRequest(action="reset", to="#1")
        await alice.done(alice.api.rewriting.rewrite("cities", request))
        head = newest_head(alice, "cities")
        assert (head.epoch, head.upper) == (1, promised), "an epoch takes back no promise of the owner"
        await bob.parts.scheduler.pass_now(bob.dataset("theirs"))
        assert bob.size("theirs") == head.size
        assert bob.home.chains.upper(bob.dataset("theirs")) == promised


# A watermark set by hand: what waits for it goes on, and what is known of the source stays.


async def moved(node: Node, ref: str, time: str, **more: Any) -> wire.PullItem:
    (item,) = (await node.done(node.api.flow.set_watermark(ref, wire.WatermarkRequest(time=time, **more)))).items
    return item


async def test_a_watermark_is_set_by_hand_and_never_goes_back(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull()
        chain = alice.home.chains.chain(alice.dataset("cities"))
        before = load_state(chain)
        item = await moved(alice, "cities", "2024-06-01T00:00:00Z")
        assert (item.outcome, item.blocks, item.records) == ("updated", 1, 0)
        after = load_state(chain)
        assert instant.render(after.watermark) == "2024-06-01T00:00:00Z"
        assert (after.source_state, after.last_offset) == (before.source_state, before.last_offset)
        assert isinstance(chain.block_at(after.sequence_number).event, AddData)
        assert (await moved(alice, "cities", "2024-06-01T00:00:00Z")).outcome == "up-to-date"
        with pytest.raises(Refused, match="does not go back"):
            await moved(alice, "cities", "2024-05-01T00:00:00Z")
        assert (await alice.pull("cities"))[0].outcome == "up-to-date", "the file that was taken is not taken again"
        await alice.pull("towns")
        derived = load_state(alice.home.chains.chain(alice.dataset("towns")))
        assert instant.render(derived.watermark) == "2024-06-01T00:00:00Z"
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok


async def test_a_watermark_of_nonsense_or_far_ahead_is_refused(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull()
        before = alice.size("cities")
        with pytest.raises(Refused, match="ahead of the clock"):
            await moved(alice, "cities", "2099-01-01T00:00:00Z")
        with pytest.raises(Refused, match="whole milliseconds"):
            await moved(alice, "cities", "2024-05-01T00:00:00.0001Z")
        with pytest.raises(Refused, match="source datasets only"):
            await moved(alice, "towns", "2024-06-01T00:00:00Z")
        with pytest.raises(Invalid):
            await moved(alice, "cities", "yesterday")
        assert alice.size("cities") == before
        assert (await moved(alice, "cities", "2099-01-01T00:00:00Z", ahead=True)).outcome == "updated"
