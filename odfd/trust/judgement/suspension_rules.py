"""Decides which validator groups are suspended, and which of this node's own verdicts to re-check. Pure.

A group is suspended at once if one of its keys voted twice, else by strikes in two datasets. A strike: on some block at
most f groups support the group's value while exactly one other value has more, counting groups of the same engine and
platform, for longer than the grace, in which an honest validator runs the block again and takes back what does not
repeat. So a broken machine is suspended, a sound one is not, and a wrong guess about determinism is corrected.
Suspended groups are not counted; the number of groups and how many may be wrong stay as the policy says.
Spec: docs/spec/trust.md#suspension.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from chain import instant
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.statements.statement import Attestation
from odfd.policy.policy import Policy
from odfd.trust.judgement.verdicts import GroupVerdict, VerdictKind, group_verdicts, verdict_on

GRACE: Final = 48 * 3600 * instant.SECOND
"""Time that a contradiction must stand before it counts: enough to receive it, to re-run and to answer."""
STRIKES: Final = 2
"""Number of datasets in which a group must be contradicted."""
ME: Final = ""
"""The name of the group of my own runs, if the policy lists my key in no group."""


class Machine(msgspec.Struct, frozen=True):
    """The environment of a verdict; only verdicts of equal environments contradict each other."""

    digest: str
    platform: str


class DatasetStatements(msgspec.Struct, frozen=True, kw_only=True):
    """The statements about one dataset's chain as it is held here."""

    attestations: Mapping[KeyDid, Attestation]
    """Live attestations that are about this chain."""
    own: Mapping[int, GroupVerdict] = {}
    """My own runs by step."""
    steps: Sequence[int]
    """Steps to check; the first of each range in which no verdict changes is enough."""


class Strike(NamedTuple):
    """A group's verdict on a block is contradicted by more than f others."""

    group: str
    dataset: DatasetId
    block: int


class SuspensionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts on which suspension is decided."""

    datasets: Mapping[DatasetId, DatasetStatements]
    accused: Collection[KeyDid] = ()
    """Keys with a proven double vote."""
    since: Mapping[Strike, Instant] = {}
    """The time when each present strike was first seen; see ``remembered``."""
    pardoned: Collection[Strike] = ()
    """Strikes of suspensions that a person lifted; they never count again."""
    own_group: str = ME
    own_machine: Machine | None = None


def standing(policy: Policy, view: SuspensionFacts, now: Instant) -> frozenset[str]:
    """Returns the suspended groups."""
    stand = {strike for strike in strikes(policy, view) if now - view.since.get(strike, now) > GRACE}
    return double_voters(policy, view.accused) | struck(stand)


def struck(stand: Collection[Strike]) -> frozenset[str]:
    """Returns the groups with strikes in enough datasets; all of ``stand`` are older than the grace."""
    datasets: dict[str, set[DatasetId]] = {}
    for strike in stand:
        datasets.setdefault(strike.group, set()).add(strike.dataset)
    return frozenset(group for group, found in datasets.items() if len(found) >= STRIKES)


def double_voters(policy: Policy, accused: Collection[KeyDid]) -> frozenset[str]:
    """Returns groups of keys that provably voted twice, which are suspended at once."""
    return frozenset(group for key in accused if (group := policy.group_of(key)) is not None)


def remembered(since: Mapping[Strike, Instant], found: Collection[Strike], now: Instant) -> dict[Strike, Instant]:
    """Updates the times of strikes: a strike that ended and returns begins again."""
    return {strike: since.get(strike, now) for strike in found}


def strikes(policy: Policy, view: SuspensionFacts) -> frozenset[Strike]:
    """Returns all present contradictions, whether or not their grace is over."""
    out = double_voters(policy, view.accused)
    return frozenset(
        Strike(group, dataset, step)
        for dataset, evidence in view.datasets.items()
        for group, step in _list_contradicted(policy, view, evidence, out)
        if group != view.own_group and Strike(group, dataset, step) not in view.pardoned
    )


def look_again(policy: Policy, view: SuspensionFacts) -> frozenset[tuple[DatasetId, int]]:
    """Returns steps on which more than f groups agree on another verdict than my own run: I run them again."""
    out = double_voters(policy, view.accused)
    return frozenset(
        (dataset, step)
        for dataset, evidence in view.datasets.items()
        for step, mine in evidence.own.items()
        if mine.kind is not VerdictKind.NONDETERMINISTIC
        for against in (_others(policy, view, evidence, step, out),)
        if any(count > policy.tolerated for verdict, count in against.items() if verdict != mine)
    )


def _others(
    policy: Policy, view: SuspensionFacts, statements: DatasetStatements, step: int, out: Collection[str]
) -> Counter[GroupVerdict]:
    verdicts = group_verdicts(policy, statements.attestations, step, out)
    verdicts.pop(view.own_group, None)
    return Counter(verdict for verdict in verdicts.values() if verdict.kind is not VerdictKind.NONDETERMINISTIC)


def _list_contradicted(
    policy: Policy, view: SuspensionFacts, statements: DatasetStatements, out: Collection[str]
) -> Iterator[tuple[str, int]]:
    """Yields groups with the step on which they stand alone.

    Yields none if more than f groups found that the query is not deterministic.
    """
    found: list[tuple[str, int]] = []
    for step in statements.steps:
        verdicts = group_verdicts(policy, statements.attestations, step, out)
        verdicts.pop(view.own_group, None)
        if step in statements.own:
            verdicts[view.own_group] = statements.own[step]
        if sum(verdict.kind is VerdictKind.NONDETERMINISTIC for verdict in verdicts.values()) > policy.tolerated:
            return
        clear = {
            group: verdict for group, verdict in verdicts.items() if verdict.kind is not VerdictKind.NONDETERMINISTIC
        }
        if len(set(clear.values())) < 2:
            continue
        machines = _machines(policy, view, statements, step)
        found += [(group, step) for group in clear if _stands_alone(policy, group, clear, machines)]
    yield from found


def _stands_alone(
    policy: Policy, group: str, verdicts: Mapping[str, GroupVerdict], machines: Mapping[str, frozenset[Machine]]
) -> bool:
    """Whether, among groups on machines like this group's,
    exactly one value has more than f supporters, and it is another."""
    alike = Counter(verdict for other, verdict in verdicts.items() if machines[other] & machines[group])
    many = [verdict for verdict, count in alike.items() if count > policy.tolerated]
    return len(many) == 1 and many[0] != verdicts[group]


def _machines(
    policy: Policy, view: SuspensionFacts, statements: DatasetStatements, step: int
) -> dict[str, frozenset[Machine]]:
    """Returns the machines on which each group's verdict on a step was computed."""
    found: dict[str, set[Machine]] = {}
    for key, attestation in statements.attestations.items():
        group = policy.group_of(key)
        if group is not None and group != view.own_group and verdict_on(attestation, step) is not None:
            found.setdefault(group, set()).update(_machines_of(attestation, step))
    own = {view.own_machine} if view.own_machine is not None else set()
    return {**{group: frozenset(machines) for group, machines in found.items()}, view.own_group: frozenset(own)}


def _machines_of(attestation: Attestation, step: int) -> Iterator[Machine]:
    for span in attestation.spans:
        if span.first <= step <= span.last and span.engine is not None and span.engine < len(attestation.engines):
            engine = attestation.engines[span.engine]
            yield Machine(engine.digest, engine.platform)
