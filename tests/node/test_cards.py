"""Cards of datasets and of nodes: what strangers find, read and look at, said on purpose and taken back."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
import trio

from chain import instant
from chain.errors import Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.terminal_text import is_visible
from config import model
from odfd.cli import details
from odfd.control import wire
from odfd.network.joined_networks import Network
from odfd.services.network.search import _as_name
from odfd.services.network.site_library import NodeSiteLibrary
from odfd.store.catalog import default_name
from odfd.store.ledger.cards import NodeCards
from p2p.ports import Topic
from worlds.manifests import ROOT
from worlds.node_world import PATIENCE, Node, World
from worlds.node_world import until as comes

# Cards among nodes: a stranger finds a dataset by words, reads what it is and mirrors it; a withdrawal ends that.


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
        await alice.take_in(ABOUT, files={"cities.csv": ["2024-01-01T00:00:00Z,Graz,300000"]})
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
        with pytest.raises(Invalid, match="no trust level is called 'good'") as told:
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
    """Attack T-PRIVATE-02: inferring from a node's statements which datasets it withdrew.

    Defence: a signed withdrawal is sent only to nodes that had the dataset's statements or ask by its id; nothing is
    sent about datasets that were never published.

    The dataset is private again, and yet whoever heard of it before is told.
    """
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await alice.take_in(ABOUT, files={"cities.csv": ["2024-01-01T00:00:00Z,Graz,300000"]})
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
    """Attack T-CARD-02: many peers of one operator that say they serve a dataset, to raise its rank.

    Defence: peers of one subnet (/16 of IPv4, /32 of IPv6) count once, and a dataset's trust counts before them.

    One operator may hold all of a block: what is served from more of them comes first, however many peers.
    """
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
        await alice.take_in(ABOUT, files={"cities.csv": ["2024-01-01T00:00:00Z,Graz,300000"]})
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


# Samples of rows on cards: shown on purpose, replaced and taken back with the card, and safe to look at.


COLUMNS = ("event_time", "city", "population")
HOSTILE = "\x1b[2J\u202eevil\u200b"


def row(day: int, city: str, people: int) -> str:
    return f"2024-01-0{day}T00:00:00Z,{city},{people}"


def text(day: int, city: str, people: str) -> tuple[str, ...]:
    return (f"2024-01-0{day}T00:00:00Z", city, people)


async def own_card(node: Node) -> wire.CardView:
    await node.heard("card.signed", 1)
    (card,) = (await node.api.search.search(wire.SearchRequest())).found
    return card


async def test_rows_are_shown_on_purpose_replaced_and_taken_back(world: World) -> None:
    """Attack T-PRIVATE-06: reading on a card what its publisher did not mean to show: rows that the publisher did not
    choose, rows that a portal withholds, or rows that were retracted.

    Defence: a card has no row without the operator's decision, which ends when the dataset is private; rows are of the
    published chain alone, without corrected and retracted ones.
    """
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await alice.take_in(ROOT, files={"1.csv": [row(1, "Graz", 300), row(2, "Linz", 200), row(3, "", 5)]})
        assert (await publish(alice)).sample == 0
        assert (await until_card(bob, sample=None)) is not None, "none, unless its publisher wants it"

        world.clock.instant += 61 * instant.SECOND
        shown = await publish(alice, sample=2)
        assert (shown.changed, shown.sample) == (True, 2)
        wanted = wire.CardRows(columns=COLUMNS, rows=(text(2, "Linz", "200"), (*text(3, "", "5")[:1], None, "5")))
        card = await until_card(bob, sample=wanted)
        assert card is not None
        assert (await bob.api.search.card(card.id)).sample == wanted, "nothing but its columns, and the newest rows"
        assert (await alice.api.datasets.describe("cities")).sample == 2
        assert [each.message for each in await alice.heard("dataset.sample", 1)] == ["its card shows up to 2 rows"]
        assert not (await publish(alice, sample=2)).changed

        world.write("alice", "2.csv", row(4, "Wels", 60))
        world.clock.instant += 3601 * instant.SECOND
        await alice.pull()
        newest = (wanted.rows[1], text(4, "Wels", "60"))
        assert await until_card(bob, sample=wire.CardRows(columns=COLUMNS, rows=newest)), (
            "the next card has the newest rows"
        )

        world.clock.instant += 61 * instant.SECOND
        await publish(alice, sample=0)
        assert await until_card(bob, sample=None), "the next card has none"
        world.clock.instant += 61 * instant.SECOND
        await publish(alice, sample=1)
        assert await until_card(bob, sample=wire.CardRows(columns=COLUMNS, rows=newest[1:]))
        await alice.unpublish("cities")
        await until_no_card(bob)
        taken = bob.api.search.index.card(alice.dataset("cities"))
        assert taken is not None
        assert (taken.is_withdrawal, taken.sample) == (True, None)
        world.clock.instant += 61 * instant.SECOND
        await publish(alice)
        assert await until_card(bob, sample=None), "whoever made it private gave up the sample too"


async def test_a_row_that_was_corrected_or_taken_back_is_not_shown(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        await alice.take_in(
            ROOT.replace("merge: {kind: Append}", "merge: {kind: Ledger, primaryKey: [event_time, city]}"),
            files={"1.csv": [row(1, "Graz", 300), row(2, "Linz", 200), row(3, "Wels", 5)]},
        )
        for day, city, said in ((2, "Linz", {"values": {"population": "201"}}), (3, "Wels", {"retract": True})):
            key = {"event_time": f"2024-01-0{day}T00:00:00Z", "city": city}
            await alice.done(alice.api.flow.correct("cities", wire.CorrectRequest(key=key, **said)))  # type: ignore[arg-type]
        await publish(alice, sample=5)
        rows = (text(1, "Graz", "300"), text(2, "Linz", "201"))
        assert (await own_card(alice)).sample == wire.CardRows(columns=COLUMNS, rows=rows)


async def test_values_that_steer_a_terminal_or_are_too_long_are_safe_to_look_at(world: World) -> None:
    """Attack T-CARD-03: rows on a card that steer a terminal or a page, or are made to fill memory.

    Defence: at most 20 rows of 64 columns and 64 characters within the card's 8 KiB, parsed under these limits; each
    value is shown as one line of harmless text.

    What was left out for want of room is counted, and what is shown is cut and harmless.
    """
    async with world.running("alice", private=True) as alice:
        await alice.apply(ROOT)
        long = [row(1, f"{place:02}" + "\N{EARTH GLOBE EUROPE-AFRICA}" * 300, place) for place in range(40)]
        await alice.take_in(files={"1.csv": [*long, row(2, HOSTILE, 1)]})
        await publish(alice, sample=20)
        card = await own_card(alice)
        (signed,) = await alice.heard("card.signed", 1)
        assert card.sample is not None
        assert card.sample.rows[-1] == text(2, HOSTILE, "1")
        assert len(card.sample.rows) + card.sample.left_out == 20
        assert card.sample.left_out > 0
        assert f"sample ({card.sample.left_out} rows left out)" in signed.message
        assert max(len(cell or "") for each in card.sample.rows for cell in each) == 64
        told = details.card(card)
        assert is_visible(told)
        assert "evil" in told
        assert f"{card.sample.left_out} more that the card has no space for" in told


async def test_the_sample_of_a_portal_has_no_row_that_its_rule_leaves_out(world: World) -> None:
    portal = "$schema: Portal\nheaders: {name: census}\nspec: {input: Dataset:cities, dataset: Dataset:census, "
    rule = "suppress: [{count: population, below: 5, groups: [event_time, city]}]}\n"
    root = "$schema: Dataset\nheaders: {name: census}\nspec: {kind: Root, metadata: []}\n"
    async with world.running("alice", private=True) as alice:
        await alice.take_in(
            ROOT, files={"1.csv": [row(1, "Graz", 300), row(1, "Gmunden", 2), row(1, "Linz", 200)]}, pulls=["cities"]
        )
        await alice.apply(root, portal + rule)
        await alice.pull("census")
        await publish(alice, "census", sample=20)
        rows = (text(1, "Graz", "300"), text(1, "Linz", "200"))
        assert (await own_card(alice)).sample == wire.CardRows(columns=COLUMNS, rows=rows)


# What a publisher says of a dataset on its card, on purpose: kept apart from what its chain says, and taken back.


WORDS = {"title": "Cities of Austria", "place": "Austria", "area": "9.5, 46.4, 17.2, 49", "frequency": "daily"}
SAID = wire.CardWords(
    title="Cities of Austria",
    place="Austria",
    area=wire.CardArea(west=9.5, south=46.4, east=17.2, north=49.0),
    frequency="daily",
)
NOTHING = wire.CardWords()


async def publish(node: Node, *refs: str, **more: Any) -> wire.VisibilityView:
    (view,) = await node.api.visibility.publish(wire.VisibilityRequest(refs=refs or ("cities",), **more))
    return view


async def until_card(node: Node, **said: Any) -> wire.CardView:
    """The card that says this, once a node has it."""
    with trio.fail_after(PATIENCE):
        while True:
            shown = node.member.shown
            cards = (await node.api.search.search(wire.SearchRequest())).found
            if cards and all(getattr(cards[0], name) == value for name, value in said.items()):
                return cards[0]
            await shown.wait()


async def until_no_card(node: Node) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            shown = node.member.shown
            if not (await node.api.search.search(wire.SearchRequest())).found:
                return
            await shown.wait()


async def test_words_are_said_on_purpose_found_and_taken_back(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await alice.take_in(ROOT, files={"1.csv": ["2024-01-01T00:00:00Z,Graz,300", "2024-01-03T00:00:00.5Z,Linz,200"]})
        assert (await publish(alice)).words == NOTHING
        first = await until_card(bob, words=NOTHING)
        assert (first.first_event, first.last_event, first.update_interval) == (
            "2024-01-01T00:00:00Z",
            "2024-01-03T00:00:00Z",
            0,
        ), "what the chain says is there without anybody's decision"
        view = await alice.dataset_view("cities")
        assert 0 < first.bytes == view.bytes

        world.clock.instant += 61 * instant.SECOND
        said = await publish(alice, **WORDS)
        assert (said.changed, said.words) == (True, SAID)
        card = await until_card(bob, words=SAID)
        for words in ("austria", "citi", "cities austria"):
            (hit,) = (await bob.api.search.search(wire.SearchRequest(words=words))).found
            assert (hit.id, hit.words) == (card.id, SAID)
        assert (await bob.api.search.card(card.id)).words == SAID
        assert (await alice.api.datasets.describe("cities")).words == SAID
        (told,) = [each.message for each in await alice.heard("dataset.words", 1)]
        assert told == "its card states its title, place, area, frequency"
        assert not (await publish(alice, title="Cities of Austria")).changed
        shown = details.card(card)
        for line in (
            "Cities of Austria",
            "9.5, 46.4, 17.2, 49 (west",
            "daily, says its publisher",
            "2024-01-01 to 2024-01-03",
        ):
            assert line in shown

        world.clock.instant += 61 * instant.SECOND
        await publish(alice, title="", area="")
        kept = msgspec.structs.replace(SAID, title="", area=None)
        await until_card(bob, words=kept), "each word stays until another is said"
        world.clock.instant += 61 * instant.SECOND
        await alice.unpublish("cities")
        await publish(alice)
        await until_card(bob, words=NOTHING), "whoever made it private gave up the words too"


async def test_words_on_a_card_show_a_dataset_to_nobody_else(world: World) -> None:
    """Attack T-PRIVATE-03: words on the card of a dataset that is published in one network, which would publish it
    everywhere.

    Defence: a card changes nothing about the networks of its dataset.
    """
    async with world.running("alice", private=True) as alice:
        await alice.apply(ROOT)
        here = "wires"
        assert (await publish(alice, to=(here,))).networks == (here,)
        for asked in ({"title": "Cities"}, {"sample": 1}):
            view = await publish(alice, **asked)
            assert (view.networks, view.changed) == ((here,), True)
        assert (await publish(alice)).networks is None, "whoever wants everybody to have it says so"


async def test_times_of_rows_and_updates_are_those_of_all_blocks_also_after_a_restart(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        for file, day in enumerate((5, 3, 9)):
            world.clock.instant += 3_700 * instant.SECOND
            await alice.take_in(files={f"{file}.csv": [f"2024-01-0{day}T00:00:00Z,Graz,300"]})
        await publish(alice)
        await alice.heard("card.signed", 1)
    world.clock.instant += 3_700 * instant.SECOND
    async with world.running("alice") as alice:
        await alice.take_in(files={"4.csv": ["2024-01-02T00:00:00Z,Graz,300"]})
        await alice.heard("card.signed", 1)
        (card,) = (await alice.api.search.search(wire.SearchRequest())).found
        assert (card.first_event, card.last_event) == ("2024-01-02T00:00:00Z", "2024-01-09T00:00:00Z")
        assert 3_700 <= card.update_interval < 3_760, "the pulls were so far apart"


WRONG: tuple[tuple[dict[str, Any], type[Fault], str], ...] = (
    ({"sample": 21}, Invalid, "sample-rows"),
    ({"sample": -1}, Invalid, "sample-rows"),
    ({"refs": (), "all": True, "sample": 1}, Invalid, "sample-all"),
    ({"refs": ("cities", "theirs"), "sample": 1}, Refused, "sample-of-others"),
    ({"title": "\x1b[2Jdust"}, Invalid, "card-text"),
    ({"title": "\u202etsud"}, Invalid, "card-text"),
    ({"title": "two\nlines"}, Invalid, "card-text"),
    ({"title": "did:odf:fed01"}, Invalid, "card-text"),
    ({"title": "x" * 129}, Invalid, "card-text"),
    ({"place": " Graz"}, Invalid, "card-text"),
    ({"area": "nan,0,1,1"}, Invalid, "card-area"),
    ({"area": "Austria"}, Invalid, "card-area"),
    ({"area": "47.00,15.35,47.14,115.54"}, Invalid, "card-area"),
    ({"frequency": "sometimes"}, Invalid, "card-frequency"),
    ({"refs": (), "all": True, "title": "All"}, Invalid, "words-all"),
    ({"refs": ("cities", "theirs"), "title": "Both"}, Invalid, "words-all"),
    ({"refs": ("theirs",), "title": "Theirs"}, Refused, "words-of-others"),
)


async def test_samples_and_words_that_no_card_can_have_change_nothing(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob", private=True) as bob:
        await alice.apply(ROOT)
        await alice.publish("cities")
        await bob.mirror(alice.dataset("cities"), "theirs")
        await bob.apply(ROOT)
        for asked, fault, rule in WRONG:
            with pytest.raises(fault) as told:
                await bob.api.visibility.publish(wire.VisibilityRequest(**{"refs": ("cities",), **asked}))
            assert (told.value.rule, bool(told.value.hint)) == (rule, True)
            assert is_visible(told.value.message)
            assert {view.name: view.published for view in await bob.dataset_views()}["cities"] is False


# Cards of nodes among nodes: a name is told, kept while its node is away, changed and taken back; two look alike.


T = TypeVar("T")
SILENT = {"node": model.Node(name="Graz", contact="mail@example.org")}


def named(name: str, **more: str) -> dict[str, Any]:
    return {"node": model.Node(name=name, **more), "p2p": model.P2p(card=True)}


async def until(node: Node, asked: Callable[[], Awaitable[T]]) -> T:
    """Asks until the answer is true, each time that something new came to ``node``."""
    with trio.fail_after(PATIENCE):
        while True:
            shown = node.member.shown
            if found := await asked():
                return found
            await shown.wait()


def sees(node: Node, other: Node, name: str | None) -> Callable[[], Awaitable[wire.PeerState | None]]:
    """What ``node`` shows of a connected peer, once that peer is called so here."""

    async def look() -> wire.PeerState | None:
        found = (await node.api.peers.states()).get(other.member.peer_id)
        return found if found is not None and found.name == name else None

    return look


def calls(node: Node, other: Node) -> str | None:
    """How ``node`` calls another, away or not."""
    said = node.api.peers.names().of_peer(other.member.peer_id)
    return None if said is None else said.name


def resettled(of: Node, **settings: Any) -> None:
    """As after SIGHUP with another file of settings."""
    of.parts.reload(dataclasses.replace(of.parts.settings, **settings))


async def test_a_name_is_told_kept_while_away_changed_and_taken_back(world: World) -> None:
    async with world.running("bob") as bob:
        async with world.running("alice", **named("Graz", contact="mail@example.org", about="Air")) as alice:
            peer = await until(bob, sees(bob, alice, "Graz"))
            assert peer is not None
            assert (peer.contact, peer.about, peer.alike) == ("mail@example.org", "Air", 0)
            assert (await bob.api.networks.state("wires")).members == (
                wire.PeerName(peer_id=alice.member.peer_id, name="Graz"),
            )
            assert [each.name for each in (await alice.api.peers.states()).values()] == [None], "bob told nothing"
        assert calls(bob, alice) == "Graz", "it is away"
        async with world.running("carol") as carol:
            await until(carol, _is(lambda: calls(carol, alice) == "Graz"))
        async with world.running("alice", **named("Graz", contact="mail@example.org", about="Air")) as alice:
            with alice.home.database.read() as connection:
                before = NodeCards(connection).of(alice.home.keys.node_key().did)
            world.clock.instant += 2_000_000_000
            resettled(alice, node=model.Node(name="Universität Graz"))
            changed = await until(bob, sees(bob, alice, "Universität Graz"))
            assert changed is not None
            assert changed.contact == ""
            assert alice.parts.node_card.current is not None
            assert before is not None
            assert alice.parts.node_card.current.issued > before.issued
            resettled(alice, p2p=model.P2p())
            assert await until(bob, sees(bob, alice, None))
            assert calls(alice, alice) is None
        async with world.running("dora") as dora:
            await until(dora, _is(lambda: len(dora.parts.board.peer_cards.refs()) == 1))  # the withdrawal is passed on
            assert calls(dora, alice) is None


def _is(true: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return true()

    return look


async def test_nothing_is_told_that_a_person_did_not_ask_for(world: World) -> None:
    """A name for logs and cards of datasets is not told as the node's; nor does its dataset name the node."""
    async with world.running("alice", private=True, **SILENT) as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        await alice.publish("cities")
        (found,) = await until(bob, lambda: _found(bob))
        assert (found.publisher, found.node) == ("Graz", None)
        assert not [raw for topic, raw in alice.member.announced if b"node-card" in raw]
        assert alice.parts.node_card.current is None
        assert len(bob.parts.board.peer_cards) == 0


async def _found(node: Node) -> tuple[wire.CardView, ...]:
    return (await node.api.search.search(wire.SearchRequest())).found


async def _announced(node: Node) -> tuple[wire.Announced, ...]:
    return (await node.api.networks.state("wires")).datasets


async def test_a_dataset_shows_the_node_that_signed_to_publish_it(world: World) -> None:
    async with world.running("alice", private=True, **named("Graz")) as alice, world.running("bob") as bob:
        await alice.take_in(ROOT, files={"cities.csv": ["2024-01-01T00:00:00Z,Graz,300000"]})
        await alice.publish("cities")
        await until(bob, sees(bob, alice, "Graz"))
        (found,) = await until(bob, lambda: _found(bob))
        node = wire.PeerName(peer_id=alice.member.peer_id, name="Graz")
        assert found.node == node
        assert (await bob.api.search.card(found.id)).node == node
        (announced,) = await until(bob, lambda: _announced(bob))
        assert announced.node == node
        await bob.added(wire.MirrorRequest(source=found.id))
        (mirror,) = await bob.mirrors()
        assert mirror.node == node


async def test_a_second_node_of_a_name_that_looks_the_same_is_told_apart_by_id(world: World) -> None:
    """Attack T-CARD-02: a node with another's name, or with a name that looks the same in any script.

    Defence: both are shown as alike, with ids, and this node's own name counts too; commands take ids only.
    """
    async with (
        world.running("alice", **named("Graz")) as alice,
        world.running("mallory", **named("Gr\u0430z")) as mallory,
        world.running("bob") as bob,
    ):
        for other, name in ((alice, "Graz"), (mallory, "Gr\u0430z")):
            await until(bob, sees(bob, other, name))
        shown = (await bob.api.networks.state("wires")).members
        assert {(each.peer_id, each.name, each.alike) for each in shown} == {
            (alice.member.peer_id, "Graz", 1),
            (mallory.member.peer_id, "Gr\u0430z", 1),
        }


async def test_a_name_that_cannot_be_told_is_not_signed(world: World) -> None:
    """Settings are checked before; this holds whatever they say."""
    async with world.running("alice", **named("Graz")) as alice:
        alice.parts.node_card.loop._work()
        told = alice.parts.node_card.current
        alice.parts.in_force.settings.put(dataclasses.replace(alice.parts.settings, node=model.Node(name="12D3KooW")))
        alice.parts.node_card.loop._work()
        assert alice.parts.node_card.current == told
        assert told is not None


async def test_a_damaged_card_is_signed_anew(world: World) -> None:
    async with world.running("alice", **named("Graz")) as alice:
        alice.parts.node_card.loop._work()
        with alice.home.database.write() as connection:
            connection.execute("UPDATE trust_node_cards SET issued = 0")
        alice.parts.node_card.loop._work()
        with alice.home.database.read() as connection:
            kept = NodeCards(connection).of(alice.home.keys.node_key().did)
        assert kept is not None
        assert kept.claims is not None


def _heads(node: Node) -> list[bytes]:
    return [raw for topic, raw in node.member.announced if topic is Topic.HEADS]


async def test_a_card_that_was_heard_in_one_network_is_told_in_no_other(world: World) -> None:
    """Attack T-PRIVATE-03: learning from a card heard in one network that its node is a member of it, in another
    network.

    Defence: it is passed on in the networks where it was heard.

    A node in two networks tells its own card in both, and a stranger's where it came from.
    """
    async with (
        world.running("alice", private=True, **named("Graz")) as alice,
        world.running("bob", **named("Wien")) as bob,
    ):
        await comes(lambda: alice.parts.node_card.current is not None)
        await comes(lambda: _heads(bob))
        raw = _heads(bob)[0]
        await alice.member.take_part(Network(name="a"), Network(name="b"))
        cards = alice.parts.board.peer_cards
        with cards._lock:
            for node in list(cards._kept):
                cards._forget(node)
        alice.parts.board.within("a").judge(Topic.HEADS, raw, bob.member.peer_id)
        mine, theirs = (DatasetId(each.home.keys.node_key().did) for each in (alice, bob))
        told = {name: {ref.dataset for ref in alice.parts.board.within(name).refs()} for name in ("a", "b")}
        assert told == {"a": {mine, theirs}, "b": {mine}}
        (ref,) = [ref for ref in alice.parts.board.within("a").refs() if ref.dataset == theirs]
        assert alice.parts.board.within("a").envelope(ref.sid) == (Topic.HEADS, raw)
        assert alice.parts.board.within("b").envelope(ref.sid) is None
