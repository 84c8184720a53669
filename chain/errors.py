"""Defines the families of faults: each implies who can fix it, whether to retry, and the exit code of a program.

A fault has three parts: what happened to which thing (``str(fault)``), which rule or limit was met (``rule``), and what
to do next (``hint``). Causes travel as ``__cause__``. Expected outcomes ("up to date", "diverged") are values.
"""

from __future__ import annotations


class Fault(Exception):
    """Base of every error that the node raises on purpose; anything else that escapes is a bug."""

    exit_code = 70

    def __init__(self, message: str, *, rule: str = "", hint: str = "", place: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.rule = rule
        self.hint = hint
        self.place = place
        """Place in the input: ``manifest.yaml:14``, ``block #9``, ``$.content.metadata[2]``."""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class Invalid(Fault):
    """Data or a request breaks a rule. Trying again gives the same answer."""

    exit_code = 5


class NotFound(Invalid):
    """A requested name, hash or block is not here."""


class Refused(Fault):
    """A request is well formed and understood, but not permitted."""

    exit_code = 4


class Remote(Fault):
    """A remote side misbehaved, is slow or cannot be reached. Another peer, or the same one later, may do better."""

    exit_code = 6


class Environment(Fault):
    """This machine fails: disk, ports, Java, sandbox. A retry makes sense once that is fixed."""

    exit_code = 7


class Conflict(Fault):
    """Somebody else moved the head first: read again and plan again."""

    exit_code = 1
