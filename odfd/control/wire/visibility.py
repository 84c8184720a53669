"""Values about publishing datasets and making them private again."""

from __future__ import annotations

from odfd.control.wire.value import Request, Value


class VisibilityRequest(Request, frozen=True, kw_only=True):
    """Either ``refs`` or ``all``."""

    refs: tuple[str, ...] = ()
    all: bool = False
    """Every dataset that is here now."""


class VisibilityView(Value, frozen=True, kw_only=True):
    """What became of one dataset."""

    name: str
    id: str
    published: bool
    """Whether anything of it is said or given to others."""
    changed: bool
    notes: tuple[str, ...] = ()
    """What is to know beside, for people."""
