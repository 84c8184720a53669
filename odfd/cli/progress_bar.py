"""Shows the progress of a long operation: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from typing import Final, TextIO

from chain.instant import SECOND
from odfd import output
from odfd.cli import formatting
from odfd.cli.session import Session
from odfd.control import wire

LINE_SECONDS: Final = 5.0
"""Between lines where there is no terminal."""
BAR: Final = 20
_VERBS: Final = {
    "apply": "Applying",
    "ingest": "Ingesting",
    "pull": "Pulling",
    "mirror": "Mirroring",
    "verify": "Verifying",
    "lineage": "Tracing",
    "export": "Exporting",
    "import": "Importing",
    "reset": "Resetting",
    "compact": "Compacting",
    "gc": "Collecting",
}


class Meter:
    """Shows snapshots of one task on ``stream``."""

    def __init__(self, session: Session, stream: TextIO) -> None:
        self._session, self._stream = session, stream
        self._terminal = stream.isatty()
        self._drawn = False
        self._began = session.clock.monotonic()
        self._stage: tuple[str, int, int] | None = None
        """Message, time and count at which the present stage was first seen: rates are of the stage."""
        self._last_line = self._began
        self._last_text = ""

    def show(self, task: wire.TaskView) -> None:
        if self._session.quiet or task.state not in ("running", "waiting"):
            return
        now = self._session.clock.monotonic()
        done, message = task.done, task.message
        if self._stage is None or self._stage[0] != message or done < self._stage[2]:
            self._stage = (message, now, done)
        elapsed = (now - self._stage[1]) / SECOND
        rate = (done - self._stage[2]) / elapsed if elapsed >= 0.5 else 0.0
        text = describe(task, rate)
        if self._terminal:
            output.draw(self._stream, text)
            self._drawn = True
        elif text != self._last_text and now - self._last_line >= LINE_SECONDS * SECOND:
            output.note(self._stream, text)
            self._last_line, self._last_text = now, text

    def clear(self) -> None:
        """Leave the terminal as if nothing had been drawn."""
        if self._drawn:
            output.draw(self._stream, "")
            self._drawn = False


def describe(task: wire.TaskView, rate: float) -> str:
    """One line: what, how far, how fast (units a second), how long still."""
    parts = [f"{_VERBS.get(task.kind, task.kind)} {task.target}".rstrip()]
    if task.state == "waiting":
        return "  ".join([*parts, "waiting for its turn"])
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
        parts.append(formatting.size(done) if in_bytes else f"{done:,} {unit}".rstrip())
    if rate > 0:
        parts.append(f"{formatting.size(rate)}/s" if in_bytes else f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
        if total and total > done:
            parts.append(f"{formatting.span((total - done) / rate)} left")
    return "  ".join(parts)


def bar(share: float) -> str:
    """``━━━━━━━━╸━━━``, always BAR characters."""
    halves = round(max(0.0, min(1.0, share)) * 2 * BAR)
    return ("━" * (halves // 2) + "╸" * (halves % 2)).ljust(BAR, "┄")
