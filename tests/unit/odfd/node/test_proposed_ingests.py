"""Ingests at a node that only mirrors a dataset, as a writer of its authority: they go to the owner's commit point."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import NotFound, Remote
from odfd.control import wire
from worlds.manifests import in_shards

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


async def push(node: Any, *rows: str, ref: str = "readings") -> wire.PullItem:
    async def chunks() -> Any:
        yield "\n".join(["event_time,city,population", *rows, ""]).encode()

    upload = await node.api.flow.stage("some.csv", chunks())
    done = await node.done(node.api.flow.ingest(ref, wire.IngestRequest(uploads=(upload.id,))))
    (item,) = done.items
    return item  # type: ignore[no-any-return]


def row(city: str, day: int = 1) -> str:
    return f"2024-01-0{day}T00:00:00Z,{city},{day}"


async def written(world: Any, alice: Any, bob: Any, shards: int) -> None:
    """Alice's dataset, of which Bob has a mirror, and which he may write."""
    await alice.apply(GATE if shards == 1 else in_shards(GATE))
    await push(alice, row("Graz"))
    request = wire.AuthorityDraftRequest(action="add-writer", key=bob.key)
    draft = await alice.api.authority.draft_authority("readings", request)
    await alice.api.authority.change_authority("readings", wire.AuthorityRequest(payload=draft.payload))
    await alice.publish("readings")
    await world.spread(alice, "readings")
    await bob.mirror(alice.dataset("readings"), "readings")


async def cities(node: Any) -> list[str]:
    return sorted(each[-2] for each in (await node.api.datasets.tail("readings", 100)).rows)


@pytest.mark.parametrize("shards", [1, 3])
async def test_what_a_writer_ingests_is_in_both_nodes(world: Any, worlds: Any, shards: int) -> None:
    """Merged with the rows of the owner, signed by the owner, and here again by replication."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await written(world, alice, bob, shards)
        done = await push(bob, row("Linz"), row("Graz", 2), row("Wels"))
        assert (done.outcome, done.records) == ("updated", 2), "the ledger has Graz"
        assert await cities(alice) == await cities(bob) == ["Graz", "Linz", "Wels"]
        assert (
            bob.home.chains.chain(bob.dataset("readings")).head()
            == alice.home.chains.chain(alice.dataset("readings")).head()
        )
        size = alice.size("readings")
        await push(bob, row("Linz"), row("Graz", 2), row("Wels"))
        assert alice.size("readings") == size, "a push counts once"
        await push(alice, row("Enns"))
        assert await cities(alice) == ["Enns", "Graz", "Linz", "Wels"]
        for each in alice.home.shards_of(alice.dataset("readings")):
            assert (await alice.done(alice.api.verification.verify(str(each), wire.VerifyRequest()))).ok


async def test_who_is_behind_plans_again(world: Any, worlds: Any) -> None:
    """The owner's rows that the mirror lacks are merged with, and none is lost or doubled."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await written(world, alice, bob, 1)
        await bob.api.mirrors.pause("readings")
        await push(alice, row("Linz"))
        await bob.api.mirrors.resume("readings")
        done = await push(bob, row("Linz", 3), row("Wels"))
        assert (done.outcome, done.records) == ("updated", 1)
        assert await cities(alice) == await cities(bob) == ["Graz", "Linz", "Wels"]


async def test_a_lost_answer_doubles_nothing(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await written(world, alice, bob, 1)
        bob.member.answers_lost = 1
        assert (await push(bob, row("Wels"))).records == 1
        assert await cities(alice) == await cities(bob) == ["Graz", "Wels"]


async def test_without_the_right_or_the_owner_nothing_is_written(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(GATE)
        await push(alice, row("Graz"))
        await alice.publish("readings")
        await world.spread(alice, "readings")
        await bob.mirror(alice.dataset("readings"), "readings")
        size = alice.size("readings")
        with pytest.raises(NotFound, match="does not hold the key"):
            await push(bob, row("Wels"))
        request = wire.AuthorityDraftRequest(action="add-writer", key=bob.key)
        draft = await alice.api.authority.draft_authority("readings", request)
        await alice.api.authority.change_authority("readings", wire.AuthorityRequest(payload=draft.payload))
        await bob.heard("authority.heard")
        world.wires.cut.add(alice.member.peer_id)
        with pytest.raises(Remote):
            await push(bob, row("Wels"))
        assert alice.size("readings") == bob.size("readings") == size
