"""Defines values about portals: their rules, the files for auditors, and the results of audits."""

from __future__ import annotations

from odfd.control.wire.value import Request, Value


class PortalFacts(Value, frozen=True, kw_only=True):
    """The promise of a portal about its rows, who vouches for them, and what can be checked."""

    rule: str
    """``k = 5 in town, age; n at least 5, once for each town``."""
    k: int | None = None
    quasi_identifiers: tuple[str, ...] = ()
    input: str = ""
    """A salted hash of the id of the private dataset."""
    auditors: int = 0
    """Number of keys that signed that they got the same rows for the newest block from the private dataset."""
    contradicted: int = 0
    """Number of keys that got other rows."""


class PortalOpening(Value, frozen=True, kw_only=True):
    """The file that an auditor needs beside the private dataset of a portal. It names that dataset."""

    name: str
    input: str
    text: str
    """The text of the file."""


class AuditRequest(Request, frozen=True, kw_only=True):
    opening: str
    """Text of the file that the owner of the portal wrote."""


class AuditDifference(Value, frozen=True, kw_only=True):
    block: int
    why: str


class AuditResult(Value, frozen=True, kw_only=True):
    """The result of the task ``audit``."""

    ref: str
    blocks: int
    same: int
    """Number of blocks whose rows follow from the private dataset by the rule."""
    signed: int
    """Number of observations signed; none for blocks that were signed the same before."""
    differences: tuple[AuditDifference, ...] = ()
    """The first differences."""
