"""Says whose answers make a lost signing journal good: those of validators and witnesses that the policy lists. Pure.

What strangers tell is heard, since a signature is one whoever shows it. That they know of nothing more says nothing,
since keys are free. Spec: docs/spec/trust.md#journals.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from chain.ids import KeyDid
from odfd.trust.policy.policy import Policy

ENOUGH: Final = 3
"""Listed groups that told what they know, after which a journal is begun anew."""
PATIENCE: Final = 60.0
"""Seconds after which fewer will do, as long as one of them is honest."""


class GroupsHeard(msgspec.Struct, frozen=True):
    """The groups whose nodes told all they know of our keys."""

    validators: frozenset[str] = frozenset()
    witnesses: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.validators | self.witnesses)


def told_by(policy: Policy, keys: Iterable[KeyDid], *me: KeyDid) -> GroupsHeard:
    """Whose answers these are, of those that are listed; groups with a key of this node tell it nothing."""
    own = {group for key in me for group in (policy.group_of(key), policy.witnesses.groups.get(key))} - {None}
    validators = {policy.group_of(key) for key in keys}
    witnesses = {policy.witnesses.groups.get(key) for key in keys}
    return GroupsHeard(
        *(frozenset(name for name in names if name and name not in own) for names in (validators, witnesses))
    )


def may_go_on(policy: Policy, told: GroupsHeard, waited: float) -> bool:
    """Whether these groups are enough ``waited`` seconds after the first was asked: more than may be faulty."""
    is_one_honest = len(told.validators) > policy.tolerated or len(told.witnesses) > policy.witnesses.faulty
    return is_one_honest and (len(told) >= ENOUGH or waited >= PATIENCE)
