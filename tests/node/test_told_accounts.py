"""What accounts are told of a node that others use too: what concerns the datasets that they may read, and no more."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from chain import instant
from chain.errors import Fault
from config import model
from odfd.control import wire
from odfd.control.endpoint import CALLER, Caller
from odfd.obs.log_lines import LineFilter
from odfd.services.resources.history import HistoryService
from worlds.accounts_world import ALICE, BOB, DATASET, GRANT, NOBODY, Asking, settled
from worlds.called_services import CalledServices
from worlds.eventually import PATIENCE
from worlds.node_world import DERIVED, ROOT, Node, World

EMPTY = "$schema: Relations\nheaders: {{name: {name}}}\nspec: {{}}\n"
FLOW = """$schema: Flow
headers: {{name: {name}}}
spec:
  target: Dataset:{target}
  triggers: [{{kind: Schedule, cron: "0 6 * * *"}}]
"""
STATE = "https://w3id.org/odfd/schemas/resource/v1alpha1/State"
ROWS = ("2020-01-01T00:00:00Z,A,1",)
NODE, RESOURCE = "/node/v1alpha1", "/resource/v1alpha1"
ASKED = (
    (NODE + "/status", ""), (RESOURCE + "/events", "kept=true"), (RESOURCE + "/changes", ""),
    (NODE + "/logs", "task={task}"), (NODE + "/tasks/{task}", ""), (RESOURCE + "/changes", "of=dataset/secret"),
    (RESOURCE + "/changes", "of=flow/secret"), (NODE + "/tasks/t999", ""), (NODE + "/logs", "task=t999"),
    (NODE + "/logs", ""), (NODE + "/engines", ""), (NODE + "/holders", ""), ("/net/v1alpha1/peers", ""),
    ("/dataset/v1alpha1/datasets/cities/lineage", ""), (RESOURCE + "/resources", ""),
    ("/dataset/v1alpha1/datasets", ""), ("/dataset/v1alpha1/datasets", "limit=1"),
    ("/flow/v1alpha1/flows", ""), ("/flow/v1alpha1/tasks", ""), ("/flow/v1alpha1/tasks/{task}", ""),
)  # fmt: skip
"""By which accounts may learn of others; each is answered in the same bytes whatever others do."""


async def answers(asking: Asking, uid: int, task: str) -> dict[str, str]:
    """Returns all answers, as texts."""
    found = {}
    for path, query in ASKED:
        where, asked = path.format(task=task), query.format(task=task)
        status, said = await asking.ask(uid, "GET", where, query=asked)
        found[f"{where}?{asked}"] = f"{status} {json.dumps(said)}"
    services, stood = await asking.services(uid), []
    for word in (None, "dataset", "task"):
        async with aclosing(services.declarations.news(None, word)) as news:
            async for each in news:
                stood.append(each.value)
                if each.value.op == "Bookmark":
                    break
    return {**found, "watch": msgspec.json.encode(stood).decode()}


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Returns the lines of a comparison of all answers, of which an assertion shows each."""
    texts = [json.dumps(each, indent=1).replace("{", "\n{").splitlines() for each in (before, after)]
    return list(difflib.unified_diff(*texts, n=0))[:20]


async def settle(node: Node) -> None:
    """Until the controllers have said what they see of the dataset and the account."""
    for name, said in (("dataset/cities", "DatasetState=fresh"), ("account/bob", "Ready")):
        while not any(said in (each.change, *each.details) for each in await node.api.history.last(name, 100)):
            await node.events.grown.wait()


async def shared(world: World, node: Node) -> tuple[Asking, str]:
    """Accounts, and a dataset of the node's owner that bob may read, with a flow; returns a task on it too."""
    asking = await settled(node)
    world.write(node.home.directory.parent.name, "a.csv", *ROWS)
    await node.apply(ROOT)
    await node.apply(FLOW.format(name="daily", target="cities"))
    await node.apply(GRANT.format(name="g", who="bob", role="reader", what="cities"))
    ref = await node.api.flow.pull(wire.PullRequest(refs=("cities",)))
    task = node.board.get(ref.id)
    await task.finished.wait()
    node.parts.context.lines.add("info", "odfd.x", ref.id, b'{"event": "read a file"}')
    await settle(node)
    return asking, ref.id


async def test_an_account_uses_the_node_as_far_as_its_datasets_go(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking, task = await shared(world, node)
        await node.apply(FLOW.format(name="of-theirs", target="theirs"))
        await node.done(node.api.verification.verify("theirs", wire.VerifyRequest()))

        async def get(path: str, query: str = "", uid: int = BOB) -> Any:
            status, said = await asking.ask(uid, "GET", path, query=query)
            assert status == 200, said
            return said

        status = await get("/node/v1alpha1/status")
        assert (status["account"], sum(status["datasets"].values()), status["flows"]["flows"]) == ("bob", 1, 1)
        assert status["flows"]["next"] == "daily"
        assert not {"disk", "pid", "memory", "engine", "listen", "peerId"} & {k for k, v in status.items() if v}
        (shown,) = (await get("/flow/v1alpha1/flows"))["items"]
        assert (shown["headers"]["name"], STATE in shown["status"]["conditions"]) == ("daily", True)
        assert [each["headers"]["name"] for each in (await get("/flow/v1alpha1/tasks"))["items"]] == [task]
        assert (await get(f"/node/v1alpha1/tasks/{task}"))["result"]["items"][0]["ref"] == "cities"
        assert [each["event"] for each in await get("/node/v1alpha1/logs", f"task={task}")] == ["read a file"]
        kinds = {(each["kind"], each["subject"]) for each in await get("/resource/v1alpha1/events", "kept=true")}
        assert {("dataset.appended", "cities"), ("flow.created", "daily")} <= kinds
        assert not {subject for _, subject in kinds} & {"theirs", "hers", "of-theirs", "alice"}
        changes = await get("/resource/v1alpha1/changes", "of=dataset/cities")
        assert {each["name"] for each in changes} == {"cities"}
        assert "theirs" not in json.dumps(await get("/resource/v1alpha1/changes"))
        assert {each["subject"] for each in await get("/resource/v1alpha1/events", "kept=true", ALICE)} == {
            "alice",
            "hers",
        }
        assert await get("/resource/v1alpha1/events", "kept=true", NOBODY) == []
        for path in (f"/node/v1alpha1/tasks/{task}", f"/node/v1alpha1/logs?task={task}"):
            assert (await asking.ask(ALICE, "GET", path.partition("?")[0], query=path.partition("?")[2]))[0] == 404
        status, problem = await asking.ask(BOB, "DELETE", f"/flow/v1alpha1/tasks/{task}")
        assert (status, problem["rule"]) == (403, "access-owner")


def hidden_life(node: Node, chance: random.Random) -> Callable[[], Awaitable[Any]]:
    """One thing that others do with datasets that bob may not read: some that are derived from what he may."""
    name, other = f"secret-{chance.randrange(2)}", f"secret-{chance.randrange(2)}"
    label = f"n{chance.random()}"
    derived = DERIVED.replace("towns", "secret")
    return chance.choice([
        lambda: node.apply(DATASET.format(name=name, more="")),
        lambda: node.apply(DATASET.format(name=name, more=f", labels: {{n: {label}}}")),
        lambda: node.apply(derived),
        lambda: node.pull("secret"),
        lambda: node.done(node.api.verification.verify("secret", wire.VerifyRequest())),
        lambda: node.done(node.api.verification.verify(name, wire.VerifyRequest())),
        lambda: node.apply(FLOW.format(name=f"flow-{name}", target=name)),
        lambda: node.apply(FLOW.format(name="secret", target="secret")),
        lambda: node.api.flows.pause(f"flow-{name}"),
        lambda: node.api.declarations.delete("Flow", f"flow-{name}"),
        lambda: node.api.applying.rename("Dataset", name, other),
        lambda: node.api.declarations.delete("Dataset", name, purge=chance.random() < 0.5),
        lambda: node.api.declarations.delete("Dataset", "secret"),
        lambda: node.apply(GRANT.format(name="to-alice", who="alice", role="owner", what=name)),
        lambda: node.apply(EMPTY.format(name="to-alice")),
        lambda: node.apply(f"$schema: VariableSet\nheaders: {{name: {name}}}\nspec: {{variables: {{a: {label}}}}}\n"),
        lambda: node.done(node.api.collection.collect(wire.CollectRequest())),
    ])  # fmt: skip


async def _changes(news: Any) -> Any:
    """What a watch tells after its bookmark, if there is one."""
    async with aclosing(news) as told:
        async for each in told:
            if each.value.op != "Bookmark":
                yield each.value


@pytest.mark.parametrize("seed", range(int(os.environ.get("ODF_SIM_SEEDS", "4")) // 2))
async def test_answers_to_an_account_are_the_same_bytes_whatever_others_do(world: World, seed: int) -> None:
    """Attack T-ACCOUNT-01: learning of a private dataset by counts, orders, numbers, failures or times of the status,
    events, flows, mirrors, tasks and changes.

    Defence: these are judged one by one before they are counted, and numbered without the others: every answer is the
    same bytes, whatever happens to datasets that may not be read.

    Before and after, the node differs only in datasets that the account may not read, and their whole lives.
    """
    chance = random.Random(seed)
    async with world.running("node", private=True, flows=model.Flows(follow=bool(seed % 2))) as node:
        asking, task = await shared(world, node)
        before = {uid: await answers(asking, uid, task) for uid in (BOB, NOBODY)}
        heard: list[Any] = []
        watching = trio.Event()

        async def watch(stream: Any) -> None:
            async with aclosing(stream) as found:
                watching.set()
                async for each in found:
                    heard.append(each)

        bobs = await asking.services(BOB)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, bobs.events.follow(None, ()))
            nursery.start_soon(watch, await bobs.history.follow(None, None, 0))
            page = await bobs.declarations.page("dataset", None, 500, None)
            nursery.start_soon(watch, _changes(bobs.declarations.news(page.version, "dataset")))
            await watching.wait()
            done = 0
            for _ in range(40):
                try:
                    await hidden_life(node, chance)()
                except Fault:
                    continue  # such as a dataset that is not there
                done += 1
                for uid, said in before.items():
                    assert differences(said, await answers(asking, uid, task)) == []
            nursery.cancel_scope.cancel()
        assert done > 5
        assert not heard


async def test_the_lineage_of_what_may_be_read_names_nothing_else(world: World) -> None:
    """Attack T-ACCOUNT-01: asking for the lineage of a readable dataset, to learn that its private inputs or consumers
    are here, and their names or rows.

    Defence: those look as on a node that does not have them; a traced record belongs to its caller alone.

    An input and a consumer that may not be read look as those that are not here, whatever becomes of them.
    """
    async with world.running("node", private=True) as node, world.running("far", private=True) as far:
        asking = await settled(node)
        world.write("node", "a.csv", *ROWS)
        again = DERIVED.replace("name: towns", "name: villages").replace("cities", "towns")
        await node.apply(ROOT, DERIVED, again)
        await node.pull()
        for name in ("cities", "towns", "villages"):
            await node.pull(name)
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="towns"))
        path, cities = "/dataset/v1alpha1/datasets/towns/lineage", str(node.dataset("cities"))

        async def graph() -> Any:
            return await asking.ask(BOB, "GET", path)

        async def trace(record: int) -> wire.TaskState:
            services = await asking.services(BOB)
            ref = await services.lineage.trace("towns", wire.LineageRequest(record=record))
            await node.board.get(ref.id).finished.wait()
            view: wire.TaskState = await services.tasks.get(ref.id)
            return view

        status, told = await graph()
        assert (status, [(each["relation"], each["ref"]) for each in told["nodes"]]) == (
            200, [("self", "towns"), ("upstream", node.dataset("cities").short)]
        )  # fmt: skip
        absent = told["nodes"][1]
        assert (absent["id"], absent["problem"]["rule"], absent["records"]) == (cities, "lineage-input", None)
        assert "villages" not in json.dumps(told)
        assert "cities" not in json.dumps(told["nodes"][1])
        refused = await trace(0)
        assert refused.fault is not None
        assert (refused.fault.rule, refused.state) == ("lineage-input", "failed")
        await node.api.applying.rename("Dataset", "cities", "places")
        await node.api.declarations.delete("Dataset", "villages", purge=True)
        world.write("node", "b.csv", "2020-01-02T00:00:00Z,B,2")
        await node.pull("places")
        assert await graph() == (status, told)
        again_refused = await trace(0)
        assert again_refused.fault == refused.fault
        # A node that has the one and not the other says the same of it.
        out = node.home.directory.parent / "out"
        await node.done(node.api.flow.export("towns", wire.ExportRequest(to=str(out))))
        await far.done(far.api.flow.import_(wire.ImportRequest(source=str(out), as_name="towns")))
        from_far = await far.api.lineage.graph("towns")
        assert json.loads(msgspec.json.encode(from_far.nodes[1])) == absent
        await node.apply(GRANT.format(name="h", who="bob", role="reader", what="places"))
        assert [each["ref"] for each in (await graph())[1]["nodes"]] == ["towns", "places"]
        assert (await trace(0)).state == "done"
        assert (await asking.ask(ALICE, "GET", path))[0] == 404
        status, problem = await asking.ask(NOBODY, "POST", path, {"record": 0})
        assert (status, problem["rule"]) == (404, "dataset-ref")


async def test_a_mirror_is_told_to_who_may_read_its_dataset(world: World) -> None:
    async with world.running("alice") as origin, world.running("bob", private=True) as node:
        world.write("alice", "a.csv", *ROWS)
        await origin.apply(ROOT, ROOT.replace("name: cities", "name: towns"))
        await origin.pull("cities", "towns")
        asking = await settled(node)
        before = {uid: await answers(asking, uid, "t0") for uid in (BOB, NOBODY)}
        await node.mirror(origin.dataset("cities"), "copy", private=True)
        await node.mirror(origin.dataset("towns"), "other", private=True)
        assert {uid: await answers(asking, uid, "t0") for uid in (BOB, NOBODY)} == before
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="copy"))
        assert await mirrors_told(asking, BOB) == {"copy": "current"}
        assert (await asking.ask(BOB, "GET", f"{MIRRORS}/copy"))[1]["spec"]["source"] == str(origin.dataset("cities"))
        assert (await asking.ask(BOB, "GET", f"{MIRRORS}/other"))[0] == 404
        assert (await asking.ask(BOB, "GET", "/node/v1alpha1/status"))[1]["mirrors"] == {"current": 1}
        assert "mirror.synced" in {
            each["kind"] for each in (await asking.ask(BOB, "GET", "/resource/v1alpha1/events", query="kept=1"))[1]
        }
        assert await mirrors_told(asking, NOBODY) == {}
        assert (await asking.ask(NOBODY, "GET", f"{MIRRORS}/copy"))[0] == 404


MIRRORS = "/net/v1alpha1/mirrors"


async def mirrors_told(asking: Any, uid: int) -> dict[str, str | None]:
    """The states of the mirrors that a caller is told of, by their names."""
    _, listed = await asking.ask(uid, "GET", MIRRORS)
    told = [(each["headers"]["name"], each["status"]["conditions"].get(STATE)) for each in listed["items"]]
    return {name: None if each is None else each["value"]["state"] for name, each in told}


async def test_who_reads_a_mirrored_dataset_reads_its_mirror_and_changes_nothing_of_it(world: World) -> None:
    """Of what is published everybody is told; a right on the mirror alone tells nothing of the dataset."""
    async with world.running("alice") as origin, world.running("bob", private=True) as node:
        world.write("alice", "a.csv", *ROWS)
        await origin.apply(ROOT, ROOT.replace("name: cities", "name: towns"))
        await origin.pull("cities", "towns")
        asking = await settled(node)
        for name in ("cities", "towns"):
            await node.mirror(origin.dataset(name), name, private=True)
        await node.apply(GRANT.format(name="g", who="bob", role="owner", what="cities"))
        alone = GRANT.format(name="alone", who="bob", role="reader", what="towns").replace("Dataset:", "Mirror:")
        await node.apply(alone)
        assert await mirrors_told(asking, BOB) == {"cities": "current", "towns": None}
        assert (await asking.ask(BOB, "GET", "/node/v1alpha1/status"))[1]["mirrors"] == {"current": 1}
        said = (await asking.ask(BOB, "GET", f"{MIRRORS}/cities"))[1]
        changed = {**said, "spec": {**said["spec"], "want": "chain"}}
        for method, path, body in (
            ("DELETE", f"{MIRRORS}/cities", None),
            ("PUT", f"{MIRRORS}/cities", changed),
            ("PUT", f"{MIRRORS}/cities/labels", {"labels": {"topic": "x"}}),
            ("PUT", f"{MIRRORS}/cities/pause", None),
            ("POST", "/node/v1alpha1/mirrors", {"source": str(origin.dataset("cities"))}),
        ):
            status, refused = await asking.ask(BOB, method, path, body)
            assert (status, refused["rule"][:6]) == (403, "access"), (path, refused)
        assert (await node.api.declarations.get("Mirror", "cities")).generation == 1
        assert await mirrors_told(asking, NOBODY) == {}
        await node.publish("cities")
        assert await mirrors_told(asking, NOBODY) == {"cities": "current"}
        await node.unpublish("cities")
        await node.api.declarations.delete("Relations", "g")
        assert await mirrors_told(asking, BOB) == {"towns": None}


async def test_what_only_the_running_node_knows_is_told_of_what_may_be_seen(world: World) -> None:
    """It stands among the conditions of a resource, in lists too; of a network only for the node's owner."""
    async with world.running("node") as node:
        asking = await settled(node)
        await node.apply("$schema: Network\nheaders: {name: food}\nspec: {bootstrap: []}\n")
        grant = GRANT.format(name="g", who="bob", role="reader", what="food").replace("Dataset:", "Network:")
        await node.apply(grant)

        async def told(uid: int) -> list[Any]:
            _, listed = await asking.ask(uid, "GET", "/net/v1alpha1/networks")
            _, one = await asking.ask(uid, "GET", "/net/v1alpha1/networks/food")
            found = [each for each in listed["items"] if each["headers"]["name"] == "food"]
            return [each["status"]["conditions"].get(STATE, {}).get("value") for each in (*found, one)]

        first, second = await told(0)
        assert first == second
        assert (first["peers"], {each["name"] for each in first["datasets"]}) == (0, {"hers", "theirs"})
        assert await told(BOB) == [None, None]


async def test_what_names_an_input_that_may_not_be_read_is_not_told(world: World) -> None:
    """Attack T-ACCOUNT-01: being a reader of a derived dataset, to learn the name and the news of its private inputs
    from a flow or a task that failed.

    Defence: only callers that may read the inputs see texts that may name them.

    A flow, a task or a verdict of a derived dataset may name its inputs; the dataset itself stays readable.
    """
    async with world.running("node", private=True) as node:
        asking, _ = await shared(world, node)
        await node.apply(DERIVED)
        await node.apply(FLOW.format(name="derive", target="towns"))
        await node.pull("towns")
        await node.apply(GRANT.format(name="alices", who="alice", role="reader", what="towns"))

        async def told(uid: int) -> tuple[set[str], set[str], set[str]]:
            _, flows = await asking.ask(uid, "GET", "/flow/v1alpha1/flows")
            _, tasks = await asking.ask(uid, "GET", "/flow/v1alpha1/tasks")
            _, events = await asking.ask(uid, "GET", "/resource/v1alpha1/events", query="kept=1")
            happened = {f"{each['kind']} {each['subject']}" for each in events}
            return (
                {each["headers"]["name"] for each in flows["items"]},
                {each["spec"]["target"] for each in tasks["items"]},
                happened & {"dataset.derived towns", "flow.created derive"},
            )  # fmt: skip

        assert await told(ALICE) == (set(), set(), {"dataset.derived towns"})
        await node.apply(GRANT.format(name="alices-too", who="alice", role="reader", what="cities"))
        assert await told(ALICE) == (
            {"daily", "derive"}, {"cities", "towns"}, {"dataset.derived towns", "flow.created derive"}
        )  # fmt: skip


@pytest.mark.parametrize("stream", ["events", "changes"])
async def test_a_stream_ends_with_a_reset_when_rights_change_and_tells_nothing_after(world: World, stream: str) -> None:
    """Attack T-ACCOUNT-01: following events or changes while a right is revoked, to get later ones.

    Defence: the stream ends with `Reset` before anything else is sent.
    """
    async with world.running("node", private=True) as node:
        asking, _ = await shared(world, node)
        services = await asking.services(BOB)
        opened = (
            services.events.follow(None, ()) if stream == "events" else await services.history.follow(None, None, 0)
        )
        heard: list[Any] = []
        told = trio.Event()

        async def listen() -> None:
            async with aclosing(opened) as news:
                async for each in news:
                    heard.append(each)
                    told.set()

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                for number in itertools.count():  # until it listens
                    await node.apply(FLOW.format(name="x", target="theirs"))
                    label = wire.LabelRequest(labels={"a": f"b{number}"})
                    await node.api.declarations.label("dataset", "cities", label)
                    if told.is_set():
                        break
                await node.apply(EMPTY.format(name="g"))
                canary = wire.LabelRequest(labels={"secret": "canary"})
                await node.api.declarations.label("dataset", "cities", canary)
                await node.api.declarations.label("dataset", "hers", canary)
        words = [each.kind if stream == "events" else each.change for each in heard]
        assert words[-1] == ("reset" if stream == "events" else "Reset")
        assert words.count(words[-1]) == 1
        assert b"canary" not in msgspec.json.encode(heard)
        assert not {"theirs", "x"} & {each.subject if stream == "events" else each.name for each in heard}


async def test_events_are_numbered_by_time_and_go_on_from_there(world: World) -> None:
    """A number tells nothing of how many events others caused, and none that may be read is missed."""
    async with world.running("node", private=True) as node:
        asking, _ = await shared(world, node)
        services = await asking.services(BOB)
        kept = await services.events.kept()
        assert [each.sequence for each in kept] == [instant.parse(each.time) // instant.MICROSECOND for each in kept]
        for at, each in enumerate(kept):
            async with aclosing(services.events.follow(each.sequence, ())) as news:
                rest = [await anext(news) for _ in kept[at + 1 :]]
            assert rest == kept[at + 1 :]
        async with aclosing(services.events.follow(0, ("flow",))) as news:
            assert (await anext(news)).kind == "flow.created"
        async with aclosing(services.events.follow(1 << 60, ())) as news:
            assert (await anext(news)).kind == "lagged"
        async with aclosing(services.events.follow(1, ())) as news:
            lagged = await anext(news)
        assert (lagged.kind, lagged.data, lagged.sequence) == ("lagged", {}, 0)


async def test_a_bookmark_says_where_a_stream_goes_on_and_another_log_begins_anew(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking, _ = await shared(world, node)
        for services in (await asking.services(BOB), node.api):
            async with aclosing(services.events.follow(None, ("resource",), "")) as news:
                first = await anext(news)
            log = first.data["log"]
            await node.api.declarations.label("dataset", "cities", wire.LabelRequest(labels={"a": str(first.sequence)}))
            async with aclosing(services.events.follow(first.sequence, ("resource",), log)) as news:
                again, labelled = [await anext(news) for _ in range(2)]
            assert [first.kind, again.kind, labelled.kind] == ["bookmark", "bookmark", "resource.labelled"]
            assert (again.sequence, again.data) == (first.sequence, first.data)
            async with aclosing(services.events.follow(labelled.sequence, (), "other")) as news:
                assert [(await anext(news)).kind for _ in range(2)] == ["bookmark", "lagged"]
                oldest = await anext(news)
            assert oldest == (await services.events.kept())[0]

            async with aclosing(await services.history.follow(None, "dataset/cities", 1, bookmark=True)) as rows:
                last, mark = [await anext(rows) for _ in range(2)]
                while mark.change != "Bookmark":  # a label is reconciled meanwhile
                    last, mark = mark, await anext(rows)
            assert mark.id == ""
            async with aclosing(await services.history.follow(mark.version, None, 1, bookmark=True)) as rows:
                assert (await anext(rows)).change == "Bookmark"
                await node.api.declarations.label("dataset", "cities", wire.LabelRequest(labels={"a": None}))
                later = await anext(rows)
            assert later.name == "cities"
            assert later.version not in (mark.version, last.version)


async def test_the_last_rows_are_told_though_others_come_while_they_are_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after the position is told live, and takes no place of a row before it."""
    async with world.running("node", private=True) as node:
        asking, _ = await shared(world, node)
        asked, original = 0, HistoryService.epoch_and_newest

        def labelling(history: HistoryService) -> tuple[str, int]:
            nonlocal asked
            asked += 1
            if asked == 2:  # between the position and the rows before it
                label = partial(node.api.declarations.label, "dataset", "cities", wire.LabelRequest(labels={"a": "b"}))
                trio.from_thread.run(label)
            return original(history)

        monkeypatch.setattr(HistoryService, "epoch_and_newest", labelling)
        services = await asking.services(BOB)
        async with aclosing(await services.history.follow(None, "dataset/cities", 1, bookmark=True)) as rows:
            assert [(await anext(rows)).change == "Bookmark" for _ in range(3)] == [False, True, False]


async def test_lines_of_a_task_are_numbered_by_themselves_and_end_with_the_right(world: World) -> None:
    """Attack T-ACCOUNT-01: reading the log of the daemon by a task of one's own.

    Defence: lines of one's tasks alone are given, by numbers that do not count the others, until the right ends.
    """
    async with world.running("node", private=True) as node:
        asking, task = await shared(world, node)
        lines = node.parts.context.lines
        lines.add("info", "odfd.x", "other", b'{"event": "canary"}')
        lines.add("info", "odfd.x", task, b'{"event": "second"}')
        services = await asking.services(BOB)
        found = await services.log_lines.last(LineFilter(task=task), 10)
        assert [(each.sequence, each.event) for each in found] == [(1, "read a file"), (2, "second")]
        async with aclosing(services.log_lines.follow(LineFilter(task=task), 10)) as news:
            assert [(await anext(news)).event for _ in range(2)] == ["read a file", "second"]
            await node.apply(EMPTY.format(name="g"))
            lines.add("info", "odfd.x", task, b'{"event": "canary"}')
            with pytest.raises(Fault) as ended:
                await anext(news)
            assert ended.value.rule == "task"
        status, problem = await asking.ask(BOB, "GET", "/node/v1alpha1/logs")
        assert (status, problem["rule"]) == (403, "access-owner")


async def test_a_task_of_ones_own_is_not_told_of_what_may_no_longer_be_read(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking, _ = await shared(world, node)
        await node.apply(GRANT.format(name="g", who="bob", role="editor", what="cities"))
        services = await asking.services(BOB)
        ref = await services.verification.verify("cities", wire.VerifyRequest())
        await node.board.get(ref.id).finished.wait()
        assert (await asking.ask(BOB, "GET", f"/node/v1alpha1/tasks/{ref.id}"))[0] == 200
        await node.apply(EMPTY.format(name="g"))
        assert (await asking.ask(BOB, "GET", f"/node/v1alpha1/tasks/{ref.id}"))[0] == 404
        assert (await asking.ask(BOB, "GET", "/flow/v1alpha1/tasks"))[1]["items"] == []


async def test_an_account_is_told_of_its_tokens_and_of_no_others(world: World) -> None:
    """Attack T-ACCOUNT-01: learning of a token by a role on the account that has it.

    Defence: only that account gets events of its tokens.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GRANT.replace("Dataset:{what}", "Account:{what}").format(
            name="all", who="bob", role="reader", what="alice"
        ))  # fmt: skip
        await asking.ask(ALICE, "POST", "/auth/v1alpha1/tokens", {})
        for uid, kinds in ((ALICE, {"token.created"}), (BOB, set())):
            _, events = await asking.ask(uid, "GET", "/resource/v1alpha1/events", query="kept=1")
            assert {each["kind"] for each in events if each["kind"].startswith("token")} == kinds


async def test_the_caller_of_a_stream_is_asked_again(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking, _ = await shared(world, node)
        scope = {"headers": [], CALLER: Caller(1, BOB, BOB)}
        services = CalledServices.of(asking.access.dispatcher(node.services, await asking.access.subject(scope), scope))
        async with aclosing(services.events.follow(0, ())) as news:
            first = await anext(news)
            assert first.kind == "resource.created"
            await node.apply(
                "$schema: Account\nheaders: {name: bob, annotations: {unixCallers: {users: ['70099']}}}\n"
                "spec: {email: bob@example.com}\n"
            )
            rest = [each.kind async for each in news]
        assert rest[-1] == "reset"


async def test_who_reads_a_dataset_is_told_its_state_and_nobody_else(world: World) -> None:
    """In a list and alone, as the node's owner is; also of what is published, to everybody."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)

        async def told(uid: int, name: str) -> list[Any]:
            _, listed = await asking.ask(uid, "GET", DATASETS)
            status, one = await asking.ask(uid, "GET", f"{DATASETS}/{name}")
            found = [each for each in listed["items"] if each["headers"]["name"] == name]
            assert (status == 200) == bool(found)
            return [each["status"]["conditions"][STATE]["value"] for each in (*found, *[one] * len(found))]

        whole = await told(0, "theirs")
        assert whole[0] == whole[1]
        assert (whole[0]["kind"], whole[0]["blocks"], whole[0]["owner"]) == ("root", node.size("theirs"), True)
        assert await told(BOB, "theirs") == await told(NOBODY, "theirs") == []
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="theirs"))
        assert (await told(BOB, "theirs"), await told(NOBODY, "theirs")) == (whole, [])
        await node.publish("theirs")
        assert await told(NOBODY, "theirs") == await told(0, "theirs") != whole


DATASETS = "/dataset/v1alpha1/datasets"
