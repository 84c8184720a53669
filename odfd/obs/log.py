"""Sets up structured logs on standard error: text on a terminal, one JSON object a line elsewhere.

Set up once, by the daemon, before anything is logged. Modules take a logger by ``structlog.get_logger(room=…)``.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, TextIO

import structlog

from chain.visible import escaped, visible
from odfd.output import visible_values

LEVELS: Final = ("debug", "info", "warning", "error")
FORMS: Final = ("auto", "text", "json")
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
"""Where it happened, without the values of variables: they may hold keys and data."""
MAX_TEXT: Final = 4000
"""Characters of one value: a peer or a query must not fill the disk through the log."""


_COUNTED: list[Callable[[str], object]] = []


def count_by(counted: Callable[[str], object]) -> None:
    """From now on ``counted`` is called with the level of each line."""
    _COUNTED[:] = [counted]


class Lines:
    """Writes lines and never fails: a node whose log has a full disk, or nobody who reads it, goes on without.

    The first line that can be written again says in ``unwritten`` how many could not.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self.unwritten = 0

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # ValueError: the stream was closed
                self.unwritten += 1
            else:
                self.unwritten = 0

    debug = info = warning = error = critical = msg

    def tell(self, _logger: Any, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if self.unwritten:
            values["unwritten"] = self.unwritten
        return values


def configure(level: str, form: str, stream: TextIO = sys.stderr) -> None:
    """``level`` is one of LEVELS, ``form`` one of FORMS; ``auto`` is text on a terminal."""
    text = form == "text" or (form == "auto" and stream.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    last: list[structlog.typing.Processor] = (
        [_visible, structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_visible_traceback)]
        if text
        else [_TRACEBACKS, structlog.processors.JSONRenderer(ensure_ascii=False), _escaped]
    )
    lines = Lines(stream)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _bounded,
            _count,
            lines.tell,
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )
    # Libraries log by the standard module; their warnings belong in the same stream.
    logging.basicConfig(stream=stream, level=max(number, logging.WARNING), force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_VisibleFormatter("%(message)s"))
    logging.captureWarnings(True)


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _count(_logger: Any, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for counted in _COUNTED:
        counted(values["level"])
    return values


def _visible(_logger: Any, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The renderer adds colours, which are ours; what it shows comes from anywhere."""
    return {key: value if key in ("exc_info", "stack_info") else visible_values(value) for key, value in values.items()}


def _visible_traceback(stream: TextIO, trace: Any) -> None:
    shown = io.StringIO()
    structlog.dev.plain_traceback(shown, trace)
    stream.write(visible(shown.getvalue()))


def _escaped(_logger: Any, _method: str, line: Any) -> Any:
    return escaped(line)


def _bounded(_logger: Any, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for key, value in values.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            values[key] = f"{value[:MAX_TEXT]}… ({len(value)} characters)"
    return values
