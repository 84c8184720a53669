"""Who leaves takes the work of threads along: counted by slices and blocks that are still read afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
import trio

from chain.store.sqlite import SqliteChain
from odfd.control import wire
from odfd.queries import slices
from odfd.runtime.tasks import TaskPhase
from odfd.services.datasets import profiles
from odfd.store.slice_files import SliceFiles
from odfd.verify.verify import ObjectQueue
from worlds.manifests import ROOT
from worlds.node_world import World

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
