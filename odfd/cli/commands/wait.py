"""``wait``: waits until a condition holds. It polls a few times a second, since not every condition has an event.

A condition is ``exists``, ``deleted``, or a comparison of a field, by its name in ``-o json``: ``relyOn.blocks>=14``.
"""

from __future__ import annotations

import argparse
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import inspect

from chain.errors import NotFound
from chain.instant import SECOND
from odfd.cli import kinds
from odfd.cli.command import Commands, argument, seconds
from odfd.cli.commands.resources import one
from odfd.cli.progress import follow
from odfd.cli.session import Session
from odfd.cli.watch_retry import Outage, ask_again
from odfd.control import wire
from odfd.errors import ExitCode, Usage

_COMPARISON: Final = re.compile(r"([A-Za-z][A-Za-z0-9.]*)\s*(>=|<=|!=|=|>|<)\s*(.+)\Z")
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class Exists:
    """The condition that a resource exists, or does not."""

    wanted: bool

    def check(self, *views: type[msgspec.Struct]) -> None:
        """Accepts any views."""

    def holds(self, value: Mapping[str, Any] | None) -> bool:
        return (value is not None) is self.wanted


@dataclass(frozen=True, slots=True)
class Compares:
    """The condition that a field of a resource compares with an operand."""

    field: str
    sign: str
    operand: str

    def holds(self, value: Mapping[str, Any] | None) -> bool:
        """Compares the value; an absent field is null. False while the resource is absent.

        Raises Usage for an impossible comparison.
        """
        if value is None:
            return False
        found: Any = value
        for step in self.field.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        return _OPERATORS[self.sign](*self._pair(found))

    def check(self, *views: type[msgspec.Struct]) -> None:
        """Raises Usage if no value of these types can have such a field, or such a word in it."""
        found: Sequence[inspect.Type] = tuple(map(inspect.type_info, views))
        for step in self.field.split("."):
            parts = list(_parts(found))
            if any(isinstance(part, inspect.AnyType | inspect.DictType) for part in parts):
                return  # the fields inside are not declared
            structs = [part for part in parts if isinstance(part, inspect.StructType)]
            fields = {field.encode_name: field.type for struct in structs for field in struct.fields}
            if step not in fields:
                raise Usage(f"there is no field {step!r} to wait for", hint=f"fields are {', '.join(fields) or 'none'}")
            found = (fields[step],)
        self._check_operand(list(_parts(found)))

    def _check_operand(self, types: Sequence[inspect.Type]) -> None:
        known = [type_ for type_ in types if not isinstance(type_, inspect.NoneType)]
        if self.operand == "null" and len(known) < len(types):
            return
        words = [str(word) for each in known if isinstance(each, inspect.LiteralType) for word in each.values]
        if known and all(isinstance(each, inspect.BoolType) for each in known):
            words = ["false", "true"]
        if words and self.sign in ("=", "!=") and self.operand not in words:
            raise Usage(f"{self.field} is never {self.operand!r}", hint=f"it is one of {', '.join(sorted(words))}")
        if known and all(isinstance(each, inspect.IntType | inspect.FloatType) for each in known):
            self._number()

    def _pair(self, found: Any) -> tuple[Any, Any]:
        if isinstance(found, bool) or found is None:
            spelled = {True: "true", False: "false", None: "null"}[found]
            if self.sign not in ("=", "!="):
                return 1, 0 if self.sign in ("<", "<=") else 2
            return spelled, self.operand
        if isinstance(found, int | float):
            return found, self._number()
        if isinstance(found, str):
            return found, self.operand
        raise Usage(f"{self.field} has parts of its own", hint=f"name one: {self.field}.…")

    def _number(self) -> float:
        """Returns the operand as a number. Raises Usage."""
        try:
            return float(self.operand)
        except ValueError as error:
            raise Usage(f"{self.field} is a number, {self.operand!r} is not", hint="like blocks>=15") from error


def is_finished(task: Mapping[str, Any] | None) -> bool:
    """Whether a task has ended, with success or not; an absent task counts as ended."""
    return task is None or task.get("state") not in ("waiting", "running")


def _parts(types: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    """Yields the types that a value may have."""
    for type_ in types:
        if isinstance(type_, inspect.UnionType):
            yield from type_.types
        else:
            yield type_


def parse_condition(text: str) -> Exists | Compares:
    """Parses a condition. Raises Usage."""
    if text in ("exists", "deleted"):
        return Exists(text == "exists")
    match = _COMPARISON.match(text)
    if match is None:
        raise Usage(
            f"not a condition: {text!r}", hint="exists, deleted, or a comparison like state=fresh or blocks>=15"
        )
    return Compares(match[1], match[2], match[3].strip())


LOOK_SECONDS: Final = 0.25
"""Seconds between two polls; one costs the daemon about a millisecond."""


commands = Commands()


@commands.add(
    "wait",
    argument("kind", metavar="KIND"),
    argument("name", metavar="NAME", nargs="?"),
    argument("--for", dest="condition", metavar="CONDITION"),
    argument("--timeout", metavar="D", help="maximum time to wait: 30s, 5m, 1h (no limit)"),
    description="Wait until CONDITION holds: exists, deleted, or a comparison of a field of the thing's JSON. Ends "
    "with 0 when it holds, 1 at the timeout. A task is waited for until it is finished.",
    example="dataset nyc.flights --for 'blocks>=15' --timeout 5m",
)
def _wait(session: Session, args: argparse.Namespace) -> int:
    kind, names = kinds.parse_names(args.kind, filter(None, [args.name]))
    if len(names) != 1:
        raise Usage(f"which {kind.name}?", hint=f"odfctl wait {kind.name} NAME; odfctl get {kind.plural} lists them")
    (args.name,) = names
    kinds.check_one(kind, args.name, "wait")
    if kind.name == "task" and args.condition is None:
        return _wait_for_task(session, kind, args)
    if args.condition is None:
        raise Usage("say what to wait for", hint="--for exists, --for deleted, --for state=fresh, --for 'blocks>=15'")
    condition = parse_condition(args.condition)
    condition.check(*kind.fields)
    if kind.name == "task":
        one(session, kind, args.name)  # raises NotFound: an absent task never appears

    holds, value = _until(session, kind, args, lambda sent: condition.holds(_fields(sent)), Outage())
    if not holds:
        session.remark(
            f"no: {kind.name} {args.name}: {args.condition} did not come true in {args.timeout}{_now(value)}"
        )
    session.show(value, lambda _: f"{kind.name} {args.name}: {args.condition}" if holds else "")
    return ExitCode.OK if holds else ExitCode.NO


def _fields(sent: Any) -> Any:
    """Returns the fields that a condition may name."""
    return None if sent is None else kinds.with_state(sent)


def _now(value: Any) -> str:
    """Formats the phase of a resource for which the condition does not hold, with the reason of a failure."""
    if value is None:
        return ": it is not there"
    status = value.get("status") if isinstance(value, dict) else None
    if not isinstance(status, dict) or "phase" not in status:
        return ""
    conditions = status.get("conditions", {})
    problem: dict[str, Any] = next((each for key, each in conditions.items() if key.endswith(f"/{wire.PROBLEM}")), {})
    why = f" ({problem['code']}): {problem.get('message', '')}" if problem.get("code") else ""
    return f": it is {status['phase']}{why}"


def _wait_for_task(session: Session, kind: kinds.Kind[Any], args: argparse.Namespace) -> int:
    """Waits until a task is finished; its fault becomes that of this command. Returns the exit code."""
    outage = Outage()
    if args.timeout is not None:
        holds, value = _until(session, kind, args, lambda sent: is_finished(_fields(sent)), outage)
        if not holds:
            session.remark(f"no: task {args.name} is not finished after {args.timeout}")
            session.show(value, lambda _: "")
            return ExitCode.NO
    task = wire.TaskRef(id=args.name, kind="task")
    ask_again(session, lambda: _fetch(session, kind, args.name), outage, lambda: LOOK_SECONDS)
    result = ask_again(session, lambda: follow(session, task, object), outage, lambda: LOOK_SECONDS)
    session.answer(result, lambda _: f"task {args.name} is done")
    return ExitCode.OK


def _until(
    session: Session, kind: kinds.Kind[Any], args: argparse.Namespace, holds: Callable[[Any], bool], outage: Outage
) -> tuple[bool, Any]:
    """Polls until the condition holds or time is up, also while the daemon is away for a time.

    Returns whether the condition holds, and the last JSON. Raises Unreachable if time is up while the daemon is away.
    """
    patience = seconds(args.timeout) if args.timeout else None
    began = session.clock.monotonic()

    def remaining_seconds() -> float:
        return LOOK_SECONDS if patience is None else patience - (session.clock.monotonic() - began) / SECOND

    while True:
        value = ask_again(session, lambda: _fetch(session, kind, args.name), outage, remaining_seconds)
        if holds(value):
            return True, value
        if patience is not None and session.clock.monotonic() - began >= patience * SECOND:
            return False, value
        session.clock.sleep(LOOK_SECONDS)


def _fetch(session: Session, kind: kinds.Kind[Any], name: str) -> Any:
    """Returns the resource's JSON, whose fields a condition names; ``None`` while the resource does not exist."""
    try:
        return one(session, kind, name).sent
    except NotFound:
        return None
