"""Datasets of one apply are made and changed in one transaction, with all declarations: a fault leaves all or none."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from chain.errors import Environment, Refused
from odfd.control import wire
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.network.joined_networks import list_blocked, list_joined
from odfd.services.resources.types import TYPES
from odfd.trust.signing.owner_commit import OwnerCommitter
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

STEPS = ("commit-begun", "commit-objects", "commit-blocks", "commit-also", "commit-durable")
DATASET = """$schema: Dataset
headers: {{name: {name}}}
spec: {{kind: Root, metadata: [{{kind: SetInfo, description: {said}}}]}}
"""
SET = "$schema: VariableSet\nheaders: {name: one}\nspec: {variables: {x: '1'}}\n"
FLOW = "$schema: Flow\nheaders: {name: f}\nspec: {target: two, triggers: [{kind: Interval, interval: 1h}]}\n"
LEGACY = """kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata: []
"""


INTENTS = tuple(kind.example for word in ("mirror", "validator", "peer", "network") if (kind := TYPES.word(word)))


def dataset(name: str, said: str = "anew") -> str:
    return DATASET.format(name=name, said=said)


async def standing(node: Node) -> dict[str, Any]:
    """What stands: blocks of each dataset, all resources by name, and what of others is in force."""
    mirrors = [each.name for each in await node.mirrors()]
    datasets = {each.name: node.size(each.name) for each in await node.dataset_views() if each.name not in mirrors}
    declared = {f"{each.type} {each.name}": each.generation for each in await node.api.declarations.list(None, None)}
    keys = sorted(each.name for each in (node.home.directory / "keys").iterdir())
    with node.home.database.read() as connection:
        networks, peers = [each.name for each in list_joined(connection)], [*list_blocked(connection)]
    groups = [each.spec["group"] for each in await node.api.declarations.list("Validator", None)]
    return {"datasets": datasets, "declared": declared, "keys": keys, "intents": [networks, peers, groups, mirrors]}


@pytest.mark.parametrize("step", STEPS)
async def test_p08_a_fault_at_each_step_leaves_all_datasets_or_none(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    wanted = (dataset("old"), dataset("two"), ROOT, DERIVED, SET, FLOW, *INTENTS)

    def dies(name: str) -> None:
        if name == step:
            raise Environment("the process is gone", rule="killed")

    async with world.running("alice") as alice:
        await alice.apply(dataset("old", "before"))
        before = await standing(alice)
        with monkeypatch.context() as patch:
            patch.setattr(alice.home.chains, "_step", dies)
            with pytest.raises(Environment, match="the process is gone"):
                await alice.apply(*wanted)
    async with world.running("alice") as alice:
        with trio.fail_after(PATIENCE):
            await alice.parts.reconciler.wait_settled()
        found = await standing(alice)
        if step == "commit-durable":
            assert found["datasets"] == {"old": 3, "two": 2, "cities": 2, "towns": 2}
            assert {"Dataset two", "Flow f", "VariableSet one"} <= set(found["declared"])
            assert found["intents"] == [
                ["food"], ["12D3KooWEyopopk2Ka2tf5fvGDPQEbYWrSnWFk8T9Bks5pZuWnaz"], ["uni"], ["covid"],
            ]  # fmt: skip
        else:
            assert found == before
        items = (await alice.apply(*wanted)).items
        assert {each.action for each in items} == (
            {"unchanged"} if step == "commit-durable" else {"created", "updated"}
        )
        after = await standing(alice)
        assert after["datasets"] == {"old": 3, "two": 2, "cities": 2, "towns": 2}
        assert [len(each) for each in after["intents"]] == [1, 1, 1, 1]
        assert not [each for each in after["keys"] if each.endswith(".unborn")]
        for name in after["datasets"]:
            alice.parts.committer.sign_unsigned(alice.dataset(name))


async def test_what_is_wrong_with_one_keeps_all_from_being_made(world: World) -> None:
    async with world.running("alice") as alice:
        before = await standing(alice)
        broken = DERIVED.replace("datasetRef: cities", "datasetRef: places")
        items = (await alice.apply(dataset("one"), SET, broken)).items
        assert {each.name: each.action for each in items}["towns"] == "failed"
        assert {each.action for each in items} == {"failed", "skipped"}
        assert await standing(alice) == before, "not even a key"


async def test_one_that_cannot_be_committed_is_told_by_its_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning cannot see that the journal of a key is ahead."""
    async with world.running("alice") as alice:
        await alice.apply(LEGACY.format(name="one"))
        ahead, check = alice.dataset("one"), OwnerCommitter._check_behind

        def behind(self: Any, dataset: Any, *rest: Any) -> None:
            if dataset == ahead:
                raise Refused("this node has signed more", rule="trust.behind")
            check(self, dataset, *rest)

        monkeypatch.setattr(OwnerCommitter, "_check_behind", behind)
        changed = LEGACY.format(name="one").replace("[]", "[{kind: SetInfo, description: anew}]")
        items = (await alice.apply(changed, LEGACY.format(name="two"))).items
        assert {each.name: each.action for each in items} == {"one": "failed", "two": "skipped"}
        items = (await alice.apply(changed, LEGACY.format(name="two"), on_error="skip")).items
        assert {each.name: each.action for each in items} == {"one": "failed", "two": "created"}
        told = {each.name: each.fault for each in items}["one"]
        assert isinstance(told, wire.Problem)
        assert told.rule == "trust.behind"
        items = (await alice.apply(dataset("one"), dataset("three"))).items
        assert {each.name: each.action for each in items} == {"one": "failed", "three": "skipped"}
        assert [each.name for each in await alice.dataset_views()] == ["one", "two"]


async def test_a_query_is_checked_against_an_input_of_the_same_apply(world: World) -> None:
    """Also by a dry run, which makes nothing."""
    async with world.running("alice") as alice:
        before = await standing(alice)
        items = (await alice.apply(ROOT, DERIVED, dry_run=True)).items
        assert [(each.name, each.action, each.warnings) for each in items] == [
            ("cities", "created", ()),
            ("towns", "created", ()),
        ]
        assert await standing(alice) == before


async def test_intents_of_an_apply_are_in_force_when_it_ends(world: World) -> None:
    async with world.running("alice") as alice:
        assert {each.action for each in (await alice.apply(*INTENTS, SET, dry_run=True)).items} == {"created"}
        assert (await standing(alice))["intents"] == [[], [], [], []]
        items = (await alice.apply(*INTENTS, SET)).items
        assert [(each.kind, each.action, each.warnings) for each in items] == [
            (kind, "created", ()) for kind in ("network", "peer", "validator", "mirror", "variableset")
        ]
        assert [each.name for each in alice.parts.membership.networks] == ["food"]
        assert alice.parts.membership.blocked == 1
        assert [each.name for each in await alice.mirrors()] == ["covid"]
        assert {each.action for each in (await alice.apply(*INTENTS, SET)).items} == {"unchanged"}


async def test_what_cannot_be_recorded_is_told_by_its_name_and_nothing_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks pass before the transaction; then another command takes the name of the mirror, or the last room."""
    record = MirrorScheduler.record

    def taken(self: Any, *args: Any) -> None:
        record(self, *args)
        raise Refused("this name was taken meanwhile", rule="dataset-name")

    async with world.running("alice") as alice:
        before = await standing(alice)
        monkeypatch.setattr(MirrorScheduler, "record", taken)
        items = (await alice.apply(*INTENTS, SET, dataset("one"))).items
        assert [each.name for each in items if each.action == "failed"] == ["covid"]
        assert {each.action for each in items} == {"failed", "skipped"}
        assert await standing(alice) == before


async def test_a_dataset_and_a_mirror_of_one_name_are_refused(world: World) -> None:
    async with world.running("alice") as alice:
        before = await standing(alice)
        for dry_run in (True, False):
            items = (await alice.apply(INTENTS[0], dataset("covid"), dry_run=dry_run)).items
            (failed,) = [each for each in items if each.action == "failed"]
            assert failed.fault is not None
            assert failed.fault.rule == "dataset-name"
        assert await standing(alice) == before


async def test_an_intent_that_is_not_in_force_yet_is_declared_with_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(_: Any) -> None:
        raise Environment("the network is not running", rule="network-down")

    async with world.running("alice") as alice:
        with monkeypatch.context() as patch:
            patch.setattr(type(alice.parts.membership), "reload", down)
            (item,) = (await alice.apply(INTENTS[-1])).items
        assert (item.action, item.warnings) == (
            "created", ("it is declared, and not in force yet: the network is not running",),
        )  # fmt: skip
        assert (await standing(alice))["intents"][0] == ["food"]
    async with world.running("alice") as alice:
        assert {each.action for each in (await alice.apply(INTENTS[-1])).items} == {"unchanged"}
