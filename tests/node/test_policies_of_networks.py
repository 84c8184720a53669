"""A node in two networks judges each dataset by the policy of the network in which it was met."""

from __future__ import annotations

from typing import Any

from chain import instant
from chain.statements.keys import SigningKey
from chain.statements.statement import Rules
from odfd.control import wire
from odfd.network.joined_networks import Network, keep
from odfd.policy.policy_merge import PoliciesByNetwork
from odfd.store.shares import NetworkScopes
from worlds.node_world import World

NOW = instant.parse("2026-11-20T08:00:00Z")
ONE, OTHER = (SigningKey(name * 32).dataset_id for name in (b"1", b"2"))
BANK, TOWN = (SigningKey(name * 32).did for name in (b"b", b"t"))


async def test_the_policy_of_a_dataset_is_that_of_its_network(world: World) -> None:
    async with world.running("alice") as alice:
        parts = alice.parts
        own = parts.policy
        rules = {BANK: (None, [Rules(use="data & fresh")]), TOWN: (None, [Rules(use="data & reproduced")])}
        alice.features.judgement.policies = PoliciesByNetwork(own, {"bank": BANK, "town": TOWN}, rules)
        with alice.home.database.write() as connection:
            NetworkScopes(connection).add(ONE, ["town"], NOW)
            NetworkScopes(connection).add(ONE, ["bank"], instant.Instant(NOW - 1))
            NetworkScopes(connection).add(OTHER, ["town"], NOW)
        assert parts.visibility.met_in(ONE) == ["bank", "town"], "the first first"
        assert str(parts.evaluator.use(ONE)) == "data & fresh & reproduced"
        assert str(parts.evaluator.use(OTHER)) == "data & reproduced"
        parts.visibility.note_mention(OTHER, "bank", NOW, is_wanted=False)
        assert parts.visibility.met_in(OTHER) == ["town"], "with one network hearsay changes nothing"


async def test_an_invitation_to_a_second_network_brings_its_key(world: World) -> None:
    """And what each says of the policy is shown and can be accepted."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.api.policies.publish_rules(wire.NetworkRulesRequest(use="data & fresh"))
        made = await alice.api.networks.invite("wires", wire.InvitationRequest(seconds=3600))
        bank = Network(name="bank", policy_key=str(BANK))
        with bob.home.database.write() as connection:
            keep(connection, bank, NOW)
        await bob.api.networks.join(wire.NetworkRequest(name="wires", invitation=made.text))
        await bob.heard("policy.heard")
        with bob.home.database.read() as connection:
            assert bob.parts.effective_policy.keys(connection) == {"bank": BANK, "wires": made_key(made)}
        assert bob.parts.policies.is_divided
        assert str(bob.parts.policies.of(["wires"]).use) == "data & fresh"
        assert str(bob.parts.policies.of(["bank"]).use) == "data"
        shown = await bob.api.policies.policy()
        assert [each.version for each in shown.network] == [1]


def made_key(made: Any) -> Any:
    from chain.ids import KeyDid

    return KeyDid.parse(made.policy_key)
