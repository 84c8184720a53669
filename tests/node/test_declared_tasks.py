"""Tasks that manifests declare: each is done once, and has the shape of those that commands and flows begin."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import yaml

from chain.errors import Refused
from odfd.control import wire
from odfd.runtime.subjects import about
from worlds.accounts_world import ALICE, BOB, DATASET, GRANT, settled
from worlds.asking import ask
from worlds.eventually import PATIENCE
from worlds.flow_world import tasks
from worlds.node_world import Node, World, until

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
