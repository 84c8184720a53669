"""Disk that is freed: by command, by itself, never what somebody needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from chain.multihash import Multihash
from chain.store.objects import SMALL
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
from worlds.manifests import ROOT
from worlds.node_world import Lines, Node, Ticking, World

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
