"""A long way is gone in steps, each proven to be the beginning of what was signed before it is kept."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio

from chain.errors import NotFound, Refused
from odfd.mirrors import object_fetcher, sinks, sync
from odfd.mirrors.mirror_state import SchedulerState
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Node, World

DAYS = 9


async def published(world: World, node: Node) -> Any:
    """A chain of a dozen blocks."""
    await_rows = [f"2024-01-{day:02}T00:00:00Z,Graz,{day}" for day in range(1, DAYS + 1)]
    world.write("alice", "a0.csv", await_rows[0])
    await node.apply(ROOT)
    for number, row in enumerate(await_rows[1:], 1):
        await node.pull("cities")
        world.write("alice", f"a{number}.csv", row)
    await node.pull("cities")
    await world.spread(node, "cities")
    return node.dataset("cities")


async def settled(node: Node, name: str, size: int) -> None:
    with trio.fail_after(PATIENCE):
        while node.size(name) < size:
            await node.parts.scheduler.get(node.dataset(name)).turned.wait()


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "STEP", 3)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks of each commit."""
    commits: list[int] = []
    commit = sync.MirrorSync._commit

    def count(self: Any, spec: Any, *more: Any) -> Any:
        commits.append(len(more[0].blocks))
        return commit(self, spec, *more)

    monkeypatch.setattr(sync.MirrorSync, "_commit", count)
    return commits


async def test_each_step_is_kept(world: World, short_steps: None, counted: list[int]) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        view = await bob.mirror(cities, "theirs")
        size = alice.size("cities")
        assert size > 9
        assert (view.state, view.blocks.have) == ("current", size)
        assert counted == [3] * (size // 3) + ([size % 3] if size % 3 else [])
        mine, theirs = (list(node.home.chains.chain(cities).raw_blocks(0, 99)) for node in (alice, bob))
        assert mine == theirs
        assert (await bob.api.datasets.tail("theirs", 5)).rows == (await alice.api.datasets.tail("cities", 5)).rows


async def test_the_next_step_is_fetched_while_one_is_kept(
    world: World, short_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    commit = sync.MirrorSync._commit

    def wait(self: Any, spec: Any, *more: Any) -> Any:
        assert asked.wait(PATIENCE), "nothing was asked for meanwhile"
        return commit(self, spec, *more)

    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        blocks = alice.parts.library.blocks

        def watched(dataset: Any, start: int, *more: Any) -> Any:
            if start == 3:
                asked.set()
            return blocks(dataset, start, *more)

        alice.parts.library.blocks = watched
        monkeypatch.setattr(sync.MirrorSync, "_commit", wait)
        assert (await bob.mirror(cities, "theirs")).state == "current"


@pytest.mark.slow
async def test_large_blocks_make_short_steps(world: World, monkeypatch: pytest.MonkeyPatch, counted: list[int]) -> None:
    """As soon as more bytes wait than may, what is here is proven and kept; unless the whole is to show something."""
    monkeypatch.setattr(sinks, "MAX_PENDING_BYTES", 1000)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        alice.member.lies.blocks = lambda blocks: blocks[:2]
        known = str(alice.home.chains.chain(cities).block_at(1).hash)
        with pytest.raises(Refused, match="not yet proven"):
            await bob.mirror(cities, "theirs", expect=known)
        assert bob.size("theirs") == 0
        await bob.api.declarations.delete("Mirror", "theirs")
        view = await bob.mirror(cities, "theirs")
        assert (view.state, view.blocks.have) == ("current", alice.size("cities"))
        assert sum(counted) == alice.size("cities")
        assert len(counted) > 2


@pytest.mark.slow
async def test_what_nobody_proves_is_not_kept(world: World, short_steps: None) -> None:
    """Alice gives good blocks and proofs that prove nothing, then none, then she mends her ways."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        library, prove = alice.parts.library, alice.parts.library.prove
        library.prove = lambda *args, **more: [bytes(32)] * 3
        await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert bob.size("theirs") == 0
        library.prove = prove
        bob.parts.scheduler.poke(cities)
        await settled(bob, "theirs", alice.size("cities"))


@pytest.mark.slow
async def test_a_way_that_ends_in_the_middle_is_gone_on(world: World, short_steps: None) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        library, prove = alice.parts.library, alice.parts.library.prove

        def tired(dataset: Any, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
            if old is not None and old > 6:
                raise NotFound("not now")
            return prove(dataset, size, old=old, index=index)  # type: ignore[no-any-return]

        library.prove = tired
        await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert bob.size("theirs") == 6
        library.prove = prove
        bob.parts.scheduler.poke(cities)
        await settled(bob, "theirs", alice.size("cities"))


async def test_others_are_fetched_while_slices_are_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were begun together are checked together; the line goes on with others, and with no more at once."""
    fetch, check = object_fetcher.ObjectFetcher._have, object_fetcher.check_event
    fetching = most = begun = 0
    more = threading.Event()

    async def counted(self: Any, *given: Any) -> Any:
        nonlocal fetching, most, begun
        fetching, begun = fetching + 1, begun + 1
        most = max(most, fetching)
        if begun > object_fetcher.AT_ONCE:
            more.set()
        try:
            return await fetch(self, *given)
        finally:
            fetching -= 1

    def checked(*given: Any) -> Any:
        assert more.wait(PATIENCE), "nothing is fetched until a check is done"
        return check(*given)

    monkeypatch.setattr(object_fetcher, "MAX_PACKED", 0)
    monkeypatch.setattr(object_fetcher.ObjectFetcher, "_have", counted)
    monkeypatch.setattr(object_fetcher, "check_event", checked)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        assert (await bob.mirror(cities, "theirs", want="data", serve="data")).state == "current"
    assert begun == DAYS
    assert most <= object_fetcher.AT_ONCE
