"""Daemons that listen on both families of IP: a peer is met over IPv6 if both have it, else over IPv4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odfd.cli.kinds import with_state
from worlds.manifests import ROOT
from worlds.nat_world import Internet, NoNat, open_internet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
BOTH = "/ip4/0.0.0.0/tcp/4150,/ip6/::/tcp/4150"
"""Where a node listens if ``p2p.listen`` is not said."""
ESTABLISHED = "01"


@pytest.fixture
def internet() -> Iterator[Internet]:
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


def test_peers_meet_over_ipv6_first_and_over_the_family_that_they_share(
    internet: Internet, make_daemon: Callable[..., Any]
) -> None:
    def start(name: str, *families: int) -> Any:
        place = internet.public(families)
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
