"""Daemons behind routers that let nobody in mirror through a relay, and directly where their NATs allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds.eventually import until
from worlds.manifests import ROOT
from worlds.nat_world import Internet, NoNat, Place, open_internet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


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
