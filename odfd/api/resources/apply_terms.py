"""Defines on whose behalf manifests are applied, and what is checked before anything is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from odfd.api.resources.desired_state import DesiredState


def _anything(_: DesiredState) -> None:
    """Allows everything, as for the node's owner."""


class ApplyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one apply: on whose behalf it is, and what it may declare."""

    account: str | None = None
    """Id of the account that gets new resources that name no account; ``None`` for the node's owner."""
    judge: Callable[[DesiredState], None] = _anything
    """Raises a fault if the desired state may not be applied. Called in worker threads."""


OWNERS: Final = ApplyTerms()
