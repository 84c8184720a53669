"""Computes the policy by which a dataset is judged from the networks in which it was met (docs/spec/trust.md). Pure.

Each network's policy holds for what was met in that network. A dataset of several is judged by that of the first, and
the others tighten it; what is limited to no network all tighten. So joining one more network never loosens anything
that was met elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from chain.ids import DatasetId, KeyDid
from chain.statements.statement import Rules
from odfd.policy.policy import KeyGroup, Policy
from odfd.policy.policy_merge import in_force, tightened

NetworkRules: TypeAlias = tuple[Rules | None, Sequence[Rules]]
"""What a person accepted last, and later versions."""


class PoliciesByNetwork:
    """The policies of one node, as of one moment."""

    def __init__(
        self, own: Policy, keys: Mapping[str, KeyDid], rules: Mapping[KeyDid, NetworkRules], sole: KeyDid | None = None
    ) -> None:
        """``keys`` by network, without those that have none. ``sole``: the key that holds in all, also in none."""
        self._own = own
        self._keys = dict(sorted(keys.items()))
        self._rules = rules
        self._sole = sole
        self._known: dict[tuple[bool, tuple[KeyDid, ...]], Policy] = {}
        self.joint = self._joint()
        """Where no dataset is concerned: the strictest, and the keys that count for any dataset."""

    @property
    def is_divided(self) -> bool:
        """Whether it matters in which network a dataset was met."""
        return self._sole is None and bool(self._keys)

    def for_dataset(self, dataset: DatasetId, met_in: Callable[[DatasetId], Sequence[str] | None]) -> Policy | None:
        """Returns the policy for a dataset; ``None``: it is that for all, and nobody is asked where it was met."""
        return self.of(met_in(dataset)) if self.is_divided else None

    def of(self, met: Sequence[str] | None) -> Policy:
        """Returns the policy for a dataset. ``met``: its networks, the first first; ``None``: it is limited to none."""
        if self._sole is not None:
            return self._merge((self._sole,), in_order=True)
        if met is None:
            keys = tuple(dict.fromkeys(self._keys.values()))
            return self._merge(keys, in_order=len(keys) == 1)
        return self._merge(tuple(dict.fromkeys(self._keys[name] for name in met if name in self._keys)), in_order=True)

    def _merge(self, keys: tuple[KeyDid, ...], *, in_order: bool) -> Policy:
        """``in_order``: what a person accepted of the first takes the place of the node's own."""
        if (in_order, keys) not in self._known:
            policy = in_force(self._own, *self._rules[keys[0]]) if keys and in_order else self._own
            for key in keys[1:] if in_order else keys:
                settled, later = self._rules[key]
                for rules in (*(() if settled is None else (settled,)), *later):
                    policy = tightened(policy, rules)
            self._known[in_order, keys] = policy
        return self._known[in_order, keys]

    def _joint(self) -> Policy:
        policy = self.of(None)
        if not self.is_divided:
            return policy
        groups: dict[str, frozenset[KeyDid]] = {}
        witnesses: dict[KeyDid, str] = {}
        for each in (policy, self._own, *(self.of([name]) for name in self._keys)):
            witnesses = {**each.witnesses.groups, **witnesses}
            taken = frozenset().union(*groups.values())
            for group in each.groups:
                groups[group.name] = groups.get(group.name, frozenset()) | (group.keys - taken)
        return msgspec.structs.replace(
            policy,
            groups=tuple(KeyGroup(name, keys) for name, keys in groups.items() if keys),
            witnesses=msgspec.structs.replace(policy.witnesses, groups=witnesses),
        )
