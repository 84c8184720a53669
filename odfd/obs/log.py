"""Sets up structured logs on standard error: text on a terminal, one JSON object a line elsewhere.

The daemon sets it up before anything is logged, and again when its settings change. Each line names its part: the first
two names of the module that wrote it, like ``odfd.mirrors``, three of a feature, like ``odfd.services.trust``; or a
part that the writer gives.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

import structlog
from structlog.processors import CallsiteParameter, CallsiteParameterAdder

from chain.terminal_text import escaped, visible
from config.log_levels import part_levels
from config.model import Node
from config.paths import has_part
from odfd.obs.log_lines import LogLines
from odfd.output import visible_values

FORMS: Final = ("auto", "text", "json")
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
"""Tracebacks without the values of variables, which may hold keys and data."""
_JSON: Final = structlog.processors.JSONRenderer(ensure_ascii=False)
MAX_TEXT: Final = 4000
"""Most characters of one value: a peer or a query must not fill the disk through the log."""


_COUNTED: list[Callable[[str], object]] = []
_KEPT: list[LogLines] = []
_NAMED: list[str] = []
"""Names of loggers of the standard module with a level of their own."""


def count_by(counted: Callable[[str], object]) -> None:
    """Sets the function that is called with the level of each line."""
    _COUNTED[:] = [counted]


def keep_in(lines: LogLines) -> None:
    """Keeps each written line in ``lines``, too."""
    _KEPT[:] = [lines]


class Lines:
    """Writes lines and never fails: a node continues without a log when the disk is full, or its reader is gone.

    The first line that can be written again states in ``unwritten`` how many could not.
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


_SERVICES: Final = "odfd.services."


class Levels:
    """Drops lines below the level of their part: the longest configured prefix of the module's name."""

    _place: Final = CallsiteParameterAdder([CallsiteParameter.QUAL_MODULE], [__name__])

    def __init__(self, level: str, parts: Mapping[str, str]) -> None:
        numbers = logging.getLevelNamesMapping()
        self._parts = {part: numbers[own.upper()] for part, own in parts.items()}
        self._usual = numbers[level.upper()]
        self.lowest = min([self._usual, *self._parts.values()])

    def of(self, module: str) -> int:
        while module not in self._parts and module:
            module = module.rpartition(".")[0]
        return self._parts.get(module, self._usual)

    def __call__(self, logger: Any, method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
        module = self._place(logger, method, values).pop(CallsiteParameter.QUAL_MODULE.value)
        module = values.get("part", module)
        if logging.getLevelNamesMapping()[values["level"].upper()] < self.of(module):
            raise structlog.DropEvent
        values["part"] = ".".join(module.split(".")[: 3 if module.startswith(_SERVICES) else 2])
        return values

    def libraries(self) -> None:
        """Configures the standard module of libraries in the same way: warnings only, unless a part has a level."""
        for name in _NAMED:
            logging.getLogger(name).setLevel(logging.NOTSET)
        for name, number in self._parts.items():
            logging.getLogger(name).setLevel(number)
        _NAMED[:] = self._parts


def configure(level: str, form: str, stream: TextIO = sys.stderr, parts: Mapping[str, str] | None = None) -> None:
    """Configures logging; ``level`` is one of ``config.log_levels.LEVELS``; ``parts`` have levels of their own.

    ``form`` is one of FORMS; ``auto`` is text on a terminal.
    """
    text = form == "text" or (form == "auto" and stream.isatty())
    levels = Levels(level, parts or {})
    last: list[structlog.typing.Processor] = (
        [_visible, structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_visible_traceback)]
        if text
        else [_TRACEBACKS, _JSON, _escape]
    )
    lines = Lines(stream)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            levels,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _bound_length,
            _count,
            lines.tell,
            _keep,
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(levels.lowest),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )
    # Libraries log by the standard module; their warnings are written to the same stream.
    logging.basicConfig(stream=stream, level=max(levels.of(""), logging.WARNING), force=True)
    levels.libraries()
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_VisibleFormatter("%(message)s"))
    logging.captureWarnings(True)


def configure_by(settings: Node) -> None:
    """Configures logging as the settings say, and warns of levels for unknown parts.

    Unknown parts are not refused: a newer version may rename a part, and the daemon has to start with the old settings.
    """
    levels = part_levels(settings.log_levels)
    configure(settings.log_level, settings.log_format, parts=levels)
    for part in levels:
        if not has_part(part):
            structlog.get_logger().warning(
                "node.log-levels names no part", name=part, hint="each line of the log names its part: odfd.mirrors"
            )


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _count(_logger: Any, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for counted in _COUNTED:
        counted(values["level"])
    return values


def _keep(_logger: Any, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for kept in _KEPT:
        text = _JSON(None, "", _TRACEBACKS(None, "", dict(values)))
        kept.add(values["level"], values["part"], str(values.get("task", "")), escaped(str(text)).encode())
    return values


def _visible(_logger: Any, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Makes values visible before the renderer, whose own colour codes must stay."""
    return {key: value if key in ("exc_info", "stack_info") else visible_values(value) for key, value in values.items()}


def _visible_traceback(stream: TextIO, trace: Any) -> None:
    shown = io.StringIO()
    structlog.dev.plain_traceback(shown, trace)
    stream.write(visible(shown.getvalue()))


def _escape(_logger: Any, _method: str, line: Any) -> Any:
    return escaped(line)


def _bound_length(_logger: Any, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for key, value in values.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            values[key] = f"{value[:MAX_TEXT]}… ({len(value)} characters)"
    return values
