"""Accounts apply what acts by itself: it acts with their rights, over what they may use, and on nothing of the node."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from node.test_webhooks import INSIDE, SECRET, Receiver, dataset, serving, target

from chain.errors import Fault, Refused
from odfd.access.uses import NOT_GRANTED
from odfd.errors import to_problem
from odfd.flows.plan import Outcome
from odfd.flows.scheduler import Firing
from odfd.resources.store import ResourceStore
from odfd.services.ingest.sources import SourceReader
from worlds.accounts_world import ACCOUNT, ALICE, BOB, DATASET, GRANT, MINE, NOBODY, settled
from worlds.eventually import PATIENCE, became
from worlds.flow_world import flows, tasks
from worlds.manifests import ROOT
from worlds.node_world import Node, World

FLOW = """$schema: Flow
headers: {{name: often, account: bob}}
spec:
  target: Dataset:{target}
  triggers: [{{kind: Interval, interval: 1min}}]
"""
HIS = FLOW.replace(", account: bob", "").format
CHECK = "$schema: Task\nheaders: {{name: check}}\nspec: {spec}\n"
VERIFY = "{kind: Verify}"


def check(target: str, spec: str = VERIFY) -> str:
    return CHECK.format(spec=f"{spec[:-1]}, target: {target}}}")


async def refused(asking: Any, uid: int, *texts: str) -> Fault:
    with pytest.raises(Fault) as caught:
        await asking.apply(uid, *texts)
    assert caught.value.hint
    return caught.value


async def ended(node: Node, ref: str) -> dict[str, Any]:
    """Returns the status of a declared task once it ended, or waits for a right."""
    with trio.fail_after(PATIENCE):
        while True:
            grown = node.parts.context.events.grown
            found = await status(node, "Task", ref)
            if found["phase"] in ("Ready", "Failed"):
                return found
            await grown.wait()


@pytest.mark.parametrize("text", [HIS(target="{}"), check("{}")], ids=["flow", "task"])
async def test_what_acts_on_what_may_not_be_read_is_refused_as_on_what_is_not_here(world: World, text: str) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        told = []
        for name in ("theirs", "alice/hers", "absent", "alice/absent"):
            fault = await refused(asking, BOB, text.replace("{}", name))
            told.append(json.dumps(to_problem(fault)).replace(name, "REF"))
        assert len(set(told)) == 1
        # What may be read, and not be acted on, is refused by the role that it needs.
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="theirs"))
        text = text.replace("{}", str(node.dataset("theirs")))
        fault = await refused(asking, BOB, text)
        assert (fault.rule, "needs the role editor" in fault.message) == ("access-role", True)
        await node.apply(GRANT.format(name="g", who="bob", role="editor", what="theirs"))
        (made,) = (await asking.apply(BOB, text)).items
        assert made.action == "created"


async def test_an_account_applies_flows_that_run_with_its_rights(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="his", more=""), HIS(target="his"))
        assert (await status(node, "Flow", "bob/often"))["phase"] == "Ready"
        (again,) = (await asking.apply(BOB, HIS(target="his"))).items
        assert again.action == "unchanged"
        assert flows_in_force(node) == ["often"]
        # Alice has one of the same name, and neither learns of the other's.
        await asking.apply(ALICE, HIS(target="hers"))
        assert flows_in_force(node) == ["often"] * 2
        for uid, target in ((ALICE, "hers"), (BOB, "his")):
            _, listed = await asking.ask(uid, "GET", "/flow/v1alpha1/flows")
            assert [each["spec"]["target"] for each in listed["items"]] == [f"Dataset:{target}"]
        # A grant that ends stops it, and it goes on with the next one.
        granted = GRANT.format(name="g", who="bob", role="editor", what="theirs")
        for word, is_there in ((granted, True), (REVOKED, False), (granted, True)):
            await node.apply(word)
            if is_there:
                await asking.apply(BOB, HIS(target=node.dataset("theirs")).replace("often", "more"))
            seen = await status(node, "Flow", "bob/more")
            assert (seen["phase"], seen.get("code") or "") == (("Ready", "") if is_there else ("Failed", NOT_GRANTED))
            assert flows_in_force(node).count("more") == is_there


async def test_a_selection_of_an_account_is_of_what_it_may_use(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="his", more=", labels: {env: prod}"))
        await node.apply(DATASET.format(name="prod", more=", labels: {env: prod}"))
        all_prod = HIS(target="X").replace("Dataset:X", "'Dataset:%'\n  targetLabels: env=prod")
        await asking.apply(BOB, all_prod)
        await status(node, "Flow", "bob/often")

        def targets() -> set[Any]:
            return {entry.plan.target for _, entry in node.parts.flows.scheduler.entries() if entry.plan.declared}

        his, prod = node.home.resolve("bob/his").id, node.dataset("prod")
        assert targets() == {his}
        for word, found in ((GRANT.format(name="g", who="bob", role="editor", what="prod"), {his, prod}),
                            (REVOKED, {his})):  # fmt: skip
            await node.apply(word)
            await status(node, "Flow", "bob/often")
            await node.parts.flows.look([prod])
            assert targets() == found


COLLECT = ["$schema: Task\nheaders: {name: sweep}\nspec: {kind: GarbageCollection}\n",
           HIS(target="his") + "  tasks: [{kind: GarbageCollection}]\n",
           HIS(target="X").replace("Dataset:X", "'Dataset:%'") + "  tasks: [{kind: GarbageCollection}]\n"]  # fmt: skip


@pytest.mark.parametrize("text", COLLECT, ids=["task", "flow", "flow-of-all"])
async def test_no_account_collects_the_garbage_of_the_node(world: World, text: str) -> None:
    """Not by a manifest of the node's owner either, which acts with the rights of its account."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="his", more=""))
        assert (await refused(asking, BOB, text)).rule == "access-owner"
        name, kind = ("often", "Flow") if "often" in text else ("sweep", "Task")
        await node.apply(text.replace(f"name: {name}", f"name: {name}, account: bob"))
        assert (await status(node, kind, f"bob/{name}"))["code"] == NOT_GRANTED
        assert (flows_in_force(node), [each.kind for each in node.board.list() if each.kind == "gc"]) == ([], [])


@pytest.mark.parametrize(
    "more",
    [
        ("interval: 1min", "interval: 59s"),
        (
            "{kind: Interval, interval: 1min}",
            "{kind: Event, target: his2, events: {type: dataset.ref.updated}, cooldown: 1s}",
        ),
        ("spec:\n", "spec:\n  retryPolicy: {minDelay: 1s}\n"),
    ],
    ids=["every", "cooldown", "retry"],
)
async def test_a_flow_of_an_account_does_not_take_every_turn(world: World, more: tuple[str, str]) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="his", more=""), DATASET.format(name="his2", more=""))
        text = HIS(target="his").replace(*more)
        assert (await refused(asking, BOB, text)).rule == "flow-duration"
        await node.apply(text.replace("name: often", "name: often, account: bob"))
        told = await status(node, "Flow", "bob/often")
        assert told["phase"] == "Ready", told


def state(shown: Any) -> Any:
    """What the node knows of a resource that is shown."""
    return next(each["value"] for key, each in shown["status"]["conditions"].items() if key.endswith("/State"))


async def test_what_acts_for_others_is_not_changed_by_who_maintains_it(world: World) -> None:
    """Attack T-ACCOUNT-02: making a flow, task, projection, portal or webhook act with rights of the node or of another
    account: on unreadable datasets, on the whole node, or by changing another's resource.

    Defence: it acts with the rights of its account, checked at the apply and at each use; actions on the node are
    refused; a role on it gives no right to change it.

    It would act with rights that who changed it has not.
    """
    grant = GRANT.replace("Dataset:{what}", "Flow:{what}")

    async def paused(name: str, uid: int = BOB) -> tuple[int, str]:
        status_, said = await asking.ask(uid, "PUT", f"/flow/v1alpha1/flows/{name}/pause")
        return status_, said.get("rule") or state(said)["state"]

    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="his", more=""))
        await asking.apply(ALICE, HIS(target="hers"))
        await node.apply(HIS(target="theirs").replace("often", "seldom"))
        for name in ("alice/often", "seldom"):
            await node.apply(grant.format(name="g", who="bob", role="owner", what=name))
            held = (await node.api.declarations.get("Flow", name)).id
            plain = name.rpartition("/")[2]
            text = HIS(target=node.dataset("bob/his")).replace("name: often", f"name: {plain}, id: {held}")
            assert (await refused(asking, BOB, text)).rule == "access-account"
            assert await paused(held) == (403, "access-account")
        await node.apply(REVOKED)
        assert await paused(held) == await paused("absent") == (404, "flow-name")
        assert await paused("often", ALICE) == (200, "paused")
        assert state((await asking.ask(ALICE, "DELETE", "/flow/v1alpha1/flows/often/pause"))[1])["state"] == "waiting"
        span = {"from": "2024-01-01", "to": "2024-01-02", "target": "theirs"}
        hidden, missing = [
            await asking.ask(ALICE, "POST", "/flow/v1alpha1/flows/often/backfill", {**span, "target": each})
            for each in ("theirs", "absent")
        ]
        assert (hidden[0], hidden[1]["detail"].replace("theirs", "absent")) == (404, missing[1]["detail"])
        assert (await asking.ask(ALICE, "DELETE", "/flow/v1alpha1/flows/often"))[0] == 200
        assert flows_in_force(node) == ["seldom"]


async def test_an_account_sees_and_cancels_the_tasks_that_it_declares(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        granted = GRANT.format(name="g", who="bob", role="editor", what="theirs")
        await node.apply(granted)
        await asking.apply(BOB, DATASET.format(name="his", more=""), check("his"))
        assert (await ended(node, "bob/check"))["phase"] == "Ready"
        await asking.apply(ALICE, check("hers").replace("check", "look"))
        assert (await ended(node, "alice/look"))["phase"] == "Ready"

        async def seen(uid: int) -> list[tuple[str, str, bool]]:
            _, listed = await asking.ask(uid, "GET", "/flow/v1alpha1/tasks")
            found = [(bool(each["headers"]["generation"]), state(each)) for each in listed["items"]]
            return [(now["target"], now["state"], is_it) for is_it, now in found if now["kind"] == "verify"]

        assert (await seen(BOB), await seen(ALICE)) == ([("his", "done", True)], [("hers", "done", True)])
        # One that waits is on no board, and is the account's all the same.
        await node.apply(REVOKED)
        await node.apply(check(str(node.dataset("theirs"))).replace("name: check", "name: later, account: bob"))
        assert (await ended(node, "bob/later"))["code"] == NOT_GRANTED
        assert sorted(now for _, now, _ in await seen(BOB)) == ["done", "waiting"]
        id_ = (await node.api.declarations.get("Task", "bob/later")).id
        assert (await asking.ask(BOB, "GET", f"/node/v1alpha1/tasks/{id_}"))[1]["state"] == "waiting"
        for method in ("GET", "DELETE"):
            hidden, missing = [await asking.ask(ALICE, method, f"/node/v1alpha1/tasks/{each}") for each in (id_, "t9")]
            assert (hidden[0], hidden[1]["detail"].replace(id_, "t9")) == (missing[0], missing[1]["detail"])
        await node.apply(granted)
        assert (await ended(node, "bob/later"))["phase"] == "Ready"
        assert (await asking.ask(BOB, "DELETE", f"/flow/v1alpha1/tasks/{id_}"))[0] == 200
        assert [target for target, _, is_declared in await seen(BOB) if is_declared] == ["his"]


async def test_a_renamed_account_keeps_what_acts_for_it_and_one_with_such_is_not_deleted(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="his", more=""), HIS(target="his"), check("his"))
        assert (await ended(node, "bob/check"))["phase"] == "Ready"
        held = (await node.api.declarations.get("Account", "bob")).id
        await node.apply(ACCOUNT.format(name="robert", uid=BOB).replace("name: robert", f"name: robert, id: {held}"))
        assert flows_in_force(node) == ["often"]
        assert (await status(node, "Flow", "robert/often"))["phase"] == "Ready"
        assert (await status(node, "Task", "robert/check"))["phase"] == "Ready"
        begun = [each.id for each in node.board.list() if each.kind == "verify"]
        for text in (HIS(target="his"), check("his")):
            (again,) = (await asking.apply(BOB, text)).items
            assert again.action == "unchanged"
        assert [each.id for each in node.board.list() if each.kind == "verify"] == begun
        for word, name, left in (
            ("dataset", "his", "Flow often"),
            ("flow", "often", "Task check"),
            ("task", "check", ""),
        ):
            (one,) = [each for each in await node.api.declarations.list(word, None) if each.name == name]
            await (
                node.api.declarations.delete("Dataset", "robert/his")
                if word == "dataset"
                else node.api.declarations.delete(word, one.id)
            )
            status_, problem = await asking.ask(0, "DELETE", "/auth/v1alpha1/accounts/robert")
            assert (status_, left in problem.get("detail", "")) == (403 if left else 200, True), problem


async def test_a_flow_calls_no_webhook_that_its_account_only_reads(world: World) -> None:
    """Attack T-ACCOUNT-02: a call with any body, signed with the secret of a webhook that one may read.

    Defence: to call it needs the role editor.

    The call is signed with the secret of the webhook, whatever its body is.
    """
    secret = "$schema: SecretSet\nheaders: {name: hooks}\nspec: {secrets: {k: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}}\n"
    hook = HOOK.format("hooks")
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(secret, hook)
        held = (await node.api.declarations.get("WebhookTarget", "hook")).id
        calls = HIS(target="his") + f"  tasks: [{{kind: WebhookCall, target: {held}}}]\n"
        await asking.apply(BOB, DATASET.format(name="his", more=""))
        assert (await refused(asking, BOB, calls)).rule == "resource"
        grant = GRANT.replace("Dataset:{what}", "WebhookTarget:{what}")
        await node.apply(grant.format(name="g", who="bob", role="reader", what="hook"))
        assert (await refused(asking, BOB, calls)).rule == "access-role"
        await node.apply(grant.format(name="g", who="bob", role="editor", what="hook"))
        await asking.apply(BOB, calls)
        assert (await status(node, "Flow", "bob/often"))["phase"] == "Ready"
        await node.apply(grant.format(name="g", who="bob", role="reader", what="hook"))
        assert (await status(node, "Flow", "bob/often"))["code"] == NOT_GRANTED


PROJECTION = """$schema: Projection
headers: {{name: kept}}
spec: {{inputs: [{{datasetRef: '{}', alias: d}}], project: {{kind: Sql, query: select city from d}}}}
"""
PORTAL = """$schema: Portal
headers: {{name: open}}
spec: {{input: '{}', dataset: 'his', suppress: [{{count: population, below: 5, groups: [event_time, city]}}]}}
"""
GIVES = PORTAL.replace("'his'", "'TO'").replace("'{}'", "'his'").replace("'TO'", "'{}'")
HOOK = """$schema: WebhookTarget
headers: {{name: hook}}
spec: {{url: 'https://example.org/', secretRef: 'SecretSet:{}#k'}}
"""
HIDDEN = [(PROJECTION, "Dataset"), (PORTAL, "Dataset"), (GIVES, "Dataset"), (HOOK, "SecretSet")]


@pytest.mark.parametrize(("text", "kind"), HIDDEN, ids=["projection", "portal", "portal-to", "webhook"])
async def test_what_uses_what_may_not_be_read_is_refused_as_what_uses_nothing(
    world: World, text: str, kind: str
) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="his", more=""))
        for account in ("", ", account: alice"):
            await node.apply(f"$schema: SecretSet\nheaders: {{name: hers{account}}}\nspec: {{secrets: {{k: v}}}}\n")
        told = []
        for name in ("hers", "alice/hers", "absent", "alice/absent"):
            told.append(json.dumps(to_problem(await refused(asking, BOB, text.format(name)))).replace(name, "REF"))
        assert len(set(told)) == 1
        held = (await node.api.declarations.get(kind, "alice/hers")).id
        grant = GRANT.replace("Dataset:{what}", f"{kind}:{{what}}")
        await node.apply(grant.format(name="g", who="bob", role="reader", what="alice/hers"))
        if text is GIVES:  # it writes the dataset
            assert (await refused(asking, BOB, text.format(held))).rule == "access-role"
            await node.apply(grant.format(name="g", who="bob", role="editor", what="alice/hers"))
        (made,) = (await asking.apply(BOB, text.format(held))).items
        assert made.action == "created"


ROWS = tuple(f"2024-01-0{day}T00:00:00Z,Graz,{people}" for day, people in ((1, 300), (2, 310)))


async def test_a_projection_of_an_account_is_read_and_computed_by_its_rights(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        world.write("node", "a.csv", *ROWS)
        await node.apply(ROOT)
        await node.pull("cities")
        granted = GRANT.format(name="g", who="bob", role="reader", what="cities")
        await node.apply(granted)
        await asking.apply(BOB, PROJECTION.format(node.dataset("cities")))

        async def asked(uid: int, table: str) -> tuple[int, str]:
            body = {"sql": f"select count(*) as n from {table}", "lines": "ndjson"}
            code, said = await asking.ask(uid, "POST", "/node/v1alpha1/query", body)
            return code, said.get("rule", "") if isinstance(said, dict) else "2" if b'{"n":2}' in said else ""

        assert (await status(node, "Projection", "bob/kept"))["phase"] == "Ready"
        assert await asked(BOB, "projection.kept") == (200, "2")
        # Another sees it by a grant on the projection alone, and without one as if it were not there.
        assert await asked(ALICE, 'projection."bob/kept"') == await asked(ALICE, "projection.absent")
        share = GRANT.replace("Dataset:{what}", "Projection:{what}")
        await asking.apply(BOB, share.format(name="s", who="alice", role="reader", what="kept"))
        assert await asked(ALICE, 'projection."bob/kept"') == (200, "2")
        # The table ends with the right to its input, for whoever reads it.
        await node.apply(REVOKED)
        assert (await status(node, "Projection", "bob/kept"))["code"] == NOT_GRANTED
        for uid, table in ((BOB, "projection.kept"), (ALICE, 'projection."bob/kept"'), (0, 'projection."bob/kept"')):
            assert await asked(uid, table) == (403, NOT_GRANTED)
        world.write("node", "b.csv", ROWS[0].replace("2024", "2025"))
        await node.pull("cities")
        assert (await status(node, "Projection", "bob/kept"))["code"] == NOT_GRANTED
        await node.apply(granted)
        seen = await status(node, "Projection", "bob/kept")
        (table,) = [each["value"] for key, each in seen["conditions"].items() if key.endswith("/Table")]
        assert (seen["phase"], table["rows"]) == ("Ready", 3)


async def test_an_account_means_its_own_dataset_in_a_query(world: World) -> None:
    """The one of the node's owner with that name was looked up, and not found."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(BOB, DATASET.format(name="theirs", more=""))
        code, said = await asking.ask(BOB, "POST", "/node/v1alpha1/query", {"sql": "select * from theirs"})
        assert (code, said["rule"]) == (404, "query-schema"), said  # it has no rows yet


async def test_a_portal_of_an_account_takes_what_that_may_read(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        world.write("node", "a.csv", *ROWS)
        await node.apply(ROOT)
        await node.pull("cities")
        granted = GRANT.format(name="g", who="bob", role="reader", what="cities")
        await node.apply(granted)
        await asking.apply(BOB, dataset("his", "d"), PORTAL.format(node.dataset("cities")))
        assert (await status(node, "Portal", "bob/open"))["phase"] == "Ready"
        size = node.size("bob/his")
        assert size == 4
        await node.apply(REVOKED)
        assert (await status(node, "Portal", "bob/open"))["code"] == NOT_GRANTED
        world.write("node", "b.csv", ROWS[0].replace("2024", "2025"))
        await node.pull("cities")
        (item,) = await node.pull(str(node.dataset("bob/his")))
        assert (item.fault is not None and item.fault.rule == NOT_GRANTED, node.size("bob/his")) == (True, size)
        await node.apply(granted)
        assert (await status(node, "Portal", "bob/open"))["phase"] == "Ready"
        assert node.size("bob/his") == size + 1


async def test_a_portal_that_may_not_write_its_dataset_any_more_stops_no_other(world: World) -> None:
    """Attack T-ACCOUNT-02: a second Portal for the dataset of another, to stop the first.

    Defence: one whose account may not write the dataset counts for nothing.
    """
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        world.write("node", "a.csv", *ROWS)
        await node.apply(ROOT, "$schema: Dataset\nheaders: {name: census}\nspec: {kind: Root, metadata: []}\n")
        await node.pull("cities")
        await node.apply(PORTAL.format("cities").replace("'his'", "census"))
        assert (await status(node, "Portal", "open"))["phase"] == "Ready"
        await node.apply(GRANT.format(name="g", who="bob", role="editor", what="census"))
        await asking.apply(BOB, DATASET.format(name="his", more=""), GIVES.format(node.dataset("census")))
        await node.apply(REVOKED)
        assert (await status(node, "Portal", "bob/open"))["code"] == NOT_GRANTED
        (item,) = await node.pull("census")
        assert item.outcome == "up-to-date"


async def test_a_webhook_of_an_account_is_applied_by_it_and_ends_with_the_right_to_its_secret(world: World) -> None:
    with serving(Receiver()) as receiver:
        async with world.running("node", private=True, **INSIDE) as node:
            asking = await settled(node)
            await node.apply(SECRET)
            grant = GRANT.replace("Dataset:{what}", "SecretSet:{what}")
            granted = grant.format(name="g", who="bob", role="reader", what="hooks")
            held = (await node.api.declarations.get("SecretSet", "hooks")).id
            hook = target(receiver).replace("SecretSet:hooks", f"SecretSet:{held}")
            for word, code in ((granted, ""), (REVOKED, NOT_GRANTED), (granted, "")):
                await node.apply(word)
                if not code:
                    await asking.apply(BOB, hook)
                assert ((await status(node, "WebhookTarget", "bob/hook")).get("code") or "") == code
            await node.apply(dataset("secret"))
            await asking.apply(BOB, dataset("his"))
            await told(receiver, ["created his"])


async def test_a_run_names_the_account_that_asked_for_it(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        text = "$schema: Flow\nheaders: {name: asked}\nspec:\n  target: hers\n  triggers: [{kind: Manual}]\n"
        await asking.apply(ALICE, text + "  tasks: [{kind: Verify}]\n")
        assert (await asking.ask(ALICE, "POST", "/flow/v1alpha1/flows/asked/run", {}))[0] == 200
        with trio.fail_after(PATIENCE):
            while not (found := await node.api.declarations.list("FlowRun", None)):
                await node.parts.flows.turned.wait()
        (causes,) = [each for key, each in found[0].status["conditions"].items() if key.endswith("ActivationCauses")]
        assert [each["initiator"]["name"] for each in causes["activationCauses"]] == ["alice"]


async def test_views_say_whose_a_flow_a_task_and_a_dataset_are(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(HIS(target="theirs"))
        for uid, name in ((ALICE, "hers"), (BOB, "his")):
            await asking.apply(uid, DATASET.format(name=name, more=""), HIS(target=name), check(name))
        for ref in ("alice/check", "bob/check"):
            await ended(node, ref)

        _, listed = await asking.ask(0, "GET", "/dataset/v1alpha1/datasets")
        of_each = [("hers", "alice"), ("his", "bob"), ("theirs", None)]
        owners = {each["headers"]["name"]: each["headers"]["account"]["name"] for each in listed["items"]}
        assert owners == {name: account or "node" for name, account in of_each}
        assert sorted(((each.target, each.account) for each in await flows(node)), key=str) == of_each
        assert sorted((each.target, each.account) for each in await tasks(node) if each.account) == of_each[:2]
        # Each calls its own by the name, and the owner of the node by account and name.
        _, one = await asking.ask(BOB, "GET", "/node/v1alpha1/tasks/check")
        assert one["target"] == "his"
        assert (await node.api.tasks.get("alice/check")).target == "hers"
        assert (await asking.ask(NOBODY, "GET", "/node/v1alpha1/tasks/check"))[0] == 404


SERVED = """$schema: Flow
headers: {name: served}
spec:
  serviceAccount: Account:bob
  target: Dataset:theirs
  triggers: [{kind: Interval, interval: 1min}]
  tasks: [{kind: VerifyChain}]
"""


async def test_a_flow_acts_with_the_rights_of_its_service_account(world: World) -> None:
    """Of the node's owner too, whose own rights have no end."""
    granted = GRANT.format(name="g", who="bob", role="editor", what="theirs")
    async with world.running("node", private=True) as node:
        await settled(node)
        await node.apply(SERVED)
        assert (await status(node, "Flow", "served"))["code"] == NOT_GRANTED
        for word, is_there in ((granted, True), (REVOKED, False), (granted, True)):
            await node.apply(word)
            seen = await status(node, "Flow", "served")
            assert (seen["phase"], seen.get("code") or "") == (("Ready", "") if is_there else ("Failed", NOT_GRANTED))
            assert flows_in_force(node) == (["served"] if is_there else [])


async def test_a_task_and_a_run_act_with_the_rights_of_their_service_account(world: World) -> None:
    run = "$schema: FlowRun\nheaders: {{name: once}}\nspec: {{serviceAccount: {who}, tasks: [{task}]}}\n"
    task = "{kind: VerifyChain, target: theirs}"
    async with world.running("node", private=True) as node:
        await settled(node)
        await node.apply(check("theirs", "{kind: VerifyChain, serviceAccount: bob}"), run.format(who="bob", task=task))
        for kind, name in (("Task", "check"), ("FlowRun", "once")):
            assert (await status(node, kind, name))["code"] == NOT_GRANTED
        await node.apply(GRANT.format(name="g", who="bob", role="editor", what="theirs"))
        assert (await ended(node, "check"))["phase"] == "Ready"


async def test_nobody_acts_with_the_rights_of_another_account(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for who in ("alice", "absent", "node"):
            text = SERVED.replace("Account:bob", who).replace("theirs", "his")
            await asking.apply(BOB, DATASET.format(name="his", more=""))
            with pytest.raises(Fault) as caught:
                await asking.apply(BOB, text)
            faults = getattr(caught.value, "faults", (caught.value,))
            assert "access-account" in {each.rule for each in faults}
        (_, made) = (
            await asking.apply(BOB, DATASET.format(name="his", more=""), SERVED.replace("theirs", "his"))
        ).items
        assert made.action == "created"
        fault = await refused(asking, BOB, SERVED.replace("VerifyChain", "VerifyChain, serviceAccount: bob"))
        assert "RFC-019, Authorization" in fault.hint


# What a thing of an account uses is what that account may read at the time, not what it could when it was applied.


REVOKED = "$schema: Relations\nheaders: {name: g}\nspec: {}\n"


async def status(node: Node, word: str, ref: str) -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await node.api.declarations.get(word, ref)).status
    return found


def flows_in_force(node: Node) -> list[str]:
    return [entry.plan.name for _, entry in node.parts.flows.scheduler.entries() if entry.plan.declared]


async def test_a_flow_ends_with_the_grant_and_begins_again_with_it(world: World) -> None:
    async with world.running("node", private=True) as node:
        await settled(node)
        theirs = node.dataset("theirs")
        granted = GRANT.format(name="g", who="bob", role="editor", what="theirs")
        for word, is_there in ((granted, True), (REVOKED, False), (granted, True)):
            await node.apply(word)
            if is_there:
                await node.apply(FLOW.format(target=theirs))
            seen = await status(node, "Flow", "bob/often")
            assert (seen["phase"], seen.get("code") or "") == (("Ready", "") if is_there else ("Failed", NOT_GRANTED))
            assert flows_in_force(node) == ["often"] * is_there
        assert "theirs" not in seen.get("message", "")
        # To read is not to bring data in.
        await node.apply(granted.replace("editor", "reader"))
        assert (await status(node, "Flow", "bob/often"))["code"] == NOT_GRANTED


async def test_a_run_that_is_due_when_the_grant_is_gone_uses_nothing(world: World, monkeypatch: Any) -> None:
    """Attack T-ACCOUNT-02: going on to use what was revoked: by a flow, a Source, a derived dataset or a webhook that
    was applied before.

    Defence: what is used is judged by the present rights of the account at each use.

    Also before anybody has looked at the flow again.
    """
    async with world.running("node", private=True) as node:
        await settled(node)
        await node.apply(GRANT.format(name="g", who="bob", role="editor", what="theirs"))
        await node.apply(FLOW.format(target=node.dataset("theirs")))
        await status(node, "Flow", "bob/often")
        ((key, entry),) = node.parts.flows.scheduler.entries()
        firing, performed = Firing(key, entry.plan, entry.record, ()), list[Any]()

        async def perform(*said: Any) -> Any:
            performed.append(said)
            raise Refused("nothing is performed here", rule="test")

        monkeypatch.setattr(node.parts.flows, "perform", perform)
        monkeypatch.setattr(node.parts.flows.scheduler, "finish", lambda *said, **_: performed.append(said[1:3]))
        await node.parts.flows._run(firing)
        assert (len(performed), performed[-1][0]) == (2, Outcome.REFUSED)
        await node.apply(REVOKED)
        await node.parts.flows._run(firing)
        assert (len(performed), performed[-1][0]) == (3, Outcome.BLOCKED), "nothing more was performed"
        assert "bob" in performed[-1][1]


async def test_a_flow_of_many_datasets_is_for_those_of_its_account(world: World) -> None:
    async with world.running("node", private=True) as node:
        await settled(node)
        await node.apply(DATASET.format(name="his", more=", account: bob"))
        await node.apply(FLOW.format(target="'%'").replace("Dataset:'%'", "'Dataset:%'"))
        await status(node, "Flow", "bob/often")

        def targets() -> set[Any]:
            return {entry.plan.target for _, entry in node.parts.flows.scheduler.entries() if entry.plan.declared}

        his, hers = (node.home.resolve(each).id for each in ("bob/his", "alice/hers"))
        assert targets() == {his}
        await node.apply(GRANT.format(name="g", who="bob", role="editor", what="alice/hers"))
        await status(node, "Flow", "bob/often")
        await node.parts.flows.look([hers])
        assert targets() == {his, hers}


async def test_a_source_reads_no_set_that_its_account_may_not_read_any_more(world: World) -> None:
    source = """$schema: Source
headers: {name: feed}
spec:
  config: {k: "VariableSet:%s#key"}
  ingress: {kind: RestEndpoint, signature: {kind: StandardWebhooks, secret: "${{ config.k }}"}}
  read: {kind: NdJson}
"""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply("$schema: VariableSet\nheaders: {name: db}\nspec: {variables: {key: v}}\n")
        granted = GRANT.format(name="g", who="bob", role="reader", what="db").replace("Dataset:", "VariableSet:")
        await node.apply(granted)
        held = (await node.api.declarations.get("VariableSet", "db")).id
        (made,) = (await asking.apply(BOB, source % held)).items
        reader = SourceReader(node.home)
        assert reader.open(made.id).values == {"k": "v"}
        await node.apply(REVOKED)
        with pytest.raises(Fault) as refused:
            reader.open(made.id)
        assert refused.value.rule == NOT_GRANTED
        assert (await status(node, "Source", "bob/feed"))["code"] == NOT_GRANTED
        await node.apply(granted)
        assert reader.open(made.id).values == {"k": "v"}
        assert (await status(node, "Source", "bob/feed")).get("code", "") != NOT_GRANTED


async def test_a_derivative_tells_that_its_account_may_not_read_an_input(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        granted = GRANT.format(name="g", who="alice", role="reader", what="theirs")
        await node.apply(granted)
        await asking.apply(ALICE, MINE % node.dataset("theirs"))
        for word, code in ((REVOKED, NOT_GRANTED), (granted, ""), (REVOKED, NOT_GRANTED)):
            await node.apply(word)
            assert (await status(node, "Dataset", "alice/mine")).get("code", "") == code
        # What is published anybody may read.
        await node.publish("theirs")
        assert (await status(node, "Dataset", "alice/mine")).get("code", "") == ""


async def told(receiver: Receiver, events: list[str]) -> None:
    await became(lambda: len(receiver.calls) >= len(events))
    assert receiver.events() == events


async def test_a_webhook_of_an_account_is_called_for_what_the_account_may_read(world: World) -> None:
    with serving(Receiver()) as receiver:
        async with world.running("node", private=True, **INSIDE) as node:
            await settled(node)
            await node.apply(SECRET.replace("name: hooks", "name: hooks, account: bob"))
            await node.apply(target(receiver).replace("name: hook,", "name: hook, account: bob,"))
            assert (await status(node, "WebhookTarget", "bob/hook"))["phase"] == "Ready"
            await node.apply(dataset("secret"), dataset("his").replace("name: his", "name: his, account: bob"))
            await told(receiver, ["created his"])
            granted = GRANT.format(name="g", who="bob", role="reader", what="secret")
            await node.apply(granted)
            await told(receiver, ["created his", "created secret"])
            await node.apply(REVOKED)
            await status(node, "WebhookTarget", "bob/hook")
            await node.apply(dataset("secret", "moved"))
            await node.apply(dataset("his", "moved").replace("name: his", "name: his, account: bob"))
            await told(receiver, ["created his", "created secret", "ref.updated his"])


async def test_what_is_given_to_another_account_may_no_more_be_used_by_things_of_the_former(world: World) -> None:
    async with world.running("node", private=True) as node:
        await settled(node)
        await node.apply(DATASET.format(name="his", more=", account: bob"))
        await node.apply(FLOW.format(target="his"))
        assert (await status(node, "Flow", "bob/often"))["phase"] == "Ready"
        with node.home.database.read() as connection:
            held = ResourceStore(connection).find_any("Dataset", "his")
        assert held is not None
        await node.apply(DATASET.format(name="his", more=f", id: {held.id}, account: alice"))
        assert (await status(node, "Flow", "bob/often"))["code"] == NOT_GRANTED
        assert flows_in_force(node) == []
