"""Says for whom manifests are applied, and what is judged before anything is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from odfd.api.resources.desired_state import DesiredState


def _anything(_: DesiredState) -> None:
    """The node's owner applies what they want."""


class ApplyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one apply."""

    account: str | None = None
    """Id of the account of what is new and names none; ``None``: the node's owner."""
    judge: Callable[[DesiredState], None] = _anything
    """Raises a fault. Called in worker threads."""


OWNERS: Final = ApplyTerms()
