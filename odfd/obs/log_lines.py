"""Keeps the last lines of the log in memory for ``odfctl logs``: numbered, and bounded in lines and in bytes."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import trio

from odfd.runtime.ring import Lagged, Ring

MOST: Final = 10_000
"""Most lines that are kept."""
MOST_BYTES: Final = 4 << 20
"""Most bytes of all kept lines, as JSON."""
MAX_LINE: Final = 64 << 10
"""Most bytes of one line. Of a longer one the beginning is kept, as text."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log. ``text`` is its JSON object, as the log has it in the form ``json``."""

    level: str
    part: str
    task: str
    text: bytes


LogNews: TypeAlias = tuple[int, LogLine] | Lagged


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Selects lines of a task, of at least a level, of a part and parts below it; an empty field selects all."""

    task: str = ""
    level: str = ""
    part: str = ""

    def takes(self, line: LogLine) -> bool:
        if self.task and line.task != self.task:
            return False
        if self.level and _number(line.level) < _number(self.level):
            return False
        return not self.part or line.part == self.part or line.part.startswith(self.part + ".")


class LogLines:
    """The last lines of the log of this process."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._ring: Ring[LogLine] = Ring(most, most_bytes)
        self._token: trio.lowlevel.TrioToken | None = None
        """Token of the trio run of the readers, from the first reader on."""

    def add(self, level: str, part: str, task: str, text: bytes) -> None:
        """Appends a line. From any thread."""
        if len(text) > MAX_LINE:
            text = _cut(text)
        self._ring.append(LogLine(level, part, task, text), len(text))
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._ring.nudge, idempotent=True)
            except trio.RunFinishedError:
                self._token = None

    def last(self, filter_: LineFilter, limit: int) -> list[tuple[int, LogLine]]:
        """Lists the last ``limit`` lines that pass the filter, oldest first."""
        return [(number, line) for number, line in self._ring.list_kept() if filter_.takes(line)][-limit:]

    async def follow(self, filter_: LineFilter, limit: int) -> AsyncGenerator[LogNews, None]:
        """Yields the last ``limit`` lines that pass the filter, then each new one; ``Lagged`` where lines were lost."""
        self._token = trio.lowlevel.current_trio_token()
        position = self._ring.last
        for number, line in self.last(filter_, limit):
            if number <= position:
                yield number, line
        async with aclosing(self._ring.follow(position)) as all_news:
            async for news in all_news:
                if isinstance(news, Lagged) or filter_.takes(news[1]):
                    yield news


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _cut(text: bytes) -> bytes:
    whole: dict[str, object] = msgspec.json.decode(text)
    kept = {key: whole[key] for key in ("event", "level", "part", "task", "timestamp") if key in whole}
    beginning = text[: MAX_LINE // 8].decode(errors="replace")
    return msgspec.json.encode({**kept, "cut": f"{beginning}… ({len(text)} bytes)"})
