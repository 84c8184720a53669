"""Provides default policies for each kind of node (docs/spec/trust.md#policy)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from chain.store.base import FormerEpochs
from config import model
from odfd.policy.policy import Policy, PolicyTerms, load_policy, parse_expression, quorum_mistakes


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    use: str
    use_counted: str | None = None
    """Replaces ``use`` if the listed groups can meet it: K of ``attested:K`` needs f+1 <= K <= n-f."""
    serve: str
    min_sandbox: str = "none"
    """Weakest isolation under which a verdict of others counts."""
    attest: bool
    max_stale: str
    cosign: bool = False
    spot_check: float = 0.0
    follow: str = "ask"
    """Whether an epoch that gives up published blocks is followed."""
    keep_epochs: int | None = 1
    """Number of epochs whose blocks are kept, the present one included; ``None``: all."""


PROFILES: Final = {
    "laptop": Profile(use="data", serve="chain", attest=False, max_stale="14d"),
    "mirror": Profile(
        use="data", serve="data", attest=False, max_stale="30d", follow="follow", cosign=True, spot_check=0.01
    ),
    "validator": Profile(
        use="data & reproduced",
        use_counted="data & (reproduced | attested:2)",
        serve="data",
        min_sandbox="image",
        attest=True,
        max_stale="14d",
        cosign=True,
        keep_epochs=2,
    ),
    "archive": Profile(
        use="data", serve="chain", attest=False, max_stale="never", follow="follow", cosign=True, keep_epochs=None
    ),
}
"""The profiles by name. Data that this node derives meets ``reproduced`` (``ChainExtent.own``), but never
``attested``."""


def policy_of(settings: model.Policy, added: Sequence[tuple[str, str]] = ()) -> Policy:
    """Returns the policy in force; ``added``: (key, group) listed by a person. Raises Invalid with every mistake."""
    profile = PROFILES[settings.profile]
    groups: dict[str, list[str]] = {group.name: list(group.keys) for group in settings.validators.groups}
    for key, group in added:
        members = groups.setdefault(group, [])
        if key not in members:
            members.append(key)
    return load_policy(
        use=settings.use or _use(profile, len(groups), settings.validators.f),
        serve=settings.serve or profile.serve,
        groups=list(groups.items()),
        tolerated=settings.validators.f,
        terms=_terms(settings, profile),
    )


def _use(profile: Profile, groups: int, tolerated: int) -> str:
    if profile.use_counted is None:
        return profile.use
    wanted = {"use": parse_expression(profile.use_counted)}
    return profile.use if any(quorum_mistakes(wanted, groups, tolerated)) else profile.use_counted


def _terms(settings: model.Policy, profile: Profile) -> PolicyTerms:
    validators = settings.validators
    return PolicyTerms(
        witness=tuple((group.name, group.keys) for group in settings.witness.groups),
        witness_faulty=settings.witness.f,
        quorum=settings.witness.quorum,
        max_age=settings.witness.max_age,
        max_stale=settings.fresh.max_stale or profile.max_stale,
        min_engines=validators.min_engines,
        min_sandbox=validators.min_sandbox or profile.min_sandbox,
        attest=profile.attest if settings.publish.attest is None else settings.publish.attest,
        observe=settings.publish.observe,
        spot_check=profile.spot_check if validators.spot_check is None else validators.spot_check,
        recheck=validators.recheck,
        attended=settings.publish.witness,
        public=settings.witness.public,
    )


def cosigns(settings: model.Policy) -> bool:
    """Whether this node cosigns the datasets that it mirrors."""
    configured = settings.publish.cosign
    return PROFILES[settings.profile].cosign if configured is None else configured


def follows_rewrites(settings: model.Policy) -> bool:
    """Whether mirrors follow an epoch that gives up published blocks, or wait for a person's decision."""
    return (settings.rewrite.follow or PROFILES[settings.profile].follow) == "follow"


def apart(settings: model.Policy, epoch: int) -> FormerEpochs:
    """Returns in which epoch blocks are given up, and how many former epochs are kept with their blocks."""
    configured = settings.rewrite.keep_epochs
    most = PROFILES[settings.profile].keep_epochs if configured is None else configured
    return FormerEpochs(epoch, None if most is None else most - 1)
