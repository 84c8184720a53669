"""What became of rows, as people are told it: at once, in the log and the description, over restarts and rewrites."""

from __future__ import annotations

from typing import Any

from odfd.control import wire
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World


def ledger(manifest: str) -> str:
    return manifest.replace("merge: {kind: Append}", "merge: {kind: Ledger, primaryKey: [event_time, city]}")


async def begun(world: World, node: Node) -> wire.PullItem:
    """Three rows, then a file of which one is new, one known, one in contradiction."""
    world.write("alice", "a.csv", *(f"2024-01-0{day}T00:00:00Z,c{day},{day}" for day in (1, 2, 3)))
    await node.apply(ledger(ROOT), DERIVED)
    await node.pull()
    rows = ("2024-01-01T00:00:00Z,c1,1", "2024-01-02T00:00:00Z,c2,99", "2024-01-01T12:00:00Z,c9,9")
    world.write("alice", "b.csv", *rows)
    (item,) = await node.pull("cities")
    return item


def told(rows: wire.RowCounts | None) -> dict[str, Any]:
    """What is not zero; ``None`` too, for it is not zero."""
    assert rows is not None
    return {name: value for name in rows.__struct_fields__ if (value := getattr(rows, name)) not in (0, ())}


SECOND = {"read": 3, "shaped": 3, "appended": 1, "unchanged": 1, "conflicting": 1, "late": 1}
BOTH = {"read": 6, "shaped": 6, "appended": 4, "unchanged": 1, "conflicting": 1, "late": 1}


async def test_a_pull_its_log_and_the_description_tell_of_all_rows_over_a_restart(world: World) -> None:
    async with world.running("alice") as alice:
        assert told((await begun(world, alice)).rows) == SECOND
    async with world.running("alice") as alice:
        blocks = await alice.api.datasets.log("cities", [], 10, None, None)
        assert [told(block.rows) for block in blocks if block.event == "AddData"] == [SECOND, {
            "read": 3, "shaped": 3, "appended": 3}]  # fmt: skip
        assert all(block.rows is None for block in blocks if block.event not in ("AddData", "ExecuteTransform"))
        found = (await alice.api.datasets.describe("cities")).rows
        assert found is not None
        assert (told(found.rows), found.transactions, told(found.last)) == (BOTH, 2, SECOND)
        (item,) = await alice.pull("towns")
        assert told(item.rows) == {"read": 1, "shaped": 1, "appended": 1}
        assert told((await alice.api.datasets.describe("towns")).rows.rows)["read"] == 4


async def test_counts_go_with_their_blocks(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        request = wire.RewriteRequest(action="compact")
        done = await alice.done(alice.api.rewriting.rewrite("cities", request))
        assert done.outcome == "rewritten"
        merged, *_ = await alice.api.datasets.log("cities", ["AddData"], 10, None, None)
        assert told(merged.rows) == BOTH
        back = wire.RewriteRequest(action="reset", to=f"#{merged.sequence_number - 1}")
        await alice.done(alice.api.rewriting.rewrite("cities", back))
        assert (await alice.api.datasets.describe("cities")).rows is None


async def test_a_mirror_counts_nothing_and_says_so(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await begun(world, alice)
        await bob.mirror(alice.dataset("cities"), "cities")
        (item,) = await bob.pull("cities")
        assert item.rows is None
        assert (await bob.api.datasets.describe("cities")).rows is None
        assert all(block.rows is None for block in await bob.api.datasets.log("cities", [], 10, None, None))
