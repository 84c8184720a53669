"""Repositories on SFTP servers and on IPFS: pushed to by one node, pulled from by another, refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain import instant
from chain.errors import Invalid, Remote
from chain.instant import Instant
from odfd.control import wire
from odfd.ipfs.publishing import LIFETIME, RENEW, repository_folder
from odfd.resources.controller import ObservedState
from odfd.resources.store import ResourceStore
from odfd.services.transfer.repository_controller import RepositoryController
from odfd.verify import objects
from p2p.ipfs import record
from worlds.manifests import ROOT
from worlds.memory_ipfs import MemoryIpfs, Swarm
from worlds.node_world import Node, World
from worlds.sftp import PASSWORD, Served, sftp_served

SFTP = """$schema: SecretSet
headers: {name: house-key}
spec: {secrets: {password: "%s"}}
---
$schema: Repository
headers: {name: archive}
spec: {url: "%s", credentials: house-key, hostKey: "%s"}
"""
HOUR = 3600 * instant.SECOND
SHELF = "$schema: Repository\nheaders: {name: shelf}\nspec: {url: '%s'}\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with sftp_served(tmp_path / "there") as running:
        running.folder.mkdir()
        yield running


async def grown(world: World, node: Node, files: int = 1) -> Any:
    for number in range(files):
        world.write("alice", f"{number}.csv", f"2024-01-{number + 1:02}T00:00:00Z,c{number},{number}")
    if not node.home.chains.datasets():
        await node.apply(ROOT)
    await node.pull("cities")
    return node.dataset("cities")


async def pushed(node: Node, ref: str = "cities", **more: Any) -> wire.PushItem:
    (item,) = (await node.done(node.api.pushing.push(wire.PushRequest(refs=(ref,), **more)))).items
    return item


@pytest.mark.slow
async def test_an_sftp_server_is_pushed_to_and_pulled_from(world: World, served: Served) -> None:
    manifest = SFTP % (PASSWORD, served.url("/odf", "reader"), served.host_key)
    async with world.running("alice") as alice, world.running("bob") as bob:
        dataset = await grown(world, alice, 2)
        told = repr(await alice.apply(manifest))
        item = await pushed(alice)
        assert (item.outcome, item.blocks, item.fault) == ("pushed", alice.size("cities"), None)
        assert (await pushed(alice)).outcome == "up-to-date"
        await bob.apply(manifest)
        (come,) = await bob.pull("archive/cities")
        assert (come.ref, come.outcome, come.blocks) == ("cities", "updated", item.blocks), come
        assert bob.dataset("cities") == dataset
        await grown(world, alice, 3)
        more = await pushed(alice)
        assert (more.outcome, more.objects) == ("pushed", 1)
        assert (await bob.pull("archive/cities"))[0].blocks == more.blocks
        assert (await bob.done(bob.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok
        (nothing,) = await bob.pull("archive/nothing")
        assert nothing.fault is not None
        told += repr(item) + repr(nothing) + repr(alice.logger.said) + repr(alice.events.list_kept())
        assert PASSWORD not in told


async def test_an_ipns_name_is_pushed_to_and_pulled_from(world: World) -> None:
    swarm = Swarm()
    async with (
        world.running("alice", ipfs=MemoryIpfs(swarm)) as alice,
        world.running("bob", ipfs=MemoryIpfs(swarm)) as bob,
    ):
        dataset = await grown(world, alice, 2)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        item = await pushed(alice)
        assert (item.outcome, item.blocks, item.fault) == ("pushed", alice.size("cities"), None)
        other = await pushed(alice, to="shelf/towns")
        assert other.outcome == "pushed"
        assert (await pushed(alice, to="shelf")).outcome == "up-to-date"
        await bob.apply(SHELF % f"ipns://{name}")
        (come,) = await bob.pull("shelf/cities")
        assert (come.ref, come.outcome, come.blocks) == ("cities", "updated", item.blocks), come
        assert bob.dataset("cities") == dataset
        await grown(world, alice, 3)
        more = await pushed(alice, to="shelf")
        assert (more.outcome, more.objects) == ("pushed", 1)
        assert (await bob.pull("shelf/cities"))[0].blocks == more.blocks
        root = await alice.parts.remotes._ipfs.root_of(repository_folder(name))
        await bob.apply((SHELF % f"ipfs://{root}").replace("shelf", "still"))
        assert (await bob.pull("still/cities"))[0].outcome == "up-to-date"
        refused = await pushed(bob, to="shelf", private=True)
        assert refused.fault is not None
        assert (refused.fault.rule, "its own name is ipns://" in (refused.fault.hint or "")) == ("ipns-key", True)
        with pytest.raises(Exception, match="never changes"):
            await pushed(bob, to="still", private=True)


async def test_rows_that_come_are_read_once_and_those_that_are_here_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are hashed as they come, and the rows checked then: not again when the chain is taken in."""
    swarm, checked, hashed = Swarm(), [], []
    rows, bytes_ = objects._check_rows, objects._hash
    monkeypatch.setattr(objects, "_check_rows", lambda *given: (checked.append(given[1].slice), rows(*given))[1])
    monkeypatch.setattr(objects, "_hash", lambda *given: (hashed.append(1), bytes_(*given))[1])
    async with (
        world.running("alice", ipfs=MemoryIpfs(swarm)) as alice,
        world.running("bob", ipfs=MemoryIpfs(swarm)) as bob,
    ):
        await grown(world, alice, 2)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        for node in (alice, bob):
            await node.apply(SHELF % f"ipns://{name}")
        await pushed(alice)
        checked.clear()
        hashed.clear()
        await bob.pull("shelf/cities")
        assert (len(checked), len(set(checked)), hashed) == (2, 2, [])
        await grown(world, alice, 3)
        await pushed(alice)
        checked.clear()
        hashed.clear()
        await bob.pull("shelf/cities")
        assert (len(checked), hashed) == (1, [])


async def test_the_record_of_a_repositorys_name_is_signed_again_without_a_push(world: World) -> None:
    ipfs = MemoryIpfs()
    async with world.running("alice", ipfs=ipfs) as alice:
        await grown(world, alice, 2)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        time = [int(alice.clock.now())]
        keeping = RepositoryController(lambda: alice.parts.remotes.own_shelves, lambda: Instant(time[0]))
        with alice.home.database.read() as connection:
            resource = ResourceStore(connection).find_named("Repository", "shelf", None)
        assert await keeping.observe(resource) == ObservedState(), "nothing was pushed"
        assert (await pushed(alice, to="shelf")).outcome == "pushed"

        def pointer() -> Any:
            return record.unseal(ipfs.swarm.records[name], record.dataset_of(name))

        first = pointer()
        ipfs.files[f"{repository_folder(name)}/begun"] = b"by a push that was interrupted"
        time[0] += RENEW - HOUR
        seen = await keeping.observe(resource)
        assert (seen.steps, instant.render(first.expires) in seen.told["NameRecord"].message) == ((), True)
        time[0] += 2 * HOUR
        (step,) = (await keeping.observe(resource)).steps
        await keeping.perform(resource, step)
        second = pointer()
        assert (second.value, second.sequence >= first.sequence) == (first.value, True)
        assert second.expires == time[0] + LIFETIME
        await keeping.perform(resource, step)
        assert pointer() == second, "what is not due is not signed"
        ipfs.swarm.records.clear()
        (step,) = (await keeping.observe(resource)).steps
        await keeping.perform(resource, step)
        assert pointer().expires == second.expires
        ipfs.away = True
        with pytest.raises(Remote):
            await keeping.observe(resource)
        alone = RepositoryController(lambda: None, lambda: Instant(0))
        assert await alone.observe(resource) == ObservedState()


async def test_another_history_under_an_ipns_name_is_told(world: World) -> None:
    ipfs = MemoryIpfs()
    async with world.running("alice", ipfs=ipfs) as alice:
        await grown(world, alice)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        await pushed(alice)
        head = f"{repository_folder(name)}/cities/refs/head"
        before, ipfs.files[head] = ipfs.files[head], b"f1620" + b"0" * 64
        told = await pushed(alice)
        assert told.fault is not None
        assert told.fault.rule == "published-tree"
        ipfs.files[head] = before
        assert (await pushed(alice)).outcome == "up-to-date"


async def test_a_name_points_to_one_place(world: World) -> None:
    """A dataset whose key is offline has the node's own name; a repository would take it away, and the reverse."""
    async with world.running("alice", ipfs=MemoryIpfs()) as alice:
        dataset = await grown(world, alice)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        alice.home.keys.take_offline(dataset)
        await alice.done(alice.api.publications.publish(wire.PublishRequest(ref="cities")))
        told = await pushed(alice)
        assert told.fault is not None
        assert told.fault.rule == "ipns-name-taken"


async def test_without_kubo_and_with_odd_urls_it_is_refused(world: World) -> None:
    async with world.running("alice") as alice:
        await grown(world, alice)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        told = await pushed(alice)
        assert told.fault is not None
        assert told.fault.rule == "ipfs-none"
        for url, why in (
            ("ipns://nobody", "names no key"),
            ("ipfs://nothing", "is no CID"),
            (f"ipns://{name}/below", "a whole repository"),
            ("sftp://reader:s3cr3t@house.example/odf", "neither a password"),
            ("sftp://house.example/odf", "no host, no user, or no path"),
            ("sftp://reader@house.example/odf", "the key of the server is not known"),
        ):
            with pytest.raises(Invalid, match=why) as caught:
                await alice.apply(SHELF.replace("shelf", "odd") % url)
            assert "s3cr3t" not in repr(caught.value)
