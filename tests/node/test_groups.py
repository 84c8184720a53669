"""Groups of accounts: their members have what Relations give the group, in the words of RFC-020 and in ours."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import Fault
from worlds.accounts_world import ALICE, BOB, Asking, settled
from worlds.node_world import World

GROUP = "$schema: Group\nheaders: {name: curators, account: alice}\nspec: {}\n"
ODF = "https://opendatafabric.org/schemas/"


def relations(name: str, subject: str, relation: str, object_: str, value: str = "") -> str:
    said = f', value: "{value}"' if value else ""
    each = f'{{subject: "{subject}", relation: "{relation}"{said}, object: "{object_}"}}'
    return f"$schema: Relations\nheaders: {{name: {name}, account: alice}}\nspec: {{relations: [{each}]}}\n"


async def reads(asking: Asking, uid: int) -> bool:
    return await asking.datasets(uid) == ["hers"]


WORDS = [("DatasetRole", "Reader", "Member"), ("role", "reader", "member"),
         (f"{ODF}dataset/v1alpha1/DatasetRole", "Reader", f"{ODF}auth/v1alpha1/Member")]  # fmt: skip


@pytest.mark.parametrize(("role", "value", "member"), WORDS, ids=["rfc", "own", "uris"])
async def test_members_have_the_roles_of_their_group(world: World, role: str, value: str, member: str) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GROUP, relations("roles", "Group:alice/curators", role, "Dataset:hers", value))
        assert not await reads(asking, BOB)
        await node.apply(relations("members", "Account:bob", member, "Group:curators"))
        assert await reads(asking, BOB)
        group = await node.api.declarations.get("group", "alice/curators")
        await node.apply(GROUP.replace("{name: curators", f"{{id: {group.id}, name: friends"))
        assert await reads(asking, BOB), "a group that is renamed is the same"
        await node.api.declarations.delete("relations", "alice/members")
        assert not await reads(asking, BOB)


async def test_a_group_in_a_group_gives_its_members_both(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GROUP, GROUP.replace("curators", "inner"))
        await node.apply(
            relations("roles", "Group:curators", "DatasetRole", "Dataset:hers", "Editor"),
            relations("nested", "Group:inner", "Member", "Group:curators"),
            relations("members", "bob", "Member", "Group:inner"),
        )
        assert await reads(asking, BOB)
        await node.api.declarations.delete("group", "alice/inner")
        assert not await reads(asking, BOB)


async def test_only_the_owner_of_a_group_says_who_is_in_it(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GROUP, relations("roles", "Group:curators", "role", "Dataset:hers", "owner"))
        forged = relations("mine", "Account:bob", "Member", "Group:alice/curators").replace(
            "account: alice", "labels: {}"
        )
        with pytest.raises(Fault) as refused:
            await asking.apply(BOB, forged)
        assert refused.value.rule == "resource"
        assert not await reads(asking, BOB)
        await asking.apply(ALICE, relations("members", "Account:bob", "Member", "Group:curators"))
        assert await reads(asking, BOB)


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (("Account:bob", "Member", "Dataset:hers"), "relation-member"),
        (("Account:bob", "Member", "Group:curators", "Reader"), "relation-member"),
        (("Account:bob", "DatasetRole", "Dataset:hers", "Boss"), "relation-role"),
        (("Account:bob", "Friend", "Dataset:hers"), "relation-unknown"),
        (("Dataset:hers", "Member", "Group:curators"), "reference-type"),
    ],
)
async def test_relations_that_mean_nothing_are_refused(world: World, said: Any, rule: str) -> None:
    async with world.running("node", private=True) as node:
        await settled(node)
        with pytest.raises(Fault) as refused:
            await node.apply(GROUP, relations("r", *said))
        assert refused.value.rule == rule
        assert not await node.api.declarations.list("group", None)
