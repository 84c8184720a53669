"""The examples of RFC-019, of its repository and of its text, and those of RFC-018, on one running node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from node.test_rfc_examples import ACCOUNT, GROUPS, examples

from chain.errors import Fault, Invalid, Refused
from worlds.accounts_world import BOB, DATASET, settled
from worlds.eventually import PATIENCE
from worlds.node_world import Node, World

GOLDEN = Path(__file__).parents[1] / "golden" / "rfc019"
TEXT = """$schema: https://opendatafabric.org/schemas/flows/v1alpha1/Flow
headers:
  name: compact-and-gc-roots
spec:
  target:
    type: Dataset
    account: sergiimk
    name: '%'
    labels:
      datasetKind: Root
  triggers:
    - kind: Event
      events:
        type: dataset.ref.updated
      cooldown: 10min
  tasks:
    - kind: Compaction
      maxSliceSize: 100MiB
      maxSliceRecords: 10000
      onNoOp: Break
      onFailure: Fail
    - kind: GarbageCollection
  retryPolicy:
    maxAttempts: 3
    minDelay: 1min
    backoff: Exponential
  recentBindingsRetention:
    maxBindings: 10
  recentRunsRetention:
    maxRuns: 100
    maxAge: 30d
"""
"""The Flow of the text, with the pattern in quotes, without which it is no YAML."""
THEIRS = """$schema: Dataset
headers: {name: bar, account: sergiimk}
spec: {kind: Root, metadata: []}
---
$schema: Dataset
headers: {name: foo, account: sergiimk}
spec:
  kind: Derivative
  metadata:
  - kind: SetTransform
    inputs: [{datasetRef: bar, alias: bar}]
    transform: {kind: Sql, engine: spark, query: select * from bar}
"""


WANTED = {"update-all-deriv", "compact-all-roots", "compact-and-gc-roots", "flow-run-123456", "task-123456"}
OUTSIDE = ("PersistentVolume ", "Source ", "WebhookTarget ", "Flow sensor.temp.http", "FlowRun sensor.temp.http-")
"""What waits for a bucket, values, an engine or a server that a test does not have; and a Flow that two examples
declare, of which a run of one may look for what the other no longer names."""


async def phases(node: Node) -> dict[str, str]:
    found = await node.api.declarations.list(None, None)
    return {f"{each.type} {each.name}": str(each.status["phase"]) for each in found}


async def test_the_examples_of_both_rfcs_end_ready_on_one_node(world: World) -> None:
    texts = [path.read_text() for path in sorted(GOLDEN.glob("*.yaml"))]
    async with world.running("alice") as alice:
        await alice.apply(ACCOUNT, THEIRS)
        for group in GROUPS:
            await alice.apply(*examples(group))
        done = await alice.apply(*texts, TEXT)
        assert {each.action for each in done.items} <= {"created", "unchanged"}
        assert {each.name for each in done.items} == WANTED
        with trio.fail_after(PATIENCE):
            while True:
                grown = alice.parts.context.events.grown
                found = {key: phase for key, phase in (await phases(alice)).items() if not key.startswith(OUTSIDE)}
                if set(found.values()) == {"Ready"}:
                    break
                await grown.wait()
        run = await alice.api.declarations.get("FlowRun", "flow-run-123456")
        assert [each["kind"] for each in run.spec["tasks"]] == ["Transform", "GarbageCollection"]
        ran = {each.kind for each in alice.board.list() if not each.is_declared}
        assert {"pull", "gc"} <= ran


RUN = """$schema: FlowRun
headers: {{name: once{more}}}
spec:
  target: {target}
  tasks: [{tasks}]
"""


def run(tasks: str, target: str = "raw", more: str = "") -> str:
    return RUN.format(tasks=tasks, target=target, more=more)


RAW = "$schema: Dataset\nheaders: {name: raw}\nspec: {kind: Root, metadata: []}\n"


async def ended(node: Node, name: str = "once") -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        while True:
            grown = node.parts.context.events.grown
            found: dict[str, Any] = (await node.api.declarations.get("FlowRun", name)).status
            if found["phase"] in ("Ready", "Failed"):
                return found
            await grown.wait()


async def test_a_run_is_done_once_and_its_tasks_in_order(world: World) -> None:
    text = run("{kind: VerifyChain}, {kind: Ext, $schema: Verify, name: all}")
    async with world.running("alice") as alice:
        (_, item) = (await alice.apply(RAW, text)).items
        assert item.warnings == ("spec.tasks[1]: kind: Ext, $schema: Verify is read as kind: Verify",)
        assert (await ended(alice))["phase"] == "Ready"
        verified = [each.kind for each in alice.board.list() if each.kind == "verify"]
        assert len(verified) == 2
        assert [each.action for each in (await alice.apply(text)).items] == ["unchanged"]
        with pytest.raises(Refused) as refused:
            await alice.apply(run("{kind: Verify}"))
        assert refused.value.rule == "immutable"
    async with world.running("alice") as alice:
        await alice.parts.reconciler.wait_settled()
        assert (await ended(alice))["phase"] == "Ready"
        assert [each.kind for each in alice.board.list() if each.kind in ("run", "verify")] == []


@pytest.mark.parametrize(
    ("tasks", "phase"),
    [
        ("{kind: Transform}, {kind: Verify}", "Failed"),
        ("{kind: Transform, onFailure: Continue}, {kind: Verify}", "Ready"),
        ("{kind: Verify}, {kind: Verify, target: absent}", "Failed"),
    ],
)
async def test_a_run_fails_with_the_first_task_that_does(world: World, tasks: str, phase: str) -> None:
    async with world.running("alice") as alice:
        await alice.apply(RAW, run(tasks))
        found = await ended(alice)
        assert found["phase"] == phase
        waits = "absent" in tasks
        assert phase == "Ready" or found["code"] == ("unresolved-reference" if waits else "flow-run")
        if waits:
            await alice.apply(RAW.replace("raw", "absent"))
            await alice.parts.reconciler.wait_settled()
            assert (await ended(alice))["phase"] == "Ready"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (run(""), "flow-tasks"),
        (run("{kind: Verify}").replace("  target: raw\n", ""), "task-target"),
        (run("{kind: Dance}"), "unknown-kind"),
    ],
)
async def test_a_run_that_makes_no_sense_is_refused(world: World, text: str, rule: str) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Invalid) as refused:
            await alice.apply(RAW, text)
        assert refused.value.rule == rule
        assert await alice.api.declarations.list(None, None) == []


async def test_a_run_of_an_account_does_what_the_account_may(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        with pytest.raises(Fault) as refused:
            await asking.apply(BOB, run("{kind: Verify}", "theirs"))
        assert "theirs" in refused.value.message
        with pytest.raises(Fault) as refused:
            await asking.apply(BOB, run("{kind: GarbageCollection}").replace("  target: raw\n", ""))
        assert refused.value.rule == "access-owner"
        await asking.apply(BOB, DATASET.format(name="his", more=""), run("{kind: VerifyChain}", "his"))
        assert (await ended(node, "bob/once"))["phase"] == "Ready"
