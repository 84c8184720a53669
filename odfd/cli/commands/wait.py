"""``wait``: waits until a condition holds. It polls a few times a second, since not every condition has an event."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from chain.errors import NotFound
from chain.instant import SECOND
from odfd.cli import conditions, kinds
from odfd.cli.command import Commands, argument, seconds
from odfd.cli.commands.resources import one
from odfd.cli.progress import follow
from odfd.cli.session import Session
from odfd.cli.watch_retry import Outage, ask_again
from odfd.control import wire
from odfd.errors import ExitCode, Usage

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
    if kind.name == "task" and args.condition is None:
        return _wait_for_task(session, kind, args)
    if args.condition is None:
        raise Usage("say what to wait for", hint="--for exists, --for deleted, --for state=fresh, --for 'blocks>=15'")
    condition = conditions.parse(args.condition)
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
        holds, value = _until(session, kind, args, lambda sent: conditions.is_finished(_fields(sent)), outage)
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
