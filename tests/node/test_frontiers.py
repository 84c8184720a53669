"""Frontiers of datasets: what people are told of them, and that they follow what was promised and what was written."""

from __future__ import annotations

from typing import Any

import pytest

from chain import instant
from chain.errors import Conflict, Refused
from chain.instant import SECOND, Instant, to_millis
from chain.store.shards import SEALED
from chain.store.sqlite_shards import SqliteShards
from odfd.cli.details import dataset as shown
from odfd.control import wire
from odfd.store.ledger.log import Ledger
from odfd.trust.signing.owner_commit import OwnerCommitter
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

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
    """No block, and of a private dataset no signature; the next block is not before it, whatever the clock says."""
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
    """What a clock that is days ahead would promise could not be taken back; where it was, nothing is written."""
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
