"""A network that is joined by one line: whose policy holds, and until when."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Invalid, NotFound, Refused, Remote
from config import model
from odfd.control import wire
from odfd.network.invitation import WELL_KNOWN
from p2p.identity import peer_of_seed
from worlds.certificates import certified
from worlds.eventually import PATIENCE
from worlds.http_served import HttpServer, serving
from worlds.node_world import Node, World
from worlds.web_site import Site

WEEK = wire.InvitationRequest(seconds=7 * 86_400)


async def leave(node: Node) -> None:
    """Leaves the network, which a node is in by its settings or by a resource."""
    if await node.api.declarations.list("Network", None):
        await node.api.declarations.delete("Network", "wires")
    else:
        await node.parts.membership.leave("wires")


async def test_whoever_is_invited_keeps_the_networks_rules(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data & fresh"))
        made = await alice.api.networks.invite("wires", WEEK)
        assert (made.by, made.policy_key, made.rules) == (alice.key, alice.key, ("use: data & fresh",))
        await leave(bob)
        assert await bob.api.networks.invitation(wire.InvitationText(text=made.text)) == made
        joined = await bob.api.networks.join(wire.NetworkRequest(name="wires", invitation=made.text))
        assert (joined.name, joined.policy_key, joined.bootstrap) == ("wires", alice.key, made.bootstrap)
        await bob.heard("policy.heard")
        assert (await bob.api.policies.policy()).use == "data & fresh"
        passed_on = await bob.api.networks.invite("wires", WEEK)
        assert (passed_on.by, passed_on.policy_key, passed_on.rules) == (bob.key, alice.key, made.rules)
    async with world.running("bob") as bob:
        assert (await bob.api.policies.policy()).use == "data & fresh", "over a restart too"
        await leave(bob)
        assert (await bob.api.policies.policy()).use == "data", "and no longer than it is in the network"


async def test_first_peers_are_dialled_side_by_side_and_for_a_bounded_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that answers is enough, and eight that say nothing cost no more than one. Each is dialled once, by all of its
    addresses."""
    monkeypatch.setattr("odfd.services.network.networks.OTHERS_SECONDS", 0.0)
    async with world.running("alice") as alice:
        peers = [peer_of_seed(bytes([each]) * 32) for each in range(4)]
        places = ("/ip4/192.0.2.1", "/ip6/2001:db8::1")
        silent = [f"{place}/tcp/4150/p2p/{peer}" for peer in peers for place in places]
        dialled: list[tuple[str, ...]] = []
        answers: set[str] = {silent[3]}

        async def connect(*addresses: str) -> str:
            dialled.append(addresses)
            if not answers.intersection(addresses):
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            return str(alice.member.peer_id)

        alice.member.connect = connect
        with trio.fail_after(PATIENCE):
            await alice.api.networks.join(wire.NetworkRequest(name="wires", bootstrap=tuple(silent)))
            assert sorted(dialled) == sorted(zip(silent[::2], silent[1::2], strict=True))
            answers.clear()
            monkeypatch.setattr("odfd.services.network.networks.DIAL_SECONDS", 0.01)
            await alice.api.networks.join(wire.NetworkRequest(name="wires", bootstrap=tuple(silent)))


async def test_what_is_refused(world: World) -> None:
    theirs = model.Policy(network_key="did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9")
    async with world.running("alice") as alice, world.running("bob", theirs) as bob:
        await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data"))
        made = await alice.api.networks.invite("wires", WEEK)
        with pytest.raises(Refused, match="hold on this node, and in wires those of"):
            await bob.api.networks.join(wire.NetworkRequest(name="wires", invitation=made.text))
        with pytest.raises(Invalid, match="is to wires, not to other"):
            await bob.api.networks.join(wire.NetworkRequest(name="other", invitation=made.text))
        with pytest.raises(NotFound, match="not in the network other"):
            await alice.api.networks.invite("other", WEEK)
        for seconds in (0, 400 * 86_400):
            with pytest.raises(Invalid, match="an invitation for"):
                await alice.api.networks.invite("wires", wire.InvitationRequest(seconds=seconds))


@contextmanager
def with_tls(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    certificate, key = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = HttpServer(site._handler())
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield f"https://localhost:{server.server_port}"


async def test_a_network_is_joined_by_the_name_of_a_web_site(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "www" / WELL_KNOWN.lstrip("/")
    file.parent.mkdir(parents=True)
    site = Site(tmp_path / "www")
    async with world.running("alice") as alice, world.running("bob") as bob:
        made = await alice.api.networks.invite("wires", wire.InvitationRequest(seconds=3600))
        file.write_text(made.text + "\n")
        with with_tls(site, tmp_path, monkeypatch) as url:
            seen = await bob.api.networks.invitation(wire.InvitationText(text=url))
            assert seen == made, "what is shown is what is signed"
            await leave(bob)
            joined = await bob.api.networks.join(wire.NetworkRequest(name=seen.network, invitation=seen.text))
            assert joined.name == "wires"
            file.write_text(made.text[:-9] + "A" * 9)
            with pytest.raises(Invalid, match="not an invitation"):
                await bob.api.networks.invitation(wire.InvitationText(text=url))
        with pytest.raises(Invalid, match="anybody on the way"):
            await bob.api.networks.invitation(wire.InvitationText(text="http://example.org"))


ONCE = wire.InvitationRequest(seconds=3600, uses=1)


async def states(node: Node) -> list[tuple[str, int, list[str]]]:
    return [
        (each.state, each.uses, [one.peer_id for one in each.nodes]) for each in await node.api.networks.invitations()
    ]


async def test_a_single_use_invitation_admits_one_node(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        made = await alice.api.networks.invite("wires", ONCE)
        assert made.uses == 1
        seen = await bob.api.networks.invitation(wire.InvitationText(text=made.text))
        assert seen == made
        assert await states(alice) == [("open", 1, [])], "to look at it uses nothing up"
        for node in (bob, carol):
            await leave(node)
        request = wire.NetworkRequest(name="wires", invitation=made.text)
        assert (await bob.api.networks.join(request)).name == "wires"
        assert await states(alice) == [("used", 1, [bob.member.peer_id])]
        with pytest.raises(Refused, match="used by as many nodes as it is for") as caught:
            await carol.api.networks.join(request)
        assert caught.value.rule == "invitation-used"
        assert carol.member.networks == (), "who is refused has joined nothing"
        await leave(bob)
        assert (await bob.api.networks.join(request)).name == "wires", "the same node may join again"
        bob_key = bob.home.keys.node_key().did
        assert bob_key in alice.features.peers.find_known_peers().chosen, "its place is kept"
        (one,) = await alice.api.networks.invitations()
        assert (await alice.api.networks.revoke(one.id)).state == "revoked"
        assert bob_key not in alice.features.peers.find_known_peers().chosen
        with pytest.raises(Refused, match="it was revoked") as caught:
            await bob.api.networks.join(request)
        assert caught.value.rule == "invitation-revoked"
        assert [each.name for each in bob.member.networks] == ["wires"], "it was a member before, and stays one"
    async with world.running("alice") as alice:
        assert await states(alice) == [("revoked", 1, [bob.member.peer_id])], "over a restart"


async def test_tokens_that_admit_nobody_are_refused_by_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        with pytest.raises(Invalid, match="an invitation for 0 nodes"):
            await alice.api.networks.invite("wires", wire.InvitationRequest(seconds=60, uses=0))
        with pytest.raises(NotFound, match="no invitation with a token begins"):
            await alice.api.networks.revoke("abc")
        made = await alice.api.networks.invite("wires", ONCE)
        own = wire.NetworkRequest(name="wires", invitation=made.text)
        await alice.api.networks.join(own)
        assert await states(alice) == [("open", 1, [])], "who invites needs no use"
        await leave(bob)

        async def silent(_inviter: Any, _token: bytes) -> Any:
            raise Remote("no answer within 10 s")

        with monkeypatch.context() as patch:
            patch.setattr(bob.member, "redeem_at", silent)
            with pytest.raises(Remote, match="did not answer: no answer within") as unanswered:
                await bob.api.networks.join(own)
        assert "try again" in str(unanswered.value.hint)
        assert bob.member.networks == ()
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM invitations")
        with pytest.raises(Refused, match="knows no such invitation") as caught:
            await bob.api.networks.join(own)
        assert caught.value.rule == "invitation-unknown"
    async with world.running("bob") as bob:
        with pytest.raises(Remote):
            await bob.api.networks.join(own)
        assert [each.name for each in bob.member.networks] == ["wires"]
