"""Files pushed into a whole node: exactly once over lost answers, restarts, resets and compactions."""

from __future__ import annotations

from typing import Any

import pytest

from odfd.control import wire
from worlds.node_world import Node, World

GATE = """kind: DatasetSnapshot
version: 1
content:
  name: readings
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: gate
      read: {kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']}
      merge: {kind: Append}
"""
ROWS = b"event_time,city,population\n2024-01-01T00:00:00Z,Graz,1\n"


async def push(node: Node, name: str, data: bytes = ROWS, **terms: Any) -> wire.PullItem:
    async def chunks() -> Any:
        yield data

    upload = await node.api.flow.stage(name, chunks())
    request = wire.IngestRequest(uploads=(upload.id,), **terms)
    (item,) = (await node.done(node.api.flow.ingest("readings", request))).items
    return item


async def test_once_over_restarts_and_told_as_the_first_time(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        first = await push(alice, "a.csv")
        assert (first.outcome, first.records, first.message) == ("updated", 1, "")
    async with world.running("alice") as alice:
        again = await push(alice, "a.csv")
        assert (again.outcome, again.blocks, again.records) == ("up-to-date", 0, 0), "what happened now"
        assert (again.head, again.rows) == (first.head, first.rows), "and what did when it was pushed"
        told = "pushed before, as 2 blocks with 1 record, and nothing was appended now"
        assert again.message == f"{told}; --again appends it once more"
        assert alice.size("readings") == 4
        assert alice.kinds().count("dataset.appended") == 0
        assert (await push(alice, "a.csv", again=True)).head != first.head
        assert alice.size("readings") == 5


async def test_a_push_goes_with_the_blocks_that_a_reset_gives_up(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        await push(alice, "a.csv", id="one")
        await push(alice, "b.csv", id="two")
        size = alice.size("readings")
        await alice.done(
            alice.api.rewriting.rewrite("readings", wire.RewriteRequest(action="reset", to=f"#{size - 2}"))
        )
        assert "pushed before" in (await push(alice, "a.csv", id="one")).message
        assert (await push(alice, "b.csv", id="two")).message == ""
        assert alice.size("readings") == size


@pytest.mark.slow
async def test_a_push_is_known_in_a_compacted_history(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        for name in "abcd":
            await push(alice, f"{name}.csv")
        await alice.done(alice.api.rewriting.rewrite("readings", wire.RewriteRequest(action="compact")))
        size = alice.size("readings")
        for name in "abcd":
            assert "pushed before" in (await push(alice, f"{name}.csv")).message
        assert alice.size("readings") == size


async def test_a_dataset_made_anew_under_its_name_knows_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        await push(alice, "a.csv")
        await alice.api.declarations.delete("Dataset", "readings")
        await alice.apply(GATE)
        assert (await push(alice, "a.csv")).message == ""
