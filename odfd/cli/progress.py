"""Follows a long operation of the daemon until its result.

``^C`` detaches: the daemon goes on, and the message says how to follow or to cancel it.
"""

from __future__ import annotations

from typing import TypeVar

from chain.errors import Refused
from odfd import output
from odfd.cli.progress_bar import Meter
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import Answer, part

T = TypeVar("T")


class Detached(KeyboardInterrupt):
    """The person went away; the work did not."""


def follow(session: Session, ref: wire.TaskRef, kind: type[T]) -> Answer[T]:
    """Wait for the task ``ref`` and return its result, a ``kind``. Raises its fault, or Detached on ``^C``."""
    meter = Meter(session, output.error_stream())
    task: wire.TaskView | None = None
    try:
        for snapshot in session.client.stream(f"/tasks/{part(ref.id)}", wire.TaskView, {"follow": "1"}):
            task = snapshot.value
            meter.show(task)
    except KeyboardInterrupt as stop:
        meter.clear()
        session.remark(
            f"Detached; the daemon goes on.  Follow: {session.again} wait task {ref.id}"
            f"   Cancel: {session.again} delete task {ref.id}"
        )
        raise Detached from stop
    finally:
        meter.clear()
    if task is None:
        raise session.client.gone()
    if task.fault:
        raise task.fault.fault()
    if task.state == "cancelled":
        raise Refused(f"{task.kind} of {task.target or 'the node'} was cancelled", rule="cancelled")
    if task.state != "done":
        raise session.client.gone()
    return Answer.of(task.result, kind)


def submit(session: Session, path: str, request: wire.Request, kind: type[T]) -> Answer[T]:
    """Ask for a long operation with a POST, and follow it."""
    return follow(session, session.client.post(path, wire.TaskRef, request).value, kind)
