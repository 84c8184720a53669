"""A dataset gets another local name; its id, its history and whoever mirrors it stay."""

from __future__ import annotations

import pytest

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.state import transform_of
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World


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
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
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


async def test_r14_an_apply_of_an_id_with_another_name_renames_a_dataset_and_leaves_its_name_to_a_new_one(
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


async def test_r14_names_are_swapped_in_one_batch_and_a_new_derivative_means_the_new_ones(world: World) -> None:
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


async def test_r14_a_mirror_and_its_dataset_get_a_name_together_whichever_is_renamed(world: World) -> None:
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
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        await bob.pull("more")
        assert bob.size("more") == alice.size("cities")
    async with world.running("bob") as bob:
        assert sorted(each.name for each in await bob.mirrors()) == ["more", "ours"]


async def test_r14_a_peer_and_a_validator_are_renamed_and_stay_what_they_were(world: World) -> None:
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
