"""Computes the policy in force from settings, validators, rules that a person declared, and the network's policy."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from chain.ids import DatasetId, KeyDid
from config.model import Settings
from odfd.network.joined_networks import Network, list_joined
from odfd.policy.manifest import rules_in
from odfd.policy.policy import Expression, Policy, policy_of
from odfd.policy.policy_merge import PoliciesByNetwork
from odfd.resources.store import ResourceStore
from odfd.store import mirror_specs
from odfd.store.catalog import Catalog, Labels
from odfd.store.ledger.network_policies import NetworkPolicies

VALIDATOR: Final = "Validator"
"""Type of the resource by which a person here lists a validator's key in a group."""


class EffectivePolicy:
    """Computes the policy in force; ``settings`` returns the current ones. Invalid lists every mistake."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    @property
    def profile(self) -> str:
        return self._settings().policy.profile

    def key(self, connection: sqlite3.Connection, settings: Settings | None = None) -> KeyDid | None:
        """Returns the network key whose policies are in force. Raises Invalid."""
        return self.key_among(list_joined(connection), settings)

    def keys(self, connection: sqlite3.Connection, settings: Settings | None = None) -> dict[str, KeyDid]:
        """Returns the key of each joined network that has one. Raises Invalid."""
        found = {each.name: self.key_in(each, settings) for each in list_joined(connection)}
        return {name: key for name, key in found.items() if key is not None}

    def key_among(self, networks: Iterable[Network], settings: Settings | None = None) -> KeyDid | None:
        """Returns the first key whose policies are in force in some networks. Raises Invalid."""
        return self.key_in(next((network for network in networks if network.policy_key), None), settings)

    def key_in(self, network: Network | None, settings: Settings | None = None) -> KeyDid | None:
        """Returns a network's key: from the settings, or from the invitation by which this node joined."""
        text = (settings or self._settings()).policy.network_key
        if not text and network is not None:
            text = network.policy_key
        return KeyDid.parse(text) if text else None

    def own(self, connection: sqlite3.Connection, settings: Settings | None = None) -> Policy:
        """Computes the policy without any network. Raises Invalid."""
        added = [(each.spec["did"], each.spec["group"]) for each in ResourceStore(connection).all(VALIDATOR)]
        policy = policy_of((settings or self._settings()).policy, added)
        rules = rules_in(connection)
        return msgspec.structs.replace(policy, rules=rules) if rules else policy

    def policy(self, connection: sqlite3.Connection, settings: Settings | None = None) -> Policy:
        """Computes the policy in force where no dataset is concerned. Raises Invalid."""
        return self.policies(connection, settings).joint

    def policies(self, connection: sqlite3.Connection, settings: Settings | None = None) -> PoliciesByNetwork:
        """Computes the policies in force, by network. Raises Invalid."""
        own, key = self.own(connection, settings), self.key(connection, settings)
        keys, kept = self.keys(connection, settings), NetworkPolicies(connection)
        rules = {each: kept.rules(each) for each in {*keys.values(), *(() if key is None else (key,))}}
        named = bool((settings or self._settings()).policy.network_key)
        return PoliciesByNetwork(own, keys, rules, key if named or len(list_joined(connection)) < 2 else None)


def purposes(
    connection: sqlite3.Connection, dataset: DatasetId, policy: Policy, labels: Labels
) -> tuple[Expression | None, Expression | None]:
    """Returns a dataset's own terms of use and of serving: its mirror's, else a TrustPolicy's, else ``None``."""
    use, serve = mirror_specs.purposes(connection, dataset)
    if not policy.rules or (use is not None and serve is not None):
        return use, serve
    catalog = Catalog(connection)
    entry = catalog.find(dataset)
    ruled = policy.ruled("" if entry is None else entry.name, partial(catalog.facts, dataset, labels))
    return use or ruled[0], serve or ruled[1]
