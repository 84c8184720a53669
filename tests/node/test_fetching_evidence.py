"""A bundle of evidence that a peer keeps comes here by one command, whole and checked, or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Environment, Fault, NotFound, Refused, Remote
from chain.multihash import Multihash
from config import model
from odfd.control import wire
from odfd.network import evidence
from odfd.trust.evidence import bundle
from p2p.wire import limits
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, add_to_first

ROWS = "2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,200000"
ATTESTS = model.Policy(publish=model.Publish(attest=True))


@asynccontextmanager
async def accused(world: World) -> AsyncIterator[tuple[Any, Any, str]]:
    """Bob found that Alice lies, Carol heard of it from him and is not of those who keep the evidence."""
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        alice.engine.wrong = partial(add_to_first, "population", 1000)
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        await world.spread(alice, "cities", "towns")
        groups = (model.Group(name="others", keys=(bob.key,)),)
        listens = model.Policy(serve="data", validators=model.Validators(f=0, groups=groups, recheck=False))
        async with world.running("carol", listens) as carol:
            for node in (carol, bob):
                await node.mirror(alice.dataset("cities"), "cities")
                await node.mirror(alice.dataset("towns"), "towns")
            await bob.heard("verdict.mismatch")
            await carol.heard("attestation.heard")
            (known,) = (await carol.api.trust.show("towns")).evidence
            yield bob, carol, known.id


async def fetch(node: Node, name: str) -> wire.EvidenceFetched:
    return await node.done(node.api.trust.fetch_evidence(name))


def nothing_left(node: Node) -> bool:
    folder = node.home.directory
    return not [*(folder / "evidence").iterdir(), *(folder / "partial-evidence").iterdir()]


@pytest.mark.slow
async def test_evidence_that_a_peer_keeps_is_fetched(world: World) -> None:
    async with accused(world) as (bob, carol, name):
        (known,) = (await carol.api.trust.show("towns")).evidence
        assert (known.kind, known.block, known.bundle, known.kept) == ("mismatch", 3, name, False)
        assert known.message == "others computed another answer, 3 times"
        with pytest.raises(NotFound, match="is kept here"):
            await carol.api.trust.evidence(name)
        (carol.home.directory / "partial-evidence" / "left-by-one-that-was-killed").write_bytes(b"x")
        done = await fetch(carol, name)
        here, there = [await node.api.trust.evidence(name) for node in (carol, bob)]
        assert isinstance(here, Path)
        assert here.read_bytes() == there.read_bytes()
        assert (done.id, done.size) == (name, here.stat().st_size)
        assert (await carol.api.trust.show("towns")).evidence[0].kept
        assert not list((carol.home.directory / "partial-evidence").iterdir())
        asked = carol.member.asked
        assert await fetch(carol, name) == done
        assert carol.member.asked == asked, "it is here"


@pytest.mark.slow
async def test_large_objects_come_too(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(evidence, "MAX_PACKED", 600)
    async with accused(world) as (bob, carol, name):
        await fetch(carol, name)
        assert (await carol.api.trust.evidence(name)).read_bytes() == (await bob.api.trust.evidence(name)).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("packed", [0, limits.MAX_PACKED])
async def test_bytes_that_are_not_the_evidence_never_stay(world: World, monkeypatch: Any, packed: int) -> None:
    monkeypatch.setattr(evidence, "MAX_PACKED", packed)
    async with accused(world) as (bob, carol, name):
        bob.member.lies.object = lambda data: data[:-1] + bytes([data[-1] ^ 1])
        with pytest.raises((Remote, Refused)):
            await fetch(carol, name)
        assert nothing_left(carol)


@pytest.mark.slow
async def test_a_hash_of_something_else_is_no_evidence(world: World) -> None:
    """A slice that a peer serves is asked for as if it were evidence."""
    async with accused(world) as (bob, carol, _):
        chain = bob.home.chains.chain(bob.dataset("cities"))
        slices = [getattr(chain.block_at(number).event, "new_data", None) for number in range(bob.size("cities"))]
        name = next(each.physical_hash for each in slices if each is not None)
        with pytest.raises(Fault):
            await fetch(carol, str(name))
        assert nothing_left(carol)


@pytest.mark.slow
async def test_what_nobody_keeps_is_told(world: World) -> None:
    async with accused(world) as (_, carol, name):
        with pytest.raises(NotFound, match="no connected peer keeps"):
            await fetch(carol, str(Multihash.sha3_256(b"nothing")))
        with pytest.raises(NotFound, match="not the id"):
            await fetch(carol, "f1620dead")
        carol.member._wires.cut.add(carol.member.peer_id)
        with pytest.raises(NotFound, match="no connected peer keeps"):
            await fetch(carol, name)


@pytest.mark.slow
async def test_a_full_disk_begins_nothing(world: World) -> None:
    async with accused(world) as (_, carol, name):
        limits = model.Limits(disk_reserve_bytes=1 << 60)
        carol.parts.in_force.settings.put(dataclasses.replace(carol.parts.settings, limits=limits))
        with pytest.raises(Environment) as caught:
            await fetch(carol, name)
        assert caught.value.rule == "disk-reserve"
        assert nothing_left(carol)


@pytest.mark.slow
async def test_damaged_evidence_never_leaves(world: World) -> None:
    """Spoilt before it was first asked for, and after."""
    async with accused(world) as (bob, carol, name):
        path = await bob.api.trust.evidence(name)
        whole, library = path.read_bytes(), bob.parts.library
        with path.open("rb") as file:
            listed = next(each for each, _ in bundle.BundleReader(file, "").objects())
        at = whole.index(f"objects/{listed.hash}".encode()) + 512
        spoilt = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        path.write_bytes(spoilt)
        assert library.object_size(Multihash.parse(name)) is None
        path.write_bytes(whole)
        assert library.object_size(Multihash.parse(name)) is not None
        path.write_bytes(spoilt)
        assert not bob.home.objects.has(listed.hash), "nobody else gives it"
        with pytest.raises(NotFound):
            library.read_object(listed.hash, 0, listed.size)
        with pytest.raises(NotFound, match="no connected peer keeps"):
            await fetch(carol, name)
        assert nothing_left(carol)


@pytest.mark.slow
async def test_what_does_not_come_in_time_is_given_up(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(evidence, "SECONDS", 0.0)
    async with accused(world) as (_, carol, name):
        with pytest.raises(Remote) as caught:
            await fetch(carol, name)
        assert caught.value.rule == "evidence-time"
        assert nothing_left(carol)
