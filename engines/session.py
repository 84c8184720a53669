"""Declares the question what an engine has started beyond its process, for requests that need it (ADR 79)."""

from __future__ import annotations

from typing import Final

from chain.model.wire import U64
from engines.tables import ContractTable


class SessionRequest(ContractTable, frozen=True, kw_only=True):
    """Asks what an engine has started beyond its process, which only some requests need: for Spark, Java."""

    starts: bool = False
    """Start it, and answer when it is ready or has failed."""


SESSION_STATES: Final = ("stopped", "starting", "ready", "failed")


class SessionState(ContractTable, frozen=True, kw_only=True):
    """Tells what an engine has started.

    If not ``ready``, requests without need of a session, as most ingests are, run at once, and others start one.
    ``failed``: the last start failed; a later request tries again.
    """

    state: str
    message: str = ""
    """Reason of a failure."""
    lingering: U64 = 0
    """Milliseconds for which the oldest request works on whose caller has gone; 0: there is none."""
