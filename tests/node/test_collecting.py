"""Disk that is freed: never what somebody needs, or holds for reading."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from chain.errors import Invalid, NotFound, Refused
from chain.instant import SECOND
from chain.multihash import Multihash
from chain.store.objects import SMALL
from config import model
from odfd.cli import formatting
from odfd.cli.details import dataset as shown
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.obs.events import EventLog
from odfd.runtime.supervision import Life
from odfd.runtime.tasks import TaskBoard
from odfd.services.maintenance import garbage_collection
from odfd.services.maintenance.garbage_collection import GarbageCollector
from odfd.store.directory import open_state_directory
from odfd.store.ledger import retention
from odfd.store.ledger.log import Ledger
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.manifests import ROOT
from worlds.node_world import Lines, Node, Ticking, World

# Disk that is freed: by command, by itself, never what somebody needs.


LARGE = b"x" * (SMALL + 1)


async def collect(node: Node, dry_run: bool = False) -> wire.CollectResult:
    return await node.done(node.api.collection.collect(wire.CollectRequest(dry_run=dry_run)))


def slices(node: Node, ref: str) -> list[Multihash]:
    chain = node.home.chains.chain(node.dataset(ref))
    events = [chain.block_at(number).event for number in range(node.size(ref))]
    return [event.new_data.physical_hash for event in events if getattr(event, "new_data", None)]


async def published(world: World, node: Node) -> list[Multihash]:
    for day in (1, 2, 3):
        world.write("alice", f"{day}.csv", f"2024-01-0{day}T00:00:00Z,Graz,{day}")
    await node.apply(ROOT)
    await node.pull()
    return slices(node, "cities")


async def test_slices_of_the_old_history_are_freed(world: World) -> None:
    async with world.running("alice") as alice:
        old = await published(world, alice)
        await alice.done(alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="compact")))
        rows = list((await alice.api.datasets.tail("cities", 10)).rows)
        first = await collect(alice)
        assert (first.objects, first.waiting) == (0, 3), "they were read a moment ago"
        assert first.waiting_bytes > 0
        for _ in range(2):
            plan = await collect(alice, dry_run=True)
            assert (plan.objects, plan.bytes, plan.dry_run) == (3, first.waiting_bytes, True)
            assert {each.name for each in plan.listed} == {str(name) for name in old}
            assert plan.unlisted == 0
            assert set(old) <= set(alice.home.objects.names())
        done = await collect(alice)
        assert (done.objects, done.bytes, done.waiting, done.listed) == (3, plan.bytes, 0, ())
        assert not set(old) & set(alice.home.objects.names())
        assert list((await alice.api.datasets.tail("cities", 10)).rows) == rows
        report = await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest(level="data")))
        assert report.ok
        (event,) = await alice.heard("objects.collected")
        assert event.data == {"objects": 3, "bytes": done.bytes}


async def test_what_is_here_and_named_is_never_freed(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await published(world, alice)
        await world.spread(alice, "cities")
        await bob.mirror(alice.dataset("cities"), "theirs")
        for node in (alice, bob):
            before = set(node.home.objects.names())
            for _ in range(3):
                assert (await collect(node)).objects == 0
            assert set(node.home.objects.names()) == before


async def test_the_trust_ledger_lets_go_of_superseded_heads(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(retention, "SUPERSEDED", -1)
    async with world.running("alice") as alice:
        await published(world, alice)
        await alice.pull()
        plan = await collect(alice, dry_run=True)
        assert plan.statements > 0
        reach = alice.parts.evaluator.known(alice.dataset("cities")).head
        done = await collect(alice)
        assert done.statements == plan.statements
        assert (await collect(alice)).statements == 0
        assert alice.parts.evaluator.known(alice.dataset("cities")).head == reach
        with alice.home.database.read() as connection:
            Ledger(connection).check()


async def test_a_long_list_is_cut(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(garbage_collection, "MAX_LISTED", 2)
    async with world.running("alice") as alice:
        await published(world, alice)
        await alice.done(alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="reset", to="#0")))
        await collect(alice)
        plan = await collect(alice, dry_run=True)
        assert (plan.objects, len(plan.listed), plan.unlisted) == (3, 2, 1)


@asynccontextmanager
async def left_over(folder: Path, hours: float) -> AsyncIterator[tuple[Any, Any, Multihash]]:
    """A node's board and events, a collector at work, and an object that nobody names since the last start."""
    with open_state_directory(folder) as home:
        name = home.objects.add_bytes(LARGE)
    with open_state_directory(folder) as home:
        clock = Ticking()
        board = TaskBoard(clock, lambda: "t", Lines())
        events = EventLog(clock)
        service = GarbageCollector(home, Context(clock, Lines(), events, board, "1"), hours)
        lives = [Life(), Life()]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(board.run, lives[0])
            await lives[0].wait_ready()
            nursery.start_soon(service.run, lives[1])
            await lives[1].wait_ready()
            yield home, board, name
            for life in reversed(lives):
                life.stopping.set()


async def test_it_collects_by_itself(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with left_over(tmp_path, hours=1.0) as (home, board, name):
        asked: list[float] = []
        submit, thrice = board.submit, trio.Event()

        def noted(kind: str, target: str, work: Any) -> Any:
            assert kind == "gc"
            asked.append(trio.current_time())
            if len(asked) == 3:
                thrice.set()
            return submit(kind, target, work)

        board.submit = noted
        await thrice.wait()
        assert asked[0] == garbage_collection.FIRST_SECONDS
        assert all(later - one >= 3600 for one, later in pairwise(asked))
        assert not home.objects.has(name)


async def test_only_by_command(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with left_over(tmp_path, hours=0.0) as (home, board, name):
        await trio.sleep(80_000)
        assert board.list() == []
        assert home.objects.has(name)


# Read holds on whole nodes: what may not happen while one lives, what may after, and how both are told.


FOLLOW = model.Policy(rewrite=model.Rewrite(follow="follow"))


async def cities(world: World, node: Node) -> Any:
    """Of three files, one slice each."""
    for day in (1, 2, 3):
        world.write("alice", f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,Graz,{day}")
    await node.apply(ROOT)
    await node.pull()
    return node.dataset("cities")


async def take(node: Node, ref: str, **more: Any) -> wire.HoldView:
    return await node.api.holds.take(wire.HoldRequest(ref=ref, **more))


async def compact(node: Node) -> wire.RewriteResult:
    return await node.done(node.api.rewriting.rewrite("cities", wire.RewriteRequest(action="compact")))


async def collected(node: Node) -> wire.CollectResult:
    return await node.done(node.api.collection.collect(wire.CollectRequest(dry_run=False)))


async def test_while_a_hold_lives_history_stays(world: World) -> None:
    async with world.running("alice") as alice:
        dataset = await cities(world, alice)
        head = alice.home.chains.chain(dataset).head()
        hold = await take(alice, "cities", note="monthly report", seconds=60)
        assert hold.pin is not None
        assert (hold.dataset, hold.pin.block, hold.note) == ("cities", str(head.hash), "monthly report")
        for action, more in (("compact", {}), ("keep-metadata", {}), ("reset", {"to": "#1"})):
            request = wire.RewriteRequest(action=action, **more)
            with breaks("read-hold", Refused, match=rf"held for a reader: {hold.id} \(monthly report\) until"):
                await alice.done(alice.api.rewriting.rewrite("cities", request))
        with pytest.raises(Refused, match="held for a reader"):
            await alice.api.declarations.delete("Dataset", "cities")
        await collected(alice)
        assert alice.home.chains.chain(dataset).head() == head
        detail = await alice.api.datasets.describe("cities")
        assert detail.holds == (hold,)
        until = formatting.moment(hold.expires_at)
        assert f"until {until} by {hold.id}, at {hold.time}: monthly report" in shown(detail)
        assert (await alice.api.holds.release(hold.id)) == hold
        assert (await compact(alice)).outcome == "rewritten"
        assert (await alice.api.datasets.describe("cities")).holds == ()
        with pytest.raises(NotFound):
            await alice.api.holds.release(hold.id)


async def test_a_hold_outlives_a_restart_and_expires_unless_it_is_renewed(world: World) -> None:
    async with world.running("alice") as alice:
        await cities(world, alice)
        hold = await take(alice, "cities", seconds=60)
        other = await take(alice, "cities", seconds=90)
    async with world.running("alice") as alice:
        assert [each.id for each in await alice.api.holds.list()] == [hold.id, other.id]
        world.clock.instant += 50 * SECOND
        renewed = await alice.api.holds.renew(hold.id, wire.HoldRenewal(seconds=300))
        assert renewed.expires_at > hold.expires_at
        world.clock.instant += 50 * SECOND
        assert [each.id for each in await alice.api.holds.list("cities")] == [hold.id]
        with breaks("hold-lost", Refused, match="expired, or was released"):
            await alice.api.holds.renew(other.id, wire.HoldRenewal())
        with pytest.raises(Refused, match="held for a reader"):
            await compact(alice)
        world.clock.instant += 300 * SECOND
        assert (await compact(alice)).outcome == "rewritten"
        world.clock.instant -= 300 * SECOND
        with pytest.raises(Refused, match="expired"):
            await alice.api.holds.renew(hold.id, wire.HoldRenewal())


async def test_a_time_is_held_where_it_is_complete(world: World) -> None:
    """The pin is the last block of that time; a time that may still get blocks is refused."""
    async with world.running("alice") as alice:
        dataset = await cities(world, alice)
        chain = alice.home.chains.chain(dataset)
        blocks = await alice.api.datasets.log("cities", [], 100, None, None)
        last = blocks[0].system_time
        with pytest.raises(Refused, match="not complete yet") as early:
            await take(alice, "cities", at=last)
        assert "odfctl advance cities" in early.value.hint
        world.clock.instant += 10 * SECOND
        await alice.done(alice.api.flow.advance("cities"))
        hold = await take(alice, "cities", at=last)
        assert hold.pin is not None
        assert (hold.pin.block, hold.time) == (str(chain.head().hash), last)
        with pytest.raises(Refused, match="begins after"):
            await take(alice, "cities", at="1999-01-01T00:00:00Z")
        for wrong in ({"seconds": 0}, {"seconds": 86_401}, {"note": "x" * 201}, {"at": "1969-01-01T00:00:00Z"}):
            with pytest.raises(Invalid):
                await take(alice, "cities", **wrong)
        with pytest.raises(NotFound):
            await take(alice, "nothing")


@pytest.mark.slow
async def test_a_mirror_follows_a_rewritten_history_once_nobody_reads_the_old_one(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", FOLLOW) as bob:
        dataset = await cities(world, alice)
        await world.spread(alice, "cities")
        await bob.mirror(dataset, "theirs")
        before = bob.home.chains.chain(dataset).head()
        hold = await take(bob, "theirs")
        done = await compact(alice)
        await bob.heard("mirror.held")
        assert bob.parts.scheduler.get(dataset).fault.rule == "read-hold"
        (view,) = await bob.mirrors()
        assert view.state == "waiting"
        assert bob.home.chains.chain(dataset).head() == before
        await bob.api.holds.release(hold.id)
        with trio.fail_after(PATIENCE):
            while str(bob.home.chains.chain(dataset).head().hash) != done.head:
                await bob.parts.scheduler.get(dataset).turned.wait()


async def test_a_held_mirror_lets_go_of_no_data(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        dataset = await cities(world, alice)
        await world.spread(alice, "cities")
        whole = (await bob.mirror(dataset, "theirs")).held
        hold = await take(bob, "theirs")
        await bob.mirror(dataset, "theirs", keep="0B")
        await bob.parts.scheduler.pass_now(dataset)
        (view,) = await bob.mirrors()
        assert (view.held, view.state) == (whole, "current")
        assert "no data is deleted" in view.message
        await bob.api.holds.release(hold.id)
        await bob.parts.scheduler.pass_now(dataset)
        (view,) = await bob.mirrors()
        assert view.held == 0


async def test_an_owned_hold_lasts_and_fences_off_earlier_processes(world: World) -> None:
    """Attack T-REPO-02: a pipeline process that was believed dead and releases what its successor reads.

    Defence: an owned hold has a fence, which grows with each process that takes it.

    Over restarts and any time; the newest process moves it forward, and is the only one.
    """
    async with world.running("alice") as alice:
        await cities(world, alice)
        first = await take(alice, "cities", owner="pipeline")
        assert (first.owner, first.fence, first.expires_at) == ("pipeline", 1, None)
    world.clock.instant += 400 * 86_400 * SECOND
    async with world.running("alice") as alice:
        with pytest.raises(Refused, match=f"{first.id} until it is released"):
            await compact(alice)
        second = await take(alice, "cities", owner="pipeline")
        assert (second.id, second.time, second.fence) == (first.id, first.time, 2)
        renewal = wire.HoldRenewal(fence=first.fence)
        for stale in (
            lambda: alice.api.holds.renew(first.id, renewal),
            lambda: alice.api.holds.renew(first.id, wire.HoldRenewal()),
            lambda: alice.api.holds.renew(first.id, wire.HoldRenewal(fence=1, at=first.time)),
            lambda: alice.api.holds.release(first.id, first.fence),
        ):
            with breaks("hold-fenced", Refused):
                await stale()
        assert await alice.api.holds.renew(first.id, wire.HoldRenewal(fence=2)) == second
        world.write("alice", "d4.csv", "2024-01-04T00:00:00Z,Graz,4")
        await alice.pull()
        await alice.done(alice.api.flow.advance("cities"))
        later = (await alice.api.holds.take(wire.HoldRequest(ref="cities"))).time
        moved = await alice.api.holds.renew(first.id, wire.HoldRenewal(fence=2, at=later))
        assert (moved.time, moved.fence) == (later, 2)
        with breaks("hold-back", Refused):
            await take(alice, "cities", owner="pipeline", at=first.time)
        assert (await take(alice, "cities", owner="another")).fence == 1
        assert len(await alice.api.holds.list("cities")) == 3
        assert (await alice.api.holds.release(first.id, 2)).id == first.id
        with breaks("hold-lost", Refused):
            await alice.api.holds.renew(first.id, wire.HoldRenewal(fence=2))
        with pytest.raises(Invalid):
            await take(alice, "cities", owner="x" * 101)


async def test_a_person_ends_an_owned_hold_and_a_leased_one_has_no_fence(world: World) -> None:
    async with world.running("alice") as alice:
        await cities(world, alice)
        owned, leased = await take(alice, "cities", owner="pipeline"), await take(alice, "cities")
        with pytest.raises(Refused, match="leased, not owned"):
            await alice.api.holds.renew(leased.id, wire.HoldRenewal(fence=1))
        with pytest.raises(Refused, match="leased, not owned"):
            await alice.api.holds.release(leased.id, 1)
        await alice.api.holds.release(owned.id)
        await alice.api.holds.release(leased.id)
        assert (await compact(alice)).outcome == "rewritten"
        assert (await take(alice, "cities", owner="pipeline")).fence == 1, "it begins anew, with another id"
