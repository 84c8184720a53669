"""Flows run for a year of virtual time, and what a node keeps of its runs does not grow."""

from __future__ import annotations

import os
from functools import partialmethod
from typing import Any

import pytest
import trio

from chain.errors import Remote
from chain.instant import SECOND
from odfd.flows.plan import EVERY, Outcome
from odfd.resources import store as resources
from odfd.resources.store import ResourceStore
from odfd.runtime.tasks import Bounds, routine
from odfd.services.flows.worker import LOGGED_CHARACTERS, Ended
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Node, World

FLOWS = 200 if "ODF_SOAK" in os.environ else 20
WEEKS = 52
LEAST = 3 * FLOWS // 2
TASKS = 5 * FLOWS // 2
FLOW = """---
$schema: Flow
headers: {{name: f{number}, annotations: {{flowPolicy: {{cooldown: 0s}}}}}}
spec: {{target: "Dataset:cities", triggers: [{{kind: Schedule, cron: '@weekly'}}]}}
"""
LINE = 200 + LOGGED_CHARACTERS
"""Most bytes of a line of the log about a flow that fails."""


def kept(node: Node) -> dict[str, int]:
    """Rows of every table of the database, and entries of everything in memory that runs add to."""
    with node.home.database.read() as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
        found["pages in use"] = connection.execute("PRAGMA page_count").fetchone()[0]
    return found | {
        "tasks": len(node.board.list()),
        "plans": sum(1 for _ in node.parts.flows.scheduler.entries()),
        "places in the heap of plans": len(node.parts.flows.scheduler._heap) // (2 * FLOWS + 1),
        "series of metrics": sum(1 for _ in node.parts.context.meter.samples(frozenset())),
        "events of the node": node.events._ring.last + 1 - node.events._ring.oldest,
        "queue of the reconciler": len(node.parts.reconciler.queue._later),
    }


@pytest.mark.slow
async def test_what_is_kept_of_runs_is_the_same_after_two_months_and_after_twelve(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third run fails, each time with other words. The log's bounds are scaled down as the year's runs are."""
    monkeypatch.setattr(resources, "KEPT", LEAST)
    monkeypatch.setattr(resources, "MOST", 2 * FLOWS)
    monkeypatch.setattr(resources, "TRIMMED_EVERY", FLOWS // 2)
    monkeypatch.setattr(Bounds, "__init__", partialmethod(Bounds.__init__, kept=TASKS))
    async with world.running("alice") as alice:
        runs = 0

        async def perform(plan: Any, _record: Any) -> Ended:
            nonlocal runs
            number, runs = runs, runs + 1

            async def work(_report: Any) -> str:
                if number % 3 == 0:
                    raise Remote(f"run {number} had no answer", rule="source")
                return f"run {number}"

            with routine():
                task = alice.board.submit("pull", plan.name, work)
            await task.finished.wait()
            if task.fault is not None:
                return Ended(Outcome.REFUSED, str(task.fault))
            return Ended(Outcome.UP_TO_DATE, str(task.result))

        alice.parts.flows.perform = perform
        await alice.apply(ROOT + "".join(FLOW.format(number=number) for number in range(FLOWS)))
        await alice.parts.flows.look((EVERY,))
        sizes: list[dict[str, int]] = []
        lines: list[int] = []
        for week in range(1, WEEKS + 1):
            before = len(alice.logger.said)
            due = alice.parts.flows.scheduler.next_time()
            assert due is not None
            alice.clock.instant = int(due) + SECOND
            with trio.fail_after(PATIENCE):
                while runs < week * FLOWS or alice.parts.flows._running:
                    turned = alice.parts.flows.turned
                    alice.parts.flows.loop.poke()
                    await turned.wait()
                await alice.parts.reconciler.wait_settled()
            assert runs == week * FLOWS
            sizes.append(kept(alice))
            lines.append(sum(len(f"{event} {values}") for event, values in alice.logger.said[before:]))
        second, last = sizes[8], sizes[-1]
        assert LEAST <= last["res_events"] <= 2 * FLOWS + FLOWS // 2, "the most, and what comes until the next trim"
        assert last["tasks"] == second["tasks"] == TASKS
        assert last.pop("events of the node") <= 4096, "limits.events_kept"
        grown = {name: (second[name], last[name]) for name in last if last[name] > second[name] * 1.2 + 60}
        assert grown == {}
        assert 0 < max(lines[1:]) <= FLOWS * LINE, "a plan is told of once an hour, and each ran once"


@pytest.mark.slow
def test_changes_that_come_fast_are_bounded_within_the_day(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Age alone bounds nothing: 25 changes a second are two million a day. By number, and by bytes."""
    node = world.node("alice")
    with node.home.database.write() as connection:
        store, row = ResourceStore(connection), "(rv, at, op, id, type, body) VALUES (?, ?, 'Observed', 'x', 'Flow', ?)"
        rows = ((number, number, b"x" * 100) for number in range(1, 3 * resources.MOST // 2))
        connection.executemany(f"INSERT INTO res_events {row}", rows)
        store.trim(node.clock.now(), resources.KEPT, 1 << 62)
        assert connection.execute("SELECT count(*) FROM res_events").fetchone()[0] == resources.MOST
        monkeypatch.setattr(resources, "MOST_BYTES", 1_000)
        store.trim(node.clock.now(), resources.KEPT, 1 << 62)
        assert connection.execute("SELECT count(*) FROM res_events").fetchone()[0] == 10
        monkeypatch.setattr(resources, "MOST_BYTES", 1)
        store.trim(node.clock.now(), resources.KEPT, 1 << 62)
        assert connection.execute("SELECT count(*) FROM res_events").fetchone()[0] == 1, "the newest stays"
