"""A source that drips holds nobody but its own dataset: not those pulled with it, not what observers look at."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from config import model
from odfd.control import wire
from odfd.runtime import slots
from odfd.runtime.tasks import Bounds, TaskPhase
from odfd.services.ingest.ingest_pull import TOGETHER
from worlds.dripping import Dripping, Manner
from worlds.eventually import PATIENCE
from worlds.node_world import Node, World, until
from worlds.web_site import Site

ROW = "2024-01-01T00:00:00Z,Graz,300000\n"
ROOT = """kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: '{url}'}}
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {{kind: Ledger, primaryKey: [event_time, city]}}
"""
DERIVED = """kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: {input}, alias: x}}]
      transform: {{kind: Sql, engine: spark, query: 'select * from x'}}
"""


@pytest.fixture(params=[Manner.DRIPS_BODY, Manner.SILENT], ids=lambda manner: manner.name.lower())
def slow(request: Any) -> Any:
    with Dripping(request.param).open() as server:
        yield server


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "PATIENCE", 0.05)


@pytest.fixture
def site(tmp_path: Path) -> Any:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "rows.csv").write_text(f"event_time,city,population\n{ROW}")
    with Site(tmp_path / "pages").open() as opened:
        yield opened


@asynccontextmanager
async def pulling(alice: Node) -> AsyncIterator[Any]:
    """All at once, and given up at the end."""
    task = alice.board.get((await alice.api.flow.pull(wire.PullRequest(all=True))).id)
    yield task
    alice.board.cancel(task.id)
    with trio.fail_after(PATIENCE):
        await task.finished.wait()


async def test_datasets_pulled_with_a_slow_one_go_on(world: World, slow: Any, site: Any) -> None:
    async with world.running("alice") as alice:
        for name, url in (("aaa", slow.url), ("bbb", site.url), ("ccc", site.url)):
            await alice.apply(ROOT.format(name=name, url=f"{url}/rows.csv"))
        await alice.apply(DERIVED.format(name="aab", input="bbb"), DERIVED.format(name="aac", input="aab"))
        async with pulling(alice) as task:
            heard = [event.subject for event in await alice.heard("dataset.derived", 2)]
            assert heard == ["aab", "aac"], "each after what it derives from"
            await alice.heard("dataset.appended", 2)
            assert not task.finished.is_set()
            await until(lambda: task.progress()[-1] == "pulling aaa")


MANY = 2 * TOGETHER


async def test_more_slow_sources_than_are_pulled_at_once_hold_nobody(world: World, slow: Any, site: Any) -> None:
    """Wherever those that answer stand among the many that do not."""
    quick = {f"z{number}" for number in range(10)}
    async with world.running("alice") as alice:
        for name in [*(f"a{number}" for number in range(MANY)), *quick]:
            server = site if name in quick else slow
            await alice.apply(ROOT.format(name=name, url=f"{server.url}/rows.csv"))
        async with pulling(alice) as task:
            assert {event.subject for event in await alice.heard("dataset.appended", len(quick))} == quick
            assert not task.finished.is_set()


async def test_more_slow_pulls_than_tasks_run_at_once_hold_no_other_task(world: World, slow: Any, site: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT.format(name="a", url=f"{slow.url}/rows.csv"))
        await alice.apply(ROOT.format(name="z", url=f"{site.url}/rows.csv"))
        tasks = [
            alice.board.get((await alice.api.flow.pull(wire.PullRequest(refs=("a",)))).id)
            for _ in range(2 * Bounds().running)
        ]
        await alice.api.flow.pull(wire.PullRequest(refs=("z",)))
        (event,) = await alice.heard("dataset.appended")
        assert event.subject == "z"
        assert not any(task.finished.is_set() for task in tasks)
        for task in tasks:
            alice.board.cancel(task.id)
        with trio.fail_after(PATIENCE):
            for task in tasks:
                await task.finished.wait()


async def test_a_node_that_stops_waits_for_no_source(world: World, slow: Any) -> None:
    """The pull says that the daemon is stopping; its dataset is as it was."""
    async with world.running("alice") as alice:
        await alice.apply(ROOT.format(name="aaa", url=f"{slow.url}/rows.csv"))
        size = alice.size("aaa")
        task = alice.board.get((await alice.api.flow.pull(wire.PullRequest(refs=("aaa",)))).id)
        await trio.to_thread.run_sync(slow.taken.wait, PATIENCE)
        alice.board._outside.end()
        with trio.fail_after(PATIENCE):
            await task.finished.wait()
        (item,) = task.result.items
        assert (item.outcome, item.fault.rule, alice.size("aaa")) == ("failed", "draining", size)


@pytest.mark.slow
async def test_observers_look_at_others_meanwhile(world: World, site: Any) -> None:
    """The sources of two datasets, one of which says nothing any more since its rows were published."""
    world.may_dial = lambda _: True
    observes = model.Policy(publish=model.Publish(observe=True))
    asked, over = threading.Event(), threading.Event()

    def hold(request: Any) -> bool:
        asked.set()
        over.wait(PATIENCE)
        request.close_connection = True
        return True

    async with world.running("alice") as alice, world.running("bob", observes) as bob:
        with Site(site.folder).open() as bad:
            for name, page in (("first", bad), ("second", site)):
                await alice.apply(ROOT.format(name=name, url=f"{page.url}/rows.csv"))
            await alice.pull("first", "second")
            bad.answer = hold
            await world.spread(alice, "first", "second")
            try:
                await bob.mirror(alice.dataset("first"), "first")
                await trio.to_thread.run_sync(asked.wait, PATIENCE)
                await bob.mirror(alice.dataset("second"), "second")
                (event,) = await bob.heard("observation.signed")
                assert event.subject == "second"
            finally:
                over.set()


async def test_who_a_site_publishes_is_asked_in_a_task(world: World, slow: Any) -> None:
    """It was asked within the request: ``odfctl`` gave up first, and nobody saw what the daemon was waiting for."""
    async with world.running("bob") as bob:
        with trio.fail_after(PATIENCE):
            ref = await bob.api.mirrors.add(wire.MirrorRequest(source=f"{slow.url}/x", as_name="theirs"))
            await trio.to_thread.run_sync(slow.taken.wait, abandon_on_cancel=True)
            task = bob.board.get(ref.id)
            assert (task.state, task.target) == (TaskPhase.RUNNING, f"{slow.url}/x")
            bob.board.cancel(ref.id)
            await task.finished.wait()
        assert task.state is TaskPhase.CANCELLED
        assert await bob.mirrors() == []
