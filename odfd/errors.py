"""Renders faults for the outside: exit codes, problem+json, and the text printed for a person.

The families themselves are in ``chain.errors``; here are the few that only a program with a command line and a socket
can meet, and the one table that says what each family is over HTTP and to the shell. RFC 9457 for the JSON.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Mapping
from typing import Any, Final

from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused, Remote


class ExitCode(enum.IntEnum):
    """The exit codes of commands. The numbers are a contract with scripts; ``docs`` and tests fix them."""

    OK = 0
    """Done, and the answer is yes."""
    NO = 1
    """Done, and the answer is no: a check failed, a head moved first, nothing matched."""
    USAGE = 2
    """The command line itself is wrong."""
    UNREACHABLE = 3
    """No daemon answers on the socket."""
    REFUSED = 4
    """Permission or policy says no."""
    INVALID = 5
    """The input breaks a rule."""
    REMOTE = 6
    """The other side's fault."""
    ENVIRONMENT = 7
    """Our own machine: disk, Java, sandbox."""
    BUG = 70
    """A fault of this program."""
    INTERRUPTED = 130
    """``^C``: we stopped watching; what the daemon does goes on."""


USAGE: Final = "usage"
"""Rule of wrong usage that breaks no other: its message and hint say what is right, so they do not name it."""


class Usage(Fault):
    """The command line is malformed."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, rule: str = USAGE, hint: str = "", place: str = "") -> None:
        super().__init__(message, rule=rule, hint=hint, place=place)


def unwritable(path: object, error: OSError, rule: str) -> Fault:
    """Makes the fault for a user's file that cannot be written: by its name, or by the machine."""
    is_name = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    kind = Usage if is_name else Environment
    hint = (
        "make the folder first, or name another file" if isinstance(error, FileNotFoundError) else "name another file"
    )
    return kind(f"cannot write {path}: {error.strerror or error}", rule=rule, hint=hint)


class Unreachable(Fault):
    """No daemon answers at the address."""

    exit_code = ExitCode.UNREACHABLE


class Bug(Fault):
    """This program violated one of its own invariants."""

    exit_code = ExitCode.BUG


class RemoteCause(Exception):
    """A cause that occurred in another process and came here as text."""


PROBLEM_JSON: Final = "application/problem+json"
_STATUS: Final[tuple[tuple[type[Fault], int], ...]] = (
    (NotFound, 404),
    (Invalid, 422),
    (Refused, 403),
    (Conflict, 409),
    (Remote, 502),
    (Environment, 503),
    (Usage, 400),
    (Unreachable, 503),
    (Bug, 500),
)
"""Most particular first: a subclass stands before its base."""
_BY_RULE: Final = {
    "generation": 412,
    "resource-version": 410,
    "resource-version-too-old": 410,
    "watch-limit": 429,
    "access-token": 401,
    "webhook-signature": 401,
    "access-token-limit": 429,
}
"""Where HTTP has a closer status than that of the family."""
_BY_NAME: Final = {family.__name__: family for family, _ in _STATUS}
MAX_CAUSE_TEXT: Final = 2000
"""Characters of one cause; an exception may quote a whole query."""
MAX_CAUSES: Final = 16
"""Reported links of a chain of causes; a longer chain is a loop or of no use to a person."""


def family(fault: Fault) -> type[Fault]:
    """Returns the family of a fault of any package; one without a family is our own mistake."""
    return next((known for known, _ in _STATUS if isinstance(fault, known)), Bug)


def exit_code(fault: Fault) -> int:
    """Returns the exit code of the fault's family."""
    return int(family(fault).exit_code)


def http_status(fault: Fault) -> int:
    """Returns the HTTP status of the fault's rule or family."""
    if fault.rule in _BY_RULE:
        return _BY_RULE[fault.rule]
    kind = family(fault)
    return next(status for known, status in _STATUS if known is kind)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the causes of ``error``, nearest first."""
    for _ in range(MAX_CAUSES):
        step = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if step is None:
            return
        yield step
        error = step


def cause_lines(error: BaseException) -> list[str]:
    """Formats one line a cause, nearest first: ``OSError: [Errno 28] No space left on device``."""
    return [
        str(cause) if isinstance(cause, RemoteCause) else f"{type(cause).__name__}: {cause}"[:MAX_CAUSE_TEXT]
        for cause in causes(error)
    ]


def to_problem(fault: Fault) -> dict[str, Any]:
    """Encodes RFC 9457 members, then ours: ``family``, ``rule``, ``hint``, ``place``, ``exitCode``, ``causes``."""
    known = family(fault)
    problem = {
        "title": known.__name__,
        "status": http_status(fault),
        "detail": fault.message,
        "family": known.__name__,
        "exitCode": exit_code(fault),
    }
    optional = {"rule": fault.rule, "hint": fault.hint, "place": fault.place, "causes": cause_lines(fault)}
    return problem | {name: value for name, value in optional.items() if value}


def from_problem(problem: Mapping[str, Any]) -> Fault:
    """Decodes a fault. Missing or ill-typed parts are left empty, since it comes from a wire."""

    def text(name: str) -> str:
        value = problem.get(name, "")
        return value if isinstance(value, str) else ""

    kind = _BY_NAME.get(text("family"), Bug)
    message = text("detail") or text("title") or "the daemon reported a problem without saying which"
    fault = kind(message, rule=text("rule"), hint=text("hint"), place=text("place"))
    causes = problem.get("causes", [])
    link: BaseException = fault
    for cause in causes[:MAX_CAUSES] if isinstance(causes, list | tuple) else []:
        link.__cause__ = RemoteCause(str(cause))
        link = link.__cause__
    return fault


_OF_SLICES: Final = ("stored-object-damaged", "stored-object-missing")
_ELSEWHERE: Final = "another node that has the dataset can answer; this one can up to an earlier block, by AT BLOCK"


def told_to_others(fault: Fault) -> Fault:
    """Returns the fault for others than the owner, without causes and details of this machine.

    Which slice of a dataset cannot be read is told: whoever reads the dataset knows its blocks.
    """
    if fault.rule in _OF_SLICES and fault.place:
        return Environment(fault.message, rule=fault.rule, hint=_ELSEWHERE, place=fault.place)
    if family(fault) in (Environment, Bug):
        return Environment("this node cannot answer it now", rule=fault.rule)
    return family(fault)(fault.message, rule=fault.rule, hint=fault.hint, place=fault.place)


def sole_fault(error: BaseException) -> Fault | None:
    """Returns the first fault of nested exception groups whose leaves are all faults. Else ``None``."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, BaseExceptionGroup):
        leaves = [sole_fault(part) for part in error.exceptions]
        return leaves[0] if leaves and None not in leaves else None
    return None


def last_fault(error: BaseException) -> Fault | None:
    """Returns the fault to report for an error that nothing caught; ``None`` for a bug.

    A place that the user may not look at is no bug: any look at a path may meet one, as below the home of another user.
    """
    if isinstance(error, PermissionError) and error.filename is not None:
        return Environment(
            f"this user may not look at {error.filename}: {error.strerror}",
            rule="permission",
            hint="name a place of its own, or run with its own HOME: sudo -H",
        )
    return sole_fault(error)


@contextlib.contextmanager
def sole_faults() -> Iterator[None]:
    """Raises the fault that ``sole_fault`` finds in an exception group in its place; all else as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        fault = sole_fault(group)
        if fault is None:
            raise
        raise fault from fault.__cause__


def render(fault: Fault, verbose: bool = False) -> str:
    """Formats for people: ``error: …``, the hint indented below with the rule; ``verbose`` adds the causes."""
    lines = [f"error: {fault}"]
    rule = f"(rule {fault.rule})" if fault.rule not in ("", USAGE) else ""
    if fault.hint or rule:
        lines.append("  " + "  ".join(part for part in (fault.hint, rule) if part))
    if verbose:
        lines += [f"  caused by {cause}" for cause in cause_lines(fault)]
    return "\n".join(lines)
