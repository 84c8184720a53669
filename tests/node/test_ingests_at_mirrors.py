"""A dataset of another node takes nothing in here: its owner feeds it."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import Refused
from odfd.control import wire
from worlds.manifests import in_shards
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
      merge: {kind: Ledger, primaryKey: [city]}
"""


async def push(node: Node, *rows: str) -> wire.PullItem:
    async def chunks() -> Any:
        yield "\n".join(["event_time,city,population", *rows, ""]).encode()

    upload = await node.api.flow.stage("some.csv", chunks())
    done = await node.done(node.api.flow.ingest("readings", wire.IngestRequest(uploads=(upload.id,))))
    (item,) = done.items
    return item  # type: ignore[no-any-return]


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_mirror_is_fed_by_its_owner_alone(world: World, shards: int) -> None:
    """Also where the authority of the dataset names this node's key as a writer."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(GATE if shards == 1 else in_shards(GATE))
        await push(alice, "2024-01-01T00:00:00Z,Graz,1")
        draft = await alice.api.authority.draft_authority(
            "readings", wire.AuthorityDraftRequest(action="add-writer", key=bob.key)
        )
        await alice.api.authority.change_authority("readings", wire.AuthorityRequest(payload=draft.payload))
        await alice.publish("readings")
        await world.spread(alice, "readings")
        await bob.mirror(alice.dataset("readings"), "readings")
        size = alice.size("readings")
        with pytest.raises(Refused, match="readings is a mirror: its owner feeds it") as refused:
            await push(bob, "2024-01-01T00:00:00Z,Wels,1")
        assert refused.value.rule == "ingest-owner"
        assert alice.size("readings") == bob.size("readings") == size
        await push(alice, "2024-01-01T00:00:00Z,Linz,1")
        await world.spread(alice, "readings")
        await bob.pull("readings")
        rows = (await bob.api.datasets.tail("readings", 10)).rows
        assert sorted(each[-2] for each in rows) == ["Graz", "Linz"]
