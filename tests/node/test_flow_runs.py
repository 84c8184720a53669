"""Flows and tasks as they run: each is told, done once, asks for its time, and few are kept, also in a year."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing
import yaml
from msgspec.structs import replace
from node.test_flows import ON_UPDATE, flow, pass_time, ran, view

from chain.errors import Fault, Invalid, Refused, Remote
from chain.instant import SECOND, Instant, parse
from chain.state import load_state
from odfd.api import resource_operations
from odfd.control import wire
from odfd.flows import former_forms
from odfd.flows.plan import EVERY, Outcome, Record
from odfd.resources import store as resources
from odfd.resources.manifest import MAX_NAME
from odfd.resources.resource import Resource, derived_id
from odfd.resources.status import Condition, ResourceStatus
from odfd.resources.store import ResourceStore
from odfd.resources.types import Deletion
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Bounds, routine
from odfd.services.flows.worker import LOGGED_CHARACTERS, Ended
from odfd.services.resources.types import TYPES
from odfd.services.resources.views import manifest_of
from odfd.services.tasks.flow_tasks import FlowTasks
from odfd.store import flow_runs as store
from worlds.accounts_world import ALICE, BOB, DATASET, GRANT, settled
from worlds.asking import ask
from worlds.eventually import PATIENCE
from worlds.flow_world import flow_of, tasks
from worlds.manifests import ROOT
from worlds.node_world import Node, World, until
from worlds.web_site import Site, plain

# Each run of a Flow is a FlowRun (RFC-019), which tells its causes, its tasks and their outcomes; few of them stay.


CAUSES, STATUS, RETRY = "FlowRunActivationCauses", "FlowRunStatus", "FlowRunRetry"
VERIFY = "{kind: Verify}"
HOOK = """$schema: WebhookTarget
headers: {name: hook}
spec: {url: "https://127.0.0.1:9/", secret: whsec_bm90IGEgc2VjcmV0IG9mIGFueWJvZHkgYXQgYWxs}
"""


async def runs(node: Node) -> list[Any]:
    """The FlowRuns of a node, oldest first."""
    found = await node.api.declarations.list("FlowRun", None)
    return sorted(found, key=lambda each: each.headers["createdAt"])


def told(run: Any, condition: str) -> dict[str, Any]:
    found = [each for key, each in run.status["conditions"].items() if key.endswith(f"/{condition}")]
    return found[0] if found else {}


async def test_a_run_is_a_flow_run_with_its_cause_its_tasks_and_their_outcomes(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow(tasks="{kind: Pull}, {kind: Verify, name: look}"))
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await pass_time(alice, 60)
        await ran(alice, "often", 1)
        (run,) = await runs(alice)
        (owner,) = run.headers["ownerReferences"]
        often = await alice.api.declarations.get("Flow", "often")
        assert (owner["id"], often.generation) == (often.id, 1)
        assert (run.spec["target"], run.spec["tasks"]) == (often.spec["target"], often.spec["tasks"])
        (cause,) = told(run, CAUSES)["activationCauses"]
        assert cause["trigger"] == often.spec["triggers"][0]
        assert [(each["name"], each["outcome"]["kind"]) for each in told(run, STATUS)["tasks"]] == [
            ("task-0-pull", "Success"), ("look", "Success"),
        ]  # fmt: skip
        assert (run.status["phase"], told(run, "RunOutcome")["kind"]) == ("Ready", "Success")
        await alice.parts.reconciler.wait_settled()
        assert await runs(alice) == [run]


async def test_causes_tell_which_trigger_fired(world: World) -> None:
    """A person, blocks of the target, blocks of another dataset, and a time."""
    event, hourly = f"{ON_UPDATE[:-1]}, cooldown: 0s}}", "{kind: Interval, interval: 1h}"
    triggers = f"{{kind: Manual}}, {hourly}, {event}, {event[:-1]}, target: other}}"
    async with world.running("alice") as alice:
        other = ROOT.replace("name: cities", "name: other")
        text = flow("all", trigger="{kind: Manual}", tasks=VERIFY).replace("{kind: Manual, cooldown: 0s}", triggers)
        await alice.apply(ROOT, other, text)
        manual, timed, own, others = (await alice.api.declarations.get("Flow", "all")).spec["triggers"]
        await alice.api.flows.run("all", wire.FlowRunRequest())
        await caused(alice, manual)
        causes = [cause for each in await runs(alice) for cause in told(each, CAUSES)["activationCauses"]]
        asked = [each["initiator"]["name"] for each in causes if each["trigger"] == manual]
        assert asked == ["node"], "the account of who asked"
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull("cities")
        await caused(alice, own)
        before = await runs(alice)
        await alice.pull("other")
        await caused(alice, others, beside=before)
        await pass_time(alice, 3600)
        await caused(alice, timed)


async def caused(node: Node, trigger: dict[str, Any], beside: Any = ()) -> None:
    """Waits for the end of a run that a trigger alone caused."""
    with trio.fail_after(PATIENCE):
        while True:
            turned, known = node.parts.flows.turned, {each.id for each in beside}
            found = [each for each in await runs(node) if each.id not in known and told(each, "RunOutcome")]
            if [trigger] in [[each["trigger"] for each in told(run, CAUSES)["activationCauses"]] for run in found]:
                return
            await turned.wait()


async def test_a_retry_is_a_run_that_names_the_one_before_and_has_its_causes(world: World) -> None:
    async with world.running("alice") as alice:
        more = "  retryPolicy: {maxAttempts: 3, minDelay: 1s, backoff: None}\n"
        await alice.apply(ROOT, flow(tasks="{kind: WebhookCall, endpoint: hook}", more=more), HOOK)
        await pass_time(alice, 60)
        for attempts in (1, 2, 3):
            await ran(alice, "often", attempts)
            await pass_time(alice, 1)
        first, second, third = await runs(alice)
        assert first.name < second.name < third.name  # as tables list them
        assert told(first, RETRY) == {}
        assert told(second, RETRY).items() >= {"retryOf": f"FlowRun:{first.id}", "retryNumber": 1}.items()
        assert told(third, RETRY).items() >= {"retryOf": f"FlowRun:{second.id}", "retryNumber": 2}.items()
        causes = [told(each, CAUSES)["activationCauses"] for each in (first, second, third)]
        assert causes[0] == causes[1] == causes[2] != []
        (task,) = told(third, STATUS)["tasks"]
        assert (task["name"], task["outcome"]["kind"], task["outcome"]["recoverable"]) == (
            "task-0-webhookcall", "Failed", True,
        )  # fmt: skip
        assert (third.status["phase"], third.status["code"]) == ("Failed", "flow-run")


async def test_as_many_finished_runs_stay_as_the_flow_says_and_each_costs_the_same(world: World) -> None:
    more = "  recentRunsRetention: {maxRuns: 3, maxAge: 1h}\n"
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow(tasks=VERIFY, more=more))
        costs = []
        for number in range(1, 8):
            await pass_time(alice, 60)
            asked = await asked_of(alice, number)
            costs.append(asked)
        assert len(await runs(alice)) == 3
        assert len(set(costs[-3:])) == 1, costs
        kept = [each.id for each in await runs(alice)]
        await pass_time(alice, 7200)
        await ran(alice, "often", 8)
        while len(left := await runs(alice)) > 1:
            await trio.lowlevel.checkpoint()
        assert left[0].id not in kept, "the others are older than 1h"
        assert (await view(alice, "often")).runs == 8


async def asked_of(node: Node, number: int) -> int:
    """Counts what is written to the database until a flow has run so often."""
    count, database, write = 0, node.home.database, node.home.database.write

    @contextmanager
    def traced() -> Iterator[Any]:
        nonlocal count
        with write() as connection:

            def note(_: str) -> None:
                nonlocal count
                count += 1

            connection.set_trace_callback(note)
            try:
                yield connection
            finally:
                connection.set_trace_callback(None)

    database.write = traced
    try:
        await ran(node, "often", number)
        await node.parts.reconciler.wait_settled()
    finally:
        del database.write
    return count


@pytest.mark.parametrize(
    ("said", "rule"),
    [("{maxRuns: 0}", "number-range"), ("{maxRuns: 101}", "number-range"), ("{maxAge: 400d}", "flow-duration")],
)
async def test_a_retention_that_is_out_of_range_is_refused(world: World, said: str, rule: str) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Invalid) as refused:
            await alice.apply(ROOT, flow(more=f"  recentRunsRetention: {said}\n"))
        assert refused.value.rule == rule


class Held:
    """Verifications that begin and do not end."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = trio.Event()

        async def forever(*_: object) -> None:
            self.entered.set()
            await trio.sleep_forever()

        monkeypatch.setattr(node.api.verification, "_verify", forever)

    async def wait(self) -> None:
        with trio.fail_after(PATIENCE):
            await self.entered.wait()


async def test_a_run_that_is_deleted_is_cancelled_with_its_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        held = Held(alice, monkeypatch)
        await alice.apply(ROOT, flow(tasks=f"{VERIFY}, {{kind: GarbageCollection}}"))
        await pass_time(alice, 60)
        await held.wait()
        (run,) = await runs(alice)
        assert (run.status["phase"], told(run, STATUS)["status"]) == ("Reconciling", "Running")
        kind = next(each for each in TYPES if each.name == "FlowRun")
        await resource_operations.delete(alice.api, kind, run.name, Deletion())
        seen = await ran(alice, "often", 1)
        assert (seen.outcome, await runs(alice)) == ("Cancelled", [])
        await until(lambda: {each.kind for each in alice.board.list() if not each.finished.is_set()} == set())
        assert "gc" not in {each.kind for each in alice.board.list()}, "the task after it is not begun"


async def test_the_runs_of_a_flow_go_with_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow(tasks=VERIFY))
        await pass_time(alice, 60)
        await ran(alice, "often", 1)
        held = Held(alice, monkeypatch)
        await pass_time(alice, 60)
        await held.wait()
        assert len(await runs(alice)) == 2
        await alice.api.declarations.delete("Flow", "often")
        assert await runs(alice) == []
        await until(lambda: all(each.finished.is_set() for each in alice.board.list()))
        await alice.parts.reconciler.wait_settled()
        with alice.home.database.read() as connection:
            assert store.records(connection) == {}


async def test_a_run_that_a_stop_cut_off_goes_on_as_the_same_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        held = Held(alice, monkeypatch)
        await alice.apply(ROOT, flow(tasks=VERIFY))
        await pass_time(alice, 60)
        await held.wait()
        (cut,) = await runs(alice)
    monkeypatch.undo()
    async with world.running("alice") as alice:
        await ran(alice, "often", 1)
        (run,) = await runs(alice)
        assert (run.id, told(run, CAUSES), told(run, STATUS)["status"]) == (cut.id, told(cut, CAUSES), "Finished")
        assert not any("initiator" in each for each in told(run, CAUSES)["activationCauses"]), "nobody asked"
        # One that nothing goes on with is ended by the next start.
        with alice.home.database.write() as connection:
            held_run = ResourceStore(connection).get(run.id)
            assert held_run is not None
            lost = replace(held_run, id=run.id[::-1], name="lost", status=ResourceStatus(phase="Reconciling"))
            ResourceStore(connection).bring(lost, None)
    async with world.running("alice") as alice:
        await alice.parts.flows.look()
        (run,) = [each for each in await runs(alice) if each.name == "lost"]
        assert (run.status["phase"], told(run, "RunOutcome")["kind"]) == ("Failed", "Cancelled")


async def test_an_apply_of_the_flow_or_of_a_run_changes_no_run(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow(tasks=VERIFY))
        await pass_time(alice, 60)
        await ran(alice, "often", 1)
        await alice.parts.reconciler.wait_settled()
        (run,) = await runs(alice)
        (item,) = (await alice.apply(json.dumps(msgspec.to_builtins(manifest_of(run))))).items
        assert (item.action, item.fault) == ("unchanged", None)
        await alice.apply(flow(tasks=f"{VERIFY}, {{kind: GarbageCollection}}"))
        await alice.parts.reconciler.wait_settled()
        (same,) = await runs(alice)
        assert (same.spec, same.status["conditions"]) == (run.spec, run.status["conditions"]), "as it was then"
        often = await alice.api.declarations.get("Flow", "often")
        headers = {"id": often.id, "name": "rare"}
        await alice.apply(json.dumps({"$schema": "Flow", "headers": headers, "spec": often.spec}))
        await pass_time(alice, 60)
        await ran(alice, "rare", 2)
        first, second = await runs(alice)
        assert (first.id, second.name.startswith("rare-")) == (run.id, True)


async def test_a_flow_of_many_datasets_has_a_run_for_each(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(
            ROOT,
            ROOT.replace("name: cities", "name: towns"),
            flow("many", target="'%'", tasks=VERIFY).replace("Dataset:'%'", "'Dataset:%'"),
        )
        await pass_time(alice, 60)
        await until(lambda: sum(entry.record.runs for _, entry in alice.parts.flows.scheduler.entries()) == 2)
        found = await runs(alice)
        assert sorted(each.spec["target"] for each in found) == ["Dataset:cities", "Dataset:towns"]


async def test_the_runs_of_an_accounts_flow_are_its_own_and_nobody_elses(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        text = flow("his", target="his", tasks=VERIFY, trigger="{kind: Manual}").replace(", cooldown: 0s", "")
        await asking.apply(BOB, DATASET.format(name="his", more=""), text)
        await asking.ask(BOB, "POST", "/flow/v1alpha1/flows/his/run", {})
        await ran(node, "his", 1)

        async def seen(uid: int) -> list[str]:
            _, listed = await asking.ask(uid, "GET", "/flow/v1alpha1/flowruns")
            return [each["headers"]["account"]["name"] for each in listed["items"]]

        assert (await seen(BOB), await seen(ALICE)) == (["bob"], [])


async def test_a_declared_run_that_had_nothing_to_do_says_so(world: World) -> None:
    text = "$schema: FlowRun\nheaders: {name: tidy}\nspec: {target: cities, tasks: [{kind: Compaction}]}\n"
    async with world.running("alice") as alice:
        await alice.apply(ROOT, text)
        await alice.parts.reconciler.wait_settled()
        await until(lambda: all(each.finished.is_set() for each in alice.board.list()))
        await alice.parts.reconciler.wait_settled()
        (run,) = await runs(alice)
        (task,) = told(run, STATUS)["tasks"]
        assert (told(run, "RunOutcome")["kind"], task["outcome"]["kind"], run.status["phase"]) == (
            "NoOp",
            "NoOp",
            "Ready",
        )


CALLING = flow(tasks=f"{VERIFY}, {{kind: WebhookCall, endpoint: hook}}")


async def test_a_run_means_what_its_flow_did_when_it_began(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        entered, may_go, honest = trio.Event(), trio.Event(), alice.api.verification._verify

        async def waits(*asked: Any) -> Any:
            entered.set()
            await may_go.wait()
            return await honest(*asked)

        monkeypatch.setattr(alice.api.verification, "_verify", waits)
        await alice.apply(ROOT, HOOK, CALLING)
        await pass_time(alice, 60)
        with trio.fail_after(PATIENCE):
            await entered.wait()
        await alice.apply(flow(tasks=VERIFY))
        may_go.set()
        await ran(alice, "often", 1)
        assert (await called(alice))["message"].startswith("WebhookTarget hook: ")


async def called(node: Node) -> Any:
    """The outcome of the call of a run."""
    with trio.fail_after(PATIENCE):
        while not (tasks := told((await runs(node))[0], STATUS)["tasks"]):
            await trio.lowlevel.checkpoint()
    assert tasks[-1]["name"] == "task-1-webhookcall"
    return tasks[-1]["outcome"]


async def test_a_run_that_a_former_program_began_gets_the_references_of_its_flow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as alice:
        held = Held(alice, monkeypatch)
        await alice.apply(ROOT, HOOK, CALLING)
        await pass_time(alice, 60)
        await held.wait()
        with alice.home.database.write() as connection:
            (run,) = ResourceStore(connection).all("FlowRun")
            assert set(run.references) == {"WebhookTarget:hook"}
            ResourceStore(connection).rewrite(replace(run, references={}), run.updated_at)
            before = store.STEPS.index(former_forms.referring)
            connection.execute("UPDATE versions SET version = ? WHERE room = 'flows'", (before,))
    async with world.running("alice") as alice:
        assert alice.home.recovery.converted == (f"the run {run.name} means what its flow does",)
        await ran(alice, "often", 1)
        assert (await called(alice))["message"].startswith("WebhookTarget hook: ")


async def test_an_upgrade_forgets_finished_tasks_but_for_the_newest_and_says_so(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(former_forms, "MOST_FINISHED", 2)
    done = ResourceStatus(phase="Ready", observed_generation=1, conditions={
        "Outcome": Condition(value={"kind": "Success"}, updated_at=Instant(1), observed_generation=1)
    })  # fmt: skip
    async with world.running("alice") as alice:
        with alice.home.database.write() as connection:
            for number in range(6):
                at = Instant(number + 1)
                ResourceStore(connection).bring(
                    Resource(
                        id=derived_id(str(number)), type="Task", name=f"t{number}", created_at=at, updated_at=at,
                        spec={"kind": "GarbageCollection"}, status=done if number != 1 else ResourceStatus(),
                    ),
                    None,
                )  # fmt: skip
            before = store.STEPS.index(former_forms.bound_runs)
            connection.execute("UPDATE versions SET version = ? WHERE room = 'flows'", (before,))
    async with world.running("alice") as alice:
        assert alice.home.recovery.converted == ("3 finished Tasks forgotten: the newest 2 stay",)
        with alice.home.database.read() as connection:
            kept = [each.name for each in ResourceStore(connection).all("Task")]
        assert kept == ["t1", "t4", "t5"], "one that waits stays"


async def test_the_run_of_a_flow_with_the_longest_name_is_found_by_its_own(world: World) -> None:
    long = "a" * MAX_NAME
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow(long, tasks=VERIFY))
        await pass_time(alice, 60)
        await ran(alice, long, 1)
        (run,) = await runs(alice)
        assert await alice.api.declarations.get("FlowRun", run.name) == run


class HeldRuns(FlowTasks):
    """Performs runs that end by nothing but a cancellation."""

    async def _in_order(self, plan: Any, record: Any) -> Ended:
        await trio.sleep_forever()
        raise AssertionError


async def test_a_run_that_goes_on_twice_is_cancelled_as_one(nursery: trio.Nursery) -> None:
    """So it is while a flow is declared again for a dataset that it was taken from."""
    parts: Any = dict.fromkeys(FlowTasks._fields) | {"at_work": {}}
    tasks, ended = HeldRuns(**parts), []

    async def run(which: str) -> None:
        ended.append((which, (await tasks.run(cast("Any", None), Record(since=Instant(0), run=which))).outcome))

    for which in ("one", "one", "two"):
        nursery.start_soon(run, which)
    await trio.testing.wait_all_tasks_blocked()
    tasks.cancel("one")
    await trio.testing.wait_all_tasks_blocked()
    assert ended == [("one", Outcome.CANCELLED)] * 2
    assert list(tasks.at_work.values()) == ["two"]
    tasks.cancel("two")


# Flows run for a year of virtual time, and what a node keeps of its runs does not grow.


FLOWS = 200 if "ODF_SOAK" in os.environ else 10
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


# Tasks that manifests declare: each is done once, and has the shape of those that commands and flows begin.


CHECK = """$schema: Task
headers: {{name: {name}}}
spec: {{kind: Verify, target: {target}, replayTransform: {replay}}}
"""
RAW = "$schema: Dataset\nheaders: {name: raw}\nspec: {kind: Root, metadata: []}\n"
SWEEP = "$schema: Task\nheaders: {name: sweep}\nspec: {kind: GarbageCollection}\n"


def check(name: str = "check", target: str = "raw", replay: str = "false") -> str:
    return CHECK.format(name=name, target=target, replay=replay)


async def status(node: Node, name: str, phase: str) -> dict[str, Any]:
    """Returns the status of a declared task once it has a phase."""
    with trio.fail_after(PATIENCE):
        while True:
            grown = node.parts.context.events.grown
            found: dict[str, Any] = (await node.api.declarations.get("task", name)).status
            if found["phase"] == phase:
                return found
            await grown.wait()


def begun(node: Node) -> list[str]:
    """The ids of tasks, without those of applies."""
    return [each.id for each in node.board.list() if each.kind != "apply"]


async def test_a_declared_task_is_done_once(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(RAW)
        (made,) = (await alice.apply(check())).items
        found = await status(alice, "check", "Ready")
        ((key, outcome),) = found["conditions"].items()
        assert key.endswith("opendatafabric.org/schemas/tasks/v1alpha1/TaskOutcome")
        assert (outcome["kind"], outcome["message"]) == ("Success", "1 block verified (data)")
        (again,) = (await alice.apply(check())).items
        assert (again.action, again.id) == ("unchanged", made.id)
        await alice.api.declarations.label("task", "check", wire.LabelRequest(labels={"a": "b"}))
        await alice.parts.reconciler.wait_settled()
        assert (await alice.api.declarations.get("task", "check")).status["observedGeneration"] == 2
        assert begun(alice) == ["check"]
    async with world.running("alice") as alice:  # and not again after a start
        await alice.parts.reconciler.wait_settled()
        view = await alice.api.tasks.get("check")
        assert (view.state, view.target, begun(alice)) == ("done", "raw", [])


async def test_tasks_of_one_name_in_two_accounts_are_two(world: World) -> None:
    """Each is begun on the dataset that its account means; the end of one ends the other neither."""
    async with world.running("node", private=True) as node:
        await settled(node)
        mine = DATASET.format(name="hers", more=", account: bob")
        await node.apply(mine, RAW)
        owned = [
            check(target="hers").replace("name: check}", f"name: check, account: {who}}}") for who in ("alice", "bob")
        ]
        await node.apply(*owned, check())
        for name in ("check", "alice/check", "bob/check"):
            await status(node, name, "Ready")
        views = {each.id: each for each in await tasks(node) if each.is_declared}
        ids = [(await node.api.declarations.get("task", f"{who}/check")).id for who in ("alice", "bob")]
        assert {each.name for each in views.values()} == {"check"}
        assert views.keys() > set(ids)
        board = {each.id: each for each in node.board.list()}
        assert [board[each].about.things for each in ids] == [
            about(node.dataset(f"{who}/hers")).things for who in ("alice", "bob")
        ]
        await node.api.declarations.delete("task", "alice/check")
        await node.parts.reconciler.wait_settled()
        assert {each.id for each in await tasks(node) if each.is_declared} == views.keys() - {ids[0]}


async def test_a_task_of_an_account_does_what_the_account_may(world: World) -> None:
    async with world.running("node", private=True) as node:
        await settled(node)
        task = check(target="alice/hers").replace("name: check}", "name: check, account: bob}")
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="alice/hers"), task)
        found = await status(node, "bob/check", "Failed")
        assert found["code"] == "access-use", "to verify needs the role editor"
        await node.apply(GRANT.format(name="g", who="bob", role="editor", what="alice/hers"))
        await status(node, "bob/check", "Ready")


async def test_it_waits_for_its_dataset(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(check())
        found = await status(alice, "check", "Failed")
        assert found["code"] == "unresolved-reference"
        assert (await alice.api.tasks.get("check")).state == "waiting"
        await alice.apply(RAW)
        await status(alice, "check", "Ready")


async def test_what_cannot_be_done_is_told_and_not_tried_again(world: World) -> None:
    async with world.running("alice") as alice:
        text = "$schema: Task\nheaders: {name: take}\nspec: {kind: Pull, target: raw}\n"
        await alice.apply(RAW, text)
        found = await status(alice, "take", "Failed")
        assert (found["code"], "retryAt" in found) == ("polling-source", False)
        view = await alice.api.tasks.get("take")
        assert view.kind == "pull"
        await alice.parts.reconciler.wait_settled()
        assert begun(alice) == ["take"]


async def test_one_that_is_deleted_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        entered = trio.Event()

        async def forever(*_: object) -> None:
            entered.set()
            await trio.sleep_forever()

        monkeypatch.setattr(alice.api.services.verification, "_verify", forever)
        await alice.apply(RAW, check())
        with trio.fail_after(PATIENCE):
            await entered.wait()
        await status(alice, "check", "Reconciling")
        status_code, (gone,) = await ask(alice, "DELETE", "/flow/v1alpha1/tasks/check")
        assert (status_code, gone["headers"]["name"]) == (200, "check")
        view = await alice.api.tasks.get("check")
        assert view.state == "cancelled"
        await until(lambda: not alice.board.get("check").is_declared)  # the reconciler lets go of it
        assert [each.name for each in await alice.api.declarations.list("task", None) if each.name == "check"]
        monkeypatch.undo()
        await alice.apply(check())  # another one of its name
        await status(alice, "check", "Ready")


async def test_one_that_a_stop_cut_off_is_begun_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:

        async def forever(*_: object) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(alice.api.services.verification, "_verify", forever)
        await alice.apply(RAW, check())
        await status(alice, "check", "Reconciling")
    async with world.running("alice") as alice:
        assert (await status(alice, "check", "Ready"))["phase"] == "Ready"
        changes = [each.change for each in await alice.api.history.last("task/check", 50)]
        assert changes[-5:] == ["Reconciling", "Failed", "Pending", "Reconciling", "Ready"]


async def test_it_does_not_become_another_one(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(RAW, check())
        for other in (check(replay="true"), check(target="other")):
            with pytest.raises(Refused, match="is done once, as it was declared") as refused:
                await alice.apply(other)
            assert refused.value.rule == "immutable"


@pytest.mark.parametrize(
    ("spec", "target", "rule"),
    [
        ({"kind": "Verify"}, None, "task-target"),
        ({"kind": "Ext", "$schema": "Dance"}, "raw", "unknown-type"),
        ({"kind": "https://acme.com/schemas/tasks/v1/SomeTask"}, "raw", "unknown-kind"),
        ({"kind": "Ingest", "level": "data"}, "raw", "unknown-field"),
        ({"kind": "Compaction", "minUncompactedRows": 1}, "raw", "flow-tasks"),
        ({"kind": "Verify", "onFailure": "Continue"}, "raw", "flow-tasks"),
        ({"kind": "Reset", "ref": "tail"}, "raw", "flow-tasks"),
        ({"kind": "SyncTo", "destination": {"url": "s3://bucket/raw"}}, "raw", "sync-url"),
        ({"kind": "SyncTo", "destination": {"url": "odf+https://n.example/a/b"}, "force": True}, "raw", "flow-tasks"),
        ({"kind": "WebhookCall", "endpoint": "x", "payload": "${{ a.b }}"}, "raw", "webhook-payload"),
    ],
)
async def test_mistakes_are_told_when_it_is_applied(world: World, spec: Any, target: str | None, rule: str) -> None:
    spec |= {} if target is None else {"target": target}
    text = yaml.safe_dump({"$schema": "Task", "headers": {"name": "t"}, "spec": spec})
    async with world.running("alice") as alice:
        code, (problem,) = await ask(alice, "POST", "/resource/v1alpha1/apply", body=text)
        assert (code, problem["rule"]) == (422, rule)


async def test_all_tasks_have_one_shape(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(RAW, SWEEP, check())
        await status(alice, "check", "Ready")
        await status(alice, "sweep", "Ready")
        await alice.done(alice.api.verification.verify("raw", wire.VerifyRequest()))
        _, (listed,) = await ask(alice, "GET", "/flow/v1alpha1/tasks")
        found = {each["headers"]["name"]: each for each in listed["items"]}
        shown = await tasks(alice)
        assert found.keys() == {each.name for each in shown}
        (verify,) = [each.name for each in shown if each.kind == "verify" and not each.is_declared]
        by_hand, declared = found[verify], found["check"]
        assert by_hand["spec"] == {"kind": "Verify", "target": "raw"}
        assert by_hand["headers"].keys() == declared["headers"].keys()
        assert by_hand["status"].keys() == declared["status"].keys()
        conditions = {key for key in declared["status"]["conditions"] if not key.endswith("/References")}
        assert by_hand["status"]["conditions"].keys() == conditions
        assert await ask(alice, "GET", f"/flow/v1alpha1/Task/{by_hand['headers']['id']}") == (200, [by_hand])


async def test_a_watch_tells_of_those_that_commands_begin(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(RAW)
        told: list[tuple[str, str, str]] = []
        async with trio.open_nursery() as nursery:

            async def watch(*, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
                async for each in alice.api.declarations.watch(None, "task"):
                    if each.resource is None:
                        task_status.started()
                    elif each.resource.spec["kind"] == "Verify":
                        told.append((each.op, each.resource.name, each.resource.status["phase"]))
                        if told[-1][2] == "Ready":
                            nursery.cancel_scope.cancel()

            with trio.fail_after(PATIENCE):
                await nursery.start(watch)
                ref = await alice.api.verification.verify("raw", wire.VerifyRequest())
                await trio.sleep_forever()
        assert {name for _, name, _ in told} == {ref.id}
        assert [each[0] for each in told] == ["Added"] + ["Modified"] * (len(told) - 1)
        assert told[-1][2] == "Ready"


async def test_accounts_see_tasks_on_what_they_read_and_no_others(world: World) -> None:
    async with world.running("alice", private=True) as node:
        asking = await settled(node)
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="theirs"), check("theirs", "theirs"))
        await status(node, "theirs", "Ready")
        for name in ("hers", "theirs"):
            await node.done(node.api.verification.verify(name, wire.VerifyRequest()))

        async def seen(uid: int) -> list[str]:
            _, listed = await asking.ask(uid, "GET", "/flow/v1alpha1/tasks")
            return sorted(each["spec"]["target"] for each in listed["items"])

        assert (await seen(ALICE), await seen(BOB)) == (["hers"], ["theirs", "theirs"])
        code, told = await asking.ask(BOB, "GET", "/flow/v1alpha1/tasks/theirs")  # without what the owner noted of it
        assert (code, told["headers"]["labels"], told["headers"]["annotations"]) == (200, {}, {})
        code, problem = await asking.ask(ALICE, "GET", "/flow/v1alpha1/tasks/theirs")
        assert (code, problem["rule"]) == (404, "resource")


# A flow asks its source for the time that its run is for, also for past times; a pull by hand asks for its own.


SOURCE = """$schema: Source
headers: {{name: weather}}
spec:
  ingress: {{kind: Url, url: "{url}/${{{{ trigger.date }}}}?to=${{{{ trigger.time }}}}"}}
  read: {{kind: Csv, header: true, ddlSchema: ["event_time TIMESTAMP, city STRING, population BIGINT"]}}
  merge: {{kind: Append}}
"""
WEATHER = "$schema: Dataset\nheaders: {name: weather}\nspec: {kind: Root, metadata: []}\n"
DAILY = """$schema: Flow
headers: {name: daily, annotations: {flowPolicy: {timeZone: Europe/Vienna}}}
spec:
  target: Dataset:weather
  triggers: [{kind: Schedule, cron: "@daily"}]
  tasks: [{kind: Ingest, source: weather}]
"""


class Weather:
    """A server with a document for each day, all with one ETag, as careless servers have."""

    def __init__(self, site: Site) -> None:
        self.site, self.asked = site, []  # type: tuple[Site, list[str]]
        site.answer = self.answer

    def answer(self, request: Any) -> bool:
        self.asked.append(request.path)
        if request.headers.get("If-None-Match") == '"one"':
            plain(request, 304)
            return True
        day = request.path[1:11]
        body = f"event_time,city,population\n{day}T00:00:00Z,Graz,{day[-2:]}\n".encode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("ETag", '"one"')
        request.end_headers()
        request.wfile.write(body)
        return True


async def backfilled(node: Node, first: str, last: str) -> int:
    told = await node.api.flows.backfill("daily", wire.BackfillRequest(first=first, to=last))
    with trio.fail_after(PATIENCE):
        while (await flow_of(node, "daily")).owed or (await flow_of(node, "daily")).state == "running":
            await node.parts.flows.turned.wait()
    times: int = told.times
    return times


async def test_a_backfill_asks_for_each_of_its_days(world: World, tmp_path: Path) -> None:
    with Site(tmp_path).open() as site:
        weather = Weather(site)
        async with world.running("alice") as alice:
            alice.clock.instant = parse("2024-05-20T12:00:00Z")
            await alice.apply(SOURCE.format(url=site.url), WEATHER, DAILY)
            assert await backfilled(alice, "2024-05-01T00:00:00Z", "2024-05-11T12:00:00Z") == 10
            days = [f"2024-05-{day:02d}" for day in range(2, 12)]
            nights = [f"2024-05-{day:02d}T22:00:00Z" for day in range(1, 11)]
            assert weather.asked == [f"/{day}?to={night}" for day, night in zip(days, nights, strict=True)]
            assert load_state(alice.home.chains.chain(alice.dataset("weather"))).last_offset == 9
            assert await backfilled(alice, "2024-05-01T00:00:00Z", "2024-05-11T12:00:00Z") == 0


async def test_a_pull_by_hand_asks_for_its_own_time_or_a_named_one(world: World, tmp_path: Path) -> None:
    with Site(tmp_path).open() as site:
        weather = Weather(site)
        async with world.running("alice") as alice:
            await alice.apply(SOURCE.format(url=site.url), WEATHER)
            (item,) = await alice.pull("weather", source="weather")
            assert item.outcome == "updated"
            assert re.fullmatch(r"/(\d{4}-\d\d-\d\d)\?to=\1T\d\d:\d\d:\d\dZ", weather.asked[0])
            for outcome in ("updated", "up-to-date"):
                (item,) = await alice.pull("weather", source="weather", time="2024-03-01T00:30:00+02:00")
                assert item.outcome == outcome, "the same time is asked once"
            assert weather.asked[1:] == ["/2024-03-01?to=2024-02-29T22:30:00Z"] * 2
            with pytest.raises(Invalid, match="not a time"):
                await alice.pull("weather", source="weather", time="yesterday")


async def test_a_time_is_refused_where_no_source_asks_for_it(world: World, tmp_path: Path) -> None:
    fixed = SOURCE.format(url="https://example.org").replace("${{ trigger.date }}?to=${{ trigger.time }}", "")
    async with world.running("alice") as alice:
        await alice.apply(fixed, WEATHER)
        (item,) = await alice.pull("weather", source="weather", time="2024-03-01T00:00:00Z")
        assert (item.outcome, item.fault.rule) == ("failed", "pull-time")
        with pytest.raises(Fault) as caught:
            await alice.apply(fixed.replace("kind: Url, url", "kind: FilesGlob, path").replace(
                "https://example.org/", "/data/${{ trigger.date }}/*.csv"))  # fmt: skip
        assert "continues where the last pull ended" in str(caught.value)
