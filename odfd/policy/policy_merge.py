"""Merges a network's policy into a node's: stricter rules apply at once, looser ones wait for a person. Pure.

Stricter rules are merged for: what a purpose requires (both the node's and the network's must hold), whose statements
count (fewer keys), how many engines, how much isolation, how stale a head may be, and the rules on witnesses
(``tighten_witnesses``). All else, such as other groups and another ``f``, changes only when a person accepts the
version; then the network's rules replace those of the node. Spec: docs/spec/trust.md#policy.

Of the rules on witnesses these apply at once: how many must stand behind a head, whose cosignatures count (fewer keys),
how old a cosignature may be. Other witnesses, and how many of them may be faulty, wait for a person. Spec:
docs/spec/trust.md#witnesses, #network-policy.

Computes the policy by which a dataset is judged from the networks in which it was met (docs/spec/trust.md). Each
network's policy holds for what was met in that network. A dataset of several is judged by that of the first, and the
others tighten it; what is limited to no network all tighten. So joining one more network never loosens anything that
was met elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.repeats import repeated
from chain.statements.statement import Rules, WitnessRules
from chain.wording import agree, plural
from odfd.policy.policy import (
    SANDBOXES,
    AllOf,
    Expression,
    Fact,
    KeyGroup,
    Policy,
    facts_of,
    holds,
    parse_expression,
    quorum_mistakes,
)
from odfd.policy.witness_quorum import Witnesses, seconds_of


def _witness_mistakes(rules: WitnessRules) -> Iterator[str]:
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
            yield f"witness group {group.name} has {len(group.keys)} keys: it has one, or two could be on two sides"
    for name in repeated(names):
        yield f"witness group {name} is listed twice"
    for key in repeated(keys):
        yield f"witness key {key.short} is listed twice"


def tighten_witnesses(mine: Witnesses, rules: WitnessRules) -> Witnesses:
    """Applies all stricter rules; a quorum that they make unreachable is still required."""
    listed = None if rules.groups is None else {key for group in rules.groups for key in group.keys}
    return msgspec.structs.replace(
        mine,
        groups={key: name for key, name in mine.groups.items() if listed is None or key in listed},
        quorum=max(mine.quorum, rules.quorum or 0),
        max_age=mine.max_age if rules.max_age is None else min(mine.max_age, seconds_of(rules.max_age)),
    )


def accept_witness_rules(mine: Witnesses, rules: WitnessRules) -> Witnesses:
    """Applies all rules, looser ones too."""
    groups = None if rules.groups is None else {key: group.name for group in rules.groups for key in group.keys}
    return msgspec.structs.replace(
        mine,
        groups=mine.groups if groups is None else groups,
        faulty=mine.faulty if rules.f is None else rules.f,
        quorum=mine.quorum if rules.quorum is None else rules.quorum,
        max_age=mine.max_age if rules.max_age is None else seconds_of(rules.max_age),
    )


def _unmet_witnesses(witnesses: Witnesses, expressions: Mapping[str, Expression]) -> Iterator[str]:
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


def waiting_witness_rules(mine: Witnesses, rules: WitnessRules) -> Iterator[str]:
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


MAX_CLAUSES: Final = 256
"""Ways to meet an expression that are compared; with more, nothing is concluded about the expression."""


def check_rules(rules: Rules) -> None:
    """Raises Invalid with every mistake in the rules."""
    mistakes = list(_mistakes(rules))
    if mistakes:
        raise Invalid("; ".join(mistakes), rule="policy", hint="odfctl docs spec/trust says what a policy may say")


def _mistakes(rules: Rules) -> Iterator[str]:
    for name, text in (("use", rules.use), ("serve", rules.serve)):
        try:
            if text is not None:
                parse_expression(text)
        except Invalid as fault:
            yield f"{name}: {fault.message}"
    if rules.max_stale is not None:
        try:
            seconds_of(rules.max_stale)
        except Invalid as fault:
            yield f"max-stale: {fault.message}"
    if rules.min_sandbox is not None and rules.min_sandbox not in SANDBOXES:
        yield f"min-sandbox {rules.min_sandbox!r} is none of {', '.join(SANDBOXES)}"
    if rules.witness is not None:
        yield from _witness_mistakes(rules.witness)
    groups = rules.groups or ()
    names, keys = [group.name for group in groups], [key for group in groups for key in group.keys]
    for name in repeated(names):
        yield f"group {name} is listed twice"
    for key in repeated(keys):
        yield f"key {key.short} is listed twice; a key has one vote"


def tighten(policy: Policy, rules: Rules) -> Policy:
    """Returns the policy with all stricter rules applied. It never allows anything that the policy did not."""
    changed = msgspec.structs.replace(
        policy,
        use=_both(policy.use, rules.use),
        serve=_both(policy.serve, rules.serve),
        floors=(_raise_floor(policy.floors[0], rules.use), _raise_floor(policy.floors[1], rules.serve)),
        groups=policy.groups if rules.groups is None else tuple(_keep_listed(policy.groups, rules)),
        min_engines=max(policy.min_engines, rules.min_engines or 1),
        min_sandbox=max(policy.min_sandbox, rules.min_sandbox or SANDBOXES[0], key=SANDBOXES.index),
        max_stale=policy.max_stale if rules.max_stale is None else min(policy.max_stale, seconds_of(rules.max_stale)),
        witnesses=policy.witnesses if rules.witness is None else tighten_witnesses(policy.witnesses, rules.witness),
    )
    # No threshold is lowered for it: liars could meet a lower one
    # (test_a_policy_that_locks_everyone_out_is_not_accepted).
    unmet = [f"quorum unreachable: {each}" for each in _unmet(changed)]
    return msgspec.structs.replace(
        changed, notes=(*policy.notes, *(each for each in unmet if each not in policy.notes))
    )


def accept_rules(policy: Policy, rules: Rules) -> Policy:
    """Returns the policy with all of the rules applied. Raises Invalid if the result could not be met."""
    groups = (
        None if rules.groups is None else tuple(KeyGroup(group.name, frozenset(group.keys)) for group in rules.groups)
    )
    changed = msgspec.structs.replace(
        policy,
        use=policy.use if rules.use is None else parse_expression(rules.use),
        serve=policy.serve if rules.serve is None else parse_expression(rules.serve),
        groups=policy.groups if groups is None else groups,
        tolerated=policy.tolerated if rules.f is None else rules.f,
        min_engines=rules.min_engines or policy.min_engines,
        min_sandbox=rules.min_sandbox or policy.min_sandbox,
        max_stale=policy.max_stale if rules.max_stale is None else seconds_of(rules.max_stale),
        witnesses=policy.witnesses if rules.witness is None else accept_witness_rules(policy.witnesses, rules.witness),
    )
    unmet = list(_unmet(changed))
    if unmet:
        raise Invalid("; ".join(unmet), rule="policy", hint="no node could meet it: the network has to sign another")
    return changed


def in_force(policy: Policy, settled: Rules | None, later: Sequence[Rules]) -> Policy:
    """Applies to a node's own policy the rules that a person accepted last, and then tightens it by all later ones.

    Accepted rules that no longer fit the node's own settings are left out, with a note.
    """
    if settled is not None:
        try:
            policy = accept_rules(policy, settled)
        except Invalid as fault:
            note = f"the accepted network policy does not fit these settings: {fault.message}"
            policy = msgspec.structs.replace(policy, notes=(*policy.notes, note))
    for rules in later:
        policy = tighten(policy, rules)
    return policy


def waiting(policy: Policy, rules: Rules) -> list[str]:
    """Lists the rules that are not in force and need a person's acceptance, one line each."""
    found = [
        f"{name}: {text}, in place of {mine}"
        for name, text, mine in (("use", rules.use, policy.use), ("serve", rules.serve, policy.serve))
        if text is not None and not _same(parse_expression(text), mine)
    ]
    mine = {key: group.name for group in policy.groups for key in group.keys}
    for group in rules.groups or ():
        found += [f"{key.short} counts, in the group {group.name}" for key in group.keys if mine.get(key) != group.name]
    if rules.f is not None and rules.f != policy.tolerated:
        found.append(f"f: {rules.f}, in place of {policy.tolerated}")
    if rules.min_engines is not None and rules.min_engines != policy.min_engines:
        found.append(f"min-engines: {rules.min_engines}, in place of {policy.min_engines}")
    if rules.min_sandbox is not None and rules.min_sandbox != policy.min_sandbox:
        found.append(f"min-sandbox: {rules.min_sandbox}, in place of {policy.min_sandbox}")
    if rules.max_stale is not None and seconds_of(rules.max_stale) != policy.max_stale:
        found.append(f"max-stale: {rules.max_stale}, in place of {policy.max_stale} s")
    if rules.witness is not None:
        found += waiting_witness_rules(policy.witnesses, rules.witness)
    return found


def implies(one: Expression, other: Expression) -> bool:
    """Whether everything that meets ``one`` meets ``other``; ``False`` also if that is too complex to decide."""
    clauses = _clauses(one)
    return clauses is not None and all(holds(other, clause) for clause in clauses)


def _both(mine: Expression, text: str | None) -> Expression:
    if text is None:
        return mine
    theirs = parse_expression(text)
    if implies(mine, theirs):
        return mine
    if implies(theirs, mine):
        return theirs
    return AllOf((*_terms(mine), *(term for term in _terms(theirs) if not implies(mine, term))))


def _raise_floor(floor: Expression | None, text: str | None) -> Expression | None:
    if text is None:
        return floor
    return parse_expression(text) if floor is None else _both(floor, text)


def _terms(expression: Expression) -> tuple[Expression, ...]:
    """Returns the parts of an expression that must all hold."""
    return expression.terms if isinstance(expression, AllOf) else (expression,)


def _same(one: Expression, other: Expression) -> bool:
    return implies(one, other) and implies(other, one)


def _keep_listed(groups: Sequence[KeyGroup], rules: Rules) -> Iterator[KeyGroup]:
    """Yields the groups with only those keys that the network lists too."""
    listed = {key for group in rules.groups or () for key in group.keys}
    for group in groups:
        if kept := group.keys & listed:
            yield KeyGroup(group.name, kept)


def _unmet(policy: Policy) -> Iterator[str]:
    purposes = {"use": policy.use, "serve": policy.serve}
    yield from quorum_mistakes(purposes, len(policy.groups), policy.tolerated)
    yield from _unmet_witnesses(policy.witnesses, purposes)


def _clauses(expression: Expression) -> list[Mapping[str, int]] | None:
    """Returns the minimal ways to meet an expression; ``None`` if they are too many."""
    if isinstance(expression, Fact):
        return [{expression.name: max(expression.count, 1)}]
    parts = [_clauses(term) for term in expression.terms]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if not isinstance(expression, AllOf):
        found = [clause for part in known for clause in part]
        return found if len(found) <= MAX_CLAUSES else None
    size = 1
    for part in known:
        size *= len(part)
    return [_merge(each) for each in product(*known)] if size <= MAX_CLAUSES else None


def _merge(clauses: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for clause in clauses:
        for name, count in clause.items():
            found[name] = max(count, found.get(name, 0))
    return found


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
                    policy = tighten(policy, rules)
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
