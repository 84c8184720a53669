"""What a publisher says of a dataset on its card, on purpose: kept apart from what its chain says, and taken back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from chain import instant
from chain.errors import Fault, Invalid, Refused
from chain.terminal_text import is_visible
from odfd.cli import details
from odfd.control import wire
from worlds.manifests import ROOT
from worlds.node_world import PATIENCE, Node, World

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


async def until_card(node: Node, words: wire.CardWords, *, found: bool = True) -> wire.CardView:
    """The card that says this, once a node has it."""
    with trio.fail_after(PATIENCE):
        while True:
            shown = node.member.shown
            cards = (await node.api.search.search(wire.SearchRequest())).found
            if cards and cards[0].words == words:
                return cards[0]
            await shown.wait()


async def test_words_are_said_on_purpose_found_and_taken_back(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,300", "2024-01-03T00:00:00.5Z,Linz,200")
        await alice.pull()
        assert (await publish(alice)).words == NOTHING
        first = await until_card(bob, NOTHING)
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
        card = await until_card(bob, SAID)
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
        await until_card(bob, kept), "each word stays until another is said"
        world.clock.instant += 61 * instant.SECOND
        await alice.unpublish("cities")
        await publish(alice)
        await until_card(bob, NOTHING), "whoever made it private gave up the words too"


async def test_words_on_a_card_show_a_dataset_to_nobody_else(world: World) -> None:
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
            world.write("alice", f"{file}.csv", f"2024-01-0{day}T00:00:00Z,Graz,300")
            await alice.pull()
        await publish(alice)
        await alice.heard("card.signed", 1)
    world.clock.instant += 3_700 * instant.SECOND
    async with world.running("alice") as alice:
        world.write("alice", "4.csv", "2024-01-02T00:00:00Z,Graz,300")
        await alice.pull()
        await alice.heard("card.signed", 1)
        (card,) = (await alice.api.search.search(wire.SearchRequest())).found
        assert (card.first_event, card.last_event) == ("2024-01-02T00:00:00Z", "2024-01-09T00:00:00Z")
        assert 3_700 <= card.update_interval < 3_760, "the pulls were so far apart"


WRONG: tuple[tuple[dict[str, Any], type[Fault], str], ...] = (
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


async def test_words_that_no_card_can_have_change_nothing(world: World) -> None:
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
