"""Cards among nodes: a stranger finds a dataset by words, reads what it is and mirrors it; a withdrawal ends that."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from chain import instant
from chain.errors import Invalid, NotFound
from config import model
from odfd.control import wire
from odfd.services.network.search import _as_name
from odfd.services.network.site_library import NodeSiteLibrary
from odfd.store.catalog import default_name
from worlds.manifests import ROOT
from worlds.node_world import PATIENCE, Node, World

ABOUT = ROOT.replace(
    "  metadata:\n",
    "  metadata:\n    - {kind: SetInfo, description: Towns and who lives there, keywords: [people]}\n"
    "    - {kind: SetLicense, shortName: CC0, name: CC0 1.0, websiteUrl: 'https://creativecommons.org/cc0'}\n",
    1,
)
NAMED = {"node": model.Node(name="Graz")}


def site_of(node: Node) -> NodeSiteLibrary:
    return NodeSiteLibrary(node.home, node.parts.library, node.parts.visibility.is_public)


async def search(node: Node, **asked: Any) -> list[wire.CardView]:
    return list((await node.api.search.search(wire.SearchRequest(**asked))).found)


async def until_found(node: Node, there: bool = True, **asked: Any) -> list[wire.CardView]:
    with trio.fail_after(PATIENCE):
        while True:
            shown = node.member.shown  # before the look: it is another one once something came
            found = await search(node, **asked)
            if bool(found) is there:
                return found
            await shown.wait()


async def told_of_withdrawal(node: Node) -> set[str | None]:
    """What the pages about ``cities`` say of a withdrawal."""
    views: list[Any] = [
        *(await node.dataset_views()),
        await node.api.trust.show("cities"),
        *await node.mirrors(),
    ]
    return {view.withdrawn_at for view in views}


async def test_what_is_published_is_found_read_mirrored_and_taken_back(world: World) -> None:
    async with world.running("alice", private=True, **NAMED) as alice, world.running("bob") as bob:
        await alice.apply(ABOUT)
        world.write("alice", "cities.csv", "2024-01-01T00:00:00Z,Graz,300000")
        await alice.pull()
        assert await search(bob) == [], "private until published"
        await alice.publish("cities")
        (found,) = await until_found(bob, words="town graz")
        assert (found.name, found.publisher, found.standing, found.local_name) == ("cities", "Graz", "announced", None)
        assert (found.license, found.keywords, found.namesakes) == ("CC0", ("people",), 0)
        assert [each.name for each in found.columns if each.name == "city"] == ["city"]
        assert await search(bob, attested=1) == []
        assert [
            len(await search(bob, standing=each)) for each in (("announced",), ("data", "announced"), ("data",))
        ] == [
            1,
            1,
            0,
        ]
        with pytest.raises(Invalid, match="no standing is called 'good'") as told:
            await search(bob, standing=("good",))
        assert "reproduced" in told.value.hint
        assert (await bob.api.search.card(found.id)).id == found.id

        named = bob.api.mirrors.add(wire.MirrorRequest(source=found.id))
        assert (await bob.done(named)).name == "cities", "as its publisher calls it"
        (held,) = await search(bob, column="city")
        assert (held.local_name, held.standing) == ("cities", "data")
        assert [len(await search(bob, standing=(each,))) for each in ("announced", "data")] == [0, 1]

        (card,) = [card for name, card in site_of(bob).cards(9) if name == "cities"]
        assert str(card.dataset) == found.id

        assert (await told_of_withdrawal(bob)) == {None}
        await alice.unpublish("cities")
        await until_found(bob, there=False)
        (taken,) = (await bob.api.search.search(wire.SearchRequest(words="citi"))).withdrawn
        assert (taken.name, taken.id) == ("cities", found.id)
        assert (await told_of_withdrawal(bob)) == {taken.withdrawn_at}, "on every page about it"
        (view,) = await bob.dataset_views()
        assert (view.conditions, view.state) == (("Withdrawn",), "fresh")
        assert bob.parts.views.cache.standings().withdrawn == 1
        assert [each.subject for each in bob.events.list_kept() if each.kind == "card.withdrawn"] == ["cities"]
        with pytest.raises(NotFound, match=f"withdrew it on {taken.withdrawn_at[:10]}"):
            await bob.api.search.card(found.id)
        assert not (await bob.api.search.search(wire.SearchRequest(words="towns"))).withdrawn
        assert await search(alice) == []
        assert await told_of_withdrawal(alice) == {None}, "it is its own"

        world.clock.instant += 61 * instant.SECOND
        await alice.publish("cities")
        await until_found(bob)
        assert (await told_of_withdrawal(bob)) == {None}, "shown again"


async def test_a_withdrawal_reaches_those_who_come_later(world: World) -> None:
    """The dataset is private again, and yet whoever heard of it before is told."""
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await alice.apply(ABOUT)
        world.write("alice", "cities.csv", "2024-01-01T00:00:00Z,Graz,300000")
        await alice.pull()
        await alice.publish("cities")
        await until_found(bob)
        await alice.unpublish("cities")
        await until_found(bob, there=False)
        refs = alice.parts.board.refs([alice.dataset("cities")])
        assert len(refs) == 1, "nothing but the withdrawal"
        told = alice.parts.board.envelope(refs[0].sid)
        assert told is not None
        async with world.running("carol") as carol:
            topic, raw = told
            carol.parts.board.judge(topic, raw, "x")
            with pytest.raises(NotFound, match="withdrew it on"):
                await carol.api.search.card(str(alice.dataset("cities")))


async def test_another_name_is_told_and_deletion_takes_back(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await alice.apply(ABOUT)
        await alice.publish("cities")
        await until_found(bob, words="cities")
        await alice.api.applying.rename("Dataset", "cities", "settlements")
        world.clock.instant += 61 * instant.SECOND
        alice.parts.cards.loop.touch_all()
        await until_found(bob, words="settlements")
        await alice.api.declarations.delete("Dataset", "settlements")
        await until_found(bob, there=False)


async def test_peers_of_one_block_of_addresses_raise_no_rank(world: World) -> None:
    """One operator may hold all of a block: what is served from more of them comes first, however many peers."""
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        names = ("crowded", "spread")
        for name in names:
            await alice.apply(ABOUT.replace("cities", name, 1))
        await alice.publish(*names)
        await until_found(bob, words="crowded")
        await until_found(bob, words="spread")
        blocks = {"a": "10.0.0.0/16", "b": "10.0.0.0/16", "c": "10.0.0.0/16", "d": "10.1.0.0/16", "e": "10.2.0.0/16"}
        crowded, spread = map(alice.dataset, names)
        holders = bob.api.search._holders
        holders._serving = lambda wanted: {crowded: {"a", "b", "c"}, spread: {"d", "e"}}
        holders._share_of = blocks.__getitem__
        found = await search(bob)
        assert [(each.name, each.peers, each.places) for each in found] == [("spread", 2, 2), ("crowded", 3, 1)]
        card = await bob.api.search.card(str(crowded))
        assert (card.peers, card.places) == (3, 1)


async def test_mirrors_of_one_name_are_told_apart_by_their_publisher(world: World) -> None:
    """The second is called by its publisher too, and the third by its id."""
    async with world.running("alice", private=True, **NAMED) as alice, world.running("bob", private=True) as bob:
        await alice.apply(ABOUT)
        await alice.publish("cities")
        await until_found(bob)
        theirs, name = alice.dataset("cities"), bob.api.mirrors._name
        assert name(theirs) == "cities"
        await bob.apply(ABOUT)
        assert name(theirs) == "Graz.cities"
        await bob.apply(ABOUT.replace("cities", "Graz.cities", 1))
        assert name(theirs) == default_name(theirs)


@pytest.mark.parametrize(
    ("said", "part"), [("  Universität Graz / 2 ", "Universitat-Graz-2"), ("日本", ""), ("", ""), ("a" * 99, "a" * 40)]
)
def test_a_publisher_becomes_a_part_of_a_name(said: str, part: str) -> None:
    assert _as_name(said) == part


async def test_look_alikes_of_a_card_are_counted_without_a_search(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        names = ("places", "p1aces")
        for name in names:
            await alice.apply(ABOUT.replace("cities", name, 1))
        await alice.publish(*names)
        with trio.fail_after(PATIENCE):
            for dataset in map(alice.dataset, names):
                while True:
                    shown = bob.member.shown
                    if bob.api.search.index.card(dataset) is not None:
                        break
                    await shown.wait()
        for name in names:
            assert (await bob.api.search.card(str(alice.dataset(name)))).namesakes == 1


async def test_the_publisher_is_told_what_its_card_has_no_room_for(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        await alice.apply(ABOUT.replace("Towns and who lives there", "x" * 5000))
        await alice.publish("cities")
        (signed,) = await alice.heard("card.signed", 1)
        assert "without all of its description: shorten" in signed.message
        await alice.apply(ABOUT.replace("cities", "towns", 1))
        await alice.publish("towns")
        whole = (await alice.heard("card.signed", 2))[1]
        assert "without" not in whole.message


async def test_a_collection_is_found_by_the_rendition_that_its_name_means(world: World) -> None:
    async with world.running("alice", private=True, **NAMED) as alice:
        await alice.apply(ABOUT)
        world.write("alice", "cities.csv", "2024-01-01T00:00:00Z,Graz,300000")
        await alice.pull()
        await alice.publish("cities")
        await alice.heard("card.signed", 1)  # nobody shows a node its own card
        (first,) = await search(alice, words="town graz")
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest(origin="snapshot")))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
        active = alice.dataset("cities")
        for each in (active, alice.dataset("cities.r0")):
            await trio.to_thread.run_sync(alice.parts.cards._settle, each)
        assert str(active) != first.id
        assert [each.id for each in await search(alice, words="town graz")] == [str(active)]
