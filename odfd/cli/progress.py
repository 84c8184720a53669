"""Follows a long operation of the daemon until its result, and shows its progress.

Progress is a bar on a terminal, and occasional lines elsewhere. ``^C`` detaches: the daemon continues, and a message
says how to follow or cancel the operation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TextIO, TypeVar

from chain.errors import Refused
from chain.instant import SECOND
from odfd import output
from odfd.cli import formatting
from odfd.cli.session import Session
from odfd.control import calls, wire
from odfd.control.client import Answer, ApiCall
from odfd.errors import Bug, from_problem

LINE_SECONDS: Final = 5.0
"""Seconds between lines without a terminal."""
FIRST_LINE_SECONDS: Final = 2.0
"""Seconds before the first line, if nothing is counted: such a task waits for somebody."""
DRAW_SECONDS: Final = 0.1
"""Seconds between two drawings on a terminal, however often the progress changes."""
TOLD_AFTER: Final = 2.0
"""Seconds after which a stage without counts shows its duration."""
BAR: Final = 20
_NUMBERS: Final = re.compile(r"[\d,./]+")
_VERBS: Final = {
    "apply": "Applying",
    "ingest": "Ingesting",
    "pull": "Pulling",
    "push": "Pushing",
    "mirror": "Mirroring",
    "verify": "Verifying",
    "validate": "Validating",
    "recheck": "Re-checking",
    "lineage": "Tracing",
    "export": "Exporting",
    "import": "Importing",
    "reset": "Resetting",
    "compact": "Compacting",
    "gc": "Collecting",
}


class Meter:
    """Shows successive states of one task on ``stream``."""

    def __init__(self, session: Session, stream: TextIO) -> None:
        self._session, self._stream = session, stream
        self._terminal = output.draws(stream)
        self._drawn = False
        self._began = session.clock.monotonic()
        self._stage: tuple[str, int, int] | None = None
        """Unit and message without numbers; time and count when it was first seen: rates are those of the stage."""
        self._last_line = self._last_drawn = self._began
        self._last_text = ""

    def show(self, task: wire.TaskState) -> None:
        if self._session.quiet or task.state not in ("running", "waiting"):
            return
        now = self._session.clock.monotonic()
        done, message = task.done, f"{task.unit} {_NUMBERS.sub('', task.message)}"
        if self._stage is None or self._stage[0] != message or done < self._stage[2]:
            self._stage = (message, now, done)
        elapsed = (now - self._stage[1]) / SECOND
        rate = (done - self._stage[2]) / elapsed if elapsed >= 0.5 else 0.0
        text = describe(task, rate, elapsed)
        if self._terminal:
            if self._drawn and now - self._last_drawn < DRAW_SECONDS * SECOND:
                return
            self._last_drawn = now
            output.draw(self._stream, text)
            self._drawn = True
        elif text != self._last_text and now - self._last_line >= self._pause(task) * SECOND:
            output.note(self._stream, text)
            self._last_line, self._last_text = now, text

    def _pause(self, task: wire.TaskState) -> float:
        """Returns the seconds between the last line and the next one."""
        is_first = not self._last_text and not task.done and not task.total
        return FIRST_LINE_SECONDS if is_first else LINE_SECONDS

    def clear(self) -> None:
        """Clears the meter from the terminal."""
        if self._drawn:
            output.draw(self._stream, "")
            self._drawn = False


def describe(task: wire.TaskState, rate: float, elapsed: float = 0.0) -> str:
    """Formats one line: operation, progress, speed (units a second), time left.

    ``elapsed``: seconds of the present stage, which are shown if nothing is counted, or all of it is done.
    """
    parts = [f"{_VERBS.get(task.kind, task.kind)} {task.target}".rstrip()]
    if task.state == "waiting":
        return "  ".join([*parts, "waiting for a slot"])
    if task.message:
        parts.append(task.message)
    done, total, unit = task.done, task.total, task.unit
    in_bytes = unit == "bytes"
    if total:
        parts.append(bar(done / total))
        parts.append(
            f"{formatting.size(done)} of {formatting.size(total)}"
            if in_bytes
            else f"{done:,}/{total:,} {unit}".rstrip()
        )
    elif done:
        parts.append(
            formatting.size(done) if in_bytes else formatting.plural(done, unit.removesuffix("s"), unit).rstrip()
        )
    is_counted = bool(total) and done >= (total or 0)
    if is_counted or (not total and rate <= 0):
        if elapsed >= TOLD_AFTER:
            parts.append(f"for {formatting.span(elapsed)}")
    elif rate > 0:
        parts.append(f"{formatting.size(rate)}/s" if in_bytes else f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
        if total and total > done:
            parts.append(f"{formatting.span((total - done) / rate)} left")
    return "  ".join(parts)


def bar(share: float) -> str:
    """Formats ``━━━━━━━━╸━━━``, always BAR characters."""
    halves = round(max(0.0, min(1.0, share)) * 2 * BAR)
    return ("━" * (halves // 2) + "╸" * (halves % 2)).ljust(BAR, "┄")


T = TypeVar("T")
_GOING_ON: Final = ("waiting", "running")


class Detached(KeyboardInterrupt):
    """The user left; the task continues in the daemon."""


def follow(session: Session, ref: wire.TaskRef, kind: type[T]) -> Answer[T]:
    """Waits for the task ``ref`` and returns its result, a ``kind``. Raises its fault, or Detached on ``^C``."""
    return Answer.of(_result(session, ref.id), kind)


def submit(session: Session, call: ApiCall[wire.TaskRef], kind: type[T]) -> Answer[T]:
    """Starts a long operation, and follows it. Its result is a ``kind``."""
    return Answer.of(result_of(session, call), kind)


def apply_manifests(
    session: Session,
    manifests: Sequence[wire.ManifestText],
    *,
    dry_run: bool = False,
    generation: int | None = None,
    prune: str | None = None,
    force: bool = False,
    on_error: str | None = None,
) -> Answer[wire.ApplyResult]:
    """Applies manifests, and follows the task. ``generation``: of the resource as it was read; ``None``: any."""
    call = calls.resources_apply(
        manifests,
        dry_run=dry_run,
        generation=generation,
        prune=prune or None,
        force=force,
        on_error=on_error,
        task=True,
    )
    return Answer.of(_result(session, _member(session.client.ask(call), "id")), wire.ApplyResult)


def result_of(session: Session, call: ApiCall[wire.TaskRef]) -> Any:
    """Returns the JSON of the result of ``submit``. Loads the types for progress while the daemon works."""
    return _result(session, _member(session.client.ask(call), "id"))


def _result(session: Session, task_id: str) -> Any:
    meter = Meter(session, output.error_stream())
    task: Any = None
    try:
        for task in session.client.stream_json(calls.tasks_follow(task_id)):
            if not session.quiet and _member(task, "state") in _GOING_ON:
                meter.show(Answer.of(task, wire.TaskState).value)
    except KeyboardInterrupt as stop:
        meter.clear()
        session.remark(
            f"Detached; the daemon continues.  Follow: {session.again} wait task {task_id}"
            f"   Cancel: {session.again} delete task {task_id}"
        )
        raise Detached from stop
    finally:
        meter.clear()
    if task is None:
        raise session.client.lost_connection()
    if task.get("fault"):
        raise from_problem(task["fault"])
    state = _member(task, "state")
    if state == "cancelled":
        raise Refused(f"{task.get('kind')} of {task.get('target') or 'the node'} was cancelled", rule="cancelled")
    if state != "done":
        raise session.client.lost_connection()
    return task.get("result")


def _member(sent: Any, name: str) -> str:
    """Returns a text member of a task's JSON. Raises Bug if it is missing."""
    value = sent.get(name) if isinstance(sent, dict) else None
    if not isinstance(value, str):
        raise Bug(f"the daemon's answer names no {name} of a task", rule="answer-type")
    return value
