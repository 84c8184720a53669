"""Datasets get other names, or are deleted with their data kept: ids, histories and mirrors stay."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import DAY, SECOND
from chain.state import transform_of
from odfd.control import wire
from odfd.datasets.local_data import held_from, need_data
from odfd.store import unmanaged
from odfd.store.directory import SEGMENTS
from worlds.manifests import DERIVED, ROOT, text_of
from worlds.node_world import Node, World

# A dataset gets another local name; its id, its history and whoever mirrors it stay.


async def test_a_renamed_dataset_goes_on_under_its_new_name(world: World) -> None:
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        await alice.pull("cities", "towns")
        before = await alice.api.datasets.describe("cities")
        renamed = await alice.api.applying.rename("Dataset", "cities", "places")
        assert (renamed.name, renamed.headers["did"]) == ("places", str(alice.dataset("places")))
        after = await alice.api.datasets.describe("places")
        assert after.created_at == before.created_at
        with pytest.raises(NotFound):
            await alice.dataset_view("cities")
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        assert [item.outcome for item in await alice.pull("places", "towns")] == ["updated", "updated"]
        assert alice.kinds().count("dataset.renamed") == 1
    async with world.running("alice") as alice:
        assert {view.name for view in await alice.dataset_views()} == {"places", "towns"}
        assert (await alice.api.datasets.describe("places")).created_at == before.created_at


async def test_a_mirror_goes_by_its_new_name_too(world: World) -> None:
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await alice.pull("cities")
        cities = alice.dataset("cities")
        await bob.mirror(cities, "theirs")
        await bob.api.applying.rename("Dataset", "theirs", "ours")
        assert [view.name for view in await bob.mirrors()] == ["ours"]
        await alice.take_in(files={"b.csv": ["2024-01-03T00:00:00Z,Wels,60000"]}, pulls=["cities"])
        await bob.pull("ours")
        assert bob.size("ours") == alice.size("cities")


async def test_a_name_that_is_taken_or_none_is_refused(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        for name, rule in (("towns", "name-taken"), ("no name", "dataset-name"), ("", "dataset-name")):
            with pytest.raises(Invalid) as caught:
                await alice.api.applying.rename("Dataset", "cities", name)
            assert (caught.value.rule, bool(caught.value.hint)) == (rule, True)
        assert (await alice.api.applying.rename("Dataset", "cities", "Cities")).name == "Cities"


PLAIN = """$schema: Dataset
headers: {{name: {name}{more}}}
spec:
  kind: {kind}
  metadata:
  - {event}
"""
PUSHED = "{kind: AddPushSource, sourceName: s, read: {kind: NdJson, ddlSchema: [c STRING]}, merge: {kind: Append}}"
OVER = (
    "{{kind: SetTransform, inputs: [{{datasetRef: {of}, alias: x}}],"
    " transform: {{kind: Sql, engine: spark, query: select * from x}}}}"
)


def root(name: str, more: str = "") -> str:
    return PLAIN.format(name=name, more=more, kind="Root", event=PUSHED)


def over(name: str, of: str) -> str:
    return PLAIN.format(name=name, more="", kind="Derivative", event=OVER.format(of=of))


async def ids_of(node: Node, kind: str = "Dataset") -> dict[str, str]:
    return {each.name: each.id for each in await node.api.declarations.list(kind, None)}


def inputs_of(node: Node, name: str) -> list[DatasetId]:
    found = transform_of(node.home.chains.chain(node.dataset(name)))
    assert found is not None
    return [DatasetId.parse(each.dataset_ref) for each in found.inputs]


async def test_an_apply_of_an_id_with_another_name_renames_a_dataset_and_leaves_its_name_to_a_new_one(
    world: World,
) -> None:
    async with world.running("alice") as alice:
        await alice.apply(root("a", ", labels: {k: v}"), over("d", "a"))
        ids, chain, head = await ids_of(alice), alice.dataset("a"), alice.size("a")
        told = [root("b", f", id: {ids['a']}, labels: {{k: v}}"), root("a")]
        dry = await alice.apply(*told, dry_run=True)
        done = await alice.apply(*told)
        for result in (dry, done):
            assert {(each.name, each.action) for each in result.items} == {("b", "updated"), ("a", "created")}
        after = await ids_of(alice)
        assert (after["b"], alice.dataset("b"), alice.size("b")) == (ids["a"], chain, head)
        assert after["a"] not in ids.values()
        assert alice.dataset("a") != chain
        # Who refers to it means the same one, by a declaration that still says its former name.
        assert (await alice.apply(over("d", "b"))).items[0].action == "unchanged"
        assert inputs_of(alice, "d") == [chain]
        assert alice.kinds().count("dataset.renamed") == 1


async def test_names_are_swapped_in_one_batch_and_a_new_derivative_means_the_new_ones(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(root("a"), root("b"))
        ids, a, b = await ids_of(alice), alice.dataset("a"), alice.dataset("b")
        await alice.apply(root("b", f", id: {ids['a']}"), root("a", f", id: {ids['b']}"), over("d", "a"))
        assert (alice.dataset("a"), alice.dataset("b")) == (b, a)
        assert inputs_of(alice, "d") == [b]
        await alice.apply(root("c", f", id: {ids['a']}"))
        with pytest.raises(NotFound):
            await alice.dataset_view("b")
        with pytest.raises(Invalid, match=f"a is the name of another Dataset, {ids['b']}"):
            await alice.apply(root("a", f", id: {ids['a']}"))
        assert await ids_of(alice) == {"a": ids["b"], "c": ids["a"], "d": (await ids_of(alice))["d"]}


async def test_a_name_that_a_dataset_gives_up_is_not_found_by_what_is_applied_with_it(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(root("a"))
        ids = await ids_of(alice)
        result = await alice.apply(root("b", f", id: {ids['a']}"), over("d", "a"))
        (failed,) = [each for each in result.items if each.action == "failed"]
        assert (failed.name, failed.fault.fault().message) == ("d", "a has another name after this apply")
        assert await ids_of(alice) == ids


MIRROR = "$schema: Mirror\nheaders: {{name: {name}, id: {id}}}\nspec: {{source: '{did}'{more}}}\n"


async def test_a_mirror_and_its_dataset_get_a_name_together_whichever_is_renamed(world: World) -> None:
    world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT, root("other"))
        await alice.pull("cities")
        cities, other = alice.dataset("cities"), alice.dataset("other")
        await bob.mirror(cities, "theirs")
        await bob.mirror(other, "more")
        mirrors, datasets = await ids_of(bob, "Mirror"), await ids_of(bob)
        text = MIRROR.format(name="ours", id=mirrors["theirs"], did=cities, more=", priority: 4")
        (item,) = [each for each in (await bob.apply(text)).items if each.kind == "mirror"]
        assert (item.action, item.changes[0]) == ("updated", "name: theirs -> ours")
        assert [(each.name, each.priority) for each in await bob.mirrors()] == [("more", 0), ("ours", 4)]
        assert await ids_of(bob) == {"more": datasets["more"], "ours": datasets["theirs"]}
        # What a running mirror writes later has its new name.
        await bob.api.mirrors.pause("ours")
        await bob.api.mirrors.resume("ours")
        assert await ids_of(bob, "Mirror") == {"more": mirrors["more"], "ours": mirrors["theirs"]}
        swapped = [
            MIRROR.format(name="more", id=mirrors["theirs"], did=cities, more=", priority: 4"),
            MIRROR.format(name="ours", id=mirrors["more"], did=other, more=""),
        ]
        await bob.apply(*swapped)
        assert await ids_of(bob) == {"more": datasets["theirs"], "ours": datasets["more"]}
        assert (bob.dataset("more"), bob.dataset("ours")) == (cities, other)
        with pytest.raises(Invalid, match="are one dataset"):
            await bob.apply(
                MIRROR.format(name="x", id=mirrors["theirs"], did=cities, more=", priority: 4"),
                root("y", f", id: {datasets['theirs']}"),
            )
        await alice.take_in(files={"b.csv": ["2024-01-03T00:00:00Z,Wels,60000"]}, pulls=["cities"])
        await bob.pull("more")
        assert bob.size("more") == alice.size("cities")
    async with world.running("bob") as bob:
        assert sorted(each.name for each in await bob.mirrors()) == ["more", "ours"]


async def test_a_peer_and_a_validator_are_renamed_and_stay_what_they_were(world: World) -> None:
    key = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
    peer = "12D3KooWEyopopk2Ka2tf5fvGDPQEbYWrSnWFk8T9Bks5pZuWnaz"
    texts = (
        f"$schema: Validator\nheaders: {{name: NAME}}\nspec: {{did: '{key}'}}\n",
        f"$schema: Peer\nheaders: {{name: NAME}}\nspec: {{peerId: {peer}, blocked: true}}\n",
    )
    async with world.running("alice") as alice:
        await alice.apply(*(each.replace("NAME", "uni") for each in texts))
        for kind, text in zip(("Validator", "Peer"), texts, strict=True):
            (id_,) = (await ids_of(alice, kind)).values()
            await alice.apply(text.replace("NAME", f"college, id: {id_}"))
            (again,) = (await alice.apply(text.replace("NAME", "college"))).items
            assert (again.action, await ids_of(alice, kind)) == ("unchanged", {"college": id_})
        held = await alice.api.declarations.get("Validator", "college")
        assert held.spec["group"] == "uni"


async def test_a_network_is_another_one_under_another_name(world: World) -> None:
    text = "$schema: Network\nheaders: {name: NAME}\nspec: {bootstrap: []}\n"
    async with world.running("alice") as alice:
        await alice.apply(text.replace("NAME", "food"))
        ids = await ids_of(alice, "Network")
        with pytest.raises(Invalid, match="another one than food") as caught:
            await alice.apply(text.replace("NAME", f"feed, id: {ids['food']}"))
        assert caught.value.rule == "network-name"
        assert await ids_of(alice, "Network") == ids


# Deleted datasets whose data is kept: listed, taken back as they were, or deleted for good.


ROWS_A = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
ROWS_B = ("2024-01-03T00:00:00Z,Wels,62000",)


async def filled(world: World, alice: Node) -> Any:
    await alice.take_in(ROOT, files={"a.csv": ROWS_A}, pulls=["cities"])
    return await alice.dataset_view("cities")


async def collect(node: Node) -> wire.CollectResult:
    node.home.objects.holds.next_collection()  # what was just added is freed by none
    return await node.done(node.api.collection.collect(wire.CollectRequest()))


def objects(node: Node) -> int:
    return len(list(node.home.objects.names()))


async def test_the_data_of_a_deleted_dataset_is_kept_and_is_adopted_by_its_did(world: World) -> None:
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
        (pulled,) = await alice.take_in(files={"b.csv": ROWS_B}, pulls=["cities"])
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
        await alice.take_in(files={"b.csv": ROWS_B}, pulls=["cities"])
        before = bob.member.received
        await bob.mirror(alice.dataset("cities"), "again")
        assert (await bob.dataset_view("again")).id == one.id
        assert (bob.size("again"), await bob.api.unmanaged.list()) == (alice.size("cities"), [])
        assert bob.member.received - before < before, "what was kept is not fetched again"


async def test_an_import_goes_on_from_what_is_kept_unless_it_is_another_history(world: World, tmp_path: Any) -> None:
    async with world.running("alice") as alice:
        one = await filled(world, alice)
        shorter, longer = tmp_path / "shorter", tmp_path / "longer"
        await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=str(shorter))))
        await alice.take_in(files={"b.csv": ROWS_B}, pulls=["cities"])
        await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=str(longer))))
        whole = alice.size("cities")
        await alice.api.declarations.delete("Dataset", "cities")
        with pytest.raises(Refused, match="still kept here, and the copy does not continue from it") as refused:
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
            await alice.take_in(ROOT, files={f"{day}.csv": [f"2024-01-0{day}T00:00:00Z,Graz,{day}"]}, pulls=["cities"])
        cities, size = alice.dataset("cities"), alice.size("cities")
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
        assert (await bob.dataset_view("theirs")).blocks == size
        assert await bob.api.unmanaged.list() == []
        with pytest.raises(NotFound, match="is not kept here"):
            need_data(bob.home, cities, "theirs", whole=True)
