"""Converts the last lines of the daemon's log to values of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from chain.wording import plural
from config.log_levels import LEVELS
from odfd.control import wire
from odfd.errors import Usage
from odfd.obs.log_lines import LineFilter, LogLine, LogLines, LogNews
from odfd.runtime.ring import Lagged


class LogService:
    """The API service for lines of the log."""

    def __init__(self, lines: LogLines) -> None:
        self._lines = lines

    async def last(self, filter_: LineFilter, limit: int) -> Sequence[wire.LogLineView]:
        """Lists the last lines that pass a filter. Raises Usage for an unknown level."""
        _check(filter_)
        return [line_view((number, line)) for number, line in self._lines.last(filter_, limit)]

    async def follow(self, filter_: LineFilter, limit: int) -> AsyncIterator[wire.LogLineView]:
        """Yields the last lines that pass a filter, and then each new one. Raises Usage at the first step."""
        _check(filter_)
        async with aclosing(self._lines.follow(filter_, limit)) as all_news:
            async for news in all_news:
                yield line_view(news)


def _check(filter_: LineFilter) -> None:
    if filter_.level and filter_.level not in LEVELS:
        raise Usage(f"there is no level {filter_.level[:40]!r}", rule="query", hint="one of " + ", ".join(LEVELS))


def line_view(news: LogNews) -> wire.LogLineView:
    if isinstance(news, Lagged):
        lost = "lines" if news.missed is None else plural(news.missed, "line")
        return wire.LogLineView(
            sequence=news.resume - 1,
            event=f"{lost} of the log are no longer kept: they came faster than they were read",
            values={"missed": news.missed},
        )
    number, line = news
    return _decoded(number, line)


def _decoded(number: int, line: LogLine) -> wire.LogLineView:
    values: dict[str, Any] = msgspec.json.decode(line.text)
    for name in ("level", "part", "task"):
        values.pop(name, None)
    event, time = str(values.pop("event", "")), str(values.pop("timestamp", ""))
    return wire.LogLineView(
        sequence=number, time=time, level=line.level, part=line.part, task=line.task, event=event, values=values
    )
