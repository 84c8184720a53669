"""The last lines of the log are kept in memory, within bounds, and read by what they are of."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import aclosing
from io import StringIO

import pytest
import structlog
import trio
import trio.testing

from chain.errors import Invalid
from chain.instant import Instant
from config.model import Node
from odfd.control.board import LogService
from odfd.errors import Usage
from odfd.obs import log
from odfd.obs.log_lines import MAX_LINE, LineFilter, LogLines
from odfd.runtime.ring import Lagged
from odfd.runtime.supervision import Life
from odfd.runtime.tasks import Report, TaskBoard
from worlds.clock import FixedClock

ALL = LineFilter()


@pytest.fixture
def lines() -> Iterator[LogLines]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    kept = LogLines()
    log.configure("info", "text", StringIO())
    log.keep_in(kept)
    yield kept
    log._KEPT.clear()
    log.configure_by(Node())
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def texts(lines: LogLines, filter_: LineFilter = ALL, limit: int = 10) -> list[object]:
    return [json.loads(line.text)["event"] for _, line in lines.last(filter_, limit)]


def test_lines_are_kept_as_they_are_written_whatever_the_form(lines: LogLines) -> None:
    logger = structlog.get_logger(part="odfd.mirrors.sync")
    logger.debug("below the level")
    logger.warning("a \x1b[31mname", name="x", path=object)
    ((number, line),) = lines.last(ALL, 10)
    assert (number, line.level, line.part, line.task) == (1, "warning", "odfd.mirrors", "")
    assert json.loads(line.text)["event"] == "a \x1b[31mname"
    assert b"\x1b" not in line.text


def test_a_level_of_a_part_that_is_none_is_told_and_stops_nobody(lines: LogLines) -> None:
    known = ("odfd.mirrors=debug", "p2p.driver.serve=info", "events=debug", "trio=warning", "odfd=info")
    log.configure_by(Node(log_levels=(*known, "odfd.mirors=debug", "nolib=info")))
    told = [json.loads(line.text) for _, line in lines.last(ALL, 10)]
    assert [(each["level"], each["name"]) for each in told] == [("warning", "odfd.mirors"), ("warning", "nolib")]


def test_traces_have_no_values_of_variables(lines: LogLines) -> None:
    def fail() -> None:
        secret = "-".join(["canary", "5f1c"])
        raise ValueError(len(secret))

    try:
        fail()
    except ValueError:
        structlog.get_logger(part="odfd.x").exception("it failed")
    ((_, line),) = lines.last(ALL, 10)
    assert b"ValueError" in line.text
    assert b"canary-5f1c" not in line.text


def test_filters_take_levels_parts_and_tasks() -> None:
    lines = LogLines()
    for level, part, task in (
        ("debug", "p2p.driver", ""), ("info", "p2p.host", "a"), ("error", "p2power.x", "a"), ("warning", "odfd.x", "b"),
    ):  # fmt: skip
        lines.add(level, part, task, json.dumps({"event": f"{level} {part}"}).encode())
    assert texts(lines, LineFilter(level="warning")) == ["error p2power.x", "warning odfd.x"]
    assert texts(lines, LineFilter(part="p2p")) == ["debug p2p.driver", "info p2p.host"]
    assert texts(lines, LineFilter(task="a")) == ["info p2p.host", "error p2power.x"]
    assert texts(lines, limit=1) == ["warning odfd.x"]


def test_a_line_that_is_too_long_is_cut_and_says_so() -> None:
    lines = LogLines()
    text = json.dumps({"event": "e", "level": "info", "far": "x" * MAX_LINE}).encode()
    lines.add("info", "odfd.x", "", text)
    ((_, line),) = lines.last(ALL, 1)
    assert len(line.text) < MAX_LINE
    cut = json.loads(line.text)
    assert cut["event"] == "e"
    assert cut["cut"].endswith(f"({len(text)} bytes)")


def test_bytes_are_bounded() -> None:
    lines = LogLines(most=1000, most_bytes=100)
    for number in range(50):
        lines.add("info", "odfd.x", "", json.dumps({"event": number}).encode())
    kept = lines.last(ALL, 1000)
    assert sum(len(line.text) for _, line in kept) <= 100
    assert kept[-1][0] == 50


async def test_followers_get_lines_of_any_thread_and_are_told_what_they_missed() -> None:
    lines = LogLines(most=3)
    lines.add("info", "odfd.x", "", b'{"event":"before"}')
    async with aclosing(lines.follow(ALL, 10)) as news:
        first = await anext(news)
        assert not isinstance(first, Lagged)
        async with trio.open_nursery() as nursery:
            later: list[object] = []

            async def read() -> None:
                later.extend([await anext(news)])

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(lines.add, "info", "odfd.x", "", b'{"event":"from a thread"}')
        assert [number for number, _ in later] == [2]  # type: ignore[misc,has-type]
        for _ in range(5):
            lines.add("info", "odfd.x", "", b'{"event":"more"}')
        assert await anext(news) == Lagged(5, 2)


def test_lines_without_readers_need_no_event_loop() -> None:
    lines = LogLines()
    lines.add("info", "odfd.x", "", b'{"event":"e"}')
    trio.run(_read_one, lines)
    lines.add("info", "odfd.x", "", b'{"event":"after the run"}')
    assert texts(lines) == ["e", "after the run"]


async def _read_one(lines: LogLines) -> None:
    async with aclosing(lines.follow(ALL, 1)) as news:
        await anext(news)


async def test_the_service_refuses_levels_that_there_are_not() -> None:
    with pytest.raises(Usage, match="no level 'loud'"):
        await LogService(LogLines()).last(LineFilter(level="loud"), 1)


async def test_lines_of_a_task_name_it(lines: LogLines, nursery: trio.Nursery) -> None:
    ids = iter(["t1", "t2"])
    board = TaskBoard(FixedClock(Instant(0)), lambda: next(ids), structlog.get_logger(part="odfd.runtime"))
    life = Life()
    nursery.start_soon(board.run, life)
    await trio.testing.wait_all_tasks_blocked()

    async def work(_: Report) -> None:
        await trio.to_thread.run_sync(structlog.get_logger(part="engines.x").info, "in a thread of it")
        raise Invalid("no good", rule="x")

    first, second = board.submit("pull", "a", work), board.submit("pull", "b", work)
    await first.finished.wait()
    await second.finished.wait()
    structlog.get_logger(part="odfd.x").info("of no task")
    assert texts(lines, LineFilter(task="t1")) == ["task begun", "in a thread of it", "task failed", "task ended"]
    assert texts(lines, LineFilter(task="t2")) == ["task begun", "in a thread of it", "task failed", "task ended"]
    assert len(lines.last(ALL, 10)) == 9
    nursery.cancel_scope.cancel()
