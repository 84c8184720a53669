"""What a policy says where its owner says nothing: by the kind of node it is for (trust.md section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from config import model
from odfd.trust.policy import Policy, load_policy

DAY: Final = 86400
_FOREVER: Final = 1 << 40
"""Seconds."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    use: str
    serve: str
    attest: bool
    max_stale: int
    """Seconds."""
    cosign: bool = False
    follow: str = "ask"
    """An epoch that gives up what was published."""


PROFILES: Final = {
    "laptop": Profile(use="data", serve="chain", attest=False, max_stale=14 * DAY),
    "mirror": Profile(use="data", serve="data", attest=False, max_stale=30 * DAY, follow="follow", cosign=True),
    "validator": Profile(use="data", serve="data", attest=True, max_stale=14 * DAY, cosign=True),
    "archive": Profile(use="data", serve="chain", attest=False, max_stale=_FOREVER, follow="follow", cosign=True),
}
"""The validator's own default asks for ``reproduced | attested:2`` once it lists groups; without any it is ``data``."""


def policy_of(settings: model.Policy, added: Sequence[tuple[str, str]] = ()) -> Policy:
    """The policy in force: what is written, filled from the profile; ``added`` are (key, group) listed by a person.

    Raises Invalid with every mistake.
    """
    profile = PROFILES[settings.profile]
    groups: dict[str, list[str]] = {group.name: list(group.keys) for group in settings.validators.groups}
    for key, group in added:
        members = groups.setdefault(group, [])
        if key not in members:
            members.append(key)
    policy = load_policy(
        use=settings.use or profile.use,
        serve=settings.serve or profile.serve,
        groups=list(groups.items()),
        tolerated=settings.validators.f,
        attest=profile.attest if settings.publish.attest is None else settings.publish.attest,
    )
    return msgspec.structs.replace(policy, max_stale=profile.max_stale)


def cosigns(settings: model.Policy) -> bool:
    """Whether this node is a witness of what it mirrors."""
    said = settings.publish.cosign
    return PROFILES[settings.profile].cosign if said is None else said


def follows_rewrites(settings: model.Policy) -> bool:
    """Whether mirrors follow an epoch that gives up what was published; else they stand still and a person decides."""
    return (settings.rewrite.follow or PROFILES[settings.profile].follow) == "follow"
