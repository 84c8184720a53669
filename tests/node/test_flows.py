"""A node keeps fresh by itself: what is declared is pulled when it is due, what derives follows, and people see it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from chain.errors import Invalid, NotFound, Refused
from chain.instant import SECOND, Instant, parse
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.layout import read_head
from chain.walk import newest_first
from config import model
from odfd.control import wire
from odfd.flows.plan import EVERY
from odfd.node.readings import Readings
from odfd.resources.store import ResourceStore
from odfd.runtime.reconcile_loop import UNTIL_POKED
from odfd.services.flows.worker import FlowWorker
from odfd.store import flow_runs as store
from worlds.eventually import PATIENCE, became
from worlds.flow_world import ShownFlow, entries, flow_of, flows
from worlds.manifests import DERIVED, ROOT, in_shards
from worlds.node_world import Node, World, until

FLOW = """$schema: Flow
headers: {{name: {name}}}
spec:
  target: Dataset:{target}
  triggers: [{trigger}]
  tasks: [{tasks}]
"""
ON_UPDATE = "{kind: Event, events: {type: dataset.ref.updated}}"
MINUTELY = "{kind: Interval, interval: 1min}"
YEARLY = "{kind: Schedule, cron: '@yearly'}"
FOLLOWING: dict[str, Any] = {"flows": model.Flows(follow=True, cooldown_seconds=0)}


def flow(
    name: str = "often", target: str = "cities", trigger: str = MINUTELY, tasks: str = "{kind: Pull}", more: str = ""
) -> str:
    trigger = trigger if "cooldown" in trigger else f"{trigger[:-1]}, cooldown: 0s}}"
    return FLOW.format(name=name, target=target, trigger=trigger, tasks=tasks) + more


def derived(name: str, source: str) -> str:
    return DERIVED.replace("name: towns", f"name: {name}").replace("cities", source)


def slices(node: Node, name: str) -> list[Multihash]:
    """The objects that hold the rows of a dataset."""
    blocks = newest_first(node.home.chains.chain(node.dataset(name)), ("AddData",), node.size(name))
    return [each.event.new_data.physical_hash for each in blocks if each.event.new_data is not None]


async def pass_time(node: Node, seconds: float) -> None:
    """The clock goes on once what was applied is in force, as a flow owes no time before that; then it is looked at."""
    await node.parts.flows.look((EVERY,))
    node.clock.instant += int(seconds * SECOND)
    node.parts.flows.loop.poke()


async def view(node: Node, name: str) -> ShownFlow:
    return next(each for each in await flows(node) if each.name == name)


def is_stored(node: Node, name: str) -> bool:
    """Whether the ends of all runs of a flow are, which it counts a moment before."""
    with node.home.database.read() as connection:
        return all(
            (held := store.record(connection, key)) is not None and held.runs >= entry.record.runs
            for key, entry in node.parts.flows.scheduler.entries()
            if entry.plan.name == name
        )


async def ran(node: Node, name: str, runs: int, outcome: str | None = None) -> ShownFlow:
    with trio.fail_after(PATIENCE):
        while True:
            # Taken before the look: a turn may end while it is under way.
            turned = node.parts.flows.turned
            # A flow that follows is listed once a turn has seen its dataset's new rendition.
            for seen in await flows(node):
                if (
                    seen.name == name
                    and seen.runs >= runs
                    and outcome in (None, seen.outcome)
                    and is_stored(node, name)
                ):
                    return seen
            await turned.wait()


async def test_a_root_is_polled_by_its_schedule_and_what_was_missed_is_caught_up_once(world: World) -> None:
    async with world.running("alice") as alice:
        result = await alice.apply(ROOT, flow())
        assert [(item.kind, item.action) for item in result.items] == [("dataset", "created"), ("flow", "created")]
        again = await alice.apply(ROOT, flow())
        assert {item.action for item in again.items} == {"unchanged"}
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        assert (await view(alice, "often")).runs == 0
        await pass_time(alice, 60)
        seen = await ran(alice, "often", 1)
        assert (seen.outcome, seen.failures, seen.missed) == ("Success", 0, 0)
        size = alice.size("cities")
    world.write("alice", "2.csv", "2024-01-02T00:00:00Z,Graz,2")
    world.clock.instant += 600 * SECOND
    async with world.running("alice") as alice:
        seen = await ran(alice, "often", 2)
        assert alice.size("cities") == size + 1
        assert seen.missed == 9
        await pass_time(alice, 1)
        assert (await view(alice, "often")).runs == 2
        assert (await alice.api.about.status()).flows.next == "often"


async def test_a_chain_of_ten_settles_in_order_with_one_transaction_each(world: World) -> None:
    """Data appears because it was declared: nobody pulls."""
    names = ["cities", *(f"d{number}" for number in range(1, 11))]
    async with world.running("alice", **FOLLOWING) as alice:
        pairs = zip(names[1:], names, strict=False)
        await alice.apply(ROOT, *(derived(name, source) for name, source in pairs), flow())
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await pass_time(alice, 60)
        heard = await alice.heard("dataset.derived", 10)
        assert [event.subject for event in heard] == names[1:]
        await ran(alice, "d10", 1)
        for name in names[1:]:
            state = load_state(alice.home.chains.chain(alice.dataset(name)))
            assert state.next_offset == 1
            assert [event.subject for event in heard].count(name) == 1
        blocks = sum(alice.size(name) for name in names)
        await pass_time(alice, 30)
        assert sum(alice.size(name) for name in names) == blocks


async def test_what_an_input_got_while_nobody_was_there_is_derived_after_the_start(world: World) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        await alice.pull("cities")
    async with world.running("alice", **FOLLOWING) as alice:
        await alice.parts.flows.look()
        seen = await ran(alice, "towns", 1)
        assert (seen.is_declared, seen.outcome) == (False, "Success")
    async with world.running("alice", **FOLLOWING) as alice:
        await alice.parts.flows.look()
        assert (await view(alice, "towns")).runs == 1, "nothing is new"


async def test_a_flow_takes_the_place_of_following_until_it_is_deleted(world: World) -> None:
    async with world.running("alice", **FOLLOWING) as alice:
        await alice.apply(ROOT, DERIVED)
        assert [(each.name, each.is_declared) for each in await flows(alice)] == [("towns", False)]
        await alice.apply(flow("hourly", "towns", "{kind: Schedule, cron: '@hourly'}"))
        assert [(each.name, each.is_declared) for each in await flows(alice)] == [("hourly", True)]
        with pytest.raises(NotFound):
            await alice.api.declarations.delete("Flow", "daily")
        await alice.api.declarations.delete("Flow", "hourly")
        assert [each.name for each in await flows(alice)] == ["towns"]
        with pytest.raises(Refused, match="made by a derived dataset"):
            await alice.api.declarations.delete("Flow", "towns")


async def test_a_flow_runs_when_another_dataset_has_new_data(world: World) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        news = ON_UPDATE.replace("events", "target: cities, events")
        await alice.apply(ROOT, DERIVED, flow("after", "towns", news))
        await ran(alice, "after", 1)
        await alice.pull("cities")
        # One run more may have found nothing: the flow is in force before its dataset's first blocks are signed.
        seen = await ran(alice, "after", 2, "Success")
        assert seen.when == "new data of cities, each 0s at most"


async def test_a_paused_flow_rests_over_a_restart(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow())
        await alice.api.flows.pause("often")
        assert (await flow_of(alice, "often")).state == "paused"
        await pass_time(alice, 300)
    async with world.running("alice") as alice:
        assert (await view(alice, "often")).state == "paused"
        await alice.api.flows.resume("often")
        seen = await flow_of(alice, "often")
        assert (seen.state, seen.runs) == ("waiting", 0)


async def test_a_flow_that_a_dataset_makes_goes_on_where_it_was_when_that_is_renamed(world: World) -> None:
    """What it ran, and that it is paused: a rename is not a new flow."""
    text = "$schema: Dataset\nheaders: {name: raw, annotations: {schedule: {every: 1min}}}\n"
    async with world.running("alice") as alice:
        await alice.apply(text + "spec: {kind: Root, metadata: []}\n")
        await said(alice, {"raw": "every 1min"})
        await pass_time(alice, 60)
        before = await ran(alice, "raw", 1)
        await alice.api.flows.pause("raw")
        assert (await flow_of(alice, "raw")).state == "paused"
        await alice.api.applying.rename("Dataset", "raw", "other")
        await said(alice, {"other": "every 1min"})
        after = await view(alice, "other")
        assert (after.state, after.runs, after.last) == ("paused", before.runs, before.last)
    async with world.running("alice") as alice:
        assert (await view(alice, "other")).state == "paused"


async def said(node: Node, wanted: dict[str, str]) -> None:
    """Waits until the flows by name are these, with when each runs."""
    with trio.fail_after(PATIENCE):
        while {each.name: each.when for each in await flows(node)} != wanted:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("on", [True, False])
async def test_a_derived_dataset_says_how_it_follows_its_inputs(world: World, on: bool) -> None:
    """In place of the settings, and as soon as it is said."""
    text = "$schema: Dataset\nheaders: {name: towns, annotations: {derivationPolicy: %s}}\nspec:\n  kind: Derivative\n"
    text += "  metadata:\n  - kind: SetTransform\n    inputs: [{datasetRef: cities, alias: cities}]\n"
    text += "    transform: {kind: Sql, engine: spark, query: 'select * from cities'}\n"
    async with world.running("alice", flows=model.Flows(follow=on, cooldown_seconds=60)) as alice:
        await alice.apply(ROOT, text % "{cooldown: 5min}")
        await said(alice, {"towns": "new data of cities, each 5min at most"})
        await alice.apply(text % "{when: Manual}")
        await said(alice, {})
        for wrong, rule in (
            ("{cooldown: soon}", "flow-duration"),
            ("{when: Often}", "enum-member"),
            ("{cool: 1s}", ""),
        ):
            with pytest.raises(Invalid) as refused:
                await alice.apply(text % wrong)
            assert not rule or refused.value.rule == rule
        request = wire.LabelRequest(annotations={"derivationPolicy": {"when": "Update"}})
        await alice.api.declarations.label("dataset", "towns", request)
        usual = {"towns": "new data of cities, each 1min at most"}
        await said(alice, usual)
        request = wire.LabelRequest(annotations={"derivationPolicy": None})
        await alice.api.declarations.label("dataset", "towns", request)
        await said(alice, usual if on else {})


async def test_flows_name_collections_and_not_what_is_inside(world: World) -> None:
    """The former rendition still follows, and is not listed; what follows shards says so by one name."""
    async with world.running("alice", **FOLLOWING) as alice:
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.apply(ROOT, DERIVED)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities", "towns")))
        await alice.pull("cities")
        await alice.pull("towns")
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest(origin="snapshot")))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
        await said(alice, {"towns": "new data of cities, each 0s at most"})
        assert alice.dataset("towns.r0") in {each.plan.target for _, each in alice.parts.flows.scheduler.entries()}
    async with world.running("bob", **FOLLOWING) as bob:
        await bob.apply(in_shards(ROOT), DERIVED)
        assert len(bob.home.shards_of(bob.dataset("cities"))) > 1
        await said(bob, {"towns": "new data of cities, each 0s at most"})


async def test_what_follows_is_counted_on_over_a_handover_and_its_former_rendition_is_not_counted(world: World) -> None:
    async with world.running("alice", **FOLLOWING) as alice:
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.apply(ROOT, DERIVED)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities", "towns")))
        await alice.pull("cities")
        runs = (await ran(alice, "towns", 1)).runs
        first = alice.dataset("towns")
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest(origin="snapshot")))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
        await until(lambda: alice.dataset("towns") != first)
        await ran(alice, "towns", runs)
        readings = Readings(alice.features)
        await readings.surveyor._round()
        assert sum(readings.surveyor.newest.flows.values()) == 1
        assert first in {each.plan.target for _, each in alice.parts.flows.scheduler.entries()}
        assert (await alice.api.about.status()).flows.flows == 1


async def test_runs_of_a_flow_of_many_datasets_are_counted_on_over_a_handover_and_a_restart(world: World) -> None:
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.apply(ROOT, checking("all", "%"))
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await alice.pull("cities")
        await pass_time(alice, 60)
        first = await ran(alice, "all", 1)
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest(origin="snapshot")))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
    async with world.running("alice") as alice:
        await alice.parts.flows.look((EVERY,))
        seen = await view(alice, "all")
        assert (seen.runs, seen.last, seen.outcome) == (1, first.last, first.outcome)


async def test_what_fails_is_told_counted_and_tried_again(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT.replace("{kind: FilesGlob, path: '*.csv', order: ByName}",
                                       "{kind: Url, url: 'http://127.0.0.1:9/rows.csv'}"), flow())  # fmt: skip
        await pass_time(alice, 60)
        seen = await ran(alice, "often", 1)
        assert (seen.state, seen.outcome, seen.recoverable, seen.failures) == ("retrying", "Failed", True, 1)
        (event,) = await alice.heard("flow.failed")
        assert event.data["failures"] == 1
        await pass_time(alice, 15)
        assert (await ran(alice, "often", 2)).failures == 2
        assert (await alice.api.about.status()).flows.failing == {"often": 2}


def tasked(name: str, *tasks: str, target: str = "cities", trigger: str = ON_UPDATE) -> str:
    return flow(name, target, trigger, ", ".join(tasks))


async def test_new_blocks_are_compacted_and_verified_and_what_a_run_wrote_runs_nothing(world: World) -> None:
    for day in (1, 2, 3):
        world.write("alice", f"{day}.csv", f"2024-01-0{day}T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, tasked("tidy", "{kind: Compaction}", "{kind: Verify}"))
        assert (await view(alice, "tidy")).next is None
        while (await alice.pull("cities"))[0].outcome == "updated":
            pass
        seen = await ran(alice, "tidy", 1)
        while (await view(alice, "tidy")).next is not None:
            seen = await ran(alice, "tidy", seen.runs + 1)
        size, head = alice.size("cities"), alice.home.chains.chain(alice.dataset("cities")).head()
        assert (seen.outcome, seen.tasks) in {(each, ("Compaction", "Verify")) for each in ("Success", "NoOp")}
        assert "blocks verified (data)" in seen.message
        assert len(slices(alice, "cities")) == 1
    async with world.running("alice") as alice:
        assert (await view(alice, "tidy")).next is None
        assert (alice.size("cities"), alice.home.chains.chain(alice.dataset("cities")).head()) == (size, head)


PUSHED = "{kind: Push, to: archive}"


def archive(folder: Path) -> str:
    return f"$schema: Repository\nheaders: {{name: archive}}\nspec: {{url: file://{folder}}}\n"


async def test_each_new_block_of_a_published_dataset_is_pushed(world: World, tmp_path: Path) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    place = tmp_path / "archive" / "cities"
    async with world.running("alice", private=True) as alice:
        await alice.apply(ROOT, archive(tmp_path / "archive"), tasked("give", PUSHED))
        await alice.pull("cities")
        seen = await ran(alice, "give", 1)
        assert (seen.outcome, seen.message) == ("Failed", "cities is private: no data of it leaves this node")
        assert not place.exists()
        await alice.api.visibility.publish(wire.VisibilityRequest(refs=("cities",)))
        world.write("alice", "2.csv", "2024-01-02T00:00:00Z,Graz,1")
        await alice.pull("cities")
        head = alice.home.chains.chain(alice.dataset("cities")).head().hash
        await became(lambda: read_head(place) == head)
        seen = await ran(alice, "give", 2)
        assert seen.outcome == "Success"
        assert "archive/cities" in seen.message


async def test_a_push_goes_to_the_repository_that_was_meant_and_not_to_one_that_took_its_name(
    world: World, tmp_path: Path
) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, archive(tmp_path / "first"), tasked("give", PUSHED, trigger=MINUTELY))
        await alice.api.visibility.publish(wire.VisibilityRequest(refs=("cities",)))
        with alice.home.database.read() as connection:
            held = ResourceStore(connection).find_named("Repository", "archive", None)
        await alice.apply(archive(tmp_path / "first").replace("{name: archive}", f"{{id: {held.id}, name: vault}}"))
        await alice.apply(archive(tmp_path / "second"))
        await pass_time(alice, 60)
        seen = await ran(alice, "give", 1)
        assert (seen.outcome, "vault/cities" in seen.message) == ("Success", True)
        head = alice.home.chains.chain(alice.dataset("cities")).head().hash
        assert read_head(tmp_path / "first" / "cities") == head
        assert not (tmp_path / "second").exists()


async def test_a_push_that_the_repository_refuses_is_told_by_its_flow(world: World, tmp_path: Path) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    place = tmp_path / "archive" / "cities"
    place.mkdir(parents=True)
    (place / "notes.txt").write_text("mine")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, archive(tmp_path / "archive"), tasked("give", PUSHED, trigger=MINUTELY))
        await alice.api.visibility.publish(wire.VisibilityRequest(refs=("cities",)))
        await pass_time(alice, 60)
        seen = await ran(alice, "give", 1)
        assert (seen.outcome, seen.recoverable, seen.failures) == ("Failed", False, 1)
        assert "is not empty, and not a dataset" in seen.message
        assert (place / "notes.txt").read_text() == "mine"

        async def status() -> dict[str, Any]:
            with trio.fail_after(PATIENCE):
                await alice.parts.reconciler.wait_settled()
            found: dict[str, Any] = (await alice.api.declarations.get("Flow", "give")).status
            return found

        # A flow that was refused does not work, until a run of it ends well.
        said = await status()
        assert (said["phase"], said["code"], said["message"]) == ("Failed", "flow-refused", seen.message)
        (place / "notes.txt").unlink()
        await pass_time(alice, 60)
        await ran(alice, "give", 2, "Success")
        assert (await status())["phase"] == "Ready"


async def test_blocks_that_came_while_nobody_was_there_are_verified_after_the_start(world: World) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, tasked("check", "{kind: VerifyChain}"))
        await alice.api.flows.pause("check")
        await alice.pull("cities")
    async with world.running("alice") as alice:
        await alice.api.flows.resume("check")
        seen = await ran(alice, "check", 1)
        assert (seen.outcome, seen.when) == ("Success", "new blocks of it, each 0s at most")


async def test_what_is_damaged_is_refused_by_name_and_the_tasks_after_it_are_not_done(world: World) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, tasked("check", "{kind: Verify}", "{kind: Compaction}", trigger=MINUTELY))
        await alice.pull("cities")
        (name,) = slices(alice, "cities")
        with alice.home.database.write() as connection:
            connection.execute("UPDATE small_objects SET data = x'00' WHERE name = ?", (name,))
        await pass_time(alice, 60)
        seen = await ran(alice, "check", 1)
        assert (seen.outcome, seen.failures) == ("Failed", 1)
        assert seen.message.startswith("verification failed: ")
        assert "odfctl verify cities" in seen.message


async def test_a_derived_dataset_follows_its_inputs_beside_flows_that_do_not_pull_it(world: World) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice", **FOLLOWING) as alice:
        await alice.apply(ROOT, DERIVED, tasked("check", "{kind: GarbageCollection}", target="towns"))
        await alice.pull("cities")
        runs = 2  # or one more, where the news of its birth came after its first run
        while (seen := await ran(alice, "towns", runs)).outcome != "Success":
            runs = seen.runs + 1
        seen = await ran(alice, "check", 1)
        assert (seen.outcome, seen.is_declared) == ("NoOp", True)


@pytest.mark.parametrize(
    ("tasks", "trigger", "rule"),
    [
        ("{kind: Ingest}", "{kind: Event, events: {type: dataset.ref.updated}}", "flow-trigger"),
        ("{kind: Verify}", "{kind: Event, events: {type: task.finished}}", "enum-member"),
        ("{kind: Compaction, params: {maxSliceRecords: 0}}", MINUTELY, "compact-limits"),
        ("{kind: Compaction, params: {maxSliceSize: big}}", MINUTELY, "size"),
        ("{kind: Sync}", MINUTELY, "unknown-kind"),
        ("{kind: Ext, $schema: Dance}", MINUTELY, "unknown-type"),
        ("{kind: Ext}", MINUTELY, "required-field"),
        (", ".join(["{kind: Verify}"] * 9), MINUTELY, "flow-tasks"),
        ("{kind: Verify}", "{kind: Event, events: {type: dataset.ref.updated}, cooldown: 1y}", "flow-duration"),
        ("{kind: Verify}", "{kind: Event, events: {type: dataset.ref.updated}, cooldownMaxBatch: 3}", "flow-trigger"),
        ("{kind: Verify}", "{kind: https://acme.com/schemas/tasks/v1/SpecialTrigger}", "unknown-kind"),
        ("{kind: Verify}", "{kind: InputsUpdated, minRecordsToAwait: 5}", "flow-trigger"),
        ("{kind: Transform}", ON_UPDATE, "flow-trigger"),
        ("{kind: Verify, name: 'Not a name'}", MINUTELY, "flow-tasks"),
        (
            "{kind: Verify}",
            "{kind: Interval, interval: 1h, cooldown: 1h}, {kind: Schedule, cron: '@daily'}",
            "flow-trigger",
        ),
    ],
)
async def test_tasks_and_events_that_make_no_sense_are_refused(
    world: World, tasks: str, trigger: str, rule: str
) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Invalid) as refused:
            await alice.apply(ROOT, tasked("wrong", tasks, trigger=trigger))
        assert refused.value.rule == rule


async def of(node: Node, name: str) -> list[str]:
    """The datasets that a flow is in force for."""
    shown = [each.target for each in await flows(node) if each.name == name]
    return sorted(entries(node, name)) or shown


def checking(name: str, target: str, labels: str = "", trigger: str = MINUTELY) -> str:
    return flow(name, target, trigger, "{kind: Verify}", f'  targetLabels: "{labels}"\n' if labels else "")


LABELLED = "$schema: Dataset\nheaders: {{name: {name}, labels: {labels}}}\nspec: {{kind: Root, metadata: []}}\n"


async def joined(node: Node, name: str, expected: list[str]) -> None:
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    assert await of(node, name) == expected


async def test_a_flow_selects_by_a_filter_of_labels_as_commands_do(world: World) -> None:
    wanted = {"$or": [{"env": "prod"}, {"$not": {"team": {"$exists": True}}}]}
    target = json.dumps({"type": "Dataset", "name": "geo.%", "labels": wanted})
    labels = {"geo.a": "{env: prod, team: x}", "geo.b": "{team: x}", "geo.c": "{}", "other": "{env: prod}"}
    async with world.running("alice") as alice:
        for name, said in labels.items():
            await alice.apply(LABELLED.format(name=name, labels=said))
        await alice.apply(checking("some", "NONE").replace("Dataset:NONE", target))
        await joined(alice, "some", ["geo.a", "geo.c"])
        for spelled in (json.dumps(wanted), json.dumps({"$not": {"$and": [{"team": "x"}, {"$not": {"env": "prod"}}]}})):
            found = await alice.api.declarations.list("dataset", spelled)
            assert [each.name for each in found] == ["geo.a", "geo.c", "other"]
        with pytest.raises(Invalid) as refused:
            await alice.apply(checking("wrong", "NONE").replace("Dataset:NONE", target.replace("$exists", "$is")))
        assert (refused.value.rule, "$is" in refused.value.message) == ("label-selector", True)


async def test_a_flow_of_many_datasets_has_runs_for_each_and_new_ones_join(world: World) -> None:
    one, two, other = (ROOT.replace("name: cities", f"name: {name}") for name in ("geo.a", "geo.b", "other"))
    async with world.running("alice") as alice:
        await alice.apply(checking("all", "geo.%"))
        assert await of(alice, "all") == ["geo.%"]
        await alice.apply(one, other)
        await joined(alice, "all", ["geo.a"])
        await pass_time(alice, 60)
        with trio.fail_after(PATIENCE):
            while (first := await flow_of(alice, "all")).runs < 1:
                await alice.parts.flows.turned.wait()
        assert (first.target, first.outcome) == ("geo.%", "Success")
        await alice.apply(two)
        await joined(alice, "all", ["geo.a", "geo.b"])
        assert {name: each.record.runs for name, each in entries(alice, "all").items()} == {"geo.a": 1, "geo.b": 0}
        await alice.api.applying.rename("Dataset", "other", "geo.c")
        await joined(alice, "all", ["geo.a", "geo.b", "geo.c"])
        await alice.api.declarations.delete("Dataset", "geo.b")
        await joined(alice, "all", ["geo.a", "geo.c"])
    async with world.running("alice") as alice:
        await joined(alice, "all", ["geo.a", "geo.c"])
        assert {name: each.record.runs for name, each in entries(alice, "all").items()} == {"geo.a": 1, "geo.c": 0}
        await alice.api.declarations.delete("Flow", "all")
        assert await of(alice, "all") == []


async def test_a_flow_of_many_datasets_selects_by_labels_as_they_are_now(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, checking("all", "%", "env=prod,datasetKind=Root"))
        await joined(alice, "all", ["% (env=prod,datasetKind=Root)"])
        await alice.api.declarations.label("dataset", "cities", wire.LabelRequest(labels={"env": "prod"}))
        await joined(alice, "all", ["cities"])
        await alice.api.declarations.label("dataset", "cities", wire.LabelRequest(labels={"env": None}))
        await joined(alice, "all", ["% (env=prod,datasetKind=Root)"])


async def test_a_paused_flow_of_many_datasets_is_paused_for_those_that_join(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(checking("all", "%"))
        await alice.api.flows.pause("all")
        await alice.apply(ROOT)
        await joined(alice, "all", ["cities"])
        assert (await view(alice, "all")).state == "paused"
        await alice.api.flows.resume("all")
        assert (await view(alice, "all")).state == "waiting"


async def test_garbage_of_all_datasets_is_collected_once(world: World) -> None:
    async with world.running("alice") as alice:
        gc = flow("gc", "%", tasks="{kind: GarbageCollection}")
        await alice.apply(ROOT, ROOT.replace("name: cities", "name: towns"), gc)
        assert await of(alice, "gc") == ["%"]
        await pass_time(alice, 60)
        assert (await ran(alice, "gc", 1)).outcome == "NoOp"


@pytest.mark.parametrize(
    ("target", "more", "rule"),
    [("cities", "a=b", "flow-target"), ("a!%", "", "name-pattern"), ("%", "=", "label-selector")],
)
async def test_selections_that_make_no_sense_are_refused(world: World, target: str, more: str, rule: str) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Invalid) as refused:
            await alice.apply(ROOT, checking("all", target, more))
        assert refused.value.rule == rule


async def test_flows_of_a_dataset_that_is_deleted_are_in_force_no_longer(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow())
        cities = alice.dataset("cities")
        await alice.api.declarations.delete("Dataset", "cities")
        await alice.parts.flows.look({cities})
        (event,) = await alice.heard("flow.stranded")
        assert event.subject == "often"
        assert await flows(alice) == []
        with alice.home.database.read() as connection:
            assert store.flows(connection, None) == []
            assert store.records(connection) == {}


async def test_what_is_wrong_with_a_flow_is_refused_with_its_place_and_a_hint(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        with pytest.raises(Invalid) as refused:
            await alice.apply(flow(trigger="{kind: Schedule, cron: '61 * * * *'}"))
        assert refused.value.place == "m0.yaml:5"
        assert refused.value.rule == "flow-cron"
        assert refused.value.hint
        (told,) = (await alice.apply(flow(target="citeis"))).items[0].warnings
        assert told == "m0.yaml:4: no dataset 'citeis' here (did you mean cities?); it begins when that is here"
        await alice.api.declarations.delete("Flow", "often")
        assert (await alice.apply(flow(), dry_run=True)).items[0].action == "created"
        assert await flows(alice) == []


async def test_an_idle_node_wakes_for_nothing(world: World) -> None:
    async with world.running("alice", **FOLLOWING) as alice:
        await alice.apply(ROOT, DERIVED)
        await alice.parts.flows.look()
        assert alice.parts.flows.scheduler.next_time() is None


def test_records_are_read_back(world: World) -> None:
    alice = world.node("alice")
    record = store.Record(since=Instant(5), missed=3)
    with alice.home.database.write() as connection:
        store.keep_record(connection, "flow x", record)
        assert store.record(connection, "flow x") == record


class SystemAlarm:
    """As of a system, by the clock of the test."""

    def __init__(self) -> None:
        self.at: Instant | None = None

    def set(self, at: Instant | None) -> None:
        self.at = at

    async def run(self, went_off: Any) -> None:
        await trio.sleep_forever()


async def test_schedules_far_ahead_wake_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm of the system is set for the first of them, and the loop takes no step of its own."""
    alarm, look = SystemAlarm(), FlowWorker._round
    pauses: list[float] = []

    async def looked(worker: Any) -> float:
        pauses.append(await look(worker))
        return pauses[-1]

    monkeypatch.setattr(FlowWorker, "_round", looked)
    monkeypatch.setattr("odfd.services.flows.worker.alarm_of", lambda _: nullcontext(alarm))
    async with world.running("alice") as alice:
        await alice.apply(ROOT, *(flow(f"f{number}", trigger=YEARLY) for number in range(20)))
        before = len(pauses)
        alice.parts.flows.loop.poke()
        with trio.fail_after(PATIENCE):
            while len(pauses) == before:
                await trio.lowlevel.checkpoint()
        assert alarm.at == alice.parts.flows.scheduler.next_time() == parse("2027-01-01T00:00:00Z")
        assert set(pauses) == {UNTIL_POKED}


MANUAL = "{kind: Manual}"


async def test_people_run_a_flow_that_has_a_trigger_for_them(world: World) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow("asked", trigger=MANUAL), flow())
        assert (await view(alice, "asked")).when == "on request"
        await alice.api.flows.run("asked", wire.FlowRunRequest())
        assert (await ran(alice, "asked", 1)).outcome == "Success"
        with pytest.raises(Refused) as refused:
            await alice.api.flows.run("often", wire.FlowRunRequest())
        assert (refused.value.rule, "kind: Manual" in refused.value.hint) == ("flow-trigger", True)
        for wrong in ("nothing", "asked"):
            with pytest.raises(NotFound):
                await alice.api.flows.run(wrong, wire.FlowRunRequest(target="towns"))


async def test_a_trigger_that_is_not_enabled_causes_no_run(world: World) -> None:
    trigger = "{kind: Interval, interval: 1min, enabled: false}, {kind: Interval, interval: 5min"
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow(trigger=f"{trigger}}}"))
        assert (await view(alice, "often")).when == "every 5min"


COUNTED = "{kind: InputsUpdated, minRecordsToAwait: 2, maxAwaitInterval: 1h}"


async def test_a_flow_awaits_a_number_of_records_of_inputs_or_the_age_of_one(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED, flow("derive", "towns", COUNTED, "{kind: Transform}"))
        assert (await view(alice, "derive")).when == "2 records of cities, or one that is 1h old"
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull("cities")
        await became(lambda: alice.parts.flows.scheduler.next_time() is not None)
        assert (await view(alice, "derive")).runs == 0
        world.write("alice", "2.csv", "2024-01-02T00:00:00Z,Graz,2")
        await alice.pull("cities")
        assert (await ran(alice, "derive", 1)).outcome == "Success"
        world.write("alice", "3.csv", "2024-01-03T00:00:00Z,Graz,3")
        await alice.pull("cities")
        await pass_time(alice, 3601)
        assert (await ran(alice, "derive", 2)).outcome == "Success"
        assert load_state(alice.home.chains.chain(alice.dataset("towns"))).next_offset == 3


async def test_inputs_updated_is_of_a_derived_dataset(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, flow("derive", trigger="{kind: InputsUpdated}", tasks="{kind: Transform}"))
        await alice.parts.reconciler.wait_settled()
        status = (await alice.api.declarations.get("flow", "derive")).status
        assert (status["phase"], status["code"]) == ("Failed", "flow-trigger")


@pytest.mark.parametrize(
    ("first", "outcome", "tasks"),
    [
        ("{kind: Pull, onNoOp: Break}", "NoOp", 1),
        ("{kind: Pull, onNoOp: Continue}", "Success", 2),
        ("{kind: Transform}", "Failed", 1),
        ("{kind: Transform, onFailure: Continue}", "Success", 2),
        ("{kind: Pull, target: towns}", "Success", 2),
    ],
)
async def test_what_follows_a_task_that_did_nothing_or_failed(
    world: World, first: str, outcome: str, tasks: int
) -> None:
    async with world.running("alice") as alice:
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.apply(ROOT, DERIVED)
        while (await alice.pull("cities", "towns"))[0].outcome == "updated":
            pass
        await alice.apply(flow("two", trigger=MANUAL, tasks=f"{first}, {{kind: VerifyChain}}"))
        await alice.api.flows.run("two", wire.FlowRunRequest())
        seen = await ran(alice, "two", 1)
        assert seen.outcome == outcome
        assert ("verified" in seen.message) == (tasks == 2)


async def test_a_reset_moves_the_head_if_it_is_the_expected_one(world: World) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.pull("cities")
        chain = alice.home.chains.chain(alice.dataset("cities"))
        head, size = chain.head(), alice.size("cities")
        other = chain.block_at(0).hash
        await alice.apply(flow("back", trigger=MANUAL, tasks=f"{{kind: Reset, oldBlockHash: {other}}}"))
        await alice.api.flows.run("back", wire.FlowRunRequest())
        seen = await ran(alice, "back", 1)
        assert (seen.outcome, alice.size("cities")) == ("Failed", size)
        assert str(head.hash) in seen.message
        await alice.apply(flow("back", trigger=MANUAL, tasks=f"{{kind: Reset, oldBlockHash: {head.hash}}}"))
        await alice.api.flows.run("back", wire.FlowRunRequest())
        await became(lambda: alice.size("cities") == 1)


FORMER = """$schema: Flow
headers: {name: former, annotations: {flowPolicy: {cooldown: 5min, retry: {maxAttempts: 5, maxDelay: 2h}}}}
spec:
  target: {type: Dataset, name: ci%, labels: {kind: Root}}
  triggers: [{kind: Dataset, dataset: towns}, {kind: Source, source: s}, {kind: Schedule, every: 1h}]
  tasks: [{kind: Ingest, source: s}, {kind: Compaction, params: {maxSliceRecords: 9}}, {kind: Ext, $schema: Verify}]
"""


async def test_former_words_are_read_with_a_remark_for_each_and_printed_in_the_form_of_rfc_019(world: World) -> None:
    async with world.running("alice") as alice:
        *_, item = (await alice.apply(ROOT, DERIVED, FORMER)).items
        assert {each for each in item.warnings if not each.startswith("m2.yaml")} == {
            "spec.target.labels.kind is read as datasetKind, the label that the node gives",
            "spec.triggers[0]: kind: Dataset is read as kind: Event",
            "spec.triggers[1]: kind: Source is read as kind: SourceUpdated",
            "spec.triggers[2]: every is read as kind: Interval",
            "spec.tasks[1].params is read as fields of the task",
            "spec.tasks[2]: kind: Ext, $schema: Verify is read as kind: Verify",
            "headers.annotations.flowPolicy.cooldown is read as cooldown of each trigger that waits for news",
            "headers.annotations.flowPolicy.retry is read as spec.retryPolicy",
        }
        shown = await alice.api.declarations.get("flow", "former")
        assert shown.headers["annotations"] == {"flowPolicy": {"retry": {"maxDelay": "2h"}}}
        event = {"kind": "Event", "target": "towns", "events": {"type": "dataset.ref.updated"}, "cooldown": "5min"}
        assert shown.spec == {
            "target": {"type": "Dataset", "name": "ci%", "labels": {"datasetKind": "Root"}},
            "triggers": [
                event, {"kind": "SourceUpdated", "source": "s", "cooldown": "5min"},
                {"kind": "Interval", "interval": "1h"},
            ],
            "tasks": [
                {"kind": "Ingest", "source": "s"}, {"kind": "Compaction", "maxSliceRecords": 9}, {"kind": "Verify"},
            ],
            "retryPolicy": {"maxAttempts": 5},
        }  # fmt: skip
        printed = json.dumps({"$schema": shown.schema, "headers": dict(shown.headers), "spec": shown.spec})
        assert [each.action for each in (await alice.apply(printed)).items] == ["unchanged"]


async def test_nothing_of_a_batch_is_applied_if_a_word_has_no_form_in_rfc_019(world: World) -> None:
    async with world.running("alice") as alice:
        wrong = tasked("wrong", "{kind: SyncTo, destination: {url: 's3://b/x', auth: {kind: Aws}}}")
        with pytest.raises(Invalid) as refused:
            await alice.apply(ROOT, wrong)
        assert refused.value.hint.startswith("RFC-019, SyncTo: ")
        assert await alice.api.declarations.list(None, None) == []
