"""Frontiers of datasets: what people are told of them, and that they follow what was promised and what was written."""

from __future__ import annotations

from typing import Any

from chain import instant
from chain.instant import to_millis
from chain.store.shards import SEALED, CommitPoint, Committed, Proposal
from chain.store.sqlite_shards import SqliteShards
from odfd.cli.details import dataset as shown
from odfd.control import wire


def point(node: Any) -> CommitPoint:
    return CommitPoint(SqliteShards(node.home.database, node.home.chains))


def promise(node: Any, name: str, upper: int) -> None:
    (outcome,) = point(node).append([Proposal(dataset=node.dataset(name), new_upper=upper)])
    assert isinstance(outcome, Committed)


async def seen(node: Any, name: str) -> wire.Frontiers:
    """As get, the list and the description tell of it, which is one and the same."""
    view = await node.api.datasets.get(name)
    assert view in await node.api.datasets.list()
    assert (await node.api.datasets.describe(name)).dataset.frontiers == view.frontiers
    return view.frontiers


async def test_without_a_promise_the_last_block_is_the_frontier(world: Any, worlds: Any) -> None:
    """Here and in a mirror: another block may have its time still, so that time itself is not complete."""
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(worlds.ROOT)
        before = await seen(alice, "cities")
        await alice.pull("cities")
        detail = await alice.api.datasets.describe("cities")
        after = await seen(alice, "cities")
        assert after == wire.Frontiers(since=None, upper=detail.updated_at)
        assert before.upper < after.upper
        assert f"complete   before {after.upper}" in " ".join(shown(detail).split("\n"))
        await bob.mirror(alice.dataset("cities"), "theirs")
        assert await seen(bob, "theirs") == after


async def test_a_promise_is_told_at_once_and_after_a_restart(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT)
        old, size = await seen(alice, "cities"), alice.size("cities")
        upper = to_millis(instant.parse(old.upper)) + 5_000
        promise(alice, "cities", upper)
        told = wire.Frontiers(upper=instant.render(instant.from_millis(upper)))
        assert await seen(alice, "cities") == told
        await alice.parts.views.refresher.refresh()
        promise(alice, "cities", upper + 1)
    async with world.running("alice") as alice:
        assert await seen(alice, "cities") == wire.Frontiers(upper=instant.render(instant.from_millis(upper + 1)))
        assert alice.size("cities") == size
        promise(alice, "cities", SEALED)
        assert await seen(alice, "cities") == wire.Frontiers(sealed=True)
        assert "complete   for ever: it is sealed" in shown(await alice.api.datasets.describe("cities"))
