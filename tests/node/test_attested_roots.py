"""A root whose captured bytes others have: they decode them again, and sign whether the blocks are what they give."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from chain.errors import Invalid, Refused
from odfd.control import wire
from odfd.store import captures
from odfd.store.ledger.log import Ledger
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT, in_shards
from worlds.node_world import Node, World

LEDGER = "{kind: Ledger, primaryKey: [city]}"


async def filled(world: World, node: Node, shards: int = 1, days: tuple[int, ...] = (1, 2, 3)) -> None:
    root = ROOT.replace("{kind: Append}", LEDGER)
    await node.apply(root if shards == 1 else in_shards(root))
    await node.keep_raw("cities")
    await more(world, node, *days)


async def more(world: World, node: Node, *days: int) -> None:
    for day in days:
        world.write("alice", f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,c{day},{day}", "2023-01-01T00:00:00Z,Wels,7")
        await node.pull("cities")


def is_whole(node: Node, name: str) -> bool:
    with node.home.database.read() as connection:
        checked = Ledger(connection).chain(node.dataset(name))
    return bool(checked.data == checked.frontier.size)


async def bind(node: Node) -> wire.RawChainView:
    made: wire.RawChainView = await node.done(node.api.raw.bind("cities"))
    return made


async def attest(node: Node, ref: str = "theirs", chain: str = "bytes") -> wire.RawAttestResult:
    done: wire.RawAttestResult = await node.done(node.api.raw.attest(ref, wire.AttestRawRequest(chain=chain)))
    return done


async def shared(world: World, alice: Node, bob: Node) -> None:
    """Bob mirrors the root and its bytes."""
    await alice.api.visibility.publish(wire.VisibilityRequest(refs=("cities", "cities.raw")))
    for name, called in (("cities", "theirs"), ("cities.raw", "bytes")):
        await world.spread(alice, name)
        await bob.mirror(alice.dataset(name), called)


@pytest.mark.parametrize("shards", [1, 3])
async def test_another_node_attests_a_root(world: World, shards: int) -> None:
    """What Bob signs is seen by whoever has the root, and is no observation of the source."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice, shards)
        assert (await bind(alice)).bound == 3
        await shared(world, alice, bob)
        done = await attest(bob)
        assert (done.ok, done.decoded, done.otherwise, done.later) == (True, 3, 0, 0)
        assert done.signed >= 3
        (seen,) = (await bob.api.trust.show("theirs")).observations
        assert seen.result == "decoded"
        assert (await attest(bob)).signed == 0, "nothing is said twice"
        await alice.heard("observation.heard")
        assert [each.result for each in (await alice.api.trust.show("cities")).observations] == ["decoded"]
        assert (await alice.api.trust.show("cities")).facts.observed.have == 0


async def test_other_rows_than_the_bytes_give_are_told(world: World) -> None:
    """As of a publisher that keeps bytes and publishes other rows."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice)
        with alice.home.database.write() as connection:
            first, second, _ = captures.of(connection, alice.dataset("cities"))
            swapped = msgspec.structs.replace(second.capture, files=first.capture.files)
            captures.keep(connection, alice.dataset("cities"), swapped, second.parts, second.time)
        await bind(alice)
        await shared(world, alice, bob)
        done = await attest(bob)
        assert (done.ok, done.decoded, done.otherwise) == (False, 2, 1)
        assert [each.sequence_number for each in done.differences] == [second.last]


@pytest.mark.parametrize("name", ["..", "/etc/passwd/..", "a" * 4000, "\n", "x/\u202e"])
async def test_names_of_files_lead_nowhere(world: World, name: str) -> None:
    """A stranger wrote them; they tell a format, and no place."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice, days=(1,))
        with alice.home.database.write() as connection:
            (only,) = captures.of(connection, alice.dataset("cities"))
            (file,) = only.capture.files
            named = msgspec.structs.replace(only.capture, files=(msgspec.structs.replace(file, name=name),))
            captures.keep(connection, alice.dataset("cities"), named, only.parts, only.time)
        await bind(alice)
        await shared(world, alice, bob)
        assert (await attest(bob)).decoded == 1


async def test_what_comes_later_is_bound_later(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice, days=(1,))
        assert (await bind(alice)).bound == 1
        assert (await bind(alice)).bound == 0
        await shared(world, alice, bob)
        assert (await attest(bob)).decoded == 1
        await bob.api.mirrors.pause("theirs")
        await more(world, alice, 2)
        view = await bind(alice)
        assert (view.bound, view.total, view.gaps) == (1, 2, 0)
        mirror = bob.parts.scheduler.get(alice.dataset("cities.raw"))
        with trio.fail_after(PATIENCE):
            while bob.size("bytes") < alice.size("cities.raw") or not is_whole(bob, "bytes"):
                await mirror.turned.wait()
        assert (await attest(bob)).later == 1, "what is not here is not judged"


async def test_who_may_attest_what(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        with pytest.raises(Refused, match="not ingested by this node"):
            await bind_of(alice, "towns")
        with pytest.raises(Refused, match="nothing is kept"):
            await bind(alice)
        await alice.keep_raw("cities")
        await more(world, alice, 1)
        await bind(alice)
        with pytest.raises(Refused, match="this node's own"):
            await attest(alice, "cities", "cities.raw")


async def bind_of(node: Node, ref: str) -> Any:
    return await node.done(node.api.raw.bind(ref))


async def test_bytes_of_another_publisher_attest_nothing(world: World) -> None:
    """Else anybody could have validators sign that a root is not what its bytes give."""
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        for node, name, day in ((alice, "alice", 1), (bob, "bob", 2)):
            await node.apply(ROOT)
            await node.keep_raw("cities")
            world.write(name, f"d{day}.csv", f"2024-01-0{day}T00:00:00Z,c{day},{day}")
            await node.pull("cities")
            await bind(node)
            await node.api.visibility.publish(wire.VisibilityRequest(refs=("cities", "cities.raw")))
        await world.spread(alice, "cities")
        await world.spread(bob, "cities.raw")
        await carol.mirror(alice.dataset("cities"), "theirs")
        await carol.mirror(bob.dataset("cities.raw"), "bytes")
        with pytest.raises(Refused, match="does not name"):
            await attest(carol)
        with pytest.raises(Invalid, match="is no dataset of captures"):
            await attest(carol, "theirs", "theirs")


async def test_a_mended_rendition_is_attested_from_the_same_bytes(world: World) -> None:
    """The bindings are those of all renditions: of the one that was decoded wrongly, and of the one that mends it."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await filled(world, alice)
        await bind(alice)
        await alice.apply(ROOT)  # it appends, where a ledger has lost rows
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest()))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
        await more(world, alice, 4)
        assert (await bind(alice)).bound == 1
        await alice.api.visibility.publish(wire.VisibilityRequest(refs=("cities.r0",)))
        await shared(world, alice, bob)
        await world.spread(alice, "cities.r0")
        await bob.mirror(alice.dataset("cities.r0"), "former")
        now, before = await attest(bob), await attest(bob, "former")
        assert (now.ok, now.decoded, now.later) == (True, 4, 0)
        assert (before.ok, before.decoded, before.later) == (True, 3, 1), "it got nothing since it ended"
