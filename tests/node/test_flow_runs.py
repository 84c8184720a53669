"""Each run of a Flow is a FlowRun (RFC-019), which tells its causes, its tasks and their outcomes; few of them stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing
from msgspec.structs import replace
from node.test_flows import ON_UPDATE, flow, pass_time, ran, view

from chain.errors import Invalid
from chain.instant import Instant
from odfd.api import resource_operations
from odfd.control import wire
from odfd.flows import former_forms
from odfd.flows.plan import Outcome, Record
from odfd.resources.manifest import MAX_NAME
from odfd.resources.resource import Resource, derived_id
from odfd.resources.status import Condition, ResourceStatus
from odfd.resources.store import ResourceStore
from odfd.resources.types import Deletion
from odfd.services.flows.worker import Ended
from odfd.services.resources.types import TYPES
from odfd.services.resources.views import manifest_of
from odfd.services.tasks.flow_tasks import FlowTasks
from odfd.store import flow_runs as store
from worlds.accounts_world import ALICE, BOB, DATASET, settled
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Node, World, until

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
