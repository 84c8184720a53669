"""Follows a long operation of the daemon until its result.

``^C`` detaches: the daemon goes on, and the message says how to follow or to cancel it.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from chain.errors import Refused
from odfd import output
from odfd.cli.progress_bar import Meter
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import Answer, Body, part
from odfd.errors import Bug, from_problem

T = TypeVar("T")
_GOING_ON: Final = ("waiting", "running")


class Detached(KeyboardInterrupt):
    """The person went away; the work did not."""


def follow(session: Session, ref: wire.TaskRef, kind: type[T]) -> Answer[T]:
    """Wait for the task ``ref`` and return its result, a ``kind``. Raises its fault, or Detached on ``^C``."""
    return Answer.of(_result(session, ref.id), kind)


def submit(session: Session, path: str, request: wire.Request, kind: type[T]) -> Answer[T]:
    """Ask for a long operation with a POST, and follow it."""
    return Answer.of(result_of(session, path, request), kind)


def result_of(session: Session, path: str, request: Body) -> Any:
    """The JSON of what ``submit`` answers with. Types are loaded to show how far it is, while the daemon works."""
    return _result(session, _member(session.client.ask("POST", path, request), "id"))


def _result(session: Session, task_id: str) -> Any:
    meter = Meter(session, output.error_stream())
    task: Any = None
    try:
        for task in session.client.told(f"/tasks/{part(task_id)}", {"follow": "1"}):
            if not session.quiet and _member(task, "state") in _GOING_ON:
                meter.show(Answer.of(task, wire.TaskView).value)
    except KeyboardInterrupt as stop:
        meter.clear()
        session.remark(
            f"Detached; the daemon goes on.  Follow: {session.again} wait task {task_id}"
            f"   Cancel: {session.again} delete task {task_id}"
        )
        raise Detached from stop
    finally:
        meter.clear()
    if task is None:
        raise session.client.gone()
    if task.get("fault"):
        raise from_problem(task["fault"])
    state = _member(task, "state")
    if state == "cancelled":
        raise Refused(f"{task.get('kind')} of {task.get('target') or 'the node'} was cancelled", rule="cancelled")
    if state != "done":
        raise session.client.gone()
    return task.get("result")


def _member(sent: Any, name: str) -> str:
    """Of a task as the daemon tells it."""
    value = sent.get(name) if isinstance(sent, dict) else None
    if not isinstance(value, str):
        raise Bug(f"the daemon's answer tells no {name} of a task", rule="answer-type")
    return value
