"""Computes the policy in force: the node's settings, validators that a person added, and the network's policy."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from chain.ids import KeyDid
from config.model import Settings
from odfd.network.membership import Network, joined
from odfd.resources.store import Resources
from odfd.trust.policy.network_policies import NetworkPolicies
from odfd.trust.policy.policy import Policy
from odfd.trust.policy.profiles import policy_of

GROUP: Final = "validator"
"""Resource kind: a key and the group it stands in, listed by a person here."""


class EffectivePolicy:
    """Computes a policy; ``settings`` are those in force. Invalid lists every mistake."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    @property
    def profile(self) -> str:
        return self._settings().policy.profile

    def key(self, connection: sqlite3.Connection, settings: Settings | None = None) -> KeyDid | None:
        """Returns the network key whose policies are in force. Raises Invalid."""
        return self.key_among(joined(connection), settings)

    def key_among(self, networks: Iterable[Network], settings: Settings | None = None) -> KeyDid | None:
        """Returns the key whose policies are in force in some networks: one has a say at most. Raises Invalid."""
        return self.key_in(next((each for each in networks if each.policy_key), None), settings)

    def key_in(self, network: Network | None, settings: Settings | None = None) -> KeyDid | None:
        """Returns a network's key: from the settings, or from the invitation by which this node joined."""
        text = (settings or self._settings()).policy.network_key
        if not text and network is not None:
            text = network.policy_key
        return KeyDid.parse(text) if text else None

    def own(self, connection: sqlite3.Connection, settings: Settings | None = None) -> Policy:
        """Computes the policy without any network. Raises Invalid."""
        added = [(each.name, str(msgspec.json.decode(each.spec)["group"])) for each in Resources(connection).all(GROUP)]
        return policy_of((settings or self._settings()).policy, added)

    def policy(self, connection: sqlite3.Connection, settings: Settings | None = None) -> Policy:
        """Computes the policy in force. Raises Invalid."""
        return NetworkPolicies(connection).policy(self.own(connection, settings), self.key(connection, settings))
