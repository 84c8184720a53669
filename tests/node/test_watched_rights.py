"""Watches while rights change: what may no longer be read is not told of, and a list with its watch is what stands."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
import trio

from chain.errors import Fault, Invalid
from chain.instant import Instant
from odfd.access.relations import Principal, Role
from odfd.api.access.requests import AccessControl
from odfd.control import wire
from odfd.control.endpoint import CALLER, Caller
from odfd.control.endpoint import GRANT as REMOTE
from worlds.accounts_world import ACCOUNT, ALICE, BOB, DATASET, GRANT, Asking, settled
from worlds.called_services import CalledServices
from worlds.eventually import PATIENCE
from worlds.node_world import World

RULED = """$schema: Relations
headers: {{name: {name}}}
spec: {{attributes: [{{object: "{object}", name: {rule}, value: true}}]}}
"""
EMPTY = "$schema: Relations\nheaders: {{name: {name}}}\nspec: {{}}\n"
MEMBER = """$schema: Relations
headers: {name: members}
spec: {relations: [{subject: "Account:bob", relation: member, object: "Account:lab"}]}
"""


async def test_a_position_is_of_one_account_and_counts_nothing(world: World) -> None:
    """Two versions tell whether they are the same and nothing else; those of others and made up ones are none."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(GRANT.format(name="g", who="bob", role="reader", what="alice/hers"))
        alice, bob = await asking.services(ALICE), await asking.services(BOB)

        async def at(services: Any) -> str:
            version: str = (await services.declarations.page("dataset", None, 500, None)).version
            return version

        await node.parts.reconciler.wait_settled()
        hers, his = await at(alice), await at(bob)
        for number in range(5):
            await node.apply(DATASET.format(name=f"other-{number}", more=""))
        await node.parts.reconciler.wait_settled()
        assert (await at(alice), await at(bob)) == (hers, his)
        await node.apply(DATASET.format(name="hers", more=", account: alice, labels: {a: b}"))
        await node.parts.reconciler.wait_settled()
        assert (await at(bob)) != his
        mark = his.partition("+")[2]
        for wrong in (f"{hers.partition('+')[0]}+{mark}", f"00{his[2:]}", f"f00-1+{mark}", f"1+{mark}"):
            with pytest.raises(Invalid, match="is no version of this node's log"):
                async with aclosing(bob.declarations.news(wrong, "dataset")) as news:
                    await anext(news)
            with pytest.raises(Invalid, match="is no version of this node's log"):
                await bob.history.follow(wrong, None, 10)
        async with aclosing(bob.declarations.news(hers, "dataset")) as news:  # another's mark is of other rights
            assert (await anext(news)).value.op == "Reset"


async def test_an_administrator_watches_on_from_a_list(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        rule = RULED.format(name="admins", object="Account:bob", rule="admin")
        await node.apply(rule)
        await node.parts.reconciler.wait_settled()
        bob = await asking.services(BOB)
        page = await bob.declarations.page("dataset", None, 500, None)
        assert {view.name for view in page.views} == {"hers", "theirs"}
        async with aclosing(bob.declarations.news(page.version, "dataset")) as news:
            await node.apply(DATASET.format(name="third", more=""))
            with trio.fail_after(PATIENCE):
                told = (await anext(news)).value
        assert (told.op, told.resource.name) == ("Added", "third")


class Reader:
    """Bob, who lists and watches datasets, and begins anew when he is told to."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.held: dict[str, str] = {}
        self.resets = 0
        self.scope = {"headers": [], CALLER: Caller(1, BOB, BOB)}

    async def services(self) -> Any:
        access: AccessControl = self.asking.access
        asking = access.dispatcher(self.asking.node.services, await access.subject(self.scope), self.scope)
        return CalledServices.of(asking)

    async def listed(self) -> dict[str, str]:
        page = await (await self.services()).declarations.page("dataset", None, 500, None)
        return {view.id: view.name for view in page.views}

    async def run(self) -> None:
        while True:
            services = await self.services()
            page = await services.declarations.page("dataset", None, 500, None)
            self.held = {view.id: view.name for view in page.views}
            async with aclosing(services.declarations.news(page.version, "dataset")) as news:
                async for shared in news:
                    self._take(shared.value)

    def _take(self, news: wire.ResourceNews) -> None:
        if news.op == "Reset":
            self.resets += 1
        elif news.op == "Deleted" and news.resource is not None:
            del self.held[news.resource.id]
        elif news.resource is not None:
            self.held[news.resource.id] = news.resource.name

    async def has_all(self) -> None:
        """Waits until what it holds is what a list has."""
        with trio.fail_after(PATIENCE):
            while self.held != await self.listed():  # noqa: ASYNC110  what threads write
                await trio.sleep(0.005)


def changes(asking: Asking, chance: random.Random) -> Callable[[], Awaitable[Any]]:
    """One change: of rights, of what there is, or of nothing that Bob may see."""
    node = asking.node
    name, ref = f"d{chance.randrange(3)}", chance.choice(["hers", "theirs"])
    refs = wire.VisibilityRequest(refs=(ref,))
    role = chance.choice(["reader", "editor", "owner"])
    return chance.choice([
        lambda: node.apply(GRANT.format(name=f"g-{ref}", who="bob", role=role, what=ref)),
        lambda: node.apply(EMPTY.format(name=f"g-{ref}")),
        lambda: asking.apply(ALICE, GRANT.format(name="from-alice", who="bob", role=role, what="hers")),
        lambda: asking.apply(ALICE, EMPTY.format(name="from-alice")),
        lambda: node.apply(RULED.format(name="open", object=f"Dataset:{ref}", rule="allowPublicRead")),
        lambda: node.apply(RULED.format(name="open", object="Account:alice", rule="allowAnonymousRead")),
        lambda: node.apply(EMPTY.format(name="open")),
        lambda: node.apply(RULED.format(name="admins", object="Account:bob", rule="admin")),
        lambda: node.apply(EMPTY.format(name="admins")),
        lambda: node.apply(MEMBER),
        lambda: node.apply(EMPTY.format(name="members")),
        lambda: node.apply(DATASET.format(name="theirs", more=chance.choice(["", ", account: lab", ", account: bob"]))),
        lambda: node.api.visibility.publish(refs),
        lambda: node.api.visibility.unpublish(refs),
        lambda: node.apply(DATASET.format(name=name, more=chance.choice(["", ", account: bob", ", account: alice"]))),
        lambda: node.api.declarations.delete("Dataset", name),
        lambda: node.apply(DATASET.format(name=ref, more=f", labels: {{n: n{chance.random()}}}")),
        lambda: node.apply(ACCOUNT.format(name="bob", uid=chance.choice([BOB, BOB, 70099]))),
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(int(os.environ.get("ODFD_SIM_SEEDS", "8")) // 2))
async def test_p04_a_list_and_its_watch_are_what_may_be_read_however_rights_change(world: World, seed: int) -> None:
    chance = random.Random(seed)
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply("$schema: Account\nheaders: {name: lab}\nspec: {email: l@example.com}\n")
        reader = Reader(asking)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            for _ in range(25):
                try:
                    await changes(asking, chance)()
                except Fault:
                    continue  # such as a dataset that is not there
                await reader.has_all()
            nursery.cancel_scope.cancel()
        assert reader.resets


async def test_nothing_is_told_of_what_may_no_longer_be_read(world: World) -> None:
    """What is changed after the revocation is not told, though the watch was begun before."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await asking.apply(ALICE, GRANT.format(name="g", who="bob", role="reader", what="hers"))
        reader = Reader(asking)
        services = await reader.services()
        async with aclosing(services.declarations.news(None, "dataset")) as news:
            told = [(await anext(news)).value.op for _ in range(2)]
            assert told == ["Added", "Bookmark"]
            await asking.apply(ALICE, EMPTY.format(name="g"))
            await asking.apply(ALICE, DATASET.format(name="hers", more=", labels: {secret: canary}"))
            rest = [each.value async for each in news]
        assert [each.op for each in rest] == ["Reset"]
        assert b"canary" not in msgspec.json.encode(rest)
        # A watch that goes on from before begins anew, too.
        before = rest[0].version.rpartition("-")[0] + "-1"
        async with aclosing(services.declarations.news(before, "dataset")) as news:
            assert [each.value.op async for each in news] == ["Reset"]
        token, grant = node.parts.tokens.make((await alices(asking)).account, Role.OWNER, "", Instant(2**62))
        scope = {"headers": [], REMOTE: node.parts.tokens.admit(token)}
        services = CalledServices.of(asking.access.dispatcher(node.services, await asking.access.subject(scope), scope))
        async with aclosing(services.declarations.news(None, "dataset")) as news:
            assert [(await anext(news)).value.op for _ in range(2)] == ["Added", "Bookmark"]
            await node.api.accounts.revoke_token(grant.id)
            with pytest.raises(Fault) as ended:
                await anext(news)
            assert ended.value.rule == "access-token"


async def alices(asking: Asking) -> Principal:
    return await asking.access.subject({"headers": [], CALLER: Caller(1, ALICE, ALICE)})


async def test_who_is_another_now_is_told_nothing_more(world: World) -> None:
    """The account names another user, is no administrator any more, or its token is revoked."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        await node.apply(RULED.format(name="admins", object="Account:bob", rule="admin"))
        reader = Reader(asking)
        services = await reader.services()
        async with aclosing(services.declarations.news(None, "dataset")) as news:
            told = [(await anext(news)).value for _ in range(3)]
            assert {each.resource.name for each in told if each.resource} == {"hers", "theirs"}
            async with aclosing(services.events.follow(0, ())) as events:
                await anext(events)
                await node.apply(EMPTY.format(name="admins"))
                with pytest.raises(Fault) as ended:
                    await anext(events)
            assert ended.value.rule == "access-owner"
            assert [each.value.op async for each in news] == ["Reset"]
        await node.apply(DATASET.format(name="his", more=", account: bob"))
        services = await reader.services()
        async with aclosing(services.declarations.news(None, "dataset")) as news:
            assert [(await anext(news)).value.op for _ in range(2)] == ["Added", "Bookmark"]
            await node.apply(ACCOUNT.format(name="bob", uid=70099))
            assert [each.value.op async for each in news] == ["Reset"]


async def test_what_was_published_between_a_list_and_its_watch_is_not_missed(world: World) -> None:
    """Publishing leaves no mark in the log of resources, so the version itself has to say it."""
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        reader = Reader(asking)
        services = await reader.services()
        page = await services.declarations.page("dataset", None, 500, None)
        assert page.views == ()
        await node.api.visibility.publish(wire.VisibilityRequest(refs=("theirs",)))
        async with aclosing(services.declarations.news(page.version, "dataset")) as news:
            assert [each.value.op async for each in news] == ["Reset"]
        page = await services.declarations.page("dataset", None, 500, None)
        assert [view.name for view in page.views] == ["theirs"]
        async with aclosing(services.declarations.news(page.version, "dataset")) as news:
            await node.apply(DATASET.format(name="theirs", more=", labels: {a: b}"))
            assert (await anext(news)).value.op == "Modified"
