"""Follows a long operation of the daemon until its result.

``^C`` detaches: the daemon goes on, and the message says how to follow or to cancel it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from chain.errors import Refused
from odfd.cli.meter import Meter
from odfd.cli.session import Session
from odfd.control.client import part
from odfd.errors import from_problem


class Detached(KeyboardInterrupt):
    """The person went away; the work did not."""


def follow(session: Session, ref: Mapping[str, Any]) -> Any:
    """Wait for the task ``ref`` and return its result. Raises its fault, or Detached on ``^C``."""
    meter = Meter(session, sys.stderr)
    task: Mapping[str, Any] = ref
    try:
        for task in session.client.stream(f"/tasks/{part(ref['id'])}", {"follow": "1"}):
            meter.show(task)
    except KeyboardInterrupt as stop:
        meter.clear()
        session.remark(
            f"Detached; the daemon goes on.  Follow: {session.again} wait task {ref['id']}"
            f"   Cancel: {session.again} delete task {ref['id']}"
        )
        raise Detached from stop
    finally:
        meter.clear()
    if task.get("fault"):
        raise from_problem(task["fault"])
    if task.get("state") == "cancelled":
        raise Refused(f"{task['kind']} of {task.get('target') or 'the node'} was cancelled", rule="cancelled")
    if task.get("state") != "done":
        raise session.client.gone()
    return task.get("result")
