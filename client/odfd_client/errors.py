"""Defines the faults that a node reports: a message, the rule that was broken, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class OdfdError(Exception):
    """The base of all errors."""

    def __init__(self, message: str, *, rule: str = "", hint: str = "", place: str = "") -> None:
        super().__init__(message)
        self.message, self.rule, self.hint, self.place = message, rule, hint, place

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")


class Invalid(OdfdError):
    """The request breaks a rule."""


class NotFound(OdfdError):
    """The requested object does not exist."""


class HandedOver(NotFound):
    """Another rendition of the dataset is active now: its past rows differ, and no more rows come in here."""


class Refused(OdfdError):
    """Permission, policy or a limit forbids the request."""


class HoldLost(Refused):
    """A hold expired or was released: the history that was read under it may have changed by now."""


class Conflict(OdfdError):
    """A concurrent change; retry the request."""


class Remote(OdfdError):
    """Another node failed."""


class Environment(OdfdError):
    """A fault of the node's machine: a disk, a sandbox, a damaged file."""


class Unreachable(OdfdError):
    """No node answers, or it disconnected within an answer."""


class Bug(OdfdError):
    """The node or this client violated one of its own invariants."""


_FAMILIES = {each.__name__: each for each in (Invalid, NotFound, Refused, Conflict, Remote, Environment, Unreachable)}


def from_problem(problem: Mapping[str, Any]) -> OdfdError:
    """Decodes the error of a problem+json document; missing parts are left empty."""

    def text(name: str) -> str:
        value = problem.get(name, "")
        return value if isinstance(value, str) else ""

    family = "Invalid" if text("family") == "Usage" else text("family")
    kind = HoldLost if text("rule") in ("hold-lost", "hold-fenced") else _FAMILIES.get(family, Bug)
    message = text("detail") or text("title") or "the node reported a problem without saying which"
    return kind(message, rule=text("rule"), hint=text("hint"), place=text("place"))
