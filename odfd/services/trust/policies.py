"""Shows this node's policy, publishes a network's policy, and accepts a published one.

A part that makes the policy stricter is in force as soon as it is received (``odfd.policy.policy_merge``). A part
that makes it laxer waits for a person's decision, which is kept as a resource and entered in the ledger. The network's
key is the key of the node that publishes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Literal

from chain.errors import Invalid, Refused
from chain.ids import KeyDid
from chain.multihash import Multihash
from chain.statements import canonical, envelope, statement
from chain.statements.envelope import Signed
from chain.statements.statement import PolicyStatement, RuleGroup, Rules, WitnessRules
from odfd.control import wire
from odfd.control.operations import NODE_PATH, Owner, operation
from odfd.network.joined_networks import Network
from odfd.network.membership import Membership
from odfd.policy.policy import DatasetRule, Policy
from odfd.policy.policy_merge import accept_rules, check_rules, waiting
from odfd.runtime.clock import Clock
from odfd.services.judgement.effective_policy import EffectivePolicy
from odfd.store.directory import StateDirectory
from odfd.store.keys import journal_topics
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.network_policies import AcceptedPolicy, NetworkPolicies


class PolicyService:
    """The API service for the policies of a node and its network."""

    def __init__(
        self,
        home: StateDirectory,
        membership: Membership,
        clock: Clock,
        effective_policy: EffectivePolicy,
        changed: Callable[[Signed | None], None],
    ) -> None:
        """``changed`` is called when the policy may have changed, with the statement signed for the network, if any."""
        self._home = home
        self._membership = membership
        self._clock = clock
        self._effective_policy = effective_policy
        self._changed = changed

    @operation("GET", NODE_PATH + "/policy", needs=Owner.POLICY)
    def policy(self) -> wire.PolicyView:
        """Shows the policy in force, and the network's policies: the one accepted last, and later ones."""
        with self._home.database.read() as connection:
            kept, own = NetworkPolicies(connection), self._effective_policy.own(connection)
            policy = self._effective_policy.policy(connection)
            views = [view for key in self._keys(connection) for view in self._views(kept, kept.policy(own, key), key)]
        return policy_view(self._effective_policy.profile, policy, views)

    def _keys(self, connection: sqlite3.Connection) -> list[KeyDid]:
        """Returns the keys whose policies are in force here, in the order of the networks' names."""
        sole = self._effective_policy.key_in(None)
        found = self._effective_policy.keys(connection) if sole is None else {"": sole}
        return list(dict.fromkeys(key for _, key in sorted(found.items())))

    def _views(self, kept: NetworkPolicies, policy: Policy, key: KeyDid) -> list[wire.NetworkRulesView]:
        settled, later = kept.find_accepted(key), kept.later(key)
        found = [] if settled is None else [_view(settled, "accepted", ())]
        for known in later:
            lines = waiting(policy, known.said.policy)
            found.append(_view(known, "waiting" if lines else "in force", lines))
        return found

    @operation("POST", NODE_PATH + "/policy/network", needs=Owner.POLICY)
    def publish_rules(self, request: wire.NetworkRulesRequest) -> wire.NetworkRulesView:
        """Signs the next version of a network's policy, and publishes it there. Raises Refused, Invalid."""
        view, signed = self._publish(request)
        self._changed(signed)
        return view

    def _network(self, name: str) -> Network:
        """Returns the network whose policy is published: the named one, or the only one. Raises Refused."""
        networks = self._membership.networks
        if not networks:
            raise Refused("this node is in no network", rule="no-network", hint="odfctl network join NAME")
        if not name and len(networks) > 1:
            raise Refused(
                f"this node is in {len(networks)} networks",
                rule="network",
                hint='say in the file whose policy it is: network = "NAME"',
            )
        found = self._membership.find(name) if name else networks[0]
        if found is None:
            raise Refused(f"this node is not in the network {name}", rule="network", hint="odfctl network list")
        return found

    def _publish(self, request: wire.NetworkRulesRequest) -> tuple[wire.NetworkRulesView, Signed]:
        network = self._network(request.network)
        rules, key, now = _rules(request), self._home.keys.node_key(), self._clock.now()
        check_rules(rules)
        accept_rules(Policy(), rules)
        with self._home.database.write() as connection:
            kept = NetworkPolicies(connection)
            before = kept.of(key.did)
            said = PolicyStatement(
                key=key.did,
                network=network.name,
                version=before[-1].said.version + 1 if before else 1,
                previous=before[-1].sid if before else None,
                issued_at=statement.when(now),
                policy=rules,
                head=rules.digest,
            )
            payload = statement.encode(said)
            sid, topic = envelope.sid(payload), journal_topics.policy(network.name)
            sealed = self._home.keys.sign(key, topic, (said.version,), str(sid), payload)
            signed = envelope.unseal(sealed, said.MAX_ENVELOPE)
            kept.keep(said, signed, "signed", "", now)
        return _view(AcceptedPolicy(said, signed.sid), "in force", ()), signed

    @operation("POST", NODE_PATH + "/policy/accept", needs=Owner.POLICY)
    def accept_rules(self, request: wire.AcceptRequest) -> wire.NetworkRulesView:
        """Accepts all rules of a published version, which are then in force here. Raises NotFound, Invalid, Refused."""
        view = self._accept(Multihash.parse(request.sid))
        self._changed(None)
        return view

    def _accept(self, sid: Multihash) -> wire.NetworkRulesView:
        now = self._clock.now()
        with self._home.database.write() as connection:
            keys = self._keys(connection)
            if not keys:
                raise Refused(
                    "this node takes its policy from no network",
                    rule="network-policy",
                    hint='name its key in the settings: [policy] network-key = "did:key:…"',
                )
            kept = NetworkPolicies(connection)
            key = next((key for key in keys if any(one.sid == sid for one in kept.later(key))), keys[0])
            known = kept.accept(self._effective_policy.own(connection), key, sid, now)
            said: dict[str, canonical.Json] = {"decision": "accept-policy", "sid": str(sid), "key": str(key)}
            Ledger(connection).decide_on(canonical.encode(said), now)
        return _view(known, "accepted", ())


def _rule_view(rule: DatasetRule) -> wire.DatasetRuleView:
    said = [None if each is None else str(each) for each in (rule.use, rule.serve)]
    return wire.DatasetRuleView(name=rule.name, datasets=rule.datasets, use=said[0], serve=said[1])


def policy_view(profile: str, policy: Policy, network: Sequence[wire.NetworkRulesView]) -> wire.PolicyView:
    said = {"attest": policy.attest, "observe": policy.observe}
    return wire.PolicyView(
        profile=profile,
        use=str(policy.use),
        serve=str(policy.serve),
        groups={group.name: tuple(str(key) for key in sorted(group.keys)) for group in policy.groups},
        publish=tuple(name for name, is_said in said.items() if is_said),
        settings={
            "f": policy.tolerated,
            "maxStaleSeconds": policy.max_stale,
            "spotCheck": policy.spot_check,
            "recheck": policy.recheck,
            "minEngines": policy.min_engines,
            "minSandbox": policy.min_sandbox,
            "witnesses": {name: str(key) for key, name in policy.witnesses.groups.items()},
            "witnessF": policy.witnesses.faulty,
            "quorum": policy.witnesses.quorum,
            "cosignatureSeconds": policy.witnesses.max_age,
        },
        rules=tuple(map(_rule_view, policy.rules)),
        notes=policy.notes,
        network=tuple(network),
    )


def _rules(request: wire.NetworkRulesRequest) -> Rules:
    """Returns the rules of a request. Raises Invalid."""
    groups = request.groups
    listed = None
    if groups is not None:
        if not all(groups.values()):
            raise Invalid("a group without keys", rule="policy", hint="leave it out, or list its keys")
        listed = tuple(
            RuleGroup(name=name, keys=tuple(KeyDid.parse(key) for key in keys)) for name, keys in groups.items()
        )
    return Rules(
        use=request.use,
        serve=request.serve,
        groups=listed,
        f=request.f,
        min_engines=request.min_engines,
        min_sandbox=request.min_sandbox,
        max_stale=request.max_stale,
        witness=None if request.witness is None else _witness_rules(request.witness),
    )


def _witness_rules(request: wire.WitnessRulesRequest) -> WitnessRules:
    """Returns the rules on witnesses of a request. Raises Invalid."""
    listed = None
    if request.groups is not None:
        listed = tuple(RuleGroup(name=name, keys=(KeyDid.parse(key),)) for name, key in request.groups.items())
    return WitnessRules(groups=listed, f=request.f, quorum=request.quorum, max_age=request.max_age)


def _view(
    known: AcceptedPolicy, state: Literal["accepted", "in force", "waiting"], lines: Sequence[str]
) -> wire.NetworkRulesView:
    return wire.NetworkRulesView(
        sid=str(known.sid),
        network=known.said.network,
        version=known.said.version,
        issued_at=known.said.issued_at,
        state=state,
        waiting=tuple(lines),
    )
