"""Merges a network's rules on witnesses into a node's, as ``policy_merge`` does for the other rules. Pure.

Stricter rules apply at once: how many must stand behind a head, whose cosignatures count (fewer keys), how old a
cosignature may be. Other witnesses, and how many of them may be faulty, wait for a person.
Spec: docs/spec/trust.md#witnesses, #network-policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from chain.errors import Invalid
from chain.repeats import repeated
from chain.statements.statement import WitnessRules
from chain.wording import agree, plural
from odfd.policy.policy import Expression, facts_of
from odfd.policy.witness_quorum import Witnesses, seconds_of


def mistakes(rules: WitnessRules) -> Iterator[str]:
    """Yields mistakes in the rules themselves."""
    if rules.max_age is not None:
        try:
            seconds_of(rules.max_age)
        except Invalid as fault:
            yield f"witness max-age: {fault.message}"
    groups = rules.groups or ()
    names, keys = [group.name for group in groups], [key for group in groups for key in group.keys]
    for group in groups:
        if len(group.keys) != 1:
            yield f"witness group {group.name} has {len(group.keys)} keys: it has one, or two could stand on two sides"
    for name in repeated(names):
        yield f"witness group {name} is listed twice"
    for key in repeated(keys):
        yield f"witness key {key.short} is listed twice"


def tightened(mine: Witnesses, rules: WitnessRules) -> Witnesses:
    """Applies all stricter rules; a quorum that they make unreachable is still required."""
    listed = None if rules.groups is None else {key for group in rules.groups for key in group.keys}
    return msgspec.structs.replace(
        mine,
        groups={key: name for key, name in mine.groups.items() if listed is None or key in listed},
        quorum=max(mine.quorum, rules.quorum or 0),
        max_age=mine.max_age if rules.max_age is None else min(mine.max_age, seconds_of(rules.max_age)),
    )


def accepted(mine: Witnesses, rules: WitnessRules) -> Witnesses:
    """Applies all rules, looser ones too."""
    groups = None if rules.groups is None else {key: group.name for group in rules.groups for key in group.keys}
    return msgspec.structs.replace(
        mine,
        groups=mine.groups if groups is None else groups,
        faulty=mine.faulty if rules.f is None else rules.f,
        quorum=mine.quorum if rules.quorum is None else rules.quorum,
        max_age=mine.max_age if rules.max_age is None else seconds_of(rules.max_age),
    )


def unmet(witnesses: Witnesses, expressions: Mapping[str, Expression]) -> Iterator[str]:
    """Yields requirements that this number of witnesses can never meet."""
    groups = len(witnesses.groups)
    asked = [("witness.quorum", witnesses.quorum)]
    asked += [
        (purpose, fact.count)
        for purpose, expression in expressions.items()
        for fact in facts_of(expression)
        if fact.name == "witnessed"
    ]
    for who, count in asked:
        if count > groups:
            listed = agree(groups, "group is", "groups are")
            yield f"{who}: {plural(count, 'witness', 'witnesses')}, of which {groups} {listed} listed"
    if witnesses.faulty and witnesses.faulty >= groups:
        yield f"{witnesses.faulty} of {groups} witness groups may be faulty: then none is believed"


def waiting(mine: Witnesses, rules: WitnessRules) -> Iterator[str]:
    """Yields the rules that are not in force and need a person's acceptance."""
    for group in rules.groups or ():
        for key in group.keys:
            if mine.groups.get(key) != group.name:
                yield f"{key.short} counts as the witness {group.name}"
    if rules.f is not None and rules.f != mine.faulty:
        yield f"witness f: {rules.f}, in place of {mine.faulty}"
    if rules.quorum is not None and rules.quorum != mine.quorum:
        yield f"witness quorum: {rules.quorum}, in place of {mine.quorum}"
    if rules.max_age is not None and seconds_of(rules.max_age) != mine.max_age:
        yield f"witness max-age: {rules.max_age}, in place of {mine.max_age} s"
