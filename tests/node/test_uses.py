"""What a thing of an account uses is what that account may read at the time, not what it could when it was applied."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from node.test_webhooks import INSIDE, SECRET, Receiver, dataset, serving, target

from chain.errors import Fault, Refused
from odfd.access.uses import NOT_GRANTED
from odfd.flows.plan import Outcome
from odfd.flows.scheduler import Firing
from odfd.resources.store import ResourceStore
from odfd.services.ingest.sources import SourceReader
from worlds.accounts_world import ALICE, BOB, DATASET, GRANT, settled
from worlds.eventually import PATIENCE, became
from worlds.node_world import Node, World

REVOKED = "$schema: Relations\nheaders: {name: g}\nspec: {}\n"
FLOW = """$schema: Flow
headers: {{name: often, account: bob}}
spec:
  target: Dataset:{target}
  triggers: [{{kind: Interval, interval: 1min}}]
"""


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
    """Also before anybody has looked at the flow again."""
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
    derived = """$schema: Dataset
headers: {name: mine}
spec:
  kind: Derivative
  metadata:
  - kind: SetTransform
    inputs: [{datasetRef: "%s", alias: a}]
    transform: {kind: Sql, engine: spark, query: select * from a}
"""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        granted = GRANT.format(name="g", who="alice", role="reader", what="theirs")
        await node.apply(granted)
        await asking.apply(ALICE, derived % node.dataset("theirs"))
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
