"""Real daemons on loopback: an invitation for one node admits one, over restarts and kills of the node that invites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


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
    assert "good for    1 node" in joined.err
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
