"""Chooses which bundles of evidence to check: those that listed validators name, about steps held here. Pure.

A bundle is not fetched if only strangers name it, if this node has its own verdict on the step, or if evidence of the
same group was found untrue within the last day. Spec: docs/spec/trust.md#rechecks, #room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import NamedTuple

import msgspec

from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements.statement import Attestation
from odfd.policy.policy import Policy
from odfd.store.ledger.runs import UNABLE, Recheck, Run, run_at
from odfd.trust.judgement.verdicts import VerdictKind, group_verdicts, verdict_on


class Claim(NamedTuple):
    """A bundle that a listed group names; the most urgent sorts first."""

    doubt: int
    """0 if more than f groups say the same, so that the step is refuted or split."""
    step: int
    bundle: Multihash
    group: str
    dataset: DatasetId
    signers: tuple[KeyDid, ...]
    """Signers of the attestations that name it."""


class OwnFindings(msgspec.Struct, frozen=True, kw_only=True):
    """This node's own findings about a dataset."""

    runs: Mapping[int, Run]
    """Its verdicts, including those of re-checks."""
    done: Mapping[Multihash, Recheck]
    resting: Collection[str]
    """Groups whose evidence is not fetched at present."""
    engine: str | None
    """Digest of the engine here; ``None``: there is none, so evidence is only stored."""
    has: Callable[[Multihash], bool]
    """Whether a bundle is kept here."""


def claims(
    policy: Policy,
    dataset: DatasetId,
    attestations: Mapping[KeyDid, Attestation],
    suspended: Collection[str],
    own: OwnFindings,
) -> list[Claim]:
    """Lists the claims to check for a dataset, in order. ``attestations`` are about the chain held here."""
    verdicts_at = cache(partial(group_verdicts, policy, attestations, suspended=suspended))
    found: dict[Multihash, Claim] = {}
    for key, attestation in sorted(attestations.items()):
        group = policy.group_of(key)
        for wrong in attestation.mismatch if group is not None else ():
            verdicts = verdicts_at(wrong.sequence_number)
            mine = verdict_on(attestation, wrong.sequence_number)
            if wrong.bundle is None or group is None or mine is None or verdicts.get(group) != mine:
                continue
            if mine.kind is not VerdictKind.MISMATCH or run_at(own.runs, wrong.sequence_number) is not None:
                continue
            alike = Counter(verdicts.values())[mine]
            named = (*found[wrong.bundle].signers, key) if wrong.bundle in found else (key,)
            found[wrong.bundle] = Claim(
                int(alike <= policy.tolerated), wrong.sequence_number, wrong.bundle, group, dataset, named
            )
    return sorted(each for each in found.values() if _is_open(each, found.values(), own))


def _is_open(claim: Claim, all_of_them: Collection[Claim], own: OwnFindings) -> bool:
    if claim.group in own.resting:
        return False
    if own.engine is None:
        # One bundle of a step that so many call refuted is kept, since others may ask for it.
        return not claim.doubt and not any(own.has(each.bundle) for each in all_of_them if each.step == claim.step)
    before = own.done.get(claim.bundle)
    return before is None or (before.result == UNABLE and before.run.engine.digest != own.engine)
