"""Structured logs on standard error: text for a person at a terminal, one JSON object a line for everything else.

Set up once, by the daemon, before anything is logged. Modules take a logger by ``structlog.get_logger(room=…)``.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO

import structlog

LEVELS: Final = ("debug", "info", "warning", "error")
FORMS: Final = ("auto", "text", "json")
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
"""Where it happened, without the values of variables: they may hold keys and data."""
MAX_TEXT: Final = 4000
"""Characters of one value: a peer or a query must not fill the disk through the log."""


def configure(level: str, form: str, stream: TextIO = sys.stderr) -> None:
    """``level`` is one of LEVELS, ``form`` one of FORMS; ``auto`` is text on a terminal."""
    text = form == "text" or (form == "auto" and stream.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    last: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)]
        if text
        else [_TRACEBACKS, structlog.processors.JSONRenderer(ensure_ascii=False)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _bounded,
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    # Libraries log by the standard module; their warnings belong in the same stream.
    logging.basicConfig(stream=stream, level=max(number, logging.WARNING), format="%(message)s", force=True)


def _bounded(_logger: Any, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for key, value in values.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            values[key] = f"{value[:MAX_TEXT]}… ({len(value)} characters)"
    return values
