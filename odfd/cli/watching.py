"""Adds to a watch's fault the command that continues it after the daemon went away, from the last version printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from odfd.errors import Unreachable


@dataclass(slots=True)
class LastVersion:
    """The version of the resource log that was printed last; ``None``: none yet."""

    version: str | None


@contextmanager
def goes_on_from(command: str, since: str | None) -> Iterator[LastVersion]:
    """Adds ``command`` to the fault of an unreachable daemon, to continue the watch of the block without a gap."""
    last = LastVersion(since)
    try:
        yield last
    except Unreachable as fault:
        if last.version is not None:
            fault.hint = f"{command} --since {last.version} goes on where this ended, once the daemon is back"
        raise
