"""Deleted datasets whose data is kept: listed, taken back as they were, or deleted for good."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import DAY, SECOND
from odfd.control import wire
from odfd.datasets.local_data import held_from, need_data
from odfd.store import unmanaged
from odfd.store.directory import SEGMENTS
from worlds.manifests import ROOT, text_of
from worlds.node_world import Node, World

ROWS_A = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
ROWS_B = ("2024-01-03T00:00:00Z,Wels,62000",)


async def filled(world: World, alice: Node) -> Any:
    world.write("alice", "a.csv", *ROWS_A)
    await alice.apply(ROOT)
    await alice.pull("cities")
    return await alice.dataset_view("cities")


async def collect(node: Node) -> wire.CollectResult:
    node.home.objects.holds.next_collection()  # what was just added is freed by none
    return await node.done(node.api.collection.collect(wire.CollectRequest()))


def objects(node: Node) -> int:
    return len(list(node.home.objects.names()))


async def test_r55_the_data_of_a_deleted_dataset_is_kept_and_is_adopted_by_its_did(world: World) -> None:
    """With all its rows, its key, and what goes on from them; as a private dataset, whatever it was."""
    async with world.running("alice", private=True) as alice:
        before = await filled(world, alice)
        held, text = objects(alice), text_of(await alice.manifest("cities"))
        await alice.api.declarations.delete("Dataset", "cities")
        assert await alice.dataset_views() == []
        with pytest.raises(NotFound):
            await alice.dataset_view(before.id)
        (kept,) = await alice.api.unmanaged.list()
        assert (kept.id, kept.name, kept.blocks, kept.bytes, kept.owner) == (
            before.id, "cities", before.blocks, before.bytes, True
        )  # fmt: skip
        for _ in range(3):
            await collect(alice)
        assert objects(alice) == held
    async with world.running("alice", private=True) as alice:
        manifest = text.replace("  kind: Root", f"  kind: Root\n  did: {before.id}", 1)
        (dry,) = (await alice.apply(manifest, dry_run=True)).items
        assert (dry.action, await alice.dataset_views()) == ("adopted", [])
        (item,) = (await alice.apply(manifest)).items
        assert (item.action, item.id, item.changes) == ("adopted", before.id, ())
        after = await alice.dataset_view("cities")
        assert (after.blocks, after.records, after.head, after.owner) == (before.blocks, 2, before.head, True)
        assert (await alice.api.unmanaged.list(), after.published) == ([], False)
        world.write("alice", "b.csv", *ROWS_B)
        (pulled,) = await alice.pull("cities")
        assert (pulled.outcome, pulled.records) == ("updated", 1)
        assert [(each.action) for each in (await alice.apply(manifest)).items] == ["unchanged"]


async def test_what_is_adopted_by_hand_has_its_former_name_or_another(world: World) -> None:
    async with world.running("alice") as alice:
        first = await filled(world, alice)
        await alice.api.declarations.delete("Dataset", "cities")
        adopted = await alice.api.unmanaged.adopt("Cities", wire.AdoptRequest())
        assert adopted == wire.AdoptedView(name="cities", id=first.id)
        await alice.api.declarations.delete("Dataset", "cities")
        second = (await alice.apply(ROOT)).items[0]
        with pytest.raises(Invalid, match="is already the name of"):
            await alice.api.unmanaged.adopt(first.id, wire.AdoptRequest())
        assert (await alice.api.unmanaged.adopt(first.id, wire.AdoptRequest(name="towns"))).name == "towns"
        assert {each.id for each in await alice.dataset_views()} == {first.id, second.id}
        with pytest.raises(NotFound, match="no data of a deleted dataset"):
            await alice.api.unmanaged.adopt("cities", wire.AdoptRequest())
        await alice.api.declarations.delete("Dataset", "cities")
        await alice.api.applying.rename("Dataset", "towns", "cities")
        await alice.api.declarations.delete("Dataset", "cities")
        with pytest.raises(Invalid, match="2 deleted datasets were called cities"):
            await alice.api.unmanaged.get("cities")


async def test_a_did_of_a_manifest_is_of_its_name_and_of_no_other(world: World) -> None:
    def manifest(name: str, did: str) -> str:
        return f"$schema: Dataset\nheaders: {{name: {name}}}\nspec: {{kind: Root, did: '{did}', metadata: []}}"

    async with world.running("alice") as alice:
        await alice.apply("$schema: Dataset\nheaders: {name: one}\nspec: {kind: Root, metadata: []}")
        await alice.apply("$schema: Dataset\nheaders: {name: two}\nspec: {kind: Root, metadata: []}")
        one = str(alice.dataset("one"))
        (item,) = (await alice.apply(manifest("one", one))).items
        assert item.action == "unchanged"
        two, unknown = str(alice.dataset("two")), str(DatasetId.from_public_key(bytes(32)))
        for name, did, said in (
            ("two", one, "is one"), ("three", one, "is one"), ("one", two, "is two"),
            ("three", unknown, "no data of a deleted dataset"), ("one", unknown, "one is another dataset"),
        ):  # fmt: skip
            (item,) = (await alice.apply(manifest(name, did))).items
            assert item.action == "failed"
            assert said in item.fault.detail
        with pytest.raises(Invalid, match=r"spec\.did"):
            await alice.apply(manifest("one", "did:odf:1"))
        assert len(await alice.dataset_views()) == 2


async def test_deleted_for_good_its_objects_go_and_later_its_key(world: World) -> None:
    async with world.running("alice") as alice:
        one = await filled(world, alice)
        dataset = alice.dataset("cities")
        await alice.api.declarations.delete("Dataset", "cities")
        gone = await alice.api.unmanaged.delete(one.id)
        assert (gone.name, await alice.api.unmanaged.list()) == ("cities", [])
        assert len(await alice.heard("dataset.purged")) == 1
        while objects(alice):
            await collect(alice)
        assert alice.home.keys.has_dataset_key(dataset)
        world.clock.instant += 30 * DAY * SECOND
        await collect(alice)
        assert not alice.home.keys.has_dataset_key(dataset)
        with alice.home.database.read() as connection:
            assert unmanaged.keys_due(connection, world.clock.now()) == []
        with pytest.raises(NotFound):
            await alice.api.unmanaged.delete(one.id)


async def test_purged_at_once_nothing_is_kept(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        await alice.api.declarations.delete("Dataset", "cities", purge=True)
        assert (await alice.api.unmanaged.list(), objects(alice)) == ([], 0)
        assert not list(alice.home.folder(SEGMENTS).iterdir())


async def test_a_mirror_goes_on_from_what_is_kept(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        one = await filled(world, alice)
        await alice.publish("cities")
        await bob.mirror(alice.dataset("cities"), "theirs")
        await bob.api.declarations.delete("Dataset", "theirs")
        world.write("alice", "b.csv", *ROWS_B)
        await alice.pull("cities")
        before = bob.member.bytes
        await bob.mirror(alice.dataset("cities"), "again")
        assert (await bob.dataset_view("again")).id == one.id
        assert (bob.size("again"), await bob.api.unmanaged.list()) == (alice.size("cities"), [])
        assert bob.member.bytes - before < before, "what was kept is not fetched again"


async def test_an_import_goes_on_from_what_is_kept_unless_it_is_another_history(world: World, tmp_path: Any) -> None:
    async with world.running("alice") as alice:
        one = await filled(world, alice)
        shorter, longer = tmp_path / "shorter", tmp_path / "longer"
        await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=str(shorter))))
        world.write("alice", "b.csv", *ROWS_B)
        await alice.pull("cities")
        await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=str(longer))))
        whole = alice.size("cities")
        await alice.api.declarations.delete("Dataset", "cities")
        with pytest.raises(Refused, match="still kept here, and the copy does not go on from it") as refused:
            await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(shorter))))
        assert refused.value.rule == "dataset-kept"
        await alice.api.unmanaged.delete(one.id)
        await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(shorter), as_name="cities")))
        await alice.api.declarations.delete("Dataset", "cities")
        done = await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(longer), as_name="towns")))
        assert (done.ref, done.blocks, alice.size("towns")) == ("towns", whole - one.blocks, whole)
        assert await alice.api.unmanaged.list() == []


async def test_a_part_of_a_history_is_taken_back_as_a_part_though_the_node_died(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that a mirror had let go is not taken for lost, nor for here."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        for day in range(1, 6):
            world.clock.instant += DAY * SECOND
            world.write("alice", f"{day}.csv", f"2024-01-0{day}T00:00:00Z,Graz,{day}")
            await alice.apply(ROOT)
            await alice.pull("cities")
        cities = alice.dataset("cities")
        await world.spread(alice, "cities")
        view = await bob.mirror(cities, "theirs", keep="1d")
        assert view.held_from
        await bob.api.declarations.delete("Dataset", "theirs")

        def dies(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(bob.parts.import_export, "_settle", dies)
        with pytest.raises(MemoryError):
            await bob.api.unmanaged.adopt("theirs", wire.AdoptRequest())
    async with world.running("bob") as bob:
        assert held_from(bob.home, cities) == view.held_from
        assert (await bob.dataset_view("theirs")).blocks == alice.size("cities")
        assert await bob.api.unmanaged.list() == []
        with pytest.raises(NotFound, match="is not kept here"):
            need_data(bob.home, cities, "theirs", whole=True)
