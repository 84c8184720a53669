"""A resource is Ready if what it declares works: datasets whose transforms fail, flows whose targets take no pull."""

from __future__ import annotations

from typing import Any

import trio

from chain.errors import Environment
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

PUSHED = """$schema: Dataset
headers: {name: pushed}
spec: {kind: Root, metadata: [{kind: AddPushSource, sourceName: a, read: {kind: NdJson}, merge: {kind: Append}}]}
"""
DATASET = "$schema: Dataset\nheaders: {{name: {name}}}\nspec: {{kind: Root, metadata: []}}\n"
SOURCE = """$schema: Source
headers: {name: files}
spec: {ingress: {kind: FilesGlob, path: /nowhere/*.csv}, read: {kind: NdJson}, merge: {kind: Append}}
"""
OFTEN = """$schema: Flow
headers: {name: often}
spec: {target: pushed, triggers: [{kind: Interval, interval: 1h}], tasks: [{kind: Ingest, source: files}]}
"""


async def status(node: Node, word: str, name: str) -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await node.api.declarations.get(word, name)).status
    return found


async def test_a_derivative_whose_transform_fails_says_so_until_it_works(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
        alice.engine.fault = Environment("the engine has no room", rule="engine-room")
        await alice.pull("cities")
        (item,) = await alice.pull("towns")
        assert item.outcome == "failed"
        told = await status(alice, "Dataset", "towns")
        assert (told["phase"], told["code"]) == ("Failed", "engine-room")
        view = await alice.dataset_view("towns")
        assert (view.state, "Failing" in view.conditions) == ("stale", True)
        assert (await status(alice, "Dataset", "cities"))["phase"] == "Ready"
    async with world.running("alice") as alice:
        assert (await status(alice, "Dataset", "towns"))["phase"] == "Failed", "over a restart too"
        alice.engine.fault = None
        (item,) = await alice.pull("towns")
        assert item.outcome == "updated"
        assert (await status(alice, "Dataset", "towns"))["phase"] == "Ready"
        view = await alice.dataset_view("towns")
        assert (view.state, view.conditions) == ("fresh", ())


async def test_a_flow_that_ingests_into_what_takes_no_pull_is_failed_before_its_first_run(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SOURCE, PUSHED, OFTEN)
        told = await status(alice, "Flow", "often")
        assert (told["phase"], told["code"]) == ("Failed", "flow-target"), told
        assert "takes no pull" in told["message"]
        assert "odfctl ingest pushed" in told["hint"]
        await alice.apply(DATASET.format(name="bare"), OFTEN.replace("pushed", "bare"))
        assert (await status(alice, "Flow", "often"))["phase"] == "Ready"
