"""Clocks that go backwards or far ahead: what is here stays, what comes is judged, nothing raises."""

from __future__ import annotations

from typing import Any

import pytest

from chain import instant
from chain.errors import Invalid
from chain.instant import Instant
from odfd.cli.trust_text import trust_text
from odfd.control import wire
from odfd.policy.policy import parse_expression
from odfd.trust.admission.rules import EARLY_LIMIT
from worlds.manifests import ROOT
from worlds.node_world import Node, Ticking, World

HOUR = 3600 * instant.SECOND
YEAR = 365 * 86400 * instant.SECOND


async def grown(world: World, node: Node, number: int) -> Any:
    world.write(node.home.directory.parent.name, f"{number}.csv", f"2024-01-{number + 1:02}T00:00:00Z,Graz,{number}")
    (item,) = await node.pull("cities")
    return item


async def test_a_clock_an_hour_ahead_delays_and_nothing_more(world: World) -> None:
    """Attack T-HEAD-01: a clock an hour ahead.

    Defence: its heads wait until their time; no peer is penalised.

    Its heads are taken when their time has come for others, and whoever passes them on is not to blame.
    """
    slow, fast = world.clock, Ticking(Instant(world.clock.instant + HOUR))
    world.clock = fast
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await grown(world, alice, 0)
        cities = alice.dataset("cities")
        world.clock = slow
        async with world.running("bob") as bob:
            await bob.api.mirrors.add(wire.MirrorRequest(source=str(cities), as_name="theirs"))
            mirror = await bob.parts.scheduler.pass_now(cities)
            assert "no signed head" in mirror.message
            slow.instant += HOUR
            await bob.member.pull_statements(alice.member.peer_id, [cities])
            await bob.pull("theirs")
            assert bob.size("theirs") == alice.size("cities")


@pytest.mark.parametrize("jump", [-HOUR, -instant.SECOND, YEAR])
async def test_time_that_jumps_loses_nothing(world: World, jump: int) -> None:
    """Attack T-HEAD-01: a clock that jumps.

    Defence: order is by size and epoch, waiting by a monotonic clock: stored data stays, transfers continue.

    The publisher's, in the middle of its life; another's too, and over a restart.
    """
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        assert (await grown(world, alice, 0)).outcome == "updated"
        cities, before = alice.dataset("cities"), alice.size("cities")
        async with world.running("bob") as bob:
            await bob.mirror(cities, "theirs")
            world.clock.instant += jump
            item = await grown(world, alice, 1)
            assert item.outcome == "updated", item
            assert alice.size("cities") == before + 1
            await bob.pull("theirs")
            assert bob.size("theirs") == alice.size("cities")
            assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest(level="data")))).ok
    async with world.running("alice") as alice:
        assert (await grown(world, alice, 2)).outcome == "updated"
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok


async def clock_probe(node: Node) -> wire.Probe:
    (found,) = [each for each in await node.api.about.doctor() if each.name == "clock"]
    return found


async def test_a_clock_that_was_years_ahead_freezes_nothing(world: World) -> None:
    """What was written under it is given up by the way that the doctor says; then the dataset goes on."""
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await grown(world, alice, 0)
        before = alice.size("cities")
        assert (await clock_probe(alice)).result == "ok"
        world.clock.instant += 10 * YEAR
        assert (await grown(world, alice, 1)).outcome == "updated"
        world.clock.instant -= 10 * YEAR
        item = await grown(world, alice, 2)
        assert (item.outcome, item.fault.rule) == ("failed", "clock-behind")
        told = await clock_probe(alice)
        assert told.result == "failed"
        assert f"cities: blocks from #{before} on are of 2035" in told.message
        assert f"; odfctl reset cities '#{before - 1}'; odfctl apply -f cities.yaml; odfctl pull cities;" in told.hint
        back = wire.RewriteRequest(action="reset", to=f"#{before - 1}")
        await alice.done(alice.api.rewriting.rewrite("cities", back))
        assert (await clock_probe(alice)).result == "ok"
        (item,) = await alice.pull("cities")
        assert (item.outcome, item.records) == ("updated", 2), "both files are taken in, under times that are true"
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok


async def test_what_was_signed_ahead_of_this_clock_is_not_fresh_and_is_told(world: World) -> None:
    """Attack T-HEAD-01: a head signed ahead of the clock, received or made while this node's clock was ahead too.

    Defence: it is not `fresh` until its time has come; the owner signs another at once.

    A clock that was a year ahead when the node began: the ingest says so at once, and later all that shows trust.
    """
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        assert (await grown(world, alice, 0)).message == ""
        before = alice.size("cities")
        world.clock.instant += YEAR + 5 * 24 * HOUR
        item = await grown(world, alice, 1)
        assert item.outcome == "updated"
        assert f"block #{before} is of 2027-01-06" in item.message
        assert "370 days after the block before; if the clock of this machine is wrong (clock-ahead)" in item.message
        assert f"odfctl reset cities '#{before - 1}'" in item.message
        assert (await grown(world, alice, 2)).message == "", "once"
        shown = await alice.api.trust.show("cities")
        assert (shown.facts.fresh, shown.facts.ahead) == (True, False)
        world.clock.instant -= YEAR + 5 * 24 * HOUR
        cities = alice.dataset("cities")
        assert alice.parts.evaluator.reach(cities, parse_expression("data & fresh")).blocks == 0
        shown = await alice.api.trust.show("cities")
        assert (shown.facts.fresh, shown.facts.ahead) == (False, True)
        assert ", not fresh: ahead of this clock" in trust_text(shown, world.clock.now(), "odfctl")
        (view,) = await alice.dataset_views()
        assert (view.state, view.conditions) == ("stale", ("Ahead",))
        until = alice.parts.evaluator.lasts_until([cities])
        assert until == shown_at(shown) - EARLY_LIMIT, "what is told is computed anew when its time has come"


def shown_at(view: wire.TrustView) -> Instant:
    assert view.signed_at is not None
    return instant.parse(view.signed_at)


async def test_a_head_that_was_renewed_ahead_of_the_clock_is_signed_again(world: World) -> None:
    """No block came meanwhile; others take no head from the future, and would have none for a year."""
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await grown(world, alice, 0)
        cities = alice.dataset("cities")
        world.clock.instant += YEAR
        assert alice.parts.committer.sign_unsigned(cities)
        world.clock.instant -= YEAR
        assert alice.parts.evaluator.known(cities).ahead
        assert alice.parts.committer.sign_unsigned(cities)
        known = alice.parts.evaluator.known(cities)
        assert (known.ahead, known.extent.fresh) == (False, True)
        assert not alice.parts.committer.sign_unsigned(cities)


async def test_a_dataset_that_was_made_years_ahead_is_made_anew(world: World) -> None:
    """No block of it can stay, so that there is nothing to reset it to."""
    async with world.running("alice") as alice:
        world.clock.instant += 10 * YEAR
        await alice.apply(ROOT)
        assert (await grown(world, alice, 0)).outcome == "updated"
        world.clock.instant -= 10 * YEAR
        assert (await grown(world, alice, 1)).fault.rule == "clock-behind"
        told = await clock_probe(alice)
        assert "cities: blocks from #0 on are of 2035" in told.message
        assert "; odfctl delete dataset cities; odfctl apply -f cities.yaml; odfctl pull cities;" in told.hint
        with pytest.raises(Invalid) as raised:
            await alice.done(alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="reset", to="#-1")))
        assert raised.value.rule == "block-number"


async def test_a_clock_that_is_set_ahead_of_the_monotonic_one_writes_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await grown(world, alice, 0)
        before, now = alice.size("cities"), world.clock.now
        world.clock.now = lambda: Instant(now() + 10 * YEAR)
        item = await grown(world, alice, 1)
        assert (item.outcome, item.fault.rule, alice.size("cities")) == ("failed", "clock-ahead", before)
        told = await clock_probe(alice)
        assert (told.result, "3,650 days ahead" in told.message) == ("failed", True)
        world.clock.now = now
        assert (await alice.pull("cities"))[0].outcome == "updated"


async def test_a_watermark_ahead_of_the_clock_is_told(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await grown(world, alice, 0)
        before = alice.size("cities")
        world.write("alice", "9.csv", "2099-01-01T00:00:00Z,Graz,1")
        await alice.pull("cities")  # the small engine takes it
        told = await clock_probe(alice)
        assert f"cities: since block #{before} its watermark is 2099-01-01" in told.message
        assert f"'#{before - 1}'" in told.hint
