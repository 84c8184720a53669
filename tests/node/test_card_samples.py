"""Samples of rows on cards: shown on purpose, replaced and taken back with the card, and safe to look at."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from chain import instant
from chain.errors import Fault, Invalid, Refused
from chain.terminal_text import is_visible
from odfd.cli import details
from odfd.control import wire
from worlds.manifests import ROOT
from worlds.node_world import PATIENCE, Node, World

COLUMNS = ("event_time", "city", "population")
HOSTILE = "\x1b[2J\u202eevil\u200b"


def row(day: int, city: str, people: int) -> str:
    return f"2024-01-0{day}T00:00:00Z,{city},{people}"


def text(day: int, city: str, people: str) -> tuple[str, ...]:
    return (f"2024-01-0{day}T00:00:00Z", city, people)


async def publish(node: Node, sample: int | None, *refs: str, **more: Any) -> wire.VisibilityView:
    request = wire.VisibilityRequest(refs=refs or ("cities",), sample=sample, **more)
    (view,) = await node.api.visibility.publish(request)
    return view


async def until_card(node: Node, sample: wire.CardRows | None, *, found: bool = True) -> wire.CardView | None:
    """The card that shows this sample, once a node has it."""
    with trio.fail_after(PATIENCE):
        while True:
            shown = node.member.shown
            cards = (await node.api.search.search(wire.SearchRequest())).found
            if not found and not cards:
                return None
            if found and cards and cards[0].sample == sample:
                return cards[0]
            await shown.wait()


async def own_card(node: Node) -> wire.CardView:
    await node.heard("card.signed", 1)
    (card,) = (await node.api.search.search(wire.SearchRequest())).found
    return card


async def test_rows_are_shown_on_purpose_replaced_and_taken_back(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        world.write("alice", "1.csv", row(1, "Graz", 300), row(2, "Linz", 200), row(3, "", 5))
        await alice.pull()
        assert (await publish(alice, None)).sample == 0
        assert (await until_card(bob, None)) is not None, "none, unless its publisher wants it"

        world.clock.instant += 61 * instant.SECOND
        shown = await publish(alice, 2)
        assert (shown.changed, shown.sample) == (True, 2)
        wanted = wire.CardRows(columns=COLUMNS, rows=(text(2, "Linz", "200"), (*text(3, "", "5")[:1], None, "5")))
        card = await until_card(bob, wanted)
        assert card is not None
        assert (await bob.api.search.card(card.id)).sample == wanted, "nothing but its columns, and the newest rows"
        assert (await alice.api.datasets.describe("cities")).sample == 2
        assert [each.message for each in await alice.heard("dataset.sample", 1)] == ["its card shows up to 2 rows"]
        assert not (await publish(alice, 2)).changed

        world.write("alice", "2.csv", row(4, "Wels", 60))
        world.clock.instant += 3601 * instant.SECOND
        await alice.pull()
        newest = (wanted.rows[1], text(4, "Wels", "60"))
        assert await until_card(bob, wire.CardRows(columns=COLUMNS, rows=newest)), "the next card has the newest rows"

        world.clock.instant += 61 * instant.SECOND
        await publish(alice, 0)
        assert await until_card(bob, None), "the next card has none"
        world.clock.instant += 61 * instant.SECOND
        await publish(alice, 1)
        assert await until_card(bob, wire.CardRows(columns=COLUMNS, rows=newest[1:]))
        await alice.unpublish("cities")
        assert await until_card(bob, None, found=False) is None
        taken = bob.api.search.index.card(alice.dataset("cities"))
        assert taken is not None
        assert (taken.is_withdrawal, taken.sample) == (True, None)
        world.clock.instant += 61 * instant.SECOND
        await publish(alice, None)
        assert await until_card(bob, None), "whoever made it private gave up the sample too"


async def test_a_row_that_was_corrected_or_taken_back_is_not_shown(world: World) -> None:
    async with world.running("alice", private=True) as alice:
        await alice.apply(
            ROOT.replace("merge: {kind: Append}", "merge: {kind: Ledger, primaryKey: [event_time, city]}")
        )
        world.write("alice", "1.csv", row(1, "Graz", 300), row(2, "Linz", 200), row(3, "Wels", 5))
        await alice.pull()
        for day, city, said in ((2, "Linz", {"values": {"population": "201"}}), (3, "Wels", {"retract": True})):
            key = {"event_time": f"2024-01-0{day}T00:00:00Z", "city": city}
            await alice.done(alice.api.flow.correct("cities", wire.CorrectRequest(key=key, **said)))  # type: ignore[arg-type]
        await publish(alice, 5)
        rows = (text(1, "Graz", "300"), text(2, "Linz", "201"))
        assert (await own_card(alice)).sample == wire.CardRows(columns=COLUMNS, rows=rows)


async def test_values_that_steer_a_terminal_or_are_too_long_are_safe_to_look_at(world: World) -> None:
    """What was left out for want of room is counted, and what is shown is cut and harmless."""
    async with world.running("alice", private=True) as alice:
        await alice.apply(ROOT)
        long = [row(1, f"{place:02}" + "\N{EARTH GLOBE EUROPE-AFRICA}" * 300, place) for place in range(40)]
        world.write("alice", "1.csv", *long, row(2, HOSTILE, 1))
        await alice.pull()
        await publish(alice, 20)
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
        assert f"{card.sample.left_out} more without room on the card" in told


async def test_the_sample_of_a_portal_has_no_row_that_its_rule_leaves_out(world: World) -> None:
    portal = "$schema: Portal\nheaders: {name: census}\nspec: {input: Dataset:cities, dataset: Dataset:census, "
    rule = "suppress: [{count: population, below: 5, groups: [event_time, city]}]}\n"
    root = "$schema: Dataset\nheaders: {name: census}\nspec: {kind: Root, metadata: []}\n"
    async with world.running("alice", private=True) as alice:
        world.write("alice", "1.csv", row(1, "Graz", 300), row(1, "Gmunden", 2), row(1, "Linz", 200))
        await alice.apply(ROOT)
        await alice.pull("cities")
        await alice.apply(root, portal + rule)
        await alice.pull("census")
        await publish(alice, 20, "census")
        rows = (text(1, "Graz", "300"), text(1, "Linz", "200"))
        assert (await own_card(alice)).sample == wire.CardRows(columns=COLUMNS, rows=rows)


WRONG: tuple[tuple[dict[str, Any], type[Fault], str], ...] = (
    ({"refs": ("cities",), "sample": 21}, Invalid, "sample-rows"),
    ({"refs": ("cities",), "sample": -1}, Invalid, "sample-rows"),
    ({"all": True, "sample": 1}, Invalid, "sample-all"),
    ({"refs": ("cities", "theirs"), "sample": 1}, Refused, "sample-of-others"),
)


async def test_what_is_no_sample_changes_nothing(world: World) -> None:
    async with world.running("alice", private=True) as alice, world.running("bob", private=True) as bob:
        await alice.apply(ROOT)
        await alice.publish("cities")
        await bob.mirror(alice.dataset("cities"), "theirs")
        await bob.apply(ROOT)
        for asked, fault, rule in WRONG:
            with pytest.raises(fault) as told:
                await bob.api.visibility.publish(wire.VisibilityRequest(**asked))
            assert told.value.rule == rule
            assert {view.name: view.published for view in await bob.dataset_views()}["cities"] is False
