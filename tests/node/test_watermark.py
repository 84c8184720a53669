"""A watermark set by hand: what waits for it goes on, and what is known of the source stays."""

from __future__ import annotations

from typing import Any

import pytest

from chain import instant
from chain.errors import Invalid, Refused
from chain.model.events import AddData
from chain.state import load_state
from odfd.control import wire
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World


async def moved(node: Node, ref: str, time: str, **more: Any) -> wire.PullItem:
    (item,) = (await node.done(node.api.flow.set_watermark(ref, wire.WatermarkRequest(time=time, **more)))).items
    return item


async def test_a_watermark_is_set_by_hand_and_never_goes_back(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull()
        chain = alice.home.chains.chain(alice.dataset("cities"))
        before = load_state(chain)
        item = await moved(alice, "cities", "2024-06-01T00:00:00Z")
        assert (item.outcome, item.blocks, item.records) == ("updated", 1, 0)
        after = load_state(chain)
        assert instant.render(after.watermark) == "2024-06-01T00:00:00Z"
        assert (after.source_state, after.last_offset) == (before.source_state, before.last_offset)
        assert isinstance(chain.block_at(after.sequence_number).event, AddData)
        assert (await moved(alice, "cities", "2024-06-01T00:00:00Z")).outcome == "up-to-date"
        with pytest.raises(Refused, match="does not go back"):
            await moved(alice, "cities", "2024-05-01T00:00:00Z")
        assert (await alice.pull("cities"))[0].outcome == "up-to-date", "the file that was taken is not taken again"
        await alice.pull("towns")
        derived = load_state(alice.home.chains.chain(alice.dataset("towns")))
        assert instant.render(derived.watermark) == "2024-06-01T00:00:00Z"
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok


async def test_a_watermark_of_nonsense_or_far_ahead_is_refused(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull()
        before = alice.size("cities")
        with pytest.raises(Refused, match="ahead of the clock"):
            await moved(alice, "cities", "2099-01-01T00:00:00Z")
        with pytest.raises(Refused, match="whole milliseconds"):
            await moved(alice, "cities", "2024-05-01T00:00:00.0001Z")
        with pytest.raises(Refused, match="root"):
            await moved(alice, "towns", "2024-06-01T00:00:00Z")
        with pytest.raises(Invalid):
            await moved(alice, "cities", "yesterday")
        assert alice.size("cities") == before
        assert (await moved(alice, "cities", "2099-01-01T00:00:00Z", ahead=True)).outcome == "updated"
