"""Defines the families of faults: each implies who can mend it, whether to retry, and the exit code of a program.

A fault tells three things: what happened to which thing (``str(fault)``), which rule or limit was met (``rule``), and
what to do next (``hint``). Causes travel as ``__cause__``. Expected outcomes ("up to date", "diverged") are values.
"""

from __future__ import annotations


class Fault(Exception):
    """Base of every fault we raise on purpose; anything else that escapes is a bug."""

    exit_code = 70

    def __init__(self, message: str, *, rule: str = "", hint: str = "", place: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.rule = rule
        self.hint = hint
        self.place = place
        """Where in the input: ``manifest.yaml:14``, ``block #9``, ``$.content.metadata[2]``."""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class Invalid(Fault):
    """Their data breaks a rule. Asking again gives the same answer."""

    exit_code = 5


class NotFound(Invalid):
    """A name, hash or block that we were asked for is not here."""


class Refused(Fault):
    """A request that is well formed and understood, but not permitted."""

    exit_code = 4


class Remote(Fault):
    """The other side misbehaved, is slow or cannot be reached. Another peer, or the same one later, may do better."""

    exit_code = 6


class Environment(Fault):
    """Our own machine: disk, ports, Java, sandbox. Worth retrying once it is mended."""

    exit_code = 7


class Conflict(Fault):
    """Someone else moved the head first: read again and plan again."""

    exit_code = 1
