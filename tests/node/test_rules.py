"""A network's policy among nodes: published by one, tightening another at once, loosening it on a person's word."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import Invalid, NotFound, Refused
from config import model
from odfd.control import wire
from odfd.store.ledger import kinds
from worlds.node_world import World


def under(key: str, **more: Any) -> model.Policy:
    return model.Policy(network_key=key, **more)


async def test_tightening_holds_at_once_and_loosening_waits(world: World) -> None:
    async with world.running("alice") as alice:
        own = under(alice.key, use="chain", serve="data")
        async with world.running("bob", own) as bob, world.running("carol") as carol:
            done = await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data", serve="chain"))
            assert (done.version, done.network) == (1, "wires")
            await bob.heard("policy.heard")
            policy = await bob.api.policies.policy()
            assert (policy.use, policy.serve) == ("chain & data", "data & chain")
            (view,) = policy.network
            assert (view.state, len(view.waiting)) == ("waiting", 2)
            await bob.api.policies.accept_rules(wire.AcceptRequest(sid=view.sid))
            policy = await bob.api.policies.policy()
            assert (policy.use, policy.serve, policy.network[0].state) == ("data", "chain", "accepted")
            mine = await carol.api.policies.policy()
            assert (mine.network, mine.use) == ((), "data")
            with carol.home.database.read() as connection:
                assert kinds.refs(connection, of_dataset=False) == [], "whose policy holds is for each node to say"
        async with world.running("bob", own) as bob:
            assert (await bob.api.policies.policy()).use == "data", "over a restart too"
            tighter = await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data & fresh"))
            await bob.heard("policy.heard")
            policy = await bob.api.policies.policy()
            assert (policy.use, [each.state for each in policy.network]) == ("data & fresh", ["accepted", "in force"])
            assert tighter.version == 2
        async with world.running("dave", own) as dave:
            await dave.heard("policy.heard", 2)
            assert (await dave.api.policies.policy()).network[-1].version == 2, "who comes later pulls them"


async def test_what_is_refused(world: World) -> None:
    async with world.running("alice") as alice:
        publish, accept = alice.api.policies.publish_rules, alice.api.policies.accept_rules
        with pytest.raises(Invalid, match="attested:2 without any validator groups"):
            await publish(wire.NetworkRulesRequest(use="attested:2"))
        with pytest.raises(Invalid, match="cannot read"):
            await publish(wire.NetworkRulesRequest(use="data ; drop"))
        with pytest.raises(Invalid, match="a group without keys"):
            await publish(wire.NetworkRulesRequest(groups={"a": ()}))
        sid = "f1620" + "ab" * 32
        with pytest.raises(Refused, match="takes its policy from no network"):
            await accept(wire.AcceptRequest(sid=sid))
        alice.assembly.reload(model.Settings(policy=under(alice.key)))
        with pytest.raises(NotFound, match="waits"):
            await accept(wire.AcceptRequest(sid=sid))
        with pytest.raises(Invalid):
            alice.assembly.reload(model.Settings(policy=under("did:key:nonsense")))
        alice.member.networks = ()
        with pytest.raises(Refused, match="in no network"):
            await publish(wire.NetworkRulesRequest(use="data"))
