"""The log and the events: bounded, in order, read by what they are of."""

from __future__ import annotations

import ast
import errno
import io
import json
import logging
from collections.abc import Iterator
from contextlib import aclosing
from io import StringIO
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.instant import Instant
from config.model import Node
from odfd.control.board import LogService
from odfd.errors import Usage
from odfd.obs import log
from odfd.obs.events import EVENT_KINDS, Event, EventLog
from odfd.obs.log_lines import MAX_LINE, LineFilter, LogLines
from odfd.runtime.ring import Lagged
from odfd.runtime.supervision import Life
from odfd.runtime.tasks import Report, TaskBoard
from worlds.clock import FixedClock

# One JSON object a line, bounded, at and above the level.


def test_json_lines() -> None:
    stream = io.StringIO()
    log.configure("info", "auto", stream)
    logger = structlog.get_logger(room="test")
    logger.debug("unseen")
    logger.info("héllo", blocks=3, query="x" * 10_000)
    try:
        raise ValueError("why")
    except ValueError as error:
        logger.error("failed", exc_info=error)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["event"] == "héllo"
    assert (first["level"], first["room"], first["blocks"]) == ("info", "test", 3)
    assert len(first["query"]) < 4100
    assert first["query"].endswith("(10000 characters)")
    assert second["exception"][0]["exc_value"] == "why"


def test_text_for_people() -> None:
    stream = io.StringIO()
    log.configure("warning", "text", stream)
    structlog.get_logger().info("unseen")
    structlog.get_logger().warning("seen", blocks=3)
    assert "seen" in stream.getvalue()
    assert "blocks=3" in stream.getvalue()
    assert "unseen" not in stream.getvalue()


class Sometimes(io.StringIO):
    """A stream on a disk that may be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    """Attack T-DISK-02: a full disk under the log, or a log without a reader.

    Defence: lines that cannot be written are counted, and the next written line has the count; logging never blocks.
    """
    stream = Sometimes()
    log.configure("info", "json", stream)
    logger = structlog.get_logger()
    logger.info("first")
    stream.full = True
    logger.info("second")
    logger.error("third")
    stream.full = False
    logger.info("fourth")
    logger.info("fifth")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line.get("unwritten")) for line in lines] == [
        ("first", None),
        ("fourth", 2),
        ("fifth", None),
    ]
    stream.close()
    logger.info("sixth")


def test_parts_have_levels_of_their_own() -> None:
    stream = io.StringIO()
    log.configure("warning", "json", stream, {"odfd.mirrors": "debug", "odfd.mirrors.sync": "error", "events": "info"})
    for module in ("odfd.mirrors.scheduler", "odfd.mirrors.sync", "odfd.services.trust.service", "odfd.mirrorspec"):
        space: dict[str, object] = {"__name__": module, "logger": structlog.get_logger()}
        exec("logger.debug('d'); logger.warning('w'); logger.error('e')", space)
    structlog.get_logger(part="events").info("i")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["part"], line["event"]) for line in lines] == [
        ("odfd.mirrors", "d"),
        ("odfd.mirrors", "w"),
        ("odfd.mirrors", "e"),
        ("odfd.mirrors", "e"),
        ("odfd.services.trust", "w"),
        ("odfd.services.trust", "e"),
        ("odfd.mirrorspec", "w"),
        ("odfd.mirrorspec", "e"),
        ("events", "i"),
    ]


def test_levels_change_at_run_time_also_of_libraries() -> None:
    stream, library = io.StringIO(), logging.getLogger("p2p.host.muxer")
    log.configure("info", "json", stream)
    logger = structlog.get_logger()
    logger.debug("before"), library.info("before")
    log.configure("info", "json", stream, {"p2p": "info", "tests": "debug", __name__.partition(".")[0]: "debug"})
    logger = structlog.get_logger()
    logger.debug("between"), library.info("between")
    log.configure("info", "json", stream)
    structlog.get_logger().debug("after"), library.info("after")
    assert stream.getvalue().count("between") == 2
    assert "before" not in stream.getvalue()
    assert "after" not in stream.getvalue()


# The last lines of the log are kept in memory, within bounds, and read by what they are of.

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


# Every reader gets every event once, in order, or is told how many it missed.

TREE = Path(__file__).parents[4]


@pytest.mark.slow
@given(ring=st.integers(1, 8), since=st.integers(0, 30), steps=st.lists(st.integers(0, 12), max_size=12))
def test_told_or_said_to_be_lost_never_twice_never_silently(ring: int, since: int, steps: list[int]) -> None:
    async def play() -> None:
        log = EventLog(FixedClock(Instant(0)), ring)
        position: int | None = None
        for _ in range(20):
            log.emit("x.y")
        async with aclosing(log.follow(since)) as news:
            for burst in steps:
                for _ in range(burst):
                    log.emit("x.y")
                if position is None and since <= log.last:
                    # The reader's place is looked at with its first step, which comes now.
                    position = since
                while position is None or position < log.last:
                    item = await anext(news)
                    if isinstance(item, Lagged):
                        if item.missed is None:
                            assert position is None
                            assert since > log.last
                        else:
                            assert position is not None
                            assert item.resume - position - 1 == item.missed > 0
                        position = item.resume - 1
                        continue
                    assert isinstance(item, Event)
                    assert position is not None
                    assert item.sequence == position + 1
                    position = item.sequence

    trio.run(play)


async def test_from_now_on_and_waking(autojump_clock: trio.testing.MockClock) -> None:
    log = EventLog(FixedClock(Instant(5)))
    log.emit("old.one")
    seen: list[Event | Lagged] = []

    async def read() -> None:
        async with aclosing(log.follow()) as news:
            async for item in news:
                seen.append(item)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        log.emit("new.one", "subject", "message", kind="data may have any name")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [item.kind for item in seen if isinstance(item, Event)] == ["new.one"] * 3
    assert log.last == 2


OF_THE_NODE = {
    "flow.deleted": "the dataset that it pulled is deleted with it, or it never was in force",
    "flow.stranded": "the dataset that it pulled is deleted: nobody has rights on that any more",
    "journal.begun": "of keys of the node",
    "journal.lost": "of keys of the node",
    "key.discarded": "of a dataset that is deleted for good",
    "node-card.heard": "of what the node tells of itself",
    "node-card.signed": "of what the node tells of itself",
    "objects.collected": "of the disk, which all share",
    "policy.changed": "of the rules of the node",
    "policy.heard": "of a network",
    "secret.rotated": "of keys of the node",
    "validator.suspended": "of whom the node believes",
}
"""Kinds of which the node's owner alone is told, with the reason."""


@pytest.mark.slow
def test_each_event_says_what_it_is_about_or_is_the_owners() -> None:
    """Attack T-ACCOUNT-01: a new kind of event, whose readers were not decided.

    Defence: an event that does not say what it is about is the owner's alone, and a test asks for the reason.

    What says nothing is told to no account: a new event is decided on here or at its emission.
    """
    silent: set[str] = set()
    for path in sorted((TREE / "odfd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_emission = isinstance(node, ast.Call) and (
                ast.unparse(node.func).endswith((".emit", "_emit")) or ast.unparse(node.func) == "emit"
                or (ast.unparse(node.func) == "partial" and ast.unparse(node.args[0]).endswith("emit"))
            )  # fmt: skip
            # What a statement that came tells of itself: of the node, if it says so.
            is_notice = isinstance(node, ast.Call) and ast.unparse(node.func) == "StatementNotice"
            is_silent = is_emission and "about" not in {keyword.arg for keyword in node.keywords}
            if is_silent or (is_notice and "NODE" in map(ast.unparse, node.args)):
                silent |= {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)} & EVENT_KINDS.keys()
    assert silent == OF_THE_NODE.keys()


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 10), st.integers(0, 40))
def test_ticks_rise_and_positions_are_where_their_events_are(steps: list[int], ring: int, at: int) -> None:
    """Also while the clock stands or goes back; what is lost is told, and nothing else is."""
    now = 1_000

    class Clock:
        def now(self) -> Instant:
            return Instant(now * 1_000)

        def monotonic(self) -> int:
            return now

    log = EventLog(Clock(), ring)  # type: ignore[arg-type]
    emitted = []
    for step in steps:
        now += step - 2
        emitted.append(log.emit("x.y"))
    ticks = [event.tick for event in emitted]
    assert ticks == sorted(set(ticks))
    assert log.position(None) == len(emitted)
    assert log.position(0) == max(0, len(emitted) - ring)
    assert log.position((ticks or [1_000])[-1] + 1) is None
    if emitted:
        chosen = emitted[at % len(emitted)]
        is_kept = len(emitted) - chosen.sequence < ring
        assert log.position(chosen.tick) == (chosen.sequence if is_kept else None)
