"""The network of a node that fails while the node lives, and what its check says."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain.backoff import Backoff
from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import SetInfo
from chain.multihash import Multihash
from chain.store.database import Database, open_database
from odfd.network import membership
from odfd.network.joined_networks import Network
from odfd.network.membership import (
    CHOSEN_SECONDS,
    EVERYWHERE,
    PORTS_TRIED,
    HostOptions,
    Known,
    Membership,
    MembershipTerms,
)
from odfd.renditions.chain_timeline import LOOKED, check, row_at, rows_in, rows_of, words_of
from odfd.renditions.successor import HandoverNotice, announce, going_on, notice_of, without_notice
from odfd.renditions.timeline import RenditionRow, Switch, Timeline
from odfd.resources import tables as resources
from odfd.resources.store import ResourceStore
from odfd.runtime.clock import SystemClock
from odfd.runtime.replaceable import Replaceable
from odfd.runtime.supervision import Child, Life, Restart, run_tree
from odfd.services.network.netcheck import probes
from p2p.driver.net_facts import DialBackResult, NetFacts, dialable
from p2p.host.limits import HostLimits
from p2p.identity import did_of_seed, peer_of_did, peer_of_seed
from p2p.machines.reachability import Reached
from p2p.wire.invite import Redemption
from worlds.eventually import PATIENCE

# The network of a node that fails while the node lives: it begins anew, with the same key and in the same network.


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.more = trio.Event()

    def info(self, event: str, **_: Any) -> None:
        self.said.append(event)
        self.more.set()

    error = info

    async def until(self, event: str, count: int) -> None:
        with trio.fail_after(PATIENCE):
            while self.said.count(event) < count:
                self.more = trio.Event()
                await self.more.wait()


def terms(known: Callable[[], Known] = Known) -> MembershipTerms:
    """Of a node that limits no dataset to a network and invited nobody."""
    return MembershipTerms(Replaceable(()), known, lambda _: None, lambda *_: Redemption.UNKNOWN, lambda: None)


class Empty:
    """A library and a noticeboard with nothing in them."""

    def datasets(self, _limit: int) -> list[Any]:
        return []

    refs = datasets

    def within(self, _network: str) -> Empty:
        return self


async def test_a_network_that_fails_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-PEER-02: a provoked fault of the network layer.

    Defence: it restarts after growing pauses; the node continues.
    """
    watch, fails = Membership._watch, iter([True, False, False])

    async def watched(self: Membership, driver: Any) -> None:
        if next(fails):
            raise RuntimeError("a fault of ours")
        await watch(self, driver)

    monkeypatch.setattr(Membership, "_watch", watched)
    database = open_database(tmp_path / "db")
    database.migrate(resources.ROOM, resources.STEPS)
    options = HostOptions(
        seed=b"m" * 32,
        listen=("/ip4/127.0.0.1/tcp/0",),
        limits=HostLimits(),
        folder=tmp_path,
        network=Network(name="demo"),
    )
    empty: Any = Empty()
    lines = Lines()
    member = Membership(options, (empty, empty), database, SystemClock(), lines, terms())
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            child = Child("network", member.run, Restart(Backoff(first=0.01, most=30.0), from_start=False))
            nursery.start_soon(run_tree, [child], stop, lines, lambda: 0.5)
            await lines.until("network joined", 2)
            assert lines.said.count("restarting") == 1
            assert len(member.addresses()) == 1
            assert member.networks == (Network(name="demo"),)
            await member.leave("demo")
            await member.join(Network(name="other"))
            assert member.networks == (Network(name="other"),)
            stop.set()
    finally:
        database.close()


async def left(member: Membership, database: Database, name: str) -> None:
    """Leaves a network of which nobody says any longer that the node is in it."""
    assert await member.leave(name) is None, "it is recorded"
    with database.write() as connection:
        ResourceStore(connection).withdraw("Network", name, Instant(1))
    assert await member.leave(name) is not None


async def test_without_a_network_it_listens_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-PRIVATE-06: connecting to a node that is only being tried out.

    Defence: it listens only in a network or at an address that is set.

    Where nobody said otherwise; in a network on all addresses, and no longer once it is left.
    """
    monkeypatch.setattr(membership, "EVERYWHERE", ("/ip4/127.0.0.2/tcp/0",))  # loopback too: it is a test
    assert EVERYWHERE == ("/ip6/::/tcp/4150", "/ip4/0.0.0.0/tcp/4150")
    database = open_database(tmp_path / "db")
    database.migrate(resources.ROOM, resources.STEPS)
    empty: Any = Empty()
    options = HostOptions(seed=b"m" * 32, listen=None, limits=HostLimits())
    member = Membership(options, (empty, empty), database, SystemClock(), Lines(), terms())
    life = Life()

    def at() -> set[str]:
        return {one.split("/")[2] for one in member.addresses()}

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.run, life)
            await life.wait_ready()
            assert at() == set()
            with trio.fail_after(PATIENCE):
                await member.join(Network(name="demo"))
                assert at() == {"127.0.0.2"}
                await left(member, database, "demo")
                assert at() == set()
                monkeypatch.setattr(membership, "EVERYWHERE", ("/ip4/192.0.2.1/tcp/0",))
                with pytest.raises(Environment):  # not this machine's: it is told, and not waited for
                    await member.join(Network(name="demo"))
                life.stopping.set()
    except* Environment:
        pass  # whoever keeps the node's parts alive begins it anew
    finally:
        database.close()


@asynccontextmanager
async def open_alone(tmp_path: Path) -> AsyncIterator[tuple[Membership, Database, Callable[[], Awaitable[None]]]]:
    """A node that listens nowhere and is in no network, its database, and what stops the node."""
    database = open_database(tmp_path / "db")
    database.migrate(resources.ROOM, resources.STEPS)
    empty: Any = Empty()
    options = HostOptions(seed=b"m" * 32, listen=(), limits=HostLimits())
    member = Membership(options, (empty, empty), database, SystemClock(), Lines(), terms())
    life, ended = Life(), trio.Event()

    async def run() -> None:
        await member.run(life)
        ended.set()

    async def stop() -> None:
        life.stopping.set()
        await ended.wait()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await life.wait_ready()
            with trio.fail_after(PATIENCE):
                yield member, database, stop
                await stop()
    finally:
        database.close()


async def test_who_only_dials_needs_no_host_before_a_network_is_joined(tmp_path: Path) -> None:
    async with open_alone(tmp_path) as (member, database, stop):
        for name in ("one", "two"):
            assert member._host is None
            await member.join(Network(name=name))
            assert member._host is not None
            assert (member.addresses(), member.peers()) == ([], [])
            await left(member, database, name)
        assert member._host is None
        await stop()
        with pytest.raises(Environment, match="not running"):
            await member.join(Network(name="late"))


async def test_two_who_join_at_once_are_both_answered(tmp_path: Path) -> None:
    """The second change comes before the first is in force."""
    async with open_alone(tmp_path) as (member, _, _):
        async with trio.open_nursery() as joining:
            for name in ("one", "two"):
                joining.start_soon(member.join, Network(name=name))
        assert sorted(member._drivers) == ["one", "two"]


@pytest.mark.slow
def test_a_daemon_without_a_host_does_not_import_libp2p() -> None:
    """Nor what libp2p alone needs: that was half of all that a start imports. gRPC comes with the first engine."""
    late = {"libp2p", "aioquic", "multiaddr", "dns", "grpc", "multiformats", "zeroconf"}
    script = f"import sys, odfd.node.assembly; print(*sorted({late} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_an_address_that_is_set_stands(tmp_path: Path) -> None:
    options = HostOptions(seed=b"m" * 32, listen=("/ip4/127.0.0.1/tcp/1",), limits=HostLimits())
    nothing: Any = None
    member = Membership(options, (nothing, nothing), nothing, SystemClock(), Lines(), terms())
    assert member._listen() == ("/ip4/127.0.0.1/tcp/1",)  # without a network too: a port that is taken is told at once
    member._joined_networks.put((Network(name="demo"),))
    assert member._listen() == ("/ip4/127.0.0.1/tcp/1",)


async def test_room_is_kept_for_whom_a_person_listed_or_mirrors(autojump_clock: Any, monkeypatch: Any) -> None:
    """Beside bootstrap peers; wherever they say they are by now, and no longer once they are off the list."""

    async def in_place(work: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return work()

    monkeypatch.setattr(trio.to_thread, "run_sync", in_place)  # virtual time knows of no thread
    friend, validator, writer = (peer_of_seed(bytes([number]) * 32) for number in range(1, 4))
    at = f"/ip4/203.0.113.7/tcp/1/p2p/{friend}"
    nothing: Any = None
    options = HostOptions(seed=b"m" * 32, listen=(), limits=HostLimits())
    listed = [did_of_seed(bytes([2]) * 32)]
    known = Known(frozenset(), frozenset({did_of_seed(bytes([3]) * 32)}))
    asked = terms(lambda: known._replace(chosen=frozenset(listed)))
    member = Membership(options, (nothing, nothing), nothing, SystemClock(), Lines(), asked)
    told: list[tuple[set[str], set[str], set[str]]] = []

    class Ends:
        """A host, and a driver that knows where one of them is."""

        def choose(self, peers: Any, addresses: Any, publishers: Any) -> None:
            told.append((set(peers), set(addresses), set(publishers)))

        def addresses_of(self, peers: Any) -> list[str]:
            return [f"/ip4/198.51.100.{number}/tcp/1" for number in range(len(set(peers)))]

    ends: Any = Ends()
    assert peer_of_did(listed[0]) == validator
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member._keep_chosen, ends, ends, Network(name="demo", bootstrap=(at,)))
        with trio.fail_after(10 * CHOSEN_SECONDS):
            while not told:  # noqa: ASYNC110 - virtual time
                await trio.sleep(1)
            listed.clear()
            while len(told) < 2:  # noqa: ASYNC110 - virtual time
                await trio.sleep(1)
        nursery.cancel_scope.cancel()
    everywhere = {at, *(f"/ip4/198.51.100.{number}/tcp/1" for number in range(3))}
    assert told[0] == ({friend, validator}, everywhere, {writer})
    assert told[1][0] == {friend}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of this machine that another program has."""
    with socket.create_server(("127.0.0.2", 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.slow
async def test_a_second_node_of_a_machine_takes_the_next_port_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    monkeypatch.setattr(membership, "EVERYWHERE", (f"/ip4/127.0.0.2/tcp/{taken}",))
    database = open_database(tmp_path / "db")
    database.migrate(resources.ROOM, resources.STEPS)
    empty: Any = Empty()
    options = HostOptions(seed=b"m" * 32, listen=None, limits=HostLimits())
    member = Membership(options, (empty, empty), database, SystemClock(), Lines(), terms())
    life = Life()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.run, life)
            await life.wait_ready()
            with trio.fail_after(PATIENCE):
                await member.join(Network(name="demo"))
            (address,) = member.addresses()
            port = int(address.split("/")[4])
            assert taken < port < taken + PORTS_TRIED
            assert member.note.startswith(f"port {taken} is in use on this machine, so it listens at port {port}; ")
            assert member.failure is None
            life.stopping.set()
    finally:
        database.close()


@pytest.mark.slow
async def test_a_port_that_is_set_and_taken_is_told_until_it_is_free(tmp_path: Path, taken: int) -> None:
    """By the join, by whoever looks afterwards, and by a second join while the network is down."""
    database = open_database(tmp_path / "db")
    database.migrate(resources.ROOM, resources.STEPS)
    empty: Any = Empty()
    options = HostOptions(seed=b"m" * 32, listen=(f"/ip4/127.0.0.2/tcp/{taken}",), limits=HostLimits())
    member = Membership(options, (empty, empty), database, SystemClock(), Lines(), terms())
    try:
        with pytest.raises(Environment, match="the port is in use"):
            await member.run(Life())
        assert member.failure is not None
        assert "p2p.listen" in member.failure.hint
        with pytest.raises(Environment, match="the port is in use"):
            await member.join(Network(name="demo"))
    finally:
        database.close()


# The check of the network says what is so, and what to do about it.

HERE = "/ip4/20.1.0.1/tcp/4150"
PEER = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
PUBLIC = NetFacts(
    listening=("/ip4/0.0.0.0/tcp/4150", "/ip6/::/tcp/4150"), interfaces=("20.1.0.1", "2a00::1"), seen=(HERE,),
    reached=(DialBackResult(HERE, Reached.YES, 2, 0),), mapped=(HERE, HERE), peers=3,
)  # fmt: skip


def results(facts: NetFacts) -> dict[str, tuple[str, str, str]]:
    return {each.name: (each.result, each.message, each.hint) for each in probes(facts)}


def test_nothing_is_to_do_where_all_works() -> None:
    assert {result for result, _, _ in results(PUBLIC).values()} == {"ok"}
    assert results(PUBLIC)["relays"][1] == "none named, none needed"


def test_a_node_behind_a_nat_is_told_what_to_do() -> None:
    facts = NetFacts(
        listening=("/ip4/0.0.0.0/tcp/4150",), interfaces=("192.168.1.2",), seen=("/ip4/20.1.0.1/tcp/4150",),
        reached=(DialBackResult(HERE, Reached.NO, 0, 2),), mapped=("/ip4/20.1.0.1/tcp/1", "/ip4/20.1.0.1/tcp/2"),
        clock_behind=700.0,
    )  # fmt: skip
    found = results(facts)
    assert "behind a NAT" in found["observed"][1]
    for name in ("dial-back", "relays"):
        assert found[name][0] == "warning"
        assert "p2p.relays" in found[name][2]
    assert "symmetric" in found["mapping"][1]
    assert "700 s behind" in found["clock"][1]
    assert all(hint for result, _, hint in found.values() if result == "warning")


def test_what_is_not_known_is_said_to_be_so() -> None:
    found = results(NetFacts())
    assert [name for name, (result, _, _) in found.items() if result == "warning"] == [
        "listening", "observed", "dial-back", "mapping", "relays",
    ]  # fmt: skip
    half = NetFacts(reached=(DialBackResult(HERE, Reached.UNKNOWN, 1, 0),), relays_named=2)
    assert "two that agree" in results(half)["dial-back"][1]
    assert "rule relay-refused" in results(half)["relays"][2]
    assert results(NetFacts(interfaces=("2a00::1",), listening=(HERE,)))["ipv6"][0] == "warning"


def test_it_says_whether_ipv6_works() -> None:
    there = "/ip6/2a00::1/tcp/4150"

    def said(*results: Reached, by_ip6: int = 0, **facts: tuple[str, ...]) -> tuple[str, str]:
        reached = tuple(DialBackResult(there, each, 2, 2) for each in results)
        told = {"listening": PUBLIC.listening, "interfaces": PUBLIC.interfaces, **facts}
        found = probes(NetFacts(**told, reached=reached, by_ip6=by_ip6))  # type: ignore[arg-type]
        return next((each.result, each.message) for each in found if each.name == "ipv6")

    assert said(interfaces=("20.1.0.1", "fe80::1", "fd00::1"))[1].startswith("does not work: this machine has no IPv6")
    alone = "no peer is connected over it"
    assert said(listening=(HERE,)) == ("warning", f"does not work inwards: 2a00::1 is not listened on; {alone}")
    assert said(Reached.YES, by_ip6=2) == ("ok", "works: others reach this node at 2a00::1; 2 peers connected over it")
    unreached = "does not work inwards: no node reaches 2a00::1; 1 peer connected over it"
    assert said(Reached.NO, by_ip6=1) == ("warning", unreached)
    assert said(Reached.UNKNOWN, by_ip6=1)[1].startswith("works outwards: 1 peer")
    assert said(Reached.UNKNOWN)[1].startswith("not known: 2a00::1 is listened on")


def test_a_nat_of_ipv4_is_seen_beside_an_address_of_ipv6() -> None:
    seen = ("/ip4/20.1.0.1/tcp/4150", "/ip6/2a00::1/tcp/4150")
    assert "behind a NAT" in results(NetFacts(seen=seen, interfaces=("192.168.1.2", "2a00::1")))["observed"][1]
    assert "an address of this machine" in results(NetFacts(seen=seen, interfaces=("20.1.0.1",)))["observed"][1]
    assert "an address of this machine" in results(NetFacts(seen=seen[1:], interfaces=("2a00::1",)))["observed"][1]


def test_only_places_of_the_internet_are_probed_one_of_each_host() -> None:
    others = ("/ip4/20.1.0.1/tcp/9", "/ip4/10.0.0.1/tcp/4150", "/ip6/2a00::1/tcp/1")
    told = [f"{HERE}/p2p/{PEER}", *(f"{each}/p2p/{PEER}" for each in others), HERE]
    assert [str(each) for each in dialable(told)] == [f"{HERE}/p2p/{PEER}"]


# What a chain says of where its collection goes on, written and read again.


TO = DatasetId.parse("did:odf:fed016c49bc1b370aa62a1aa52c7cc0fd96fbe1d8cf7b7b3d7a8a8f1f0f1d6b1d1a2c")
WORDS = st.lists(st.text(max_size=20).filter(lambda word: "odfd/handover" not in word), min_size=1, max_size=3)
INFOS = st.one_of(
    st.none(),
    st.builds(
        SetInfo,
        description=st.one_of(st.none(), st.text("abc [].", min_size=1, max_size=20)),
        keywords=st.one_of(st.none(), WORDS.map(tuple)),
    ),
)
SHARDS = st.integers(1, 64)


def notice(time: int, ended: int = 1, shards: int = 1) -> HandoverNotice:
    return HandoverNotice(TO, time, Multihash.sha3_256(str(time).encode()), ended, shards)


@given(INFOS, st.integers(0, 4 * 10**12), st.integers(0, 4 * 10**12), SHARDS, SHARDS)
def test_the_last_notice_counts_and_the_rest_stays(
    info: SetInfo | None, one: int, other: int, ended: int, shards: int
) -> None:
    said = announce(announce(info, notice(one, shards, ended)), notice(other, ended, shards))
    assert notice_of(said) == notice(other, ended, shards)
    assert len(said.keywords or ()) == len((info and info.keywords) or ()) + 1
    plain = without_notice(said)
    assert ((plain and plain.keywords) or None) == ((info and info.keywords) or None)
    before = (info and info.description) or ""
    assert ((plain and plain.description) or "").rstrip() == before.rstrip()


@pytest.mark.slow
@given(st.text(max_size=200))
def test_what_is_no_notice_is_none(text: str) -> None:
    assert notice_of(SetInfo(keywords=(text, f"odfd/handover:{text}"))) is None


PLAIN = re.compile(r"odfd/handover:did:odf:[0-9a-z]{1,128}@\d{1,15}:[0-9a-z]{1,128}\Z")
"""The form that nodes without published shards know."""


@given(SHARDS, SHARDS)
def test_older_nodes_follow_chains_and_pass_shards_over(ended: int, shards: int) -> None:
    (word,) = announce(None, notice(5, ended, shards)).keywords or ()
    assert bool(PLAIN.match(word)) is (ended == shards == 1)


def made(times: list[int]) -> Timeline:
    rows = [RenditionRow(number=number, shards=(str(TO),) * (number % 3 + 1)) for number in range(len(times))]
    return Timeline(tuple(Switch(time, "", row) for time, row in zip(times, rows, strict=True)), times[-1] + 1)


TIMES = st.lists(st.integers(1, 10**13), max_size=8, unique=True).map(lambda times: [0, *sorted(times)])


@given(INFOS, TIMES, st.integers(0, 10**13))
def test_all_of_m_is_read_as_it_was_written(info: SetInfo | None, times: list[int], at: int) -> None:
    timeline = made(times)
    said = going_on(going_on(announce(info, notice(5)), made([0, 3])), timeline)
    rows = rows_in(said)
    assert [(each.number, each.time, each.shards) for each in rows] == [
        (each.to.number, each.time, len(each.to.shards)) for each in timeline.switches
    ]
    assert notice_of(said) is None
    held = row_at(rows, at)
    assert held is not None
    assert held.time == max(time for time in times if time <= at)
    plain = without_notice(said)
    assert ((plain and plain.keywords) or None) == ((info and info.keywords) or None)
    check(rows, timeline)


@given(TIMES.filter(lambda times: len(times) > 2), st.data())
def test_what_left_a_followed_handover_out_is_refused(times: list[int], data: st.DataObject) -> None:
    timeline, words = made(times), words_of(made(times))
    gone = data.draw(st.integers(1, len(times) - 2))
    with pytest.raises(Invalid, match="and now that there was none"):
        check(rows_in(SetInfo(keywords=(*words[:gone], *words[gone + 1 :]))), timeline)


@given(st.text(max_size=200))
def test_what_is_no_m_is_none(text: str) -> None:
    (first, second) = words_of(made([0, 7]))
    assert rows_in(SetInfo(keywords=(text, f"odfd/rendition:{text}"))) == ()
    assert rows_in(SetInfo(keywords=(second, first))) == (), "times grow"
    assert rows_in(None) == ()


@pytest.mark.parametrize(("later", "is_found"), [(0, True), (LOOKED - 1, True), (LOOKED, False), (10**9, False)])
def test_any_number_of_descriptions_costs_a_few_reads(later: int, is_found: bool) -> None:
    timeline = made([0, 5])
    asked = []

    class Described:
        """A chain with one description that says M, and later ones."""

        def last_of(self, kinds: Sequence[str], before: int | None = None) -> Any:
            asked.append(kinds)
            number = later if before is None else before - 1
            info = going_on(None, timeline) if number == 0 else SetInfo(description=str(number))
            return SimpleNamespace(event=info, sequence_number=number) if number >= 0 else None

    assert bool(rows_of(Described(), TO)) is is_found  # type: ignore[arg-type]
    assert len(asked) <= LOOKED
