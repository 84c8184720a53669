"""Observers among nodes: a root dataset whose source is a web page, fetched again by others, and counted."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from chain.errors import NotFound
from chain.model.events import AddData
from chain.multihash import Multihash
from chain.statements.statement import OBSERVATION
from config import model
from odfd.control import wire
from odfd.ingest import driver
from odfd.ingest.plan import plan_ingest
from odfd.store.ledger import kinds
from odfd.store.ledger.observations import Observations
from p2p.ports import Topic
from worlds.http_served import HttpServer, serving
from worlds.manifests import ROOT as CITIES
from worlds.node_world import Node, World

ROOT = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: '{url}'}}
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {{kind: Ledger, primaryKey: [event_time, city]}}
"""
HEADER = "event_time,city,population"
OBSERVES = model.Policy(publish=model.Publish(observe=True))


class Page(http.server.BaseHTTPRequestHandler):
    """One document that can be changed, and taken away."""

    rows: tuple[str, ...] = ()
    tag: str | None = None
    gone = False
    asked = 0

    def do_GET(self) -> None:
        kind = type(self)
        kind.asked += 1
        body = "\n".join((HEADER, *kind.rows, "")).encode()
        self.send_response(404 if kind.gone else 200)
        if kind.tag is not None:
            self.send_header("ETag", kind.tag)
        self.send_header("Content-Length", str(0 if kind.gone else len(body)))
        self.end_headers()
        if not kind.gone:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def page() -> Iterator[Any]:
    kind: Any = type("OnePage", (Page,), {"rows": ("2024-01-01T00:00:00Z,Graz,300000",), "tag": '"v1"'})
    with serving(HttpServer(kind)) as server:
        kind.url = f"{server.url}/cities.csv"
        yield kind


@pytest.fixture
def open_world(world: World) -> Any:
    """One in which the loopback is as good as the Internet."""
    world.may_dial = lambda _: True
    return world


async def published(world: World, page: Any, alice: Node) -> Any:
    await alice.apply(ROOT.format(url=page.url))
    await alice.pull()
    await world.spread(alice, "cities")
    return alice.dataset("cities")


def counts(bob: Node) -> model.Policy:
    groups = (model.Group(name="bob", keys=(bob.key,)),)
    return model.Policy(use="data & observed:1", validators=model.Validators(f=0, groups=groups))


@pytest.mark.slow
async def test_an_observer_is_counted(open_world: Any, page: Any) -> None:
    """What Bob fetched himself lets Carol rely on what Alice published; she fetches nothing."""
    world = open_world
    async with world.running("alice") as alice, world.running("bob", OBSERVES) as bob:
        cities = await published(world, page, alice)
        await bob.mirror(cities, "theirs")
        (event,) = await bob.heard("observation.signed")
        assert event.data["result"] == "same-bytes"
        fetched = page.asked
        async with world.running("carol", counts(bob)) as carol:
            await carol.mirror(cities, "theirs")
            await carol.heard("observation.heard")
            shown = await carol.api.trust.show("theirs")
            assert (shown.reach.use, shown.blocks) == (alice.size("cities"),) * 2
            assert (await carol.dataset_view("theirs")).rely_on.fact == "observed 1/2"
            assert (await bob.dataset_view("theirs")).rely_on.fact == "observed 1/1"
            assert (await alice.dataset_view("cities")).rely_on.fact == "data", "whose word counts nowhere there"
            assert (shown.facts.observed.have, shown.facts.observed.needed) == (1, 1)
            (view,) = shown.observations
            assert (view.group, view.result, view.block) == ("bob", "same-bytes", alice.size("cities") - 1)
            page.rows, page.tag = (*page.rows, "2024-01-02T00:00:00Z,Linz,210000"), None
            bob_before = bob.size("theirs")
            await alice.pull("cities")
            await bob.heard("observation.signed", 2)
            events = await carol.heard("observation.heard", 2)
            assert events[-1].data["result"] == "same-rows"
            shown = await carol.api.trust.show("theirs")
            assert shown.reach.use == shown.blocks > bob_before
        assert page.asked == fetched + 2, "Alice once more, and Bob"


async def test_rows_without_key_that_another_wrote_are_no_difference(
    open_world: Any, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference writes them. What a node refuses as an owner it does not hold against others."""

    def as_the_reference(*given: Any) -> Any:
        *given, terms = given
        return plan_ingest(*given, msgspec.structs.replace(terms, allows_null_keys=True))

    async with open_world.running("alice") as alice, open_world.running("bob", OBSERVES) as bob:
        await alice.apply(ROOT.format(url=page.url).replace("[event_time, city]", "[population]"))
        page.rows = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-01T00:00:00Z,Linz,")
        (refused,) = await alice.pull()
        assert refused.message == "a row has no value in the primary key"
        monkeypatch.setattr(driver, "plan_ingest", as_the_reference)
        await alice.pull()
        await open_world.spread(alice, "cities")
        await bob.mirror(alice.dataset("cities"), "theirs")
        (event,) = await bob.heard("observation.signed")
        assert event.data["result"] == "same-bytes"


@pytest.mark.slow
async def test_what_is_not_at_the_source_is_not_relied_on(open_world: Any, page: Any) -> None:
    """The source says otherwise: nobody is accused, and who asks for an observation stops below that block."""
    world = open_world
    async with world.running("alice") as alice:
        await alice.apply(ROOT.format(url=page.url))
        await alice.pull()
        page.rows, page.tag = ("2024-01-01T00:00:00Z,Graz,1",), '"v1"'
        async with world.running("bob", OBSERVES) as bob, world.running("carol", counts(bob)) as carol:
            cities = alice.dataset("cities")
            for node in (bob, carol):
                await node.mirror(cities, "theirs")
            (event,) = await bob.heard("observation.signed")
            assert event.data["result"] == "differs"
            await carol.heard("observation.heard")
            shown = await carol.api.trust.show("theirs")
            last = shown.blocks - 1
            assert (shown.reach.use, shown.why.rule, shown.why.block) == (last, "observed", last)
            assert (shown.facts.observed.have, shown.evidence) == (0, ())
            assert (await alice.api.trust.show("cities")).reach.use == shown.blocks


async def test_a_source_that_is_gone_is_asked_again(open_world: Any, page: Any) -> None:
    world = open_world
    async with world.running("alice") as alice, world.running("bob", OBSERVES) as bob:
        await alice.apply(ROOT.format(url=page.url))
        await alice.pull()
        page.gone = True
        await bob.mirror(alice.dataset("cities"), "theirs")
        (event,) = await bob.heard("observation.signed")
        assert event.data["result"] == "unreachable"
        page.gone = False
        bob.parts.observer.loop.poke()
        events = await bob.heard("observation.signed", 2)
        assert events[-1].data["result"] == "same-bytes"
        with bob.home.database.read() as connection:
            said = Observations(connection).at(alice.dataset("cities"), alice.size("cities") - 1)
        assert [each.result for each in said] == ["same-bytes"]


async def test_a_stranger_sends_nobody_into_his_own_house(world: World, page: Any) -> None:
    """A source on the loopback is never asked by an observer, whoever declared it."""
    async with world.running("alice") as alice, world.running("bob", OBSERVES) as bob:
        cities = await published(world, page, alice)
        fetched = page.asked
        await bob.mirror(cities, "theirs")
        assert await bob.parts.observer.observe(cities)
        reasons = [values["reason"] for event, values in bob.logger.said if event == "source not observed"]
        assert reasons
        assert all("others do not send this node" in str(reason) for reason in reasons)
        assert page.asked == fetched
        assert bob.kinds().count("observation.signed") == 0


async def test_what_is_lacking_here_is_not_said_of_the_source(open_world: Any, page: Any) -> None:
    """A mirror that let older data go cannot merge with it: it says nothing."""
    world = open_world
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, page, alice)
        page.rows, page.tag = (*page.rows, "2024-01-02T00:00:00Z,Linz,210000"), '"v2"'
        await alice.pull("cities")
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        chain = bob.home.chains.chain(cities)
        first = next(
            block.event.new_data.physical_hash
            for block in map(chain.block_at, range(bob.size("theirs")))
            if isinstance(block.event, AddData)
        )
        bob.home.objects.remove(first)
        with pytest.raises(NotFound):
            await bob.parts.observer.observe(cities)
        assert "observation.signed" not in bob.kinds()


async def test_files_of_the_publisher_are_nobodys_to_fetch(open_world: Any) -> None:
    world = open_world
    async with world.running("alice") as alice, world.running("bob", OBSERVES) as bob:
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,300000")
        await alice.apply(CITIES)
        await alice.pull()
        await bob.mirror(alice.dataset("cities"), "theirs")
        assert await bob.parts.observer.observe(alice.dataset("cities"))
        assert bob.kinds().count("observation.signed") == 0


async def test_what_was_corrected_by_hand_is_not_looked_for_at_the_source(open_world: Any, page: Any) -> None:
    """What comes from the source afterwards is, merged with the row as it was corrected."""
    world = open_world
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, page, alice)
        request = wire.CorrectRequest(
            key={"event_time": "2024-01-01T00:00:00Z", "city": "Graz"}, values={"population": "300001"}
        )
        await alice.done(alice.api.flow.correct("cities", request))
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        assert bob.size("theirs") == alice.size("cities")
        fetched = page.asked
        assert await bob.parts.observer.observe(cities)
        assert page.asked == fetched
        assert "observation.signed" not in bob.kinds()
        page.rows, page.tag = (*page.rows, "2024-01-02T00:00:00Z,Linz,210000"), '"v2"'
        await alice.pull("cities")
        await world.spread(alice, "cities")
        await bob.pull("theirs")
        assert await bob.parts.observer.observe(cities)
        (event,) = await bob.heard("observation.signed")
        assert event.data["result"] == "same-bytes"


async def test_observations_are_pulled_too(open_world: Any, page: Any) -> None:
    world = open_world
    async with world.running("alice") as alice, world.running("bob", OBSERVES) as bob:
        cities = await published(world, page, alice)
        await bob.mirror(cities, "theirs")
        await bob.heard("observation.signed")
        with bob.home.database.read() as connection:
            refs = kinds.refs(connection, of_dataset=True)
            (ref,) = (each for each in refs if kinds.find(connection, each[1])[0] == OBSERVATION)
        topic, raw = bob.parts.board.envelope(ref[1])
        assert topic is Topic.ATTEST
        assert ref[1] in {each.sid for each in bob.parts.board.refs([cities])}
        assert Multihash.sha3_256(raw) is not None
        await alice.member.pull_statements(bob.member.peer_id, [cities])
        assert alice.parts.board.envelope(ref[1]) == (topic, raw)
