"""Daemons that meet over real sockets: behind routers, on both families of IP, invited, named, witnessed, restored."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds.eventually import until
from worlds.manifests import ROOT
from worlds.nat_world import Internet, NoNat, Place, open_internet

# Daemons behind routers that let nobody in mirror through a relay, and directly where their NATs allow it.


pytestmark = pytest.mark.e2e


@pytest.fixture
def internet() -> Iterator[Internet]:
    try:
        with open_internet() as net:
            yield net
    except NoNat as reason:
        pytest.skip(f"no NATs can be made here: {reason}")


class Town:
    """Daemons at places, each told of a relay that is public."""

    def __init__(self, internet: Internet, make_daemon: Callable[..., Any]) -> None:
        self.internet = internet
        self._make = make_daemon
        self.relay = self.start("relay", internet.public(), ODFD_P2P_RELAY="true")
        self.told: str = self.relay.ask("status")["listen"][0]

    def start(self, name: str, place: Place, **settings: str) -> Any:
        daemon = self._make(name, ODFD_NODE_NAME=name, ODFD_P2P_LISTEN="/ip4/0.0.0.0/tcp/4150", **settings)
        daemon.small, daemon.inside = True, place.namespaces
        daemon.start()
        bootstrap = () if name == "relay" else ("--bootstrap", self.told)
        daemon.ask("network", "join", "town", *bootstrap)
        return daemon

    def at_home(self, name: str, nat: str, **settings: str) -> Any:
        return self.start(name, self.internet.home(nat), ODFD_P2P_RELAYS=self.told, **settings)


def published(daemon: Any) -> str:
    """The id of a dataset with one block of data."""
    (daemon.folder / "1.csv").write_text("event_time,city,population\n2024-01-01T00:00:00Z,c1,7\n")
    (daemon.folder / "m.yaml").write_text(ROOT)
    daemon.ask("apply", "-f", str(daemon.folder / "m.yaml"))
    (item,) = daemon.ask("pull", "cities")["items"]
    assert item["outcome"] == "updated", item
    return str(daemon.dataset("cities")["id"])


@pytest.mark.slow
def test_two_nodes_behind_two_routers_mirror_through_a_relay(
    internet: Internet, make_daemon: Callable[..., Any]
) -> None:
    town = Town(internet, make_daemon)
    alice, bob = town.at_home("alice", "symmetric"), town.at_home("bob", "symmetric")
    dataset = published(alice)
    mirror = with_state(bob.ask("mirror", "add", dataset, "--as", "cities"))
    assert (mirror["state"], mirror["serving"]) == ("current", True)
    assert bob.dataset("cities")["head"] == alice.dataset("cities")["head"]
    assert town.relay.ask("status")["circuits"] > 0


@pytest.mark.slow
def test_netcheck_says_what_works_and_why_not(internet: Internet, make_daemon: Callable[..., Any]) -> None:
    town = Town(internet, make_daemon)
    other = town.start("other", internet.public())
    alice = town.at_home("alice", "symmetric")
    alice.ask("peer", "connect", other.ask("status")["listen"][0])

    def found() -> dict[str, Any]:
        return {each["name"]: each for each in alice.ask("peer", "netcheck")}

    # Each netcheck asks two peers anew; on a busy machine one of them may answer too late for it.
    told: dict[str, Any] = {}

    def all_answered() -> bool:
        told.update(found())
        is_known = [told[each]["result"] == "ok" for each in ("relays", "observed")]
        return all(is_known) and "not known" not in told["mapping"]["message"]

    until(all_answered)
    assert "behind a NAT" in told["observed"]["message"]
    assert (told["mapping"]["result"], "symmetric" in told["mapping"]["message"]) == ("warning", True)
    assert "1 reservation at 1 relay" in told["relays"]["message"]
    assert told["clock"]["result"] == "ok"
    assert alice.said("peer", "netcheck").out.startswith("PROBE")


def published_again(daemon: Any) -> str:
    """The head with one more block."""
    (daemon.folder / "2.csv").write_text("event_time,city,population\n2024-01-02T00:00:00Z,c2,8\n")
    daemon.ask("pull", "cities")
    return str(daemon.dataset("cities")["head"])


@pytest.mark.slow
def test_two_nodes_behind_restricted_cones_connect_directly(
    internet: Internet, make_daemon: Callable[..., Any]
) -> None:
    town = Town(internet, make_daemon)
    alice, bob = town.at_home("alice", "port restricted"), town.at_home("bob", "port restricted")
    dataset = published(alice)
    mirror = with_state(bob.ask("mirror", "add", dataset, "--as", "cities"))
    assert mirror["state"] == "current"
    until(lambda: town.relay.ask("status")["circuits"] == 0)
    until(lambda: "peer connected directly" in alice.told() + bob.told())
    head = published_again(alice)
    until(lambda: bob.dataset("cities")["head"] == head)


# Daemons that listen on both families of IP: a peer is met over IPv6 if both have it, else over IPv4.


BOTH = "/ip4/0.0.0.0/tcp/4150,/ip6/::/tcp/4150"
"""Where a node listens if ``p2p.listen`` is not said."""
ESTABLISHED = "01"


@pytest.fixture
def internet_of_both() -> Iterator[Internet]:
    try:
        with open_internet() as net:
            net.public((4, 6))
            yield net
    except NoNat as reason:
        pytest.skip(f"no places with IPv6 can be made here: {reason}")


def families_in_use(daemon: Any) -> set[str]:
    """The families of the daemon's open connections, as the kernel lists them in its place."""
    found = set()
    for family, table in (("ip4", "tcp"), ("ip6", "tcp6")):
        text = Path(f"/proc/{daemon.process.pid}/net/{table}").read_text().splitlines()[1:]
        found |= {family for line in text if line.split()[3] == ESTABLISHED}
    return found


@pytest.mark.slow
def test_peers_meet_over_ipv6_first_and_over_the_family_that_they_share(
    internet_of_both: Internet, make_daemon: Callable[..., Any]
) -> None:
    def start(name: str, *families: int) -> Any:
        place = internet_of_both.public(families)
        daemon = make_daemon(name, ODFD_NODE_NAME=name, ODFD_P2P_LISTEN=BOTH)
        daemon.small, daemon.inside = True, place.namespaces
        return daemon.start()

    alice = start("alice", 4, 6)
    (alice.folder / "1.csv").write_text("event_time,city,population\n2024-01-01T00:00:00Z,c1,7\n")
    (alice.folder / "m.yaml").write_text(ROOT)
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    alice.ask("pull", "cities")
    alice.ask("network", "join", "town")
    dataset, head = (alice.dataset("cities")[key] for key in ("id", "head"))
    invitation = alice.said("network", "invite", "town").out.strip()
    for name, families, used in (("bob", (4, 6), "ip6"), ("carol", (6,), "ip6"), ("dave", (4,), "ip4")):
        daemon = start(name, *families)
        assert daemon.said("join", invitation, "--yes").code == 0
        assert with_state(daemon.ask("mirror", "add", dataset, "--as", "cities"))["state"] == "current"
        assert daemon.dataset("cities")["head"] == head
        assert families_in_use(daemon) == {used}
        daemon.kill()


# Real daemons on loopback: an invitation for one node admits one, over restarts and kills of the node that invites.


@pytest.mark.slow
def test_an_invitation_for_one_node_is_redeemed_once(make_daemon: Callable[..., Any]) -> None:
    def made(name: str, **more: str) -> Any:
        return make_daemon(name, listens=True, **more, small=True)

    alice, bob, carol = made("alice").start(), made("bob").start(), made("carol").start()
    alice.ask("network", "join", "village")
    listen = alice.ask("status")["listen"][0]
    alice.more["ODFD_P2P_LISTEN"] = listen.partition("/p2p/")[0]  # the same port after a restart
    line = alice.said("network", "invite", "village", "--uses", "1").out.strip()
    bobs, carols = bob.ask("status")["peerId"], carol.ask("status")["peerId"]

    alice.kill()
    gone = bob.said("join", "-y", line)
    assert gone.code != 0
    assert "rule invitation-unreachable" in gone.err
    assert bob.ask("network", "list") == []

    alice.start()
    joined = bob.said("join", "-y", line)
    assert joined.code == 0, joined.err
    assert "valid for   1 node" in joined.err
    refused = carol.said("join", "-y", line)
    assert refused.code != 0
    assert "rule invitation-used" in refused.err
    assert carol.ask("network", "list") == []

    alice.kill()
    alice.start()
    (one,) = alice.ask("network", "invitations")
    assert (one["state"], [each["peerId"] for each in one["nodes"]]) == ("used", [bobs])
    assert carol.said("join", "-y", line).code != 0
    bob.ask("network", "leave", "village")
    assert bob.said("join", "-y", line).code == 0, "the same node may join again"

    assert "1/1" in alice.said("network", "revoke", one["id"]).out
    bob.ask("network", "leave", "village")
    assert "rule invitation-revoked" in bob.said("join", "-y", line).err
    assert carols not in str(alice.ask("network", "invitations"))


# Real daemons on loopback tell each other names: beside ids, changed by SIGHUP, taken back, and alike ones marked.


def name_settings(name: str, told: bool = True) -> str:
    return f'[node]\nname = "{name}"\ncontact = "mail@example.org"\n[p2p]\ncard = {str(told).lower()}\n'


def named(daemon: Any, text: str) -> Any:
    file = daemon.folder / "odfd.toml"
    file.write_text(text)
    return daemon.start("--config", str(file))


def names(daemon: Any) -> dict[str, str | None]:
    return {each["spec"]["peerId"]: with_state(each).get("name") for each in daemon.ask("peer", "list")}


@pytest.mark.slow
def test_two_daemons_show_each_other_by_name(make_daemon: Callable[..., Any]) -> None:
    def made(name: str) -> Any:
        return make_daemon(name, listens=True, small=True)

    alice = named(made("alice"), name_settings("Graz"))
    bob = made("bob").start()
    alice.ask("network", "join", "village")
    bob.ask("network", "join", "village", "--bootstrap", alice.ask("status")["listen"][0])
    me = alice.ask("status")["peerId"]
    until(lambda: names(bob).get(me) == "Graz")
    assert [with_state(each).get("name") for each in alice.ask("peer", "list")] == [None], "bob wrote nothing"
    assert with_state(bob.ask("peer", "show", me))["contact"] == "mail@example.org"
    table = bob.said("peer", "list").out.splitlines()
    assert table[0].split()[:3] == ["PEER", "NAME", "STATE"]
    assert f"{me}  Graz" in table[1]
    shown = bob.said("network", "show", "village")
    assert re.search(rf"1 peer in village(, .*)?: {me[:12]}…{me[-8:]} Graz", shown.err)
    assert bob.said("peer", "show", "Graz").code != 0, "a name is no id"

    mallory = named(made("mallory"), name_settings("Gr\u0430z"))
    mallory.ask("network", "join", "village", "--bootstrap", alice.ask("status")["listen"][0])
    other = mallory.ask("status")["peerId"]
    until(lambda: names(bob).get(other) == "Gr\u0430z")
    assert "distinguish them by their ids" in bob.said("peer", "list").err
    mallory.stop()

    (alice.folder / "odfd.toml").write_text(name_settings("Leoben"))
    assert alice.process is not None
    alice.process.send_signal(signal.SIGHUP)
    until(lambda: names(bob).get(me) == "Leoben")
    assert names(bob).get(other) == "Gr\u0430z", "kept while it is away"
    (alice.folder / "odfd.toml").write_text(name_settings("Leoben", told=False))
    alice.process.send_signal(signal.SIGHUP)
    until(lambda: names(bob).get(me) is None)


# Seven daemons mirror one dataset at once over shaped lines: its publisher, on a slow one, gives it about once.


FILES = 20
ROWS = 14_000
"""Of one file: with 36 random digits in each about half a megabyte of slice."""
LARGE = 130_000
"""Of the only file: more than the 8 MiB from which an object is divided."""
PUBLISHER = "5mbit"
MIRROR = "40mbit"
MIRRORS = 7


def shaped(place: Place, rate: str) -> None:
    """What leaves the place leaves at this rate."""
    try:
        place.run("tc", "qdisc", "add", "dev", "wan", "root", "tbf", "rate", rate, "burst", "64k", "latency", "400ms")
    except (subprocess.CalledProcessError, FileNotFoundError) as reason:
        pytest.skip(f"no line can be shaped here (tc with tbf): {reason}")


def sent(place: Place) -> int:
    """Bytes that left the place."""
    path = "/sys/class/net/wan/statistics/tx_bytes"
    return int(subprocess.run([*place.entering, "cat", path], check=True, capture_output=True).stdout)


def started(make_daemon: Callable[..., Any], name: str, place: Place, *bootstrap: str) -> Any:
    daemon = make_daemon(name, ODFD_NODE_NAME=name, ODFD_P2P_LISTEN="/ip4/0.0.0.0/tcp/4150")
    daemon.small, daemon.inside = True, place.namespaces
    daemon.start()
    daemon.ask("network", "join", "town", *bootstrap)
    return daemon


def publish_noise(daemon: Any, files: int, rows_each: int) -> str:
    (daemon.folder / "m.yaml").write_text(ROOT)
    lot = random.Random(1)
    for number in range(files):
        rows = (f"2024-01-01T00:00:00Z,{lot.getrandbits(288):072x},{lot.getrandbits(30)}" for _ in range(rows_each))
        (daemon.folder / f"{number:02}.csv").write_text("\n".join(["event_time,city,population", *rows, ""]))
        if not number:
            daemon.ask("apply", "-f", str(daemon.folder / "m.yaml"))
        daemon.ask("pull", "cities")
    return str(daemon.dataset("cities")["id"])


@pytest.mark.nightly  # slow lines are slow
@pytest.mark.parametrize(
    ("files", "rows"), [pytest.param(FILES, ROWS, id="slices"), pytest.param(1, LARGE, id="one-large-slice")]
)
def test_the_publisher_on_a_slow_line_gives_two_copies_at_most(
    internet: Internet, make_daemon: Callable[..., Any], capsys: pytest.CaptureFixture[str], files: int, rows: int
) -> None:
    """Of many slices, and of one, of which mirrors exchange pieces."""
    places = [internet.public() for _ in range(MIRRORS + 1)]
    alice = started(make_daemon, "alice", places[0])
    dataset = publish_noise(alice, files, rows)
    (told,) = alice.ask("status")["listen"]
    mirrors = [
        started(make_daemon, f"mirror{number}", place, "--bootstrap", told) for number, place in enumerate(places[1:])
    ]
    until(lambda: all(each.ask("status")["peers"] >= MIRRORS - 2 for each in mirrors))
    for place in places:
        shaped(place, PUBLISHER if place is places[0] else MIRROR)
    before, begun = sent(places[0]), time.monotonic()
    with ThreadPoolExecutor(MIRRORS) as pool:
        said = list(pool.map(lambda each: each.ctl("mirror", "add", dataset, "--as", "cities"), mirrors))
    took, upload = time.monotonic() - begun, sent(places[0]) - before
    assert not [each.err for each in said if each.code], said
    head = alice.dataset("cities")["head"]
    assert all(each.dataset("cities")["head"] == head for each in mirrors)
    (view,) = mirrors[0].ask("mirror", "list")
    size = with_state(view)["bytes"]["have"]
    rate = 5_000_000 / 8
    with capsys.disabled():
        print(
            f"\n{size / 1e6:.1f} MB to {MIRRORS} mirrors: {took:.0f} s, a server alone {MIRRORS * size / rate:.0f} s, "
            f"publisher sent {upload / size:.2f} copies"
        )
    shown = [with_state(each.ask("network", "show", "town"))["swarm"] for each in mirrors]
    assert sum(each["bytesFromMirrors"] for each in shown) > sum(each["bytesFromPublishers"] for each in shown)
    assert upload < 2 * size, f"{upload / size:.2f} copies in {took:.0f} s"


# Three real daemons: one publishes, one witnesses and mirrors nothing, one comes new and asks for a witness.


def write(folder: Path, number: int) -> None:
    row = f"2024-01-{number + 1:02}T00:00:00Z,c{number},{number}"
    (folder / f"{number:02}.csv").write_text(f"event_time,city,population\n{row}\n")


def settings(daemon: Any, text: str) -> None:
    file = daemon.folder / "odfd.toml"
    file.write_text(text)
    daemon.more["ODFD_CONFIG"] = str(file)


def test_a_witness_without_a_block_lets_a_newcomer_in(make_daemon: Callable[..., Any]) -> None:
    alice, witness, carol = (make_daemon(name, listens=True, ODFD_NODE_NAME=name) for name in ("a", "w", "c"))
    for daemon in (alice, witness, carol):
        daemon.small = True
    alice.start()
    (alice.folder / "m.yaml").write_text(ROOT)
    write(alice.folder, 0)
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    alice.ask("pull", "cities")
    alice.ask("network", "join", "n")
    address = alice.ask("status")["listen"][0]
    (mine,) = alice.datasets()

    settings(witness, f'[policy.publish]\nwitness = ["{mine["id"]}"]\n')
    witness.start()
    key = witness.ask("status")["nodeId"]
    witness.ask("network", "join", "n", "--bootstrap", address)
    settings(carol, f'[policy.witness]\nquorum = 1\n[[policy.witness.groups]]\nname = "w"\nkeys = ["{key}"]\n')
    carol.start()
    carol.ask("network", "join", "n", "--bootstrap", address)
    carol.ask("peer", "connect", witness.ask("status")["listen"][0])
    carol.ask("mirror", "add", mine["id"], "--as", "theirs")

    def facts() -> Any:
        return carol.ask("trust", "show", "theirs")["facts"]

    until(lambda: facts().get("met") == "witnessed")
    for number in (1, 2):
        write(alice.folder, number)
        alice.ask("pull", "cities")
    (mine,) = alice.datasets()

    def caught_up() -> bool:
        (theirs,) = carol.datasets()
        return bool(theirs["head"] == mine["head"]) and facts().get("witnessed") is True

    until(caught_up)
    assert witness.datasets() == [], "it has no block"
    assert [each.stop() for each in (carol, witness, alice)] == [0, 0, 0]


# A machine restored from a backup without its signing journals: real daemons, real sockets, real files.


def journals(daemon: Any) -> list[Path]:
    return list((daemon.state / "keys").glob("*.journal"))


def restore(daemon: Any) -> None:
    """The state of the backup; journals are in none."""
    shutil.rmtree(daemon.state)
    shutil.copytree(daemon.folder / "backup", daemon.state)
    for journal in journals(daemon):
        journal.unlink()


def test_a_restored_machine_asks_and_then_goes_on(make_daemon: Callable[..., Any]) -> None:
    alice, bob = (make_daemon(name, listens=True, ODFD_NODE_NAME=name) for name in ("a", "b"))
    for daemon in (alice, bob):
        daemon.small = True
    alice.start()
    (alice.folder / "m.yaml").write_text(ROOT)
    write(alice.folder, 0)
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    alice.ask("pull", "cities")
    assert alice.stop() == 0
    shutil.copytree(alice.state, alice.folder / "backup")

    alice.start()
    for number in (1, 2):
        write(alice.folder, number)
        alice.ask("pull", "cities")
    (signed,) = alice.datasets()
    alice.ask("network", "join", "n")
    bob.start()
    bob.ask("network", "join", "n", "--bootstrap", alice.ask("status")["listen"][0])
    assert with_state(bob.ask("mirror", "add", signed["id"], "--as", "theirs"))["blocks"]["have"] == signed["blocks"]
    assert alice.stop() == 0

    restore(alice)
    alice.start()
    doctor = alice.ctl("doctor")
    assert (doctor.code, "signing journals are gone" in doctor.out) == (1, True)
    assert alice.ask("status")["lostJournals"] == 2
    assert "stopped for 2 keys" in alice.ctl("status").out
    refused = alice.ctl("pull", "cities")
    assert (refused.code, "trust.journal" in refused.err + refused.out) == (4, True), refused
    refused = alice.ctl("trust", "sign")
    assert (refused.code, "--alone" in refused.err) == (4, True), refused

    alice.ask("network", "join", "n")
    alice.ask("peer", "connect", bob.ask("status")["listen"][0])
    refused = alice.ctl("trust", "sign")
    assert (refused.code, "did not list" in refused.err) == (4, True), refused
    alice.ask("trust", "validator", "add", bob.ask("status")["nodeId"], "--group", "bob")
    done = alice.ask("trust", "sign")
    assert (done["peers"], len(done["begun"])) == (1, 2)
    refused = alice.ctl("pull", "cities")
    assert (refused.code, "trust.behind" in refused.err + refused.out) == (4, True), refused
    (item,) = alice.ask("pull", "cities", "--repair")["items"]
    assert item["blocks"] > 0
    assert [one["head"] for one in alice.datasets()] == [signed["head"]]
    write(alice.folder, 3)
    (item,) = alice.ask("pull", "cities")["items"]
    assert item["outcome"] == "updated"
    bob.ask("pull", "theirs")
    (mine,), (theirs,) = alice.datasets(), bob.datasets()
    assert (theirs["state"], theirs["head"]) == ("fresh", mine["head"])
    assert mine["blocks"] > signed["blocks"]
    assert alice.stop() == bob.stop() == 0


def test_a_person_speaks_for_a_machine_that_has_nobody_to_ask(make_daemon: Callable[..., Any]) -> None:
    alice = make_daemon("a", ODFD_NODE_NAME="alice", small=True)
    alice.start()
    (alice.folder / "m.yaml").write_text(ROOT)
    alice.ask("apply", "-f", str(alice.folder / "m.yaml"))
    alice.kill()
    for journal in journals(alice):
        journal.unlink()
    alice.start()
    write(alice.folder, 0)
    assert alice.ctl("pull", "cities").code == 4
    said = alice.ctl("trust", "sign", "--alone")
    assert (said.code, "no listed key could be asked" in said.out, "cities" in said.out) == (0, True, True), said
    (item,) = alice.ask("pull", "cities")["items"]
    assert item["outcome"] == "updated"
    alice.kill()
    alice.start()
    assert alice.ask("status")["lostJournals"] == 0
    assert alice.ask("trust", "sign") == {"begun": [], "peers": 0}
    assert alice.stop() == 0
