"""Labels that decide who may read a dataset: they act at once, only an owner changes them, wrong ones are refused."""

from __future__ import annotations

import msgspec
import pytest

from chain.errors import Fault
from odfd.control import wire
from odfd.resources import tables
from odfd.resources.store import ResourceStore
from worlds.accounts_world import ALICE, BOB, DATASET, GRANT, NOBODY, Asking, settled
from worlds.node_world import World

URI = "https://opendatafabric.org/schemas/dataset/v1alpha1/"


def hers(labels: str) -> str:
    return DATASET.format(name="hers", more=f", account: alice, labels: {{{labels}}}")


async def readers(asking: Asking) -> list[int]:
    """Returns who of bob, and of a caller without an account, reads the dataset of alice."""
    found = []
    for uid in (BOB, NOBODY):
        found += [uid] if await asking.datasets(uid) == ["hers"] else []
    return found


@pytest.mark.parametrize("base", ["", URI])
async def test_a_label_opens_a_dataset_and_closes_it_again(world: World, base: str) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        for labels, who in (
            (f'"{base}AllowPublicRead": true', [BOB]),
            (f'"{base}AllowPublicRead": false', []),
            (f'"{base}AllowAnonymousRead": true', [BOB, NOBODY]),
            ("", []),
        ):
            await node.apply(hers(labels))
            assert await readers(asking) == who
        for key in ("AllowPublicRead", f"{URI}AllowPublicRead"):
            await node.api.declarations.label("dataset", "alice/hers", wire.LabelRequest(labels={key: True}))
            assert await readers(asking) == [BOB]
        selected = await node.api.declarations.list("dataset", f"{URI}AllowPublicRead=true")
        assert [(each.name, each.labels) for each in selected] == [("hers", {"AllowPublicRead": True})]
        await node.api.declarations.label("dataset", "alice/hers", wire.LabelRequest(labels={"AllowPublicRead": None}))
        assert await readers(asking) == []


async def test_only_an_owner_changes_who_may_read(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GRANT.format(name="g", who="bob", role="maintainer", what="alice/hers"))
        path = f"/dataset/v1alpha1/datasets/{node.dataset('alice/hers')}/labels"
        status, _ = await asking.ask(BOB, "PUT", path, {"labels": {"env": "prod"}})
        assert status == 200
        for key in ("AllowAnonymousRead", f"{URI}AllowAnonymousRead"):
            status, problem = await asking.ask(BOB, "PUT", path, {"labels": {key: True}})
            assert (status, problem["rule"]) == (403, "access-role")
            with pytest.raises(Fault) as refused:
                await asking.apply(BOB, hers(f'env: prod, "{key}": true'))
            assert refused.value.rule == "access-role"
        await asking.apply(ALICE, DATASET.format(name="hers", more=", labels: {AllowPublicRead: true}"))
        with pytest.raises(Fault) as refused:
            await asking.apply(BOB, hers("env: dev"))
        assert refused.value.rule == "access-role", "it would take the label away"
        await asking.apply(BOB, hers("env: dev, AllowPublicRead: true"))
        assert await readers(asking) == [BOB]


WRONG = [
    (DATASET.format(name="a", more=', labels: {AllowPublicRead: "true"}'), "label-value"),
    (DATASET.format(name="a", more=", labels: {AllowPublicRead: 1}"), "label-value"),
    (DATASET.format(name="a", more=f', labels: {{"{URI}AllowAnonymousRead": yes please}}'), "label-value"),
    (DATASET.format(name="a", more=", labels: {datasetKind: root}"), "label-value"),
    (
        DATASET.format(name="a", more=f', labels: {{AllowPublicRead: true, "{URI}AllowPublicRead": true}}'),
        "label-twice",
    ),
    (DATASET.format(name="a", more=", annotations: {AllowPublicRead: true}"), "label-annotation"),
    (
        "$schema: VariableSet\nheaders: {name: a, labels: {AllowPublicRead: true}}\nspec: {variables: {}}\n",
        "label-type",
    ),
]


@pytest.mark.parametrize(("text", "rule"), WRONG, ids=[f"{at}-{rule}" for at, (_, rule) in enumerate(WRONG)])
async def test_r19_a_label_that_its_schema_does_not_permit_is_refused(world: World, text: str, rule: str) -> None:
    async with world.running("node", private=True) as node:
        with pytest.raises(Fault) as refused:
            await node.apply(text)
        assert refused.value.rule == rule or rule in str(refused.value)
        assert await node.api.declarations.list("dataset", None) == []


async def test_labels_of_a_former_state_are_told_when_they_begin_to_act(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(hers("env: prod"))
        with node.home.database.write() as connection:
            store = ResourceStore(connection)
            before = store.with_did("Dataset", str(node.dataset("alice/hers")))
            assert before is not None
            store.put(msgspec.structs.replace(before, labels={f"{URI}AllowPublicRead": True}), before.updated_at)
            lines = tables.convert_labels(connection)
        assert lines == ["Dataset hers is read as its label AllowPublicRead says, which had no effect before"]
        assert await readers(asking) == [BOB]
