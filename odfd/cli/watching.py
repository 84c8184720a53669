"""Tells who watches how to go on after the daemon went away, from the last version that was told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from odfd.errors import Unreachable


@dataclass(slots=True)
class LastVersion:
    """The version of the log that was told last."""

    version: str | None


@contextmanager
def goes_on_from(command: str, since: str | None) -> Iterator[LastVersion]:
    """Adds to the fault of a daemon that went away the ``command`` that goes on without a gap."""
    last = LastVersion(since)
    try:
        yield last
    except Unreachable as fault:
        if last.version is not None:
            fault.hint = f"{command} --since {last.version} goes on where this ended, once the daemon is back"
        raise
