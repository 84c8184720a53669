"""Computes the policy in force: the node's settings, validators that a person added, and what a network adds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

import msgspec

from chain.ids import KeyDid
from config.model import Settings
from odfd.resources.store import Resources
from odfd.trust.policy.network_policies import NetworkPolicies
from odfd.trust.policy.policy import Policy
from odfd.trust.policy.profiles import policy_of

GROUP: Final = "validator"
"""Resource kind: a key and the group it stands in, listed by a person here."""


class EffectivePolicy:
    """Puts a policy together; ``settings`` are those in force. What raises Invalid tells every mistake."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    @property
    def profile(self) -> str:
        return self._settings().policy.profile

    def key(self, settings: Settings | None = None) -> KeyDid | None:
        """The network's key whose policies hold here. Raises Invalid."""
        text = (settings or self._settings()).policy.network_key
        return KeyDid.parse(text) if text else None

    def own(self, connection: sqlite3.Connection, settings: Settings | None = None) -> Policy:
        """What holds without any network. Raises Invalid."""
        added = [(each.name, str(msgspec.json.decode(each.spec)["group"])) for each in Resources(connection).all(GROUP)]
        return policy_of((settings or self._settings()).policy, added)

    def policy(self, connection: sqlite3.Connection, settings: Settings | None = None) -> Policy:
        """What holds. Raises Invalid."""
        return NetworkPolicies(connection).policy(self.own(connection, settings), self.key(settings))
