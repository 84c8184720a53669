"""Processes of queries: how they are lent, and rows on their way out of them as frames, pipes and lines of text."""

from __future__ import annotations

import datetime as dt
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.data.json_values import plain_rows
from chain.errors import Invalid
from engines.errors import EngineLost
from engines.query import reader
from engines.query.frames import END, FAULT, HEAD, ROWS, AnswerFrameReader, frame
from engines.query.reader import QueryLimits, QueryProcesses, reading_end, row_pipe
from engines.query.text_rows import heading, render_lines
from odfd.cli.sql.formats import csv_text, ndjson_text

# Rows as lines of text: by columns they are what the values give one by one.

_WORDS = st.one_of(
    st.text(max_size=8), st.sampled_from(["", " a", "a\u00a0", 'say "x"', "a,b", "1\n2", "\\", "\x00\x1f"])
)
_FLOATS = st.one_of(
    st.floats(), st.floats(-1e6, 1e6), st.sampled_from([0.0, -0.0, 1e15, 1e16, 1e-4, 123456789012345.6])
)
_TICKS = st.one_of(
    st.integers(-(2**62), 2**62), st.integers(-(10**15), 10**15), st.integers(-9, 9).map(lambda n: n * 10**6)
)
_DAYS = st.integers(-100_000, 100_000)
_COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "text": (pa.string(), _WORDS),
    "large": (pa.large_string(), _WORDS),
    "n": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "u": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "small": (pa.int16(), st.integers(-9, 9)),
    "yes": (pa.bool_(), st.booleans()),
    "float": (pa.float64(), _FLOATS),
    "half": (pa.float32(), st.floats(width=32)),
    "time": (pa.timestamp("us", "UTC"), _TICKS),
    "milli": (pa.timestamp("ms", "UTC"), _TICKS.map(lambda ticks: ticks // 10**4)),
    "nano": (pa.timestamp("ns", "UTC"), _TICKS),
    "local": (pa.timestamp("us"), st.integers(-(10**15), 10**15)),
    "day": (pa.date32(), _DAYS),
    "price": (pa.decimal128(20, 4), st.decimals(-(10**9), 10**9, places=4)),
    "tiny": (pa.decimal128(20, 12), st.decimals(-10, 10, places=12)),
    "clock": (pa.time64("us"), st.times()),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "list": (pa.list_(pa.string()), st.lists(_WORDS, max_size=3)),
    "struct": (pa.struct([("a", pa.int64())]), st.fixed_dictionaries({"a": st.integers(0, 9)})),
    "none": (pa.null(), st.none()),
}


def _batch(name: str, values: list[Any]) -> pa.RecordBatch:
    kind = _COLUMNS[name][0]
    if pa.types.is_timestamp(kind):
        column = pa.array(values, pa.int64()).view(kind)
    elif pa.types.is_date(kind):
        column = pa.array(values, pa.int32()).view(kind)
    else:
        column = pa.array(values, kind)
    return pa.record_batch({name: column, "n o": pa.array(range(len(values)), pa.int32())})


def _said(batch: pa.RecordBatch, form: Any) -> bytes:
    return b"".join(bytes(text) for _, text in render_lines(batch, form))


@pytest.mark.slow
@pytest.mark.parametrize("name", _COLUMNS)
@given(data=st.data())
def test_lines_by_columns_are_those_of_each_value(name: str, data: st.DataObject) -> None:
    batch = _batch(name, data.draw(st.lists(st.none() | _COLUMNS[name][1], min_size=1, max_size=12)))
    try:
        rows = json.loads(json.dumps(plain_rows(batch)))
    except Invalid:
        with pytest.raises(Invalid):
            _said(batch, "csv")
        return
    assert _said(batch, "csv") == csv_text(rows)
    assert _said(batch, "ndjson").decode() == ndjson_text(batch.schema.names, rows) + "\n"


@pytest.mark.slow
def test_a_slice_of_a_batch_is_rendered_alone() -> None:
    batch = pa.record_batch({"x": ["a", None, 'b"', ""], "d": [Decimal("1.50"), None, Decimal(-2), None]}).slice(1, 3)
    assert _said(batch, "csv") == b',\n"b""",-2.00\n"",\n'
    whole = pa.record_batch({"t": pa.array([dt.datetime(2024, 5, 1, tzinfo=dt.UTC)] * 200_000)})
    assert sum(rows for rows, _ in render_lines(whole, "ndjson")) == 200_000


def test_a_heading_is_csv_and_an_object_has_each_name_once() -> None:
    assert heading(["a", "b,c", ""], "csv") == b'a,"b,c",""\n'
    assert heading(["a", "b"], "ndjson") == b""
    with pytest.raises(Invalid, match="two columns are called a"):
        heading(["a", "a"], "ndjson")


# Frames come out as they went in, however the bytes are cut.

FRAMES = st.lists(st.tuples(st.sampled_from((HEAD, ROWS, END, FAULT)), st.binary(max_size=40)), max_size=8)


@given(FRAMES, st.integers(1, 17))
def test_frames_survive_any_cutting(frames: list[tuple[bytes, bytes]], step: int) -> None:
    data = b"".join(frame(kind, content) for kind, content in frames)
    reader = AnswerFrameReader()
    found = [each for start in range(0, len(data), step) for each in reader.feed(data[start : start + step])]
    assert found == frames


@pytest.mark.parametrize("data", [b"X\0\0\0\1a", b"A\xff\xff\xff\xff"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        list(AnswerFrameReader().feed(data))


# The pipe of rows, in a folder where the process of the query writes what it likes.


def test_rows_go_through_a_pipe_until_its_writer_is_gone(tmp_path: Path) -> None:
    with os.fdopen(row_pipe(tmp_path / "rows"), "rb") as end:
        with (tmp_path / "rows").open("wb") as writer:
            writer.write(b"rows")
        assert end.read() == b"rows"


def test_a_pipe_that_was_replaced_leads_to_no_file_of_the_node(tmp_path: Path) -> None:
    """Attack T-QUERY-01: a query's process that puts another file in the place of its pipe of rows, for the node to
    hand to a client of Flight.

    Defence: the node makes the pipe, follows no link, and opens nothing but a pipe.
    """
    secret, place = tmp_path / "key", tmp_path / "rows"
    secret.write_text("secret")
    for put in (os.symlink, os.link):
        put(secret, place)
        for opens in (row_pipe, reading_end):
            with pytest.raises(EngineLost, match="replaced"):
                opens(place)
        place.unlink()
    with pytest.raises(EngineLost, match="replaced"):
        reading_end(place)


# Processes are lent to queries while their node runs.


async def test_a_node_that_stops_while_the_sandbox_is_chosen_starts_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would wait for it, and it would outlive the node."""
    chosen, stopped = trio.Event(), trio.Event()

    async def choose() -> Any:
        chosen.set()
        await stopped.wait()

    def started(*_: Any) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr(reader, "QueryProcess", started)
    processes = QueryProcesses(tmp_path, choose, QueryLimits())

    async def ask() -> None:
        with pytest.raises(EngineLost, match="not being served"):
            async with processes.one():
                pytest.fail("it was lent")

    async with trio.open_nursery() as asking:
        async with trio.open_nursery() as running:
            running.start_soon(processes.run)
            await processes.serving.wait()
            asking.start_soon(ask)
            await chosen.wait()
            running.cancel_scope.cancel()
        stopped.set()


class _Process:
    """In place of a process: tells whether it was waited for."""

    is_alive = True

    def __init__(self, *_: Any) -> None:
        self.is_stopped = False

    async def listen(self) -> None:
        await trio.sleep_forever()

    def kill(self) -> None:
        pass

    async def stop(self) -> None:
        self.is_stopped = True


async def test_a_process_that_is_given_back_while_its_node_stops_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of all that serves queries and the end of serving, nobody took it."""
    monkeypatch.setattr(reader, "QueryProcess", _Process)
    lent: list[_Process] = []

    async def choose() -> Any:
        await trio.lowlevel.checkpoint()

    async def ask(processes: QueryProcesses, given: trio.Event, back: trio.Event) -> None:
        async with processes.one() as process:
            lent.append(cast(_Process, process))
            given.set()
            await back.wait()

    for _ in range(100):  # who of two is woken first is for trio's scheduler to say
        processes, given, back = QueryProcesses(tmp_path, choose, QueryLimits()), trio.Event(), trio.Event()

        async def last(back: trio.Event = back) -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    for _ in range(5):
                        await trio.lowlevel.checkpoint()
                back.set()

        async with trio.open_nursery() as asking, trio.open_nursery() as running:
            running.start_soon(processes.run)
            await processes.serving.wait()
            asking.start_soon(ask, processes, given, back)
            await given.wait()
            processes.later(last)
            await trio.testing.wait_all_tasks_blocked()
            running.cancel_scope.cancel()
    assert all(each.is_stopped for each in lent)


async def test_a_query_that_ends_with_its_node_makes_no_process_ready_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "QueryProcess", _Process)

    async def choose() -> Any:
        await trio.lowlevel.checkpoint()

    async def ask(processes: QueryProcesses, given: trio.Event) -> None:
        async with processes.one():
            given.set()
            await trio.sleep_forever()

    for _ in range(100):  # who of two is woken first is for trio's scheduler to say
        processes, given = QueryProcesses(tmp_path, choose, QueryLimits()), trio.Event()
        async with trio.open_nursery() as node:
            node.start_soon(processes.run)
            await processes.serving.wait()
            node.start_soon(ask, processes, given)
            await given.wait()
            node.cancel_scope.cancel()
