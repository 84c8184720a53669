"""Sources as resources: datasets take from them by flows and pulls, and their chains never hold them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from chain.errors import Fault, Invalid
from chain.instant import SECOND
from chain.model.events import AddData
from chain.state import load_state
from chain.walk import newest_first
from odfd.control import wire
from odfd.services.ingest.sources import SourceReader
from worlds.eventually import PATIENCE
from worlds.flow_world import flow_of
from worlds.node_world import Node, World

DATASET = "$schema: Dataset\nheaders: {{name: {name}}}\nspec: {{kind: Root, metadata: []}}\n"
SOURCE = """$schema: Source
headers: {{name: {name}}}
spec:
  config: {{folder: "SecretSet:places#folder"}}
  ingress: {{kind: FilesGlob, path: "{folder}/*.csv", order: ByName}}
  read: {{kind: Csv, header: true, ddlSchema: ["event_time TIMESTAMP, city STRING, population BIGINT"]}}
  merge: {{kind: Ledger, primaryKey: [event_time, city]}}
"""
SECRET = "$schema: SecretSet\nheaders: {name: places}\nspec: {secrets: {folder: nowhere}}\n"
FLOW = """$schema: Flow
headers: {{name: often}}
spec:
  target: Dataset:{target}
  triggers: [{{kind: Interval, interval: 1min}}]
  tasks: [{{kind: Ingest, source: {source}}}]
"""


def source(world: World, name: str = "cities") -> str:
    return SOURCE.format(name=name, folder=world.folder / "alice" / "source")


async def status(node: Node, name: str = "cities") -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await node.api.declarations.get("source", name)).status
    return found


async def test_datasets_take_from_a_source_that_is_in_no_chain(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world), DATASET.format(name="one"), DATASET.format(name="two"))
        assert (await status(alice))["phase"] == "Ready"
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        for name in ("one", "two"):
            (item,) = await alice.pull(name, source="cities")
            assert (item.outcome, item.rows.read if item.rows else 0) == ("updated", 1), item
        world.write("alice", "2.csv", "2024-01-02T00:00:00Z,Linz,2")
        (item,) = await alice.pull("one", source="cities")
        assert item.outcome == "updated"
        (item,) = await alice.pull("one", source="cities")
        assert item.outcome == "up-to-date"
        state = load_state(alice.home.chains.chain(alice.dataset("one")))
        assert state.polling_source is None
        assert state.source_state is not None
        assert state.source_state.source_name == "cities"
        added = list(
            newest_first(alice.home.chains.chain(alice.dataset("two")), (AddData.__name__,), alice.size("two"))
        )
        assert len(added) == 1, "each dataset has gone as far as it has"
        verified = await alice.done(alice.api.verification.verify("one", wire.VerifyRequest(level="data")))
        assert verified.ok


async def test_a_flow_takes_from_a_source_and_follows_its_name(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world), DATASET.format(name="one"), FLOW.format(target="one", source="cities"))
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        alice.clock.instant += 60 * SECOND
        alice.parts.flows.loop.poke()
        with trio.fail_after(PATIENCE):
            while (seen := await flow_of(alice, "often")).runs < 1:
                await alice.parts.flows.turned.wait()
        assert (seen.outcome, seen.failures) == ("Success", 0), seen.message
        await alice.api.declarations.delete("source", "cities")
        alice.clock.instant += 60 * SECOND
        alice.parts.flows.loop.poke()
        with trio.fail_after(PATIENCE):
            while (seen := await flow_of(alice, "often")).runs < 2:
                await alice.parts.flows.turned.wait()
        assert (seen.outcome, "no Source" in seen.message) == ("Failed", True), seen.message


async def test_a_source_reads_its_own_values_in_its_url(world: World) -> None:
    url = source(world).replace("kind: FilesGlob, path", "kind: Url, url").replace(", order: ByName", "")
    at = url.index("url: ") + len("url: ")
    url = url[:at] + '"https://example.org/${{ config.folder }}.csv"' + url[url.index("}\n  read") :]
    async with world.running("alice") as alice:
        await alice.apply(SECRET, url)
        assert (await status(alice))["phase"] == "Ready"


async def test_one_dataset_has_one_source(world: World) -> None:
    own = DATASET.format(name="own").replace("[]", "[{kind: AddPushSource, sourceName: a, read: {kind: NdJson}, "
                                             "merge: {kind: Append}}]")  # fmt: skip
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world), source(world, "others"), DATASET.format(name="one"), own)
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull("one", source="cities")
        for name in ("one", "own"):
            (item,) = await alice.pull(name, source="others")
            assert (item.outcome, item.fault.rule) == ("failed", "second-source")


async def test_a_renamed_source_goes_on_and_another_of_its_name_is_refused(world: World) -> None:
    """Also after a kill before anything is committed, a handover, and under the reused name, at once or later."""

    async def pull(node: Node, name: str) -> str:
        (item,) = await node.pull("one", source=name)
        return str(item.fault.rule if item.fault else item.outcome)

    async def rows(node: Node) -> int:
        return int((await node.dataset_view("one")).records)

    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world), DATASET.format(name="one"))
        given, _ = SourceReader(alice.home).open_given("cities", alice.dataset("one"))
        SourceReader(alice.home).bind(given)  # and it is killed before it commits: nothing holds it to this Source
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.apply(source(world, "others"))
        assert await pull(alice, "others") == "updated"
        assert await pull(alice, "cities") == "second-source"
        first = await alice.api.declarations.get("source", "others")
        renamed = source(world, "towns").replace("headers: {", f"headers: {{id: {first.id}, ")
        await alice.apply(renamed, source(world, "others"))  # in one batch
        world.write("alice", "2.csv", "2024-01-02T00:00:00Z,Linz,2")
        (item,) = await alice.pull("one", source="others")
        assert item.fault.rule == "second-source"
        assert "takes its records from the Source towns, and not from the Source others" in item.message
        assert await pull(alice, "towns") == "updated"
        assert await rows(alice) == 2
        state = load_state(alice.home.chains.chain(alice.dataset("one"))).source_state
        assert state is not None
        assert state.source_name == "others", "what the chain began with"
    async with world.running("alice") as alice:
        await alice.done(alice.api.renditions.create("one", wire.RenditionRequest(origin="snapshot")))
        await alice.done(alice.api.renditions.hand_over("one", 1, wire.HandoverRequest(id="over")))
        await alice.apply(source(world, "places").replace("headers: {", f"headers: {{id: {first.id}, "))
        world.write("alice", "3.csv", "2024-01-03T00:00:00Z,Wels,3")
        assert await pull(alice, "others") == "second-source"
        assert await pull(alice, "places") == "updated"
        assert await pull(alice, "places") == "up-to-date"
        assert await rows(alice) == 3
        await alice.api.declarations.delete("source", "places")
        assert await pull(alice, "others") == "up-to-date", "what was meant is gone, and this has its name"
        assert await rows(alice) == 3


async def test_r29_values_that_are_not_here_are_told_and_come_by_themselves(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(source(world))
        told = await status(alice)
        assert (told["phase"], told["code"]) == ("Failed", "unresolved-reference")
        await alice.apply(SECRET)
        assert (await status(alice))["phase"] == "Ready"


async def test_a_value_that_its_set_lacked_is_looked_for_when_the_set_changes(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(SECRET.replace("folder:", "other:"), source(world))
        assert (await status(alice))["code"] == "unresolved-reference"
        await alice.apply(SECRET)
        assert (await status(alice))["phase"] == "Ready"


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("/*.csv", "/${{ env.HOME }}.csv", "source-variable"),
        ("/*.csv", "/${{ config.other }}.csv", "source-variable"),
        ("SecretSet:places#folder", "places", "reference-type"),
        ("SecretSet:places#folder", "SecretSet:places", "source-config"),
        ("kind: FilesGlob, path", "kind: RestEndpoint, path", "unknown-field"),
    ],
)
async def test_what_a_source_may_not_say_is_refused_at_its_line(
    world: World, before: str, after: str, rule: str
) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Invalid) as refused:
            await alice.apply(source(world).replace(before, after))
        assert refused.value.rule == rule
        assert refused.value.hint


async def test_a_source_that_the_settings_refuse_is_told_by_its_status(world: World) -> None:
    async with world.running("alice") as alice:
        piped = source(world).replace("  read:", "  prepare: [{kind: Pipe, command: []}]\n  read:")
        await alice.apply(SECRET, piped, DATASET.format(name="one"))
        assert (await status(alice))["code"] == "prepare-pipe"
        (item,) = await alice.pull("one", source="cities")
        assert item.outcome == "failed"
        with pytest.raises(Fault) as refused:
            await alice.pull("one", "two", source="cities")
        assert refused.value.rule == "pull-source"


async def test_r28_r30_a_source_never_reads_another_set_that_took_the_name_of_its_own(world: World) -> None:
    """The other secret would leave the node in a request that was written for the first."""
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world))
        made = await alice.api.declarations.get("secretset", "places")
        renamed = SECRET.replace("{name: places}", f"{{name: towns, id: {made.id}}}")
        await alice.apply(renamed, SECRET.replace("nowhere", "of another"))
        opened = await trio.to_thread.run_sync(SourceReader(alice.home).open, "cities")
        assert opened.values == {"folder": "nowhere"}
        await alice.api.declarations.delete("secretset", "towns")
        told = await status(alice)
        assert (told["phase"], told["code"]) == ("Failed", "unresolved-reference"), "the set that was meant is gone"


async def test_r24_references_are_written_as_objects_too(world: World) -> None:
    long = "{type: 'https://opendatafabric.org/schemas/config/v1alpha1/SecretSet', name: places, path: folder}"
    async with world.running("alice") as alice:
        await alice.apply(SECRET, source(world).replace('"SecretSet:places#folder"', long))
        assert (await status(alice))["phase"] == "Ready"
        shown = await alice.api.declarations.get("source", "cities")
        assert shown.spec["config"] == {"folder": "SecretSet:places#folder"}
        with pytest.raises(Invalid, match="no reference"):
            await alice.apply(source(world).replace('"SecretSet:places#folder"', "{name: places}"))
